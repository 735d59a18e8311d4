"""Uniform laws: Haar measure on St(n, p), on SO(n) and on the sphere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions._base import StiefelDistribution, constant_integer, symbolic_integer
from pymc_stiefel.draws import _batches
from pymc_stiefel.ops._polar import StiefelRV


class StiefelUniformRV(StiefelRV):
    name = "StiefelUniform"
    signature = "(),()->(n,p)"
    _print_name = ("StiefelUniform", r"\operatorname{StiefelUniform}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        return [symbolic_integer(d) for d in dist_params]

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, n: Any, p: Any, size: Any) -> np.ndarray:
        return _batches.haar(constant_integer(n), constant_integer(p), size or (), rng)


class StiefelUniform(StiefelDistribution):
    r"""Uniform distribution of orthonormal matrices: Haar measure on St(n, p), log density 0.

    Parameters
    ----------
    n, p : int, optional
        Rows and columns, ``n >= p >= 1``; one draw has shape (n, p). ``p = n`` is the orthogonal group, with both signs
        of the determinant. They follow from ``dims``, ``shape`` or ``initval`` where these are given.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> X = pm.draw(pst.StiefelUniform.dist(n=4, p=2), random_seed=1)
    >>> bool(abs(X.T @ X - [[1, 0], [0, 1]]).max() < 1e-12)
    True
    """

    rv_type = StiefelUniformRV
    rv_op = StiefelUniformRV()
    lengths = ("n", "p")

    @classmethod
    def dist(cls, n: Any = None, p: Any = None, *, shape: Any = None, **kwargs: Any) -> TensorVariable:
        n, p = check.dimensions(*cls.support(shape, n, p))
        return cls.create([pt.constant(n, dtype="int64"), pt.constant(p, dtype="int64")], shape=shape, **kwargs)

    def logp(value: Any, n: TensorVariable, p: TensorVariable) -> TensorVariable:
        return ops.guard(pt.zeros(value.shape[:-2], dtype=value.dtype), value)


class SpecialOrthogonalRV(StiefelRV):
    name = "SpecialOrthogonal"
    signature = "()->(n,p)"
    special = True
    _print_name = ("SpecialOrthogonal", r"\operatorname{SO}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        return [symbolic_integer(dist_params[0])] * 2

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, n: Any, size: Any) -> np.ndarray:
        return _batches.haar(constant_integer(n), constant_integer(n), size or (), rng, special=True)


class SpecialOrthogonal(StiefelDistribution):
    r"""Uniform distribution of rotations: Haar measure on SO(n), n x n orthogonal matrices of determinant +1.

    Parameters
    ----------
    n : int, optional
        Dimension, if it does not follow from ``dims``, ``shape`` or ``initval``; one draw has shape (n, n).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> round(float(np.linalg.det(pm.draw(pst.SpecialOrthogonal.dist(n=3), random_seed=1))), 12)
    1.0
    """

    rv_type = SpecialOrthogonalRV
    rv_op = SpecialOrthogonalRV()
    lengths = ("n",)

    @classmethod
    def dist(cls, n: Any = None, *, shape: Any = None, **kwargs: Any) -> TensorVariable:
        return cls.create([pt.constant(cls.support(shape, n)[0], dtype="int64")], shape=shape, **kwargs)

    def logp(value: Any, n: TensorVariable) -> TensorVariable:
        return ops.guard(pt.zeros(value.shape[:-2], dtype=value.dtype), value, special=True)


class UnitVectorRV(StiefelRV):
    name = "UnitVector"
    signature = "()->(n)"
    vector = True
    _print_name = ("UnitVector", r"\operatorname{UnitVector}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        return [symbolic_integer(dist_params[0])]

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, n: Any, size: Any) -> np.ndarray:
        return _batches.haar(constant_integer(n), 1, size or (), rng)[..., 0]


class UnitVector(StiefelDistribution):
    """Uniform distribution on the unit sphere; one draw has shape (n,).

    Parameters
    ----------
    n : int, optional
        Dimension of the surrounding space, if it does not follow from ``dims``, ``shape`` or ``initval``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> pm.draw(pst.UnitVector.dist(n=3, size=2), random_seed=1).shape
    (2, 3)
    """

    rv_type = UnitVectorRV
    rv_op = UnitVectorRV()
    lengths = ("n",)

    @classmethod
    def dist(cls, n: Any = None, *, shape: Any = None, **kwargs: Any) -> TensorVariable:
        return cls.create([pt.constant(cls.support(shape, n)[0], dtype="int64")], shape=shape, **kwargs)

    def logp(value: Any, n: TensorVariable) -> TensorVariable:
        return ops.guard(pt.zeros(value.shape[:-1], dtype=value.dtype), value, vector=True)
