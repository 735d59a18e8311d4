"""PyTensor operations for the normalising constants, see :mod:`pymc_stiefel.normalizers` for the numbers.

They have first derivatives, by Ops of their own, and no second ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise

from pymc_stiefel.normalizers._functions import log_bingham, log_hyp0f1
from pymc_stiefel.ops._polar import Differentiable, as_float

__all__ = ["log_bingham_matrix", "log_hyp0f1_matrix", "log_hyp0f1_singular"]

# ---------------------------------------------------------------- Langevin


class LogHyp0F1(Differentiable):
    r""":math:`\log {}_0F_1(n/2; \mathrm{diag}(s)^2/4)` of an integer ``n`` and the singular values ``s >= 0``."""

    __props__ = ()
    gufunc_signature = "(),(p)->()"

    def make_node(self, n, s):
        n, s = pt.as_tensor_variable(n), as_float(s)
        return Apply(self, [n, s], [pt.scalar(dtype=s.dtype)])

    def infer_shape(self, *args):
        return [()]

    def perform(self, node, inputs, outputs):
        value, _ = log_hyp0f1_numpy(*inputs)
        outputs[0][0] = np.asarray(value, dtype=node.outputs[0].dtype)

    def pullback(self, inputs, outputs, cotangents):
        n, s = inputs
        return [n.zeros_like(dtype=s.dtype), cotangents[0] * LogHyp0F1Gradient()(n, s)]


class LogHyp0F1Gradient(Differentiable):
    """Gradient of ``LogHyp0F1`` in the singular values."""

    __props__ = ()
    gufunc_signature = "(),(p)->(p)"

    def make_node(self, n, s):
        n, s = pt.as_tensor_variable(n), as_float(s)
        return Apply(self, [n, s], [s.type()])

    def infer_shape(self, *args):
        return [args[-1][1]]

    def perform(self, node, inputs, outputs):
        _, gradient = log_hyp0f1_numpy(*inputs)
        outputs[0][0] = np.asarray(gradient, dtype=node.outputs[0].dtype)


class LogHyp0F1Matrix(Differentiable):
    """``LogHyp0F1`` of the singular values of a matrix ``F`` of shape (n, p)."""

    __props__ = ()
    gufunc_signature = "(n,p)->()"

    def make_node(self, F):
        F = as_float(F)
        return Apply(self, [F], [pt.scalar(dtype=F.dtype)])

    def infer_shape(self, *args):
        return [()]

    def perform(self, node, inputs, outputs):
        (F,) = inputs
        finite = np.isfinite(F).all()
        value = log_hyp0f1_numpy(len(F), np.linalg.svd(F, compute_uv=False))[0] if finite else np.nan
        outputs[0][0] = np.asarray(value, dtype=node.outputs[0].dtype)

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * LogHyp0F1MatrixGradient()(inputs[0])]


class LogHyp0F1MatrixGradient(Differentiable):
    """``U diag(g) V'`` with ``F = U diag(s) V'`` and ``g`` the gradient in ``s``; this is E[X] under the law."""

    __props__ = ()
    gufunc_signature = "(n,p)->(n,p)"

    def make_node(self, F):
        F = as_float(F)
        return Apply(self, [F], [F.type()])

    def infer_shape(self, *args):
        return [args[-1][0]]

    def perform(self, node, inputs, outputs):
        (F,) = inputs
        if np.isfinite(F).all():
            U, s, Vt = np.linalg.svd(F, full_matrices=False)
            gradient = (U * log_hyp0f1_numpy(len(F), s)[1]) @ Vt
        else:
            gradient = np.full_like(F, np.nan)
        outputs[0][0] = gradient.astype(node.outputs[0].dtype)


def log_hyp0f1_numpy(n: Any, s: NDArray) -> tuple[float, NDArray]:
    """``normalizers.log_hyp0f1``, with NaN instead of an error outside its domain (samplers do look there)."""
    s = np.ascontiguousarray(s, dtype=np.float64)
    if not (np.isfinite(s).all() and (s >= 0).all()):
        return np.nan, np.full(s.shape, np.nan)
    return log_hyp0f1(int(n), s)


def log_hyp0f1_singular(n: Any, s: Any) -> Any:
    """Symbolic log normaliser of the matrix Langevin law from singular values ``(..., p)``."""
    return Blockwise(LogHyp0F1())(n, s)


def log_hyp0f1_matrix(F: Any) -> Any:
    """Symbolic log normaliser of the matrix Langevin law from ``F`` of shape ``(..., n, p)``."""
    return Blockwise(LogHyp0F1Matrix())(F)


# ---------------------------------------------------------------- Bingham


class LogBingham(Differentiable):
    r""":math:`\log {}_1F_1(p/2; n/2; A) = \log E_\mathrm{Haar}\,\mathrm{etr}(X'AX)` of a symmetric ``A`` (n x n)."""

    __props__ = ("p",)
    gufunc_signature = "(n,n)->()"

    def __init__(self, p: int):
        self.p = p

    def make_node(self, A):
        A = as_float(A)
        return Apply(self, [A], [pt.scalar(dtype=A.dtype)])

    def infer_shape(self, *args):
        return [()]

    def perform(self, node, inputs, outputs):
        value, _ = log_bingham_numpy(inputs[0], self.p)
        outputs[0][0] = np.asarray(value, dtype=node.outputs[0].dtype)

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * LogBinghamGradient(self.p)(inputs[0])]


class LogBinghamGradient(Differentiable):
    """``V diag(g) V'`` with ``A = V diag(a) V'`` and ``g`` the gradient in ``a``; this is E[XX'] under the law."""

    __props__ = ("p",)
    gufunc_signature = "(n,n)->(n,n)"

    def __init__(self, p: int):
        self.p = p

    def make_node(self, A):
        A = as_float(A)
        return Apply(self, [A], [A.type()])

    def infer_shape(self, *args):
        return [args[-1][0]]

    def perform(self, node, inputs, outputs):
        _, gradient = log_bingham_numpy(inputs[0], self.p)
        outputs[0][0] = np.asarray(gradient, dtype=node.outputs[0].dtype)


def log_bingham_numpy(A: NDArray, p: int) -> tuple[float, NDArray]:
    """``normalizers.log_bingham`` of the symmetric part of ``A``, with the gradient as a matrix; NaN if not finite."""
    A = np.asarray(A, dtype=np.float64)
    if not np.isfinite(A).all():
        return np.nan, np.full(A.shape, np.nan)
    a, V = np.linalg.eigh((A + A.T) / 2)
    value, gradient = log_bingham(len(A), a, np.ones(p))
    return value, (V * gradient) @ V.T


def log_bingham_matrix(A: Any, p: int) -> Any:
    """Symbolic log normaliser of ``etr(X'AX)`` from ``A`` of shape ``(..., n, n)``."""
    return Blockwise(LogBingham(p))(A)
