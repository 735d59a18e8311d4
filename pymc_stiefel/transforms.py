r"""Transforms to unconstrained space, so that any sampler can run a model with orthonormal matrices.

The default is an *expansion*: the value variable is any full-rank matrix ``Z`` of the same shape, the variable is its
polar factor, and ``Z`` gets a standard Gaussian density. If ``Z`` is Gaussian its polar factor is Haar distributed and
independent of the rest, so the marginal law of the factor is exactly the one declared. An orthonormal value maps to
itself, which lets a manifold sampler use the same model. ``householder`` is a chart of minimal dimension instead.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import ops

__all__ = [
    "ManifoldExpansion",
    "PolarTransform",
    "RotationTransform",
    "SphereTransform",
    "polar",
    "rotation",
    "sphere",
]


class ManifoldExpansion(Transform):
    """Base of the transforms whose value variable has the shape of the variable and contains the manifold.

    On the manifold ``backward`` is the identity and ``log_jac_det`` is constant.
    """

    name: str
    ndim_supp: int

    def log_jac_det(self, value: TensorVariable, *inputs) -> TensorVariable:
        """Log density of ``value`` under independent standard normals, batch shaped."""
        axes = tuple(range(-self.ndim_supp, 0))
        size = pt.prod(value.shape[-self.ndim_supp :]).astype(value.dtype)
        return -0.5 * (value**2).sum(axis=axes) - 0.5 * np.log(2 * np.pi) * size


class PolarTransform(ManifoldExpansion):
    r"""Expansion :math:`X = Z (Z'Z)^{-1/2}` of St(n, p) with :math:`Z \sim N(0, I_{np})`.

    Value shape ``(..., n, p)``. ``backward`` costs one thin singular value decomposition, O(n p^2), and its derivative
    is right at equal singular values.

    References
    ----------
    Jauch, Hoff & Dunson (2021), Monte Carlo simulation on the Stiefel manifold via polar expansion,
    doi:10.1080/10618600.2020.1859382.
    """

    name = "polar"
    ndim_supp = 2

    def forward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """``Z = X``: a nearly orthonormal matrix is projected, anything else is an error."""
        return ops.project_checked(value)

    def backward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """The polar factor of ``Z``."""
        return ops.polar(value)


class RotationTransform(ManifoldExpansion):
    r"""Expansion of SO(n): the rotation nearest to a Gaussian square matrix, continuous where its determinant is zero.

    Value shape ``(..., n, n)``.

    References
    ----------
    Kabsch (1976), doi:10.1107/S0567739476001873.
    """

    name = "rotation"
    ndim_supp = 2

    def forward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """``Z = X``: a nearly orthonormal matrix of determinant +1 is projected, anything else is an error."""
        return ops.project_checked(value, special=True)

    def backward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """The rotation nearest to ``Z``."""
        return ops.rotation(value)


class SphereTransform(ManifoldExpansion):
    """Expansion ``x = z / |z|`` of the unit sphere with Gaussian ``z``; value shape ``(..., n)``."""

    name = "sphere"
    ndim_supp = 1

    def forward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """``z = x``: a vector that is nearly of unit length is normalised, anything else is an error."""
        return ops.project_checked(value[..., None])[..., 0]

    def backward(self, value: TensorVariable, *inputs) -> TensorVariable:
        """``z / |z|``."""
        return value / pt.sqrt((value**2).sum(axis=-1, keepdims=True))


polar = PolarTransform()
rotation = RotationTransform()
sphere = SphereTransform()
