"""The interface of a manifold of matrices.

A matrix ``X`` is stored by columns, as a p x n array ``x``. Its momentum has two parts, ``r = X A + B`` with
``X'B = 0``: ``a`` (p x p, skew) and ``b`` (p x n). Gradients have the same two parts, so a kick is two additions.
``c`` and ``w`` are the masses of columns and pairs of columns: ``2 K = sum c_k |B e_k|^2 + sum w_ij A_ij^2``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Manifold(NamedTuple):
    """Compiled functions on one matrix, all in place, and two Python functions. Register it in ``__init__``."""

    name: str
    split: Callable[..., Any]  # (blas, x, g, a): replace the ambient gradient in g by its two parts
    skew: Callable[..., Any]  # (blas, x, g, a): only the part a
    draw: Callable[..., Any]  # (source, a, b, c, w): a momentum from exp(-K); the normal part of b is not removed
    add_noise: Callable[..., Any]  # (source, a, b, c, w, keep, spread): r <- keep r + spread times such a momentum
    tangent: Callable[..., Any]  # (blas, x, a, b, scratch): remove the normal part
    kinetic: Callable[..., Any]  # (a, b, c, w) -> 2 K
    velocity: Callable[..., Any]  # (blas, x, a, b, c, w, r, v, scratch): ambient momentum and velocity
    repair: Callable[..., Any]  # (blas, x, scratch) -> error of X'X before it was corrected
    drift: Callable[[str, int], str]  # the drift of a matrix with p columns, given the user's choice
    pairs: Callable[[int], int]  # number of pairs of columns that may rotate into each other
