"""LowRankMvNormal: rows and sums against dense normals, gradients, missing entries, everything PyMC does with a law."""

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
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.distributions import _low_rank_density as density
from pymc_stiefel.distributions._low_rank_data import Complete, Scattered, make_parts

QUICK = {"mode": "FAST_COMPILE"}
PYMC6 = int(pm.__version__.split(".")[0]) >= 6


def rng():
    return np.random.default_rng(5)


def parameters(n, p, r, batch=()):
    return r.normal(size=(*batch, n)), 1.5 * r.normal(size=(*batch, n, p)), r.uniform(0.3, 2.0, (*batch, n))


def dense_rows(y, mu, W, d):
    """Row by row: the dense normal law of what is observed."""
    batch = np.broadcast_shapes(y.shape[:-1], mu.shape[:-1], W.shape[:-2], d.shape[:-1])
    n = W.shape[-2]
    y, mu, d = (np.broadcast_to(x, (*batch, n)) for x in (y, mu, d))
    W = np.broadcast_to(W, (*batch, *W.shape[-2:]))
    result = np.zeros(batch)
    for i in np.ndindex(batch):
        o = ~np.isnan(y[i])
        if o.any():
            cov = W[i][o] @ W[i][o].T + np.diag(d[i][o])
            result[i] = stats.multivariate_normal(mu[i][o], cov).logpdf(y[i][o])
    return result


def holes(y, share, r):
    return np.where(r.uniform(size=y.shape) < share, np.nan, y)


def quick(outputs, inputs=(), values=()):
    return pytensor.function(list(inputs), outputs, on_unused_input="ignore", **QUICK)(*values)


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


# ---------------------------------------------------------------- sums over rows

TABLES = {  # rows, n, p, share of missing entries
    "cross products": (40, 5, 2, 0.0),
    "few rows": (4, 12, 2, 0.0),
    "many patterns": (25, 9, 2, 0.4),
    "few patterns": (60, 3, 1, 0.2),
}


def table(rows, n, p, share, r):
    y = holes(10 + 3 * r.normal(size=(rows, n)), share, r)
    if share:
        y[1] = np.nan
    return y


def sum_and_gradient(y, params, *, by_statistics):
    symbols = [pt.tensor(shape=x.shape, dtype="float64") for x in params]
    total = density.rows(pt.constant(y), *symbols).sum()
    total = rewrite_pregrad(total) if by_statistics else total
    outputs = [total, *pytensor.grad(total, symbols)]
    if not by_statistics:  # keep the rewrite from being applied
        outputs = [output.copy() for output in outputs]
    excluding = () if by_statistics else ("sum_of_rows",)
    mode = pytensor.compile.mode.get_mode("FAST_COMPILE").excluding(*excluding)
    return total, symbols, pytensor.function(symbols, outputs, mode=mode)(*params)


@pytest.mark.parametrize("name", TABLES)
def test_sum_by_statistics_and_its_gradient(name):
    r = rng()
    rows, n, p, share = TABLES[name]
    y, params = table(rows, n, p, share, r), parameters(n, p, r)
    graph, _, by_statistics = sum_and_gradient(y, params, by_statistics=True)
    assert not any(isinstance(v.owner.op, density.Rows) for v in ancestors([graph]) if v.owner)
    _, _, by_rows = sum_and_gradient(y, params, by_statistics=False)
    np.testing.assert_allclose(by_statistics[0], dense_rows(y, *params).sum(), rtol=1e-10)
    for found, expected in zip(by_statistics[1:], by_rows[1:], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("by_statistics", [True, False])
def test_nearly_exact_features(by_statistics, share):
    """A noise of 1e-5 in one feature, where a quadratic form in the inverse is off by 30 000; below 1e-7, never more
    than the truth."""
    r = rng()
    y, W, d = holes(r.normal(size=(60, 6)), share, r), r.normal(size=(6, 3)), np.full(6, 0.5)
    truth = {}
    for small in (1e-10, 1e-16, 1e-20):
        d[0] = small
        # the feature without noise is another factor: in its units the covariance is well-conditioned
        truth[small] = dense_rows(y, np.zeros(6), W, d).sum()
        found = sum_and_gradient(y, (np.zeros(6), W, d), by_statistics=by_statistics)[2]
        if small == 1e-10:
            np.testing.assert_allclose(found[0], truth[small], rtol=1e-5)
            assert all(np.isfinite(part).all() for part in found)
        else:
            assert found[0] < truth[small] + 1


def test_kinds_of_parts():
    """Rows with much company go by cross products, the others one by one, empty ones nowhere."""
    r = rng()
    y = r.normal(size=(50, 4))
    y[:30, 0] = np.nan
    y[30:33, 1] = np.nan
    y[33] = np.nan
    y[34, [0, 2]] = np.nan
    parts = make_parts(y)
    complete = [part for part in parts if isinstance(part, Complete)]
    assert [part.rows for part in complete] == [30, 15]
    assert [None if part.columns is None else part.columns.tolist() for part in complete] == [[1, 2, 3], None]
    (scattered,) = [part for part in parts if isinstance(part, Scattered)]
    assert sorted(scattered.rows) == [1, 3]
    large = make_parts(r.normal(size=(5, 40)))
    assert not large[0].crossed and make_parts(r.normal(size=(30, 40)))[0].crossed


@pytest.mark.parametrize("name", ["cross products", "many patterns"])
def test_second_derivatives(name):
    r = rng()
    rows, n, p, share = TABLES[name]
    y, params = table(rows, n, p, share, r), parameters(n, p, r)
    graph, symbols, _ = sum_and_gradient(y, params, by_statistics=True)
    direction = [r.normal(size=x.shape) for x in params]
    gradient = pytensor.grad(graph, symbols)
    slope = sum((g * v).sum() for g, v in zip(gradient, direction, strict=True))
    function = pytensor.function(symbols, [slope, *pytensor.grad(slope, symbols)], **QUICK)
    h = 1e-5
    for k, probe in enumerate(direction):
        moved = [[x + s * h * probe if i == k else x for i, x in enumerate(params)] for s in (1, -1)]
        ends = [function(*values)[0] for values in moved]
        numeric = (ends[0] - ends[1]) / (2 * h)
        assert np.sum(function(*params)[1 + k] * probe) == pytest.approx(numeric, rel=1e-5)


def factor_declaration(y, noise="feature"):
    n = y.shape[1]
    with pm.Model() as model:
        W = pst.orthogonal_columns("W", n, 2, scales=pm.HalfNormal.dist(3))
        sd = pm.HalfNormal("noise", shape=n if noise == "feature" else ())
        mu = pm.Normal("mu", 0, 1, shape=n)
        pst.LowRankMvNormal("y", mu, W, sd**2, observed=y)
    return model


@pytest.mark.parametrize("noise, share", [("common", 0.0), ("feature", 0.3)])
def test_compiled_density_of_a_model(noise, share):
    """Value and gradient as the samplers see them, by numba."""
    r = rng()
    y = holes(r.normal(size=(30, 4)), share, r)
    model = factor_declaration(y, noise)
    compiled = ModelDensity(model, model.continuous_value_vars, model.initial_point(1))
    others = model.compile_logp(vars=model.free_RVs, **QUICK)

    def expected(point):
        W = point["W_Q_polar__"] * np.exp(point["W_d_log__"])
        d = np.broadcast_to(np.exp(2 * point["noise_log__"]), 4)
        return dense_rows(y, point["mu"], W, d).sum() + others(point)

    first = model.initial_point(1)
    second = {name: value + 0.3 * r.normal(size=value.shape) for name, value in first.items()}
    second["W_Q_polar__"] = pst.draws.haar(4, 2, rng=r)
    found = compiled(compiled.pack(second))[0] - compiled(compiled.pack(first))[0]
    assert found == pytest.approx(expected(second) - expected(first), rel=1e-9)  # up to a constant of the expansion
    flat, h = compiled.pack(second), 1e-6
    _, gradient = compiled(flat)
    for k in range(compiled.layout.stiefel, len(flat)):
        ends = [compiled(flat + s * h * np.eye(len(flat))[k])[0] for s in (1, -1)]
        assert gradient[k] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-5)


def test_jax():
    pytest.importorskip("jax")
    from pymc.sampling.jax import get_jaxified_logp

    r = rng()
    model = factor_declaration(holes(r.normal(size=(12, 4)), 0.3, r))
    point = model.initial_point(1)
    found = get_jaxified_logp(model)([point[v.name] for v in model.value_vars])
    np.testing.assert_allclose(found, model.compile_logp(**QUICK)(point), rtol=1e-6)


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
