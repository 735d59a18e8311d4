r"""Normaliser of Bingham laws whose density is invariant under X -> XQ, by quadrature on a contour.

For ``Z'Z = I`` the inverse Laplace transform gives

.. math:: E_\mathrm{Haar}\,\mathrm{etr}(X'AX) = {}_1F_1(p/2; n/2; A)
          \propto \int \mathrm{etr}(S) \prod_{i=1}^n |S - a_i I_p|^{-1/2}\, dS

over symmetric complex p x p matrices. The integrand depends only on the eigenvalues of S. This leaves
:math:`\int_{z_1 \prec \dots \prec z_p} \prod_{i<j}(z_j - z_i) \prod_i \varphi(z_i)\,dz_i`, ordered along a contour,
which is a Pfaffian of one-dimensional integrals (de Bruijn 1955). The contour is
:math:`z = a_{\max} + (\sqrt d + iy)^2`, where :math:`a_{\max} + d` is the saddlepoint of Kume & Wood (2005,
doi:10.1093/biomet/92.2.465). It encloses all branch points, the integrand eventually decays as :math:`e^{-y^2}`, and
the trapezoidal rule converges geometrically for any eigenvalues. So does the rule for ordered pairs, with the sine
integral in place of the sign (sinc indefinite integration).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import scipy
from numba.extending import overload

from pymc_stiefel.engine.jit.compiling import compiled, part

STEP = 0.05
NODES_MAX = 1000  # on either side of the saddlepoint


@cache
def signs() -> np.ndarray:
    """Weights of sinc indefinite integration, by distance of two nodes."""
    return np.array([2.0 / math.pi * float(scipy.special.sici(math.pi * k)[0]) for k in range(2 * NODES_MAX + 1)])


@overload(signs)
def _compiled_signs():
    table = signs()  # a constant of the compiled code; SciPy's functions are imported here
    return lambda: table


@part
def saddlepoint_gap(a):
    """Distance d of the saddlepoint from max(a): sum 1 / (2 (d + max(a) - a_i)) = 1, between 1/2 and n/2."""
    top = a.max()
    d = 0.5
    for _ in range(100):  # Newton's iteration is monotone: it starts left of the root of a convex decreasing function
        excess, slope = -1.0, 0.0
        for value in a:
            term = 0.5 / (d + top - value)
            excess += term
            slope += term / (d + top - value)
        d += excess / slope
        if excess < 1e-13:
            break
    return d


@part
def _contour(a, p):
    """Offsets z - max(a) on the nodes, the weights phi(z) dz, and the logarithm of the scale taken out of them."""
    n, top = len(a), a.max()
    root = math.sqrt(saddlepoint_gap(a))
    upper = np.empty(NODES_MAX + 1, dtype=np.complex128)
    log_phi = np.empty(NODES_MAX + 1, dtype=np.complex128)
    depth = 44.0 if p == 1 else 80.0  # the polynomials use up to half of the decay
    half = -1
    while half < NODES_MAX and (half < 1 or log_phi[half].real > log_phi[0].real - depth):
        half += 1
        w = complex(root, half * STEP)
        upper[half] = w * w
        log_phi[half] = w * w + np.log(w)
        for i in range(n):
            log_phi[half] -= 0.5 * np.log(w * w + (top - a[i]))
    offset = np.empty(2 * half + 1, dtype=np.complex128)
    weight = np.empty(2 * half + 1, dtype=np.complex128)
    log_scale = log_phi[0].real
    for k in range(half + 1):
        phi = np.exp(log_phi[k] - log_scale) * STEP
        offset[half + k], weight[half + k] = upper[k], phi
        offset[half - k], weight[half - k] = upper[k].conjugate(), phi.conjugate()
    return offset, weight, log_scale


@part
def _log_integral_vector(a):
    """p = 1: log of the contour integral and its derivative in a."""
    offset, weight, log_scale = _contour(a, 1)
    top = a.max()
    total = np.sum(weight).real
    grad = np.empty(len(a))
    for i in range(len(a)):
        grad[i] = 0.5 * np.sum(weight / (offset + (top - a[i]))).real / total
    return top + log_scale + math.log(total), grad


@part
def _polynomials(offset, weight, p):
    """Polynomials of degree 0..p-1 on the nodes, orthonormal for |weight| (Arnoldi), and the log of the product of
    their leading coefficients."""
    size = len(offset)
    mass = np.abs(weight)
    P = np.empty((p, size), dtype=np.complex128)
    log_lead, log_total = 0.0, 0.0
    for k in range(p):
        if k == 0:
            P[0] = 1.0
        else:
            P[k] = offset * P[k - 1]
            for _ in range(2):
                for j in range(k):
                    P[k] -= np.sum(mass * np.conj(P[j]) * P[k]) * P[j]
        norm = math.sqrt(np.sum(mass * np.abs(P[k]) ** 2))
        P[k] /= norm
        log_lead -= math.log(norm)
        log_total += log_lead
    return P, log_total


@part
def _log_integral_frame(a, p):
    """p >= 2: log of the ordered contour integral, a Pfaffian, and its derivative in a."""
    offset, weight, log_scale = _contour(a, p)
    size, top = len(offset), a.max()
    P, log_lead = _polynomials(offset, weight, p)
    f = P * weight
    sign = signs()
    beyond = np.zeros((p, size), dtype=np.complex128)  # integral against the sign of the difference
    for k in range(p):
        for m in range(size):
            total = 0.0j
            for l in range(size):
                total += (sign[l - m] if l > m else -sign[m - l]) * f[k, l]
            beyond[k, m] = total
    even = p + p % 2
    M = np.zeros((even, even), dtype=np.complex128)
    M[:p, :p] = f @ beyond.T
    if even > p:
        for j in range(p):
            M[j, p] = np.sum(f[j])
            M[p, j] = -M[j, p]
    inverse = np.linalg.inv(M)
    density = np.zeros(size, dtype=np.complex128)
    for j in range(p):
        for k in range(p):
            density += inverse[k, j] * f[j] * beyond[k]
        if even > p:
            density += inverse[p, j] * f[j]
    grad = np.empty(len(a))
    for i in range(len(a)):
        grad[i] = 0.5 * np.sum(density / (offset + (top - a[i]))).real
    log_pfaffian = 0.5 * math.log(abs(np.linalg.det(M)))
    return p * (top + log_scale) + log_pfaffian - log_lead, grad


@compiled
def log_bingham_vector(a):
    """Value and derivative in a of log E exp(sum a_i x_i^2); see ``normalizers.log_bingham_vector``."""
    n = len(a)
    if n == 1:
        return a[0], np.ones(1)
    value, grad = _log_integral_vector(a)
    return value - _log_integral_vector(np.zeros(n))[0], grad


@compiled
def log_bingham_frame(p, a):
    """``log E etr(X' diag(a) X)`` for X uniform on St(n, p), and its derivative in a, which sums to p.

    For p > n/2 the law of the complement is used: tr X'AX + tr Y'AY = tr A. The derivative is NaN if the
    Pfaffian has lost its digits; the sign of this is a derivative that is not the diagonal of a mean projector.
    """
    n = len(a)
    if p == n:
        return np.sum(a), np.ones(n)
    if 2 * p > n:
        value, grad = log_bingham_frame(n - p, -a)
        return value + np.sum(a), 1.0 - grad
    if p == 1:
        return log_bingham_vector(a)
    value, grad = _log_integral_frame(a, p)
    if not (abs(np.sum(grad) - p) < 1e-6 * p and np.min(grad) > -1e-6 and np.max(grad) < 1.0 + 1e-6):
        grad[:] = np.nan  # a wrong value leaves the draws right, a wrong derivative does not
    return value - _log_integral_frame(np.zeros(n), p)[0], grad
