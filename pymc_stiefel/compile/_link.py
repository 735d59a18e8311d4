"""The C function through which the engine calls a density, and how its errors are raised.

No exception can pass through the compiled sampler. An error in Python code (an Op that raises, Ctrl-C inside one) is
taken from the interpreter and stored in the first numbers of ``extra``; evaluations after it return NaN at once, so
that the sampler soon returns, and :func:`raise_error` raises it there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytensor
from numba import types

from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE, HEAD, keep_error, native_call

STRICT = {"numba__fastmath": False}
"""With PyTensor's relaxed floating-point rules, code fresh from the compiler rounds differently from the same code read
from the cache, and a seed would give other draws in the next run, or in a spawned process."""

Kind = tuple[np.dtype, int]
_call = ctypes.PYFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyErr_Restore", ctypes.pythonapi)
)


def link_numba(function: Any, size: int, kinds: list[Kind]) -> Any:
    """The numba function of a vector and of arrays of these dtypes and dimensions, as a C function."""
    inputs = [types.Array(numba.from_dtype(dtype), ndim, "C") for dtype, ndim in kinds]
    evaluate = native_call(function, size, inputs)

    def density(q, gradient, extra):
        if extra[0] == 0:
            succeeded, (value, packed) = evaluate(q, extra)
            if succeeded:
                for k in range(size):  # an assignment of slices would compile the text of its error: 2 seconds
                    gradient[k] = packed[k]
                return value.item()
            keep_error(extra)
        for k in range(size):  # within a trajectory only the gradient is checked
            gradient[k] = np.nan
        return np.nan

    with pytensor.config.change_flags(**STRICT):
        result = numba.cfunc(DENSITY_SIGNATURE)(density)
    result.calls = function  # keep it alive: it is called by its address
    return result


def calls_python(function: Any) -> bool:
    """Whether a function of PyTensor has an Op that numba does not know, so that its Python code is run."""
    from pytensor.link.numba.dispatch import numba_funcify  # imported late, as in _density

    unknown = numba_funcify.dispatch(object)
    return any(numba_funcify.dispatch(type(op)) is unknown for op in _ops(function.maker.fgraph))


def _ops(graph: Any) -> Iterator[Any]:
    for node in graph.apply_nodes:
        yield node.op
        if hasattr(node.op, "core_op"):
            yield node.op.core_op
        if hasattr(node.op, "fgraph"):
            yield from _ops(node.op.fgraph)


def link_python(function: Callable[[np.ndarray], tuple[Any, np.ndarray]], size: int) -> Any:
    """A Python function as a C function: the slow path."""

    def call(q):
        value, packed = function(q.copy())
        return float(value), np.ascontiguousarray(packed, dtype=np.float64)

    @numba.njit
    def evaluate(q):
        with numba.objmode(value="float64", packed="float64[::1]"):
            value, packed = call(q)
        return np.asarray(value), packed

    return link_numba(evaluate, size, [])


def evaluate(address: int, flat: np.ndarray, extra: np.ndarray) -> tuple[float, np.ndarray]:
    """Log density and gradient by a C function; an error in Python code is raised."""
    flat, gradient = np.array(flat, dtype=np.float64), np.empty(len(flat))
    value = _call(address)(flat.ctypes.data, gradient.ctypes.data, extra.ctypes.data)
    raise_error(extra)
    return value, gradient


def raise_error(extra: np.ndarray) -> None:
    """Raise the error that an evaluation has kept, if there is one."""
    if extra[0]:
        error = extra[1:HEAD].tolist()
        extra[:HEAD] = 0
        _restore(*error)  # sets it, and ctypes raises what is set
