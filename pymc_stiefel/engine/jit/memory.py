"""Arrays over memory at a given address, and bit patterns of numbers, in compiled code."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


@intrinsic
def array_at(typingctx, address, shape, dtype):
    """An array of ``shape`` over memory owned elsewhere; ``address`` is an integer or a typed pointer."""
    kind = types.Array(dtype.instance_type, len(shape), "C")

    def codegen(context, builder, signature, args):
        item = context.get_data_type(kind.dtype)
        bytes_each = context.get_abi_sizeof(item)
        lengths = [
            context.cast(builder, length, given, types.intp)
            for length, given in zip(cgutils.unpack_tuple(builder, args[1]), signature.args[1], strict=True)
        ]
        strides = [cgutils.intp_t(bytes_each)] * len(lengths)
        for k in reversed(range(len(lengths) - 1)):
            strides[k] = builder.mul(strides[k + 1], lengths[k + 1])
        to_pointer = builder.bitcast if isinstance(address, types.CPointer) else builder.inttoptr
        array = context.make_array(kind)(context, builder)
        populate_array(
            array,
            data=to_pointer(args[0], item.as_pointer()),
            shape=lengths,
            strides=strides,
            itemsize=bytes_each,
            meminfo=None,
        )
        return array._getvalue()

    return kind(address, shape, dtype), codegen


@intrinsic
def view(typingctx, vector, start, rows, columns):
    """``vector[start:start + rows * columns].reshape(rows, columns)``, without checks and reference counting."""
    kind = types.Array(vector.dtype, 2, "C")

    def codegen(context, builder, signature, args):
        offset, *lengths = (
            context.cast(builder, value, given, types.intp)
            for value, given in zip(args[1:], signature.args[1:], strict=True)
        )
        bytes_each = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        item = cgutils.intp_t(bytes_each)
        array = context.make_array(kind)(context, builder)
        populate_array(
            array,
            data=builder.gep(context.make_array(vector)(context, builder, args[0]).data, [offset]),
            shape=lengths,
            strides=[builder.mul(item, lengths[1]), item],
            itemsize=bytes_each,
            meminfo=None,
        )
        return array._getvalue()

    return kind(vector, start, rows, columns), codegen


def bits(target, source):
    """Intrinsic that reinterprets the bits of a number as another type."""

    @intrinsic
    def cast(typingctx, x):
        kind = ir.DoubleType() if target is types.float64 else ir.IntType(64)
        return target(source), lambda context, builder, signature, args: builder.bitcast(args[0], kind)

    return cast
