"""Limited-memory BFGS on a product of Stiefel manifolds and a Euclidean space, in plain NumPy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pymc_stiefel import geometry
from pymc_stiefel.engine.blocks import Layout, groups

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

MEMORY = 12
"""Pairs of steps and gradient changes that are kept."""


@dataclass(frozen=True)
class Manifold:
    """Projection and retraction for flat vectors in the layout of the engine (matrices stored by columns)."""

    layout: Layout

    def _matrices(self, flat: Vector):
        """Views of shape (count, p, n) on neighbouring matrices of equal shape."""
        for place, count, n, p in groups(self.layout):
            yield flat[place].reshape(count, p, n)

    def project(self, q: Vector, vector: Vector) -> Vector:
        """``G - X sym(X'G)`` for every matrix."""
        out = vector.copy()
        for x, g in zip(self._matrices(q), self._matrices(out), strict=True):
            gram = x @ g.swapaxes(1, 2)
            g -= (gram + gram.swapaxes(1, 2)) / 2 @ x
        return out

    def retract(self, q: Vector, step: Vector) -> Vector:
        """The polar factor of ``X + V`` for every matrix: a retraction of second order."""
        out = q + step
        for x in self._matrices(out):
            x[:] = geometry.polar(x)
        return out


@dataclass
class Result:
    q: Vector
    value: float
    gradient_norm: float
    evaluations: int
    iterations: int
    converged: bool
    history: list[float] = field(default_factory=list)


class _LineSearch:
    """Steps along a descent direction until the approximate Wolfe conditions hold.

    Near an optimum, differences of the objective are dominated by rounding errors, so a decrease is judged by slopes
    alone (Hager & Zhang 2005, doi:10.1137/030601880).
    """

    def __init__(self, objective: Objective, manifold: Manifold):
        self.objective, self.manifold, self.evaluations = objective, manifold, 0

    def evaluate(self, q: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        value, gradient = self.objective(q)
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return np.inf, np.zeros_like(q)
        return value, self.manifold.project(q, gradient)

    def __call__(self, q: Vector, value: float, direction: Vector, slope: float, step: float):
        low, high, best = 0.0, np.inf, None
        slack = 1e-12 * abs(value)
        for _ in range(50):
            moved = self.manifold.retract(q, step * direction)
            new_value, gradient = self.evaluate(moved)
            new_slope = float(gradient @ direction) if np.isfinite(new_value) else np.inf
            decreased = new_value <= value + 1e-4 * step * slope
            by_slope = new_value <= value + slack and new_slope <= -0.8 * slope
            if not (decreased or by_slope):
                high = step
            else:
                best = moved, new_value, gradient, step
                if new_slope >= 0.9 * slope:
                    break
                low = step
            step = (low + high) / 2 if np.isfinite(high) else 3.0 * step
        return best


def minimize(
    objective: Objective,
    q: Vector,
    layout: Layout,
    *,
    gtol: float,
    max_evaluations: int = 5000,
    max_iterations: float = np.inf,
    report: Callable[[int, float, float], None] | None = None,
) -> Result:
    """Minimise ``objective`` (value and ambient gradient) from ``q`` until the Riemannian gradient is below ``gtol``.

    Pairs of steps and gradient changes are transported by projection on the new tangent space.
    """
    manifold = Manifold(layout)
    search = _LineSearch(objective, manifold)
    value, gradient = search.evaluate(q)
    pairs: deque[tuple[Vector, Vector]] = deque(maxlen=MEMORY)
    history = [value]
    iteration = 0
    while (norm := float(np.linalg.norm(gradient))) > gtol:
        if iteration >= max_iterations or search.evaluations >= max_evaluations:
            break
        direction = -_two_loops(pairs, gradient)
        slope = float(direction @ gradient)
        if not slope < 0:
            pairs.clear()
            direction, slope = -gradient, -norm * norm
        found = search(q, value, direction, slope, 1.0 if pairs else min(1.0, 0.1 / norm))
        if found is None:
            if not pairs:  # no decrease even along the gradient: rounding errors prevent further progress
                break
            pairs.clear()
            continue
        moved, new_value, new_gradient, step = found
        pairs = deque(((manifold.project(moved, s), manifold.project(moved, y)) for s, y in pairs), maxlen=MEMORY)
        s = manifold.project(moved, step * direction)
        y = new_gradient - manifold.project(moved, gradient)
        if s @ y > 1e-14 * np.linalg.norm(s) * np.linalg.norm(y):
            pairs.append((s, y))
        q, value, gradient = moved, new_value, new_gradient
        history.append(value)
        iteration += 1
        if report is not None:
            report(iteration, value, float(np.linalg.norm(gradient)))
    return Result(q, value, norm, search.evaluations, iteration, norm <= gtol, history)


def _two_loops(pairs, gradient: Vector) -> Vector:
    """The two-loop recursion: the approximate inverse Hessian times ``gradient``."""
    out = gradient.copy()
    weights = []
    for s, y in reversed(pairs):
        weight = (s @ out) / (s @ y)
        out -= weight * y
        weights.append(weight)
    if pairs:
        s, y = pairs[-1]
        out *= (s @ y) / (y @ y)
    for (s, y), weight in zip(pairs, reversed(weights), strict=True):
        out += (weight - (y @ out) / (s @ y)) * s
    return out
