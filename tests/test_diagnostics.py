"""ESS, R-hat and Monte Carlo error of many quantities at once are those that ArviZ computes one by one."""

import logging
import warnings

import arviz as az
import numpy as np
import pytest
import xarray as xr

from pymc_stiefel.analysis._diagnostics import diagnostics

OLD_LINE = az.__version__.startswith("0.")


def by_arviz(values, monkeypatch):
    dataset = xr.Dataset({"x": (("chain", "draw", "quantity"), values)})
    tail = {} if OLD_LINE else {"prob": (0.05, 0.95)}  # ArviZ 1 would take the tails from its rcParams
    monkeypatch.setattr(logging.getLogger("arviz"), "disabled", True)  # it comments on short chains
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {
            "mcse_mean": az.mcse(dataset, method="mean")["x"].values,
            "ess_bulk": az.ess(dataset, method="bulk")["x"].values,
            "ess_tail": az.ess(dataset, method="tail", **tail)["x"].values,
            "r_hat": az.rhat(dataset)["x"].values,
        }


def series(rng, shape):
    """Autoregressions from alternating to slow, chains that disagree in place or scale, and rounded values."""
    persistence = np.repeat([-0.9, -0.3, 0.0, 0.5, 0.9, 0.99], 4)
    noise = rng.normal(size=(*shape, len(persistence)))
    x = noise.copy()
    for t in range(1, shape[1]):
        x[:, t] = persistence * x[:, t - 1] + noise[:, t]
    x[0, :, 8] += 3
    x[0, :, 9] *= 5
    x[..., 10] = x[..., 10].round(1)  # ties
    x[..., 11] = np.repeat(x[:, ::5, 11], 5, axis=1)[:, : shape[1]]  # as a sampler that often stays
    return x


@pytest.mark.parametrize(
    "shape", [(4, 1000), (2, 501), (1, 200), (3, 4), (2, 5), (2, 7), (2, 8), (2, 9), (2, 11), (2, 13), (3, 37), (8, 98)]
)
def test_the_same_as_arviz(shape, monkeypatch):
    x = series(np.random.default_rng(shape[1]), shape)
    ours, theirs = diagnostics(x), by_arviz(x, monkeypatch)
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-10, err_msg=name)
    pooled = x.reshape(-1, x.shape[-1])
    np.testing.assert_allclose(ours["mean"], pooled.mean(axis=0))
    np.testing.assert_allclose(ours["sd"], pooled.std(axis=0, ddof=1))
    np.testing.assert_allclose([ours["q5"], ours["q95"]], np.quantile(pooled, (0.05, 0.95), axis=0))


def test_constants_have_no_rhat():
    x = np.random.default_rng(0).normal(size=(2, 20, 3))
    x[..., 1], x[..., 2] = 0.3, 1e5
    found = diagnostics(x)
    assert np.isfinite(found["r_hat"][0]) and np.isnan(found["r_hat"][1:]).all()
    np.testing.assert_array_equal(found["ess_bulk"][1:], 40)
    np.testing.assert_array_equal(found["ess_tail"][1:], 40)


def test_blocks_do_not_matter(monkeypatch):
    x = np.random.default_rng(1).normal(size=(2, 50, 7))
    whole = diagnostics(x)
    monkeypatch.setattr("pymc_stiefel.analysis._diagnostics.BLOCK_SIZE", 250)
    for name, values in diagnostics(x).items():
        np.testing.assert_array_equal(values, whole[name])
