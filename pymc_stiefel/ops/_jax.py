"""The Ops for PyTensor's JAX backend, differentiable by JAX itself (numpyro and blackjax do that)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_stiefel.ops import _jax_bingham as bingham
from pymc_stiefel.ops import _jax_normalizers as native
from pymc_stiefel.ops._curvature import polar_curvature
from pymc_stiefel.ops._normalizers import Curvature, LogBingham, LogHyp0F1, LogHyp0F1Matrix
from pymc_stiefel.ops._polar import CheckedProjection, Polar, PolarCurvature, PolarPullback


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
@jax_funcify.register(CheckedProjection)  # JAX cannot raise errors on values, so this only projects
def _funcify_polar(op, **kwargs):
    return _make_polar(op.special)


@jax_funcify.register(PolarPullback)
def _funcify_polar_pullback(op, **kwargs):
    return lambda Z, G: _polar_pullback(Z, G, op.special)


@jax_funcify.register(PolarCurvature)
def _funcify_polar_curvature(op, **kwargs):
    def host(Z, G, C):
        arrays = [np.ascontiguousarray(x, dtype=np.float64) for x in (Z, G, C)]
        return polar_curvature(*arrays, int(op.special)).astype(Z.dtype)

    def curvature(Z, G, C):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(Z.shape, Z.dtype), Z, G, C, vmap_method="sequential")

    return curvature


@jax_funcify.register(Curvature)
def _funcify_curvature(op, **kwargs):
    """Second derivatives run on the host, by a callback."""

    def curvature(*inputs):
        shape = jax.ShapeDtypeStruct(inputs[-1].shape, inputs[-1].dtype)
        return jax.pure_callback(lambda *x: op.numpy(*map(np.asarray, x)), shape, *inputs, vmap_method="sequential")

    return curvature


@jax_funcify.register(LogHyp0F1)
def _funcify_log_hyp0f1(op, **kwargs):
    return lambda n, s: (native.log_hyp0f1(n, s), native.hyp0f1_value_and_grad(n, s)[1])


@jax_funcify.register(LogHyp0F1Matrix)
def _funcify_log_hyp0f1_matrix(op, **kwargs):
    return lambda F: (native.log_hyp0f1_matrix(F), native.hyp0f1_matrix_value_and_grad(F)[1])


@jax_funcify.register(LogBingham)
def _funcify_log_bingham(op, **kwargs):
    return lambda A: (bingham.log_bingham_matrix(A, op.p), bingham.bingham_matrix_value_and_grad(A, op.p)[1])
