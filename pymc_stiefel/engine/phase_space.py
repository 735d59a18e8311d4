"""Compiled operations on all blocks of a point: on each matrix by its manifold, then on the Euclidean variables."""

from __future__ import annotations

from pymc_stiefel.engine.blocks import copy_into, matrix_at, square_at
from pymc_stiefel.engine.jit.calls import call_drift
from pymc_stiefel.engine.jit.compiling import inlined, inner
from pymc_stiefel.engine.jit.vectors import dot
from pymc_stiefel.engine.manifolds import euclidean, on_manifold

_split, _skew = on_manifold("split"), on_manifold("skew")
_draw, _add_noise = on_manifold("draw"), on_manifold("add_noise")
_kinetic, _velocity = on_manifold("kinetic"), on_manifold("velocity")
_tangent, _repair = on_manifold("tangent"), on_manifold("repair")


@inlined
def column_masses(layout, metric, m):
    return metric.c[layout.column[m] : layout.column[m] + layout.p[m]]


@inner
def split_in_place(layout, blas, q, a, b):
    """Replace ambient gradients in ``b`` by their two parts, in ``a`` and ``b``."""
    for m in range(layout.n.size):
        _split(layout.manifold[m], blas, matrix_at(layout, m, q), matrix_at(layout, m, b), square_at(layout, m, a))


@inner
def skew_part(layout, blas, q, g, a):
    """Write the skew parts of ambient gradients to ``a``."""
    for m in range(layout.n.size):
        _skew(layout.manifold[m], blas, matrix_at(layout, m, q), matrix_at(layout, m, g), square_at(layout, m, a))


@inner
def draw_momentum(source, layout, blas, metric, point, scratch):
    """Draw a momentum from the density exp(-K) into ``point``."""
    for m in range(layout.n.size):
        a, b, w = square_at(layout, m, point.a), matrix_at(layout, m, point.b), square_at(layout, m, metric.w)
        _draw(layout.manifold[m], source, a, b, column_masses(layout, metric, m), w)
    remove_normal_part(layout, blas, point, scratch)
    euclidean.draw(source, metric, point.b[layout.stiefel :])


@inner
def add_noise(source, layout, metric, point, keep, spread):
    """``r <- keep r + spread xi`` with ``xi`` from the density exp(-K); the caller has to project ``B``."""
    for m in range(layout.n.size):
        a, b, w = square_at(layout, m, point.a), matrix_at(layout, m, point.b), square_at(layout, m, metric.w)
        _add_noise(layout.manifold[m], source, a, b, column_masses(layout, metric, m), w, keep, spread)
    euclidean.add_noise(source, metric, point.b[layout.stiefel :], keep, spread)


@inner
def remove_normal_part(layout, blas, point, scratch):
    """Remove the normal part of the momentum."""
    for m in range(layout.n.size):
        x, a, b = matrix_at(layout, m, point.q), square_at(layout, m, point.a), matrix_at(layout, m, point.b)
        _tangent(layout.manifold[m], blas, x, a, b, scratch)


@inner
def kinetic_energy(layout, metric, point, scratch):
    """Kinetic energy of the momentum. Needs no matrix products, unlike the velocity."""
    total = 0.0
    for m in range(layout.n.size):
        b, a, w = matrix_at(layout, m, point.b), square_at(layout, m, point.a), square_at(layout, m, metric.w)
        total += _kinetic(layout.manifold[m], a, b, column_masses(layout, metric, m), w)
    return 0.5 * (total + euclidean.kinetic(metric, point.b[layout.stiefel :], scratch))


@inner
def velocity_into(layout, blas, metric, point, r, v, scratch):
    """Ambient momentum ``r`` and velocity ``v``; returns the kinetic energy."""
    for m in range(layout.n.size):
        x, b, a = matrix_at(layout, m, point.q), matrix_at(layout, m, point.b), square_at(layout, m, point.a)
        rm, vm, w = matrix_at(layout, m, r), matrix_at(layout, m, v), square_at(layout, m, metric.w)
        _velocity(layout.manifold[m], blas, x, a, b, column_masses(layout, metric, m), w, rm, vm, scratch)
    first = layout.stiefel
    copy_into(point.b[first:], r[first:])
    euclidean.velocity(metric, point.b[first:], v[first:])
    return 0.5 * dot(r, v)


@inlined
def move(address, x, a, b, n, p, eps, masses, w, scratch, blas):
    """Move one matrix for time ``eps`` by the drift at ``address``."""
    fields = blas.routines, blas.integers, blas.letters, blas.numbers
    call_drift(address, (x, a, b, n, p, eps, masses, w, scratch, *fields))


@inlined
def drift(addresses, layout, blas, metric, point, eps, scratch):
    """Move every block for time ``eps``, the matrices by the drifts at ``addresses``."""
    for m in range(layout.n.size):
        x, a, b = matrix_at(layout, m, point.q), square_at(layout, m, point.a), matrix_at(layout, m, point.b)
        masses, w = column_masses(layout, metric, m), square_at(layout, m, metric.w)
        move(addresses[m], x, a, b, layout.n[m], layout.p[m], eps, masses, w, scratch, blas)
    first = layout.stiefel
    euclidean.drift(metric, point.q[first:], point.b[first:], eps, scratch)


@inner
def reorthonormalise(layout, blas, q, scratch):
    """Remove rounding errors of every matrix where needed; return the largest error found."""
    worst = 0.0
    for m in range(layout.n.size):
        worst = max(worst, _repair(layout.manifold[m], blas, matrix_at(layout, m, q), scratch))
    return worst
