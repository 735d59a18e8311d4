"""Masses learnt from all chains together.

Masses of matrices are estimated from projected gradients. The inverse mass matrix of Euclidean variables is the
geometric mean of the covariance of the draws and the inverse covariance of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

from pymc_stiefel.jax._manifolds import Masses, Position, split

DENSE_SIZE = 200
"""Largest Euclidean dimension with a dense mass matrix."""

WINDOWS = (10, 20, 35, 55, 80, 130, 190, 270, 380, 550, 800)
"""Tuning draws after which the masses are updated. The first windows are short, because all chains contribute."""


class Moments(NamedTuple):
    """Sums over the draws of a window, pooled over chains."""

    count: Any
    column: tuple[Any, ...]  # squared gradients of columns
    pair: tuple[Any, ...]
    mean: Any  # sums of Euclidean draws and of their gradients: (2, d)
    square: Any  # (2, d, d) or (2, d)


def no_moments(example: Position) -> Moments:
    """Moments before the first draw of a window."""
    d, dtype = example.z.shape[-1], example.z.dtype
    return Moments(
        jnp.zeros((), dtype),
        tuple(jnp.zeros(X.shape[:-2] + X.shape[-1:], dtype) for X in example.X),
        tuple(jnp.zeros(X.shape[:-2] + 2 * X.shape[-1:], dtype) for X in example.X),
        jnp.zeros((2, d), dtype),
        jnp.zeros((2, d, d) if d <= DENSE_SIZE else (2, d), dtype),
    )


def add_draws(moments: Moments, position: Position, grad: Position) -> Moments:
    """Add one draw of every chain (first dimension of all arrays). Draws without a finite gradient are ignored."""
    leaves = [jnp.isfinite(g).reshape(len(g), -1).all(axis=1) for g in jax.tree.leaves(grad) if g.size]
    fine = jnp.stack(leaves).all(axis=0) if leaves else jnp.ones(len(position.z), bool)
    weight = fine.astype(position.z.dtype)

    def masked(x):
        return jnp.where(fine.reshape(-1, *[1] * (x.ndim - 1)), x, 0.0)

    column, pair = [], []
    for X, G, old_column, old_pair in zip(position.X, grad.X, moments.column, moments.pair, strict=True):
        A, B = split(X, masked(G))
        column.append(old_column + jnp.sum(B * B, axis=(0, -2)) / max(X.shape[-2] - X.shape[-1], 1))
        pair.append(old_pair + jnp.sum(2 * A * A, axis=0))
    added = jnp.sum(weight)
    count = moments.count + added
    safe = jnp.maximum(count, 1.0)
    values = jnp.stack([masked(position.z), masked(grad.z)])  # (2, chains, d)
    mean = jnp.sum(values, axis=1) / jnp.maximum(added, 1.0)
    centred = (values - mean[:, None]) * weight[:, None]
    shift = mean - moments.mean
    between = added * moments.count / safe
    if moments.square.ndim == 3:
        square = jnp.einsum("kci,kcj->kij", centred, centred) + between * shift[:, :, None] * shift[:, None, :]
    else:
        square = jnp.sum(centred**2, axis=1) + between * shift**2
    return Moments(count, tuple(column), tuple(pair), moments.mean + shift * added / safe, moments.square + square)


def first_masses(example: Position, drift: str, subspaces: Sequence[int] = ()) -> Masses:
    """Initial masses: in a unit of time a uniform matrix turns by about a radian."""
    d, dtype = example.z.shape[-1], example.z.dtype
    L = 0.1 * (jnp.eye(d, dtype=dtype) if d <= DENSE_SIZE else jnp.ones(d, dtype))
    return _matrix_masses(example, no_moments(example), drift, subspaces, L)


def learn_masses(example: Position, moments: Moments, drift: str, subspaces: Sequence[int] = ()) -> Masses:
    """Masses estimated from the draws of a window."""
    square = moments.square / jnp.maximum(moments.count - 1.0, 1.0)
    return _matrix_masses(example, moments, drift, subspaces, _root(square[0], square[1], moments.count))


def _matrix_masses(example: Position, moments: Moments, drift: str, subspaces: Sequence[int], L: Any) -> Masses:
    count = jnp.maximum(moments.count, 1.0)
    columns, pairs = [], []
    for number, (X, column, pair) in enumerate(zip(example.X, moments.column, moments.pair, strict=True)):
        n, p = X.shape[-2:]
        precision, pair_precision = column / count + n, pair / count + p  # regularised towards a uniform matrix
        if number in subspaces:
            precision = jnp.broadcast_to(precision.mean(-1, keepdims=True), precision.shape)
        elif drift != "splitting":  # one scale for the whole matrix
            off = jnp.sum(pair_precision * (1 - jnp.eye(p, dtype=pair.dtype)), axis=(-1, -2)) / max(p * (p - 1), 1)
            free, turning = p * (n - p), p * (p - 1) // 2
            mean = (free * precision.mean(-1) + turning * off) / max(free + turning, 1)
            precision = jnp.broadcast_to(jnp.maximum(mean, 1.0)[..., None], precision.shape)
            factor = 2.0 if drift == "cayley" else 1.0
            pair_precision = jnp.broadcast_to(precision[..., None] / factor, pair_precision.shape)
        columns.append(1 / precision)
        pairs.append(None if number in subspaces else 1 / pair_precision)
    return Masses(tuple(columns), tuple(pairs), L)


def _root(draws: Any, grads: Any, count: Any) -> Any:
    """Square root of the geometric mean of the covariance of draws and the inverse covariance of gradients."""
    d = draws.shape[-1]
    if d == 0:
        return jnp.zeros(draws.shape, draws.dtype)
    if draws.ndim == 1:
        return jnp.clip(draws, 1e-20, 1e20) ** 0.25 / jnp.clip(grads, 1e-20, 1e20) ** 0.25
    spread, steepness = (jnp.clip(jnp.diagonal(m), 1e-20, 1e20) for m in (draws, grads))
    scale = jnp.sqrt(jnp.sqrt(spread / steepness))
    outer = jnp.outer(scale, scale)
    kept = count / (count + d + 2)

    def shrunk(m):
        return kept * m + (1 - kept) * jnp.diag(jnp.diagonal(m)) + 1e-6 * jnp.diag(jnp.diagonal(m) + 1e-4)

    F = jnp.linalg.cholesky(shrunk(grads * outer))
    values, vectors = jnp.linalg.eigh(F.T @ shrunk(draws / outer) @ F)
    root = (vectors * jnp.sqrt(jnp.maximum(values, 1e-12))) @ vectors.T
    half = jsl.solve_triangular(F, root, lower=True, trans="T")
    mean = jsl.solve_triangular(F, half.T, lower=True, trans="T")
    L = jnp.linalg.cholesky((mean + mean.T) / 2 * outer)
    return jnp.where(jnp.isfinite(L).all(), L, jnp.diag(scale))
