r"""Find what a posterior does not identify, by moving points and comparing their log densities.

An *orbit* is a set of variables whose columns move together without changing the density: :math:`X \to XR` for an
orthonormal variable and for all that goes with it (scores, the other factor of a low-rank matrix, the mean of a
hierarchy), where ``R`` flips signs, exchanges columns or rotates them; scales are only exchanged. The matrices or
vectors of a batch (components of a mixture) are the columns of a matrix in the same sense. Draws are then aligned over
the whole orbit, and R-hat of the aligned draws can be trusted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.replace import graph_replace

from pymc_stiefel import geometry
from pymc_stiefel.analysis._alignment import _assign, _procrustes, nearest_signed_permutation
from pymc_stiefel.compile._cache import kept
from pymc_stiefel.compile._density import ModelDensity, manifold_block
from pymc_stiefel.distributions import StiefelBlock

__all__ = ["Orbit", "constrained_density", "find_orbits"]

Array = NDArray[np.float64]
Point = dict[str, Array]
LogDensity = Callable[[Point], float]
TOLERANCE = {"float64": 1e-7, "float32": 1e-4}  # of log densities that count as equal, relative to their size
MOST_COMPANIONS = 6  # all subsets of that many are tried


def constrained_density(model: pm.Model, density: ModelDensity) -> tuple[Callable[[Point], Array], LogDensity]:
    """Functions of the values that a trace has: the flat vector of the engine, and the log density."""
    function = kept(model, ("values",), lambda: _value_function(model))
    rvs = list(model.free_RVs)
    names = [model.rvs_to_values[rv].name for rv in rvs]

    def flat(point: Point) -> Array:
        with np.errstate(all="ignore"):
            values = dict(zip(names, function(*(point[rv.name] for rv in rvs)), strict=True))
        for name, shared in density.shared.items():
            shared.set_value(values[name])
        density.refresh()
        return density.pack(values)

    return flat, lambda point: density(flat(point))[0]


def _value_function(model: pm.Model) -> Callable[..., list[Array]]:
    """From the free variables to their values, but for transforms of orthonormal ones."""
    inputs = {rv: rv.type(rv.name) for rv in model.free_RVs}
    outputs = []
    for rv, symbol in inputs.items():
        transform = model.rvs_to_transforms.get(rv)
        euclidean = transform is not None and manifold_block(model, model.rvs_to_values[rv]) is None
        outputs.append(transform.forward(symbol, *rv.owner.inputs) if euclidean else symbol)
    outputs = graph_replace(outputs, inputs, strict=False)
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")  # called a few hundred times
    function: Callable[..., list[Array]] = pytensor.function(
        list(inputs.values()), outputs, mode=mode, on_unused_input="ignore", allow_input_downcast=True
    )
    return function


@dataclass
class Member:
    """A variable of an orbit, and the axis that its columns have; None if it has one column, all of it."""

    name: str
    axis: int | None
    signed: bool = True  # scales are exchanged only

    def moved(self, values: Array, R: Array) -> Array:
        """``values`` of shape (draws, ...) after their columns have moved by ``R`` (draws, batch, p, p)."""
        R = R if self.signed else np.abs(R)
        last = values[..., None] if self.axis is None else np.moveaxis(values, self.axis + 1, -1)
        shape = last.shape
        last = (last.reshape(*R.shape[:2], -1, R.shape[-1]) @ R).reshape(shape)
        return last[..., 0] if self.axis is None else np.moveaxis(last, -1, self.axis + 1)


@dataclass
class Orbit:
    """Variables that move together, and how. ``n_batch`` batch dimensions have an element of the group each."""

    members: list[Member]
    p: int
    n_batch: int
    kind: str  # "signs", "order", "signs and order", "rotation"
    free: NDArray[np.bool_] = field(repr=False)  # columns whose sign is free
    columns: str = "columns"  # what they are: "vectors" or "matrices" of a batch

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    def __str__(self) -> str:
        first, *others = self.names
        which = "" if self.free.all() else np.flatnonzero(self.free).tolist()
        what = {
            "signs": "column signs"
            if self.columns == "columns" and self.free.all()
            else f"the signs of its {self.columns} {which}",
            "order": f"the order of its {self.columns}",
            "signs and order": f"signs and order of its {self.columns}",
            "rotation": f"rotations of its {self.columns}",
        }[self.kind]
        what = "its sign" if self.p == 1 else what
        return f"{first} is identified up to {what}".rstrip() + (
            f" (together with {', '.join(others)})" if others else ""
        )

    def aligned(self, draws: dict[str, Array], orthonormal: set[str]) -> dict[str, Array]:
        """Values (draws, ...) of all members, with what is not identified resolved."""
        stack = []
        for member in self.members:
            if member.name in orthonormal:
                values = draws[member.name]
                last = values[..., None] if member.axis is None else np.moveaxis(values, member.axis + 1, -1)
                shape = values.shape[1 : 1 + self.n_batch]
                stack.append(last.reshape(len(values), int(np.prod(shape)), -1, self.p))
        X = np.concatenate(stack, axis=2)
        R = np.stack([_procrustes(X[:, b], self._nearest, None) for b in range(X.shape[1])], axis=1)
        return {member.name: member.moved(draws[member.name], R) for member in self.members}

    def _nearest(self, gains: Array) -> Array:
        if self.kind == "rotation":
            return geometry.polar(gains)
        if self.kind == "signs and order":
            return nearest_signed_permutation(gains)
        if self.kind == "order":
            R = np.zeros_like(gains)
            np.put_along_axis(R, _assign(gains)[:, None, :], 1.0, axis=1)
            return R
        flipped = self.free & (np.diagonal(gains, axis1=-2, axis2=-1) < 0)
        return np.where(flipped, -1.0, 1.0)[..., None] * np.eye(self.p)


def find_orbits(model: pm.Model, logp: LogDensity, points: list[Point]) -> list[Orbit]:
    """The orbits of all orthonormal variables; a variable that is identified is in none."""
    blocks = {rv.name: manifold_block(model, model.rvs_to_values[rv]) for rv in model.free_RVs}
    euclidean = [rv.name for rv in model.free_RVs if blocks[rv.name] is None and rv.dtype.startswith("float")]
    orbits: list[Orbit] = []
    for name, block in blocks.items():
        if block is None or any(name in orbit.names for orbit in orbits):
            continue
        for first, p, n_batch, columns in _attempts(name, block, np.ndim(points[0][name])):
            candidates = [
                Member(other, axis)
                for other, its in blocks.items()
                if other != name and (its is not None or other in euclidean)
                for axis in _axes(np.shape(points[0][other]), its, p, first.axis)
            ]
            orbit = _orbit(first, p, n_batch, candidates, logp, points)
            if orbit is not None:
                orbit.columns = columns
                orbits.append(orbit)
                break
    return orbits


def _attempts(name: str, block: StiefelBlock, ndim: int) -> Iterator[tuple[Member, int, int, str]]:
    """Possible columns of a variable: (member, p, batch dimensions with an element each, their name)."""
    batch = block.batch_shape
    own = Member(name, None if block.vector else ndim - 1)
    one_batch = (Member(name, 0), batch[0] if batch else 1, 0, "vectors" if block.vector else "matrices")
    several = len(batch) == 1 and batch[0] > 1
    if several and block.vector:
        yield one_batch
    for depth in dict.fromkeys((len(batch), 0)):  # every matrix of a batch by itself, or all of them in common
        yield own, 1 if block.vector else block.p, depth, "columns"
    if several and not block.vector:
        yield one_batch


def _axes(shape: tuple[int, ...], block: StiefelBlock | None, p: int, like: int | None) -> list[int | None]:
    """Axes of another variable that may go with the columns; None for the whole of it."""
    if like is None:
        return [None] if block is None or block.vector or block.p == 1 else []
    rows = None if block is None else len(shape) - (1 if block.vector else 2)
    return [axis for axis, length in enumerate(shape) if length == p and axis != rows]


def _orbit(
    first: Member, p: int, n_batch: int, candidates: list[Member], logp: LogDensity, points: list[Point]
) -> Orbit | None:
    """The largest group that leaves the density unchanged, with the fewest companions."""
    batch = np.shape(points[0][first.name])[:n_batch]
    candidates = [
        c for c in candidates if np.shape(points[0][c.name])[:n_batch] == batch and (c.axis or n_batch) >= n_batch
    ]
    count, rng, tolerance = int(np.prod(batch)), np.random.default_rng(0), TOLERANCE[pytensor.config.floatX]

    def invariant(members: list[Member], move: Array) -> bool:
        """Whether ``move`` (p, p) of the first matrix of the batch, or of all in common, keeps the density."""
        R = np.tile(np.eye(p), (1, count, 1, 1))
        R[0, 0] = move
        for point in points:
            moved = point | {m.name: m.moved(point[m.name][None], R)[0] for m in members}
            before, after = logp(point), logp(moved)
            if not abs(after - before) <= tolerance * max(1.0, abs(before)):
                return False
        return True

    def smallest(fixed: list[Member], pool: list[Member], move: Array) -> list[Member] | None:
        for size in range(len(pool) + 1):
            for chosen in itertools.combinations(pool, size):
                if invariant([*fixed, *chosen], move):
                    return [*fixed, *chosen]
        return None

    free, signed = np.zeros(p, bool), [first]
    pool = candidates[:MOST_COMPANIONS]
    for k in range(p):
        # companions of the first columns belong to all columns: no more subsets to try
        more = [c for c in pool if c not in signed] if k < 2 else []
        found = smallest(signed, more, np.diag(np.where(np.arange(p) == k, -1.0, 1.0)))
        if found is not None:
            free[k], signed = True, found
    if p > 1:
        rest = [Member(c.name, c.axis, signed=False) for c in pool if c not in signed]
        exchanged: list[Member] | None = signed
        for k in range(1, p):
            swap = np.eye(p)[[k if i == 0 else 0 if i == k else i for i in range(p)]]
            exchanged = exchanged and smallest(
                exchanged, [c for c in rest if c not in exchanged] if k < 2 else [], swap
            )
        if exchanged is not None:
            turn = geometry.polar(rng.normal(size=(p, p)))
            turn[:, 0] *= np.sign(np.linalg.det(turn))  # so that rotations stay rotations
            if free.all() and exchanged == signed and invariant(signed, turn):
                return Orbit(signed, p, n_batch, "rotation", free)
            return Orbit(exchanged, p, n_batch, "signs and order" if free.all() else "order", free)
    return Orbit(signed, p, n_batch, "signs", free) if free.any() else None
