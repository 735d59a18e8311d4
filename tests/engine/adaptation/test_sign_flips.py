"""Changes of sign, of single vectors and of runs of them, have the right law."""

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED, flip_kinds, make_layout
from tests import kernels


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
