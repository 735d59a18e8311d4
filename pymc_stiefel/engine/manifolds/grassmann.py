"""Subspaces: matrices with orthonormal columns, up to a rotation of their columns.

The state is any orthonormal basis ``X`` of the subspace. The density must not depend on the basis, so the skew part of
``X'G`` is zero. Motion is horizontal: ``A = 0``, and momenta consist of ``B`` only. The Cayley map and geodesics
conserve ``A = 0``. All columns have the same mass, because the order of the columns has no meaning.
"""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.drifts import CAYLEY, GEODESIC
from pymc_stiefel.engine.jit.blas import add_product, copy_matrix, cross
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.manifolds import stiefel
from pymc_stiefel.engine.manifolds.base import Manifold


@inner
def split(blas, x, g, a):
    if not stiefel.is_zero(g):
        cross(blas, g, x, a)  # (X'G)'
        add_product(blas, -1.0, a, x, g)
    a[:] = 0.0


@inner
def skew(blas, x, g, a):
    a[:] = 0.0


@inner
def draw(source, a, b, c, w):
    a[:] = 0.0
    for j in range(b.shape[0]):
        stiefel.draw_column(source, b[j], c[j])


@inner
def add_noise(source, a, b, c, w, keep, spread):
    stiefel.add_normals(source, b.reshape(b.size), keep, spread / np.sqrt(c[0]))


@inner
def tangent(blas, x, a, b, scratch):
    a[:] = 0.0  # rounding errors of a Cayley map
    stiefel.tangent(blas, x, a, b, scratch)


@inner
def velocity(blas, x, a, b, c, w, r, v, scratch):
    copy_matrix(b, r)
    for j in range(b.shape[0]):
        for k in range(b.shape[1]):
            v[j, k] = c[j] * b[j, k]


def drift(asked: str, p: int) -> str:
    return GEODESIC if asked == GEODESIC else CAYLEY


MANIFOLD = Manifold(
    "Grassmann", split, skew, draw, add_noise, tangent, stiefel.kinetic, velocity, stiefel.repair, drift, lambda p: 0
)
