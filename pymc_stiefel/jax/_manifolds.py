"""Points, masses and drifts on products of Stiefel manifolds and Euclidean space, for JAX.

The formulas are those of :mod:`pymc_stiefel.geometry`, with batch dimensions first. Momenta are split into ``A`` (skew,
p x p) and ``B`` (n x p, orthogonal to X). Masses are inverse masses: ``c`` of columns, ``w`` of pairs of columns. For
the Euclidean vector, ``L`` is a square root of the inverse mass matrix, lower triangular or diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from pymc_stiefel import _checks


class Position(NamedTuple):
    """A point, or anything of the same shape: a gradient, a momentum."""

    X: tuple[Any, ...]  # each (..., n, p)
    z: Any  # (d,)


class Masses(NamedTuple):
    """Inverse masses."""

    c: tuple[Any, ...]  # each (..., p)
    w: tuple[Any, ...]  # each (..., p, p); None for subspaces, for which A = 0
    L: Any  # (d, d) or (d,)


def computed(values: Any) -> Any:
    """``values``, computed once. XLA would compute small products, sines and cosines again for every entry that needs
    them, which takes two to three times as long on CPUs."""
    return jax.lax.optimization_barrier(values)


def transpose(x: Any) -> Any:
    """Transpose the last two dimensions."""
    return jnp.swapaxes(x, -1, -2)


def skew(m: Any) -> Any:
    """Skew part."""
    return 0.5 * (m - transpose(m))


def split(X: Any, r: Any) -> tuple[Any, Any]:
    """The parts ``A``, ``B`` of the projection of ``r`` on the tangent space at ``X``."""
    M = computed(transpose(X) @ r)
    return skew(M), complement(X, r - X @ M)


def complement(X: Any, B: Any) -> Any:
    """``B`` without its component along ``X``; zero for square matrices."""
    return B - X @ computed(transpose(X) @ B) if X.shape[-2] > X.shape[-1] else jnp.zeros_like(B)


def nearest(X: Any) -> Any:
    """One Newton step towards the polar factor, which is enough to remove rounding errors."""
    return X @ (1.5 * jnp.eye(X.shape[-1], dtype=X.dtype) - 0.5 * (transpose(X) @ X))


def orthogonality_error(X: Any) -> Any:
    """Largest entry of ``|X'X - I|`` over all matrices."""
    return jnp.max(jnp.abs(transpose(X) @ X - jnp.eye(X.shape[-1], dtype=X.dtype)))


# ---------------------------------------------------------------- drifts on (X, A, B)


def cayley(X: Any, A: Any, B: Any, t: Any, c: Any, w: Any) -> tuple[Any, Any, Any]:
    """The paper's retraction, for ``w = 2 c`` and equal ``c``. It uses the inverse of a p x p matrix, so that a matrix
    sharded by rows is never gathered."""
    h = 0.5 * t * c[..., :1, None]
    if X.shape[-2] == X.shape[-1]:  # B is zero
        return 2 * X @ jnp.linalg.inv(jnp.eye(X.shape[-1], dtype=X.dtype) - 2 * h * A) - X, A, B
    S = transpose(B) @ B
    Y = (X + h * B) @ jnp.linalg.inv(jnp.eye(X.shape[-1], dtype=X.dtype) - 2 * h * A + h**2 * S)
    return 2 * Y - X, A, B - 2 * h * (Y @ S)


def geodesic(X: Any, A: Any, B: Any, t: Any, c: Any, w: Any) -> tuple[Any, Any, Any]:
    """Geodesic flow of the embedded metric, for ``w = c`` and equal ``c``."""
    t = t * c[..., :1, None]
    p, S = X.shape[-1], transpose(B) @ B
    eye, zero = jnp.broadcast_to(jnp.eye(p, dtype=X.dtype), A.shape), jnp.zeros_like(A)
    N = jnp.concatenate([jnp.concatenate([2 * A, -S], -1), jnp.concatenate([eye, zero], -1)], -2)
    moved = jnp.concatenate([X, B], -1) @ jax.scipy.linalg.expm(t * N)
    back = jax.scipy.linalg.expm(-t * A)
    return moved[..., :p] @ back, A, moved[..., p:] @ back


def _turn_column(X: Any, A: Any, B: Any, k: int, t: Any, c: Any) -> tuple[Any, Any, Any]:
    """Column k moves along a great circle."""
    x, b = X[..., k], B[..., k]
    square = computed(jnp.sum(b * b, -1))
    speed = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    angle = jnp.where(square > 0, c * speed * t, 0.0)
    cos, sin, speed = computed((jnp.cos(angle)[..., None], jnp.sin(angle)[..., None], speed[..., None]))
    hat = b / speed
    new, new_b = cos * x + sin * hat, speed * (cos * hat - sin * x)
    others = np.arange(X.shape[-1]) != k
    before = A[..., k, :]
    after = computed(jnp.where(others, cos * before + 0.5 * sin * jnp.einsum("...n,...np->...p", hat, B), 0.0))
    before = jnp.where(others, before, 0.0)
    B = B + 2 * x[..., :, None] * before[..., None, :] - 2 * new[..., :, None] * after[..., None, :]
    A = A.at[..., k, :].set(after).at[..., :, k].set(-after)
    return X.at[..., k].set(new), A, B.at[..., k].set(new_b)


def _turn_pairs(X: Any, A: Any, B: Any, pairs: list[tuple[int, int]], t: Any, w: Any) -> tuple[Any, Any, Any]:
    """Disjoint pairs of columns rotate into each other."""
    i, j = np.array(pairs).T
    angle = w[..., i, j] * A[..., i, j] * t
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    R = jnp.broadcast_to(jnp.eye(X.shape[-1], dtype=X.dtype), A.shape)
    R = computed(R.at[..., i, i].set(cos).at[..., j, j].set(cos).at[..., j, i].set(-sin).at[..., i, j].set(sin))
    return X @ R, A if X.shape[-1] == 2 else skew(transpose(R) @ A @ R), B @ R


def _rounds(p: int) -> list[list[tuple[int, int]]]:
    """All pairs in rounds of disjoint pairs (round robin): p - 1 matrix products instead of p (p - 1) / 2."""
    even = p + p % 2
    players, rounds = list(range(even)), []
    for _ in range(even - 1):
        meet = zip(players[: even // 2], reversed(players[even // 2 :]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in meet if max(a, b) < p])
        players = [players[0], players[-1], *players[1:-1]]
    return [pairs for pairs in rounds if pairs]


def splitting(X: Any, A: Any, B: Any, t: Any, c: Any, w: Any) -> tuple[Any, Any, Any]:
    """Columns, then pairs, each for time t/2, and the same in reverse order; for any masses."""
    n, p = X.shape[-2:]
    columns, rounds = list(range(p)) if n > p else [], _rounds(p)
    for k in columns:
        X, A, B = _turn_column(X, A, B, k, 0.5 * t, c[..., k])
    for pairs in [*rounds, *reversed(rounds)]:
        X, A, B = _turn_pairs(X, A, B, pairs, 0.5 * t, w)
    for k in reversed(columns):
        X, A, B = _turn_column(X, A, B, k, 0.5 * t, c[..., k])
    return X, A, B


DRIFTS: dict[str, Callable] = {"splitting": splitting, "cayley": cayley, "geodesic": geodesic}
"""Subspaces move by the Cayley map, which conserves ``A = 0``."""
SPLITTING_COLUMNS = 12
"""Largest number of columns for which ``drift="auto"`` is the splitting, whose program grows with this number."""


def choose_drift(drift: str, columns: list[int]) -> str:
    """The drift by name, with ``"auto"`` resolved."""
    _checks.choice("drift", drift, ("auto", *sorted(DRIFTS)))
    if drift == "auto":
        return "splitting" if max(columns, default=1) <= SPLITTING_COLUMNS else "cayley"
    return drift


def tangent(X: Any, r: Any, w: Any) -> tuple[Any, Any]:
    """``split``; for a subspace, whose ``w`` is None, the horizontal part with ``A = 0``."""
    A, B = split(X, r)
    return (jnp.zeros_like(A) if w is None else A), B
