"""Statistics of a population of particles: log densities, gradients, masses, and correlation with earlier positions."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.adaptation.metric import MAX_DENSE, Moments, learnt_metric
from pymc_stiefel.engine.blocks import Layout, Metric, groups
from pymc_stiefel.engine.jit.calls import call_density
from pymc_stiefel.engine.jit.compiling import compiled
from pymc_stiefel.engine.manifolds import GRASSMANN


@compiled
def _evaluate(density, extra, states, values, gradients):
    for k in range(states.shape[0]):
        values[k] = call_density(density, states[k], gradients[k], extra)


def evaluate(density: int, extra: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density and gradient, by columns as in the engine, at each row of ``states``."""
    values, gradients = np.empty(len(states)), np.zeros_like(states)
    _evaluate(density, extra, np.ascontiguousarray(states), values, gradients)
    return values, gradients


def population_metric(
    layout: Layout, states: np.ndarray, gradients: np.ndarray, old: Metric, kinds: list[str]
) -> Metric:
    """Masses from particles that are distributed as the density, with its gradients there.

    There are no successive draws from which to compute secants. But the particles are at equilibrium, where the mean
    square of a gradient is a precision.
    """
    count, columns, pairs = len(states), [np.zeros(0)], [np.zeros(0)]
    for n, p, start in zip(layout.n, layout.p, layout.offset, strict=True):
        X, G = (flat[:, start : start + n * p].reshape(-1, p, n) for flat in (states, gradients))  # transposed
        gram = np.einsum("kin,kjn->kij", X, G)  # X'G
        A, B = (gram - gram.swapaxes(1, 2)) / 2, G - np.einsum("kij,kin->kjn", gram, X)
        columns.append(np.sum(B**2, axis=(0, 2)) / (count * max(n - p, 1)))
        pairs.append(2.0 * np.mean(A**2, axis=0).ravel())
    column, pair = np.concatenate(columns), np.concatenate(pairs)
    moments = Moments(
        np.array([float(count), float(count)]),
        np.ones_like(column),
        column**2,
        np.ones_like(pair),
        pair**2,
        *_spread(states[:, layout.stiefel :]),
        *_spread(gradients[:, layout.stiefel :]),
    )
    return learnt_metric(layout, moments, old, kinds, 2.0)


def _spread(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and sums of squares about it: d x d for few coordinates, otherwise d x 1."""
    mean = x.mean(axis=0)
    x = x - mean
    return mean, x.T @ x if x.shape[1] <= MAX_DENSE else np.sum(x**2, axis=0)[:, None]


def correlation(layout: Layout, first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of old and new positions over particles: the root mean square over coordinates.

    For matrices, squares of entries are used; otherwise modes that differ by signs of columns would look correlated.
    """
    first, second = (_features(layout, states) for states in (first, second))
    scale = np.sum(first**2, axis=0) * np.sum(second**2, axis=0)
    moving = scale > 0.0
    squares = np.sum(first * second, axis=0)[moving] ** 2 / scale[moving]
    return float(np.sqrt(squares.mean())) if squares.size else 0.0


def _features(layout: Layout, states: np.ndarray) -> np.ndarray:
    features = states.copy()
    features[:, : layout.stiefel] **= 2
    for place, count, n, p in groups(layout, GRASSMANN):  # for a subspace, the diagonal of its projector
        rows = features[:, place].reshape(-1, count, p, n)
        rows[:] = rows.sum(axis=2, keepdims=True)
    return features - features.mean(axis=0)
