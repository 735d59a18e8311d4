"""The compiled engine: identities, structure of the flows, law of the momentum (rungs 1 to 3), and its adaptation."""

import numba
import numpy as np
import pytest
from numba import carray
from scipy import stats
from scipy.special import i0

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation import WINDOWS, Trajectories, _geometric_mean, window_left, window_of
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import LEAPFROG, TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.engine.trajectory import STATISTICS
from pymc_stiefel.normalizers import log_hyp0f1
from tests import kernels

SHAPES = [(5, 1), (6, 3), (5, 5), (20, 3)]
each_drift = pytest.mark.parametrize("kind", kernels.DRIFTS)
each_step = pytest.mark.parametrize("outer_kick", [LEAPFROG, TWO_STAGE], ids=["leapfrog", "two-stage"])
each_shape = pytest.mark.parametrize("n,p", SHAPES)


def start(kind, n, p, seed=0):
    rng = np.random.default_rng(seed)
    c, w = kernels.metric_of(kind, p, rng)
    X = geo.polar(rng.standard_normal((n, p)))
    return X, geo.draw_momentum(X, c, w, rng), c, w, rng


# ---------------------------------------------------------------- rung 1: identities


@each_drift
@pytest.mark.parametrize("n,p", [*SHAPES, (2, 2), (1, 1), (40, 20), (70, 30), (30, 30)])
def test_compiled_drifts_are_the_formulas(kind, n, p):
    """Also beyond the sizes at which BLAS and LAPACK take over."""
    X, r, c, w, _ = start(kind, n, p)
    for t in (0.3, -0.3, 1.0):
        expected = kernels.reference_drift(kind, X, r, t, c, w)
        np.testing.assert_allclose(kernels.drift(kind, X, r, t, c, w), expected, atol=1e-11)


@pytest.mark.parametrize("n,p", [(90, 60), (130, 25), (70, 70)])
@pytest.mark.parametrize("t", [1e-3, 0.7, 30.0])
def test_large_matrices_move_by_the_cayley_map(n, p, t):
    """Where the system is solved by its inverse, also for steps far beyond any that a sampler takes."""
    rng = np.random.default_rng(n)
    X = geo.polar(rng.standard_normal((n, p)))
    r = geo.tangent_project(X, rng.standard_normal((n, p)))
    X_new, r_new = kernels.drift("cayley", X, r, t, np.ones(p), np.full((p, p), 2.0))
    expected = geo.cayley_drift(X, r, t)
    np.testing.assert_allclose(X_new, expected[0], atol=1e-11)
    np.testing.assert_allclose(r_new, expected[1], atol=1e-9)
    assert geo.orthogonality_error(X_new) < 1e-12


@each_drift
@each_shape
def test_ten_thousand_drifts_stay_on_the_manifold(kind, n, p):
    X, r, c, w, _ = start(kind, n, p)
    X_new, r_new = kernels.drift(kind, X, r, 0.3, c, w, count=10_000)
    assert geo.orthogonality_error(X_new) < (1e-12 if n > p else 5e-12)  # 1e-16 a drift: rounding, not growth
    assert np.abs(X_new.T @ r_new + r_new.T @ X_new).max() < 1e-11
    np.testing.assert_allclose(geo.angular_momentum(X_new, r_new), geo.angular_momentum(X, r), atol=1e-10)


@each_drift
def test_large_arguments_are_survived(kind):
    """The paper reports matrix exponentials that fail for large steps; ours may lose digits, not the manifold."""
    X, r, c, w, _ = start(kind, 6, 3)
    X_new, _ = kernels.drift(kind, X, 1e3 * r, 1.0, c, w)
    assert geo.orthogonality_error(X_new) < 1e-9
    X_new, _ = kernels.drift(kind, X, np.full_like(r, np.nan), 1.0, c, w)
    assert np.isnan(X_new).any()


@each_drift
def test_steep_density_does_not_amplify_rounding(kind):
    """Without keeping the momentum tangent, errors of X'X doubled with every leapfrog on targets like this."""
    X, _, c, w, rng = start(kind, 30, 3)
    F = 4e3 * geo.polar(rng.standard_normal((30, 3)))
    density = kernels.bingham_langevin_density(-F, np.zeros((30, 30)), np.zeros(3))
    X_new, *_ = kernels.steps(kind, density, geo.polar(F + rng.standard_normal(F.shape)), 0 * X, 0.01, c, w, 400)
    assert geo.orthogonality_error(X_new) < 1e-12


# ---------------------------------------------------------------- rung 2: structure of the flows


@each_drift
@each_shape
@each_step
@pytest.mark.parametrize("eps,count", [(0.05, 7), (0.8, 3)])  # large steps are chaotic and amplify rounding
def test_step_is_reversible(kind, n, p, eps, count, outer_kick):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    X_new, r_new, _ = kernels.steps(kind, density, X, r, eps, c, w, count, outer_kick)
    X_back, r_back, _ = kernels.steps(kind, density, X_new, -r_new, eps, c, w, count, outer_kick)
    np.testing.assert_allclose(X_back, X, atol=1e-8)
    np.testing.assert_allclose(-r_back, r, atol=1e-7)


def tangent_basis(X):
    """Orthonormal basis of the tangent space, (d, n, p)."""
    n, p = X.shape
    ambient = np.eye(n * p).reshape(n * p, n, p)
    projected = np.array([geo.tangent_project(X, G) for G in ambient]).reshape(n * p, n * p)
    values, vectors = np.linalg.eigh(projected)
    return vectors[:, values > 0.5].T.reshape(-1, n, p)


def log_volume(flow, X, r, h=1e-5):
    """log |det| of the Jacobian of ``flow`` in canonical coordinates (u, Dphi(u)' r) of the tangent bundle.

    The charts are u -> polar(X + sum u_i T_i) at either end; du dp is the same measure for every chart.
    """
    basis = tangent_basis(X)
    X_end, _ = flow(X, r)
    basis_end = tangent_basis(X_end)

    def into(z):
        u, momentum = np.split(z, 2)
        Z = X + np.tensordot(u, basis, 1)
        at = geo.polar(Z)
        local = tangent_basis(at)
        pull = np.array([np.tensordot(basis, geo.polar_pullback(Z, S), 2) for S in local]).T
        return at, np.tensordot(np.linalg.solve(pull, momentum), local, 1)

    def out_of(X_new, r_new):
        # polar(X_end + B) = X_new with B tangent: B = X_new H - X_end, where X_end' X_new H has symmetric part I
        M = X_end.T @ X_new
        p = M.shape[0]
        equations = np.kron(M, np.eye(p)) + np.kron(np.eye(p), M)
        H = np.linalg.solve(equations, 2 * np.eye(p).ravel()).reshape(p, p)
        Z = X_new @ H
        u = np.tensordot(basis_end, Z - X_end, 2)
        return np.concatenate([u, np.tensordot(basis_end, geo.polar_pullback(Z, r_new), 2)])

    z = np.concatenate([np.zeros(len(basis)), np.tensordot(basis, r, 2)])
    columns = [(out_of(*flow(*into(z + h * e))) - out_of(*flow(*into(z - h * e)))) / (2 * h) for e in np.eye(z.size)]
    return np.linalg.slogdet(np.array(columns))[1]


@each_drift
@each_step
@pytest.mark.parametrize("n,p", [(5, 1), (6, 3), (4, 4)])
def test_step_preserves_volume(kind, n, p, outer_kick):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    flow = lambda X, r: kernels.steps(kind, density, X, r, 0.3, c, w, 2, outer_kick)[:2]  # noqa: E731
    assert abs(log_volume(flow, X, r)) < 1e-7


def test_qr_retraction_does_not_preserve_volume():
    """The control of the test above."""
    X, r, *_ = start("cayley", 6, 3)

    def flow(X, r):
        Q, R = np.linalg.qr(X + 0.5 * r)
        Q = Q * np.sign(np.diag(R))
        return Q, geo.tangent_project(Q, r)

    assert abs(log_volume(flow, X, r)) > 0.1


@each_drift
@each_shape
@each_step
def test_energy_has_no_trend(kind, n, p, outer_kick):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    *_, energies = kernels.steps(kind, density, X, r, 0.05, c, w, 20_000, outer_kick)
    halves = energies.reshape(2, -1)
    assert np.ptp(energies) < 1.0
    assert abs(halves[0].mean() - halves[1].mean()) < 0.2 * np.ptp(energies)


@each_drift
def test_two_stages_err_less_at_the_same_number_of_gradients(kind):
    X, r, c, w, rng = start(kind, 20, 3)
    *_, density = kernels.problem(20, 3, rng)
    leapfrogs = kernels.steps(kind, density, X, r, 0.1, c, w, 400, LEAPFROG)[2]
    two_stages = kernels.steps(kind, density, X, r, 0.2, c, w, 200, TWO_STAGE)[2]
    assert two_stages.std() < 0.7 * leapfrogs.std()


# ---------------------------------------------------------------- rung 3: law of the momentum


@each_drift
@each_shape
def test_momentum_law(kind, n, p):
    X, _, c, w, rng = start(kind, n, p)
    A, B = kernels.momenta(X, c, w, 4000, rng)
    assert np.abs(np.einsum("ni,knj->kij", X, B)).max() < 1e-12
    twice = np.sum(c * np.sum(B**2, axis=1), axis=1) + np.sum(w * A**2, axis=(1, 2))
    assert stats.kstest(twice, stats.chi2(geo.manifold_dimension(n, p)).cdf).pvalue > 1e-4


def test_projected_noise_is_the_wrong_law():
    """The control: Gaussian noise mapped by the paper's ``Z - X Z'X``, under the canonical energy."""
    X, _, _, _, rng = start("cayley", 6, 3)
    noise = rng.standard_normal((4000, 6, 3))
    r = noise - X @ np.swapaxes(noise, 1, 2) @ X
    twice = [2 * geo.kinetic_energy(X, one, *geo.metric("canonical", 3)) for one in r]
    assert stats.kstest(twice, stats.chi2(geo.manifold_dimension(6, 3)).cdf).pvalue < 1e-10


# ---------------------------------------------------------------- draws


@each_drift
@pytest.mark.parametrize("eps", [0.4, 1.2, 2.2])
def test_langevin_expectation(kind, eps):
    """tr(F'X) against the exact value, from a step that never rejects to one that rejects a third."""
    F = np.zeros((5, 2))
    F[0, 0], F[1, 1] = 4.0, 2.0
    exact = float(log_hyp0f1(5, np.array([4.0, 2.0]))[1] @ [4.0, 2.0])
    density = kernels.bingham_langevin_density(F, np.zeros((5, 5)), np.zeros(2))
    z = []
    for options in ({"n_steps": 4, "jitter": 0.5}, {}):
        draws, statistics, _ = kernels.run_chain(
            density,
            make_layout([(5, 2)], 0),
            np.eye(5, 2).T.ravel(),
            8000,
            np.random.default_rng(5),
            drift=kind,
            step_size=eps,
            adapt_step_size=False,
            adapt_metric=False,
            **options,
        )
        values = draws @ F.T.ravel()
        batches = values.reshape(40, -1).mean(axis=1)
        z.append((values.mean() - exact) / (batches.std(ddof=1) / np.sqrt(40)))
    assert np.abs(z).max() < 4
    accept = statistics[:, STATISTICS.index("mean_tree_accept")].mean()
    assert accept > 0.9 if eps == 0.4 else accept < 0.95


def test_full_first_kick_is_caught():
    """The control: a first kick that is full instead of half, as in a published implementation."""
    F = np.zeros((5, 2))
    F[0, 0], F[1, 1] = 4.0, 2.0
    exact = float(log_hyp0f1(5, np.array([4.0, 2.0]))[1] @ [4.0, 2.0])
    rng = np.random.default_rng(5)
    X, values = np.eye(5, 2), []
    c, w = geo.metric("canonical", 2)
    eps = 0.3
    for _ in range(4000):
        r = geo.draw_momentum(X, c, w, rng)
        energy = geo.kinetic_energy(X, r, c, w) - np.sum(F * X)
        X_new, r_new = X, r
        for kick in (eps, eps):  # the first should be eps / 2
            X_new, r_new = geo.cayley_drift(X_new, r_new + kick * geo.tangent_project(X_new, F), eps)
        r_new = r_new + eps / 2 * geo.tangent_project(X_new, F)
        change = geo.kinetic_energy(X_new, r_new, c, w) - np.sum(F * X_new) - energy
        if np.log(rng.random()) < -change:
            X = X_new
        values.append(np.sum(F * X))
    batches = np.reshape(values, (40, -1)).mean(axis=1)
    assert abs(np.mean(values) - exact) / (batches.std(ddof=1) / np.sqrt(40)) > 6


def test_reflection_visits_both_components():
    """O(2) with a density that prefers one component: the share of det = +1 is known."""
    A, F = np.zeros((2, 2)), np.diag([1.0, 0.5])
    density = kernels.bingham_langevin_density(F, A, np.zeros(2))
    layout = make_layout([(2, 2)], 0, flips=[True])
    draws, *_ = kernels.run_chain(
        density, layout, np.eye(2).ravel(), 20_000, np.random.default_rng(0), tune=300, drift="cayley"
    )
    positive = np.linalg.det(draws.reshape(-1, 2, 2)) > 0
    exact = i0(1.5) / (i0(1.5) + i0(0.5))
    batches = positive.reshape(50, -1).mean(axis=1)
    assert abs(positive.mean() - exact) < 4 * batches.std(ddof=1) / np.sqrt(50)
    still, *_ = kernels.run_chain(
        density, make_layout([(2, 2)], 0), np.eye(2).ravel(), 500, np.random.default_rng(0), tune=100, drift="cayley"
    )
    assert np.all(np.linalg.det(still.reshape(-1, 2, 2)) > 0)  # without the move it never leaves its component


# ---------------------------------------------------------------- adaptation


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


@pytest.mark.parametrize(
    "drift,sizes,expected",
    [
        ("automatic", (2.0, 1.0), ("cayley", 1, True)),  # nearly flat: one mass, one gradient a step
        ("automatic", (400.0, 20.0), ("splitting", 2, True)),
        ("cayley", (400.0, 20.0), ("cayley", 2, False)),  # one mass does not fit: trajectories stay long
    ],
)
def test_what_tuning_chooses(drift, sizes, expected):
    """Drift, stages, and whether trajectories have one length; and the right law in any case."""
    F = np.zeros((10, 2))
    F[0, 0], F[1, 1] = sizes
    draws, stats, sampler = kernels.run_chain(
        kernels.bingham_langevin_density(F, np.zeros((10, 10)), np.zeros(2)),
        make_layout([(10, 2)], 0),
        np.eye(10, 2).T.ravel(),
        8000,
        np.random.default_rng(6),
        tune=500,
        drift=drift,
        outer_kick=TWO_STAGE,
        settle_length=True,
        jitter=0.2,
    )
    plan = sampler.chain.plan
    assert (*sampler.chain.kinds, plan.stages, plan.length > 0) == expected
    depth, size = (stats[:, STATISTICS.index(name)] for name in ("depth", "tree_size"))
    assert np.all(depth == 0) == np.all(size == plan.steps) == (plan.length > 0)
    values = draws @ F.T.ravel()
    batches = values.reshape(40, -1).mean(axis=1)
    exact = float(log_hyp0f1(10, np.array(sizes))[1] @ sizes)
    assert abs(values.mean() - exact) < 4 * batches.std(ddof=1) / np.sqrt(40)


WALK, INDEPENDENT = "walk", "independent"


def plans(windows):
    """Plans after windows of draws that are independent or a random walk, each with its acceptance."""
    settings = Settings(drift="splitting", outer_kick=TWO_STAGE, settle_length=True)
    sampler, rng = Sampler(make_layout([(5, 2)], 0), 0, settings, np.random.default_rng(0)), np.random.default_rng(1)
    for kind, size, accept in windows:
        draws = rng.standard_normal((200, 10))
        sampler.chain.trajectories = Trajectories()
        for block in np.split(np.cumsum(draws, axis=0) if kind == WALK else draws, 20):
            sampler.chain.trajectories.add(block, np.tile((size, accept, 1.4, np.cos(1.4)), (10, 1)))
        if kind == "end of tuning":
            sampler._freeze(False)
        else:
            sampler._choose_trajectories()
        yield sampler.chain.plan.stages, sampler.chain.plan.length > 0


SHORT, STEADY, ACCEPTED, LOST = (INDEPENDENT, 3, 0.9), (INDEPENDENT, 1, 0.9), (INDEPENDENT, 1, 1.0), (WALK, 1, 0.9)
TURNS, ONE_LENGTH, LEAPFROGS = (2, False), (2, True), (1, True)


def test_one_length_is_tried_where_trajectories_are_short():
    assert list(plans([(INDEPENDENT, 7, 0.9), (WALK, 7, 0.9), (WALK, 3, 0.9)])) == [TURNS, TURNS, ONE_LENGTH]


def test_plans_that_do_not_pay_are_given_up():
    """U-turns come back, for good, where one length leads to a walk; two stages, where leapfrogs do or are rejected."""
    assert list(plans([SHORT, STEADY, STEADY])) == [ONE_LENGTH] * 3
    assert list(plans([SHORT, LOST, SHORT])) == [ONE_LENGTH, TURNS, TURNS]
    assert list(plans([SHORT, STEADY, LOST, SHORT])) == [ONE_LENGTH, ONE_LENGTH, TURNS, TURNS]
    assert list(plans([SHORT, ACCEPTED, STEADY, STEADY])) == [ONE_LENGTH, LEAPFROGS, LEAPFROGS, LEAPFROGS]
    rejected = (INDEPENDENT, 1, 0.5)
    for bad in (LOST, rejected):
        assert list(plans([SHORT, ACCEPTED, bad, ACCEPTED])) == [ONE_LENGTH, LEAPFROGS, ONE_LENGTH, ONE_LENGTH]


def test_plans_on_trial_at_the_end_of_tuning_are_dropped():
    end = ("end of tuning", 1, 1.0)
    assert list(plans([end])) == [TURNS]
    assert list(plans([SHORT, end])) == [ONE_LENGTH, TURNS]
    assert list(plans([SHORT, ACCEPTED, end])) == [ONE_LENGTH, LEAPFROGS, ONE_LENGTH]
    assert list(plans([SHORT, ACCEPTED, STEADY, end])) == [ONE_LENGTH, LEAPFROGS, LEAPFROGS, LEAPFROGS]


@pytest.mark.parametrize("others,settles", [(0, True), (1, False)])
def test_one_length_is_for_matrices_alone(others, settles):
    settings = Settings(drift="automatic", settle_length=True)
    assert Sampler(make_layout([(5, 2)], others), 0, settings, np.random.default_rng(0)).may_settle == settles


def test_autocorrelations_of_a_window():
    """Of an autoregression, whose squares have the square of its correlation; and what is made of them."""
    x, rng = np.zeros((4000, 50)), np.random.default_rng(2)
    for k in range(1, len(x)):
        x[k] = -0.6 * x[k - 1] + 0.8 * rng.standard_normal(50)
    window = Trajectories()
    for block in x[:1], x[1:]:
        window.add(block, np.tile((3.0, 0.85, 0.7, np.cos(0.7)), (len(block), 1)))
    coordinates, squares = window.correlations
    np.testing.assert_allclose([coordinates.mean(), squares.mean()], [-0.6, 0.36], atol=0.01)
    slow = np.quantile([coordinates, squares], 0.9, method="lower")
    np.testing.assert_allclose(window.efficiency(2), (1 - slow) / (1 + slow) / 7)
    np.testing.assert_allclose(window.quarter(), np.pi / 2)
    np.testing.assert_allclose(window.better_length(2.0), 2.0 * np.arccos(-0.25) / np.arccos(-0.6), rtol=0.02)
    assert (window.steps(0.6, 0.8), window.steps(2.0, 0.8), window.steps(2.0, 0.99)) == (1, 3, 7)


def test_cosine_and_sine_are_exact_to_rounding():
    angles = np.concatenate([np.linspace(-1.1, 1.1, 2001), [0.0, 1e-300, 40.0, -1e6]])
    both = np.array([kernels.cosine_and_sine(angle) for angle in angles]).T
    np.testing.assert_allclose(both, [np.cos(angles), np.sin(angles)], rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 50])
def test_inner_product(size):
    x, y = np.random.default_rng(size).standard_normal((2, size))
    np.testing.assert_allclose(kernels.inner_product(x, y), np.sum(x * y), rtol=1e-14, atol=1e-14)


def test_windows():
    assert window_of(0) == 0
    assert all(window_of(last - 1) != window_of(last) for last in WINDOWS[:-1])
    assert [window_left(draw) for draw in (0, 9, 10, 15)] == [10, 1, 10, 5]


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


@each_drift
def test_tuning_in_one_go_learns_what_single_draws_teach(kind):
    *_, density = kernels.problem(6, 3, np.random.default_rng(0))
    layout, start, chains = make_layout([(6, 3)], 0), np.eye(6, 3).T.ravel(), []
    for in_one_go in (False, True):
        sampler = Sampler(layout, density.address, Settings(kind), np.random.default_rng(3))
        sampler.tuning = 140 if in_one_go else None
        sampler.draw(start)
        while sampler.chain.draws < 140:
            sampler.draws(sampler.plan_holds)
        chains.append(sampler)
    assert chains[1].statistics.shape[0] == 10  # from the end of a window to the end of tuning
    np.testing.assert_array_equal(chains[0].chain.state.q, chains[1].chain.state.q)
    np.testing.assert_array_equal(chains[0].chain.averaging.values, chains[1].chain.averaging.values)
    assert chains[0].stats.tolist() == chains[1].stats.tolist()


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
    assert statistics[:, STATISTICS.index("tree_size")].mean() < 30
    assert statistics[:, STATISTICS.index("diverging")].sum() == 0


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


def test_chain_state_can_be_saved_and_restored():
    *_, density = kernels.problem(6, 3, np.random.default_rng(0))
    layout = make_layout([(6, 3)], 0)
    _, _, sampler = kernels.run_chain(
        density, layout, np.eye(6, 3).T.ravel(), 10, np.random.default_rng(2), tune=100, drift="splitting"
    )
    saved, state = sampler.snapshot(), sampler.rng.bit_generator.state
    first = [sampler.draw(sampler.chain.state.q).copy() for _ in range(5)]
    sampler.restore(saved)
    sampler.rng.bit_generator.state = state
    again = [sampler.draw(sampler.chain.state.q).copy() for _ in range(5)]
    np.testing.assert_array_equal(first, again)
