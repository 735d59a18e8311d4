"""The C function through which the engine calls a density, and how errors get out of it.

No exception can pass through the compiled sampler. An error in Python code (an Op that raises, Ctrl-C inside of one) is
taken from the interpreter and kept in the first numbers of ``extra``; evaluations after it return NaN at once, so that
the sampler soon returns, and :func:`raise_error` raises it there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytensor
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from pytensor.link.numba.dispatch import numba_funcify

from pymc_stiefel.engine.compiling import DENSITY_SIGNATURE

STRICT = {"numba__fastmath": False}
"""With PyTensor's relaxed floating-point rules, code fresh from the compiler rounds differently from the same code read
from the cache, and a seed would give other draws in the next run, or in a spawned process."""

HEAD = 4
"""Numbers in front of the arguments in ``extra``: whether there is an error, and its type, value and traceback."""

Kind = tuple[np.dtype, int]
_call = ctypes.PYFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyErr_Restore", ctypes.pythonapi)
)


def link_numba(function: Any, size: int, kinds: list[Kind]) -> Any:
    """The numba function of a vector and of arrays of these dtypes and dimensions, as a C function."""
    inputs = [types.Array(numba.from_dtype(dtype), ndim, "C") for dtype, ndim in kinds]
    evaluate = _native(function, size, inputs)

    def density(q, gradient, extra):
        if extra[0] == 0:
            succeeded, (value, packed) = evaluate(q, extra)
            if succeeded:
                for k in range(size):  # an assignment of slices would compile the text of its error: 2 seconds
                    gradient[k] = packed[k]
                return value.item()
            _keep_error(extra)
        for k in range(size):  # within a step only the gradient is looked at
            gradient[k] = np.nan
        return np.nan

    with pytensor.config.change_flags(**STRICT):
        result = numba.cfunc(DENSITY_SIGNATURE)(density)
    result.calls = function  # to be kept alive: it is called by its address
    return result


def calls_python(function: Any) -> bool:
    """Whether a function of PyTensor has an Op that numba does not know, so that its Python code is run."""
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


@intrinsic
def _keep_error(typingctx, extra):
    """Move an error of Python code to ``extra``.

    A failed decomposition is a divergence, as it is for PyMC's samplers; so is an error of compiled code, which leaves
    Python's indicator alone. The engine runs without Python's lock, which is needed to look at the indicator.
    """

    def codegen(context, builder, signature, args):
        void, pointer, integer = ir.VoidType(), ir.IntType(8).as_pointer(), ir.IntType(64)

        def function(name, result, *arguments):
            return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)

        def place(k):
            return builder.gep(args[0], [ir.Constant(integer, k)])

        lock = builder.call(function("PyGILState_Ensure", ir.IntType(32)), [])
        occurred = builder.call(function("PyErr_Occurred", pointer), [])
        with builder.if_then(cgutils.is_not_null(builder, occurred)):
            divergence = builder.inttoptr(ir.Constant(integer, id(np.linalg.LinAlgError)), pointer)
            matches = builder.call(function("PyErr_ExceptionMatches", ir.IntType(32), pointer), [divergence])
            with builder.if_else(cgutils.is_true(builder, matches)) as (then, otherwise):
                with then:
                    builder.call(function("PyErr_Clear", void), [])
                with otherwise:
                    address = pointer.as_pointer()
                    places = [builder.bitcast(place(k), address) for k in range(1, HEAD)]
                    builder.call(function("PyErr_Fetch", void, address, address, address), places)
                    builder.store(ir.Constant(integer, 1), place(0))
        builder.call(function("PyGILState_Release", void, ir.IntType(32)), [lock])
        return context.get_dummy_value()

    return types.void(types.CPointer(types.int64)), codegen


def _native(function: Any, size: int, inputs: list[types.Array]) -> Any:
    """A compiled numba function, called by its address with arrays over memory that ``extra`` names.

    Returns whether it succeeded, and its outputs. ``try`` in compiled code does not catch errors of Python code.
    An ordinary call would link the whole density into its caller and optimise it again, which takes seconds and
    defeats PyTensor's disk cache.
    """
    all_inputs = (types.Array(types.float64, 1, "C"), *inputs)
    _, folded = function.fold_argument_types(all_inputs, {})  # PyTensor's functions take *args: one tuple
    function.compile(folded)
    result = function.overloads[folded]
    output_type = result.signature.return_type
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)

    def array(context, builder, kind, data, lengths):
        bytes_each = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        strides = [cgutils.intp_t(bytes_each)] * len(lengths)
        for k in reversed(range(len(lengths) - 1)):
            strides[k] = builder.mul(strides[k + 1], lengths[k + 1])
        made = context.make_array(kind)(context, builder)
        pointer = builder.inttoptr(data, context.get_data_type(kind.dtype).as_pointer())
        populate_array(made, data=pointer, shape=lengths, strides=strides, itemsize=bytes_each, meminfo=None)
        return made._getvalue()

    @intrinsic
    def call(typingctx, q, extra):
        def codegen(context, builder, signature, args):
            vector = builder.ptrtoint(args[0], cgutils.intp_t)
            values, place = [array(context, builder, all_inputs[0], vector, [cgutils.intp_t(size)])], HEAD
            for kind in inputs:
                numbers = [
                    builder.load(builder.gep(args[1], [cgutils.intp_t(place + k)])) for k in range(kind.ndim + 1)
                ]
                values.append(array(context, builder, kind, numbers[0], numbers[1:]))
                place += kind.ndim + 1
            if isinstance(folded[0], types.BaseTuple):
                values = [context.make_tuple(builder, folded[0], values)]
            convention = context.call_conv
            prototype = convention.get_function_type(output_type, folded)
            pointer = builder.inttoptr(context.get_constant(types.intp, address), prototype.as_pointer())
            status, output = convention.call_function(builder, pointer, output_type, folded, values)
            nothing = context.get_constant_null(output_type)
            output = builder.select(status.is_ok, output, nothing)
            both = context.make_tuple(builder, signature.return_type, [status.is_ok, output])
            return impl_ret_new_ref(context, builder, signature.return_type, both)

        result = types.Tuple((types.boolean, output_type))
        return result(types.CPointer(types.float64), types.CPointer(types.int64)), codegen

    return call
