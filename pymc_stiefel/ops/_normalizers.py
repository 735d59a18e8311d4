"""PyTensor operations for the normalising constants, see :mod:`pymc_stiefel.normalizers` for the numbers.

Each is one Op with two outputs, the value and its gradient. The derivative of the gradient is an Op of its own, the
product of the Hessian with a direction; it has no further derivative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise

from pymc_stiefel.normalizers._bingham import log_bingham_frame
from pymc_stiefel.normalizers._curvature import bingham_curvature, langevin_curvature, singular_curvature
from pymc_stiefel.normalizers._functions import log_hyp0f1
from pymc_stiefel.ops._polar import Differentiable, as_float

__all__ = ["log_bingham_matrix", "log_hyp0f1_matrix", "log_hyp0f1_singular"]


class Normalizer(Differentiable):
    """Value and gradient of a log normaliser, in its last input; NaN outside the domain (samplers may go there)."""

    __props__: tuple[str, ...] = ()
    gufunc_signature: str

    def make_node(self, *inputs):
        parameter = as_float(inputs[-1])
        given = [pt.as_tensor_variable(x) for x in inputs[:-1]]
        return Apply(self, [*given, parameter], [pt.scalar(dtype=parameter.dtype), parameter.type()])

    def infer_shape(self, *args):
        return [(), args[-1][-1]]

    def evaluate(self, *inputs: Any) -> tuple[float, NDArray[Any]]:
        """Value and gradient at finite numbers."""
        raise NotImplementedError

    def bend(self, *inputs: Any) -> NDArray[Any]:
        """The derivative of the gradient in the direction of the last input, at finite numbers."""
        raise NotImplementedError

    def numpy(self, *inputs: Any) -> tuple[Any, Any]:
        """``evaluate`` in the precision of the parameter, NaN where that is not finite."""
        parameter = np.asarray(inputs[-1], dtype=np.float64)
        if np.isfinite(parameter).all():
            value, gradient = self.evaluate(*inputs[:-1], parameter)
        else:
            value, gradient = np.nan, np.full(parameter.shape, np.nan)
        dtype = inputs[-1].dtype
        return np.asarray(value, dtype=dtype), np.asarray(gradient, dtype=dtype)

    def perform(self, node, inputs, outputs):
        outputs[0][0], outputs[1][0] = self.numpy(*inputs)

    def pullback(self, inputs, outputs, cotangents):
        *given, parameter = inputs
        total: Any = parameter.zeros_like()
        if not isinstance(cotangents[0].type, DisconnectedType):
            total = cotangents[0] * _outputs(self, *inputs)[1]
        if not isinstance(cotangents[1].type, DisconnectedType):
            total = total + Curvature(self)(*inputs, cotangents[1])
        return [*(x.zeros_like(dtype=parameter.dtype) for x in given), total]


def _outputs(op: Op, *inputs: Any) -> Any:
    """The outputs of an Op that has several."""
    return op(*inputs)


class Curvature(Differentiable):
    """The Hessian of a normaliser, times a direction of the shape of its parameter."""

    __props__ = ("law",)

    def __init__(self, law: Normalizer):
        self.law = law
        inputs = law.gufunc_signature.split("->")[0]
        parameter = inputs[inputs.rindex("(") :]
        self.gufunc_signature = f"{inputs},{parameter}->{parameter}"

    def make_node(self, *inputs):
        *given, parameter, direction = inputs
        parameter, direction = as_float(parameter), as_float(direction)
        return Apply(self, [*map(pt.as_tensor_variable, given), parameter, direction], [parameter.type()])

    def infer_shape(self, *args):
        return [args[-1][-2]]

    def numpy(self, *inputs: Any) -> Any:
        """``Normalizer.bend``, NaN where something is not finite."""
        *given, parameter, direction = inputs
        if not np.any(direction):  # second derivatives are not requested
            return np.zeros_like(parameter)
        arrays = [np.ascontiguousarray(x, dtype=np.float64) for x in (parameter, direction)]
        finite = all(np.isfinite(x).all() for x in arrays)
        result = self.law.bend(*given, *arrays) if finite else np.full(parameter.shape, np.nan)
        return np.asarray(result, dtype=parameter.dtype)

    def perform(self, node, inputs, outputs):
        outputs[0][0] = self.numpy(*inputs)


class LogHyp0F1(Normalizer):
    r""":math:`\log {}_0F_1(n/2; \mathrm{diag}(s)^2/4)` of an integer ``n`` and the singular values ``s >= 0``."""

    gufunc_signature = "(),(p)->(),(p)"

    def evaluate(self, n, s):
        if (s < 0).any():
            return np.nan, np.full(s.shape, np.nan)
        return log_hyp0f1(int(n), np.ascontiguousarray(s))

    def bend(self, n, s, direction):
        return singular_curvature(int(n), s, direction)


class LogHyp0F1Matrix(Normalizer):
    """``LogHyp0F1`` of the singular values of ``F`` (n x p); the gradient is E[X] under the law."""

    gufunc_signature = "(n,p)->(),(n,p)"

    def evaluate(self, F):
        U, s, Vt = np.linalg.svd(F, full_matrices=False)
        value, gradient = log_hyp0f1(len(F), s)
        return value, (U * gradient) @ Vt

    def bend(self, F, direction):
        return langevin_curvature(F, direction)


class LogBingham(Normalizer):
    r""":math:`\log {}_1F_1(p/2; n/2; A) = \log E_\mathrm{Haar}\,\mathrm{etr}(X'AX)` of the symmetric part of ``A``.

    The gradient is E[XX'] under the law.
    """

    __props__ = ("p",)
    gufunc_signature = "(n,n)->(),(n,n)"

    def __init__(self, p: int):
        self.p = p

    def evaluate(self, A):
        a, V = np.linalg.eigh((A + A.T) / 2)
        value, gradient = log_bingham_frame(self.p, a)
        return value, (V * gradient) @ V.T

    def bend(self, A, direction):
        return bingham_curvature(A, direction, self.p)


def log_hyp0f1_singular(n: Any, s: Any) -> Any:
    """Symbolic log normaliser of the matrix Langevin law from singular values ``(..., p)``."""
    return _outputs(Blockwise(LogHyp0F1()), n, s)[0]


def log_hyp0f1_matrix(F: Any) -> Any:
    """Symbolic log normaliser of the matrix Langevin law from ``F`` of shape ``(..., n, p)``."""
    return _outputs(Blockwise(LogHyp0F1Matrix()), F)[0]


def log_bingham_matrix(A: Any, p: int) -> Any:
    """Symbolic log normaliser of ``etr(X'AX)`` from ``A`` of shape ``(..., n, n)``."""
    return _outputs(Blockwise(LogBingham(p)), A)[0]
