"""LowRankMvNormal: rows against dense normals, draws, and everything PyMC does with a law."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.traversal import ancestors
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel.distributions import _low_rank_density as density
from tests.distributions.low_rank import PYMC6, QUICK, dense_rows, holes, parameters, quick, rng

# ---------------------------------------------------------------- rows

SHAPES = {
    "vectors": ((), (), ()),
    "a mean for each row": ((7,), (), ()),
    "a factor for each row": ((), (7,), ()),
    "noise for each row": ((), (), (7,)),
    "all by row": ((7,), (7,), (7,)),
    "broadcast": ((1,), (7,), (1,)),
}


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("p", [1, 3])
def test_rows_are_those_of_the_dense_normal(shapes, share, p):
    r = rng()
    of_mu, of_W, of_d = SHAPES[shapes]
    mu, W, d = parameters(4, p, r, of_mu)[0], parameters(4, p, r, of_W)[1], parameters(4, p, r, of_d)[2]
    y = holes(3 * r.normal(size=(7, 4)), share, r)
    law = pst.LowRankMvNormal.dist(mu, W, d, shape=(7, 4))
    found = quick(pm.logp(law, y))
    np.testing.assert_allclose(found, dense_rows(y, mu, W, d), rtol=1e-10)


@pytest.mark.parametrize("n, p", [(5, 2), (3, 3), (6, 1)])
def test_orthogonal_columns_need_no_factorisation(n, p):
    """The path by the lengths of the columns, chosen by itself where columns are orthogonal and the noise scalar."""
    r = rng()
    with pm.Model() as model:
        W = pst.orthogonal_columns("W", n, p, scales=pm.HalfNormal.dist(1))
        noise = pm.HalfNormal("noise")
        pst.LowRankMvNormal("y", 0.3, W, noise**2, observed=r.normal(size=(9, n)))
    Q, s, y = pst.draws.haar(n, p, rng=r), r.uniform(0.5, 3, p), model.rvs_to_values[model["y"]].data
    point = {"W_Q_polar__": Q, "W_d_log__": np.log(s), "noise_log__": np.log(0.7)}
    found = model.compile_logp(vars=[model["y"]], sum=False, **QUICK)(point)[0]
    expected = dense_rows(y, np.full(n, 0.3), Q * s, np.full(n, 0.49))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    logp = rewrite_pregrad(model.logp())
    assert not any("Cholesky" in str(v.owner.op) for v in ancestors([logp]) if v.owner)
    value = quick(
        rewrite_pregrad(model.logp(vars=[model["y"]])), model.value_vars, [point[v.name] for v in model.value_vars]
    )
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-10)


def test_columns_that_are_not_orthogonal_are_not_taken_for_it():
    with pm.Model():
        Q = pst.StiefelUniform("Q", n=4, p=2)
        rows = pm.HalfNormal("rows", shape=4)
        W = pm.Deterministic("W", Q * rows[:2])
        laws = [
            pst.LowRankMvNormal.dist(0, factor, 1.0)
            for factor in (Q, W, 2 * Q, Q * rows[:2], rows[:, None] * Q, Q + 1, pt.exp(Q), Q @ np.ones((2, 2)), Q * Q)
        ]
    kinds = [type(law.owner.op).__name__ for law in laws]
    assert kinds == ["OrthogonalFactorRV"] * 4 + ["LowRankMvNormalRV"] * 5


def test_high_signal_to_noise():
    """A sum of squares, not a difference: accurate where Woodbury's identity loses ten digits."""
    W, d = np.array([[1.0], [1.0], [1.0]]) * 1e5, np.full(3, 1e-4)
    y = W[:, 0] * 2 + 0.01 * np.array([1.0, -2.0, 1.0])
    # by hand: along the factor the variance is 3e10 + 1e-4, across it 1e-4
    along, across = (y @ W[:, 0] / np.linalg.norm(W)) ** 2, 1e-4 * 6
    expected = -0.5 * (3 * np.log(2 * np.pi) + np.log(3e10 + 1e-4) + 2 * np.log(1e-4) + along / 3e10 + across / 1e-4)
    found = quick(pm.logp(pst.LowRankMvNormal.dist(0.0, W, d), y))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("orthogonal", [True, False])
def test_draws_have_the_moments(orthogonal):
    r = rng()
    mu, W, d = parameters(3, 2, r)
    if orthogonal:
        with pm.Model():
            Q = pst.StiefelUniform("Q", n=3, p=2)
            law = pst.LowRankMvNormal.dist(mu, Q * [2.0, 1.0], 0.5, size=20_000)
        W = pst.draws.haar(3, 2, rng=r)
        law = pytensor.graph.replace.graph_replace([law], {Q: pt.constant(W)}, strict=False)[0]
        W, d = W * [2.0, 1.0], np.full(3, 0.5)
    else:
        law = pst.LowRankMvNormal.dist(mu, W, d, size=20_000)
    y = pm.draw(law, random_seed=2, **QUICK)
    cov = W @ W.T + np.diag(d)
    assert np.abs((y.mean(axis=0) - mu) / np.sqrt(np.diag(cov) / len(y))).max() < 4
    error = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(y))
    assert np.abs((np.cov(y.T) - cov) / error).max() < 4


def test_batches_broadcast_as_those_of_MvNormal():
    for sizes in [((5, 1), (3,), ()), ((), (4,), (1,)), ((6,), (), ())]:
        mu, W, d = (np.ones((*sizes[0], 3)), np.ones((*sizes[1], 3, 2)), np.ones((*sizes[2], 3)))
        shape = np.broadcast_shapes(*sizes)
        assert pm.draw(pst.LowRankMvNormal.dist(mu, W, d), random_seed=1, **QUICK).shape == (*shape, 3)


# ---------------------------------------------------------------- in a model


def test_data_that_are_exchanged():
    r = rng()
    y, new = r.normal(size=(8, 3)), r.normal(size=(5, 3))
    mu, W, d = parameters(3, 1, r)
    with pm.Model() as model:
        free = pm.Normal("mu", 0, 1, shape=3)
        data = pm.Data("data", y)
        pst.LowRankMvNormal("y", free, W, d, observed=data, shape=data.shape)
    graph = rewrite_pregrad(model.logp(vars=[model["y"]]))
    assert not any(isinstance(v.owner.op, density.Rows) for v in ancestors([graph]) if v.owner)
    function = model.compile_logp(vars=[model["y"]], **QUICK)
    assert function({"mu": mu}) == pytest.approx(dense_rows(y, mu, W, d).sum(), rel=1e-10)
    pm.set_data({"data": new}, model=model)
    assert function({"mu": mu}) == pytest.approx(dense_rows(new, mu, W, d).sum(), rel=1e-10)


def test_total_size():
    r = rng()
    y = r.normal(size=(8, 3))
    mu, W, d = parameters(3, 1, r)
    with pm.Model() as model:
        free = pm.Normal("mu", 0, 1, shape=3)
        pst.LowRankMvNormal("y", free, W, d, observed=y, total_size=80)
    logp = model.logp(vars=[model["y"]])
    assert quick(logp, model.value_vars, [mu]) == pytest.approx(10 * dense_rows(y, mu, W, d).sum(), rel=1e-10)
    assert not any(isinstance(v.owner.op, density.Rows) for v in ancestors([rewrite_pregrad(logp)]) if v.owner)


def test_minibatches_are_estimates_of_the_whole():
    r = rng()
    y = r.normal(size=(50, 3))
    mu, W, d = parameters(3, 1, r)
    with pm.Model() as model:
        free = pm.Normal("mu", 0, 1, shape=3)
        batch = pm.Minibatch(y, batch_size=5)
        pst.LowRankMvNormal("y", free, W, d, observed=batch, total_size=50)
    function = model.compile_logp(vars=[model["y"]], **QUICK)
    values = np.array([function({"mu": mu}) for _ in range(400)])
    assert values.std() > 0
    assert abs(values.mean() - dense_rows(y, mu, W, d).sum()) < 4 * values.std() / 20


@pytest.mark.parametrize("kind", ["array", "masked", "DataFrame", "complete"])
def test_kinds_of_tables(kind):
    """Nothing becomes a free variable, and the log likelihood has all rows."""
    r = rng()
    y = holes(r.normal(size=(6, 3)), 0.0 if kind == "complete" else 0.4, r)
    given = {
        "array": y,
        "complete": y.tolist(),
        "masked": np.ma.masked_invalid(y),
        "DataFrame": pd.DataFrame(y, columns=list("abc")),
    }[kind]
    mu, W, d = parameters(3, 1, r)
    with pm.Model(coords={"row": range(6), "feature": list("abc")}) as model:
        free = pm.Normal("mu", 0, 1, dims="feature")
        pst.LowRankMvNormal("y", free, W, d, observed=given, dims=("row", "feature"))
    assert [v.name for v in model.free_RVs] == ["mu"]
    (rows,) = model.compile_logp(vars=[model["y"]], sum=False, **QUICK)({"mu": mu})
    np.testing.assert_allclose(rows, dense_rows(y, mu, W, d), rtol=1e-10)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_loo_counts_rows():
    """Leave-one-out of draws from the posterior of the mean, beside the exact predictive densities."""
    az = pytest.importorskip("arviz")
    r = rng()
    _, W, d = parameters(3, 1, r)
    y, cov = r.normal(size=(20, 3)), W @ W.T + np.diag(d)
    with pm.Model(coords={"row": range(20), "feature": range(3)}) as model:
        mu = pm.Normal("mu", 0, 10, shape=3)  # nearly flat: the posterior is normal about the mean of the rows
        pst.LowRankMvNormal("y", mu, W, d, observed=y, dims=("row", "feature"))
    draws = r.multivariate_normal(y.mean(axis=0), cov / 20, size=(2, 1000))
    idata = az.from_dict({"posterior": {"mu": draws}}) if PYMC6 else az.from_dict(posterior={"mu": draws})
    pm.compute_log_likelihood(idata, model=model, progressbar=False)
    found = az.loo(idata, pointwise=True)
    rest = [np.delete(y, i, axis=0).mean(axis=0) for i in range(20)]
    exact = [stats.multivariate_normal(rest[i], cov * (1 + 1 / 19)).logpdf(y[i]) for i in range(20)]
    pointwise = found["elpd_i"] if PYMC6 else found["loo_i"]
    np.testing.assert_allclose(np.ravel(pointwise), exact, atol=0.1)


@pytest.mark.integration
def test_code_of_the_issue():
    """As a user writes it, with log likelihood and predictive."""
    r = rng()
    n, names, rows = 6, [f"f{k}" for k in range(6)], range(40)
    truth = r.normal(size=(n, 3))
    table = pd.DataFrame(r.normal(size=(40, 3)) @ truth.T + 0.3 * r.normal(size=(40, n)), columns=names)
    table.iloc[3, 2] = table.iloc[7, 0] = np.nan
    quiet = {"cores": 1, "chains": 2, "progressbar": False, "compute_convergence_checks": False, "random_seed": 1}
    with pm.Model(coords={"row": rows, "feature": names, "factor": range(3)}) as model:
        W = pst.orthogonal_columns("W", n=n, p=3, scales=pm.HalfNormal.dist(3), dims=("feature", "factor"))
        noise = pm.HalfNormal("noise", 1, dims="feature")
        mu = pm.Normal("mu", 0, 1, dims="feature")
        pst.LowRankMvNormal("y", mu=mu, cov_factor=W, cov_diag=noise**2, observed=table, dims=("row", "feature"))
        idata = pm.sample(30, tune=50, **quiet)
    scores = pst.factor_scores(idata, model=model)
    filled = pst.impute(idata, model=model)
    assert scores.dims == ("chain", "draw", "row", "factor")
    assert filled.row.values.tolist() == [3, 7] and filled.feature.values.tolist() == ["f2", "f0"]
    found = pm.compute_log_likelihood(idata, model=model, progressbar=False, extend_inferencedata=False)
    likelihood = found["y"]
    assert likelihood.dims == ("chain", "draw", "row") and np.isfinite(likelihood).all()
    assert np.isnan(idata["observed_data"]["y"].values).sum() == 2


# ---------------------------------------------------------------- bad input


def test_shapes_that_do_not_fit_are_all_named():
    with pytest.raises(ValueError, match=r"mu is \(4,\), cov_factor \(3, 2\), cov_diag \(3,\)"):
        pst.LowRankMvNormal.dist(np.zeros(4), np.ones((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match=r"cov_factor \(3, 2\), cov_diag \(5,\)"):
        pst.LowRankMvNormal.dist(0.0, np.ones((3, 2)), np.ones(5))
    with pm.Model(), pytest.raises(ValueError, match=r"cov_factor \(3, 2\).*data \(7, 4\)"):
        pst.LowRankMvNormal("y", 0.0, np.ones((3, 2)), 1.0, observed=np.ones((7, 4)))
    with pytest.raises(ValueError, match="cov_factor must be a matrix"):
        pst.LowRankMvNormal.dist(0.0, np.ones(3), 1.0)


@pytest.mark.parametrize("d", [0.0, -1.0, [1.0, 0.0]])
def test_noise_that_is_not_positive_is_impossible(d):
    law = pst.LowRankMvNormal.dist(0.0, np.ones((2, 1)), d)
    assert quick(pm.logp(law, np.ones((3, 2))).sum()) == -np.inf
    assert (quick(pm.logp(law, np.ones((3, 2)))) == -np.inf).all()
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=2, p=1)
        scale = pm.Normal("scale")
        pst.LowRankMvNormal("y", 0.0, Q, pt.minimum(scale, np.min(d)), observed=np.ones((3, 2)))
    logp = rewrite_pregrad(model.logp(vars=[model["y"]]))
    values = [{"scale": np.array(1.0)}.get(v.name, np.eye(2, 1)) for v in model.value_vars]
    assert quick(logp, model.value_vars, values) == -np.inf
    gradient = quick(pytensor.grad(logp, model.value_vars), model.value_vars, values)
    assert all(np.isfinite(g).all() for g in gradient)


def test_bad_data():
    with pm.Model(coords={"row": range(3), "feature": ["a", "b"]}):
        with pytest.raises(ValueError, match=r"infinite at \(1, 0\)"):
            pst.LowRankMvNormal("x", 0.0, np.ones((2, 1)), 1.0, observed=[[0, 1], [np.inf, 0]])
        table = pd.DataFrame({"apples": [1.0, 2.0, 3.0], "pears": np.nan})
        with pytest.warns(UserWarning, match="nothing is observed of column pears"):
            pst.LowRankMvNormal("y", 0.0, np.ones((2, 1)), 1.0, observed=table)
        with pytest.warns(UserWarning, match="nothing is observed of column b of"):
            pst.LowRankMvNormal("w", 0.0, np.ones((2, 1)), 1.0, observed=table.to_numpy(), dims=("row", "feature"))
        with pytest.raises(ValueError, match="infinite at"):
            pst.LowRankMvNormal("z", 0.0, np.ones((2, 1)), 1.0, observed=pm.Data("data", [[1.0, np.inf]]))
