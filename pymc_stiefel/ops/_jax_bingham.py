"""The Bingham normaliser in JAX, by the method of ``normalizers._bingham``, with a fixed number of contour nodes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pymc_stiefel.normalizers._bingham import STEP, signs


def contour_nodes(n: int, p: int) -> int:
    """Contour nodes on either side of the saddlepoint: a tenth more than were needed with eigenvalues to 1e5."""
    return min(150 + n // 2, 240) if p == 1 else min(195 + n // 2, 310)


class _Contour(NamedTuple):
    """Nodes from the saddlepoint upwards; the lower ones are their conjugates."""

    offset: Any  # z - max(a)
    weight: Any  # phi(z) dz
    log_scale: Any  # of the factor taken out of the weights
    real: Any  # of z - a_i, by nodes and eigenvalues
    size: Any  # |z - a_i|^2

    def poles(self, weight: Any) -> Any:
        """Real part of the sum over the nodes of ``weight / (z - a_i)``, for every i."""
        return jnp.sum((weight.real[:, None] * self.real + (weight * self.offset.imag).imag[:, None]) / self.size, 0)


def _contour(a: Any, half: int) -> _Contour:
    drop = jnp.max(a) - a

    def newton(_, d):
        term = 0.5 / (d + drop)
        return d + (jnp.sum(term) - 1.0) / jnp.sum(term / (d + drop))

    root = jnp.sqrt(jax.lax.fori_loop(0, 60, newton, jnp.full((), 0.5, a.dtype)))
    y = STEP * jnp.arange(half + 1, dtype=a.dtype)
    offset = jax.lax.complex(root**2 - y**2, 2.0 * root * y)
    real, imag = offset.real[:, None] + drop, offset.imag[:, None]
    size = real**2 + imag**2
    # in real arithmetic: complex logarithms take most of the time
    log_size = offset.real + 0.5 * jnp.log(root**2 + y**2) - 0.25 * jnp.sum(jnp.log(size), axis=-1)
    phase = offset.imag + jnp.arctan2(y, root) - 0.5 * jnp.sum(jnp.arctan2(imag, real), axis=-1)
    magnitude = STEP * jnp.exp(log_size - log_size[0])
    weight = jax.lax.complex(magnitude * jnp.cos(phase), magnitude * jnp.sin(phase))
    return _Contour(offset, weight, log_size[0], real, size)


def _log_integral_vector(a: Any) -> tuple[Any, Any]:
    """p = 1: log of the contour integral and its derivative in a."""
    contour = _contour(a, contour_nodes(len(a), 1))
    weight = contour.weight * jnp.where(jnp.arange(len(contour.weight)) > 0, 2.0, 1.0)
    total = jnp.sum(weight.real)
    return jnp.max(a) + contour.log_scale + jnp.log(total), 0.5 * contour.poles(weight) / total


def _sign_matrix(half: int) -> np.ndarray:
    """The sign of the difference of two nodes, by sinc indefinite integration."""
    step = np.arange(2 * half + 1)[None, :] - np.arange(2 * half + 1)[:, None]
    return np.sign(step) * signs()[np.abs(step)]


def _log_integral_frame(a: Any, p: int) -> tuple[Any, Any]:
    """p >= 2: log of the ordered contour integral, a Pfaffian, and its derivative in a."""
    half = contour_nodes(len(a), p)
    contour = _contour(a, half)
    offset = jnp.concatenate([contour.offset[:0:-1].conj(), contour.offset])
    weight = jnp.concatenate([contour.weight[:0:-1].conj(), contour.weight])
    mass = jnp.abs(weight)
    rows: list[Any] = []  # polynomials orthonormal for |weight|, by Arnoldi's recurrence
    log_lead, log_total = jnp.zeros((), a.dtype), jnp.zeros((), a.dtype)
    for k in range(p):
        new = offset * rows[-1] if k else jnp.ones_like(offset)
        if k:
            basis = jnp.stack(rows)
            for _ in range(2):
                new = new - (basis.conj() @ (mass * new)) @ basis
        norm = jnp.sqrt(jnp.sum(mass * jnp.abs(new) ** 2))
        rows.append(new / norm)
        log_lead = log_lead - jnp.log(norm)
        log_total = log_total + log_lead
    f = jnp.stack(rows) * weight
    sign = jnp.asarray(_sign_matrix(half).T, a.dtype)
    beyond = jax.lax.complex(f.real @ sign, f.imag @ sign)
    M, right = f @ beyond.T, beyond
    if p % 2:
        edge = jnp.sum(f, axis=1)
        M = jnp.block([[M, edge[:, None]], [-edge[None, :], jnp.zeros((1, 1), M.dtype)]])
        right = jnp.concatenate([beyond, jnp.ones((1, f.shape[1]), f.dtype)])
    inverse = jnp.linalg.inv(M)
    density = jnp.sum(f * (inverse[:, :p].T @ right), axis=0)
    both = density[half:] + jnp.where(jnp.arange(half + 1) > 0, density[half::-1].conj(), 0.0)
    log_pfaffian = 0.5 * jnp.linalg.slogdet(M)[1]
    return p * (jnp.max(a) + contour.log_scale) + log_pfaffian - log_total, 0.5 * contour.poles(both)


def bingham_value_and_grad(a: Any, p: int) -> tuple[Any, Any]:
    """``log E etr(X' diag(a) X)`` for X uniform on St(n, p), and its derivative in a."""
    n = len(a)
    if p == n:
        return jnp.sum(a), jnp.ones_like(a)
    if 2 * p > n:  # the law of the complement
        value, grad = bingham_value_and_grad(-a, n - p)
        return value + jnp.sum(a), 1.0 - grad
    integral = _log_integral_vector if p == 1 else partial(_log_integral_frame, p=p)
    value, grad = integral(a)
    # For p >= 2 the Pfaffian cancels where the largest eigenvalues lie more than about 30 apart. The derivative sums
    # to p. Where it does not, the digits are lost; the result is NaN, and a sampler rejects the point.
    kept = jnp.abs(jnp.sum(grad) - p) < 1e-3
    return jnp.where(kept, value - integral(jnp.zeros_like(a))[0], jnp.nan), jnp.where(kept, grad, jnp.nan)


def bingham_matrix_value_and_grad(A: Any, p: int) -> tuple[Any, Any]:
    """The same of a symmetric matrix, with the gradient E[XX']; NaN if ``A`` is not finite."""
    fine = jnp.all(jnp.isfinite(A))
    a, V = jnp.linalg.eigh(jnp.where(fine, (A + A.T) / 2, jnp.eye(len(A), dtype=A.dtype)))
    value, grad = bingham_value_and_grad(a, p)
    return jnp.where(fine, value, jnp.nan), jnp.where(fine, (V * grad) @ V.T, jnp.nan)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_bingham_matrix(A: Any, p: int) -> Any:
    """Normaliser of ``etr(X'AX)`` on St(n, p)."""
    return bingham_matrix_value_and_grad(A, p)[0]


@log_bingham_matrix.defjvp
def _(p, primals, tangents):
    value, grad = bingham_matrix_value_and_grad(primals[0], p)
    return value, jnp.sum(grad * tangents[0])
