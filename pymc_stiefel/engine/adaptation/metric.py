r"""Masses from draws and gradients.

Between two successive draws the state moves by ``dx`` and the gradient by ``dg``. For a Gaussian target ``|dg| / |dx|``
is a precision wherever the chain is. Unlike mean squares of gradients, secants do not require stationarity, and they
have a hundredth of the noise. For a pair of columns, ``dx`` is the rotation of one towards the other and ``dg`` the
change of its part of the gradient. For a column, both are the parts outside the joint span of the two matrices:

.. math:: 1 / w_{ij} = \sqrt{\sum dA_{ij}^2 / \sum dx_{ij}^2} + p, \quad
          1 / c_k = \sqrt{\sum |dB_k|^2 / \sum |dx_k|^2} + n.

``n`` and ``p`` represent the curvature of the manifold: where the density is flat, they make a column turn by about a
radian in a unit of time, over its n - p directions and p pairs together.

The Euclidean block has the matrix geometric mean of the covariance of draws and the inverse covariance of gradients,
which for a Gaussian target is exact from d + 1 draws on. (A covariance uses the secants between all pairs of draws.
Secants between successive draws contain little about slow directions.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.blocks import Layout, Metric, Point, matrix_at, overwrite
from pymc_stiefel.engine.drifts import SPLITTING
from pymc_stiefel.engine.jit.blas import add_product, cross, solve
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.memory import view
from pymc_stiefel.engine.jit.records import Matrix, Vector
from pymc_stiefel.engine.manifolds import MANIFOLDS

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

MAX_DENSE = 100
"""Largest number of Euclidean variables for which a full covariance matrix is learnt."""

FEWEST_MOVES = 2
"""Minimum number of draws that moved."""


class Moments(NamedTuple):
    """Sums over the draws of a window. Euclidean parts are Welford means and sums of squares about them."""

    number: Vector  # number of draws, and of draws that moved
    column_move: Vector  # |dx|^2
    column_change: Vector  # |dB|^2
    pair_move: Vector
    pair_change: Vector
    draw_mean: Vector
    draw_square: Matrix  # d x d if dense, else d x 1
    gradient_mean: Vector
    gradient_square: Matrix


def make_moments(layout: Layout) -> Moments:
    d, columns, pairs = layout.size - layout.stiefel, int(np.sum(layout.p)), int(np.sum(layout.p**2))
    shapes = (2, columns, columns, pairs, pairs, d, (d, d if d <= MAX_DENSE else 1), d, (d, d if d <= MAX_DENSE else 1))
    return Moments(*(np.zeros(shape) for shape in shapes))


# ---------------------------------------------------------------- compiled: sums of a window


@inner
def add_draw(layout, state, moments):
    """Add the Euclidean part of a draw and of its gradient."""
    moments.number[0] += 1.0
    first = layout.stiefel
    _welford(state.q[first:], moments.number[0], moments.draw_mean, moments.draw_square)
    _welford(state.gb[first:], moments.number[0], moments.gradient_mean, moments.gradient_square)


@inner
def _welford(x, count, mean, square):
    d, width = square.shape
    for i in range(d):
        mean[i] += (x[i] - mean[i]) / count
    if count == 1.0:
        return
    share = count / (count - 1.0)  # the deviation from the old mean is this much larger than that from the new one
    for i in range(d):
        deviation = share * (x[i] - mean[i])
        if width == d:
            for j in range(d):
                square[i, j] += deviation * (x[j] - mean[j])
        else:
            square[i, 0] += deviation * (x[i] - mean[i])


NEAR_PI = 0.3
"""On O(n) moves are long, and the skew part of a rotation by pi is 0. Therefore sin(t) is replaced by the function
``(2 + d) sin(t) / (1 + d + cos(t))``, which is close to t up to 2.7."""


@inner
def add_secant(layout, blas, before, after, moments, scratch):
    """Add the secant between two states with their split gradients."""
    moments.number[1] += 1.0
    for m in range(layout.n.size):
        x, y = matrix_at(layout, m, before.q), matrix_at(layout, m, after.q)
        p, n = x.shape
        overlap, system = view(scratch, 0, p, p), view(scratch, p * p, p, p)
        turn = view(scratch, 2 * p * p, p, p)
        cross(blas, x, y, overlap)  # X'Y
        ridge = 2.0 * NEAR_PI if n == p else 1e-9
        for i in range(p):
            for j in range(p):
                system[i, j] = overlap[i, j] + overlap[j, i]  # S'S - 2 I, with S = X + Y
                turn[i, j] = 0.5 * (overlap[i, j] - overlap[j, i])
            system[i, i] += 2.0 + ridge
        if n == p:
            solve(blas, system, turn)
            for i in range(p):
                for j in range(p):
                    turn[i, j] *= 4.0 + ridge
        skew = layout.skew[m]
        for i in range(p):
            for j in range(i):
                k, l = skew + i * p + j, skew + j * p + i
                move, change = turn[i, j] ** 2, (after.ga[k] - before.ga[k]) ** 2
                moments.pair_move[k] += move
                moments.pair_move[l] += move
                moments.pair_change[k] += change
                moments.pair_change[l] += change
        if n > p:
            _add_columns(layout, blas, m, before, after, overlap, system, moments, scratch[3 * p * p :])


@inner
def _add_columns(layout, blas, m, before, after, overlap, system, moments, scratch):
    """Add the secants of columns: differences outside the span of ``S = X + Y``, whose Gram matrix is ``system``."""
    x, y = matrix_at(layout, m, before.q), matrix_at(layout, m, after.q)
    p, n = x.shape
    total, moved, changed = view(scratch, 0, p, n), view(scratch, p * n, p, n), view(scratch, 2 * p * n, p, n)
    both = view(scratch, 3 * p * n, p, 2 * p)
    b, c = matrix_at(layout, m, before.gb), matrix_at(layout, m, after.gb)
    for i in range(p):
        for k in range(n):
            total[i, k], moved[i, k], changed[i, k] = x[i, k] + y[i, k], y[i, k] - x[i, k], c[i, k] - b[i, k]
    inside = overlap  # no longer needed
    cross(blas, total, changed, inside)
    for i in range(p):
        for j in range(p):
            both[i, p + j] = inside[i, j]
    cross(blas, total, moved, inside)
    for i in range(p):
        for j in range(p):
            both[i, j] = inside[i, j]
    solve(blas, system, both)
    for part in range(2):
        rest, sums = (moved, moments.column_move) if part == 0 else (changed, moments.column_change)
        for i in range(p):
            for j in range(p):
                inside[j, i] = both[i, part * p + j]  # transposed: matrices are stored by columns
        add_product(blas, -1.0, inside, total, rest)
        for j in range(p):
            square = 0.0
            for k in range(n):
                square += rest[j, k] ** 2
            sums[layout.column[m] + j] += square


# ---------------------------------------------------------------- masses from the sums


def merged(first: Moments, second: Moments) -> Moments:
    """Moments of two windows together."""
    one, two = float(first.number[0]), float(second.number[0])
    share = one / max(one + two, 1.0)

    def mean(x, y):
        return share * x + (1.0 - share) * y

    def square(x, y, x_mean, y_mean):
        gap = y_mean - x_mean
        between = np.outer(gap, gap) if x.shape[0] == x.shape[1] else gap[:, None] ** 2
        return x + y + share * two * between

    return Moments(
        first.number + second.number,
        first.column_move + second.column_move,
        first.column_change + second.column_change,
        first.pair_move + second.pair_move,
        first.pair_change + second.pair_change,
        mean(first.draw_mean, second.draw_mean),
        square(first.draw_square, second.draw_square, first.draw_mean, second.draw_mean),
        mean(first.gradient_mean, second.gradient_mean),
        square(first.gradient_square, second.gradient_square, first.gradient_mean, second.gradient_mean),
    )


def first_metric(layout: Layout, state: Point, kinds: list[str], pair: float) -> Metric:
    """Masses from the size of the gradient at the start."""
    column = []
    for n, p, start in zip(layout.n, layout.p, layout.offset, strict=True):
        norm = np.linalg.norm(state.gb[start : start + n * p].reshape(p, n), axis=1)
        column.append(norm / math.sqrt(max(n - p, 1)) + n)
    columns = np.concatenate(column) if column else np.zeros(0)
    pairs = 2 * np.abs(state.ga) + np.repeat(layout.p, layout.p**2)
    variance = 1.0 / np.clip(np.abs(state.gb[layout.stiefel :]), 1e-10, 1e10)
    covariance = np.diag(variance) if variance.size <= MAX_DENSE else None
    return _assemble(layout, columns, pairs, variance, covariance, kinds, pair)


def learnt_metric(layout: Layout, moments: Moments, old: Metric, kinds: list[str], pair: float) -> Metric:
    """Masses from the moments of a window. Masses of parts that did not move stay unchanged."""
    n, p = np.repeat(layout.n, layout.p), np.repeat(layout.p, layout.p**2)
    column = _secant_precision(moments.column_change, moments.column_move, n, old.c)
    pairs = _secant_precision(moments.pair_change, moments.pair_move, p, old.w)
    variance, covariance = old.variance, old.covariance if len(old.covariance) == len(old.variance) else None
    count, squares = float(moments.number[0]), moments.draw_square
    is_dense = squares.shape[0] == squares.shape[1]
    if count > 2.0 and np.all(np.diag(squares) if is_dense else squares):  # every variable has moved
        draws, gradients = squares / (count - 1), moments.gradient_square / (count - 1)
        if is_dense:
            covariance = _geometric_mean(draws, gradients, count)
            variance = np.diag(covariance).copy()
        else:
            variance = np.sqrt(_floored(draws[:, 0]) / _floored(gradients[:, 0]))
    return _assemble(layout, column, pairs, variance, covariance, kinds, pair)


def _secant_precision(change: np.ndarray, move: np.ndarray, curvature: np.ndarray, old: np.ndarray) -> np.ndarray:
    precision = np.sqrt(change / np.where(move > 0.0, move, 1.0)) + curvature
    return np.where(move > 0.0, precision, 1.0 / old)


def largest_change(layout: Layout, new: Metric, old: Metric) -> float:
    """Largest change of the logarithm of any mass."""
    off_diagonal = np.concatenate([~np.eye(p, dtype=bool).ravel() for p in layout.p] or [np.zeros(0, bool)])
    changes = [np.log(new.c / old.c), np.log(new.w / old.w)[off_diagonal], np.log(new.variance / old.variance)]
    return float(max(np.abs(change).max(initial=0.0) for change in changes))


def _floored(variance: np.ndarray) -> np.ndarray:
    return np.clip(variance, 1e-20, 1e20)


def _geometric_mean(draws: np.ndarray, gradients: np.ndarray, count: float) -> np.ndarray:
    """The matrix geometric mean of cov(draws) and inverse cov(gradients), both shrunk towards their diagonals."""
    d = draws.shape[0]
    if d == 0:
        return draws
    scale = np.sqrt(np.sqrt(_floored(np.diag(draws)) / _floored(np.diag(gradients))))
    keep = count / (count + 2.0)
    draws = _shrunk(draws / np.outer(scale, scale), keep)
    gradients = _shrunk(gradients * np.outer(scale, scale), keep)
    # With gradients = L L', the mean is inv(L') (L' draws L)^(1/2) inv(L).
    factor = np.linalg.cholesky(gradients)
    values, vectors = np.linalg.eigh(factor.T @ draws @ factor)
    root = (vectors * np.sqrt(np.maximum(values, 1e-12))) @ vectors.T
    half = scipy.linalg.solve_triangular(factor, root, lower=True, trans="T")
    mean = scipy.linalg.solve_triangular(factor, half.T, lower=True, trans="T")
    return (mean + mean.T) / 2 * np.outer(scale, scale)


def _shrunk(matrix: np.ndarray, keep: float) -> np.ndarray:
    return keep * matrix + (1.0 - keep) * np.diag(np.diag(matrix)) + 1e-10 * np.eye(len(matrix))


def _assemble(layout, column, pairs, variance, covariance, kinds, pair) -> Metric:
    """The metric with these precisions, with one common scale per matrix for drifts other than the splitting."""
    c, w = 1.0 / column, 1.0 / pairs
    for m, (kind, n, p) in enumerate(zip(kinds, layout.n, layout.p, strict=True)):
        if kind == SPLITTING:
            continue
        columns = slice(layout.column[m], layout.column[m] + p)
        block = slice(layout.skew[m], layout.skew[m] + p * p)
        off_diagonal = pairs[block][~np.eye(p, dtype=bool).ravel()]
        weights = (p * (n - p), MANIFOLDS[layout.manifold[m]].pairs(p))
        precision = weights[0] * column[columns].mean() + weights[1] * (off_diagonal.mean() if p > 1 else 0.0)
        c[columns] = max(sum(weights), 1) / precision if precision > 0 else 1.0 / n
        w[block] = pair * c[columns][0]
    if covariance is None:
        empty = np.zeros((0, 0))
        return Metric(c, w, variance, empty, empty.copy())
    return Metric(c, w, variance, covariance, np.linalg.cholesky(covariance))


# ---------------------------------------------------------------- the adapter


@dataclass
class Masses(Adapter):
    """Learns masses at the end of every window, from the last two windows or from ``chain.path``."""

    pair: float  # ratio of pair to column mass for drifts with one scale per matrix

    def initialize(self, sampler: Sampler) -> None:
        chain, layout = sampler.chain, sampler.layout
        if chain.path is not None:
            self._learn_path(sampler, chain.path)
        sampler.find_step_size(sampler.step_size)  # its moves also lead away from a stationary point
        first = first_metric(layout, chain.state, chain.kinds, self.pair)
        if chain.path is not None:
            first = first._replace(c=chain.metric.c.copy(), w=chain.metric.w.copy())
        overwrite(chain.metric, first)
        chain.path = None
        _clear(chain.moments)

    def _learn_path(self, sampler: Sampler, path: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Replace the secants of both windows by those of the path."""
        chain = sampler.chain
        _clear(chain.moments[:5], keep_first=True)
        _clear(chain.previous[:5], keep_first=True)
        sampler.learn_path(*path)
        overwrite(chain.metric, learnt_metric(sampler.layout, chain.moments, chain.metric, chain.kinds, self.pair))

    def learnt(self, sampler: Sampler) -> Metric | None:
        """Masses from the last window and the draws since; None if there are too few."""
        chain = sampler.chain
        both = merged(chain.previous, chain.moments)
        if both.number[1] < FEWEST_MOVES:
            return None
        return learnt_metric(sampler.layout, both, chain.metric, chain.kinds, self.pair)

    def update(self, sampler: Sampler) -> None:
        chain = sampler.chain
        if not chain.windows.ends_at(chain.draws):
            return
        if chain.path is not None:
            self._learn_path(sampler, chain.path)
            chain.path = None
        new = self.learnt(sampler)
        if new is not None:
            chain.mass_change = max(chain.mass_change, largest_change(sampler.layout, new, chain.metric))
            overwrite(chain.metric, new)
        overwrite(chain.previous, chain.moments)
        _clear(chain.moments)

    def wait(self, sampler: Sampler) -> int:
        return sampler.chain.windows.left(sampler.chain.draws)


def _clear(arrays, keep_first: bool = False) -> None:
    """Set the arrays to zero, except for the number of draws if ``keep_first``."""
    for array in arrays:
        array[1 if keep_first and array is arrays[0] else 0 :] = 0.0
