"""Factor models: scores, imputation and prediction against dense normals, the ready-made model, pictures."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pymc_stiefel as pst

QUICK = {"mode": "FAST_COMPILE"}
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


# ---------------------------------------------------------------- exact conditional laws


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


# ---------------------------------------------------------------- the ready-made model


@pytest.mark.parametrize("noise", ["common", "feature"])
def test_factor_model_of_a_table(noise):
    r = np.random.default_rng(9)
    table = pd.DataFrame(5 + 2 * r.normal(size=(30, 4)), columns=NAMES, index=[f"r{k}" for k in range(30)])
    table.iloc[3, 2] = np.nan
    model = pst.factor_model(table, rank=2, noise=noise)
    assert list(model.coords["feature"]) == NAMES and list(model.coords["row"]) == list(table.index)
    assert [rv.name for rv in model.free_RVs] == ["W_Q", "W_d", "mu", "noise"]
    assert model.named_vars_to_dims["W"] == ("feature", "factor")
    draws = pm.draw([model["W"], model["mu"], model["noise"], model["y"]], 50, random_seed=1, **QUICK)
    assert [x.shape[1:] for x in draws] == [(4, 2), (4,), () if noise == "common" else (4,), (30, 4)]
    lengths = np.linalg.norm(draws[0], axis=1)
    if noise == "common":
        assert (np.diff(lengths, axis=1) <= 0).all()
    assert abs(draws[1].mean() - 5) < 1.5
    assert np.isfinite(model.compile_logp(vars=[model["y"]], **QUICK)(model.initial_point(1)))


def test_units_of_features_do_not_matter_to_factor_analysis():
    """The prior law of loadings and noise scales with each feature."""
    r = np.random.default_rng(10)
    y = r.normal(size=(30, 3))
    units = np.array([1.0, 100.0, 0.01])
    draws = [
        pm.draw([m["W"], m["noise"], m["mu"]], 20, random_seed=1, **QUICK)
        for m in (pst.factor_model(y * unit, rank=1, noise="feature") for unit in (np.ones(3), units))
    ]
    for first, second in zip(*draws, strict=True):
        np.testing.assert_allclose(first * (units[:, None] if first.ndim == 3 else units), second, rtol=1e-8)


def test_what_factor_model_refuses():
    y = np.ones((5, 3))
    with pytest.raises(ValueError, match="noise must be one of"):
        pst.factor_model(y, 1, noise="both")
    with pytest.raises(ValueError, match="rank = 4 with 3 features"):
        pst.factor_model(y, 4)
    with pytest.raises(TypeError, match="table of numbers"):
        pst.factor_model(pd.DataFrame({"a": ["x", "y"]}), 1)
    with pytest.raises(ValueError, match="rows and columns"):
        pst.factor_model(np.ones(3), 1)
    with pytest.raises(ValueError, match="one scale for all"):
        pst.factor_model(y, 1, scale=np.ones(3))


@pytest.mark.integration
def test_picture_of_the_model():
    graphviz = pytest.importorskip("graphviz")
    graph = pm.model_to_graphviz(pst.factor_model(np.random.default_rng(1).normal(size=(9, 3)), 2))
    assert isinstance(graph, graphviz.Digraph)
    assert "LowRankMvNormal" in graph.source and "W -> y" in graph.source and "low_rank_data" not in graph.source


# ---------------------------------------------------------------- the normal law of orthogonal columns


def test_normal_law_of_orthogonal_columns():
    """X X' has the law of Z Z' with normal Z; the control has other singular values."""
    r = np.random.default_rng(11)
    n, p, size = 5, 2, 3000
    with pm.Model():
        X = pst.orthogonal_columns("X", n, p, prior="normal", sigma=1.5)
    found = pm.draw(X, size, random_seed=1, **QUICK)
    Z = 1.5 * r.normal(size=(size, n, p))
    for statistic in (first_entry, determinant, off_diagonal):
        assert stats.ks_2samp(statistic(found), statistic(Z)).pvalue > 1e-4
    wrong = pst.draws.haar(n, p, size=size, rng=r) * np.abs(1.5 * np.sqrt(n) * r.normal(size=(size, 1, p)))
    assert stats.ks_2samp(determinant(wrong), determinant(Z)).pvalue < 1e-4


def first_entry(X):
    return (X[:, 0] ** 2).sum(axis=-1)


def off_diagonal(X):
    return (X[:, 0] * X[:, 1]).sum(axis=-1)


def determinant(X):
    return np.linalg.slogdet(np.swapaxes(X, -1, -2) @ X)[1]


def test_lengths_by_one_law_only():
    with pm.Model(), pytest.raises(ValueError, match="not both"):
        pst.orthogonal_columns("X", 3, 2, scales=pm.HalfNormal.dist(1), prior="normal")
    with pm.Model(), pytest.raises(ValueError, match="prior = 'cauchy'"):
        pst.orthogonal_columns("X", 3, 2, prior="cauchy")


# ---------------------------------------------------------------- biplot


def test_biplot():
    r = np.random.default_rng(12)
    draws = parameter_draws(2, 200, 4, 2, r)
    cov = np.array([[1.0, 0.8], [0.8, 1.0]])
    scores = r.multivariate_normal([1.0, 2.0], cov, size=(2, 200, 3))
    draws["scores"] = (("chain", "draw", "row", "factor"), scores)
    figure = pst.plot_scores(draws, loadings="W", colors=["x", "y", "x"], prob=0.9)
    (axis,) = figure.axes
    ellipses, *_ = [c for c in axis.collections if type(c).__name__ == "EllipseCollection"]
    # long axis along the diagonal: half of it is sqrt(1.8 * 4.605)
    assert np.degrees(ellipses._angles) % 180 == pytest.approx(45, abs=8)
    assert ellipses._widths == pytest.approx(np.sqrt(1.8 * 4.605), rel=0.15)
    assert {text.get_text() for text in axis.texts} >= set("0123")
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["x", "y"]
    with pytest.raises(ValueError, match="one entry for each of the 3 rows"):
        pst.plot_scores(draws, colors=[1, 2])
    with pytest.raises(ValueError, match="factors"):
        pst.plot_scores(draws, factors=(0, 2))
    plt.close("all")


def test_labels_of_a_biplot_do_not_touch():
    """Loadings that nearly coincide, with long names; all labels lie within the axes."""
    r = np.random.default_rng(13)
    tips = np.array([[1.0, 0.2], [1.0, 0.21], [0.98, 0.22], [0.5, 0.2], [-1.0, 0.0], [-1.0, 0.01]])
    draws = xr.Dataset(
        {
            "scores": (("chain", "draw", "row", "factor"), r.normal(size=(1, 50, 5, 2))),
            "W": (("chain", "draw", "feature", "factor"), tips + 0.01 * r.normal(size=(1, 50, 6, 2))),
        },
        coords={"feature": [f"a rather long name {k}" for k in range(6)]},
    )
    figure = pst.plot_scores(draws, loadings="W")
    (axis,) = figure.axes
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts if text.get_text()]
    frame = axis.get_window_extent()
    assert len(boxes) == 6 and all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(boxes[i].overlaps(boxes[j]) for i in range(6) for j in range(i))
    plt.close("all")
