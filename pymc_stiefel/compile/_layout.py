"""Positions of the variables of a model in the flat vector of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel.compile._ordered_log import from_widths, to_widths
from pymc_stiefel.distributions import StiefelBlock, stiefel_block
from pymc_stiefel.distributions.transforms import ManifoldExpansion
from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED, Layout, flip_kinds, make_layout
from pymc_stiefel.engine.manifolds import GRASSMANN, STIEFEL


def manifold_block(model: pm.Model, value: Variable) -> StiefelBlock | None:
    """The Stiefel block of a value variable, or None if it is to be treated as Euclidean.

    A variable with a chart as its transform (Householder) is Euclidean.
    """
    rv = model.values_to_rvs[value]
    transform = model.rvs_to_transforms.get(rv)
    if transform is None or isinstance(transform, ManifoldExpansion):
        return stiefel_block(rv)
    return None


@dataclass(frozen=True)
class Slot:
    """Position of a value variable in the flat vector of the engine."""

    value: TensorVariable
    shape: tuple[int, ...]
    block: StiefelBlock | None
    start: int
    widths: bool = False  # in the coordinates of _ordered_log

    @cached_property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @cached_property
    def stored(self) -> tuple[int, ...] | None:
        """Shape of the matrices as they are stored, by columns; None for other variables."""
        if self.block is None or self.block.vector:
            return None
        return (*self.shape[:-2], self.shape[-1], self.shape[-2])

    def unpack(self, flat):
        """The variable as an expression of the flat vector."""
        # cast first: the copy of a transposed matrix has no layout that numba knows, and products with it are slow
        part = flat[self.start : self.start + self.size].astype(self.value.dtype)
        return part.reshape(self.shape) if self.stored is None else part.reshape(self.stored).swapaxes(-1, -2)

    def pack(self, array):
        """A gradient, as an expression, in the layout of the flat vector."""
        return (array if self.stored is None else array.swapaxes(-1, -2)).ravel().astype("float64")

    def write(self, value: np.ndarray, flat: np.ndarray) -> None:
        """Put a value into its place in a flat vector."""
        value = np.reshape(value, self.shape)
        self.view(flat)[...] = to_widths(value) if self.widths else value

    def read(self, flat: np.ndarray) -> np.ndarray:
        """The values in each of several flat vectors, copied."""
        values = self.view(flat)
        return np.array(from_widths(values) if self.widths else values, self.value.dtype, order="C")

    def view(self, flat: np.ndarray) -> np.ndarray:
        """The place of the variable, in the variable's own shape, in one flat vector or in each of several."""
        part, several = flat[..., self.start : self.start + self.size], flat.shape[:-1]
        if self.stored is None:
            return part.reshape((*several, *self.shape))
        return part.reshape((*several, *self.stored)).swapaxes(-1, -2)


def make_slots(values, blocks, gaps, initial_point) -> list[Slot]:
    """Orthonormal variables first, then the Euclidean ones."""
    slots, start = [], 0
    for value in sorted(values, key=lambda value: blocks[value] is None):
        shape = np.shape(initial_point[value.name])
        slots.append(Slot(value, shape, blocks[value], start, value in gaps))
        start += slots[-1].size
    return slots


def layout_of(slots: list[Slot], reflect: bool | None) -> Layout:
    shapes: list[tuple[int, int]] = []
    flips: list = []
    manifolds: list[int] = []
    for slot in slots:
        if slot.block is not None:
            block = slot.block
            count = int(np.prod(block.batch_shape, dtype=int))
            wanted = block.n == block.p if reflect is None else reflect
            kept = NEVER if block.special or block.subspace or reflect is False else UNDECIDED
            policy = FLIPPED if wanted and not (block.special or block.subspace) else kept
            flips += flip_kinds(len(shapes), tuple(block.batch_shape), policy)
            shapes += [(block.n, block.p)] * count
            manifolds += [GRASSMANN if block.subspace else STIEFEL] * count
    euclidean = sum(slot.size for slot in slots if slot.block is None)
    return make_layout(shapes, euclidean, flips, manifolds)
