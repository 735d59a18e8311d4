"""Learns row coordinates, see :mod:`pymc_stiefel.engine.coordinates`, if the directions of R^n differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.adaptation.metric import _geometric_mean
from pymc_stiefel.engine.blocks import Layout, groups
from pymc_stiefel.engine.coordinates import Factor, RowCoordinates

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

EARLIEST = 30
"""Minimum number of draws. Earlier estimates are noise: they exceeded ``GATE`` where coordinates gain nothing."""

ENOUGH = 2.0
"""Minimum number of columns of draws per direction of the complement."""

TO_JUDGE, SHORT = 1.0, 100
"""``TO_JUDGE`` is the same minimum for judging, at the end of tuning, whether coordinates are missing. With fewer draws
the logarithm of the ratio below is noise (13 on an isotropic model). With this many it was at most 1.6 on isotropic
models and at least 5.6 where coordinates were missing. A chain that cannot be judged is too short if it has fewer than
``SHORT`` draws."""

GATE = 4.0
"""Coordinates are used if the largest eigenvalue of R R' exceeds the smallest by this factor (isotropic: up to 2.5)."""

ALIKE = 2.0
"""Eigenvalues within this factor of their median are set to it, which keeps the rank of R - I low."""

MOST_BYTES = 100_000_000
"""Maximum memory for the draws and gradients of a chain."""


def estimate(X: np.ndarray, B: np.ndarray) -> tuple[Factor, float]:
    """``R`` from draws and complement parts of gradients, both (T, p, n), and the condition number of ``R R'``.

    On the complement Q of the mean span, ``R R'`` is the geometric mean of the covariance of draws and the inverse
    covariance of gradients, with columns weighted by their precision, plus the curvature n in the inverse. On the span
    it is the identity.
    """
    T, p, n = X.shape
    c = 1.0 / ((B**2).sum(-1).mean(0) / (n - p) + n)
    flat = X.reshape(T * p, n)
    Q, span = np.split(np.linalg.eigh(flat.T @ flat)[1], [n - p], axis=1)
    weight = np.tile(np.sqrt(c), T)[:, None]
    draws, gradients = flat / weight @ Q, B.reshape(T * p, n) * weight @ Q
    count = T * p
    mean = _geometric_mean(draws.T @ draws / count, gradients.T @ gradients / count, count)
    values, vectors = np.linalg.eigh(mean)
    values = np.concatenate([1.0 / (1.0 / np.maximum(values, 1e-12) + n * c.mean()), np.ones(p)])
    values /= np.median(values)
    values[np.abs(np.log(values)) < np.log(ALIKE)] = 1.0
    other = values != 1.0
    U = np.hstack([Q @ vectors, span]).T[other]
    return (np.ascontiguousarray(U), np.sqrt(values[other]) - 1.0), float(values.max() / values.min())


def apart(new: Factor | None, old: Factor | None) -> float:
    """Condition number of ``R R'`` of one factor in the coordinates of another; None stands for the identity."""
    known = [factor for factor in (new, old) if factor is not None and len(factor[1])]
    if not known:
        return 1.0
    basis = np.linalg.qr(np.vstack([U for U, _ in known]).T)[0]  # outside its span both are the identity

    def root(factor):
        if factor is None:
            return np.eye(basis.shape[1])
        inside = factor[0] @ basis
        return np.eye(basis.shape[1]) + (inside.T * factor[1]) @ inside

    values = np.linalg.svd(np.linalg.solve(root(old), root(new)), compute_uv=False)
    return float((np.append(values, 1.0).max() / np.append(values, 1.0).min()) ** 2)


def estimates(
    layout: Layout, q: np.ndarray, g: np.ndarray, count: int, enough: float = ENOUGH
) -> Iterator[tuple[int, Factor, float]]:
    """Index, factor and condition number of each matrix with enough draws, from states and gradients."""
    for m, (n, p, start) in enumerate(zip(layout.n, layout.p, layout.offset, strict=True)):
        if n > p + 1 and count * p >= enough * (n - p):
            X, G = (part[:, start : start + n * p].reshape(-1, p, n) for part in (q, g))
            yield m, *estimate(X, G - (G @ X.swapaxes(1, 2)) @ X)


@dataclass
class Rows(Adapter):
    """Estimates row coordinates at the end of each window, from draws of the last two, in the model's coordinates."""

    history: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    begun: int = 0  # draws at the end of the last window
    before: int = 0  # draws at the end of the window before

    def update(self, sampler: Sampler) -> None:
        chain, layout = sampler.chain, sampler.layout
        if not np.any(layout.n > layout.p + 1):
            return
        if chain.windows.start > self.before:  # adaptation has started again
            self.begun = self.before = chain.windows.start
        self._remember(sampler)
        if not chain.windows.ends_at(chain.draws):
            return
        if chain.draws - chain.windows.start >= EARLIEST:
            self._learn(sampler)
        self.before, self.begun = self.begun, chain.draws

    def _remember(self, sampler: Sampler) -> None:
        """Store states and ambient gradients in coordinates of the model, and which draws moved or flipped a sign."""
        layout, statistics = sampler.layout, sampler.statistics
        q, gradient = sampler.states.copy(), sampler.gradients[:, : layout.size].copy()
        skew = layout.size
        for place, count, n, p in groups(layout):
            A = sampler.gradients[:, skew : skew + count * p * p].reshape(-1, count, p, p)
            gradient[:, place] -= (A @ q[:, place].reshape(-1, count, p, n)).reshape(len(q), -1)
            skew += count * p * p
        moved, reflected = statistics["index_in_trajectory"] != 0, statistics["reflected"].copy()
        self.history.append((*sampler.chain.coordinates.gradients(q, gradient, to_x=True), moved, reflected))
        most = max(sampler.chain.draws - self.before, 1)
        most = min(most, int(MOST_BYTES / (16 * layout.size)) + 1)
        excess = sum(len(part[0]) for part in self.history) - most
        while excess > 0:  # row by row, so that estimates do not depend on the length of batches
            first = self.history.pop(0)
            if len(first[0]) > excess:
                self.history.insert(0, tuple(part[excess:] for part in first))
            excess -= len(first[0])

    def _history(self) -> list[np.ndarray]:
        return [np.concatenate(part) for part in zip(*self.history, strict=True)]

    def _learn(self, sampler: Sampler) -> None:
        chain, layout = sampler.chain, sampler.layout
        q, g, moved, reflected = self._history()
        changed = False
        factors = dict(chain.coordinates.factors)
        for m, factor, condition in estimates(layout, q, g, np.sum(moved)):  # they do not depend on signs
            better = factor if condition > GATE else None
            if apart(better, factors.get(m)) > GATE:
                factors.pop(m, None)
                factors |= {} if better is None else {m: better}
                changed = True
        if changed:
            sampler.set_coordinates(RowCoordinates(layout, dict(sorted(factors.items()))))
            chain.path = *chain.coordinates.gradients(q, g, to_x=False), (moved & ~reflected)[1:]
            chain.mass_change = np.inf

    def finalize(self, sampler: Sampler) -> None:
        """Set ``mass_change`` to the largest log condition number of matrices without coordinates, from the last draws.

        Coordinates in use are not judged, because on a broad posterior others can be as good. The value is infinite if
        tuning was short and had too few draws to tell.
        """
        chain, layout = sampler.chain, sampler.layout
        if self.history:
            q, g, *_ = self._history()
            found = {m: condition for m, _, condition in estimates(layout, q, g, len(q), TO_JUDGE)}
            missing = [condition for m, condition in found.items() if m not in chain.coordinates.factors]
            unknown = {*np.flatnonzero(layout.n > layout.p + 1).tolist()} - {*found, *chain.coordinates.factors}
            if unknown and chain.draws - chain.windows.start < SHORT:
                missing.append(np.inf)
            chain.mass_change = float(np.log(max(missing, default=1.0)))
        self.history.clear()
