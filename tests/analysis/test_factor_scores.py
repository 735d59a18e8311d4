"""Scores, imputation and prediction of factor models against dense normals."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_stiefel as pst

NAMES = ["a", "b", "c", "d"]


def known_model(y, p=2, noise="feature", rows=None):
    """Its parameters are free, so that draws of them can be made up."""
    n = y.shape[1]
    coords = {"row": range(len(y)) if rows is None else rows, "feature": NAMES[:n], "factor": range(p)}
    with pm.Model(coords=coords) as model:
        W = pm.Normal("W", dims=("feature", "factor"))
        d = pm.HalfNormal("d", shape=n if noise == "feature" else ())
        mu = pm.Normal("mu", dims="feature")
        pst.LowRankMvNormal("y", mu, W, d, observed=y, dims=("row", "feature"))
    return model


def parameter_draws(chains, draws, n, p, r, same=False):
    """Draws of the parameters, all of them the same if wanted."""
    shape = (1, 1) if same else (chains, draws)
    W, mu, d = r.normal(size=(*shape, n, p)), r.normal(size=(*shape, n)), r.uniform(0.2, 1.0, (*shape, n))
    W, mu, d = (np.broadcast_to(x, (chains, draws, *x.shape[2:])) for x in (W, mu, d))
    dims = {"W": ("feature", "factor"), "mu": ("feature",), "d": ("d_dim_0",)}
    return xr.Dataset(
        {name: (("chain", "draw", *dims[name]), value) for name, value in (("W", W), ("mu", mu), ("d", d))},
        coords={"chain": range(chains), "draw": range(draws)},
    )


def conditional(y, mu, W, d, p):
    """Mean and covariance of (scores, features) of one row given its observed entries, by dense matrices."""
    joint = np.block([[np.eye(p), W.T], [W, W @ W.T + np.diag(d)]])
    mean = np.concatenate([np.zeros(p), mu])
    o = p + np.flatnonzero(~np.isnan(y))
    gain = joint[:, o] @ np.linalg.inv(joint[np.ix_(o, o)])
    return mean + gain @ (y[o - p] - mean[o]), joint - gain @ joint[o]


def some_table(r, rows=6, n=4):
    y = r.normal(size=(rows, n))
    y[0, 1] = y[2, 0] = y[2, 3] = np.nan
    y[4] = np.nan
    return y


@pytest.mark.parametrize("what", ["scores", "missing"])
def test_conditional_means_are_those_of_dense_normals(what):
    r = np.random.default_rng(1)
    y = some_table(r)
    draws = parameter_draws(2, 3, 4, 2, r)
    model = known_model(y)
    scores = pst.factor_scores(draws, model=model, kind="mean")
    filled = pst.impute(draws, model=model, kind="mean")
    assert scores.dims == ("chain", "draw", "row", "factor")
    for c, k in np.ndindex(2, 3):
        one = draws.isel(chain=c, draw=k)
        means = [conditional(row, one.mu.values, one.W.values, one.d.values, 2)[0] for row in y]
        if what == "scores":
            np.testing.assert_allclose(scores[c, k], [mean[:2] for mean in means], rtol=1e-10, atol=1e-12)
        else:
            expected = [means[i][2 + j] for i, j in np.argwhere(np.isnan(y))]
            np.testing.assert_allclose(filled[c, k], expected, rtol=1e-10, atol=1e-12)
    assert filled.row.values.tolist() == [0, 2, 2, 4, 4, 4, 4]
    assert filled.feature.values.tolist() == ["b", "a", "d", "a", "b", "c", "d"]


def test_draws_have_the_conditional_moments():
    """All draws of the parameters are the same, so those of scores and entries are independent."""
    r = np.random.default_rng(2)
    y = some_table(r)
    draws = parameter_draws(2, 4000, 4, 2, r, same=True)
    model = known_model(y)
    one = draws.isel(chain=0, draw=0)
    scores = pst.factor_scores(draws, model=model, random_seed=1).values.reshape(8000, *y.shape[:1], 2)
    filled = pst.impute(draws, model=model, random_seed=2)
    for i, row in enumerate(y):
        mean, cov = conditional(row, one.mu.values, one.W.values, one.d.values, 2)
        check_moments(scores[:, i], mean[:2], cov[:2, :2])
        missing = np.flatnonzero(np.isnan(row))
        if len(missing):
            own = filled.isel(missing=filled.row.values == i).values.reshape(8000, -1)
            check_moments(own, mean[2 + missing], cov[np.ix_(2 + missing, 2 + missing)])


def check_moments(x, mean, cov):
    var = np.diag(cov)
    assert np.abs((x.mean(axis=0) - mean) / np.sqrt(var / len(x))).max() < 4.5
    error = np.sqrt((cov**2 + np.outer(var, var)) / len(x))
    assert np.abs((np.cov(x.T).reshape(cov.shape) - cov) / error).max() < 4.5


def test_chunks_do_not_matter(monkeypatch):
    r = np.random.default_rng(3)
    y, draws = some_table(r), parameter_draws(2, 5, 4, 2, r)
    whole = pst.factor_scores(draws, model=known_model(y), kind="mean")
    monkeypatch.setattr("pymc_stiefel.analysis._factor_scores.CHUNK", 1)
    np.testing.assert_allclose(pst.factor_scores(draws, model=known_model(y), kind="mean"), whole, rtol=1e-9)


def test_prediction_of_new_rows():
    r = np.random.default_rng(4)
    draws = parameter_draws(1, 3, 4, 2, r)
    model = known_model(r.normal(size=(5, 4)))
    new = pd.DataFrame({"c": [0.3, -1.0], "a": [1.0, np.nan]}, index=["x", "y"])
    found = pst.condition(draws, new, model=model, kind="mean")
    assert found.dims == ("chain", "draw", "row", "feature")
    assert found.feature.values.tolist() == ["a", "b", "d"] and found.row.values.tolist() == ["x", "y"]
    table = np.array([[1.0, np.nan, 0.3, np.nan], [np.nan, np.nan, -1.0, np.nan]])
    for k in range(3):
        one = draws.isel(chain=0, draw=k)
        means = np.array([conditional(row, one.mu.values, one.W.values, one.d.values, 2)[0][2:] for row in table])
        np.testing.assert_allclose(found[0, k], means[:, [0, 1, 3]], rtol=1e-10)
    np.testing.assert_allclose(found, pst.condition(draws, table, model=model, kind="mean").values)
    assert (found.sel(row="x", feature="a") == 1.0).all()  # what is given stays
    with pytest.raises(ValueError, match="does not know: e"):
        pst.condition(draws, pd.DataFrame({"e": [1.0]}), model=model)
    with pytest.raises(ValueError, match=r"shape \(rows, 4\)"):
        pst.condition(draws, np.ones((2, 3)), model=model)


def test_a_mean_for_each_row():
    """Regression on known covariates, with a missing entry."""
    r = np.random.default_rng(5)
    y, x = some_table(r), r.normal(size=6)
    W, d = r.normal(size=(4, 2)), r.uniform(0.5, 1, 4)
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=4)
        pst.LowRankMvNormal("y", x[:, None] * slope, W, d, observed=y)
    slopes = r.normal(size=(1, 2, 4))
    draws = xr.Dataset({"slope": (("chain", "draw", "k"), slopes)})
    filled = pst.impute(draws, model=model, kind="mean")
    for k in range(2):
        means = [conditional(row, x[i] * slopes[0, k], W, d, 2)[0] for i, row in enumerate(y)]
        np.testing.assert_allclose(filled[0, k], [means[i][2 + j] for i, j in np.argwhere(np.isnan(y))], rtol=1e-10)


@pytest.mark.parametrize("method", ["varimax", "rotation"])
def test_scores_move_with_the_loadings(method):
    r = np.random.default_rng(6)
    y = some_table(r)
    draws = parameter_draws(2, 10, 4, 2, r)
    draws["scores"] = pst.factor_scores(draws, model=known_model(y), random_seed=1)
    aligned = pst.align(draws, "W", method=method, companions={"scores": "rotate"}, orthonormal=False)
    before = xr.dot(draws.W, draws.scores, dim="factor")
    after = xr.dot(aligned["W"], aligned["scores"], dim="factor")
    assert np.abs(aligned["W"].values - draws.W.values).max() > 0.1
    np.testing.assert_allclose(after.transpose(*before.dims), before, atol=1e-10)


def test_loadings_with_intervals():
    r = np.random.default_rng(7)
    table = pst.summary(parameter_draws(2, 10, 4, 2, r), "W", kind="aligned", method="varimax")
    assert len(table) == 8 and (table.q5 <= table.q95).all()
    with pytest.raises(ValueError, match="not orthonormal"):
        pst.summary(parameter_draws(2, 10, 4, 2, r), "W")


def test_what_scores_need():
    r = np.random.default_rng(8)
    draws, model = parameter_draws(1, 3, 4, 2, r), known_model(r.normal(size=(5, 4)))
    with pytest.raises(ValueError, match="nothing is missing"):
        pst.impute(draws, model=model)
    with pytest.raises(KeyError, match="lack mu"):
        pst.factor_scores(draws.drop_vars("mu"), model=model)
    with pytest.raises(ValueError, match="kind must be one of"):
        pst.factor_scores(draws, model=model, kind="median")
    with pm.Model() as other:
        pm.Normal("x", observed=1.0)
    with pytest.raises(ValueError, match="the model has none"):
        pst.factor_scores(draws, model=other)
