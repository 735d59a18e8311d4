"""Records of arrays that Python fills and compiled code reads, each from one definition.

A record is a ``NamedTuple`` whose fields are annotated by the kinds below, by ``int``, or by other records. Passing
fifty arrays to a compiled function takes longer than a short trajectory. Therefore Python writes their addresses once
to a table, with a row (address, rows, columns) for each array, and compiled code makes its views from the table. The
rows are in the order of the fields. A field of an unknown kind is an error at import; an array of the wrong kind is an
error when the table is made.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

Vector = Annotated[np.ndarray, types.float64[::1]]
Matrix = Annotated[np.ndarray, types.float64[:, ::1]]
Integers = Annotated[np.ndarray, types.int64[::1]]
IntegerMatrix = Annotated[np.ndarray, types.int64[:, ::1]]
ShortIntegers = Annotated[np.ndarray, types.int32[::1]]
Letters = Annotated[np.ndarray, types.int8[::1]]


def numba_type(kind: Any) -> types.Type:
    """The numba type of a field, or of a record."""
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        hints = get_type_hints(kind, include_extras=True)
        return types.BaseTuple.from_types([numba_type(hints[name]) for name in kind._fields], kind)
    if kind is int:
        return types.int64
    found = [part for part in get_args(kind) if isinstance(part, types.Array)]
    if len(found) != 1:
        raise TypeError(f"a record cannot have a field of kind {kind}: use one of pymc_stiefel.engine.jit.records")
    return found[0]


def address_table(record: NamedTuple) -> np.ndarray:
    """The table, int64 of shape (arrays and numbers, 3). Keep the arrays alive while it is in use."""
    return np.array(list(_rows(record, numba_type(type(record)), type(record).__name__)), dtype=np.int64)


def _rows(entry: Any, kind: Any, name: str):
    if isinstance(kind, types.BaseNamedTuple):
        for part, field, inside in zip(entry, kind.fields, kind.types, strict=True):
            yield from _rows(part, inside, f"{name}.{field}")
    elif isinstance(kind, types.Integer):
        yield int(entry), 0, 0
    else:
        dtype = np.dtype(str(kind.dtype))
        if entry.dtype != dtype or entry.ndim != kind.ndim or not entry.flags.c_contiguous:
            raise TypeError(f"{name} must be a contiguous {kind}, got {entry.dtype} with {entry.ndim} axes")
        yield entry.ctypes.data, entry.shape[0], entry.shape[1] if entry.ndim == 2 else 0


def reader(record: type) -> Any:
    """The compiled function that makes a ``record`` from its table; it only loads the addresses."""
    kind = numba_type(record)

    @intrinsic
    def unpack(typingctx, table):
        def codegen(context, builder, signature, args):
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return _make(context, builder, kind, data, iter(range(0, 10_000, 3)))

        return kind(table), codegen

    return unpack


def _make(context, builder, kind, data, places):
    """Make the value of a kind from ``data`` at the next of ``places``."""
    if isinstance(kind, types.BaseTuple):
        parts = [_make(context, builder, inside, data, places) for inside in kind.types]
        return context.make_tuple(builder, kind, parts)
    place = next(places)
    count = 1 + getattr(kind, "ndim", 0)
    address, *lengths = (
        builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), place + k)])) for k in range(count)
    )
    if isinstance(kind, types.Integer):
        return address
    item = context.get_data_type(kind.dtype)
    bytes_each = cgutils.intp_t(context.get_abi_sizeof(item))
    strides = [bytes_each] if kind.ndim == 1 else [builder.mul(bytes_each, lengths[1]), bytes_each]
    array = context.make_array(kind)(context, builder)
    pointer = builder.inttoptr(address, item.as_pointer())
    populate_array(array, data=pointer, shape=lengths, strides=strides, itemsize=bytes_each, meminfo=None)
    return array._getvalue()
