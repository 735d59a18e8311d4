r"""Transforms to unconstrained space, so that any sampler can run a model with orthonormal matrices.

The default is an *expansion*: the value variable is any full-rank matrix ``Z`` of the same shape, the variable is its
polar factor, and ``Z`` gets a standard Gaussian density. If ``Z`` is Gaussian, its polar factor is Haar distributed and
independent of the rest, so the marginal law of the factor is exactly the one declared. An orthonormal value maps to
itself, which lets a manifold sampler use the same model. ``householder`` is a chart of minimal dimension instead.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy
from pymc.logprob.transforms import Transform
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _checks, ops

__all__ = [
    "HouseholderTransform",
    "ManifoldExpansion",
    "PolarTransform",
    "RotationTransform",
    "SphereTransform",
    "householder",
    "polar",
    "rotation",
    "sphere",
]


class ManifoldExpansion(Transform):
    """Base of the transforms whose value variable has the shape of the variable and contains the manifold.

    On the manifold ``backward`` is the identity and ``log_jac_det`` is constant, so a sampler that keeps its values
    there needs no transform, and any other sampler may leave it.

    The expanded density has no mode: the variable does not depend on the scale of the value. Laplace approximations
    (``pymc_extras.fit_laplace``) need ``transform=pymc_stiefel.transforms.householder``.

    Examples
    --------
    >>> import pymc_stiefel as pst
    >>> isinstance(pst.transforms.polar, pst.transforms.ManifoldExpansion)
    True
    """

    name: str
    ndim_supp: int

    def log_jac_det(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
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
    Jauch, Hoff & Dunson (2019), Monte Carlo simulation on the Stiefel manifold via polar expansion, arXiv:1906.07684.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> pst.transforms.polar.backward(np.array([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])).eval()
    array([[0., 1.],
           [1., 0.],
           [0., 0.]])
    """

    name = "polar"
    ndim_supp = 2

    def forward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """``Z = X``: a nearly orthonormal matrix is projected, anything else is an error."""
        return ops.project_checked(value)

    def backward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """The polar factor of ``Z``."""
        return ops.polar(value)


class RotationTransform(ManifoldExpansion):
    r"""Expansion of SO(n): the rotation nearest to a Gaussian square matrix, continuous where its determinant is zero.

    Value shape ``(..., n, n)``.

    References
    ----------
    Kabsch (1976), doi:10.1107/S0567739476001873.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> pst.transforms.rotation.backward(np.diag([3.0, 2.0, -1.0])).eval()
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """

    name = "rotation"
    ndim_supp = 2

    def forward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """``Z = X``: a nearly orthonormal matrix of determinant +1 is projected, anything else is an error."""
        return ops.project_checked(value, special=True)

    def backward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """The rotation nearest to ``Z``."""
        return ops.rotation(value)


class SphereTransform(ManifoldExpansion):
    """Expansion ``x = z / |z|`` of the unit sphere with Gaussian ``z``; value shape ``(..., n)``.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst, pytensor.tensor as pt
    >>> pst.transforms.sphere.backward(pt.as_tensor([3.0, 4.0])).eval()
    array([0.6, 0.8])
    """

    name = "sphere"
    ndim_supp = 1

    def forward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """``z = x``: a vector that is nearly of unit length is normalised, anything else is an error."""
        return ops.project_checked(value[..., None])[..., 0]

    def backward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """``z / |z|``."""
        return value / pt.sqrt((value**2).sum(axis=-1, keepdims=True))


polar = PolarTransform()
rotation = RotationTransform()
sphere = SphereTransform()


class HouseholderTransform(Transform):
    r"""A chart of minimal dimension ``d = n p - p (p + 1) / 2``: one Householder reflector for each column.

    Column ``k`` lives on the unit sphere of the ``m = n - k`` dimensional complement of the columns before it. With
    :math:`w = (-1, u)`, :math:`u \in R^{m-1}`, the reflector :math:`H = I - 2 w w'/(1 + |u|^2)` maps :math:`-e_1` to a
    point of that sphere, which is the stereographic projection of ``u``, and carries the later columns along:
    :math:`X_k = H \,\mathrm{diag}(-1, X_{k+1})`. The map is smooth on all of :math:`R^d`, misses a set of measure zero,
    and has the Jacobian

    .. math:: \prod_k \left(\frac{2}{1 + |u_k|^2}\right)^{m_k-1} \frac{\Gamma(m_k/2)}{2\pi^{m_k/2}}

    with respect to normalised Haar. Values are scaled to :math:`\sqrt{m-1}\,u`, which have about unit variance.

    The value variable has shape ``(..., d)``. The minimal dimension has a disadvantage: every chart of the sphere has
    a pole at infinity, so the tails are heavy (Cauchy for m = 2) and a posterior near the pole is split in two.

    Without ``n`` and ``p``, as :func:`pymc.model.transform.conditioning.change_value_transforms` uses it, the value
    variable has the shape of the variable: PyMC gives it that. The coordinates of column k are then the entries below
    its diagonal, and the others are independent standard normals that nothing depends on.

    A square variable (p = n) has two components, determinant +1 and -1, and no chart reaches both. This one reaches
    determinant +1. It is right for ``SpecialOrthogonal`` and raises an error for other square variables.

    Parameters
    ----------
    n, p : int, optional
        Dimensions; the distributions of this package fill them in: ``transform=pymc_stiefel.transforms.householder``.
    vector : bool
        The variable is a vector of shape ``(..., n)``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model() as model:
    ...     Q = pst.StiefelUniform("Q", n=5, p=2, transform=pst.transforms.householder)
    >>> model.initial_point()["Q_householder__"].shape
    (7,)
    """

    name = "householder"

    def __init__(self, n: int | None = None, p: int | None = None, vector: bool = False):
        self.n, self.p = (size if size is None else _checks.whole(k, size) for k, size in (("n", n), ("p", p)))
        self.vector = _checks.flag("vector", vector)
        self.ndim_supp = 1 if vector else 2

    def for_shape(self, n: int, p: int, vector: bool) -> HouseholderTransform:
        """The chart for given dimensions; those given before must agree."""
        if (self.n is not None and self.n != n) or (self.p is not None and self.p != p):
            raise ValueError(f"a Householder transform for ({self.n}, {self.p}) was given to a ({n}, {p}) variable")
        if n == 1:
            raise ValueError("the Householder transform has no coordinates for n = 1; leave the default transform")
        return HouseholderTransform(n, p, vector)

    def _lengths(self) -> list[int]:
        """Number of coordinates of each column."""
        assert self.n is not None and self.p is not None
        return [self.n - k - 1 for k in range(self.p)]

    def _coordinates(self, value: TensorVariable) -> list[TensorVariable]:
        """The vectors ``u`` of the columns, shape ``(..., m - 1)``."""
        ends = np.cumsum([0, *self._lengths()])
        return [value[..., a:b] / math.sqrt(max(b - a, 1)) for a, b in itertools.pairwise(ends)]

    def _chart(self, value: TensorVariable, inputs: Any) -> HouseholderTransform:
        """The chart of a variable from its value, of the same shape, and the inputs of its random variable."""
        # the last parameter of a law of vectors has one dimension less than the value, no other has
        vector = bool(inputs) and inputs[-1].type.ndim == value.type.ndim - 1
        n, p = (value.type.shape[-1], 1) if vector else (None, None, *value.type.shape)[-2:]
        if n is None or p is None:
            raise ValueError(f"the Householder transform got n={n}, p={p}: use HouseholderTransform(n, p)")
        whole = [x.type.dtype.startswith("int") for x in inputs[2:]]  # the integer n alone comes first for rotations
        if n == p > 1 and not (whole and whole[0] and whole[1:2] != [True]):
            raise ValueError("the Householder transform reaches matrices of determinant +1 only; use SpecialOrthogonal")
        return self.for_shape(n, p, vector)

    def _unpacked(self, value: TensorVariable) -> TensorVariable:
        """Coordinates as one vector, from the entries below the diagonal."""
        V = value[..., None] if self.vector else value
        return pt.concatenate([V[..., k + 1 :, k] for k in range(len(self._lengths()))], axis=-1)

    def forward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Coordinates of an orthonormal matrix."""
        if self.n is None:
            chart = self._chart(value, inputs)
            ends = np.cumsum([0, *chart._lengths()])
            coordinates = chart.forward(value)
            packed = pt.zeros_like(value[..., None] if chart.vector else value)
            for k, (a, b) in enumerate(itertools.pairwise(ends)):
                packed = pt.set_subtensor(packed[..., k + 1 :, k], coordinates[..., a:b])
            return packed[..., 0] if chart.vector else packed
        X = ops.project_checked(value[..., None] if self.vector else value)
        found = []
        for k, length in enumerate(self._lengths()):
            v = X[..., :, 0]
            u = -v[..., 1:] / (1 + v[..., 0])[..., None]
            found.append(u * math.sqrt(max(length, 1)))
            if k + 1 < len(self._lengths()):
                X = _reflect(u, X[..., :, 1:])[..., 1:, :]
        return pt.concatenate(found, axis=-1)

    def backward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """The orthonormal matrix with the given coordinates."""
        if self.n is None:
            chart = self._chart(value, inputs)
            return chart.backward(chart._unpacked(value))
        coordinates = self._coordinates(value)
        X = None
        for u in reversed(coordinates):
            corner = -pt.ones_like(value[..., 0])[..., None, None]
            if X is None:
                below = pt.zeros_like(u)[..., None]
                block = pt.concatenate([corner, below], axis=-2)
            else:
                top = pt.concatenate([corner, pt.zeros_like(X[..., :1, :])], axis=-1)
                block = pt.concatenate([top, pt.concatenate([pt.zeros_like(X[..., :, :1]), X], axis=-1)], axis=-2)
            X = _reflect(u, block)
        assert X is not None
        return X[..., 0] if self.vector else X

    def log_jac_det(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Log density of normalised Haar measure in the coordinates, batch shaped."""
        if self.n is None:
            chart = self._chart(value, inputs)
            coordinates = chart._unpacked(value)
            idle = (value**2).sum(axis=-1 if chart.vector else (-2, -1)) - (coordinates**2).sum(axis=-1)
            count = (chart.n or 0) * (chart.p or 0) - sum(chart._lengths())
            return chart.log_jac_det(coordinates) - 0.5 * idle - 0.5 * count * np.log(2 * np.pi)
        total = pt.zeros_like(value[..., 0])
        for u, length in zip(self._coordinates(value), self._lengths(), strict=True):
            if length == 0:
                continue
            m = length + 1
            log_area = np.log(2) + m / 2 * np.log(np.pi) - scipy.special.gammaln(m / 2)
            constant = length * np.log(2) - length / 2 * np.log(length) - log_area
            total = total + constant - length * pt.log1p((u**2).sum(axis=-1))
        return total


def _reflect(u: TensorVariable, block: TensorVariable) -> TensorVariable:
    """``H block`` with ``H = I - 2 w w' / (1 + |u|^2)``, ``w = (-1, u)``."""
    w = pt.concatenate([-pt.ones_like(block[..., 0, 0])[..., None], u], axis=-1)[..., None]
    return block - 2 * w * (w * block).sum(axis=-2, keepdims=True) / (1 + (u**2).sum(axis=-1))[..., None, None]


householder = HouseholderTransform()
