"""What tuning learns: the step size by dual averaging, the masses from draws and gradients.

Windows grow geometrically and do not depend on the length of the tuning phase, which PyMC 5 does not tell. At the
end of a window the masses are estimated from the last two windows. Each estimate uses gradients as well as draws:
for a Gaussian target the geometric mean of the covariance of draws and the inverse covariance of gradients is exact
from d + 1 draws on, so that short windows suffice.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_stiefel.engine.blocks import Layout, Metric, Point
from pymc_stiefel.engine.compiling import inner
from pymc_stiefel.engine.drifts import SPLITTING

WINDOWS = (10, 20, 35, 55, 80, 130, 190, 270, 380, 650, 900, 1300, 1900, 2800, 4200, 6300, 9500)
"""Draws after which the masses are estimated anew. None falls shortly before a customary end of tuning."""

MAX_DENSE = 100

MAX_STEP_SIZE = 1.4
"""In the metrics below a unit of time turns a uniform matrix by about a radian. On a compact manifold a flat density
accepts steps of any size; with larger ones than this, a few on a circle, a U-turn goes unseen between two of them."""


TARGET, LOG_LARGEST, LOG_STEP, LOG_BAR, MU, ERROR, COUNT = range(7)
"""Places in the vector of a dual averaging: what it is given, and then what it knows."""


class DualAveraging:
    """Nesterov's dual averaging of the log step size, as in Hoffman & Gelman (2014).

    It lives in the vector ``values``, which compiled code brings up to date draw by draw, see ``adapt_step_size``.
    """

    def __init__(self, target: float, largest: float = math.inf) -> None:
        self.values = np.array([target, math.log(largest), 0.0, 0.0, 0.0, 0.0, 1.0])

    def restart(self, eps: float, boldness: float) -> None:
        """Begin again at ``eps``, drawn towards ``boldness`` times that."""
        log_eps = min(math.log(eps), self.values[LOG_LARGEST])
        self.values[LOG_STEP:] = log_eps, log_eps, log_eps + math.log(boldness), 0.0, 1.0

    @property
    def step_size(self) -> float:
        """To be tried next."""
        return math.exp(self.values[LOG_STEP])

    @property
    def averaged(self) -> float:
        """The step size settled on so far."""
        return math.exp(self.values[LOG_BAR])

    @averaged.setter
    def averaged(self, eps: float) -> None:
        self.values[LOG_BAR] = math.log(eps)


FOUND, GAIN = 100, 1.5
"""Updates after which the average is near enough to be used itself, and to be improved by steps of ``GAIN / count``.

The steps tried before fluctuate by a third, and those that are short make long trajectories. With the reciprocal slope
of the acceptance in the log step size as gain (Robbins & Monro) the average loses nothing.
"""


@inner
def adapt_step_size(averaging, accept):
    """Learn from the acceptance of the last trajectory; ``averaging`` is the vector of a ``DualAveraging``."""
    count, lack = averaging[COUNT], averaging[TARGET] - accept
    averaging[COUNT] = count + 1.0
    if count < FOUND:
        weight, forget = 1.0 / (count + 10.0), count**-0.75
        averaging[ERROR] += weight * (lack - averaging[ERROR])
        averaging[LOG_STEP] = min(averaging[MU] - averaging[ERROR] * np.sqrt(count) / 0.05, averaging[LOG_LARGEST])
        averaging[LOG_BAR] += forget * (averaging[LOG_STEP] - averaging[LOG_BAR])
    else:
        averaging[LOG_BAR] = min(averaging[LOG_BAR] - GAIN * lack / count, averaging[LOG_LARGEST])
        averaging[LOG_STEP] = averaging[LOG_BAR]


class Moments(NamedTuple):
    """Sums over the draws of a window. Euclidean parts are Welford means and sums of squares about them."""

    number: np.ndarray  # of draws
    column: np.ndarray  # |B_g e_k|^2
    pair: np.ndarray  # A_g^2
    draw_mean: np.ndarray
    draw_square: np.ndarray  # d x d if dense, else d x 1
    gradient_mean: np.ndarray
    gradient_square: np.ndarray

    @property
    def has_moved(self) -> bool:
        """Whether every Euclidean coordinate has taken more than one value."""
        square = self.draw_square
        return bool(np.all(np.diag(square) if square.shape[0] == square.shape[1] else square))


def make_moments(layout: Layout) -> Moments:
    d = layout.size - layout.stiefel
    width = d if d <= MAX_DENSE else 1
    return Moments(
        number=np.zeros(1),
        column=np.zeros(int(np.sum(layout.p))),
        pair=np.zeros(int(np.sum(layout.p**2))),
        draw_mean=np.zeros(d),
        draw_square=np.zeros((d, width)),
        gradient_mean=np.zeros(d),
        gradient_square=np.zeros((d, width)),
    )


@inner
def accumulate(layout, state, moments):
    """Add the present draw and its gradient to the sums."""
    moments.number[0] += 1.0
    count = moments.number[0]
    for m in range(layout.n.size):
        n, p, start, skew, column = layout.n[m], layout.p[m], layout.offset[m], layout.skew[m], layout.column[m]
        for j in range(p):
            total = 0.0
            for k in range(start + j * n, start + (j + 1) * n):
                total += state.gb[k] ** 2
            moments.column[column + j] += total
        for k in range(skew, skew + p * p):
            moments.pair[k] += state.ga[k] ** 2
    first = layout.stiefel
    _welford(state.q[first:], count, moments.draw_mean, moments.draw_square)
    _welford(state.gb[first:], count, moments.gradient_mean, moments.gradient_square)


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


def merged(first: Moments, second: Moments) -> Moments:
    """Moments of two windows together."""
    one, two = float(first.number[0]), float(second.number[0])
    if one == 0.0:
        return second
    of_first, of_second = one / (one + two), two / (one + two)

    def mean(x, y):
        return of_first * x + of_second * y

    def square(x, y, x_mean, y_mean):
        gap = y_mean - x_mean
        between = np.outer(gap, gap) if x.shape[0] == x.shape[1] else gap[:, None] ** 2
        return x + y + one * of_second * between

    return Moments(
        first.number + second.number,
        first.column + second.column,
        first.pair + second.pair,
        mean(first.draw_mean, second.draw_mean),
        square(first.draw_square, second.draw_square, first.draw_mean, second.draw_mean),
        mean(first.gradient_mean, second.gradient_mean),
        square(first.gradient_square, second.gradient_square, first.gradient_mean, second.gradient_mean),
    )


def window_of(draw: int) -> int:
    """Number of the window that the draw ``draw`` (from 0) belongs to."""
    return bisect_left(WINDOWS, draw + 1)


def window_left(draw: int) -> int:
    """Draws from ``draw`` to the end of its window."""
    window = window_of(draw)
    return (WINDOWS[window] if window < len(WINDOWS) else sys.maxsize) - draw


# ---------------------------------------------------------------- masses


Precisions = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Of columns, and of pairs: what the density adds to them, and what curvature does."""


def precisions_of(layout: Layout, moments: Moments) -> Precisions:
    """In the mean over a window."""
    count, n, p = float(moments.number[0]), layout.n, layout.p
    columns = moments.column / (count * np.repeat(np.maximum(n - p, 1), p))
    return (columns, np.repeat(n, p)), (moments.pair * (2.0 / count), np.repeat(p, p * p))


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


def learnt_metric(layout: Layout, moments: Moments, precisions: Precisions, kinds: list[str], pair: float) -> Metric:
    """Masses from the moments of a window, and the precisions they show.

    Stiefel parts: ``1 / c_k = E|B_g e_k|^2 / (n - p) + n`` and ``1 / w_ij = 2 E[A_g,ij^2] + p``. The mean square of a
    gradient is the precision of the target in that direction. ``n`` and ``p`` stand for the curvature of the manifold:
    with them the n - p directions of a column, and its p pairs, together turn it by about a radian in a unit of time
    where the density is flat.
    """
    count = float(moments.number[0])
    column, pairs = (density + curvature for density, curvature in precisions)
    draws, gradients = moments.draw_square / (count - 1), moments.gradient_square / (count - 1)
    if draws.shape[0] == draws.shape[1]:
        covariance = _geometric_mean(draws, gradients, count)
        return _assemble(layout, column, pairs, np.diag(covariance).copy(), covariance, kinds, pair)
    variance = np.sqrt(_floored(draws[:, 0]) / _floored(gradients[:, 0]))
    return _assemble(layout, column, pairs, variance, None, kinds, pair)


def nearly_flat(layout: Layout, precisions: Precisions) -> np.ndarray:
    """For each matrix, whether the density adds less to the precision of any direction than curvature does."""
    columns, pairs = (density < curvature for density, curvature in precisions)
    ends = zip(layout.column, layout.skew, layout.p, strict=True)
    flat = [columns[column : column + p].all() and pairs[skew : skew + p * p].all() for column, skew, p in ends]
    return np.array(flat, dtype=bool)


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
    """The metric with these precisions; one common scale per matrix for the drifts that take no more."""
    c, w = 1.0 / column, 1.0 / pairs
    for m, (kind, n, p) in enumerate(zip(kinds, layout.n, layout.p, strict=True)):
        if kind == SPLITTING:
            continue
        columns = slice(layout.column[m], layout.column[m] + p)
        block = slice(layout.skew[m], layout.skew[m] + p * p)
        off_diagonal = pairs[block][~np.eye(p, dtype=bool).ravel()]
        weights = (p * (n - p), p * (p - 1) // 2)
        precision = weights[0] * column[columns].mean() + weights[1] * (off_diagonal.mean() if p > 1 else 0.0)
        c[columns] = max(sum(weights), 1) / precision if precision > 0 else 1.0 / n
        w[block] = pair * c[columns][0]
    if covariance is None:
        empty = np.zeros((0, 0))
        return Metric(c, w, variance, empty, empty.copy())
    return Metric(c, w, variance, covariance, np.linalg.cholesky(covariance))
