r"""Logarithm, exponential and Fréchet mean on St(n, p) in the canonical metric, for many matrices at once.

References
----------
Zimmermann (2017), "A matrix-algebraic algorithm for the Riemannian logarithm on the Stiefel manifold under the
canonical metric", doi:10.1137/16M1074485.
Zimmermann & Hüper (2022), "Computing the Riemannian logarithm on the Stiefel manifold", doi:10.1137/21M1425426.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from pymc_stiefel import geometry

__all__ = ["frechet_mean", "rotation_log", "squared_length", "stiefel_exp", "stiefel_log"]

Array = NDArray[np.float64]
TOLERANCE = 1e-9
MAX_ROUNDS = 200
TOO_FAR = "the draws are too far apart for a Riemannian mean: align them first, or use kind='extrinsic'"


def rotation_log(Q: Array) -> Array:
    r"""Principal logarithm of rotations, matrices in the last two dimensions.

    Cayley's :math:`K = (Q - I)(Q + I)^{-1} = \tanh(\tfrac12 \log Q)` is skew, so :math:`-iK` has an orthonormal
    eigenbasis, real eigenvalues :math:`\kappa`, and the angles of ``Q`` are :math:`2\arctan\kappa`.
    """
    identity = np.eye(Q.shape[-1])
    try:
        K = np.linalg.solve(Q + identity, Q - identity)  # the two factors commute
    except np.linalg.LinAlgError as error:
        raise ValueError(TOO_FAR) from error
    kappa, E = np.linalg.eigh(-0.5j * (K - np.swapaxes(K, -1, -2)))
    return -2 * np.imag((E * np.arctan(kappa)[..., None, :]) @ np.conj(np.swapaxes(E, -1, -2)))


def stiefel_log(X: Array, Y: Array) -> Array:
    """Tangent matrices at ``X`` (n, p) whose geodesics reach ``Y`` (draws, n, p) at time one."""
    n, p = X.shape
    q = min(p, n - p)
    M = X.T @ Y
    residual = Y - X @ M
    basis = np.linalg.svd(residual, full_matrices=False)[0][..., :q]
    block = np.concatenate([M, np.swapaxes(basis, -1, -2) @ residual], axis=-2)
    V = _complete(block)
    for _ in range(MAX_ROUNDS):
        log = rotation_log(V)
        C = log[:, p:, p:]
        if q < 2 or np.abs(C).max() < TOLERANCE:
            return X @ log[:, :p, :p] + basis @ log[:, p:, :p]
        # exp(-C) would do; the second-order correction takes fewer rounds, and Cayley's turn no exponential
        B = log[:, p:, :p]
        w, E = np.linalg.eigh(B @ np.swapaxes(B, -1, -2) / 12 - np.eye(q) / 2)
        turned = np.swapaxes(E, -1, -2) @ C @ E / (w[:, :, None] + w[:, None, :])
        turn = E @ turned @ np.swapaxes(E, -1, -2) / 2
        V[:, :, p:] = V[:, :, p:] @ np.linalg.solve(np.eye(q) - turn, np.eye(q) + turn)
    raise ValueError(TOO_FAR)


def stiefel_exp(X: Array, tangent: Array) -> Array:
    """End point of the geodesic of the canonical metric that leaves ``X`` with velocity ``tangent``, both (n, p)."""
    p = X.shape[1]
    A, B = geometry.split_tangent(X, tangent)
    Q, S = np.linalg.qr(B)
    flow = scipy.linalg.expm(np.block([[A, -S.T], [S, np.zeros((p, p))]]))
    return geometry.polar(np.hstack([X, Q]) @ flow[:, :p])


def squared_length(X: Array, tangent: Array) -> Array:
    """Canonical squared length ``|A|^2 / 2 + |B|^2`` of tangent matrices at ``X``."""
    A = X.T @ tangent
    return (tangent**2).sum(axis=(-2, -1)) - (A**2).sum(axis=(-2, -1)) / 2


def frechet_mean(Y: Array) -> Array:
    """The matrix with least mean squared geodesic distance to ``Y`` (draws, n, p), from the extrinsic mean on."""
    X = geometry.polar(Y.mean(axis=0))
    if X.shape[0] == X.shape[1] and (np.linalg.det(Y @ X.T) < 0).any():
        raise ValueError("draws of both determinants: O(n) is not connected, so they have no Fréchet mean")
    for _ in range(MAX_ROUNDS):
        tangent = stiefel_log(X, Y).mean(axis=0)
        X = stiefel_exp(X, tangent)
        if np.abs(tangent).max() < TOLERANCE:
            return X
    raise ValueError(TOO_FAR)


def _complete(block: Array) -> Array:
    """Rotations (p + q) whose first p columns are ``block``, with the lower right corner near the identity."""
    size, p = block.shape[-2:]
    if size == p:
        return block.copy()
    rest = np.linalg.qr(block, mode="complete")[0][..., p:]
    rest = rest @ np.swapaxes(geometry.polar(rest[..., p:, :]), -1, -2)
    V = np.concatenate([block, rest], axis=-1)
    V[..., -1] *= np.sign(np.linalg.det(V))[..., None]
    return V
