"""Sums over rows of LowRankMvNormal: by statistics or row by row, derivatives, compiled, in JAX."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.traversal import ancestors

import pymc_stiefel as pst
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.distributions import _low_rank_density as density
from pymc_stiefel.distributions._low_rank_data import Complete, Scattered, make_parts
from tests.distributions.low_rank import QUICK, dense_rows, holes, parameters, rng

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
