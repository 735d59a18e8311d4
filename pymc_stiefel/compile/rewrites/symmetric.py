"""Products with a constant symmetric matrix: form once what a density contains twice.

The gradient of a quadratic form in ``C U`` has a product with ``C`` of its own, ``(s U)'C`` with some scales ``s``. If
``C`` is symmetric, this is ``s (C U)'``, and ``C U`` is already in the graph.
"""

from __future__ import annotations

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import Mul, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, mul

NAME = "pymc_stiefel_symmetric"


def _is_symmetric(matrix) -> bool:
    if not isinstance(matrix, Constant) or np.ndim(matrix.data) != 2:
        return False
    data = matrix.data
    return data.shape[0] == data.shape[1] > 1 and np.array_equal(data, data.T)


def _untransposed(matrix):
    """A variable, and whether the matrix is its transpose."""
    transposed = False
    while matrix.owner and isinstance(matrix.owner.op, DimShuffle) and matrix.owner.op.new_order == (1, 0):
        matrix, transposed = matrix.owner.inputs[0], not transposed
    return matrix, transposed


def _product(factors):
    return factors[0] if len(factors) == 1 else mul(*factors)


def _without_scales(matrix, axis: int):
    """A matrix as a product of one with what does not depend on ``axis``: scale (or None), matrix."""
    kind = type(matrix.owner.op.scalar_op) if matrix.owner and isinstance(matrix.owner.op, Elemwise) else None
    if kind is TrueDiv:
        above, below = matrix.owner.inputs
        if below.type.broadcastable[axis]:
            scale, rest = _without_scales(above, axis)
            return (1.0 if scale is None else scale) / below, rest
    elif kind is Mul:
        scales = [factor for factor in matrix.owner.inputs if factor.type.broadcastable[axis]]
        others = [factor for factor in matrix.owner.inputs if not factor.type.broadcastable[axis]]
        if scales and others:
            return _product(scales), _product(others)
    return None, matrix


def _read(node):
    """For a product with a symmetric constant C: C, whether it is on the right, the scales, and the U of ``C U``.

    U is given as a variable and whether it is to be transposed.
    """
    left, right = node.inputs
    if _is_symmetric(left) and right.ndim == 2:
        scale, matrix = _without_scales(right, 0)
        return left, False, scale, _untransposed(matrix)
    if _is_symmetric(right) and left.ndim == 2:
        scale, matrix = _without_scales(left, 1)
        variable, transposed = _untransposed(matrix)
        return right, True, scale, (variable, not transposed)
    return None


@node_rewriter([Dot])
def _reuse_product(fgraph, node):
    found = _read(node)
    if found is None:
        return None
    constant, flipped, scale, factor = found
    for other, _ in fgraph.clients[constant]:
        known = _read(other) if other is not node and isinstance(other.op, Dot) else None
        if known is None or known[0] is not constant:  # None for a product with a vector
            continue
        _, other_flipped, other_scale, other_factor = known
        simpler = scale is not None or (flipped and not other_flipped)
        if simpler and other_scale is None and other_factor == factor:
            product = other.outputs[0] if flipped == other_flipped else other.outputs[0].T
            return [product if scale is None else scale * product]
    return None


optdb.register(NAME, in2out(_reuse_product), position=47)  # after simplifications, before loops are joined
