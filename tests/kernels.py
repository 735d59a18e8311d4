"""The engine's compiled pieces made callable from Python, and densities to run them on."""

import numba
import numpy as np
from numba import carray

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.blocks import Metric, make_layout, make_point
from pymc_stiefel.engine.drifts import drift_address, scratch_size
from pymc_stiefel.engine.integrator import LEAPFROG, Scheme, evaluate, step
from pymc_stiefel.engine.jit.blas import make_blas
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE
from pymc_stiefel.engine.jit.random import random_source
from pymc_stiefel.engine.phase_space import draw_momentum, move
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.engine.statistics import STATISTICS

DRIFTS = ("splitting", "cayley", "geodesic")
NO_EXTRA = np.zeros(1, dtype=np.int64)


def metric_of(kind, p, rng):
    """Masses that the drift allows: any for splitting, one common scale for the others."""
    if kind == "splitting":
        w = rng.uniform(0.5, 2.0, (p, p))
        return rng.uniform(0.5, 2.0, p), (w + w.T) / 2
    scale = rng.uniform(0.5, 2.0)
    return np.full(p, scale), np.full((p, p), scale * (2.0 if kind == "cayley" else 1.0))


@numba.njit
def _drifts(address, x, a, b, n, p, t, c, w, scratch, blas, count):
    for _ in range(count):
        move(address, x, a, b, n, p, t, c, w, scratch, blas)


def drift(kind, X, r, t, c, w, count=1):
    """``count`` drifts of one matrix by the compiled code: ``(X, r) -> (X, r)``."""
    return split_drift(kind, X, *geo.split_tangent(X, r), t, c, w, count)


def split_drift(kind, X, A, B, t, c, w, count=1):
    """The same from the two parts of the momentum, which need not be finite."""
    n, p = X.shape
    x, a, b = X.T.copy(), A.copy(), B.T.copy()
    scratch, blas = np.zeros(scratch_size(n, p)), make_blas(2 * p)
    _drifts(drift_address(kind), x, a, b, n, p, float(t), np.array(c), np.array(w), scratch, blas, count)
    return x.T, x.T @ a + b.T


def reference_drift(kind, X, r, t, c, w):
    """The same in plain NumPy."""
    if kind == "splitting":
        return geo.splitting_drift(X, r, t, c, w)
    return (geo.cayley_drift if kind == "cayley" else geo.geodesic_drift)(X, r, t * c[0])


def bingham_langevin_density(F, A, b):
    """C function of log density tr(F'X) + tr(diag(b) X'AX) for one matrix."""
    (n, p), Ft = F.shape, np.ascontiguousarray(F.T)

    def density(q, gradient, extra):
        x, g = carray(q, (p, n)), carray(gradient, (p, n))
        total = 0.0
        for k in range(p):
            for i in range(n):
                row = 0.0
                for j in range(n):
                    row += A[i, j] * x[k, j]
                g[k, i] = Ft[k, i] + 2.0 * b[k] * row
                total += x[k, i] * (Ft[k, i] + b[k] * row)
        return total

    return numba.cfunc(DENSITY_SIGNATURE)(density)


def problem(n, p, rng, size=3.0):
    """A random Bingham-Langevin target: parameters and C function."""
    A = rng.standard_normal((n, n))
    F, A, b = size * rng.standard_normal((n, p)) / np.sqrt(n), (A + A.T) / 2, rng.uniform(0.5, 1.5, p)
    return F, A, b, bingham_langevin_density(F, A, b)


@numba.njit
def _steps(density, extra, scheme, layout, blas, metric, point, eps, scratch, energies):
    evaluate(density, extra, layout, blas, point)
    for k in range(energies.size):
        step(density, extra, scheme, layout, blas, metric, point, eps, scratch)
        kinetic = 0.0
        p, n = layout.p[0], layout.n[0]
        for j in range(p):
            for i in range(n):
                kinetic += 0.5 * metric.c[j] * point.b[j * n + i] ** 2
            for i in range(p):
                kinetic += 0.5 * metric.w[j * p + i] * point.a[j * p + i] ** 2
        energies[k] = kinetic - point.value[0]


def steps(kind, density, X, r, eps, c, w, count=1, stages=LEAPFROG):
    """``count`` steps of one matrix: end point, end momentum and the energies on the way."""
    n, p = X.shape
    layout = make_layout([(n, p)], 0)
    point, energies = make_point(layout), np.zeros(count)
    A, B = geo.split_tangent(X, r)
    point.q[:], point.a[:], point.b[:] = X.T.ravel(), A.ravel(), B.T.ravel()
    empty = np.zeros((0, 0))
    metric = Metric(np.array(c), np.ravel(w).copy(), np.zeros(0), empty, empty.copy())
    scratch, blas = np.zeros(scratch_size(n, p)), make_blas(2 * p)
    scheme = Scheme(np.array([drift_address(kind)]), stages)
    _steps(density.address, NO_EXTRA, scheme, layout, blas, metric, point, float(eps), scratch, energies)
    X_new = point.q.reshape(p, n).T
    return X_new, X_new @ point.a.reshape(p, p) + point.b.reshape(p, n).T, energies


@numba.njit
def _momenta(source, layout, blas, metric, point, scratch, out_a, out_b):
    for k in range(out_a.shape[0]):
        draw_momentum(source, layout, blas, metric, point, scratch)
        for i in range(point.a.size):
            out_a[k, i] = point.a[i]
        for i in range(point.b.size):
            out_b[k, i] = point.b[i]


def momenta(X, c, w, count, rng):
    """``count`` momenta of one matrix from the compiled draw, split in A (count, p, p) and B (count, n, p)."""
    n, p = X.shape
    layout = make_layout([(n, p)], 0)
    point = make_point(layout)
    point.q[:] = X.T.ravel()
    empty = np.zeros((0, 0))
    metric = Metric(np.array(c), np.ravel(w).copy(), np.zeros(0), empty, empty.copy())
    a, b = np.zeros((count, p * p)), np.zeros((count, n * p))
    _momenta(random_source(rng), layout, make_blas(2 * p), metric, point, np.zeros(scratch_size(n, p)), a, b)
    return a.reshape(count, p, p), b.reshape(count, p, n).swapaxes(1, 2)


def run_chain(density, layout, start, draws, rng, tune=0, **settings):
    """Draws (after tuning) and statistics of a chain of the bare engine."""
    sampler = Sampler(layout, density.address, Settings(**settings), rng)
    sampler.chain.tune = tune > 0
    q, out, stats = start, np.empty((draws, layout.size)), np.empty(draws, STATISTICS)
    for k in range(-tune, draws):
        if k == 0:
            sampler.chain.tune = False
        q = sampler.draw(q).copy()
        if k >= 0:
            out[k], stats[k] = q, sampler.stats
    return out, stats, sampler


def frames(rng, count, n, p):
    return np.linalg.qr(rng.standard_normal((count, n, p)))[0]


def row_target(n, precisions):
    """exp(-x'Wx / 2) on the sphere: rows of very different precision."""
    W = np.array(precisions)
    return bingham_langevin_density(np.zeros((n, 1)), -0.5 * np.diag(W), np.ones(1))
