"""Loops over contiguous numbers, in vectors of eight, then four, then single numbers.

Columns are short here. The compiler would unroll such loops for long arrays and process a column of 20 or 30 numbers
one by one. It cannot vectorise sums at all, because that changes the order of summation.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pymc_stiefel.engine.jit.compiling import short

_DOUBLE = ir.DoubleType()


def _vector(width):
    """The LLVM type of a vector of ``width`` numbers."""
    return ir.VectorType(_DOUBLE, width) if width > 1 else _DOUBLE


def _spread(builder, number, width):
    """A vector that repeats a number ``width`` times."""
    if width == 1:
        return number
    index = ir.IntType(32)
    vector = builder.insert_element(ir.Constant(_vector(width), ir.Undefined), number, index(0))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(index, width), [index(0)] * width))


def _pointers(context, builder, kinds, values):
    if any(kind.layout != "C" for kind in kinds):
        raise TypingError(f"vectors must be contiguous, got {kinds}")
    return [context.make_array(kind)(context, builder, value).data for kind, value in zip(kinds, values, strict=True)]


def _load(builder, pointers, place, width):
    """The ``width`` numbers of each array that start at ``place``, and their pointers."""
    places = [builder.bitcast(builder.gep(pointer, [place]), _vector(width).as_pointer()) for pointer in pointers]
    return [builder.load(pointer, align=8) for pointer in places], places


def _in_pieces(builder, count, body):
    """Call ``body(place, width)`` for pieces of eight, then four, then one, which together cover ``count`` places."""
    number = count.type
    eights = builder.and_(count, number(-8))
    with cgutils.for_range_slice(builder, number(0), eights, number(8), number) as (place, _):
        body(place, 8)
    fours = builder.and_(count, number(-4))
    with builder.if_then(builder.icmp_signed("<", eights, fours)):
        body(eights, 4)
    with cgutils.for_range_slice(builder, fours, count, number(1), number) as (place, _):
        body(place, 1)


def _size(context, builder, kind, value):
    """Length of a vector."""
    return builder.extract_value(context.make_array(kind)(context, builder, value).shape, 0)


def _sum(builder, pointers, count, combine):
    """The sum of ``combine(*items)`` over ``count`` places, as interleaved partial sums that are added at the end."""
    zeros = {width: ir.Constant(_vector(width), [0.0] * width if width > 1 else 0.0) for width in (8, 4, 1)}
    sums = {width: cgutils.alloca_once_value(builder, zero) for width, zero in zeros.items()}

    def body(place, width):
        items, _ = _load(builder, pointers, place, width)
        builder.store(builder.fadd(builder.load(sums[width]), combine(*items)), sums[width])

    _in_pieces(builder, count, body)
    index, add = ir.IntType(32), builder.fadd
    eight = builder.load(sums[8])

    def part(vector, places):
        mask = ir.Constant(ir.VectorType(index, len(places)), [index(k) for k in places])
        return builder.shuffle_vector(vector, vector, mask)

    four = add(add(part(eight, range(4)), part(eight, range(4, 8))), builder.load(sums[4]))
    two = add(part(four, (0, 1)), part(four, (2, 3)))
    one = add(builder.extract_element(two, index(0)), builder.extract_element(two, index(1)))
    return add(one, builder.load(sums[1]))


@intrinsic
def _dot(typingctx, x, y):
    def codegen(context, builder, signature, args):
        pointers = _pointers(context, builder, signature.args, args)
        return _sum(builder, pointers, _size(context, builder, signature.args[0], args[0]), builder.fmul)

    return types.float64(x, y), codegen


@intrinsic
def _total(typingctx, x):
    def codegen(context, builder, signature, args):
        pointers = _pointers(context, builder, signature.args, args)
        return _sum(builder, pointers, _size(context, builder, signature.args[0], args[0]), lambda item: item)

    return types.float64(x), codegen


def _combination(vectors, change):
    """Code of a function of several vectors of equal length and of further numbers, which changes the last vectors.

    ``change(builder, items, numbers)`` returns the new items of these vectors.
    """

    def codegen(context, builder, signature, args):
        pointers = _pointers(context, builder, signature.args[:vectors], args[:vectors])

        def body(place, width):
            items, places = _load(builder, pointers, place, width)
            values = change(builder, items, [_spread(builder, number, width) for number in args[vectors:]])
            for value, pointer in zip(values, places[-len(values) :], strict=True):
                builder.store(value, pointer, align=8)

        _in_pieces(builder, _size(context, builder, signature.args[0], args[0]), body)
        return context.get_dummy_value()

    return codegen


@intrinsic
def _axpy(typingctx, x, y, alpha):
    def change(builder, items, numbers):
        (x, y), (alpha,) = items, numbers
        return [builder.fadd(y, builder.fmul(alpha, x))]

    return types.void(x, y, types.float64), _combination(2, change)


@intrinsic
def _add_both(typingctx, u, v, out, alpha, beta):
    def change(builder, items, numbers):
        (u, v, out), (alpha, beta) = items, numbers
        return [builder.fadd(out, builder.fadd(builder.fmul(alpha, u), builder.fmul(beta, v)))]

    return types.void(u, v, out, types.float64, types.float64), _combination(3, change)


@intrinsic
def _rotate(typingctx, u, v, cos, along, back):
    def change(builder, items, numbers):
        (u, v), (cos, along, back) = items, numbers
        return [
            builder.fadd(builder.fmul(cos, u), builder.fmul(along, v)),
            builder.fadd(builder.fmul(cos, v), builder.fmul(back, u)),
        ]

    return types.void(u, v, types.float64, types.float64, types.float64), _combination(2, change)


@short
def dot(x, y):
    """Inner product."""
    return _dot(x, y)


@short
def total(x):
    """Sum of a vector."""
    return _total(x)


@short
def axpy(alpha, x, y):
    """``y += alpha x``"""
    _axpy(x, y, alpha)


@short
def add_both(alpha, u, beta, v, out):
    """``out += alpha u + beta v``"""
    _add_both(u, v, out, alpha, beta)


@short
def rotate(u, v, cos, along, back):
    """``u, v <- cos u + along v, cos v + back u``"""
    _rotate(u, v, cos, along, back)
