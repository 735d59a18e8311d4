r"""Fisher-Bingham vectors orthogonal to given ones, in O(n k^2) operations.

The target is :math:`\exp(f'x + \sum_i q_i x_i^2)` on the unit vectors orthogonal to the k orthonormal rows of ``O``.
The proposal is the angular central Gaussian envelope of ``_vectors``, restricted to this complement. With
:math:`D = (c - q)^{-1}` its covariance is :math:`D - DO'(ODO')^{-1}OD`. A proposal is therefore a Gaussian vector with
independent entries, conditioned on :math:`Ox = 0`; no basis of the complement is needed.

The covariance may be positive definite although up to k entries of ``c - q`` are negative. These coordinates (``low``)
are drawn first, from their marginal law, then the others given these. This requires at least k others, hence n > 2k.

Every valid envelope gives exact draws. The search for a good envelope can therefore be coarse. It starts from the
envelope of an earlier draw. Without f this envelope is used as it is, until a draw needs many proposals.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.draws._vectors import VECTOR_PROPOSALS, log_cosh, slope_at, vmf_sign
from pymc_stiefel.engine.jit.compiling import part

PATIENCE = 8
"""Proposals from the envelope of an earlier draw, after which a better one is searched for."""


@part
def complement_vector(f, q, O, fit, out, rng):
    """Exact draw of a unit vector orthogonal to the rows of O; ``f`` has to be orthogonal to them, too.

    ``fit`` contains c and the contact point of an earlier draw, or zeros for none, and is updated. Returns False if no
    proposal was accepted.
    """
    k, n = O.shape
    squares, sides, low = np.empty((4, k, k)), np.empty((5, k)), np.empty(k, dtype=np.int64)
    gap, lean, G, P, load, side = np.empty(n), np.empty(n), squares[0], squares[1], sides[0], sides[1]
    m, kappa, largest, along = float(n - k), 0.0, 0.0, 0.0
    for value in f:
        largest = max(largest, abs(value))
    if largest > 0.0:
        for value in f:
            kappa += (value / largest) ** 2
        kappa = largest * math.sqrt(kappa)
    contact, slope, count = 1.0, 0.0, -1
    if kappa == 0.0 and fit[1] > 0.0:  # one or two more proposals take less time than a search
        count = _factors(q, O, fit[0], gap, low, G, P, side)
    reused = count >= 0
    if not reused:
        contact, slope, count = _fitted(f, q, O, kappa, fit, gap, low, G, P, side, squares[2:], sides[2:])
    if slope > 0.0:  # the rank-one part of the envelope is slope f f' / kappa^2
        _covariance_times(f, O, gap, low, count, G, P, load, side, lean)
        length = 0.0
        for i in range(n):
            lean[i] /= kappa
            length += f[i] / kappa * lean[i]
        if slope * length >= 1.0:
            return False
        along = math.sqrt(slope / (1.0 - slope * length))
    bound = log_cosh(kappa * math.sqrt(contact)) - slope * contact - 0.5 * m + 0.5 * m * math.log(0.5 * m)
    for proposal in range(VECTOR_PROPOSALS):
        if reused and proposal == PATIENCE:  # the bound is the same for all envelopes without f
            count = _fitted(f, q, O, kappa, fit, gap, low, G, P, side, squares[2:], sides[2:])[2]
        _gaussian(O, gap, low, count, G, P, load, side, out, rng)
        if slope > 0.0:
            extra = along * rng.standard_normal()
            for i in range(n):
                out[i] += extra * lean[i]
        into_complement(out, O)
        dot, precision = 0.0, 0.0
        for i in range(n):
            dot += f[i] * out[i]
            precision += gap[i] * out[i] ** 2
        log_ratio = log_cosh(dot) - precision - bound
        if kappa > 0.0:
            precision -= slope * (dot / kappa) ** 2
        if precision > 0.0 and math.log1p(-rng.random()) <= log_ratio + 0.5 * m * math.log(precision):
            if vmf_sign(abs(dot), rng) * dot < 0.0 or (dot == 0.0 and rng.random() < 0.5):
                for i in range(n):
                    out[i] = -out[i]
            return True
    return False


@part
def into_complement(x, O):
    """Make x a unit vector orthogonal to the rows of O, in two passes because of rounding errors."""
    n = len(x)
    for _ in range(2):
        remove_rows(x, O, len(O), n)
        norm = 0.0
        for i in range(n):
            norm += x[i] ** 2
        norm = 1.0 / math.sqrt(norm)
        for i in range(n):
            x[i] *= norm


@part
def orthogonalise(x, O, k, n):
    """Make x orthogonal to the first k rows of O, in two passes because of rounding errors."""
    for _ in range(2):
        remove_rows(x, O, k, n)


@part
def remove_rows(x, O, k, n):
    """Subtract from the n entries of x its projections on the first k rows of O, which are orthonormal."""
    for l in range(k):
        dot = 0.0
        for i in range(n):
            dot += x[i] * O[l, i]
        for i in range(n):
            x[i] -= dot * O[l, i]


# ---------------------------------------------------------------- the Gaussian vector of a proposal


@part
def _factors(q, O, c, gap, low, G, P, y):
    """Gaps c - q, the indices ``low`` where they are not positive, and the factors of two small matrices.

    G is ODO' over the other coordinates, P the marginal precision of the low ones. Returns the number of low
    coordinates, or -1 if the restricted covariance is not positive definite.
    """
    k, n = O.shape
    count = 0
    for l in range(k):
        for r in range(l + 1):
            G[l, r] = 0.0
    for i in range(n):
        gap[i] = c - q[i]
        if gap[i] > 0.0:
            for l in range(k):
                for r in range(l + 1):
                    G[l, r] += O[l, i] / gap[i] * O[r, i]
        elif count == k:
            return -1
        else:
            low[count] = i
            count += 1
    if ldl(G, k) != k:
        return -1
    for s in range(count):
        for l in range(k):
            y[l] = O[l, low[s]]
        ldl_solve(G, k, y)
        for t in range(s, count):
            P[t, s] = gap[low[s]] if s == t else 0.0
            for l in range(k):
                P[t, s] += O[l, low[t]] * y[l]
    return count if ldl(P, count) == count else -1


@part
def _condition(O, gap, low, count, G, side, load, x):
    """Given the low entries of x (``side``) and others before conditioning, condition the others on Ox = 0."""
    k, n = O.shape
    for s in range(count):
        x[low[s]] = side[s]
    for l in range(k):
        load[l] = 0.0
        for i in range(n):
            load[l] += O[l, i] * x[i]
    ldl_solve(G, k, load)
    for i in range(n):
        if gap[i] > 0.0:
            shift = 0.0
            for l in range(k):
                shift += O[l, i] * load[l]
            x[i] -= shift / gap[i]


@part
def _gaussian(O, gap, low, count, G, P, load, side, x, rng):
    """A Gaussian vector with the restricted covariance."""
    for i in range(O.shape[1]):
        x[i] = rng.standard_normal() / math.sqrt(gap[i]) if gap[i] > 0.0 else 0.0
    for s in range(count - 1, -1, -1):
        side[s] = rng.standard_normal() / math.sqrt(P[s, s])
        for t in range(s + 1, count):
            side[s] -= P[t, s] * side[t]
    _condition(O, gap, low, count, G, side, load, x)


@part
def _covariance_times(f, O, gap, low, count, G, P, load, side, x):
    """The restricted covariance times f."""
    k, n = O.shape
    for l in range(k):
        load[l] = 0.0
    for i in range(n):
        x[i] = f[i] / gap[i] if gap[i] > 0.0 else 0.0
        for l in range(k):
            load[l] += O[l, i] * x[i]
    ldl_solve(G, k, load)
    for s in range(count):
        side[s] = f[low[s]]
        for l in range(k):
            side[s] -= O[l, low[s]] * load[l]
    ldl_solve(P, count, side)
    _condition(O, gap, low, count, G, side, load, x)


@part
def ldl(A, size):
    """Factor A = LDL' in place, with L below the diagonal and D on it. Returns how many pivots are positive."""
    positive = 0
    for j in range(size):
        for i in range(j, size):
            entry = A[i, j]
            for l in range(j):
                entry -= A[i, l] * A[l, l] * A[j, l]
            A[i, j] = entry if i == j else entry / A[j, j]
        if A[j, j] > 0.0:
            positive += 1
        elif not A[j, j] < 0.0:
            return -1
    return positive


@part
def ldl_solve(A, size, y):
    """Solve LDL'x = y in place."""
    for i in range(size):
        for l in range(i):
            y[i] -= A[i, l] * y[l]
    for i in range(size - 1, -1, -1):
        y[i] /= A[i, i]
        for l in range(i + 1, size):
            y[i] -= A[l, i] * y[l]


# ---------------------------------------------------------------- the search for an envelope


@part
def _fitted(f, q, O, kappa, fit, gap, low, G, P, side, squares, sides):
    """Search for an envelope and factor it: its contact point, slope and number of low coordinates."""
    contact, slope, c = _search(f, q, O, kappa, fit, squares, sides)
    count = _factors(q, O, c, gap, low, G, P, side)
    if count < 0:  # rounding errors; this c is always valid
        c = q.max() + slope + 0.5 * (O.shape[1] - O.shape[0])
        count = _factors(q, O, c, gap, low, G, P, side)
    fit[0], fit[1] = c, contact
    return contact, slope, count


@part
def _search(f, q, O, kappa, fit, squares, sides):
    """Contact, slope and c of an envelope. The best contact is half the squared cosine under the envelope."""
    if kappa == 0.0:
        return 1.0, 0.0, _shift(f, q, O, kappa, 0.0, 0.05, fit[0], squares, sides)[0]
    tolerance = 0.3 / (1.0 + math.sqrt(kappa))  # an error d of log contact costs a factor of about exp(kappa d^2)
    low, high, contact = -46.0, 0.0, fit[1] if fit[1] > 0.0 else 0.5
    c = fit[0]
    for step in range(60):
        slope = slope_at(kappa, contact)
        c, cosine = _shift(f, q, O, kappa, slope, 0.2 * tolerance, c, squares, sides)
        here, best = math.log(contact), math.log(max(0.5 * cosine, 1e-20))
        low, high = (max(low, here), high) if best > here else (low, min(high, here))
        if abs(best - here) < tolerance or high - low < tolerance:
            break
        there = 0.5 * (here + best)
        contact = math.exp(there if step % 3 < 2 and low < there < high else 0.5 * (low + high))
    return contact, slope, c


@part
def _shift(f, q, O, kappa, slope, tolerance, guess, squares, sides):
    """A c for which half the trace is near 1, where the bound is smallest, and the squared cosine for this c."""
    k, n = O.shape
    m = float(n - k)
    low, high = _kth_largest(q, k) + 0.5, q.max() + slope + 0.5 * m
    half, cosine = _half_trace(f, q, O, kappa, slope, high, squares, sides)
    best, best_cosine, bracketed = high, cosine, False
    below, above, side, c, reach = -1.0, 1.0 / half - 1.0, 0, guess, 0.5 * m
    if not low < c < high:
        c = low + 0.5 * min(m, high - low)
    for step in range(150):  # widening steps until the root is bracketed, then false position (Illinois), on a concave
        half, cosine = _half_trace(f, q, O, kappa, slope, c, squares, sides)  # increasing function
        value = 1.0 / half - 1.0
        if value > -tolerance:
            best, best_cosine = c, cosine
        if abs(value) < tolerance or high - low <= 1e-15 * abs(high):
            break
        if value > 0.0:
            high, above = c, value
            below = 0.5 * below if side == 1 else below
            bracketed, c, side = bracketed or side == -1, c - reach, 1
        else:
            low, below = c, value
            above = 0.5 * above if side == -1 else above
            bracketed, c, side = bracketed or side == 1, c + reach, -1
        reach *= 4.0
        if bracketed:
            c = high - above * (high - low) / (above - below)
        if (bracketed and step % 3 == 2) or not low < c < high:
            c = 0.5 * (low + high)
    return best, best_cosine


@part
def _kth_largest(q, k):
    """The entry of q that k others exceed; a lower bound of the largest eigenvalue in a complement of k dimensions."""
    value = math.inf
    for _ in range(k + 1):
        below = -math.inf
        for entry in q:
            if below < entry < value:
                below = entry
        if below == -math.inf:
            break
        value = below
    return value


@part
def _half_trace(f, q, O, kappa, slope, c, squares, sides):
    """Half the trace of the restricted covariance and its quadratic form in f / kappa; infinite if it does not exist.

    By Haynsworth's inertia formula, the restriction of c - q is positive definite if and only if c - q has as many
    negative entries as ODO' has negative eigenvalues.
    """
    k, n = O.shape
    G, H, g, h, y = squares[0], squares[1], sides[0], sides[1], sides[2]
    negative, trace, first, second = 0, 0.0, 0.0, 0.0
    for l in range(k):
        g[l] = h[l] = 0.0
        for r in range(l + 1):
            G[l, r] = H[l, r] = 0.0
    for i in range(n):
        gap = c - q[i]
        negative += 1 if gap < 0.0 else 0
        if gap == 0.0 or negative > k:
            return math.inf, math.inf
        inverse = 1.0 / gap
        trace += inverse
        u = f[i] / kappa if slope > 0.0 else 0.0
        first += u * u * inverse
        second += (u * inverse) ** 2
        for l in range(k):
            once, twice = O[l, i] * inverse, O[l, i] * inverse * inverse
            g[l] += once * u
            h[l] += twice * u
            for r in range(l + 1):
                G[l, r] += once * O[r, i]
                H[l, r] += twice * O[r, i]
    if ldl(G, k) != k - negative:
        return math.inf, math.inf
    for l in range(k):
        for r in range(k):
            y[r] = H[max(l, r), min(l, r)]
        ldl_solve(G, k, y)
        trace -= y[l]
    if slope == 0.0:
        return 0.5 * trace, 0.0
    for l in range(k):
        y[l] = g[l]
    ldl_solve(G, k, y)
    for l in range(k):
        first -= g[l] * y[l]
        second -= 2.0 * h[l] * y[l]
        for r in range(k):
            second += y[l] * H[max(l, r), min(l, r)] * y[r]
    rest = 1.0 - slope * first
    if rest <= 0.0:
        return math.inf, math.inf
    return 0.5 * (trace + slope * second / rest), first / rest
