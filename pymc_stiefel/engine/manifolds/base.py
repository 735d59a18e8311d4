"""What the engine asks of a manifold of matrices.

A matrix ``X`` is stored by columns, as a p x n array ``x``. Its momentum is kept in two parts, ``r = X A + B`` with
``X'B = 0``: ``a`` (p x p, skew) and ``b`` (p x n). Gradients have the same two parts, so that a kick is two additions.
``c`` and ``w`` are the masses of columns and pairs of columns: ``2 K = sum c_k |B e_k|^2 + sum w_ij A_ij^2``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Manifold(NamedTuple):
    """Compiled functions on one matrix, all in place, and what Python has to know. To be registered in ``__init__``."""

    name: str
    split: Callable[..., Any]  # (blas, x, g, a): the ambient gradient in g becomes its two parts
    skew: Callable[..., Any]  # (blas, x, g, a): the part a alone
    draw: Callable[..., Any]  # (source, a, b, c, w): a momentum from exp(-K), but for the normal part of b
    add_noise: Callable[..., Any]  # (source, a, b, c, w, keep, spread): r <- keep r + spread times such a momentum
    tangent: Callable[..., Any]  # (blas, x, a, b, scratch): remove what is not tangent
    kinetic: Callable[..., Any]  # (a, b, c, w) -> 2 K
    velocity: Callable[..., Any]  # (blas, x, a, b, c, w, r, v, scratch): ambient momentum and velocity
    repair: Callable[..., Any]  # (blas, x, scratch) -> the error of X'X that was found, and removed
    drift: Callable[[str, int], str]  # which drift serves a matrix with p columns, if a user asks for the given one
    pairs: Callable[[int], int]  # how many pairs of columns may rotate into each other
