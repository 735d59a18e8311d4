r"""Second-order saddlepoint approximation of log 0F1, for p or concentrations too large for exact methods.

Herz's integral :math:`{}_0F_1(n/2; D^2/4) \propto \int \mathrm{etr}(S + D^2 S^{-1}/4)\,|S|^{-n/2}\,dS` over symmetric
p x p matrices has a diagonal saddlepoint. With the Gaussian term alone it is the calibrated Laplace approximation of
Butler & Wood (2003, J. Comput. Appl. Math. 155, 359-382). There are two additions.

* The next term of the expansion, a sum of O(p^3) Feynman diagrams, reduces the error from O(1/n) to O(1/n^2).
* A factor :math:`|S|^{-c/2}` of the integrand is kept out of the exponent. The expansion holds for any c. The best
  value is c = 0 at low concentration and c = (k + 1)/2 at high concentration, with k the number of large singular
  values (it then centres Stirling's series for the gamma functions of the limit). In between, c follows a smooth curve
  fitted to exact values for p <= 5.
"""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.jit.compiling import part

STEP = 1e-100  # step of the complex-step derivative, which forms no difference and is therefore exact up to rounding


@part
def _diagrams(a, N, c):
    """The second-order term for exponent N/2 and prefactor c/2, with ``a`` the values of s^2 / (4 saddlepoint)."""
    p = len(a)
    g = np.empty((p, p), dtype=a.dtype)  # half the covariance of the Gaussian's entries
    for i in range(p):
        for j in range(p):
            g[i, j] = 0.5 / (a[i] + a[j] + 0.5 * N)
    total = 0.0 * N
    row = np.empty(p, dtype=a.dtype)
    for i in range(p):
        row[i] = np.sum(g[i]) + g[i, i]
    for i in range(p):
        own, cubic = g[i, i], a[i] + N / 6.0
        fourth = row[i] ** 2 + own * row[i] + 3.0 * own**2
        tadpole = own * cubic
        crossed = 4.0 * own**3 * cubic**2
        for j in range(p):
            mixed = (2.0 * cubic + a[j] + N / 6.0) / 3.0
            fourth += g[i, j] * (row[j] + g[i, j])
            tadpole += mixed * g[i, j]
            crossed += 3.0 * mixed**2 * own * g[i, j] ** 2
            for k in range(j + 1 if j <= i else 0):  # the ring i, j, k once for each of its orders
                orders = 1.0 if i == k else 3.0 if j == k or i == j else 6.0
                vertex = (a[i] + a[j] + a[k]) / 3.0 + N / 6.0
                crossed += orders * vertex**2 * g[i, j] * g[j, k] * g[k, i]
        total += (a[i] + N / 8.0) * fourth - 9.0 * tadpole**2 * own - 3.0 * crossed
        total += c * (3.0 * tadpole * own - 0.25 * row[i]) - 0.25 * c**2 * own
    return total


@part
def _diagrams_at_zero(p, N, c):
    """``_diagrams`` for s = 0, where all entries have the same variance."""
    fourth = ((p + 1) ** 2 + (p + 1) + 3 + p * (p + 2)) / (8.0 * N)
    cubic = ((p + 1) ** 2 / 4.0 + (4 + 3 * p + p * p) / 12.0) / N
    return p * (fourth - cubic + c * ((p + 1) * 0.25 - 0.25 * c) / N)


@part
def _value(n, s):
    """The approximation at s (real or complex)."""
    p = len(s)
    sharpness = p * (0.9 + 2.0 * (p / n) ** 2)
    filled, empty = 0.0 * s[0], 1.0 + 0.0 * s[0]
    for i in range(p):
        rest = 2.0 * n / (n + np.sqrt(n * n + 4.0 * s[i] ** 2))  # 1 - u^2 for c = 0
        vacancy = np.exp(sharpness * np.log(rest * (2.0 - rest)))  # a power of 1 - u^4
        filled += 1.0 - vacancy
        empty *= vacancy
    c = 0.5 * (filled + 1.0 - empty)
    N = n - c
    a, gap = np.empty_like(s), np.empty_like(s)  # gap = 1 - u^2, where u = s / (2 saddlepoint)
    value = 0.0 * s[0]
    for i in range(p):
        gap[i] = 2.0 * N / (N + np.sqrt(N * N + 4.0 * s[i] ** 2))
        a[i] = 0.5 * s[i] ** 2 * gap[i] / N
        value += 2.0 * a[i] + 0.5 * n * np.log(gap[i])
        for j in range(i + 1):
            value -= 0.5 * np.log(gap[i] + gap[j] - gap[i] * gap[j])  # 1 - u_i^2 u_j^2
    return value + _diagrams(a, N, c) - _diagrams_at_zero(p, N, c)


@part
def log_hyp0f1_saddlepoint(n, s):
    """Approximate ``log 0F1(n/2; diag(s)^2 / 4)`` and its derivative in s; p^4 operations."""
    z = s.astype(np.complex128)
    grad = np.empty(len(s))
    value = 0.0
    for i in range(len(s)):
        z[i] = complex(s[i], STEP)
        result = _value(n, z)
        value, grad[i] = result.real, result.imag / STEP
        z[i] = s[i]
    return value, grad
