r"""The three drifts: flows of the kinetic energy, in place, with the momentum split into A and B.

Each acts on one matrix stored by columns: ``x`` and ``b`` hold ``X`` and ``B`` as p x n arrays, ``a`` the skew part.
In the basis :math:`[X, B]` the angular momentum :math:`W = rX' - Xr'` acts from the right as
:math:`N = \begin{pmatrix} 2A & -S \\ I & 0\end{pmatrix}` with :math:`S = B'B`, which turns all n x n formulas into
p x p ones. ``pymc_stiefel.geometry`` has the same maps in plain NumPy.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import types

from pymc_stiefel.engine.jit.blas import (
    LARGE,
    Blas,
    add_product,
    copy_matrix,
    cross,
    gram_matrix,
    product,
    solve,
    solve_definite,
)
from pymc_stiefel.engine.jit.compiling import UNCOUNTED, c_function, inner, short
from pymc_stiefel.engine.jit.memory import array_at, view
from pymc_stiefel.engine.jit.vectors import add_both, dot, rotate
from pymc_stiefel.engine.span import TALL, WIDE, coefficients, combine

SPLITTING, CAYLEY, GEODESIC, AUTOMATIC = "splitting", "cayley", "geodesic", "automatic"

_double, _integer = types.CPointer(types.float64), types.int64
_SIGNATURE = types.void(
    *(_double,) * 3,  # x, a, b
    *(_integer,) * 2,  # n, p
    types.float64,  # t
    *(_double,) * 3,  # c, w, scratch
    types.CPointer(types.int64),  # the fields of Blas
    types.CPointer(types.int32),
    types.CPointer(types.int8),
    _double,
)


def scratch_size(n, p):
    """Length of the scratch vector that is enough for any drift of an (n, p) matrix."""
    return 25 * p * p + 4 * n * p


_scratch_size = inner(scratch_size)


@inner
def _unpack(x, a, b, n, p, c, w, scratch, routines, integers, letters, numbers):
    """Arrays from the pointers that a drift receives."""
    blas = Blas(
        array_at(routines, (4,), np.int64),
        array_at(integers, (8 + 2 * p,), np.int32),
        array_at(letters, (5,), np.int8),
        array_at(numbers, (2,), np.float64),
    )
    state = (array_at(x, (p, n), np.float64), array_at(a, (p, p), np.float64), array_at(b, (p, n), np.float64))
    masses = (array_at(c, (p,), np.float64), array_at(w, (p, p), np.float64))
    return state, masses, array_at(scratch, (_scratch_size(n, p),), np.float64), blas


def _splitting_drift(x, a, b, n, p, t, c, w, scratch, routines, integers, letters, numbers):
    state, masses, room, blas = _unpack(x, a, b, n, p, c, w, scratch, routines, integers, letters, numbers)
    splitting(state[0], state[1], state[2], t, masses[0], masses[1], room, blas)


def _cayley_drift(x, a, b, n, p, t, c, w, scratch, routines, integers, letters, numbers):
    state, masses, room, blas = _unpack(x, a, b, n, p, c, w, scratch, routines, integers, letters, numbers)
    cayley(state[0], state[1], state[2], t * masses[0][0], room, blas)


def _geodesic_drift(x, a, b, n, p, t, c, w, scratch, routines, integers, letters, numbers):
    state, masses, room, blas = _unpack(x, a, b, n, p, c, w, scratch, routines, integers, letters, numbers)
    geodesic(state[0], state[1], state[2], t * masses[0][0], room, blas)


@cache
def _c_drift(kind: str):
    drifts = {SPLITTING: _splitting_drift, CAYLEY: _cayley_drift, GEODESIC: _geodesic_drift}
    return c_function(drifts[kind], _SIGNATURE, **UNCOUNTED)


def drift_address(kind: str) -> int:
    """Address of a compiled drift, built on first use."""
    return _c_drift(kind).address


# ---------------------------------------------------------------- splitting


@inner
def splitting(x, a, b, t, c, w, scratch, blas):
    """Symmetric composition of exact flows of single terms of K: columns, pairs, and the same in reverse order.

    With pairs first and last, between a seventh more and twice as many trajectories were rejected.
    """
    p, n = x.shape
    both, factor = view(scratch, 0, 2 * p, 2 * p), view(scratch, 4 * p * p, p, p)
    rest = scratch[5 * p * p :]
    short_columns = p >= WIDE and n >= TALL * p and coefficients(blas, b, both, factor)
    own_x, own_b = (both[:p], both[p:]) if short_columns else (x, b)
    split_flows(own_x, a, own_b, t, c, w, rest, blas)
    if short_columns:
        combine(blas, x, b, both, factor, view(rest, 0, 2 * p, n))


@inner
def split_flows(x, a, b, t, c, w, scratch, blas):
    """The flows themselves, acting on columns or on their coefficients."""
    p, n = x.shape
    if p == 1:
        rotate_column(x, a, b, 0, t * c[0])
        return
    if n > p:
        for k in range(p):
            rotate_column(x, a, b, k, 0.5 * t * c[k])
    rotate_pairs(x, a, b, t, w, scratch, blas)
    if n > p:
        for k in range(p - 1, -1, -1):
            rotate_column(x, a, b, k, 0.5 * t * c[k])


@short
def rotate_column(x, a, b, k, t):
    """Flow of ``|B e_k|^2 / 2``: column k moves along a great circle; the others do not move."""
    p = x.shape[0]
    xk, bk = x[k], b[k]
    speed = np.sqrt(dot(bk, bk))
    if speed == 0.0:
        return
    cos, sin = circle(t * speed)
    along = sin / speed
    for i in range(p):
        if i != k:
            before = a[k, i]
            after = cos * before + 0.5 * along * dot(bk, b[i])
            add_both(2.0 * before - 2.0 * after * cos, xk, -2.0 * after * along, bk, b[i])
            a[k, i] = after
            a[i, k] = -after
    rotate(xk, bk, cos, along, -speed * sin)


@inner
def rotate_pairs(x, a, b, t, w, scratch, blas):
    """All pairs, then in reverse order. For large matrices the rotations are multiplied up and applied at the end."""
    p, n = x.shape
    apart = p > 5 and p * p * n > LARGE
    turn, rest = view(scratch, 0, p, p), scratch[p * p :]
    if apart:
        turn[:] = 0.0
        for i in range(p):
            turn[i, i] = 1.0
    for i in range(p - 2):
        for j in range(i + 1, p):
            rotate_pair(x, a, b, turn, i, j, 0.5 * t * w[i, j], apart)
    rotate_pair(x, a, b, turn, p - 2, p - 1, t * w[p - 2, p - 1], apart)
    for i in range(p - 3, -1, -1):
        for j in range(p - 1, i, -1):
            rotate_pair(x, a, b, turn, i, j, 0.5 * t * w[i, j], apart)
    if apart:
        times_turn(a, turn, rest)
        multiply_rows(turn, x, rest, blas)
        if n > p:
            multiply_rows(turn, b, rest, blas)


@short
def rotate_pair(x, a, b, turn, i, j, t, apart):
    """Flow of ``A_ij^2``: rotate columns i and j into each other; of ``turn`` if ``apart``, with ``A = a turn'``."""
    p, n = x.shape
    ai, aj = a[i], a[j]
    own = dot(ai, turn[j]) if apart else ai[j]
    cos, sin = circle(t * own)
    rotate(ai, aj, cos, -sin, sin)
    if apart:
        rotate(turn[i], turn[j], cos, -sin, sin)
        return
    rotate(x[i], x[j], cos, -sin, sin)
    if n > p:
        rotate(b[i], b[j], cos, -sin, sin)
    ai[i], ai[j], aj[i], aj[j] = 0.0, own, -own, 0.0
    for k in range(p):
        a[k, i] = -ai[k]
        a[k, j] = -aj[k]


@inner
def times_turn(a, turn, scratch):
    """``a <- a turn'``, which is skew."""
    p = len(a)
    for i in range(p):
        for j in range(i):
            scratch[j] = dot(a[i], turn[j])
        for j in range(i):
            a[i, j] = scratch[j]
    for i in range(p):
        a[i, i] = 0.0
        for j in range(i):
            a[j, i] = -a[i, j]


@inner
def multiply_rows(turn, x, scratch, blas):
    """``x <- turn x``"""
    old = view(scratch, 0, x.shape[0], x.shape[1])
    copy_matrix(x, old)
    product(blas, turn, old, x)


@short
def circle(angle):
    """Cosine and sine; up to one radian by a Pade approximant of tan(angle / 2), as exact and three times as fast.

    The result lies on the unit circle, whatever the error of the approximant.
    """
    if abs(angle) > 1.0:
        return np.cos(angle), np.sin(angle)
    half = 0.5 * angle
    square = half * half
    up = half * (135135.0 + square * (-17325.0 + square * (378.0 - square)))
    down = 135135.0 + square * (-62370.0 + square * (3150.0 - 28.0 * square))
    scale = 1.0 / (up * up + down * down)
    return (down * down - up * up) * scale, 2.0 * up * down * scale


# ---------------------------------------------------------------- Cayley


@inner
def cayley(x, a, b, t, scratch, blas):
    """Cayley map of the canonical metric; one p x p solve.

    With ``Y = (X + h B) (I - 2 h A + h^2 S)^{-1}``, ``h = t/2``: ``X <- 2 Y - X`` and ``B <- B - 2 h Y S``.
    The symmetric part of the matrix to be inverted is at least the identity, so the norm of its inverse is at most 1.
    """
    p, n = x.shape
    h = 0.5 * t
    gram, system = view(scratch, 0, p, p), view(scratch, p * p, p, p)
    y = view(scratch, 2 * p * p, p, n)
    if n > p:
        gram_matrix(blas, b, gram)
    else:
        gram[:] = 0.0
    for i in range(p):
        for j in range(p):
            system[i, j] = 2.0 * h * a[i, j] + h * h * gram[i, j]  # transposed: the solve acts on rows
        system[i, i] += 1.0
        for m in range(n):
            y[i, m] = x[i, m] + h * b[i, m]
    solve_definite(blas, system, y, scratch[2 * p * p + n * p :])
    for i in range(p):
        for m in range(n):
            x[i, m] = 2.0 * y[i, m] - x[i, m]
    if n > p:
        add_product(blas, -2.0 * h, gram, y, b)


# ---------------------------------------------------------------- geodesic


@inner
def geodesic(x, a, b, t, scratch, blas):
    """Geodesic of the embedded metric: ``[X B] <- [X B] exp(t N) blockdiag(exp(-t A), exp(-t A))``.

    ``B`` is divided by its size, which keeps ``N`` balanced if the two parts of the momentum have different sizes.
    """
    p, n = x.shape
    turn, rest = view(scratch, 0, p, p), scratch[p * p :]
    generator = view(rest, 0, p, p)
    for i in range(p):
        for j in range(p):
            generator[i, j] = t * a[i, j] if n > p else -t * a[i, j]
    exponential(blas, generator, turn, rest[p * p :])
    if n == p:  # B = 0, and exp(t N) reduces to exp(2 t A)
        old = view(rest, 0, p, n)
        copy_matrix(x, old)
        x[:] = 0.0
        add_product(blas, 1.0, turn, old, x)
        return
    k = 2 * p
    generator = view(rest, 0, k, k)
    flow = view(rest, k * k, k, k)
    generator[:] = 0.0
    gram = view(rest, 2 * k * k, p, p)
    cross(blas, b, b, gram)
    size = 0.0
    for i in range(p):
        size += gram[i, i]
    size = np.sqrt(size / p) if size > 0.0 else 1.0
    # Everything is transposed, since x and b hold the transposes of X and B.
    for i in range(p):
        for j in range(p):
            generator[i, j] = -2.0 * t * a[i, j]
            generator[p + i, j] = -t * gram[i, j] / size
        generator[i, p + i] = t * size
    exponential(blas, generator, flow, rest[2 * k * k :])
    old = view(rest, 2 * k * k, p, n)
    turned = generator  # no longer needed
    turned[:] = 0.0
    add_product(blas, 1.0, turn, flow[:p], turned[:p])
    add_product(blas, 1.0, turn, flow[p:], turned[p:])
    part = view(flow, 0, p, p)
    copy_matrix(x, old)
    for i in range(p):
        for m in range(n):
            x[i, m] = 0.0
            b[i, m] /= size
    copy_matrix(turned[:p, :p], part)
    add_product(blas, 1.0, part, old, x)
    copy_matrix(turned[:p, p:], part)
    add_product(blas, 1.0, part, b, x)
    moved = view(rest, 2 * k * k + n * p, p, n)
    moved[:] = 0.0
    copy_matrix(turned[p:, :p], part)
    add_product(blas, size, part, old, moved)
    copy_matrix(turned[p:, p:], part)
    add_product(blas, size, part, b, moved)
    copy_matrix(moved, b)


@inner
def exponential(blas, generator, out, scratch):
    """Matrix exponential by scaling and squaring with the [7/7] Pade approximant. Overwrites ``generator``."""
    k = generator.shape[0]
    norm = 0.0
    for i in range(k):
        total = 0.0
        for j in range(k):
            total += abs(generator[i, j])
        norm = max(norm, total)
    if not norm < 1e15:  # also catches NaN
        out[:] = np.nan
        return
    squarings = 0
    while norm > 0.95:
        norm *= 0.5
        squarings += 1
    scale = 0.5**squarings
    for i in range(k):
        for j in range(k):
            generator[i, j] *= scale
    two = view(scratch, 0, k, k)
    four = view(scratch, k * k, k, k)
    six = view(scratch, 2 * k * k, k, k)
    odd = view(scratch, 3 * k * k, k, k)
    multiply(blas, generator, generator, two)
    multiply(blas, two, two, four)
    multiply(blas, four, two, six)
    for i in range(k):
        for j in range(k):
            unit = 1.0 if i == j else 0.0
            s2, s4, s6 = two[i, j], four[i, j], six[i, j]
            two[i, j] = s6 + 1512.0 * s4 + 277200.0 * s2 + 8648640.0 * unit
            four[i, j] = 56.0 * s6 + 25200.0 * s4 + 1995840.0 * s2 + 17297280.0 * unit
    multiply(blas, generator, two, odd)
    for i in range(k):
        for j in range(k):
            even = four[i, j]
            two[i, j] = even - odd[i, j]
            out[i, j] = even + odd[i, j]
    solve(blas, two, out)
    for _ in range(squarings):
        multiply(blas, out, out, two)
        copy_matrix(two, out)


@inner
def multiply(blas, left, right, out):
    out[:] = 0.0
    add_product(blas, 1.0, left, right, out)
