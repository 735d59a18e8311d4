r"""Normalising constants of the matrix Langevin and Bingham laws: values and derivatives, in compiled code."""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel._bessel import log_hyp0f1_vector
from pymc_stiefel.engine.compiling import compiled

__all__ = ["log_hyp0f1", "log_hyp0f1_vector"]


@compiled
def _muirhead(n, s):
    """p = 2: Muirhead's series over 0F1 of one variable; every term is positive."""
    a = 0.5 * n
    product = (0.25 * s[0] * s[1]) ** 2  # x1 x2 with x = s^2 / 4
    kappa = math.hypot(s[0], s[1])
    size, log_term, log_peak = 0, 0.0, 0.0
    while log_term > log_peak - 41.0:  # the bound that leaves out the decreasing factor 0F1(a + 2k)
        if product == 0.0:
            break
        k = size
        log_term += math.log(product / ((k + 1.0) * (a - 0.5 + k) * (a + 2.0 * k) * (a + 2.0 * k + 1.0)))
        log_peak = max(log_peak, log_term)
        size += 1
    values = np.empty(size + 1)
    ratios = np.empty(size + 1)
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
    total, radial, joint = 1.0, ratios[0], 0.0
    relative = 1.0  # term k divided by term 0
    for k in range(size):
        bare = relative * math.exp(values[k + 1] - values[k])
        bare /= (k + 1.0) * (a - 0.5 + k) * (a + 2.0 * k) * (a + 2.0 * k + 1.0)
        relative = bare * product
        total += relative
        radial += relative * ratios[k + 1]
        joint += (k + 1.0) * bare
    along = radial / total / kappa if kappa > 0.0 else 1.0 / n
    across = joint / total / 8.0
    grad = np.array([s[0] * (along + across * s[1] ** 2), s[1] * (along + across * s[0] ** 2)])
    return values[0] + math.log(total), grad


@compiled
def _laplace(n, s):
    """Butler & Wood's calibrated Laplace approximation (doi:10.1214/aos/1059655922)."""
    p = len(s)
    u = np.empty(p)
    du = np.empty(p)
    value = 0.0
    for i in range(p):
        root = math.sqrt(n * n + 4.0 * s[i] ** 2)
        u[i] = 2.0 * s[i] / (n + root)
        du[i] = 2.0 / (n + root) * (1.0 - 4.0 * s[i] ** 2 / (root * (n + root)))
        value += 0.5 * n * math.log1p(-(u[i] ** 2)) + s[i] * u[i]
    grad = u.copy()
    for i in range(p):
        for j in range(i + 1):
            value -= 0.5 * math.log1p(-((u[i] * u[j]) ** 2))
            factor = u[i] * u[j] / (1.0 - (u[i] * u[j]) ** 2)
            grad[i] += factor * u[j] * du[i]
            grad[j] += factor * u[i] * du[j]
    return value, grad


@compiled
def log_hyp0f1(n, s):
    """log 0F1(n/2; F'F/4) and its derivative in the singular values s of F."""
    p = len(s)
    if p == 1:
        value, slope = log_hyp0f1_vector(float(n), abs(s[0]))
        return value, np.array([math.copysign(slope, s[0])])
    size = np.abs(s)
    if p == 2:
        value, grad = _muirhead(float(n), size)
    else:
        value, grad = _laplace(float(n), size)
    for i in range(p):
        if s[i] < 0.0:
            grad[i] = -grad[i]
    return value, grad
