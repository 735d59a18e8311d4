"""The ready-made factor model, and the normal law of orthogonal columns."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import stats

import pymc_stiefel as pst

QUICK = {"mode": "FAST_COMPILE"}
NAMES = ["a", "b", "c", "d"]


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
