r"""Random orthonormal matrices as PyMC variables.

All densities are with respect to normalised Haar measure on St(n, p), so the uniform variable has log density zero.
Every variable takes PyMC's usual arguments (``shape``, ``size``, ``dims``, ``initval``, ``observed``, ``total_size``,
``transform``); leading batch dimensions are independent matrices. Chains start from seeded prior draws. Values off the
manifold (``max|X'X - I| > 1e-6``) have log density minus infinity.

References
----------
Chikuse (2003), Statistics on Special Manifolds, doi:10.1007/978-0-387-21540-2.
"""

from __future__ import annotations

import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.logprob.utils import CheckParameterValue
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions import _random_variables as rvs
from pymc_stiefel.distributions._base import StiefelBlock, StiefelDistribution, stiefel_block, trace
from pymc_stiefel.distributions._bingham import MatrixBingham, MatrixBinghamLangevin
from pymc_stiefel.ops import _normalizers as _normalizer_ops
from pymc_stiefel.ops._polar import StiefelRV, without_manifold_check

__all__ = [
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamLangevin",
    "MatrixLangevin",
    "SpecialOrthogonal",
    "StiefelBlock",
    "StiefelUniform",
    "UnitVector",
    "VonMisesFisher",
    "stiefel_block",
    "without_manifold_check",
]


def _checked_direction(name: str, direction: TensorVariable, *, vector: bool) -> TensorVariable:
    """A mean direction, checked now if it is known, wherever it is used if not; our own variables need no check."""
    check.orthonormal(name, direction, vector=vector)
    owner = direction.owner
    if check.known(direction) is not None or (owner is not None and isinstance(owner.op, StiefelRV)):
        return direction
    ok = pt.all(ops.on_manifold(direction, vector=vector))
    return CheckParameterValue(f"{name} must be orthonormal")(direction, ok)


# ---------------------------------------------------------------- uniform


class StiefelUniform(StiefelDistribution):
    r"""Uniform distribution of orthonormal matrices: Haar measure on St(n, p), log density 0.

    Parameters
    ----------
    n, p : int
        Rows and columns, ``n >= p >= 1``; one draw has shape (n, p). ``p = n`` is the orthogonal group, with both signs
        of the determinant.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> X = pm.draw(pst.StiefelUniform.dist(n=4, p=2), random_seed=1)
    >>> bool(abs(X.T @ X - [[1, 0], [0, 1]]).max() < 1e-12)
    True
    """

    rv_type = rvs.StiefelUniformRV
    rv_op = rvs.StiefelUniformRV()

    @classmethod
    def dist(cls, n, p, **kwargs):
        n, p = check.dimensions(n, p)
        return cls.create([pt.constant(n, dtype="int64"), pt.constant(p, dtype="int64")], **kwargs)

    def logp(value, n, p):
        return ops.guard(pt.zeros(value.shape[:-2], dtype=value.dtype), value)


class SpecialOrthogonal(StiefelDistribution):
    r"""Uniform distribution of rotations: Haar measure on SO(n), n x n orthogonal matrices of determinant +1.

    Parameters
    ----------
    n : int
        Dimension; one draw has shape (n, n).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> round(float(np.linalg.det(pm.draw(pst.SpecialOrthogonal.dist(n=3), random_seed=1))), 12)
    1.0
    """

    rv_type = rvs.SpecialOrthogonalRV
    rv_op = rvs.SpecialOrthogonalRV()

    @classmethod
    def dist(cls, n, **kwargs):
        return cls.create([pt.constant(check.integer("n", n), dtype="int64")], **kwargs)

    def logp(value, n):
        return ops.guard(pt.zeros(value.shape[:-2], dtype=value.dtype), value, special=True)


class UnitVector(StiefelDistribution):
    """Uniform distribution on the unit sphere; one draw has shape (n,).

    Parameters
    ----------
    n : int
        Dimension of the surrounding space.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> pm.draw(pst.UnitVector.dist(n=3, size=2), random_seed=1).shape
    (2, 3)
    """

    rv_type = rvs.UnitVectorRV
    rv_op = rvs.UnitVectorRV()

    @classmethod
    def dist(cls, n, **kwargs):
        return cls.create([pt.constant(check.integer("n", n), dtype="int64")], **kwargs)

    def logp(value, n):
        return ops.guard(pt.zeros(value.shape[:-1], dtype=value.dtype), value, vector=True)


# ---------------------------------------------------------------- Langevin


class MatrixLangevin(StiefelDistribution):
    r"""Matrix Langevin (matrix von Mises-Fisher) distribution on St(n, p).

    .. math:: f(X) = \mathrm{etr}(F'X) \,/\, {}_0F_1(\tfrac{n}{2}; \tfrac14 F'F)

    Either ``F`` or ``(M, kappa)`` with :math:`F = M\,\mathrm{diag}(\kappa)`. The normaliser is differentiable: all
    may be random and the concentration is learnt. With ``(M, kappa)`` the singular values are known and the
    normaliser is cheaper. See ``normalizers.log_hyp0f1`` for its accuracy.

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

    rv_type = rvs.MatrixLangevinRV
    rv_op = rvs.MatrixLangevinRV()

    @classmethod
    def dist(cls, F=None, kappa=None, *, M=None, **kwargs):
        if kappa is not None:
            if (F is None) == (M is None):
                raise ValueError("MatrixLangevin takes either F, or M and kappa")
            return _ScaledMatrixLangevin.dist(F if M is None else M, kappa, **kwargs)
        if F is None or M is not None:
            raise ValueError("MatrixLangevin takes either F, or M and kappa")
        F = check.array("F", F, 2)
        check.tall("F", F)
        return cls.create([F], **kwargs)

    def logp(value, F):
        return ops.guard(trace(F, value) - _normalizer_ops.log_hyp0f1_matrix(F), value)


class _ScaledMatrixLangevin(StiefelDistribution):
    rv_type = rvs.ScaledMatrixLangevinRV
    rv_op = rvs.ScaledMatrixLangevinRV()

    @classmethod
    def dist(cls, M, kappa, **kwargs):
        M, kappa = check.array("M", M, 2), check.array("kappa", kappa, 0)
        check.tall("M", M)
        check.non_negative("kappa", kappa)
        if kappa.type.ndim == 0 or kappa.type.shape[-1] == 1:
            kappa = kappa * pt.ones(M.shape[-1], dtype=kappa.dtype)
        check.same_length("the last dimension of kappa", kappa.type.shape[-1], "that of M", M.type.shape[-1])
        return cls.create([_checked_direction("M", M, vector=False), kappa], **kwargs)

    def logp(value, M, kappa):
        logp = trace(M * kappa[..., None, :], value) - _normalizer_ops.log_hyp0f1_singular(value.shape[-2], kappa)
        return ops.guard(check_parameters(logp, kappa >= 0, msg="kappa >= 0"), value)


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

    rv_type = rvs.VonMisesFisherRV
    rv_op = rvs.VonMisesFisherRV()

    @classmethod
    def dist(cls, mu, kappa, **kwargs):
        mu, kappa = check.array("mu", mu, 1), check.array("kappa", kappa, 0)
        check.non_negative("kappa", kappa)
        return cls.create([_checked_direction("mu", mu, vector=True), kappa], **kwargs)

    def logp(value, mu, kappa):
        logp = kappa * (mu * value).sum(axis=-1) - _normalizer_ops.log_hyp0f1_singular(
            value.shape[-1], kappa[..., None]
        )
        return ops.guard(check_parameters(logp, kappa >= 0, msg="kappa >= 0"), value, vector=True)


# ---------------------------------------------------------------- angular central Gaussian


class MatrixAngularCentralGaussian(StiefelDistribution):
    r"""Matrix angular central Gaussian: the law of :math:`Z(Z'Z)^{-1/2}` when the columns of ``Z`` are N(0, Sigma).

    .. math:: f(X) = |\Sigma|^{-p/2} \, |X'\Sigma^{-1}X|^{-n/2}

    A distribution of subspaces: it does not change when X is multiplied by a rotation from the right, nor when Sigma
    is multiplied by a number. Costs a Cholesky factor of Sigma, n^3/3, a density.

    Parameters
    ----------
    Sigma : tensor_like (..., n, n)
        Positive definite; may be random.
    p : int
        Number of columns.

    References
    ----------
    Chikuse (1990), doi:10.1016/0047-259X(90)90050-R.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> pm.draw(pst.MatrixAngularCentralGaussian.dist(Sigma=np.diag([9.0, 4, 1]), p=2), random_seed=1).shape
    (3, 2)
    """

    rv_type = rvs.MatrixAngularCentralGaussianRV
    rv_op = rvs.MatrixAngularCentralGaussianRV()

    @classmethod
    def dist(cls, Sigma, p, **kwargs):
        Sigma, p = check.array("Sigma", Sigma, 2), check.integer("p", p)
        check.positive_definite("Sigma", Sigma)
        if Sigma.type.shape[-1] is not None:
            check.dimensions(Sigma.type.shape[-1], p)
        return cls.create([Sigma, pt.constant(p, dtype="int64")], **kwargs)

    def logp(value, Sigma, p):
        n, p = value.shape[-2].astype(value.dtype), value.shape[-1].astype(value.dtype)
        root = pt.linalg.cholesky(Sigma)
        whitened = pt.linalg.solve_triangular(root, value, lower=True, b_ndim=2)
        inner_root = pt.linalg.cholesky(whitened.mT @ whitened)
        logp = -p * _log_diagonal(root) - n * _log_diagonal(inner_root)
        ok = pt.all(pt.diagonal(root, axis1=-2, axis2=-1) > 0)  # the factor is NaN otherwise
        return ops.guard(check_parameters(logp, ok, msg="Sigma must be positive definite"), value)


def _log_diagonal(root: TensorVariable) -> TensorVariable:
    return pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
