r"""Compiled rejection samplers for unit vectors: von Mises-Fisher and Fisher-Bingham.

Every kernel takes the NumPy generator itself, so that draws depend on the user's seed.

A draw from the Fisher-Bingham law :math:`\exp(f'x + x'Qx)` consists of an axis and a sign. The axis has the density
:math:`\cosh(f'x)\exp(x'Qx)`, and :math:`\log\cosh(\kappa\sqrt w)` is concave in the squared cosine w. Its tangent at
``contact`` gives a Bingham law with :math:`S = Q + \mathrm{slope}\,uu'`, which has an angular central Gaussian envelope
with precision :math:`c - S` (Kent, Ganeiber & Mardia 2018). The logarithm of the total bound is jointly convex in slope
and c, so both are found by one-dimensional searches; with Q diagonal each step takes m operations.
"""

from __future__ import annotations

import math

from pymc_stiefel.engine.jit.compiling import compiled, part

VECTOR_PROPOSALS = 1_000_000
"""Proposals per vector, after which the draw fails. The worst acceptance rates fall as spread^(-1/2)."""


@part
def vmf_deficit(m, kappa, rng):
    """One minus the cosine to the mean of a von Mises-Fisher vector in R^m, m >= 2 (Wood 1994, Ulrich 1984).

    The deficit keeps all digits at high concentration, where the cosine would lose them. The acceptance rate is at
    least about 0.65.
    """
    half = 0.5 * (m - 1.0)
    b = (m - 1.0) / (2.0 * kappa + math.hypot(2.0 * kappa, m - 1.0))
    gap = 2.0 * b / (1.0 + b)  # 1 - x0
    while True:
        z = rng.beta(half, half)
        deficit = 2.0 * b * z / (1.0 - (1.0 - b) * z)
        log_ratio = kappa * (gap - deficit) + (m - 1.0) * (
            math.log((gap + (1.0 - gap) * deficit) / (gap * (2.0 - gap)))
        )
        if math.log1p(-rng.random()) <= log_ratio:
            return deficit


@part
def circle_deficit(kappa, rng):
    """``vmf_deficit`` for m = 2 without a beta variate: the wrapped Cauchy envelope of Best & Fisher (1979)."""
    b = 1.0 / (2.0 * kappa + math.hypot(2.0 * kappa, 1.0))
    gap = 2.0 * b / (1.0 + b)
    scale = 1.0 / (gap * (2.0 - gap))
    while True:
        sine = math.sin(0.5 * math.pi * rng.random())
        z = sine * sine  # the arcsine law, Beta(1/2, 1/2)
        deficit = 2.0 * b * z / (1.0 - (1.0 - b) * z)
        ratio = (gap + (1.0 - gap) * deficit) * scale
        if rng.random() <= ratio * math.exp(kappa * (gap - deficit)):
            return deficit


@part
def vmf_sign(kappa, rng):
    """A sign with odds exp(2 kappa) for plus: von Mises-Fisher in one dimension."""
    return 1.0 if rng.random() * (1.0 + math.exp(-2.0 * kappa)) < 1.0 else -1.0


@compiled
def vmf_deficits(m, kappa, out, rng):
    """Fill ``out[k]`` with independent ``vmf_deficit`` of concentration ``kappa[k]``."""
    for k in range(len(kappa)):
        for i in range(out.shape[1]):
            out[k, i] = 1.0 - vmf_sign(kappa[k], rng) if m == 1.0 else vmf_deficit(m, kappa[k], rng)


@part
def log_cosh(x):
    return abs(x) + math.log1p(math.exp(-2.0 * abs(x))) - math.log(2.0)


@part
def _half_trace(f, q, kappa, slope, c):
    """Half the trace of (c - S)^-1 and its quadratic form in f / kappa; infinite if c - S is not positive definite."""
    total, first, second = 0.0, 0.0, 0.0
    for i in range(len(q)):
        if c <= q[i]:
            return math.inf, math.inf
        inverse = 1.0 / (c - q[i])
        total += inverse
        if slope > 0.0:
            weight = (f[i] / kappa) ** 2
            first += weight * inverse
            second += weight * inverse * inverse
    rest = 1.0 - slope * first
    if rest <= 0.0:
        return math.inf, math.inf
    return 0.5 * (total + slope * second / rest), first / rest


@part
def _best_shift(f, q, kappa, slope):
    """The c that minimises the bound for a slope, where the half trace is 1, and the squared cosine there."""
    top = q.max()
    low, high = top + 0.5, top + slope + 0.5 * len(q)
    below, above = -1.0, 1.0 / _half_trace(f, q, kappa, slope, high)[0] - 1.0
    side = 0
    for k in range(150):  # false position (Illinois) on a concave increasing function, every third time bisection
        c = high - above * (high - low) / (above - below)
        if k % 3 == 2 or not low < c < high:
            c = 0.5 * (low + high)
        value = 1.0 / _half_trace(f, q, kappa, slope, c)[0] - 1.0
        if value >= 0.0:
            high, above = c, value
            below = 0.5 * below if side == 1 else below
            side = 1
        else:
            low, below = c, value
            above = 0.5 * above if side == -1 else above
            side = -1
        if abs(value) < 1e-6 or high - low <= 1e-15 * abs(high):
            break
    return high, _half_trace(f, q, kappa, slope, high)[1]


@part
def slope_at(kappa, contact):
    root = math.sqrt(contact)
    return 0.5 * kappa * math.tanh(kappa * root) / root


@part
def envelope(f, q):
    """Best envelope of exp(f'x + sum q_i x_i^2): the concentration of f, the slope, c, and the log of the bound."""
    m = float(len(q))
    kappa = 0.0
    for value in f:
        kappa = math.hypot(kappa, value)
    slope, contact = 0.0, 1.0
    if kappa > 0.0:
        low, high = -46.0, 0.0  # bounds of log contact; the best contact is half the squared cosine under the envelope
        tolerance = 0.02 / (1.0 + math.sqrt(kappa))  # an error d costs a factor of about exp(kappa d^2)
        while high - low > tolerance:
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            contact = math.exp(middle)
            if contact < 0.5 * _best_shift(f, q, kappa, slope_at(kappa, contact))[1]:
                low = middle
            else:
                high = middle
        contact = math.exp(high)
        slope = slope_at(kappa, contact)
    c = _best_shift(f, q, kappa, slope)[0]
    bound = log_cosh(kappa * math.sqrt(contact)) - slope * contact + c - 0.5 * m + 0.5 * m * math.log(0.5 * m)
    return kappa, slope, c, bound


@part
def fisher_bingham_vector(f, q, fit, out, rng):
    """Exact draw of a unit vector with density exp(f'x + sum q_i x_i^2); ``fit`` is ``envelope(f, q)``.

    Returns False if no proposal was accepted.
    """
    m = len(f)
    if m == 1:
        out[0] = vmf_sign(abs(f[0]), rng) * (1.0 if f[0] >= 0.0 else -1.0)
        return True
    kappa, slope, c, bound = fit
    along = 0.0
    if slope > 0.0:
        first = 0.0
        for i in range(m):
            first += (f[i] / kappa) ** 2 / (c - q[i])
        along = math.sqrt(slope / (1.0 - slope * first))
    for _ in range(VECTOR_PROPOSALS):
        extra = along * rng.standard_normal() if slope > 0.0 else 0.0
        norm = 0.0
        for i in range(m):
            gap = c - q[i]
            out[i] = rng.standard_normal() / math.sqrt(gap)
            if slope > 0.0:
                out[i] += extra * (f[i] / kappa) / gap
            norm += out[i] ** 2
        norm = math.sqrt(norm)
        cosine, quadratic, precision = 0.0, 0.0, 0.0
        for i in range(m):
            out[i] /= norm
            cosine += f[i] * out[i]
            quadratic += q[i] * out[i] ** 2
            precision += (c - q[i]) * out[i] ** 2
        if kappa > 0.0:
            precision -= slope * (cosine / kappa) ** 2
        if math.log1p(-rng.random()) <= log_cosh(cosine) + quadratic + 0.5 * m * math.log(precision) - bound:
            if vmf_sign(abs(cosine), rng) * cosine < 0.0 or (cosine == 0.0 and rng.random() < 0.5):
                out[:] = -out
            return True
    return False


@compiled
def fisher_bingham_vectors(f, q, out, rng):
    """Fill ``out[k]`` (draws, m) with Fisher-Bingham vectors of parameters ``f[k]``, ``q[k]``; False if one failed."""
    for k in range(len(f)):
        fit = envelope(f[k], q[k])
        for i in range(out.shape[1]):
            if not fisher_bingham_vector(f[k], q[k], fit, out[k, i], rng):
                return False
    return True
