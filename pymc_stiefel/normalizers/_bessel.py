r"""Bessel functions for p = 1: :math:`\log {}_0F_1(n/2; \kappa^2/4)` and its derivative, in compiled code.

With :math:`\nu = n/2 - 1`, :math:`{}_0F_1(n/2; \kappa^2/4) = \Gamma(n/2) (2/\kappa)^\nu I_\nu(\kappa)`, whose
logarithmic derivative is :math:`I_{\nu+1}(\kappa) / I_\nu(\kappa)`. All functions compute the ratio to the value at 0,
which neither overflows nor underflows and has no cancellation.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.engine.jit.compiling import compiled, part

DEBYE_ORDER = 12  # terms of the uniform expansion; for nu >= DEBYE_NU the first omitted term is below 1e-15
DEBYE_NU = 25.0
SERIES_PEAK = 30.0  # the power series is used if its largest term comes before this one


def _debye_polynomials() -> np.ndarray:
    """Coefficients of U_k(t), k = 0..DEBYE_ORDER, by powers of t (DLMF 10.41.9)."""
    table = np.zeros((DEBYE_ORDER + 1, 3 * DEBYE_ORDER + 2))
    u = np.polynomial.Polynomial([1.0])
    t = np.polynomial.Polynomial([0.0, 1.0])
    for k in range(DEBYE_ORDER + 1):
        table[k, : len(u.coef)] = u.coef
        u = t**2 * (1 - t**2) * u.deriv() / 2 + ((1 - 5 * t**2) * u).integ() / 8
    return table


DEBYE = _debye_polynomials()


@part
def _series(a, x):
    """``(log 0F1(a; x), 0F1(a + 1; x) / 0F1(a; x))`` for x >= 0 by the power series, whose terms are positive."""
    term, total = 1.0, 0.0
    slope_term, slope = 1.0, 1.0
    k = 0
    while True:
        k += 1
        term *= x / (k * (a + k - 1.0))
        slope_term *= x / (k * (a + k))
        total += term
        slope += slope_term
        if term <= 1e-17 * total and slope_term <= 1e-17 * slope:
            break
    return math.log1p(total), slope / (1.0 + total)


@part
def _debye(nu, kappa):
    """Value and derivative by the uniform expansion for large order (DLMF 10.41.3), divided by Stirling's series."""
    z = kappa / nu
    root = math.hypot(1.0, z)
    t = 1.0 / root
    total, slope, power = 0.0, 0.0, 1.0
    at_zero = 0.0
    for k in range(DEBYE_ORDER + 1):
        value, derivative, one = 0.0, 0.0, 0.0
        for j in range(3 * k, k - 1, -1):  # U_k has only the powers k..3k
            value = value * t + DEBYE[k, j]
            derivative += j * DEBYE[k, j] * t ** (j - 1) if j > 0 else 0.0
            one += DEBYE[k, j]
        total += value * t**k * power
        slope += derivative * power
        at_zero += one * power
        power /= nu
    half = z * (z / (1.0 + root))  # root - 1, without overflow
    log_value = nu * (half - math.log1p(0.5 * half))
    log_value += -0.5 * math.log(root) + math.log(total / at_zero)
    grad = z / (1.0 + root) - z / root / (2.0 * nu * root) - slope / total * z * t**3 / nu
    return log_value, grad


@compiled
def log_hyp0f1_vector(n, kappa):
    """Value and derivative of log 0F1(n/2; kappa^2 / 4); see ``normalizers.log_hyp0f1_vector``."""
    if kappa == 0.0:
        return 0.0, 0.0
    if n == 1.0 and kappa > 1.0:
        return kappa + math.log1p(math.expm1(-2.0 * kappa) / 2.0), math.tanh(kappa)
    if n == 1.0:
        return math.log1p(2.0 * math.sinh(0.5 * kappa) ** 2), math.tanh(kappa)
    nu = 0.5 * n - 1.0
    if kappa < 2.0 * math.sqrt(SERIES_PEAK * (SERIES_PEAK + nu)):
        value, ratio = _series(0.5 * n, 0.25 * kappa * kappa)
        return value, kappa / n * ratio
    shift = max(0.0, math.ceil(DEBYE_NU - nu))
    order = nu + shift
    value, ratio = _debye(order, kappa)
    while order > nu + 0.5:
        growth = ratio * kappa / (2.0 * order)
        value += math.log1p(growth)
        ratio = kappa / (2.0 * order) / (1.0 + growth)
        order -= 1.0
    return value, ratio
