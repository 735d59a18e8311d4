"""Rung 7: calibration of the ready-made factor model with a tenth of the entries missing."""

import numpy as np
import pytest
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.distributions._low_rank_data import make_parts
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests.statistical.ladder import score_of_pvalue
from tests.statistical.test_joint_models import BINS, RANKS

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore")]

ROWS, N, P = 30, 5, 2
MISSING = np.random.default_rng(31).permuted(np.arange(ROWS * N).reshape(ROWS, N) < ROWS * N // 10).astype(bool)


def draw_prior(rng):
    """One draw of the parameters, without PyMC."""
    lengths = -np.sort(-np.abs(np.sqrt(N) * rng.standard_normal(P)))
    return {
        "W": pst.draws.haar(N, P, rng=rng) * lengths,
        "mu": 2 * rng.standard_normal(N),
        "noise": np.abs(rng.standard_normal(N)),
    }


def draw_data(W, mu, noise, rng):
    return mu + rng.standard_normal((ROWS, P)) @ W.T + noise * rng.standard_normal((ROWS, N))


def statistics(W, mu, noise):
    """Identified quantities of draws with leading dimension: (draws, k)."""
    cov = W @ np.swapaxes(W, -1, -2)
    size = np.trace(cov, axis1=1, axis2=2)
    return np.column_stack([np.log(size), cov[:, 0, 0] / size, cov[:, 0, 1] / size, mu[:, 0], np.log(noise[:, :2])])


class Calibration:
    """One compiled model; its data are exchanged where the density reads them."""

    def __init__(self, zeros: bool) -> None:
        self.zeros = zeros
        table = self.observe(np.random.default_rng(1).normal(size=(ROWS, N)))
        model = pst.factor_model(table, P, noise="feature", location=0.0, scale=1.0)
        with model:
            self.density = ModelDensity(model, model.continuous_value_vars, model.initial_point(1))
        self.start = self.density.pack(model.initial_point(1))
        self.parts = model.rvs_to_values[model["y"]].tag.low_rank_parts

    def observe(self, y):
        """What is missing is unknown, or in the control zero."""
        return np.where(MISSING, 0.0 if self.zeros else np.nan, y)

    def set_data(self, y) -> None:
        for old, new in zip(self.parts, make_parts(self.observe(y)), strict=True):
            for array, values in zip(old.arrays, new.arrays, strict=True):
                array.set_value(values.get_value())
        assert self.density.refresh()

    def parameters(self, flat):
        values = {slot.value.name: slot.read(flat) for slot in self.density.slots}
        lengths = np.exp(values["W_d_descending__"]) @ np.tri(P)
        W = values["W_Q_polar__"] * lengths[:, None, :]
        return {"W": W, "mu": values["mu"], "noise": np.exp(values["noise_log__"])}

    def ranks(self, replication, thin=6):
        """Rank of each statistic of a prior draw among its posterior draws given data simulated from it."""
        rng = np.random.default_rng([24, replication])
        truth = draw_prior(rng)
        self.set_data(draw_data(**truth, rng=rng))
        density, settings = self.density, Settings(drift="splitting", stages=TWO_STAGE)
        sampler = Sampler(density.layout, density.address, settings, rng, density.extra)
        q, kept = self.start.copy(), np.empty((RANKS - 1, self.start.size))
        for k in range(-300, thin * (RANKS - 1)):
            sampler.chain.tune = k < -30
            q = sampler.draw(q).copy()
            if k >= 0 and k % thin == 0:
                kept[k // thin] = q
        values = statistics(**self.parameters(kept))
        true_values = statistics(**{name: value[None] for name, value in truth.items()})
        return np.sum(values < true_values, axis=0)


def calibration_scores(replications, *, zeros=False):
    """|z| of the chi-square test of uniform ranks, one for each statistic."""
    calibration = Calibration(zeros)
    ranks = np.array([calibration.ranks(k) for k in range(replications)])
    counts = [np.bincount(column * BINS // RANKS, minlength=BINS) for column in ranks.T]
    return np.array([score_of_pvalue(stats.chisquare(count).pvalue) for count in counts])


def test_calibration_with_missing_entries(book, full):
    replications = 240 if full else 160
    scores = calibration_scores(replications)
    book.check(7, "factor_model, a tenth missing", f"calibration, {replications} replications", scores)


def test_calibration_catches_missing_entries_taken_as_zero(book):
    scores = calibration_scores(100, zeros=True)
    book.caught(7, "missing entries taken as zero", "calibration of factor_model, 100 replications", scores)
