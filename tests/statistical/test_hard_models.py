"""Models on which an earlier version was wrong without a word, or a hundred times slower: small versions of them."""

import numpy as np
import pymc as pm
import pytest

import pymc_stiefel as pst
from benchmarks import hard_models as hard
from pymc_stiefel.optimize import trapped

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    "make", [hard.procrustes, lambda: hard.procrustes(5, 2), lambda: hard.langevin_peak(1e-6)], ids=["20", "5", "peak"]
)
def test_chains_arrive(make, full):
    """With secants or the search alone none is lost; with mean squares of gradients one of five was."""
    counts = hard.run(make(), chains=24 if full else 8, draws=200, tune=200, seed=3, cores=1)
    assert counts["off"] == 0
    assert counts["divergences"] == 0


def test_envelope_regression(full):
    counts = hard.run(hard.envelope(), chains=12 if full else 4, draws=200, tune=300, seed=1, cores=1)
    assert counts["off"] == 0


def test_rows_that_differ(full):
    """50 effective draws for 1000 gradients; it was one."""
    counts = hard.run(hard.factor_analysis(), chains=4 if full else 2, draws=500, tune=500, seed=1, cores=1)
    assert counts["per 1000 gradients"] > 40
    assert abs(counts["acceptance"] - 0.8) < 0.1


def test_trapped_chains_are_named():
    """Without the search (it is skipped where a start is given) chains of the envelope model are trapped alike."""
    model = hard.envelope().model
    rng = np.random.default_rng(0)
    starts = []
    for _ in range(4):
        Q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        Q[:, 0] *= np.linalg.det(Q)
        starts.append({"O": Q})
    with model:
        idata = pm.sample(100, tune=300, chains=4, cores=1, initvals=starts, random_seed=1, progressbar=False)
        healthy = pm.sample(100, tune=300, chains=4, cores=1, random_seed=1, progressbar=False)
    means, known = (one["sample_stats"]["lp"].values.mean(1) for one in (idata, healthy))
    low = np.flatnonzero(means < known.max() - 50)
    assert len(low)
    found = trapped(model, idata, starts=pst.initial_points(model, 1, random_seed=1))
    assert set(low) <= {one.chain for one in found}
    assert max(one.below for one in found) > 50
    assert trapped(model, healthy) == []
