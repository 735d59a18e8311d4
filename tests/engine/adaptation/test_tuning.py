"""Tuning as a whole: windows, draws in batches, the search for a mode, copies of the state."""

import copy

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation import row_coordinates
from pymc_stiefel.engine.adaptation.windows import ENDS, Windows
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.normalizers import log_hyp0f1
from tests import kernels

# ---------------------------------------------------------------- windows


def test_windows():
    windows = Windows()
    assert ENDS[:8] == [2, 4, 6, 9, 14, 21, 32, 48]
    assert [windows.left(draw) for draw in (0, 1, 2, 9, 20)] == [2, 1, 2, 5, 1]
    assert [draw for draw in range(1, 12) if windows.ends_at(draw)] == [2, 4, 6, 9]
    windows.restart(100)
    assert [draw for draw in range(100, 112) if windows.ends_at(draw)] == [102, 104, 106, 109]
    assert windows.left(100) == 2


# ---------------------------------------------------------------- how it is called


@pytest.mark.parametrize("kind", kernels.DRIFTS)
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
    density = kernels.row_target(12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)]))
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
    density = kernels.row_target(12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)]))
    layout = make_layout([(12, 1)], 0)
    _, _, sampler = kernels.run_chain(
        density, layout, np.eye(12)[0], 10, np.random.default_rng(2), tune=200, drift="splitting", adapt_rows=rows
    )
    assert bool(sampler.chain.coordinates.factors) == rows
    saved, state = copy.deepcopy(sampler.chain), sampler.rng.bit_generator.state
    first = [sampler.draw(sampler.chain.last).copy() for _ in range(5)]
    sampler.chain = saved
    sampler.rng.bit_generator.state = state
    again = [sampler.draw(sampler.chain.last).copy() for _ in range(5)]
    np.testing.assert_array_equal(first, again)
