"""The matrix Fisher law of rotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions._base import (
    StiefelDistribution,
    checked_direction,
    linear_parameters,
    symbolic_integer,
    trace,
)
from pymc_stiefel.draws import _batches
from pymc_stiefel.ops._normalizers import log_bingham_matrix, log_hyp0f1_matrix
from pymc_stiefel.ops._polar import StiefelRV

EXACT_SIDE = 3
"""Largest n whose normaliser is known."""


class MatrixFisherRV(StiefelRV):
    name = "MatrixFisher"
    signature = "(),(m,m)->(n,p)"  # the integer n comes first in laws of rotations
    special = True
    _print_name = ("MatrixFisher", r"\operatorname{MatrixFisher}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        return [symbolic_integer(dist_params[0])] * 2

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, n: Any, F: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.matrix_fisher, [F], [2], size, rng)


class MatrixFisher(StiefelDistribution):
    r"""Matrix Fisher distribution of rotations: the matrix Langevin density on SO(n), with its own normaliser.

    .. math:: f(X) = \mathrm{etr}(F'X) \,/\, E_{SO(n)}\,\mathrm{etr}(F'X)

    with respect to normalised Haar measure on SO(n). Either ``F`` or ``(M, kappa)`` with
    :math:`F = M\,\mathrm{diag}(\kappa)`. The normaliser is exact and differentiable for n = 2 (a Bessel function) and
    n = 3 (a Bingham law of quaternions), so that the concentration is learnt. For n >= 4 no tractable form is known:
    the parameters must be numbers, and the log density is that of the numerator. It differs by a constant, on which
    posteriors do not depend.

    Parameters
    ----------
    F : tensor_like (..., n, n)
        ``MatrixFisher("X", F)``. The mode is the rotation nearest to it.
    M : tensor_like (..., n, n)
        Mode, a rotation: ``MatrixFisher("X", M=M, kappa=kappa)``.
    kappa : tensor_like (..., n) or scalar
        Concentrations, not negative; 0 is the uniform distribution.

    References
    ----------
    Downs (1972), doi:10.1093/biomet/59.3.665. Prentice (1986), J. R. Statist. Soc. B 48, 214-222.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     Q = pst.SpecialOrthogonal("Q", n=3)
    ...     kappa = pm.HalfNormal("kappa", 10)
    ...     X = pst.MatrixFisher("X", M=Q, kappa=kappa)
    """

    rv_type = MatrixFisherRV
    rv_op = MatrixFisherRV()

    @classmethod
    def dist(cls, *args: Any, F: Any = None, M: Any = None, kappa: Any = None, **kwargs: Any) -> TensorVariable:
        F, M, kappa = linear_parameters(cls.__name__, args, F, M, kappa)
        if M is None:
            F = check.array("F", F, 2)
        else:
            M, kappa = check.array("M", M, 2), check.array("kappa", kappa, 0)
            check.square("M", M)
            check.non_negative("kappa", kappa)
            if kappa.type.ndim > 0:
                check.same_length("the last dimension of kappa", kappa.type.shape[-1], "that of M", M.type.shape[-1])
                kappa = kappa[..., None, :]
            F = check.fold(checked_direction("M", M, special=True) * kappa)
        check.square("F", F)
        n = F.type.shape[-1] or F.type.shape[-2]
        if n is None:
            raise ValueError("F must have a known shape; use pytensor.tensor.specify_shape(F, (n, n))")
        if n > EXACT_SIDE and check.known(F) is None:
            raise ValueError(
                f"F must be an array of numbers for n = {n}, got the symbolic {F}: the normaliser depends on it and is "
                f"known for n <= {EXACT_SIDE} only, so a posterior that learns it would be wrong"
            )
        return cls.create([pt.constant(n, dtype="int64"), F], **kwargs)

    def logp(value: Any, n: TensorVariable, F: TensorVariable) -> TensorVariable:
        logp = trace(F, value)
        side = F.type.shape[-1] or value.type.shape[-1]
        if side == 1:
            logp = logp - F[..., 0, 0]
        elif side == 2:
            f = pt.stack([F[..., 0, 0] + F[..., 1, 1], F[..., 1, 0] - F[..., 0, 1]], axis=-1)
            logp = logp - log_hyp0f1_matrix(f[..., None])
        elif side == EXACT_SIDE:
            logp = logp - log_bingham_matrix(_batches.quaternion_form(F, pt.stack), 1)
        return ops.guard(logp, value, special=True)
