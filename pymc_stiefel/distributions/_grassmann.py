"""Laws of subspaces: uniform, and the matrix angular central Gaussian."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel.distributions._angular_gaussian import MatrixAngularCentralGaussian, MatrixAngularCentralGaussianRV
from pymc_stiefel.distributions._base import StiefelDistribution
from pymc_stiefel.distributions._uniform import StiefelUniform, StiefelUniformRV


class GrassmannRV(StiefelUniformRV):
    name = "Grassmann"
    subspace = True
    _print_name = ("Grassmann", r"\operatorname{Grassmann}")


class GrassmannGaussianRV(MatrixAngularCentralGaussianRV):
    name = "GrassmannGaussian"
    subspace = True
    _print_name = ("Grassmann", r"\operatorname{Grassmann}")


class Grassmann(StiefelDistribution):
    r"""A random p-dimensional subspace of :math:`R^n`, uniform or angular central Gaussian.

    The value is a matrix ``U`` of shape (n, p) whose orthonormal columns are a basis of the subspace. The choice of the
    basis has no meaning: the model may depend on the subspace only, for instance through ``U @ U.T``, so that its log
    density is the same for ``U`` and ``U @ R`` with any orthogonal ``R``. The samplers of this package then move the
    subspace without the p(p - 1)/2 rotations of ``U`` within it, and raise an error if the model depends on more. Use
    :func:`~pymc_stiefel.summary`, whose default is the projector, to summarise the draws.

    Parameters
    ----------
    n, p : int, optional
        Dimensions of the space and of the subspace, ``n > p >= 1``. They follow from ``dims``, ``shape`` or ``initval``
        where these are given, and n from ``Sigma``.
    Sigma : tensor_like (..., n, n), optional
        Positive definite; may be random. The subspace is then spanned by p vectors drawn from N(0, Sigma), see
        :class:`~pymc_stiefel.MatrixAngularCentralGaussian`. Default: the uniform law.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     U = pst.Grassmann("U", n=4, p=2)
    ...     likelihood = pm.Potential("likelihood", 20 * ((U @ U.T) * np.diag([1.0, 1.0, 0.0, 0.0])).sum())
    ...     idata = pm.sample(draws=200, tune=100, chains=2, progressbar=False, random_seed=1)
    >>> bool(pst.summary(idata, "U").loc["projector[0, 0]", "mean"] > 0.8)
    True
    """

    rv_type = GrassmannRV
    rv_op = GrassmannRV()
    lengths = ("n", "p")

    @classmethod
    def dist(
        cls, n: Any = None, p: Any = None, *, Sigma: Any = None, shape: Any = None, **kwargs: Any
    ) -> TensorVariable:
        if Sigma is not None:
            return GrassmannGaussian.dist(Sigma, p, n=n, shape=shape, **kwargs)
        n, p = _dimensions(*check.dimensions(*cls.support(shape, n, p)))
        return cls.create([pt.constant(n, dtype="int64"), pt.constant(p, dtype="int64")], shape=shape, **kwargs)

    def logp(value: Any, n: TensorVariable, p: TensorVariable) -> TensorVariable:
        return StiefelUniform.logp(value, n, p)


class GrassmannGaussian(MatrixAngularCentralGaussian):
    """Returned by ``Grassmann`` if ``Sigma`` is given."""

    rv_type = GrassmannGaussianRV
    rv_op = GrassmannGaussianRV()

    @classmethod
    def dist(cls, Sigma: Any, p: Any = None, *, n: Any = None, shape: Any = None, **kwargs: Any) -> TensorVariable:
        Sigma, (p,) = check.array("Sigma", Sigma, 2), cls.support(shape, p)
        size = Sigma.type.shape[-1]
        if n is not None and size is not None and check.integer("n", n) != size:
            raise ValueError(f"n must be the size of Sigma, {size}, got n={n}; leave n out")
        _dimensions(size if size is not None else n, p)
        return super().dist(Sigma, p, shape=shape, **kwargs)

    def logp(value: Any, Sigma: TensorVariable, p: TensorVariable) -> TensorVariable:
        return MatrixAngularCentralGaussian.logp(value, Sigma, p)


def _dimensions(n: Any, p: Any) -> tuple[Any, Any]:
    """Check ``n > p`` if n is known; n < p is checked elsewhere."""
    if n == p:
        raise ValueError(
            f"n must be above p, got n={n}, p={p}: R^{p} has one {p}-dimensional subspace only; "
            "for orthogonal matrices use StiefelUniform"
        )
    return n, p
