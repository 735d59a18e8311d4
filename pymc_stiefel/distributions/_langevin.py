"""The matrix Langevin law on St(n, p), and von Mises-Fisher on the sphere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions._base import (
    StiefelBlock,
    StiefelDistribution,
    checked_direction,
    linear_parameters,
    trace,
)
from pymc_stiefel.draws import _batches
from pymc_stiefel.ops._normalizers import log_hyp0f1_matrix, log_hyp0f1_singular
from pymc_stiefel.ops._polar import StiefelRV


class MatrixLangevinRV(StiefelRV):
    name = "MatrixLangevin"
    signature = "(n,p)->(n,p)"
    _print_name = ("MatrixLangevin", r"\operatorname{MatrixLangevin}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, F: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.matrix_langevin, [F], [2], size, rng)


class MatrixLangevin(StiefelDistribution):
    r"""Matrix Langevin (matrix von Mises-Fisher) distribution on St(n, p).

    .. math:: f(X) = \mathrm{etr}(F'X) \,/\, {}_0F_1(\tfrac{n}{2}; \tfrac14 F'F)

    Give ``F``, or ``(M, kappa)`` with :math:`F = M\,\mathrm{diag}(\kappa)`. The normaliser is differentiable, so all
    parameters may be random, and a concentration can be learnt. With ``(M, kappa)`` the singular values are known and
    the normaliser is cheaper. See ``normalizers.log_hyp0f1`` for its accuracy.

    Square matrices are those of O(n), with both signs of the determinant. For rotations use :class:`MatrixFisher`,
    which has another normaliser; otherwise a learnt concentration is wrong.

    Parameters
    ----------
    F : tensor_like (..., n, p)
        ``MatrixLangevin("X", F)``. The mode is its polar factor, the singular values are the concentrations.
    M : tensor_like (..., n, p)
        Orthonormal mode, ``MatrixLangevin("X", M, kappa)``.
    kappa : tensor_like (..., p) or scalar
        Concentrations of the columns, not negative; 0 is the uniform distribution.

    References
    ----------
    Downs (1972), doi:10.1093/biomet/59.3.665. Hoff (2009), doi:10.1198/jcgs.2009.07177.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     kappa = pm.HalfNormal("kappa", 10)
    ...     X = pst.MatrixLangevin("X", M=np.eye(4, 2), kappa=kappa)
    """

    rv_type = MatrixLangevinRV
    rv_op = MatrixLangevinRV()

    @classmethod
    def dist(cls, *args: Any, F: Any = None, M: Any = None, kappa: Any = None, **kwargs: Any) -> TensorVariable:
        F, M, kappa = linear_parameters(cls.__name__, args, F, M, kappa)
        if M is not None:
            return _ScaledMatrixLangevin.dist(M, kappa, **kwargs)
        F = check.array("F", F, 2)
        check.tall("F", F)
        return cls.create([F], **kwargs)

    def logp(value: Any, F: TensorVariable) -> TensorVariable:
        return ops.guard(trace(F, value) - log_hyp0f1_matrix(F), value)

    @classmethod
    def check_data(cls, name: str, data: Any, block: StiefelBlock) -> None:
        if data is not None and block.n == block.p and data.size and (np.linalg.det(data) > 0).all():
            warnings.warn(
                f"all observed matrices of {name} have determinant +1, but MatrixLangevin is a law on O({block.n}), "
                "where half of them would have -1 if kappa were 0; for rotations use MatrixFisher, or a learnt "
                "concentration is too large",
                UserWarning,
                stacklevel=3,
            )


class ScaledMatrixLangevinRV(StiefelRV):
    """Matrix Langevin in its mean direction ``M`` and concentrations ``kappa``, which are the singular values of F."""

    name = "MatrixLangevin"
    signature = "(n,p),(o,p)->(n,p)"  # kappa is a row, so that only a vector's last parameter has one dimension less
    _print_name = ("MatrixLangevin", r"\operatorname{MatrixLangevin}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, M: Any, kappa: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.matrix_langevin, [np.asarray(M) * kappa], [2], size, rng)


class _ScaledMatrixLangevin(StiefelDistribution):
    rv_type = ScaledMatrixLangevinRV
    rv_op = ScaledMatrixLangevinRV()

    @classmethod
    def dist(cls, M: Any, kappa: Any, **kwargs: Any) -> TensorVariable:
        M, kappa = check.array("M", M, 2), check.array("kappa", kappa, 0)
        check.tall("M", M)
        check.non_negative("kappa", kappa)
        if kappa.type.ndim == 0 or kappa.type.shape[-1] == 1:
            kappa = kappa * pt.ones(M.shape[-1], dtype=kappa.dtype)
        check.same_length("the last dimension of kappa", kappa.type.shape[-1], "that of M", M.type.shape[-1])
        return cls.create([checked_direction("M", M), kappa[..., None, :]], **kwargs)

    def logp(value: Any, M: TensorVariable, kappa: TensorVariable) -> TensorVariable:
        logp = trace(M * kappa, value) - log_hyp0f1_singular(value.shape[-2], kappa[..., 0, :])
        return ops.guard(check_parameters(logp, kappa >= 0, msg="kappa >= 0"), value)


class VonMisesFisherRV(StiefelRV):
    name = "VonMisesFisher"
    signature = "(n),()->(n)"
    vector = True
    _print_name = ("VonMisesFisher", r"\operatorname{VonMisesFisher}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, mu: Any, kappa: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.von_mises_fisher, [mu, kappa], [1, 0], size, rng)


class VonMisesFisher(StiefelDistribution):
    r"""Von Mises-Fisher distribution on the unit sphere, the matrix Langevin with p = 1; one draw has shape (n,).

    .. math:: f(x) = \exp(\kappa\,\mu'x) \,/\, {}_0F_1(\tfrac{n}{2}; \tfrac14\kappa^2)

    Parameters
    ----------
    mu : tensor_like (..., n)
        Mean direction, a unit vector.
    kappa : tensor_like (...)
        Concentration, not negative; may be random, the normaliser is stable from 0 to 10^6.

    References
    ----------
    Mardia & Jupp (1999), Directional Statistics, doi:10.1002/9780470316979. Wood (1994), doi:10.1080/03610919408813161.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> x = pm.draw(pst.VonMisesFisher.dist(mu=[0, 0, 1.0], kappa=1e6), random_seed=1)
    >>> bool(x[2] > 0.999)
    True
    """

    rv_type = VonMisesFisherRV
    rv_op = VonMisesFisherRV()

    @classmethod
    def dist(cls, mu: Any, kappa: Any, **kwargs: Any) -> TensorVariable:
        mu, kappa = check.array("mu", mu, 1), check.array("kappa", kappa, 0)
        check.non_negative("kappa", kappa)
        return cls.create([checked_direction("mu", mu, vector=True), kappa], **kwargs)

    def logp(value: Any, mu: TensorVariable, kappa: TensorVariable) -> TensorVariable:
        logp = kappa * (mu * value).sum(axis=-1) - log_hyp0f1_singular(value.shape[-1], kappa[..., None])
        return ops.guard(check_parameters(logp, kappa >= 0, msg="kappa >= 0"), value, vector=True)
