r"""Normalising constants of the matrix Langevin and Bingham laws: values and derivatives, in compiled code.

All constants are expectations over normalised Haar measure on St(n, p), so that the uniform law has logarithm 0.
docs/normalizers.md lists the methods and their measured errors.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.engine.jit.compiling import compiled, part
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector
from pymc_stiefel.normalizers._recurrence import log_hyp0f1_recurrence
from pymc_stiefel.normalizers._saddlepoint import log_hyp0f1_saddlepoint

EXACT_COLUMNS = 5
LARGEST = 1e100
BINGHAM_COLUMNS = 10
"""Largest min(p, n - p) for which the Pfaffian of the matrix Bingham normaliser keeps its digits."""


@compiled
def log_hyp0f1(n, s):
    """Value and derivative in s of log 0F1(n/2; diag(s)^2 / 4); see ``normalizers.log_hyp0f1``."""
    rows = float(n)
    size = np.abs(s)
    beyond = 0.0
    for i in range(len(s)):  # squares must not overflow; for large s the value grows linearly in s
        beyond += max(0.0, size[i] - LARGEST)
        size[i] = min(size[i], LARGEST)
    if len(s) == 1:
        value, slope = log_hyp0f1_vector(rows, size[0])
        grad = np.array([slope])
    elif len(s) > EXACT_COLUMNS:
        value, grad = log_hyp0f1_saddlepoint(rows, size)
    elif size.max() <= exact_limit(rows, len(s)):
        value, grad = _exact(rows, size)
    else:
        value, grad = _continued(rows, size)
    for i in range(len(s)):
        if s[i] < 0.0:
            grad[i] = -grad[i]
    return value + beyond, grad


@compiled
def exact_limit(n, p):
    """Largest singular value at which 0F1 is summed exactly: limited by time for p = 2, by rounding for p = 3, 4, 5."""
    if p == 2:
        return 1e5
    if p == 3:
        return min(300.0 + 3.0 * n, 2000.0)
    return min(100.0 + n, 700.0) if p == 4 else min(30.0 + n, 400.0)


@compiled
def _exact(n, s):
    if len(s) == 2:
        return _muirhead(n, s)
    return log_hyp0f1_recurrence(n, s)


@part
def _continued(n, s):
    """The exact value at smaller singular values, plus the saddlepoint's difference between these and s.

    Each singular value beyond the limit is mapped to between 1 and 1.5 times the limit, with slope one at the limit, so
    that the derivative is continuous. The error of the saddlepoint approximation hardly varies at high concentration,
    so most of it cancels in the difference.
    """
    limit = exact_limit(n, len(s))
    inner, slope = s.copy(), np.ones(len(s))
    for i in range(len(s)):
        if s[i] > limit:
            ratio = limit / s[i]
            inner[i] = limit * (1.5 - 0.5 * ratio**2)
            slope[i] = ratio**3
    value, grad = _exact(n, inner)
    near, near_grad = log_hyp0f1_saddlepoint(n, inner)
    far, far_grad = log_hyp0f1_saddlepoint(n, s)
    return far + value - near, far_grad + slope * (grad - near_grad)


@part
def _muirhead(n, s):
    r"""p = 2: :math:`\sum_k (x_1 x_2)^k / [(a-\frac12)_k (a)_{2k} k!]\, {}_0F_1(a+2k; x_1+x_2)`, all terms positive.

    The one-variable functions are computed from the last one by downward recurrence in their order (Muirhead 1975).
    The series needs about sqrt(s_1 s_2) / 5 + 10 terms.
    """
    a = 0.5 * n
    product = (0.25 * s[0] * s[1]) ** 2  # x_1 x_2 with x = s^2 / 4
    kappa = math.hypot(s[0], s[1])
    size, log_term, log_peak = 0, 0.0, 0.0
    while product > 0.0 and log_term > log_peak - 41.0:  # an upper bound, without the decreasing factor 0F1(a + 2k)
        log_term += math.log(product) - math.log(_muirhead_divisor(a, size))
        log_peak = max(log_peak, log_term)
        size += 1
    values, ratios = np.empty(size + 1), np.empty(size + 1)
    dimension = n + 4.0 * size
    value, ratio = log_hyp0f1_vector(dimension, kappa)
    values[size], ratios[size] = value, ratio
    for k in range(size - 1, -1, -1):
        for _ in range(2):
            dimension -= 2.0
            growth = ratio * kappa / dimension
            value += math.log1p(growth)
            ratio = kappa / dimension / (1.0 + growth)
        values[k], ratios[k] = value, ratio
    first, total, radial, joint, log_factor = 1.0, 0.0, ratios[0], 0.0, 0.0
    relative = 1.0  # term k divided by term 0
    for k in range(size):
        if total > 1e200:
            first, total, radial, joint, relative = 1e-200 * np.array([first, total, radial, joint, relative])
            log_factor += 200.0 * math.log(10.0)
        bare = relative * math.exp(values[k + 1] - values[k]) / _muirhead_divisor(a, k)
        relative = bare * product
        total += relative
        radial += relative * ratios[k + 1]
        joint += (k + 1.0) * bare
    along = radial / (first + total) / kappa if kappa > 0.0 else 1.0 / n
    across = joint / (first + total) / 8.0
    grad = np.array([s[0] * (along + across * s[1] ** 2), s[1] * (along + across * s[0] ** 2)])
    if log_factor > 0.0:
        return values[0] + math.log(first + total) + log_factor, grad
    return values[0] + math.log1p(total), grad


@part
def _muirhead_divisor(a, k):
    return (k + 1.0) * (a - 0.5 + k) * (a + 2.0 * k) * (a + 2.0 * k + 1.0)
