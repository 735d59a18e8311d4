"""Rung 5 for states of several blocks: batches, Euclidean variables of very different scale, frozen kernels."""

import copy

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel import draws
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.normalizers import log_hyp0f1
from tests.statistical.ladder import z_scores
from tests.statistical.runs import SAMPLERS, TRAJECTORIES, chain

pytestmark = pytest.mark.statistical

N, P = 5, 2
S = np.array([[6.0, 3.0], [1.0, 0.5], [20.0, 15.0]])  # a batch of three matrix Langevin laws
SCALES = np.array([1e-4, 1.0, 1e4])
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


@numba.njit(cache=True)
def _langevin_batch(x, g, s):
    total = 0.0
    g[:] = 0.0
    for m in range(s.shape[0]):
        for k in range(s.shape[1]):
            g[m, k, k] = s[m, k]
            total += s[m, k] * x[m, k, k]
    return total


@numba.cfunc(DENSITY_SIGNATURE, cache=True)
def batch_density(q, gradient, extra):
    """Three matrices X_m with density etr(F_m'X_m)."""
    return _langevin_batch(
        carray(q, (3, 2, 5)), carray(gradient, (3, 2, 5)), np.array([[6.0, 3.0], [1.0, 0.5], [20.0, 15.0]])
    )


@numba.cfunc(DENSITY_SIGNATURE, cache=True)
def product_density(q, gradient, extra):
    """X with density etr(F'X), and y_k ~ N(scale_k X_1k', scale_k^2) given X: the marginal of X is unchanged."""
    x, g = carray(q, (13,)), carray(gradient, (13,))
    g[:] = 0.0
    g[0], g[6] = 6.0, 3.0
    total = 6.0 * x[0] + 3.0 * x[6]
    for k in range(3):
        scale = 100.0 ** (2 * (k - 1))
        at = 0 if k == 0 else (6 if k == 1 else 1)
        rest = (x[10 + k] - scale * x[at]) / scale
        g[10 + k] -= rest / scale
        g[at] += rest
        total -= 0.5 * rest * rest
    return total


@each_sampler
@pytest.mark.parametrize("trajectory", ["jittered", "no-U-turn"])
def test_batch_of_matrices(sampler, trajectory, book, full):
    layout = make_layout([(N, P)] * 3, 0)
    start = np.tile(np.eye(N, P).T.ravel(), 3)
    run = chain(
        layout, batch_density.address, start, 5000 if full else 2000, np.random.default_rng(3),
        **SAMPLERS[sampler], **TRAJECTORIES[trajectory],
    )  # fmt: skip
    X = run.draws.reshape(-1, 3, P, N)
    exact = np.array([log_hyp0f1(N, s)[1] for s in S])
    diagonal = np.einsum("kmpp->kmp", X[..., :P])
    book.check(
        5, sampler, "batch of three matrix Langevin", z_scores(diagonal.reshape(-1, 6), exact.ravel()), trajectory
    )
    across = diagonal[:, 0, 0] * diagonal[:, 1, 0] - exact[0, 0] * exact[1, 0]  # independent matrices
    book.check(5, sampler, "batch of three matrix Langevin", z_scores(across, 0.0), trajectory)


@each_sampler
@pytest.mark.parametrize("trajectory", ["jittered", "no-U-turn"])
def test_product_with_very_different_scales(sampler, trajectory, book, full):
    """Scales 1e-4, 1 and 1e4 beside a matrix; adaptation is on for tuning, then frozen."""
    layout = make_layout([(N, P)], 3)
    start = np.concatenate([np.eye(N, P).T.ravel(), SCALES])
    run = chain(
        layout, product_density.address, start, 5000 if full else 2000, np.random.default_rng(4), tune=640,
        **(SAMPLERS[sampler] | {"adapt_metric": True}), **TRAJECTORIES[trajectory],
    )  # fmt: skip
    exact = log_hyp0f1(N, S[0])[1]
    y = run.draws[:, 10:] / SCALES
    x = run.draws[:, [0, 6, 1]]
    values = np.column_stack([x, y, (y - x) ** 2, (y - x) * x])
    reference = np.concatenate([exact, [0.0], exact, [0.0], np.ones(3), np.zeros(3)])
    book.check(5, sampler, "matrix Langevin with scales 1e-4, 1, 1e4", z_scores(values, reference), trajectory)


@each_sampler
def test_draws_after_tuning_are_from_the_frozen_kernel(sampler):
    """Masses and trajectories stay as tuning left them, and a new sampler given them makes the same draws."""
    layout = make_layout([(N, P)], 3)
    start = np.concatenate([np.eye(N, P).T.ravel(), SCALES])
    settings = SAMPLERS[sampler] | {"adapt_metric": True}
    run = chain(layout, product_density.address, start, 0, np.random.default_rng(5), tune=300, **settings)
    tuned = run.sampler
    tuned.chain.tune = False
    tuned.draw(None)  # ends a trial
    metric, flips = copy.deepcopy(tuned.chain.metric), copy.deepcopy(tuned.chain.flips)
    step_size, coordinates = tuned.step_size, copy.deepcopy(tuned.chain.coordinates)
    state, q = copy.deepcopy(tuned.rng.bit_generator.state), tuned.chain.last.copy()
    kept = np.array([tuned.draw(None).copy() for _ in range(1000)])
    for before, after in zip(metric, tuned.chain.metric, strict=True):
        np.testing.assert_array_equal(before, after)
    assert tuned.step_size == step_size
    np.testing.assert_array_equal(tuned.chain.flips.kinds, flips.kinds)

    rng = np.random.default_rng(0)
    frozen = {"step_size": step_size, "adapt_step_size": False, "adapt_metric": False}
    other = Sampler(layout, product_density.address, Settings(**(settings | frozen)), rng)
    other.chain.tune = False
    other.chain.metric, other.chain.coordinates, other.chain.flips = metric, coordinates, flips
    other.chain = copy.deepcopy(other.chain)  # a sampler looks at its masses when it is given a chain
    other.draw(q)  # the first draw of a sampler takes random numbers of its own
    rng.bit_generator.state = state
    again = []
    for _ in range(1000):
        q = other.draw(q).copy()
        again.append(q)
    np.testing.assert_allclose(again[:20], kept[:20], rtol=1e-9, atol=1e-9)  # rounding grows along a chain


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("n", [2, 3])
def test_reflection_gives_both_components_their_share(n, sampler, book, full):
    """On O(n) the share of det = +1, against exact draws."""
    s = np.linspace(1.0, 0.4, n)
    exact = np.linalg.det(draws.matrix_langevin(np.diag(s), size=40_000, rng=np.random.default_rng(n))) > 0
    F = np.diag(s)

    def density(q, gradient, extra):
        x, g = carray(q, (n, n)), carray(gradient, (n, n))
        g[:] = F
        return np.sum(F * x)

    compiled = numba.cfunc(DENSITY_SIGNATURE)(density)
    layout = make_layout([(n, n)], 0, flips=[True])
    run = chain(
        layout,
        compiled.address,
        np.eye(n).ravel(),
        8000 if full else 3000,
        np.random.default_rng(n),
        **SAMPLERS[sampler],
    )
    positive = np.linalg.det(run.draws.reshape(-1, n, n)) > 0
    z = z_scores(positive, exact.mean(), exact.std() / np.sqrt(len(exact)))
    book.check(5, f"{sampler}, with reflection", f"share of det = +1 on O({n})", z)
