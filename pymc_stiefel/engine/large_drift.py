"""The Cayley drift of large matrices, by an explicit inverse.

The same map as :func:`pymc_stiefel.engine.drifts.cayley`. Triangular solves with n right-hand sides run at a third of
the speed of a matrix product, so that an inverse (which :func:`pymc_stiefel.engine.blas.invert` makes of products) and
one more product take half the time. It loses nothing: the matrix ``I - 2 h A + h^2 S`` has a symmetric part of at least
the identity, so that its inverse is bounded by 1.
"""

from __future__ import annotations

from pymc_stiefel.engine.blas import PANEL, add_product, gram_matrix, invert, product
from pymc_stiefel.engine.blocks import matrix_at, square_at
from pymc_stiefel.engine.compiling import inner, view
from pymc_stiefel.engine.integrator import drift_euclidean, drift_matrix


def large_scratch_size(n: int, p: int) -> int:
    return 2 * p * p + 2 * n * p + PANEL * (2 * p + PANEL)


@inner
def drift(address, layout, blas, metric, point, eps, scratch):
    """Move every block for time ``eps``; ``address`` is that of the Cayley drift, which serves small matrices."""
    for m in range(layout.n.size):
        if layout.p[m] > PANEL:
            x, a, b = matrix_at(layout, m, point.q), square_at(layout, m, point.a), matrix_at(layout, m, point.b)
            cayley_by_inverse(x, a, b, eps * metric.c[layout.column[m]], scratch, blas)
        else:
            drift_matrix(address, layout, blas, metric, point, m, eps, scratch)
    drift_euclidean(layout, metric, point, eps, scratch)


@inner
def cayley_by_inverse(x, a, b, t, scratch, blas):
    """``Y = (X + h B) (I - 2 h A + h^2 S)^{-1}``, ``h = t/2``; ``X <- 2 Y - X`` and ``B <- B - 2 h Y S``."""
    p, n = x.shape
    h = 0.5 * t
    gram, system = view(scratch, 0, p, p), view(scratch, p * p, p, p)
    start, y = view(scratch, 2 * p * p, p, n), view(scratch, 2 * p * p + n * p, p, n)
    if n > p:
        gram_matrix(blas, b, gram)
    for i in range(p):
        for j in range(p):
            system[i, j] = 2.0 * h * a[i, j]  # transposed: rows are columns here
        if n > p:
            for j in range(p):
                system[i, j] += h * h * gram[i, j]
        system[i, i] += 1.0
    invert(blas, system, scratch[2 * p * p + 2 * n * p :])
    if n == p:  # B = 0
        product(blas, system, x, y)
    else:
        for i in range(p):
            for m in range(n):
                start[i, m] = x[i, m] + h * b[i, m]
        product(blas, system, start, y)
        add_product(blas, -2.0 * h, gram, y, b)
    for i in range(p):
        for m in range(n):
            x[i, m] = 2.0 * y[i, m] - x[i, m]
