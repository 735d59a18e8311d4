r"""Logarithm, exponential and Fréchet mean on St(n, p) in the canonical metric, for many matrices at once.

References
----------
Zimmermann (2017), "A matrix-algebraic algorithm for the Riemannian logarithm on the Stiefel manifold under the
canonical metric", doi:10.1137/16M1074485.
Zimmermann & Hüper (2022), "Computing the Riemannian logarithm on the Stiefel manifold: metrics, methods and
performance", arXiv:2103.12046.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_stiefel import geometry

__all__ = ["frechet_mean", "rotation_log", "stiefel_exp", "stiefel_log"]

Array = NDArray[np.float64]
TOLERANCE = 1e-9
EPSILON = np.finfo(float).eps
TINY = np.finfo(float).tiny
MAX_ROUNDS = 60
HALF_TURN = 1e7  # the tangent of half an angle from which on its plane is rounding error
TOO_FAR = "the draws are too far apart for a Riemannian mean: align them first, or use kind='extrinsic'"


def rotation_log(Q: Array) -> Array:
    r"""Principal logarithm of rotations, matrices in the last two dimensions.

    Cayley's :math:`K = (Q - I)(Q + I)^{-1} = \tanh(\tfrac12 \log Q)` is skew, and :math:`KK'` symmetric with the same
    eigenspaces; so :math:`\log Q = 2 f(KK') K` with :math:`f(\kappa^2) = \arctan(\kappa) / \kappa`.
    """
    identity = np.eye(Q.shape[-1])
    try:
        K = np.linalg.solve(Q + identity, Q - identity)  # the two factors commute
    except np.linalg.LinAlgError as error:
        raise ValueError(TOO_FAR) from error
    K = (K - np.swapaxes(K, -1, -2)) / 2
    squares, E = np.linalg.eigh(K @ np.swapaxes(K, -1, -2))
    kappa = np.sqrt(np.maximum(squares, TINY))
    if kappa.max() > HALF_TURN:
        raise ValueError(TOO_FAR)
    result: Array = 2 * ((E * (np.arctan(kappa) / kappa)[..., None, :]) @ np.swapaxes(E, -1, -2)) @ K
    return result


class Logarithm(NamedTuple):
    """Tangent matrices at one ``X``, as ``X @ A + Y @ C``; their canonical squared lengths."""

    A: Array
    C: Array
    squared_length: Array


def stiefel_log(X: Array, Y: Array) -> Array:
    """Tangent matrices at ``X`` (n, p) whose geodesics reach ``Y`` (draws, n, p) at time one."""
    rows = np.ascontiguousarray(np.swapaxes(Y, -1, -2))
    log = _logarithm(X, rows, rows @ Y)
    return X @ log.A + Y @ log.C


def _logarithm(X: Array, rows: Array, gram: Array, tolerance: float = TOLERANCE) -> Logarithm:
    """The logarithm from products of ``X`` and ``Y``. Only two of its steps work on all n rows of the draws.

    ``rows`` is ``Y'``, of shape (draws, p, n), ``gram`` is ``Y'Y``. With ``X'Y = U diag(cosines) E'`` the vectors
    ``(Y - X X'Y) E / sines`` are an orthonormal basis of what ``Y`` adds to the space of ``X``, and in the basis of
    both the turn from ``X`` to ``Y`` is the matrix ``V`` of size p + q, up to a rotation of the last q columns.
    """
    n_draws, p, n = rows.shape
    q = min(p, n - p)
    M = np.swapaxes((rows.reshape(-1, n) @ X).reshape(n_draws, p, p), -1, -2)
    U, cosines, Et = np.linalg.svd(M)
    # the q largest angles come last; below EPSILON, a direction is rounding error
    U, cosines, Et = U[:, :, p - q :], cosines[:, p - q :], Et[:, p - q :]
    E = np.swapaxes(Et, -1, -2)
    sines = np.sqrt(np.maximum((E * (gram @ E)).sum(axis=-2) - cosines**2, EPSILON))
    V = np.empty((n_draws, p + q, p + q))
    V[:, :p, :p], V[:, p:, :p] = M, sines[:, :, None] * Et
    V[:, :p, p:], V[:, p:, p:] = -U * sines[:, None, :], cosines[:, :, None] * np.eye(q)
    if q:
        V[..., -1] *= np.where(np.linalg.det(M) < 0, -1.0, 1.0)[:, None]
    A, B = _settle(V, p, tolerance)
    C = (E / sines[:, None, :]) @ B
    return Logarithm(A - M @ C, C, (A**2).sum(axis=(-2, -1)) / 2 + (B**2).sum(axis=(-2, -1)))


def _settle(V: Array, p: int, tolerance: float) -> tuple[Array, Array]:
    """First p columns of ``log V``, turned until its lower right corner is zero; ``V`` (draws, p + q, p + q)."""
    q = V.shape[-1] - p
    A, B = np.empty((len(V), p, p)), np.empty((len(V), q, p))
    active = np.arange(len(V))
    for _ in range(MAX_ROUNDS):
        log = rotation_log(V)
        corner = log[:, p:, p:]
        A[active], B[active] = log[:, :p, :p], log[:, p:, :p]
        going = np.abs(corner).max(axis=(-2, -1), initial=0) > (tolerance if q > 1 else np.inf)
        if not going.any():
            return A, B
        # exp(-corner) would do; the second-order correction takes fewer rounds, and Cayley's turn no exponential
        active, V, corner, lower = active[going], V[going], corner[going], log[going, p:, :p]
        P = lower @ np.swapaxes(lower, -1, -2) / 12
        turn = -corner
        for _ in range(2):  # towards the solution of turn = P turn + turn P - corner
            half = P @ turn
            turn = half - np.swapaxes(half, -1, -2) - corner
        turn /= 2
        V[:, :, p:] = V[:, :, p:] @ np.linalg.solve(np.eye(q) - turn, np.eye(q) + turn)
    raise ValueError(TOO_FAR)


def stiefel_exp(X: Array, tangent: Array) -> Array:
    """End point of the geodesic of the canonical metric that leaves ``X`` with velocity ``tangent``, both (n, p)."""
    p = X.shape[1]
    A, B = geometry.split_tangent(X, tangent)
    Q, S = np.linalg.qr(B)
    flow = scipy.linalg.expm(np.block([[A, -S.T], [S, np.zeros((p, p))]]))
    return geometry.polar(np.hstack([X, Q]) @ flow[:, :p])


def frechet_mean(Y: Array) -> tuple[Array, float]:
    """The matrix with least mean squared geodesic distance to ``Y`` (draws, n, p), and that least value."""
    X = geometry.polar(Y.mean(axis=0))
    n_draws, n, p = Y.shape
    if n == p and (np.linalg.det(Y @ X.T) < 0).any():
        raise ValueError("draws of both determinants: O(n) is not connected, so they have no Fréchet mean")
    rows = np.ascontiguousarray(np.swapaxes(Y, -1, -2))
    gram = rows @ Y
    move, previous, stretch = 1.0, np.zeros((n, p)), 1.0
    for _ in range(MAX_ROUNDS):
        # logarithms need not be much better than the point they are taken at
        enough = max(TOLERANCE, 1e-3 * move)
        log = _logarithm(X, rows, gram, enough)
        tangent = X @ log.A.mean(axis=0) + rows.reshape(-1, n).T @ log.C.reshape(-1, p) / n_draws
        # curvature makes the plain step too short by a factor that its remainder tells (Barzilai & Borwein)
        change = np.vdot(previous, previous - tangent)
        if change > 0:
            stretch = min(max(stretch * np.vdot(previous, previous) / change, 1.0), 2.0)
        X, before, move, previous = stiefel_exp(X, stretch * tangent), move, float(np.abs(tangent).max()), tangent
        # steps shrink by a constant factor, which tells the next one
        if enough <= 10 * TOLERANCE and move * min(1.0, move / before) < TOLERANCE:
            return X, float(log.squared_length.mean())
    raise ValueError(TOO_FAR)
