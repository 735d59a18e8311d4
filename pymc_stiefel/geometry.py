r"""The geometry of orthonormal matrices: formulas in plain NumPy.

Notation, used in the whole package
-----------------------------------
``St(n, p)``
    matrices ``X`` of shape ``(n, p)`` with :math:`X'X = I_p`, :math:`n \ge p \ge 1`.
``r``
    momentum, a tangent matrix :math:`r = XA + B` with ``A`` skew (p x p) and :math:`X'B = 0`,
    paired with velocities by the trace, :math:`\langle r, V\rangle = \mathrm{tr}(r'V)`.
``c, w``
    the metric, :math:`K(r) = \tfrac12\sum_k c_k |B e_k|^2 + \tfrac12\sum_{ij} w_{ij} A_{ij}^2`;
    canonical: ``c = 1, w = 2``; embedded: ``c = 1, w = 1``.
``t``
    the time of a drift, that is the flow of ``K`` alone.

The functions work on one matrix and are written to be read; the compiled kernels in
``pymc_stiefel.engine`` are tested against them.

References
----------
Edelman, Arias & Smith (1998), doi:10.1137/S0895479895290954.
Byrne & Girolami (2013), doi:10.1111/sjos.12036.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

__all__ = [
    "angular_momentum",
    "cayley_drift",
    "draw_momentum",
    "geodesic_drift",
    "kinetic_energy",
    "manifold_dimension",
    "metric",
    "orthogonality_error",
    "polar",
    "polar_pullback",
    "rotation",
    "rotation_pullback",
    "split_tangent",
    "splitting_drift",
    "tangent_project",
    "velocity",
]

Matrix = NDArray[np.float64]


def manifold_dimension(n: int, p: int) -> int:
    """Dimension of St(n, p), ``n p - p (p + 1) / 2``."""
    return n * p - p * (p + 1) // 2


def orthogonality_error(X: Matrix) -> Matrix:
    """Largest entry of ``|X'X - I|``, for matrices in the last two dimensions."""
    gram = np.swapaxes(X, -1, -2) @ X
    return np.abs(gram - np.eye(X.shape[-1])).max(axis=(-2, -1))


# ---------------------------------------------------------------- tangent space


def tangent_project(X: Matrix, G: Matrix) -> Matrix:
    """Orthogonal projection ``G - X sym(X'G)`` of ``G`` on the tangent space at ``X``."""
    XtG = X.T @ G
    return G - X @ (XtG + XtG.T) / 2


def split_tangent(X: Matrix, r: Matrix) -> tuple[Matrix, Matrix]:
    """The two parts ``(A, B)`` of a tangent matrix ``r = X A + B``."""
    Xtr = X.T @ r
    return (Xtr - Xtr.T) / 2, r - X @ Xtr if X.shape[0] > X.shape[1] else np.zeros_like(r)


def angular_momentum(X: Matrix, r: Matrix) -> Matrix:
    """``r X' - X r'`` (n x n), which every left-invariant drift conserves."""
    return r @ X.T - X @ r.T


# ---------------------------------------------------------------- metric


def metric(kind: str, p: int) -> tuple[Matrix, Matrix]:
    """Masses ``(c, w)`` of the ``"canonical"`` or the ``"embedded"`` metric."""
    if kind not in ("canonical", "embedded"):
        raise ValueError(f"kind must be 'canonical' or 'embedded', got {kind!r}")
    return np.ones(p), np.full((p, p), 2.0 if kind == "canonical" else 1.0)


def velocity(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> Matrix:
    """Velocity ``X (w * A) + B diag(c)`` that belongs to the momentum ``r``."""
    A, B = split_tangent(X, r)
    return X @ (w * A) + B * c


def kinetic_energy(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> float:
    """Half the pairing of momentum and velocity."""
    A, B = split_tangent(X, r)
    return 0.5 * float(np.sum(c * np.sum(B**2, axis=0)) + np.sum(w * A**2))


def draw_momentum(X: Matrix, c: Matrix, w: Matrix, rng: np.random.Generator) -> Matrix:
    """A momentum from the law ``exp(-K)``: ``2 K`` is chi-squared with the manifold's dimension."""
    n, p = X.shape
    upper = np.triu(rng.standard_normal((p, p)) / np.sqrt(2 * w), 1)
    noise = rng.standard_normal((n, p)) / np.sqrt(c)
    return X @ (upper - upper.T) + noise - X @ (X.T @ noise)


# ---------------------------------------------------------------- drifts


def cayley_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    """Cayley retraction with vector transport, canonical metric (the paper's oHMC).

    ``X`` and ``r`` are rotated by ``(I - t/2 W)^{-1} (I + t/2 W)`` with ``W`` the angular momentum.
    In the basis ``[X, B]`` this takes one p x p solve: with ``h = t/2``, ``S = B'B`` and
    ``Y = (X + h B) (I - 2 h A + h^2 S)^{-1}``, it is ``X <- 2 Y - X``, ``B <- B - 2 h Y S``, ``A <- A``.
    """
    A, B = split_tangent(X, r)
    h, S = t / 2, B.T @ B
    Y = np.linalg.solve((np.eye(len(A)) - 2 * h * A + h**2 * S).T, (X + h * B).T).T
    X_new = 2 * Y - X
    return X_new, X_new @ A + B - 2 * h * Y @ S


def geodesic_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    """Geodesic flow of the embedded metric (Byrne & Girolami's geodesic Monte Carlo)."""
    p = X.shape[1]
    A, S = X.T @ r, r.T @ r
    flow = scipy.linalg.expm(t * np.block([[A, -S], [np.eye(p), A]]))
    back = scipy.linalg.expm(-t * A)
    moved = np.hstack([X, r]) @ flow
    return moved[:, :p] @ back, moved[:, p:] @ back


def splitting_drift(X: Matrix, r: Matrix, t: float, c: Matrix, w: Matrix) -> tuple[Matrix, Matrix]:
    """Symmetric composition of the exact flows of single pairs and single columns, for any metric.

    Pairs, then columns, each by ``t/2``; then the same in reverse order.
    """
    p = X.shape[1]
    A, B = split_tangent(X, r)
    X = X.copy()
    pairs = [(i, j) for i in range(p) for j in range(i + 1, p)]
    for i, j in pairs:
        _pair_flow(X, A, B, i, j, w[i, j] * t / 2)
    columns = [*range(p), *reversed(range(p))] if X.shape[0] > p else []
    for k in columns:
        _column_flow(X, A, B, k, c[k] * t / 2)
    for i, j in reversed(pairs):
        _pair_flow(X, A, B, i, j, w[i, j] * t / 2)
    return X, X @ A + B


def _column_flow(X: Matrix, A: Matrix, B: Matrix, k: int, t: float) -> None:
    """Flow of ``|B e_k|^2 / 2`` for time ``t``, in place: column k moves along a great circle."""
    speed = np.linalg.norm(B[:, k])
    if speed == 0.0:
        return
    cos, sin = np.cos(t * speed), np.sin(t * speed)
    x, b = X[:, k].copy(), B[:, k] / speed
    X[:, k] = cos * x + sin * b
    for i in range(X.shape[1]):
        if i != k:
            a = cos * A[k, i] + 0.5 * sin * (b @ B[:, i])
            B[:, i] += 2 * A[k, i] * x - 2 * a * X[:, k]
            A[k, i], A[i, k] = a, -a
    B[:, k] = speed * (cos * b - sin * x)


def _pair_flow(X: Matrix, A: Matrix, B: Matrix, i: int, j: int, t: float) -> None:
    """Flow of ``A_ij^2 / 2`` (twice, by symmetry), in place: columns i and j rotate into each other."""
    phi = t * A[i, j]
    rotation_ij = np.array([[np.cos(phi), np.sin(phi)], [-np.sin(phi), np.cos(phi)]])
    pair = [i, j]
    X[:, pair] = X[:, pair] @ rotation_ij
    B[:, pair] = B[:, pair] @ rotation_ij
    A[:, pair] = A[:, pair] @ rotation_ij
    A[pair, :] = rotation_ij.T @ A[pair, :]


# ---------------------------------------------------------------- projections on the manifold


def polar(Z: Matrix) -> Matrix:
    """The nearest orthonormal matrix ``Z (Z'Z)^{-1/2}``, for matrices in the last two dimensions."""
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    return U @ Vt


def polar_pullback(Z: Matrix, G: Matrix) -> Matrix:
    r"""Gradient in ``Z`` of a function of ``polar(Z)`` whose gradient there is ``G``.

    With :math:`Z = X H` and :math:`H = V s V'` it is
    :math:`2 X V (V'\mathrm{skew}(X'G)V \oslash (s_i + s_j)) V' + (I - XX') G H^{-1}`,
    finite wherever ``Z`` has full rank: equal singular values do no harm.
    """
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    return _signed_polar_pullback(U, s, Vt, G)


def rotation(Z: Matrix) -> Matrix:
    """The nearest rotation (determinant +1) to a square ``Z``, for matrices in the last two dimensions.

    Unlike ``polar`` it is continuous where ``det Z`` changes its sign.
    """
    U, _, Vt = _signed_svd(Z)
    return U @ Vt


def rotation_pullback(Z: Matrix, G: Matrix) -> Matrix:
    """Gradient in ``Z`` of a function of ``rotation(Z)`` whose gradient there is ``G``."""
    return _signed_polar_pullback(*_signed_svd(Z), G)


def _signed_svd(Z: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Singular value decomposition with ``det(U V') = +1``; the last singular value carries the sign."""
    U, s, Vt = np.linalg.svd(Z)
    sign = np.sign(np.linalg.det(U @ Vt))
    U[..., :, -1] *= sign[..., None]
    s[..., -1] *= sign
    return U, s, Vt


def _signed_polar_pullback(U: Matrix, s: Matrix, Vt: Matrix, G: Matrix) -> Matrix:
    XV, V = U, np.swapaxes(Vt, -1, -2)
    GV = G @ V
    XtG = np.swapaxes(XV, -1, -2) @ GV
    skew = XtG - np.swapaxes(XtG, -1, -2)
    along = skew / (s[..., :, None] + s[..., None, :]) if s.shape[-1] > 1 else np.zeros_like(skew)
    across = GV - XV @ XtG if U.shape[-2] > U.shape[-1] else np.zeros_like(GV)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (XV @ along + (across / s[..., None, :] if U.shape[-2] > U.shape[-1] else across)) @ Vt
