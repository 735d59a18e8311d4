"""The Ops for PyTensor's JAX backend, differentiable by JAX itself (numpyro and blackjax do that)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_stiefel.ops._normalizers import (
    LogBingham,
    LogBinghamGradient,
    LogHyp0F1,
    LogHyp0F1Gradient,
    LogHyp0F1Matrix,
    LogHyp0F1MatrixGradient,
    log_bingham_numpy,
    log_hyp0f1_numpy,
)
from pymc_stiefel.ops._polar import CheckedProjection, Polar, PolarPullback


def _signed_svd(Z, special):
    U, s, Vt = jnp.linalg.svd(Z, full_matrices=False)
    if special:
        sign = jnp.sign(jnp.linalg.det(U @ Vt))
        U, s = U.at[:, -1].multiply(sign), s.at[-1].multiply(sign)
    return U, s, Vt


def _polar_pullback(Z, G, special):
    n, p = Z.shape
    U, s, Vt = _signed_svd(Z, special)
    GV = G @ Vt.T
    UtG = U.T @ GV
    sums = jnp.where(jnp.eye(p, dtype=bool), 1.0, s[:, None] + s[None, :])
    moved = U @ ((UtG - UtG.T) / sums)
    if n > p:
        moved = moved + (GV - U @ UtG) / s
    return jnp.where(jnp.isfinite(Z).all(), moved @ Vt, jnp.nan)


def _make_polar(special):
    @jax.custom_vjp
    def polar(Z):
        U, _, Vt = _signed_svd(Z, special)
        return jnp.where(jnp.isfinite(Z).all(), U @ Vt, jnp.nan)

    polar.defvjp(lambda Z: (polar(Z), Z), lambda Z, G: (_polar_pullback(Z, G, special),))
    return polar


@jax_funcify.register(Polar)
@jax_funcify.register(CheckedProjection)  # JAX cannot raise on values: the projection alone
def _funcify_polar(op, **kwargs):
    return _make_polar(op.special)


@jax_funcify.register(PolarPullback)
def _funcify_polar_pullback(op, **kwargs):
    return lambda Z, G: _polar_pullback(Z, G, op.special)


def _value_and_gradient(n, s):
    """The compiled normaliser, called back on the host: JAX has no Bessel functions of large order."""

    def host(n, s):
        value, gradient = log_hyp0f1_numpy(n, s)
        return np.asarray(value, dtype=s.dtype), np.asarray(gradient, dtype=s.dtype)

    shapes = (jax.ShapeDtypeStruct((), s.dtype), jax.ShapeDtypeStruct(s.shape, s.dtype))
    return jax.pure_callback(host, shapes, n, s, vmap_method="sequential")


@jax.custom_vjp
def _log_hyp0f1(n, s):
    return _value_and_gradient(n, s)[0]


def _log_hyp0f1_forward(n, s):
    return _value_and_gradient(n, s)


def _log_hyp0f1_backward(gradient, cotangent):
    return None, cotangent * gradient


_log_hyp0f1.defvjp(_log_hyp0f1_forward, _log_hyp0f1_backward)


def _matrix_value_and_gradient(F):
    U, s, Vt = jnp.linalg.svd(F, full_matrices=False)
    value, gradient = _value_and_gradient(F.shape[0], s)
    return value, (U * gradient) @ Vt


@jax.custom_vjp
def _log_hyp0f1_matrix(F):
    return _value_and_gradient(F.shape[0], jnp.linalg.svd(F, compute_uv=False))[0]


_log_hyp0f1_matrix.defvjp(_matrix_value_and_gradient, lambda gradient, cotangent: (cotangent * gradient,))


@jax_funcify.register(LogHyp0F1)
def _funcify_log_hyp0f1(op, **kwargs):
    return _log_hyp0f1


@jax_funcify.register(LogHyp0F1Gradient)
def _funcify_log_hyp0f1_gradient(op, **kwargs):
    return lambda n, s: _value_and_gradient(n, s)[1]


@jax_funcify.register(LogHyp0F1Matrix)
def _funcify_log_hyp0f1_matrix(op, **kwargs):
    return _log_hyp0f1_matrix


@jax_funcify.register(LogHyp0F1MatrixGradient)
def _funcify_log_hyp0f1_matrix_gradient(op, **kwargs):
    return lambda F: _matrix_value_and_gradient(F)[1]


def _bingham_value_and_gradient(A, p):
    def host(A):
        value, gradient = log_bingham_numpy(A, p)
        return np.asarray(value, dtype=A.dtype), np.asarray(gradient, dtype=A.dtype)

    shapes = (jax.ShapeDtypeStruct((), A.dtype), jax.ShapeDtypeStruct(A.shape, A.dtype))
    return jax.pure_callback(host, shapes, A, vmap_method="sequential")


@jax_funcify.register(LogBingham)
def _funcify_log_bingham(op, **kwargs):
    @jax.custom_vjp
    def log_bingham(A):
        return _bingham_value_and_gradient(A, op.p)[0]

    def forward(A):
        return _bingham_value_and_gradient(A, op.p)

    log_bingham.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return log_bingham


@jax_funcify.register(LogBinghamGradient)
def _funcify_log_bingham_gradient(op, **kwargs):
    return lambda A: _bingham_value_and_gradient(A, op.p)[1]
