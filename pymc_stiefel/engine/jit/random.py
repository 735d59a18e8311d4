"""Random numbers for compiled code, from NumPy's own generator."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.random._constants import fi_double, ki_double, wi_double, ziggurat_nor_inv_r, ziggurat_nor_r

from pymc_stiefel.engine.jit.compiling import inner


def _next(result):
    """Intrinsic that calls ``result next(void *state)`` of a NumPy bit generator."""

    @intrinsic
    def call(typingctx, address, state):
        def codegen(context, builder, signature, args):
            void = ir.IntType(8).as_pointer()
            prototype = ir.FunctionType(context.get_value_type(result), [void])
            return builder.call(builder.inttoptr(args[0], prototype.as_pointer()), [builder.inttoptr(args[1], void)])

        return result(types.int64, types.int64), codegen

    return call


_next_double, _next_word = _next(types.float64), _next(types.uint64)


def random_source(rng: np.random.Generator) -> np.ndarray:
    """Addresses by which compiled code draws from ``rng`` itself: int64[3]. Keep ``rng`` alive."""
    interface = rng.bit_generator.ctypes
    functions: Any = (interface.next_double, interface.next_uint64)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    return np.array([*addresses, interface.state_address], dtype=np.int64)


@inner
def uniform(source):
    """A double in [0, 1)."""
    return _next_double(source[0], source[2])


@inner
def normal(source):
    """A standard normal number, by the ziggurat of NumPy's generators."""
    while True:
        word = _next_word(source[1], source[2])
        layer = word & np.uint64(0xFF)
        integer = (word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF)
        x = integer * wi_double[layer]
        if word & np.uint64(0x100):
            x = -x
        if integer < ki_double[layer]:
            return x
        if layer == 0:
            return _normal_tail(source, x < 0.0)
        height = fi_double[layer] + (fi_double[layer - np.uint64(1)] - fi_double[layer]) * uniform(source)
        if height < np.exp(-0.5 * x * x):
            return x


@inner
def _normal_tail(source, negative):
    """Beyond the lowest layer, by Marsaglia's method."""
    while True:
        beyond = -ziggurat_nor_inv_r * np.log1p(-uniform(source))
        y = -np.log1p(-uniform(source))
        if y + y > beyond * beyond:
            x = ziggurat_nor_r + beyond
            return -x if negative else x


@inner
def fill_normal(source, out):
    """Fill ``out`` with standard normals."""
    for i in range(out.size):
        out[i] = normal(source)
