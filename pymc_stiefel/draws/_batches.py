"""Batches of draws: K sets of parameters and R draws from each, in one compiled call.

Functions take parameters with one leading dimension of length K and return ``(K, R, ...)``. Arguments are those of
:mod:`pymc_stiefel.draws`, which checks them; random variables call these functions directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_stiefel.draws._gibbs import bingham_chains, langevin_chains, quadratic_chains
from pymc_stiefel.draws._matrices import bingham_frames, langevin_matrices
from pymc_stiefel.draws._vectors import VECTOR_PROPOSALS, fisher_bingham_vectors, vmf_deficits
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector
from pymc_stiefel.normalizers._functions import log_hyp0f1

Array = NDArray[np.float64]

GIBBS_SWEEPS = 40
"""Gibbs sweeps for a draw, starting from an approximate one, if rejection is too slow."""
ROTATION_SWEEPS = 14
"""The same for plane rotations, of nearly square matrices. On St(10, 3) a sweep halves the bias."""
COLUMN_SWEEPS = 6
"""The same for laws with a quadratic part, by columns. On St(10, 3) a sweep removes at least 3/4 of the bias."""
PROPOSALS = 200
"""Proposals per draw of a subspace. If these do not suffice, Gibbs sweeps are used."""
SMALLEST_RATE = 2e-4
"""Acceptance rate below which Gibbs sweeps are used instead of rejection."""
LARGEST_CONCENTRATION = 1e8
"""Largest concentration at which acceptance rates are computed. Beyond it they are constant, but lose digits."""
CHUNK = 2000
"""Matrices per compiled call. Python can handle interrupts only between calls."""


def broadcast(
    draw: Callable[..., Array],
    parameters: Sequence[Any],
    core_ndims: Sequence[int],
    size: Sequence[int] | None,
    rng: np.random.Generator,
) -> Array:
    """Draws of shape ``(*size, ...)`` from parameters with leading batch dimensions."""
    arrays = [np.asarray(x, dtype=np.float64) for x in parameters]
    cores = [x.shape[x.ndim - k :] for x, k in zip(arrays, core_ndims, strict=True)]
    batches = [x.shape[: x.ndim - k] for x, k in zip(arrays, core_ndims, strict=True)]
    batch = np.broadcast_shapes(*batches) if size is None else tuple(int(s) for s in size)
    if all(math.prod(b) == 1 for b in batches):
        sets, count = [x.reshape(1, *c) for x, c in zip(arrays, cores, strict=True)], math.prod(batch)
    else:
        sets, count = [np.broadcast_to(x, (*batch, *c)).reshape(-1, *c) for x, c in zip(arrays, cores, strict=True)], 1
    drawn = draw(*sets, count, rng)
    return drawn.reshape(*batch, *drawn.shape[2:])


def _in_chunks(kernel: Callable[..., Any], arrays: Sequence[Array], fixed: Sequence[Any], *filled: Array, rng) -> bool:
    """Run ``kernel(*arrays, *fixed, *filled, rng)`` on parts of the batch; False as soon as a part returns False."""
    sets, count = filled[0].shape[:2]
    step = max(1, CHUNK // max(1, count))
    for k in range(0, sets, step):
        some = [np.ascontiguousarray(x[k : k + step]) for x in arrays]
        if step > 1 or count <= CHUNK:
            parts = [tuple(x[k : k + step] for x in filled)]
        else:
            parts = [tuple(x[k : k + 1, r : r + CHUNK] for x in filled) for r in range(0, count, CHUNK)]
        for part in parts:
            if kernel(*some, *fixed, *part, rng) is False:
                return False
    return True


def _positive_qr(Z: Array) -> Array:
    Q, R = np.linalg.qr(Z)
    return Q * np.where(np.einsum("...ii->...i", R) < 0, -1.0, 1.0)[..., None, :]


def haar(n: int, p: int, shape: Sequence[int], rng: np.random.Generator, *, special: bool = False) -> Array:
    """Uniform matrices ``(*shape, n, p)``; rotations if ``special``."""
    X = _positive_qr(rng.standard_normal((*shape, n, p)))
    if special:
        X[..., :, -1] *= np.sign(np.linalg.det(X))[..., None]
    return X


def angular_central_gaussian(Sigma: Array, p: int, count: int, rng: np.random.Generator) -> Array:
    """Polar factors of Gaussian matrices with columns N(0, Sigma)."""
    Z = np.linalg.cholesky(Sigma)[:, None] @ rng.standard_normal((len(Sigma), count, Sigma.shape[-1], p))
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    return U @ Vt


def von_mises_fisher(mu: Array, kappa: Array, count: int, rng: np.random.Generator) -> Array:
    """Unit vectors around the unit vectors ``mu``."""
    sets, n = mu.shape
    deficit = np.empty((sets, count))
    _in_chunks(lambda kappa, out, rng: vmf_deficits(float(n), kappa, out, rng), [kappa], [], deficit, rng=rng)
    mu, deficit = mu[:, None], deficit[..., None]
    if n == 1:
        return (1 - deficit) * mu
    z = rng.standard_normal((sets, count, n))
    for _ in range(2):
        z -= (z * mu).sum(axis=-1, keepdims=True) * mu
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    x = (1 - deficit) * mu + np.sqrt(deficit * (2 - deficit)) * z
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def matrix_langevin(F: Array, count: int, rng: np.random.Generator) -> Array:
    """Exact draws by rejection; if the acceptance rate is too small, the result of Gibbs sweeps."""
    sets, n, p = F.shape
    if p == 1:
        scale = np.abs(F[..., 0]).max(axis=-1, initial=0.0, keepdims=True)  # norms must not overflow
        f = np.where(scale > 0, F[..., 0] / np.where(scale > 0, scale, 1.0), np.eye(n)[0])
        norm = np.linalg.norm(f, axis=-1)
        return von_mises_fisher(f / norm[:, None], scale[:, 0] * norm, count, rng)[..., None]
    U, s, Vt = np.linalg.svd(F, full_matrices=False)
    by_rejection = np.array([_log_langevin_rate(n, row) > math.log(SMALLEST_RATE) for row in s], dtype=bool)
    X = np.empty((sets, count, n, p))
    _in_chunks(langevin_matrices, [U, s, Vt, by_rejection], [], X, rng=rng)
    for k in np.flatnonzero(~by_rejection):
        _in_chunks(langevin_chains, [F[k : k + 1]], [False, GIBBS_SWEEPS], X[k : k + 1], rng=rng)
    return X


def _log_langevin_rate(n: int, s: Array) -> float:
    """Log acceptance rate of Hoff's proposal: a ratio of normalisers."""
    s = np.minimum(s, LARGEST_CONCENTRATION)
    bound = sum(log_hyp0f1_vector(float(n - j), s[j])[0] for j in range(len(s)))
    return float(log_hyp0f1(n, s)[0] - bound)


def matrix_fisher(F: Array, count: int, rng: np.random.Generator) -> Array:
    """Rotations with density etr(F'X) on SO(n). Exact for n <= 3; for larger n as exact as ``matrix_langevin``."""
    sets, n = F.shape[:2]
    if n == 1:
        return np.ones((sets, count, 1, 1))
    if n == 2:
        f = np.stack([F[:, 0, 0] + F[:, 1, 1], F[:, 1, 0] - F[:, 0, 1]], axis=-1)[..., None]
        x = matrix_langevin(f, count, rng)[..., 0]
        return np.stack([x[..., 0], -x[..., 1], x[..., 1], x[..., 0]], axis=-1).reshape(sets, count, 2, 2)
    if n == 3:
        values, vectors = np.linalg.eigh(quaternion_form(F))
        q = np.empty((sets, count, 4))
        _require(_in_chunks(fisher_bingham_vectors, [np.zeros_like(values), values], [], q, rng=rng), "matrix_fisher")
        return rotation_of(np.einsum("kij,krj->kri", vectors, q))
    return np.stack([_larger_rotations(F[k], count, rng) for k in range(sets)])


def _larger_rotations(F: Array, count: int, rng: np.random.Generator) -> Array:
    """n >= 4: Langevin draws with determinant +1 (at least half of them if the mode has), or Gibbs sweeps in SO(n)."""
    U, s, Vt = np.linalg.svd(F)
    if np.linalg.det(U) * np.linalg.det(Vt) > 0 and _log_langevin_rate(len(F), s) > math.log(SMALLEST_RATE):
        found = np.empty((0, *F.shape))
        while len(found) < count:
            X = matrix_langevin(F[None], 2 * (count - len(found)) + 4, rng)[0]
            found = np.concatenate([found, X[np.linalg.det(X) > 0]])
        return found[:count]
    X = np.empty((1, count, *F.shape))
    _in_chunks(langevin_matrices, [U[None], s[None], Vt[None], np.zeros(1, dtype=bool)], [], X, rng=rng)
    X = X - np.where(np.linalg.det(X) < 0, 2.0, 0.0)[..., None, None] * np.outer(U[:, -1], U[:, -1]) @ X
    _in_chunks(langevin_chains, [F[None]], [True, GIBBS_SWEEPS], X, rng=rng)
    return X[0]


def quaternion_form(F: Any, stack: Callable[..., Any] = np.stack) -> Any:
    """The symmetric T (4 x 4) with tr(F'R(q)) = q'Tq for the rotation R(q) of a unit quaternion q = (w, x, y, z)."""
    (a, b, c), (d, e, f), (g, h, i) = ([F[..., row, col] for col in range(3)] for row in range(3))
    rows = [
        [a + e + i, h - f, c - g, d - b],
        [h - f, a - e - i, b + d, c + g],
        [c - g, b + d, e - a - i, f + h],
        [d - b, c + g, f + h, i - a - e],
    ]
    return stack([stack(row, axis=-1) for row in rows], axis=-2)


def rotation_of(q: Array) -> Array:
    """The rotation matrices of unit quaternions ``(..., 4)``."""
    w, x, y, z = np.moveaxis(q, -1, 0)
    entries = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return np.stack([np.stack(row, axis=-1) for row in entries], axis=-2)


def matrix_bingham(A: Array, B: Array, count: int, rng: np.random.Generator) -> Array:
    """Exact draws by rejection if B is a multiple of the identity and proposals suffice; else Gibbs sweeps."""
    sets, n = A.shape[:2]
    p = B.shape[-1]
    b, turn = np.linalg.eigh(B)
    X, done = np.empty((sets, count, n, p)), np.zeros((sets, count), dtype=bool)
    if (np.ptp(b, axis=-1) <= 1e-14 * np.abs(b).max(axis=-1)).all():
        a, vectors = np.linalg.eigh(b[:, :1, None] * A)
        b = np.ones_like(b)
        if p == 1:
            accepted = _in_chunks(fisher_bingham_vectors, [np.zeros_like(a), a], [], X[..., 0], rng=rng)
            done[:] = accepted  # always True: the acceptance rate is at least a few per cent
        else:
            _in_chunks(bingham_frames, [a], [PROPOSALS], X, done, rng=rng)
    else:
        a, vectors = np.linalg.eigh(A)
    if not done.all() and n >= 2 * p - 1:
        columns, none = np.empty((sets, count, p, n)), np.zeros((sets, p, n))
        _require(_in_chunks(quadratic_chains, [a, b, none], [COLUMN_SWEEPS], columns, done, rng=rng), "matrix_bingham")
        X[~done] = np.swapaxes(columns, -1, -2)[~done]
    elif not done.all():
        _in_chunks(bingham_chains, [a, b], [ROTATION_SWEEPS], X, done, rng=rng)
    return vectors[:, None] @ X @ np.swapaxes(turn, -1, -2)[:, None]


def matrix_bingham_langevin(A: Array, B: Array, F: Array, count: int, rng: np.random.Generator) -> Array:
    """Exact draws for p = 1; otherwise the result of Gibbs sweeps."""
    if not F.any():
        return matrix_bingham(A, B, count, rng)
    sets, n, p = F.shape
    if p == 1:
        q, vectors = np.linalg.eigh(B[:, :1, :1] * A)
        f = np.einsum("kij,kil->kjl", vectors, F)[..., 0]
        x = np.empty((sets, count, n))
        _require(_in_chunks(fisher_bingham_vectors, [f, q], [], x, rng=rng), "matrix_bingham_langevin")
        return (vectors[:, None] @ x[..., None]).reshape(sets, count, n, 1)
    (a, vectors), (b, turn) = np.linalg.eigh(A), np.linalg.eigh(B)
    F = np.swapaxes(vectors, -1, -2) @ F @ turn
    X, columns = np.empty((sets, count, p, n)), np.ascontiguousarray(np.swapaxes(F, -1, -2))
    none = np.zeros((sets, count), dtype=bool)
    drawn = _in_chunks(quadratic_chains, [a, b, columns], [COLUMN_SWEEPS], X, none, rng=rng)
    _require(drawn, "matrix_bingham_langevin")
    return vectors[:, None] @ np.swapaxes(X, -1, -2) @ np.swapaxes(turn, -1, -2)[:, None]


def _require(accepted: bool, law: str) -> None:
    if not accepted:
        raise RuntimeError(
            f"{law} found no draw in {VECTOR_PROPOSALS} proposals: the parameters are too large for rejection "
            "sampling; scale them down, or give an initval (pm.sample then needs no draw)"
        )
