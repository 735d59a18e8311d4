"""Loops in explicit vectors, at every length around the widths of these."""

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from pymc_stiefel.engine.drifts import circle
from pymc_stiefel.engine.jit.vectors import add_both, axpy, dot, rotate, total

inner_product = numba.njit(lambda x, y: dot(x, y))
sum_of = numba.njit(lambda x: total(x))
cosine_and_sine = numba.njit(lambda angle: circle(angle))


@numba.njit
def combine(x, y, z):
    axpy(0.3, x, y)
    add_both(-0.5, x, 2.0, y, z)
    rotate(x, z, 0.8, 0.6, -0.7)


@pytest.mark.parametrize("size", [*range(26), 50])
def test_vectors_are_numpy(size):
    x, y, z = np.random.default_rng(size).standard_normal((3, size))
    np.testing.assert_allclose(inner_product(x, y), np.sum(x * y), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(sum_of(x), np.sum(x), rtol=1e-14, atol=1e-14)
    after = y + 0.3 * x
    moved = z - 0.5 * x + 2.0 * after
    expected = 0.8 * x + 0.6 * moved, after, 0.8 * moved - 0.7 * x
    combine(x, y, z)
    np.testing.assert_allclose([x, y, z], expected, rtol=1e-13, atol=1e-14)


def test_vectors_have_to_be_contiguous():
    with pytest.raises(TypingError, match="contiguous"):
        inner_product(np.zeros((4, 2))[:, 0], np.zeros(4))


def test_cosine_and_sine_are_exact_to_rounding():
    angles = np.concatenate([np.linspace(-1.1, 1.1, 2001), [0.0, 1e-300, 40.0, -1e6]])
    both = np.array([cosine_and_sine(angle) for angle in angles]).T
    np.testing.assert_allclose(both, [np.cos(angles), np.sin(angles)], rtol=0, atol=1e-15)
