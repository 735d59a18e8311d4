"""What tuning learns: masses, step sizes, kinds of trajectories; and that it does not matter how it is called."""

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel.engine.adaptation import WINDOWS, _geometric_mean, window_left, window_of
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.plans import LEAST, SLOW, Trajectories
from pymc_stiefel.engine.sampler import ENOUGH_DRAWS, Sampler, Settings
from pymc_stiefel.engine.trajectory import ACCEPT, STATISTICS, STEP_SIZE, TREE_SIZE, TURN
from pymc_stiefel.normalizers import log_hyp0f1
from tests import kernels

each_drift = pytest.mark.parametrize("kind", kernels.DRIFTS)


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
    "drift,sizes,kind,stages,one_length",
    [
        ("automatic", (2.0, 1.0), "cayley", {1}, True),  # nearly flat: one mass, one gradient a step
        ("automatic", (400.0, 20.0), "splitting", {2, 3}, True),
        ("cayley", (400.0, 20.0), "cayley", {2}, False),  # one mass does not fit: trajectories stay long
    ],
)
def test_what_tuning_chooses(drift, sizes, kind, stages, one_length):
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
        stages=TWO_STAGE,
        settle_length=True,
        jitter=0.2,
    )
    plan = sampler.chain.plan
    assert sampler.chain.kinds == [kind]
    assert plan.stages in stages
    assert (plan.length > 0) == one_length
    depth, size = (stats[:, STATISTICS.index(name)] for name in ("depth", "tree_size"))
    assert np.all(depth == 0) == np.all(size == plan.steps) == (plan.length > 0)
    values = draws @ F.T.ravel()
    batches = values.reshape(40, -1).mean(axis=1)
    exact = float(log_hyp0f1(10, np.array(sizes))[1] @ sizes)
    assert abs(values.mean() - exact) < 4 * batches.std(ddof=1) / np.sqrt(40)


def statistics(count, size, accept, eps):
    """Of trajectories that turn by a radian in a unit of time."""
    rows = np.zeros((count, len(STATISTICS)))
    rows[:, [TREE_SIZE, ACCEPT, STEP_SIZE, TURN]] = size, accept, eps, np.cos(eps)
    return rows


WALK, INDEPENDENT = "walk", "independent"


def plans(windows):
    """Plans after windows of draws that are independent or a random walk, each with its acceptance."""
    settings = Settings(drift="splitting", stages=TWO_STAGE, settle_length=True)
    sampler, rng = Sampler(make_layout([(5, 2)], 0), 0, settings, np.random.default_rng(0)), np.random.default_rng(1)
    sampler.chain.draws = 200
    for kind, size, accept in windows:
        draws = rng.standard_normal((200, 10))
        sampler.chain.trajectories = Trajectories()
        for block in np.split(np.cumsum(draws, axis=0) if kind == WALK else draws, 20):
            sampler.chain.trajectories.add(block, statistics(10, size, accept, 1.4))
        if kind == "end of tuning":
            sampler._freeze(False)
        else:
            sampler._choose_trajectories()
        yield sampler.chain.plan.stages, sampler.chain.plan.length > 0


SHORT, STEADY, ACCEPTED, LOST = (INDEPENDENT, 3, 0.9), (INDEPENDENT, 1, 0.9), (INDEPENDENT, 1, 1.0), (WALK, 1, 0.9)
TURNS, THREE, TWO, LEAPFROGS = (2, False), (3, True), (2, True), (1, True)  # stages, and whether there is one length


def test_one_length_is_tried_where_trajectories_are_short():
    assert list(plans([(INDEPENDENT, 7, 0.9), (WALK, 7, 0.9), (WALK, 3, 0.9)])) == [TURNS, TURNS, THREE]


def test_one_stage_will_do_where_there_are_no_errors():
    """On a uniform matrix two more would be three times the drifts for nothing."""
    assert list(plans([(INDEPENDENT, 3, 1.0), ACCEPTED])) == [LEAPFROGS, LEAPFROGS]


def test_plans_that_do_not_pay_are_given_up():
    """U-turns come back, for good, where one length leads to a walk; stages, where fewer do or are rejected."""
    assert list(plans([SHORT, STEADY, STEADY])) == [THREE] * 3
    assert list(plans([SHORT, LOST, SHORT])) == [THREE, TURNS, TURNS]
    assert list(plans([SHORT, STEADY, LOST, SHORT])) == [THREE, THREE, TURNS, TURNS]
    assert list(plans([SHORT, ACCEPTED, STEADY, STEADY])) == [THREE, TWO, TWO, TWO]
    assert list(plans([SHORT, ACCEPTED, ACCEPTED, STEADY, STEADY])) == [THREE, TWO, LEAPFROGS, LEAPFROGS, LEAPFROGS]
    rejected = (INDEPENDENT, 1, 0.5)
    assert list(plans([SHORT, ACCEPTED, rejected, ACCEPTED])) == [THREE, TWO, THREE, THREE]
    assert list(plans([SHORT, ACCEPTED, ACCEPTED, rejected, ACCEPTED])) == [THREE, TWO, LEAPFROGS, TWO, TWO]
    assert list(plans([SHORT, ACCEPTED, LOST, SHORT])) == [THREE, TWO, TURNS, TURNS]


def test_plans_on_trial_at_the_end_of_tuning_are_dropped():
    end = ("end of tuning", 1, 1.0)
    assert list(plans([end])) == [TURNS]
    assert list(plans([SHORT, end])) == [THREE, TURNS]
    assert list(plans([SHORT, ACCEPTED, end])) == [THREE, TWO, THREE]
    assert list(plans([SHORT, ACCEPTED, STEADY, end])) == [THREE, TWO, TWO, TWO]


@pytest.mark.parametrize("n,p", [(10, 1), (6, 3), (5, 5)])
@pytest.mark.parametrize("size,early", [(0.5, True), (200.0, False)])
def test_one_length_from_the_start_where_the_density_is_flat(n, p, size, early):
    """With U-turns, half of the time of a short run would go before a length was tried."""
    density = kernels.bingham_langevin_density(size * np.eye(n, p), np.zeros((n, n)), np.zeros(p))
    settings = Settings("automatic", stages=TWO_STAGE, settle_length=True)
    sampler = Sampler(make_layout([(n, p)], 0), density.address, settings, np.random.default_rng(0))
    sampler.draw(np.eye(n, p).T.ravel())
    for _ in range(ENOUGH_DRAWS):
        sampler.draw(None)
    assert (sampler.chain.plan.length > 0) == early


def test_a_length_not_compared_with_u_turns_is_given_up_where_the_density_is_not_flat():
    """The density changes under the chain, as by new data, from a constant to a steep one."""

    def target(q, gradient, extra):
        x, g = carray(q, (10,)), carray(gradient, (10,))
        g[:] = 0.0
        if extra[0] == 0:
            return 0.0
        g[0] = 300.0
        return 300.0 * x[0]

    density, held = numba.cfunc(kernels.DENSITY_SIGNATURE)(target), np.zeros(1, dtype=np.int64)
    settings = Settings("automatic", stages=TWO_STAGE, settle_length=True)
    sampler = Sampler(make_layout([(10, 1)], 0), density.address, settings, np.random.default_rng(0), held)
    sampler.draw(np.eye(10, 1).T.ravel())
    while sampler.chain.draws < 40:
        sampler.draw(None)
    assert sampler.chain.plan.length > 0
    held[0] = 1
    sampler.draw(None, keep_gradient=False)
    while sampler.chain.draws < 60:
        sampler.draw(None)
    assert sampler.chain.plan.length == 0
    while sampler.chain.draws < 500:
        sampler.draw(None)
    assert sampler.chain.turning > 0


@pytest.mark.parametrize("others,settles", [(0, True), (1, False)])
def test_one_length_is_for_matrices_alone(others, settles):
    settings = Settings(drift="automatic", settle_length=True)
    assert Sampler(make_layout([(5, 2)], others), 0, settings, np.random.default_rng(0)).may_settle == settles


def autoregression(correlations, count, rng, accept=1.0):
    """A window of draws with these correlations, a share of which have not moved."""
    x = np.zeros((count, len(correlations)))
    for k in range(1, count):
        fresh = np.sqrt(1 - correlations**2) * rng.standard_normal(len(correlations))
        x[k] = correlations * x[k - 1] + fresh if rng.random() < accept else x[k - 1]
    window = Trajectories()
    window.add(x, statistics(count, 3, accept, 0.7))
    return window


def test_autocorrelations_of_a_window():
    """Of an autoregression, whose squares have the square of its correlation; and what is made of them."""
    window = autoregression(np.full(50, -0.6), 4000, np.random.default_rng(2))
    coordinates, squares = window.correlations
    np.testing.assert_allclose([coordinates.mean(), squares.mean()], [-0.6, 0.36], atol=0.01)
    np.testing.assert_allclose(window.efficiency(2), (1 - 0.36) / (1 + 0.36) / 7, rtol=0.08)
    np.testing.assert_allclose(window.quarter(), np.pi / 2)
    np.testing.assert_allclose(window.better_length(2.0), 2.0 * np.arccos(SLOW) / np.arccos(-0.6), rtol=0.02)


@pytest.mark.parametrize(
    "length,accept,target,expected",
    [
        (0.6, 0.85, 0.8, 1),
        (2.0, 0.85, 0.8, 3),
        (2.0, 0.85, 0.99, 12),
        (1.4, 0.97, 0.8, 2),  # by the square of the step, one would do
        (1.4, 0.98, 0.8, 1),
    ],
)
def test_steps_of_one_length(length, accept, target, expected):
    window = Trajectories()
    window.add(np.zeros((10, 1)), statistics(10, 3, accept, 0.7))
    assert window.steps(length, target) == expected


def test_lengths_aim_at_the_slow_coordinates():
    """The more the correlations of coordinates differ, the further beyond a quarter of a period; noise is no spread."""
    rng = np.random.default_rng(3)
    windows = [autoregression(np.linspace(-spread, spread, 50), 2000, rng) for spread in (0.0, 0.1, 0.6)]
    lengths = [window.better_length(1.0) for window in windows]
    aims = [SLOW, SLOW - 2 * 0.1 / np.sqrt(3), LEAST]
    np.testing.assert_allclose(np.cos(np.array(lengths) * np.pi / 2), aims, atol=0.02)
    slow = 1.28 * 0.6 / np.sqrt(3)
    np.testing.assert_allclose(windows[-1].efficiency(2), (1 - slow) / (1 + slow) / 7, rtol=0.05)


def test_rejections_do_not_lengthen_trajectories():
    """They leave draws alike as if these were too short."""
    correlations, rng = np.full(50, -0.3), np.random.default_rng(4)
    lengths = [autoregression(correlations, 4000, rng, accept).better_length(2.0) for accept in (1.0, 0.75)]
    np.testing.assert_allclose(lengths[1], lengths[0], rtol=0.03)


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
