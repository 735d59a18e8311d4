"""A long soak: millions of leapfrogs and drifts keep their invariants, and no NaN escapes from a hard target."""

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE
from pymc_stiefel.engine.manifolds.stiefel import NEGLIGIBLE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests import kernels
from tests.statistical.targets import langevin, target_density

pytestmark = pytest.mark.statistical

each_drift = pytest.mark.parametrize("kind", kernels.DRIFTS)


@each_drift
def test_a_million_leapfrogs_stay_on_the_manifold(kind, book, full):
    """Trajectories of a thousand leapfrogs; the error is measured at their ends, before it is removed."""
    target = langevin(7, 3, "high")
    settings = Settings(drift=kind, n_steps=1000, step_size=0.2, adapt_step_size=False, adapt_metric=False)
    rng = np.random.default_rng(0)
    sampler = Sampler(make_layout([(7, 3)], 0), target_density.address, settings, rng, target.extra)
    sampler.chain.tune = False
    q, worst, moved = np.eye(7, 3).T.ravel(), 0.0, 0
    trajectories = 1000 if full else 200
    for _ in range(trajectories):
        q = sampler.draw(q).copy()
        worst = max(worst, sampler.stats["orthogonality_error"])
        moved += sampler.stats["index_in_trajectory"] != 0
        assert geo.orthogonality_error(q.reshape(3, 7).T) < 1.1 * NEGLIGIBLE
    assert moved > trajectories / 2
    book.note(10, f"largest error of X'X within {trajectories} trajectories of 1000 leapfrogs, {kind}", f"{worst:.1e}")
    assert worst < 1e-12


@each_drift
def test_a_million_drifts_conserve_angular_momentum(kind, book, full):
    """Re-orthonormalised every ten thousand drifts, with the momentum recovered from the angular momentum."""
    rng = np.random.default_rng(1)
    c, w = kernels.metric_of(kind, 3, rng)
    X = geo.polar(rng.standard_normal((6, 3)))
    r = geo.draw_momentum(X, c, w, rng)
    first, worst = geo.angular_momentum(X, r), 0.0
    for _ in range(100 if full else 20):
        X, r = kernels.drift(kind, X, r, 0.3, c, w, count=10_000)
        worst = max(worst, np.abs(geo.angular_momentum(X, r) - first).max())
        X = geo.polar(X)
        inner = X.T @ first @ X
        r = first @ X - X @ inner / 2  # X A' + B' with A' = inner / 2 and B' = mu X - X inner
    book.note(10, f"largest change of angular momentum in 10^4 drifts, {kind}", f"{worst:.1e}")
    assert worst < 1e-10


@numba.cfunc(DENSITY_SIGNATURE)
def hard_density(q, gradient, extra):
    """Steep, with a region of NaN and one of minus infinity beside the mode."""
    x, g = carray(q, (10,)), carray(gradient, (10,))
    g[:] = 0.0
    g[0], g[6] = 300.0, 50.0
    if x[1] > 0.1:
        g[:] = np.nan
        return np.nan
    if x[7] < -0.2:
        return -np.inf
    return 300.0 * x[0] + 50.0 * x[6]


@pytest.mark.parametrize("kind", kernels.DRIFTS)
def test_no_nan_escapes_from_a_hard_target(kind, book, full):
    settings = Settings(drift=kind, step_size=0.3, target_accept=0.6)
    sampler = Sampler(make_layout([(5, 2)], 0), hard_density.address, settings, np.random.default_rng(2))
    q, count, diverging = np.eye(5, 2).T.ravel(), 100_000 if full else 20_000, 0
    sampler.chain.tune = True
    kept = np.empty((count, 10))
    for k in range(count):
        sampler.chain.tune = k < 500
        q = sampler.draw(q).copy()
        kept[k] = q
        diverging += int(sampler.stats["diverging"])
    assert np.all(np.isfinite(kept))
    assert kept[:, 1].max() <= 0.1 and kept[:, 7].min() >= -0.2
    assert geo.orthogonality_error(kept.reshape(-1, 2, 5).swapaxes(1, 2)).max() < 1.1 * NEGLIGIBLE
    assert 0 < diverging < count  # the forbidden regions were met
    book.note(10, f"divergent trajectories among {count} draws of a hard target, {kind}", str(diverging))
