"""Records of arrays that Python fills and compiled code reads, each from one definition.

A record is a ``NamedTuple`` whose fields are annotated by the kinds below, by ``int``, or by other records. Passing
fifty arrays to a compiled function takes longer than a short trajectory. Therefore Python writes their addresses once
to a table, with a row (address, rows, columns) for each array. The rows are in the order of the fields. In compiled
code a record is a pointer to its first row, and an array is made from its row where its field is read: functions
compile faster than with all arrays as arguments. A field of an unknown kind is an error at import; an array of the
wrong kind is an error when the table is made.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, register_model
from numba.np.arrayobj import populate_array

Vector = Annotated[np.ndarray, types.float64[::1]]
Matrix = Annotated[np.ndarray, types.float64[:, ::1]]
Integers = Annotated[np.ndarray, types.int64[::1]]
IntegerMatrix = Annotated[np.ndarray, types.int64[:, ::1]]
ShortIntegers = Annotated[np.ndarray, types.int32[::1]]
Letters = Annotated[np.ndarray, types.int8[::1]]


class RecordType(types.Type):
    """The numba type of a record: a pointer to its rows in the table."""

    def __init__(self, record: type) -> None:
        super().__init__(f"{record.__module__}.{record.__qualname__}")
        hints = get_type_hints(record, include_extras=True)
        self.fields = {name: numba_type(hints[name]) for name in record._fields}  # type: ignore[attr-defined]
        self.rows = sum(map(_rows_of, self.fields.values()))


def _rows_of(kind: types.Type) -> int:
    return kind.rows if isinstance(kind, RecordType) else 1


def numba_type(kind: Any) -> types.Type:
    """The numba type of a field, or of a record."""
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        return RecordType(kind)
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
    if isinstance(kind, RecordType):
        for part, (field, inside) in zip(entry, kind.fields.items(), strict=True):
            yield from _rows(part, inside, f"{name}.{field}")
    elif isinstance(kind, types.Integer):
        yield int(entry), 0, 0
    else:
        dtype = np.dtype(str(kind.dtype))
        if entry.dtype != dtype or entry.ndim != kind.ndim or not entry.flags.c_contiguous:
            raise TypeError(f"{name} must be a contiguous {kind}, got {entry.dtype} with {entry.ndim} axes")
        yield entry.ctypes.data, entry.shape[0], entry.shape[1] if entry.ndim == 2 else 0


# ---------------------------------------------------------------- in compiled code


@register_model(RecordType)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, typ, attr):  # type: ignore[override]
        return typ.fields.get(attr)


@lower_getattr_generic(RecordType)
def _field(context, builder, typ, value, attr):
    """Make the field from its row of the table."""
    names, kind = list(typ.fields), typ.fields[attr]
    first = sum(_rows_of(typ.fields[name]) for name in names[: names.index(attr)])
    row = builder.gep(value, [cgutils.intp_t(3 * first)])
    if isinstance(kind, RecordType):
        return row
    unchanged = builder.module.add_metadata([])

    def number(k):
        loaded = builder.load(builder.gep(row, [cgutils.intp_t(k)]))
        loaded.set_metadata("invariant.load", unchanged)  # so that loops need not read it again
        return loaded

    if isinstance(kind, types.Integer):
        return number(0)
    item = context.get_data_type(kind.dtype)
    bytes_each = cgutils.intp_t(context.get_abi_sizeof(item))
    lengths = [number(1 + k) for k in range(kind.ndim)]
    strides = [bytes_each] if kind.ndim == 1 else [builder.mul(bytes_each, lengths[1]), bytes_each]
    array = context.make_array(kind)(context, builder)
    pointer = builder.inttoptr(number(0), item.as_pointer())
    populate_array(array, data=pointer, shape=lengths, strides=strides, itemsize=bytes_each, meminfo=None)
    return array._getvalue()


def reader(record: type) -> Any:
    """The compiled function that returns the ``record`` of a table."""
    kind = RecordType(record)

    @intrinsic
    def unpack(typingctx, table):
        def codegen(context, builder, signature, args):
            return context.make_array(signature.args[0])(context, builder, args[0]).data

        return kind(table), codegen

    return unpack
