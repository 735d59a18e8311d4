"""Rung 5 can fail: wrong samplers are refused by the very check that the package's samplers pass."""

from dataclasses import replace

import numpy as np
import pytest

from pymc_stiefel.normalizers import log_hyp0f1
from tests.statistical.ladder import z_scores
from tests.statistical.mutants import MUTANTS, PlainSampler, mutated, no_u_turn
from tests.statistical.targets import stein

pytestmark = pytest.mark.statistical

N, S = 4, np.array([6.0, 4.0, 2.0])
P = len(S)
F = np.eye(N, P) * S
TARGET = "matrix Langevin, St(4, 3)"
STEP = 0.5


@pytest.fixture(scope="module")
def right():
    return PlainSampler(lambda X: np.sum(F * X), lambda X: F, P)


def scores(sampler, draws, seed):
    """z-scores of E[X_kk], of E tr(F'X) and of Stein's identities."""
    X = sampler.run(np.eye(N, P), STEP, draws, np.random.default_rng(seed))
    exact = log_hyp0f1(N, S)[1]
    diagonal = np.column_stack([X[:, k, k] for k in range(P)])
    values = np.column_stack([diagonal, diagonal @ S, stein(X, np.broadcast_to(F, X.shape))])
    return z_scores(values, [*exact, exact @ S, 0.0, 0.0])


@pytest.mark.parametrize("trajectory", ["static", "no-U-turn"])
def test_plain_sampler_is_right(trajectory, right, book, full):
    """What the mutants differ from passes with as many draws as they get."""
    sampler = right if trajectory == "static" else replace(right, trajectory=no_u_turn)
    book.check(5, f"plain NumPy, {trajectory}", TARGET, scores(sampler, 20_000 if full else 15_000, 1))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, right, book, full):
    book.caught(5, name, TARGET, scores(mutated(right, name), 20_000 if full else 15_000, 1))
