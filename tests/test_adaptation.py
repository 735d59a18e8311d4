"""What tuning learns: masses, step sizes, coordinates, changes of sign; it does not matter how it is called."""

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation import row_coordinates
from pymc_stiefel.engine.adaptation.metric import _geometric_mean
from pymc_stiefel.engine.adaptation.row_coordinates import GATE, apart, estimate
from pymc_stiefel.engine.adaptation.step_size import SOUGHT, StepSize, make_averaging, restart
from pymc_stiefel.engine.adaptation.windows import ENDS, Windows
from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED, flip_kinds, make_layout
from pymc_stiefel.engine.coordinates import LinkedRows, RowCoordinates, forward, inverse, pullback
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.normalizers import log_hyp0f1
from tests import kernels

each_drift = pytest.mark.parametrize("kind", kernels.DRIFTS)


def frames(rng, count, n, p):
    return np.linalg.qr(rng.standard_normal((count, n, p)))[0]


# ---------------------------------------------------------------- masses


def test_geometric_mean_is_exact_for_gaussians_from_few_draws():
    rng = np.random.default_rng(0)
    d, count = 6, 200
    L = np.tril(rng.standard_normal((d, d))) * 10.0 ** np.arange(-3, 3)[:, None]
    covariance = L @ L.T
    draws = rng.standard_normal((count, d)) @ L.T
    gradients = -draws @ np.linalg.inv(covariance)
    estimate = _geometric_mean(np.cov(draws.T), np.cov(gradients.T), 1e9)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(estimate / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=1e-5)


def secant_sums(X, A, B):
    """The sums of ``add_secant`` in plain NumPy: moves and changes of columns and of pairs."""
    columns, pairs = np.zeros((2, X.shape[2])), np.zeros((2, X.shape[2], X.shape[2]))
    for t in range(len(X) - 1):
        K, D, dB = X[t].T @ X[t + 1], X[t + 1] - X[t], B[t + 1] - B[t]
        if X.shape[1] == X.shape[2]:
            turn = 2.3 * (K - K.T) / 2 @ np.linalg.inv((K + K.T) / 2 + 1.3 * np.eye(len(K)))
        else:
            turn = (K - K.T) / 2
        M = geo.polar(X[t] + X[t + 1])
        columns += [((D - M @ (M.T @ D)) ** 2).sum(0), ((dB - M @ (M.T @ dB)) ** 2).sum(0)]
        pairs += [turn**2, (A[t + 1] - A[t]) ** 2]
    return columns, pairs


@pytest.mark.parametrize("n,p", [(6, 3), (5, 1), (4, 4), (60, 8)])
def test_sums_of_secants(n, p):
    rng = np.random.default_rng(n)
    X = np.array([geo.polar(np.eye(n, p) + 0.1 * rng.standard_normal((n, p))) for _ in range(5)])
    G = rng.standard_normal((5, n, p))
    parts = [geo.split_tangent(x, geo.tangent_project(x, g)) for x, g in zip(X, G, strict=True)]
    layout = make_layout([(n, p)], 0)
    sampler = Sampler(layout, 0, Settings("splitting"), rng)
    sampler.learn_path(*(np.array([x.T.ravel() for x in part]) for part in (X, G)), np.ones(4, bool))
    columns, pairs = secant_sums(X, *(np.array(part) for part in zip(*parts, strict=True)))
    moments = sampler.chain.moments
    assert moments.number.tolist() == [0.0, 4.0]
    if n > p:
        np.testing.assert_allclose([moments.column_move, moments.column_change], columns, rtol=1e-7)
    np.testing.assert_allclose(np.reshape([moments.pair_move, moments.pair_change], (2, p, p)), pairs, atol=1e-12)


def test_secants_across_rejected_draws_add_nothing():
    """A repeated point moves neither draw nor gradient: such secants cannot spoil masses, they are only counted."""
    rng = np.random.default_rng(3)
    X, G = frames(rng, 4, 6, 2).swapaxes(1, 2).reshape(4, -1), rng.standard_normal((4, 12))
    found = []
    for repeats in (1, 3):
        sampler = Sampler(make_layout([(6, 2)], 0), 0, Settings("splitting"), rng)
        path = (np.repeat(part, repeats, axis=0) for part in (X, G))
        sampler.learn_path(*path, np.ones(4 * repeats - 1, bool))
        found.append(sampler.chain.moments)
    assert [moments.number[1] for moments in found] == [3.0, 11.0]
    for once, thrice in zip(found[0][1:5], found[1][1:5], strict=True):
        assert once.any()
        np.testing.assert_allclose(thrice, once, rtol=1e-10, atol=1e-20)


def sliding_density(steep):
    """A Gaussian about the first unit vectors, of precision ``steep``, seen from far away."""
    F = steep * np.eye(8, 2)
    return kernels.bingham_langevin_density(F, np.zeros((8, 8)), np.zeros(2))


def test_masses_are_right_while_the_chain_still_slides():
    """Mean squares of gradients were wrong by orders of magnitude there, and the chain crept ever after."""
    start, found = frames(np.random.default_rng(2), 1, 8, 2)[0].T.ravel(), []
    for seed in range(4):
        _, stats, sampler = kernels.run_chain(
            sliding_density(1e6), make_layout([(8, 2)], 0), start, 100, np.random.default_rng(seed), tune=60,
            drift="splitting", stages=TWO_STAGE,
        )  # fmt: skip
        found.append(1 / sampler.chain.metric.c)
        assert np.all(stats["model_logp"] > 2e6 - 60)
    np.testing.assert_allclose(found, 1e6, rtol=0.3)


def test_secants_are_not_taken_across_a_change_of_sign():
    """A vector between two poles: across a reflection it seems to move by 2 with an equal gradient."""

    def target(q, gradient, extra):
        x, g = carray(q, (5,)), carray(gradient, (5,))
        g[:] = 0.0
        g[0] = 200.0 * np.tanh(200.0 * x[0])
        return np.log(2 * np.cosh(200.0 * x[0]))

    density = numba.cfunc(kernels.DENSITY_SIGNATURE)(target)
    _, stats, sampler = kernels.run_chain(
        density, make_layout([(5, 1)], 0, [FLIPPED]), np.eye(5)[0], 50, np.random.default_rng(0), tune=200,
        drift="splitting",
    )  # fmt: skip
    assert stats["reflected"].mean() > 0.9
    np.testing.assert_allclose(1 / sampler.chain.metric.c, 205.0, rtol=0.1)
    # the control: across a reflection the precision comes out as one half instead of 200
    points = np.array([[1.0, 0.0, 0, 0, 0], [-0.995, 0.0999, 0, 0, 0]] * 2)
    sampler.chain.forget()
    sampler.learn_path(points, np.sign(points[:, :1]) * np.eye(5)[:1] * 200.0, np.ones(3, bool))
    ratio = sampler.chain.moments.column_change / sampler.chain.moments.column_move
    assert np.sqrt(ratio[0]) < 1.0


def test_a_chain_that_changes_mode_late_learns_anew():
    """The density becomes a hundred times narrower under the chain, long after masses have settled."""

    def target(q, gradient, extra):
        x, g = carray(q, (13,)), carray(gradient, (13,))
        steep = 1e2 if extra[0] == 0 else 1e6
        g[:] = 0.0
        g[0], g[6] = steep, steep
        total = steep * (x[0] + x[6])
        for k in range(10, 13):
            g[k] = -steep * x[k]
            total -= 0.5 * steep * x[k] ** 2
        return total

    density, held = numba.cfunc(kernels.DENSITY_SIGNATURE)(target), np.zeros(1, dtype=np.int64)
    settings = Settings("automatic", stages=TWO_STAGE)
    sampler = Sampler(make_layout([(5, 2)], 3), density.address, settings, np.random.default_rng(0), held)
    sampler.draw(np.concatenate([np.eye(5, 2).T.ravel(), np.zeros(3)]))
    while sampler.chain.draws < 600:
        sampler.draw(None)
    held[0] = 1
    sampler.draw(None, keep_gradient=False)
    while sampler.chain.draws < 900:
        sampler.draw(None)
    assert sampler.chain.windows.restarts
    np.testing.assert_allclose(1e6 * sampler.chain.metric.c, 1.0, rtol=0.2)
    np.testing.assert_allclose(1e6 * sampler.chain.metric.variance, 1.0, rtol=0.3)
    sampler.chain.tune = False
    sampler.draws(100)
    assert sampler.statistics["mean_tree_accept"].mean() > 0.6
    assert sampler.statistics["tree_size"].mean() < 8


@each_drift
def test_scales_that_differ_by_many_orders_need_no_help(kind):
    scales = np.array([1e-4, 1.0, 1e4])

    def target(q, gradient, extra):
        x, g = carray(q, (13,)), carray(gradient, (13,))
        g[:] = 0.0
        total = 50.0 * x[0]
        g[0] = 50.0
        for k in range(3):
            g[10 + k] = -x[10 + k] / scales[k] ** 2
            total -= 0.5 * (x[10 + k] / scales[k]) ** 2
        return total

    density = numba.cfunc(kernels.DENSITY_SIGNATURE)(target)
    start = np.concatenate([np.eye(5, 2).T.ravel(), [1.0, 1.0, 1.0]])
    draws, statistics, _ = kernels.run_chain(
        density, make_layout([(5, 2)], 3), start, 1500, np.random.default_rng(1), tune=500, drift=kind
    )
    np.testing.assert_allclose(draws[:, 10:].std(axis=0), scales, rtol=0.2)
    assert statistics["tree_size"].mean() < 30
    assert statistics["diverging"].sum() == 0


# ---------------------------------------------------------------- the step size


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_acceptance_comes_to_its_target(target):
    F, *_, density = kernels.problem(12, 3, np.random.default_rng(3), size=200.0)
    _, stats, _ = kernels.run_chain(
        density, make_layout([(12, 3)], 0), geo.polar(F).T.ravel(), 1000, np.random.default_rng(1), tune=600,
        drift="cayley", target_accept=target,
    )  # fmt: skip
    assert abs(stats["mean_tree_accept"].mean() - target) < 0.05


def test_step_size_is_sought_only_where_masses_jump():
    settings = Settings("splitting")
    *_, density = kernels.problem(6, 3, np.random.default_rng(0))
    sampler = Sampler(make_layout([(6, 3)], 0), density.address, settings, np.random.default_rng(0))
    sampler.draw(np.eye(6, 3).T.ravel())
    adapter = next(one for one in sampler.chain.adapters if isinstance(one, StepSize))
    spent = []
    for change in (0.1, 2.0):
        sampler.chain.mass_change, sampler.chain.spent = change, 0
        adapter.update(sampler)
        spent.append(sampler.chain.spent)
    assert spent[0] == 0 < spent[1]
    assert sampler.draw(None) is not None and sampler.stats["gradients"] > spent[1]  # and the draw reports them


def test_restart():
    values = make_averaging(0.8, 1.4)
    restart(values, 3.0)
    np.testing.assert_allclose(values, [0.8, np.log(1.4), np.log(1.4), SOUGHT])


# ---------------------------------------------------------------- whether tuning has done its work


def final_change(density, layout, start, tune, spoil=None, **settings):
    """``mass_change`` of the first draw after tuning."""
    sampler = Sampler(layout, density.address, Settings(**settings), np.random.default_rng(5))
    sampler.chain.tune = tune > 0
    sampler.draw(start)
    while sampler.chain.draws < tune:
        sampler.draw(None)
    if spoil is not None:
        spoil(sampler.chain)
    sampler.chain.tune = False
    sampler.draws(3)
    return sampler.statistics["mass_change"][-1]


@pytest.mark.parametrize("drift", ["splitting", "cayley", "geodesic"])
def test_masses_that_do_not_fit_when_tuning_ends_are_reported(drift):
    F, *_, density = kernels.problem(6, 2, np.random.default_rng(3), size=200.0)
    problem = density, make_layout([(6, 2)], 0), geo.polar(F).T.ravel()

    def narrower(chain):
        chain.metric.c[:] *= np.exp(3.0)

    assert final_change(*problem, 200, drift=drift) < 0.3
    assert 2.7 < final_change(*problem, 200, narrower, drift=drift) < 3.3
    assert final_change(*problem, 49, drift=drift) == np.inf  # too short to tell
    assert final_change(*problem, 200, lambda chain: chain.forget(), drift=drift) == np.inf
    assert np.isnan(final_change(*problem, 0, drift=drift))
    assert np.isnan(final_change(*problem, 200, drift=drift, adapt_metric=False))


def test_row_coordinates_that_were_not_learnt_are_reported():
    n, W = 12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)])
    problem = row_target(n, W), make_layout([(n, 1)], 0), np.eye(n)[0]
    settings = {"drift": "splitting", "stages": TWO_STAGE, "adapt_rows": True}

    def unlearnt(chain):
        chain.coordinates.factors.clear()

    assert final_change(*problem, 400, **settings) < 1.4
    assert final_change(*problem, 400, unlearnt, **settings) > 5.0
    assert final_change(*problem, 400, **settings | {"adapt_rows": False}) < 1.4  # forbidden, so nothing is missing


# ---------------------------------------------------------------- windows


def test_windows():
    windows = Windows()
    assert ENDS[:8] == [2, 4, 6, 9, 14, 21, 32, 48]
    assert [windows.left(draw) for draw in (0, 1, 2, 9, 20)] == [2, 1, 2, 5, 1]
    assert [draw for draw in range(1, 12) if windows.ends_at(draw)] == [2, 4, 6, 9]
    windows.restart(100)
    assert [draw for draw in range(100, 112) if windows.ends_at(draw)] == [102, 104, 106, 109]
    assert windows.left(100) == 2


# ---------------------------------------------------------------- row coordinates


def random_factor(rng, n, k):
    return np.linalg.qr(rng.standard_normal((n, n)))[0][:k].copy(), np.geomspace(0.2, 9.0, k) - 1.0


@pytest.mark.parametrize("n,p,k", [(6, 2, 6), (7, 1, 3), (12, 4, 5)])
def test_row_coordinates(n, p, k):
    """There and back; the gradient by finite differences along the manifold; the compiled density."""
    rng = np.random.default_rng(n)
    F, A, b, density = kernels.problem(n, p, rng)
    factor, Z = random_factor(rng, n, k), frames(rng, 1, n, p)[0].T.copy()
    X, V, s = forward(factor, Z)
    R = np.eye(n) + factor[0].T * factor[1] @ factor[0]
    np.testing.assert_allclose(X.T, geo.polar(R @ Z.T), atol=1e-12)
    np.testing.assert_allclose(forward(inverse(factor), X)[0], Z, atol=1e-12)

    def log_density(Z):
        X, _, s = forward(factor, Z)
        return np.sum(F.T * X) + b @ np.einsum("ki,ij,kj->k", X, A, X) - n * np.log(s).sum()

    G = F.T + 2 * b[:, None] * (X @ A)
    gradient = pullback(factor, X, V, s, G)
    for _ in range(3):
        V = geo.tangent_project(Z.T, rng.standard_normal((n, p)))
        ends = [log_density(geo.polar(Z.T + h * V).T) for h in (1e-5, -1e-5)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, np.sum(gradient.T * V), rtol=1e-6)
    sampler = Sampler(make_layout([(n, p)], 0), density.address, Settings("splitting"), rng)
    sampler.set_coordinates(RowCoordinates(sampler.layout, {0: factor}))
    linked = LinkedRows(sampler.chain.coordinates)
    sampler.density, sampler.extra = linked.address, linked.inside(density.address, sampler.extra)
    value, compiled = sampler.evaluate(Z.ravel())
    np.testing.assert_allclose(value, log_density(Z), rtol=1e-12)
    np.testing.assert_allclose(compiled, gradient.ravel(), atol=1e-10)


def test_gradients_travel_between_coordinates():
    rng = np.random.default_rng(1)
    layout = make_layout([(5, 2), (7, 3)], 2)
    coordinates = RowCoordinates(layout, {1: random_factor(rng, 7, 4)})
    q = np.concatenate([frames(rng, 1, 5, 2)[0].T.ravel(), frames(rng, 1, 7, 3)[0].T.ravel(), [1.0, 2.0]])[None]
    g = rng.standard_normal(q.shape)
    there = coordinates.gradients(q, g, to_x=False)
    back_q, back_g = coordinates.gradients(*there, to_x=True)
    np.testing.assert_allclose(back_q, q, atol=1e-12)
    X, G, back = (part[0, 10:31].reshape(3, 7).T for part in (q, g, back_g))
    np.testing.assert_allclose(geo.tangent_project(X, back), geo.tangent_project(X, G), atol=1e-10)
    np.testing.assert_array_equal(back_g[0, :10], g[0, :10])
    assert np.abs(there[0][0, 10:31] - q[0, 10:31]).max() > 0.1


def row_target(n, precisions):
    """exp(-x'Wx / 2) on the sphere: rows of very different precision."""
    W = np.array(precisions)
    return kernels.bingham_langevin_density(np.zeros((n, 1)), -0.5 * np.diag(W), np.ones(1))


def test_how_far_coordinates_are_apart():
    rng = np.random.default_rng(4)
    one, two = random_factor(rng, 9, 4), random_factor(rng, 9, 3)
    dense = [np.eye(9) + (U.T * e) @ U for U, e in (one, two)]
    assert apart(None, None) == 1.0
    np.testing.assert_allclose(apart(one, one), 1.0, rtol=1e-10)
    np.testing.assert_allclose(apart(one, None), (9.0 / 0.2) ** 2, rtol=1e-8)
    expected = np.linalg.cond(np.linalg.solve(dense[1], dense[0])) ** 2
    np.testing.assert_allclose([apart(one, two), apart(two, one)], expected, rtol=1e-8)


def test_flips_do_not_delay_rows():
    """A Bingham density accepts every change of sign; its draws teach coordinates all the same, and these stay."""
    density = row_target(12, np.concatenate([[0.0], np.geomspace(50, 5e4, 11)]))
    settings = Settings("splitting", TWO_STAGE, adapt_rows=True, weigh_flips=True)
    sampler = Sampler(make_layout([(12, 1)], 0), density.address, settings, np.random.default_rng(2))
    sampler.draw(np.eye(12)[0])
    seen = []
    while sampler.chain.draws < 400:
        sampler.draw(None)
        if sampler.chain.draws in (100, 243, 400):
            seen.append(sampler.chain.coordinates)
    assert seen[0].factors
    assert seen[1] is seen[2]
    assert sampler.is_settled


@pytest.mark.parametrize("allowed", [True, False])
def test_rows_are_learnt_where_they_differ(allowed):
    """And draws are of X: second moments of a Bingham law, against importance sampling."""
    n, W = 12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)])
    density, start = row_target(n, W), np.eye(n)[0]
    draws, stats, sampler = kernels.run_chain(
        density, make_layout([(n, 1)], 0), start, 3000, np.random.default_rng(2), tune=400, drift="splitting",
        stages=TWO_STAGE, adapt_rows=allowed,
    )  # fmt: skip
    assert bool(sampler.chain.coordinates.factors) == allowed
    assert stats["tree_size"].mean() < 10 if allowed else stats["tree_size"].mean() > 20
    if not allowed:
        return
    scaled = draws**2 * np.maximum(W, 1.0)
    rng = np.random.default_rng(0)
    y = rng.standard_normal((400_000, n)) / np.sqrt(np.maximum(W, 1.0))
    x = y / np.linalg.norm(y, axis=1, keepdims=True)
    quadratic = (x**2 * np.maximum(W, 1.0)).sum(1)
    log_weight = -0.5 * (x**2 * W).sum(1) + n / 2 * np.log(quadratic)
    weight = np.exp(log_weight - log_weight.max())
    exact = weight @ (x**2 * np.maximum(W, 1.0)) / weight.sum()
    batches = scaled.reshape(30, 100, n).mean(1)
    z = (scaled.mean(0) - exact) / (batches.std(0, ddof=1) / np.sqrt(30))
    assert np.abs(z).max() < 4.5


def test_without_its_jacobian_the_row_map_gives_the_wrong_law():
    """The control: what the map without |Z'R'RZ|^(-n/2) would sample, a uniform Z, has other moments than X."""
    rng = np.random.default_rng(3)
    factor = random_factor(rng, 6, 6)
    X = forward(factor, frames(rng, 20_000, 6, 2).swapaxes(1, 2))[0]
    shares = np.einsum("tpn,kn->tpk", X, factor[0])[:, 0] ** 2
    z = (shares.mean(0) - 1 / 6) / (shares.std(0) / np.sqrt(len(shares)))
    assert np.abs(z).max() > 20


def test_gate_stays_shut_where_rows_are_alike():
    rng = np.random.default_rng(4)
    X0 = frames(rng, 1, 20, 2)[0]
    X = np.array([geo.polar(X0 + 0.1 * rng.standard_normal((20, 2))) for _ in range(60)])
    G = 100.0 * X0 - 0 * X
    B = G - X @ (X.swapaxes(1, 2) @ G)
    _, condition = estimate(X.swapaxes(1, 2), B.swapaxes(1, 2))
    assert condition < GATE


# ---------------------------------------------------------------- changes of sign


def test_kinds_of_sign_changes():
    assert flip_kinds(3, (), FLIPPED) == [(FLIPPED, 3, 1, 1, 1)]
    assert flip_kinds(0, (4, 3), UNDECIDED) == [(0, 0, 12, 1, 1), (0, 0, 12, 3, 4), (0, 0, 12, 1, 3)]
    assert [row[0] for row in flip_kinds(0, (5,), NEVER)] == [NEVER, NEVER]
    assert [row[0] for row in flip_kinds(0, (5,), FLIPPED)] == [FLIPPED, UNDECIDED]


def signs_along_a_walk(kappa):
    """Four unit vectors of the line, x_t = +-1, that like to have the sign of the one before; the first likes +1."""

    def target(q, gradient, extra):
        x, g = carray(q, (4, 2)), carray(gradient, (4, 2))
        g[:] = 0.0
        total = 0.5 * x[0, 0]
        g[0, 0] = 0.5
        for t in range(4):
            g[t, 0] += 60.0 * x[t, 0]
            total += 30.0 * x[t, 0] ** 2
            if t > 0:
                total += kappa * x[t, 0] * x[t - 1, 0]
                g[t, 0] += kappa * x[t - 1, 0]
                g[t - 1, 0] += kappa * x[t, 0]
        return total

    return numba.cfunc(kernels.DENSITY_SIGNATURE)(target)


@pytest.mark.parametrize("kinds", [[0], [1], [0, 1]], ids=["single", "runs", "both"])
def test_runs_of_sign_changes_are_exact(kinds):
    """Shares of sign patterns: given the sizes, flips make an Ising chain, whose law is known for steep densities."""
    table = [(FLIPPED if k in kinds else NEVER, *row[1:]) for k, row in enumerate(flip_kinds(0, (4,), UNDECIDED))]
    layout = make_layout([(2, 1)] * 4, 0, table)
    start = np.tile([1.0, 0.0], 4)
    draws, stats, sampler = kernels.run_chain(
        signs_along_a_walk(1.0), layout, start, 20_000, np.random.default_rng(0), tune=200, drift="splitting"
    )
    x = draws.reshape(-1, 4, 2)[:, :, 0]
    assert 0.1 < stats["reflected"].mean() < 0.9
    agree = np.sign(x[:, 1:]) == np.sign(x[:, :-1])
    sizes = np.abs(x[:, 1:] * x[:, :-1]).mean()
    expected = 1 / (1 + np.exp(-2 * sizes))  # up to the spread of the sizes, a percent of them
    batches = agree.reshape(40, 500, 3).mean(1)
    assert np.all(np.abs(agree.mean(0) - expected) < 4 * batches.std(0, ddof=1) / np.sqrt(40) + 0.002)
    assert sampler.chain.flips.tried[kinds].min() > 5000


def test_flips_that_are_always_accepted_are_caught():
    """The control of the test above: without the ratio of densities neighbours agree half of the time."""
    signs = np.sign(np.random.default_rng(0).standard_normal((20_000, 4)))
    agree = (signs[:, 1:] == signs[:, :-1]).reshape(40, 500, 3).mean(1)
    assert np.all(np.abs(agree.mean(0) - 1 / (1 + np.exp(-2.0))) > 40 * agree.std(0, ddof=1) / np.sqrt(40))


# ---------------------------------------------------------------- how it is called


@each_drift
def test_many_draws_in_one_go_are_those_of_single_calls(kind):
    *_, density = kernels.problem(6, 3, np.random.default_rng(0))
    layout, start, chains = make_layout([(6, 3)], 0), np.eye(6, 3).T.ravel(), []
    for _ in range(2):
        _, _, sampler = kernels.run_chain(density, layout, start, 10, np.random.default_rng(2), tune=100, drift=kind)
        chains.append(sampler)
    assert chains[0].plan_holds > 1000
    single = [(chains[0].draw(None).copy(), chains[0].stats.copy()) for _ in range(20)]
    states = np.concatenate([chains[1].draws(count).copy() for count in (1, 7, 12)])
    np.testing.assert_array_equal(states, [q for q, _ in single])
    np.testing.assert_array_equal(chains[1].statistics, [stats for _, stats in single[8:]])
    np.testing.assert_array_equal(states[-1], chains[1].chain.state.q)


EVERYTHING = {"weigh_flips": True, "adapt_rows": True, "search": True}


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["few", "all"])
def test_tuning_in_one_go_learns_what_single_draws_teach(settings, monkeypatch):
    monkeypatch.setattr(row_coordinates, "MOST_BYTES", 16 * 12 * 60)  # of 60 draws
    density = row_target(12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)]))
    layout, start, chains = make_layout([(12, 1)], 0), np.full(12, 1 / np.sqrt(12)), []
    for in_one_go in (False, True):
        sampler = Sampler(layout, density.address, Settings("automatic", **settings), np.random.default_rng(3))
        sampler.tuning = 247 if in_one_go else None
        sampler.draw(start)
        while sampler.chain.draws < 247:
            sampler.draws(sampler.plan_holds)
        chains.append(sampler)
    assert chains[1].statistics.shape[0] == 4  # from the end of a window, 243, to the end of tuning
    assert bool(chains[0].chain.coordinates.factors) == bool(settings)
    np.testing.assert_allclose(chains[0].chain.last, chains[1].chain.last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(chains[0].chain.averaging, chains[1].chain.averaging, rtol=1e-9)


def test_search_finds_a_mode_and_counts_what_it_costs():
    F = np.diag([30.0, 20.0, 10.0])[:, :2] + 0.0
    density = kernels.bingham_langevin_density(np.vstack([F, np.zeros((5, 2))]), np.zeros((8, 8)), np.zeros(2))
    start = -np.eye(8, 2).T.ravel()
    start[[1, 9]] = [0.0, -1.0]
    rng = np.random.default_rng(0)
    tilted = geo.polar(start.reshape(2, 8).T + 1e-3 * rng.standard_normal((8, 2))).T.ravel()
    logp, gradients = [], []
    for search in (True, False):
        sampler = Sampler(make_layout([(8, 2)], 0), density.address, Settings("splitting", search=search), rng)
        sampler.draw(tilted)
        logp.append(sampler.stats["model_logp"])
        gradients.append(sampler.stats["gradients"])
    assert logp[0] > 40 > logp[1]
    assert gradients[0] > gradients[1] + 5


def test_what_tuning_chooses_and_the_right_law():
    """All adapters together, on a law with a known mean."""
    F = np.zeros((10, 2))
    F[0, 0], F[1, 1] = 400.0, 20.0
    draws, _, sampler = kernels.run_chain(
        kernels.bingham_langevin_density(F, np.zeros((10, 10)), np.zeros(2)), make_layout([(10, 2)], 0),
        np.eye(10, 2).T.ravel(), 8000, np.random.default_rng(6), tune=500, drift="automatic", stages=TWO_STAGE,
        search=True, adapt_rows=True, weigh_flips=True,
    )  # fmt: skip
    assert sampler.chain.kinds == ["splitting"]
    values = draws @ F.T.ravel()
    batches = values.reshape(40, -1).mean(axis=1)
    exact = float(log_hyp0f1(10, np.array([400.0, 20.0]))[1] @ [400.0, 20.0])
    assert abs(values.mean() - exact) < 4 * batches.std(ddof=1) / np.sqrt(40)


def test_a_chain_that_cannot_move_after_tuning_goes_back():
    """To a place that is as good as any to start from; with tuning long over, it stays where it is."""

    def target(q, gradient, extra):
        x, g = carray(q, (11,)), carray(gradient, (11,))
        g[:] = 0.0
        steep = 1.0 if abs(x[10]) < 6.0 else 1e6
        g[10] = -steep * x[10]
        return -0.5 * steep * x[10] ** 2

    density = numba.cfunc(kernels.DENSITY_SIGNATURE)(target)
    start = np.concatenate([np.eye(5, 2).T.ravel(), [0.5]])
    for frozen in (False, True):
        _, _, sampler = kernels.run_chain(
            density, make_layout([(5, 2)], 1), start, 0, np.random.default_rng(1), tune=300, drift="splitting"
        )
        chain = sampler.chain
        chain.tune, chain.frozen = False, frozen
        lost = chain.state.q.copy()
        lost[10] = 7.0
        assert (sampler.draw(lost)[10] == 7.0) == frozen
        assert abs(sampler.draw(None)[10]) < 6.0 or frozen


@pytest.mark.parametrize("rows", [False, True])
def test_chain_state_can_be_saved_and_restored(rows):
    density = row_target(12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)]))
    layout = make_layout([(12, 1)], 0)
    _, _, sampler = kernels.run_chain(
        density, layout, np.eye(12)[0], 10, np.random.default_rng(2), tune=200, drift="splitting", adapt_rows=rows
    )
    assert bool(sampler.chain.coordinates.factors) == rows
    saved, state = sampler.snapshot(), sampler.rng.bit_generator.state
    first = [sampler.draw(sampler.chain.last).copy() for _ in range(5)]
    sampler.restore(saved)
    sampler.rng.bit_generator.state = state
    again = [sampler.draw(sampler.chain.last).copy() for _ in range(5)]
    np.testing.assert_array_equal(first, again)
