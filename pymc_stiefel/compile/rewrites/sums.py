"""Sums over all numbers of an array in a compiled density, in explicit vectors.

Strict floating-point rules fix the order of a sum, so a loop that contains a sum is not vectorised. PyTensor joins
sums to the loops before them, which are then not vectorised either. Here a sum has eight interleaved parts, in the
same order in every process, and the loop before it stays separate.
"""

from __future__ import annotations

import numpy as np
from numba import types
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.math import Sum
from pytensor.tensor.type import scalar

from pymc_stiefel.engine.jit.caching import source_key
from pymc_stiefel.engine.jit.compiling import Routine
from pymc_stiefel.engine.jit.memory import array_at
from pymc_stiefel.engine.jit.vectors import total

NAME = "pymc_stiefel_total"
_VERSION = int(source_key(__file__)[:8], 16)
"""Version of the wrapper below, which PyTensor caches on disk; the routine itself is called by name and may change."""

FEW = 64
"""Up to this many numbers, summing in the original loop is as fast."""


class Total(Op):
    """``x.sum()`` in double precision. It stands in for ``Sum`` in finished graphs: no gradient."""

    __props__ = ()

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [scalar(dtype="float64")])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.asarray(inputs[0].sum())


@node_rewriter([Sum])
def _replace_sum(fgraph, node):
    (x,), axes = node.inputs, node.op.axis
    if x.dtype != "float64" or node.outputs[0].dtype != "float64" or x.ndim == 0:
        return None
    if axes is not None and len(axes) < x.ndim:
        return None
    if None not in x.type.shape and np.prod(x.type.shape, dtype=int) < FEW:
        return None
    return [Total()(x)]


optdb.register(NAME, in2out(_replace_sum), position=99)  # before sums are joined to loops, and only if asked for


def _total(address, size):
    return total(array_at(address, (size,), np.float64))


_routine = Routine(NAME, _total, types.float64(types.int64, types.int64))


@register_funcify_default_op_cache_key(Total)
def _funcify_total(op, node=None, **kwargs):
    routine = _routine.load()

    @numba_basic.numba_njit
    def sum_up(x):
        contiguous = x if x.flags.contiguous else x.copy()
        return np.asarray(routine(contiguous.ctypes.data, contiguous.size))

    return sum_up, _VERSION
