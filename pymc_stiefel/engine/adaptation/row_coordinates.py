"""Learns row coordinates, see :mod:`pymc_stiefel.engine.coordinates`, where the directions of R^n differ."""

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
"""Draws of a chain before which estimates mean nothing: they opened the gate where nothing was to be gained."""

ENOUGH = 2.0
"""Columns of draws there have to be for every direction of the complement."""

TO_JUDGE, SHORT = 1.0, 100
"""The same for judging coordinates that are missing when tuning ends: with fewer draws the logarithm of the ratio below
is noise (13 on an isotropic model); with as many it was at most 1.6 on those and at least 5.6 where coordinates were
missing. And the number of draws below which a chain that cannot be judged counts as too short."""

GATE = 4.0
"""Ratio of the largest to the smallest eigenvalue of R R' from which coordinates pay (isotropic models: up to 2.5)."""

ALIKE = 2.0
"""Eigenvalues within this factor of their median are taken for it, which keeps the rank of R - I low."""

MOST_BYTES = 100_000_000
"""Memory for draws and gradients to learn from."""


def estimate(X: np.ndarray, B: np.ndarray) -> tuple[Factor, float]:
    """``R`` from draws and complement parts of gradients, both (T, p, n), and the condition number of ``R R'``.

    On the complement Q of the mean span: the geometric mean of the covariance of draws and the inverse one of
    gradients, columns weighted by their precision, and the curvature n. On the span the identity.
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
    basis = np.linalg.qr(np.vstack([U for U, _ in known]).T)[0]  # outside of its span both are the identity

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
    """Number, factor and condition of each matrix for which so many draws are enough, from states and gradients."""
    for m, (n, p, start) in enumerate(zip(layout.n, layout.p, layout.offset, strict=True)):
        if n > p + 1 and count * p >= enough * (n - p):
            X, G = (part[:, start : start + n * p].reshape(-1, p, n) for part in (q, g))
            yield m, *estimate(X, G - (G @ X.swapaxes(1, 2)) @ X)


@dataclass
class Rows(Adapter):
    """Estimates the coordinates at the end of windows, from the draws of the last two, always in those of the model."""

    history: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    begun: int = 0  # draws at the end of the last window
    before: int = 0  # and of the one before

    def update(self, sampler: Sampler) -> None:
        chain, layout = sampler.chain, sampler.layout
        if not np.any(layout.n > layout.p + 1):
            return
        if chain.windows.start > self.before:  # all is learnt anew
            self.begun = self.before = chain.windows.start
        self._remember(sampler)
        if not chain.windows.ends_at(chain.draws):
            return
        if chain.draws - chain.windows.start >= EARLIEST:
            self._learn(sampler)
        self.before, self.begun = self.begun, chain.draws

    def _remember(self, sampler: Sampler) -> None:
        """States and ambient gradients in the coordinates of the model, which moved, and which changed a sign."""
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
        while excess > 0:  # row by row, so that what is learnt does not depend on the length of batches
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
        for m, factor, condition in estimates(layout, q, g, np.sum(moved)):  # signs of columns do not matter to them
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
        """Leave in ``mass_change`` the log condition number that the last draws show and no coordinates remove.

        Those in use are not judged: where a posterior is broad, other ones are as good. Infinite if tuning was short
        and had too few draws to tell.
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
