"""ESS, R-hat and Monte Carlo error come from ArviZ, on both of its lines with the same meaning."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from pymc_stiefel.analysis._summaries import table


def diagnostics(values):
    names = [f"x{k}" for k in range(values.shape[-1])]
    return table(xr.DataArray(values, dims=("chain", "draw", "quantity"), coords={"quantity": names}))


def test_independent_draws_have_their_number():
    x = np.random.default_rng(0).normal(size=(4, 1000, 50))
    found = diagnostics(x)
    assert list(found.index[:2]) == ["x0", "x1"]
    for name in ("ess_bulk", "ess_tail"):
        assert abs(found[name].mean() / 4000 - 1) < 0.05
    assert found["r_hat"].max() < 1.01
    np.testing.assert_allclose(found["mcse_mean"], 1 / np.sqrt(4000), rtol=0.2)
    np.testing.assert_allclose(found[["q5", "q95"]].mean(), stats.norm.ppf([0.05, 0.95]), atol=0.02)
    x[0] += 1.0  # control: a chain somewhere else
    assert diagnostics(x)["r_hat"].min() > 1.05


@pytest.mark.parametrize("persistence", [0.5, 0.9])
def test_autoregressions_have_their_effective_size(persistence):
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(4, 4000, 20))
    x = noise / np.sqrt(1 - persistence**2)
    for t in range(1, x.shape[1]):
        x[:, t] = persistence * x[:, t - 1] + noise[:, t]
    expected = 16000 * (1 - persistence) / (1 + persistence)
    assert abs(diagnostics(x)["ess_bulk"].mean() / expected - 1) < 0.1


def test_constants_and_single_chains_have_no_rhat():
    x = np.random.default_rng(0).normal(size=(2, 20, 3))
    x[..., 1], x[..., 2] = 0.3, 1e5
    found = diagnostics(x)
    assert np.isfinite(found["r_hat"].iloc[0]) and found["r_hat"].iloc[1:].isna().all()
    np.testing.assert_array_equal(found["ess_bulk"].iloc[1:], 40)
    assert diagnostics(x[:1])["r_hat"].isna().all()
