r"""The geometry of orthonormal matrices: formulas in plain NumPy.

Notation, used in the whole package
-----------------------------------
``St(n, p)``
    orthonormal matrices ``X`` of shape ``(n, p)``, :math:`X'X = I_p`, :math:`n \ge p \ge 1`.
``r``
    momentum, a tangent matrix :math:`r = XA + B` with ``A`` skew (p x p) and :math:`X'B = 0`,
    paired with velocities by the trace, :math:`\langle r, V\rangle = \mathrm{tr}(r'V)`.
``c, w``
    the metric, :math:`K(r) = \tfrac12\sum_k c_k |B e_k|^2 + \tfrac12\sum_{ij} w_{ij} A_{ij}^2`:
    masses of the columns, ``c`` (p,), and of pairs of columns, ``w`` (p, p), symmetric. All are positive.
    Canonical: ``c = 1, w = 2``; embedded: ``c = 1, w = 1``, see :func:`metric`.
``t``
    the time of a drift, the flow of ``K`` alone. Any number; a negative time runs the flow backwards.

The functions work on one matrix and are written to be read; the compiled kernels in
``pymc_stiefel.engine`` are tested against them.

References
----------
Edelman, Arias & Smith (1998), doi:10.1137/S0895479895290954.
Byrne & Girolami (2013), doi:10.1111/sjos.12036.
"""

from pymc_stiefel.geometry._drifts import cayley_drift, geodesic_drift, splitting_drift
from pymc_stiefel.geometry._polar import polar, polar_pullback, rotation, rotation_pullback
from pymc_stiefel.geometry._tangent import (
    angular_momentum,
    draw_momentum,
    kinetic_energy,
    manifold_dimension,
    metric,
    orthogonality_error,
    split_tangent,
    tangent_project,
    velocity,
)

__all__ = [
    "angular_momentum",
    "cayley_drift",
    "draw_momentum",
    "geodesic_drift",
    "kinetic_energy",
    "manifold_dimension",
    "metric",
    "orthogonality_error",
    "polar",
    "polar_pullback",
    "rotation",
    "rotation_pullback",
    "split_tangent",
    "splitting_drift",
    "tangent_project",
    "velocity",
]
