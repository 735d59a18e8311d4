r"""Compiled kernels behind :mod:`pymc_stiefel.draws`: rejection samplers and Gibbs sweeps for one matrix.

Every kernel takes the NumPy generator itself, so that draws follow the user's seed.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.engine.compiling import compiled
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector

# ---------------------------------------------------------------- vectors


@compiled
def vmf_deficit(m, kappa, rng):
    """One minus the cosine to the mean of a von Mises-Fisher vector in R^m, m >= 2 (Wood 1994, Ulrich 1984).

    Working with the deficit keeps all digits at high concentration. The acceptance rate is at least about 0.65.
    """
    half = 0.5 * (m - 1.0)
    b = (m - 1.0) / (2.0 * kappa + math.sqrt(4.0 * kappa * kappa + (m - 1.0) ** 2))
    gap = 2.0 * b / (1.0 + b)  # 1 - x0
    while True:
        z = rng.beta(half, half)
        deficit = 2.0 * b * z / (1.0 - (1.0 - b) * z)
        log_ratio = kappa * (gap - deficit) + (m - 1.0) * (
            math.log((gap + (1.0 - gap) * deficit) / (gap * (2.0 - gap)))
        )
        if math.log1p(-rng.random()) <= log_ratio:
            return deficit


@compiled
def vmf_sign(kappa, rng):
    """A sign with odds exp(2 kappa) for plus: von Mises-Fisher in one dimension."""
    return 1.0 if rng.random() * (1.0 + math.exp(-2.0 * kappa)) < 1.0 else -1.0


@compiled
def vmf_deficits(m, kappa, out, rng):
    """Fill ``out`` with independent ``vmf_deficit``."""
    for i in range(len(out)):
        out[i] = vmf_deficit(m, kappa, rng)


@compiled
def bingham_width(spread):
    """The b > 0 with sum 1 / (b + 2 spread_i) = 1: best angular central Gaussian envelope of exp(-sum spread_i x_i^2).

    Newton's iteration on a convex decreasing function, from the left: monotone.
    """
    b = 0.0
    for value in spread:
        b += 1.0 if value == 0.0 else 0.0
    b = max(b, 1e-3)  # the root is at least the number of zeros
    for _ in range(100):
        excess, slope = -1.0, 0.0
        for value in spread:
            excess += 1.0 / (b + 2.0 * value)
            slope += 1.0 / (b + 2.0 * value) ** 2
        b += excess / slope
        if excess <= 1e-12:
            break
    return b


@compiled
def axis_log_bound(spread, b):
    """Log of the envelope's mass: minus the log acceptance rate, up to the normaliser of the target."""
    m = len(spread)
    value = 0.5 * (b - m) + 0.5 * m * math.log(m / b)
    for i in range(m):
        value -= 0.5 * math.log1p(2.0 * spread[i] / b)
    return value


@compiled
def bingham_axis(spread, b, out, rng):
    """Unit vector with density exp(-sum spread_i x_i^2), spread >= 0 with smallest 0 (Kent, Ganeiber & Mardia 2018)."""
    m = len(spread)
    offset = 0.5 * (m - b) + 0.5 * m * math.log(b / m)
    while True:
        norm = 0.0
        for i in range(m):
            out[i] = rng.standard_normal() / math.sqrt(1.0 + 2.0 * spread[i] / b)
            norm += out[i] ** 2
        norm = math.sqrt(norm)
        energy = 0.0
        for i in range(m):
            out[i] /= norm
            energy += spread[i] * out[i] ** 2
        if math.log1p(-rng.random()) <= offset - energy + 0.5 * m * math.log1p(2.0 * energy / b):
            return


@compiled
def _log_cosh(x):
    return abs(x) + math.log1p(math.exp(-2.0 * abs(x))) - math.log(2.0)


@compiled
def _fisher_bingham_envelope(f, Q, contact):
    """Bingham envelope of exp(f'x + x'Qx): log cosh is concave in the squared cosine, here touched at ``contact``.

    Returns the slope, the eigenvectors, the spread and the log of the total bound.
    """
    kappa = math.sqrt(np.sum(f * f))
    root = math.sqrt(contact)
    slope = 0.5 * kappa * math.tanh(kappa * root) / root if kappa > 0.0 else 0.0
    S = Q.copy()
    if kappa > 0.0:
        for i in range(len(f)):
            for j in range(len(f)):
                S[i, j] += slope * (f[i] / kappa) * (f[j] / kappa)
    values, vectors = np.linalg.eigh(S)
    spread = values[-1] - values
    spread[-1] = 0.0
    b = bingham_width(spread)
    log_bound = _log_cosh(kappa * root) - slope * contact + values[-1] + axis_log_bound(spread, b)
    return slope, vectors, spread, b, log_bound


@compiled
def fisher_bingham_vector(f, Q, out, rng):
    """Exact draw of a unit vector in R^m with density exp(f'x + x'Qx), by rejection from an axis and a sign.

    The squared cosine at which the envelope touches is 1 or that of the law without ``Q``, whichever is tighter.
    """
    m = len(f)
    kappa = math.sqrt(np.sum(f * f))
    if m == 1:
        out[0] = vmf_sign(abs(f[0]), rng) * (1.0 if f[0] >= 0.0 else -1.0)
        return
    contact = min(1.0, (2.0 * kappa / (m + math.sqrt(m * m + 4.0 * kappa * kappa))) ** 2 + 1.0 / m)
    slope, vectors, spread, b, log_bound = _fisher_bingham_envelope(f, Q, contact)
    slope1, vectors1, spread1, b1, log_bound1 = _fisher_bingham_envelope(f, Q, 1.0)
    if log_bound1 < log_bound:
        contact, slope, vectors, spread, b = 1.0, slope1, vectors1, spread1, b1
    top = _log_cosh(kappa * math.sqrt(contact)) - slope * contact
    axis = np.empty(m)
    while True:
        bingham_axis(spread, b, axis, rng)
        out[:] = vectors @ axis
        cosine = np.sum(f * out) / kappa if kappa > 0.0 else 0.0
        if math.log1p(-rng.random()) <= _log_cosh(kappa * cosine) - slope * cosine**2 - top:
            break
    if vmf_sign(abs(kappa * cosine), rng) * cosine < 0.0 or (cosine == 0.0 and rng.random() < 0.5):
        out[:] = -out


# ---------------------------------------------------------------- matrix Langevin by rejection


@compiled
def langevin_columns(n, s, rng, reject):
    """A draw of the first rows of X for F = [diag(s); 0]: Hoff's (2009) column proposal, with or without rejection.

    Column j is von Mises-Fisher around the part of F's column orthogonal to the columns before it. Only the first p
    rows meet F, so the other n - p are kept in a basis where they are upper trapezoidal: p^3 operations a proposal.

    Returns
    -------
    float64[p + min(n - p, p), p]
        Orthonormal columns; the lower rows still have to be turned by a Haar matrix.
    """
    p = len(s)
    rows = p + min(n - p, p)
    X = np.zeros((rows, p))
    g, z = np.empty(rows), np.empty(rows)
    bound = np.empty(p)
    for j in range(p):
        bound[j] = log_hyp0f1_vector(float(n - j), s[j])[0]
    j = 0
    while j < p:
        used = min(rows, p + j + 1)
        g[:] = 0.0
        g[j] = 1.0
        _orthogonalise(g, X, j, used)
        length = math.sqrt(np.sum(g[:used] ** 2))
        log_ratio = log_hyp0f1_vector(float(n - j), s[j] * length)[0] - bound[j]
        if reject and math.log1p(-rng.random()) > log_ratio:
            j = 0  # the ratio of the whole matrix is the product over columns, so it may be refused early
            continue
        if length > 0.0:
            g /= length
        for i in range(used):
            z[i] = rng.standard_normal()
        if p + j < rows:  # all rows not yet in use, as one coordinate
            z[p + j] = math.sqrt(2.0 * rng.standard_gamma(0.5 * (n - p - j)))
        _place_column(X, j, used, g, z, s[j] * length, n - j, rng)
        j += 1
    return X


@compiled
def _orthogonalise(g, X, j, used):
    """Remove the first j columns of X from g, twice, for rounding."""
    for _ in range(2):
        for k in range(j):
            dot = 0.0
            for i in range(used):
                dot += g[i] * X[i, k]
            for i in range(used):
                g[i] -= dot * X[i, k]


@compiled
def _place_column(X, j, used, g, z, kappa, m, rng):
    """Column j of X: von Mises-Fisher around g in the complement (dimension m) of the earlier columns, z its noise."""
    if m == 1:
        X[:used, j] = g[:used] * vmf_sign(kappa, rng)
        return
    deficit = vmf_deficit(float(m), kappa, rng)
    for _ in range(2):
        _orthogonalise(z, X, j, used)
        dot = np.sum(z[:used] * g[:used])
        z[:used] -= dot * g[:used]
    norm = math.sqrt(np.sum(z[:used] ** 2))
    across = math.sqrt(deficit * (2.0 - deficit)) / norm
    X[:used, j] = (1.0 - deficit) * g[:used] + across * z[:used]
