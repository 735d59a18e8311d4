"""The matrix angular central Gaussian law on St(n, p)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions._base import StiefelDistribution, constant_integer, symbolic_integer
from pymc_stiefel.draws import _batches
from pymc_stiefel.ops._polar import StiefelRV


class MatrixAngularCentralGaussianRV(StiefelRV):
    name = "MatrixAngularCentralGaussian"
    signature = "(n,n),()->(n,p)"
    _print_name = ("MatrixAngularCentralGaussian", r"\operatorname{MACG}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        Sigma, p = dist_params
        return [Sigma.shape[-1] if param_shapes is None else param_shapes[0][-1], symbolic_integer(p)]

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, Sigma: Any, p: Any, size: Any) -> np.ndarray:
        def draw(Sigma: Any, count: Any, rng: np.random.Generator) -> np.ndarray:
            return _batches.angular_central_gaussian(Sigma, constant_integer(p), count, rng)

        return _batches.broadcast(draw, [Sigma], [2], size, rng)


class MatrixAngularCentralGaussian(StiefelDistribution):
    r"""Matrix angular central Gaussian: the law of :math:`Z(Z'Z)^{-1/2}` when the columns of ``Z`` are N(0, Sigma).

    .. math:: f(X) = |\Sigma|^{-p/2} \, |X'\Sigma^{-1}X|^{-n/2}

    A distribution of subspaces: it does not change when X is multiplied by a rotation from the right, nor when Sigma
    is multiplied by a number. A density costs a Cholesky factor of Sigma, n^3/3 operations.

    Parameters
    ----------
    Sigma : tensor_like (..., n, n)
        Positive definite; may be random.
    p : int, optional
        Number of columns, if it does not follow from ``dims``, ``shape`` or ``initval``.

    References
    ----------
    Chikuse (1990), doi:10.1016/0047-259X(90)90050-R.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> pm.draw(pst.MatrixAngularCentralGaussian.dist(Sigma=np.diag([9.0, 4, 1]), p=2), random_seed=1).shape
    (3, 2)
    """

    rv_type = MatrixAngularCentralGaussianRV
    rv_op = MatrixAngularCentralGaussianRV()
    lengths = ("p",)

    @classmethod
    def dist(cls, Sigma: Any, p: Any = None, *, shape: Any = None, **kwargs: Any) -> TensorVariable:
        Sigma, (p,) = check.array("Sigma", Sigma, 2), cls.support(shape, p)
        check.positive_definite("Sigma", Sigma)
        if Sigma.type.shape[-1] is not None:
            check.dimensions(Sigma.type.shape[-1], p)
        return cls.create([Sigma, pt.constant(p, dtype="int64")], shape=shape, **kwargs)

    def logp(value: Any, Sigma: TensorVariable, p: TensorVariable) -> TensorVariable:
        n, p = value.shape[-2].astype(value.dtype), value.shape[-1].astype(value.dtype)
        root = pt.linalg.cholesky(Sigma)
        whitened = pt.linalg.solve_triangular(root, value, lower=True, b_ndim=2)
        inner_root = pt.linalg.cholesky(whitened.mT @ whitened)
        logp = -p * _log_diagonal(root) - n * _log_diagonal(inner_root)
        ok = pt.all(pt.diagonal(root, axis1=-2, axis2=-1) > 0)  # the factor is NaN otherwise
        return ops.guard(check_parameters(logp, ok, msg="Sigma must be positive definite"), value)


def _log_diagonal(root: TensorVariable) -> TensorVariable:
    return pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
