"""Calls by address: densities, drifts, and compiled functions whose errors are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

DENSITY_SIGNATURE = types.float64(
    types.CPointer(types.float64), types.CPointer(types.float64), types.CPointer(types.int64)
)

HEAD = 4
"""Length of the header of ``extra``: whether there is an error, and its type, value and traceback."""


@intrinsic
def call_density(typingctx, address, q, gradient, extra):
    """Call the density at ``address``; writes the gradient and returns the log density."""
    signature = types.float64(types.int64, q, gradient, extra)

    def codegen(context, builder, signature, args):
        double, int64 = ir.DoubleType(), ir.IntType(64)
        prototype = ir.FunctionType(double, [double.as_pointer(), double.as_pointer(), int64.as_pointer()])
        pointer = builder.inttoptr(args[0], prototype.as_pointer())
        data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[1:], args[1:], strict=True)
        ]
        return builder.call(pointer, data)

    return signature, codegen


@intrinsic
def call_drift(typingctx, address, arguments):
    """Call the drift at ``address``; arrays are passed by address."""
    signature = types.void(address, arguments)

    def codegen(context, builder, signature, args):
        kinds = signature.args[1].types
        plain = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, cgutils.unpack_tuple(builder, args[1]), strict=True)
        ]
        prototype = ir.FunctionType(ir.VoidType(), [value.type for value in plain])
        builder.call(builder.inttoptr(args[0], prototype.as_pointer()), plain)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def keep_error(typingctx, extra):
    """Move an error of Python code to ``extra``.

    A failed decomposition counts as a divergence, as in PyMC's samplers. So does an error of compiled code, which does
    not set Python's error indicator. The engine runs without the GIL, which is needed to read the indicator.
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


def native_call(function: Any, size: int, inputs: list[types.Array]) -> Any:
    """Call a compiled numba function by its address, with arrays over memory given in ``extra``.

    Returns whether it succeeded, and its outputs. ``try`` in compiled code does not catch errors of Python code.
    An ordinary call would link the whole density into its caller and optimise it again, which takes seconds and
    defeats PyTensor's disk cache.
    """
    all_inputs = (types.Array(types.float64, 1, "C"), *inputs)
    _, folded = function.fold_argument_types(all_inputs, {})  # PyTensor's functions take *args: one tuple
    if isinstance(folded[0], types.BaseTuple):  # of the type that a call from Python has, which `check` makes
        folded = (types.BaseTuple.from_types(folded[0].types),)
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
