r"""The three drifts: flows of the kinetic energy, in place on a split momentum.

Each acts on one matrix stored by columns: ``x`` and ``b`` hold ``X`` and ``B`` as p x n arrays, ``a`` the skew part.
In the basis :math:`[X, B]` the angular momentum :math:`W = rX' - Xr'` acts from the right as
:math:`N = \begin{pmatrix} 2A & -S \\ I & 0\end{pmatrix}` with :math:`S = B'B`, which turns all n x n formulas into
p x p ones. ``pymc_stiefel.geometry`` has the same maps in plain NumPy.
"""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.blocks import axpy, dot
from pymc_stiefel.engine.compiling import inner

SPLITTING, CAYLEY, GEODESIC = 0, 1, 2

# From this many multiplications on, BLAS beats plain loops on one core.
_BLAS = 8000


@inner
def drift_matrix(kind, x, a, b, t, c, w, scratch):
    """Move one matrix for time ``t``. ``c`` and ``w`` are its masses (one common scale for Cayley and geodesic)."""
    if kind == CAYLEY:
        cayley(x, a, b, t * c[0], scratch)
    elif kind == GEODESIC:
        geodesic(x, a, b, t * c[0], scratch)
    else:
        splitting(x, a, b, t, c, w)


# ---------------------------------------------------------------- splitting


@inner
def splitting(x, a, b, t, c, w):
    """Pairs, columns, and back: exact flows of single terms of K, composed symmetrically."""
    p, n = x.shape
    h = 0.5 * t
    last = p - 1
    for i in range(last):
        for j in range(i + 1, p):
            rotate_pair(x, a, b, i, j, h * w[i, j])
    if n > p:
        for k in range(last):
            rotate_column(x, a, b, k, h * c[k])
        rotate_column(x, a, b, last, t * c[last])
        for k in range(last - 1, -1, -1):
            rotate_column(x, a, b, k, h * c[k])
    for i in range(last - 1, -1, -1):
        for j in range(last, i, -1):
            rotate_pair(x, a, b, i, j, h * w[i, j])


@inner
def rotate_column(x, a, b, k, t):
    """Flow of ``|B e_k|^2 / 2``: column k along a great circle, the others stay."""
    p, n = x.shape
    xk, bk = x[k], b[k]
    speed = np.sqrt(dot(bk, bk))
    if speed == 0.0:
        return
    cos, sin = np.cos(t * speed), np.sin(t * speed)
    along = sin / speed
    for i in range(p):
        if i != k:
            bi = b[i]
            before = a[k, i]
            after = cos * before + 0.5 * along * dot(bk, bi)
            old, new = 2.0 * before - 2.0 * after * cos, -2.0 * after * along
            for m in range(n):
                bi[m] += old * xk[m] + new * bk[m]
            a[k, i] = after
            a[i, k] = -after
    back = -speed * sin
    for m in range(n):
        xm = xk[m]
        xk[m] = cos * xm + along * bk[m]
        bk[m] = cos * bk[m] + back * xm


@inner
def rotate_pair(x, a, b, i, j, t):
    """Flow of ``A_ij^2``: columns i and j rotate into each other."""
    p, n = x.shape
    angle = t * a[i, j]
    cos, sin = np.cos(angle), np.sin(angle)
    rotate_rows(x[i], x[j], cos, sin)
    if n > p:
        rotate_rows(b[i], b[j], cos, sin)
    for k in range(p):
        if k != i and k != j:
            ai, aj = a[i, k], a[j, k]
            a[i, k] = cos * ai - sin * aj
            a[j, k] = sin * ai + cos * aj
            a[k, i] = -a[i, k]
            a[k, j] = -a[j, k]


@inner
def rotate_rows(u, v, cos, sin):
    for m in range(u.size):
        um, vm = u[m], v[m]
        u[m] = cos * um - sin * vm
        v[m] = sin * um + cos * vm


# ---------------------------------------------------------------- Cayley


@inner
def cayley(x, a, b, t, scratch):
    """Cayley map of the canonical metric; one p x p solve.

    With ``Y = (X + h B) (I - 2 h A + h^2 S)^{-1}``, ``h = t/2``: ``X <- 2 Y - X`` and ``B <- B - 2 h Y S``.
    """
    p, n = x.shape
    h = 0.5 * t
    gram = scratch[: p * p].reshape(p, p)
    system = scratch[p * p : 2 * p * p].reshape(p, p)
    y = scratch[2 * p * p : 2 * p * p + n * p].reshape(p, n)
    for i in range(p):
        for j in range(p):
            system[i, j] = 2.0 * h * a[i, j]  # transposed: the solve acts on rows
        system[i, i] += 1.0
    if n > p:
        if n * p * p > _BLAS:
            np.dot(b, b.T, gram)
        else:
            for i in range(p):
                for j in range(i + 1):
                    gram[i, j] = dot(b[i], b[j])
                    gram[j, i] = gram[i, j]
        for i in range(p):
            for j in range(p):
                system[i, j] += h * h * gram[i, j]
            for m in range(n):
                y[i, m] = x[i, m] + h * b[i, m]
    else:
        y[:] = x
    if n * p * p > _BLAS:
        y[:] = np.linalg.solve(system, y)
    else:
        eliminate(system, y)
    for i in range(p):
        for m in range(n):
            x[i, m] = 2.0 * y[i, m] - x[i, m]
    if n > p:
        if n * p * p > _BLAS:
            b -= np.dot((2.0 * h) * gram, y)
        else:
            for i in range(p):
                for j in range(p):
                    axpy(-2.0 * h * gram[i, j], y[j], b[i])


@inner
def eliminate(system, right):
    """Solve ``system z = right`` in place. No pivoting: the symmetric part of ``system`` is positive definite."""
    p = system.shape[0]
    for k in range(p):
        pivot = 1.0 / system[k, k]
        for i in range(k + 1, p):
            factor = system[i, k] * pivot
            if factor != 0.0:
                for j in range(k + 1, p):
                    system[i, j] -= factor * system[k, j]
                axpy(-factor, right[k], right[i])
    for k in range(p - 1, -1, -1):
        for j in range(k + 1, p):
            axpy(-system[k, j], right[j], right[k])
        pivot = 1.0 / system[k, k]
        row = right[k]
        for m in range(row.size):
            row[m] *= pivot


# ---------------------------------------------------------------- geodesic


@inner
def geodesic(x, a, b, t, scratch):
    """Geodesic of the embedded metric: ``[X B] <- [X B] exp(t N) blockdiag(exp(-t A), exp(-t A))``.

    ``B`` enters divided by its size, which keeps ``N`` balanced when the two parts of the momentum differ much.
    """
    p, n = x.shape
    k = 2 * p if n > p else p
    generator = scratch[: k * k].reshape(k, k)
    flow = scratch[k * k : 2 * k * k].reshape(k, k)
    rest = scratch[2 * k * k :]
    size = np.sqrt(np.sum(b * b) / p)
    if n > p and size == 0.0:
        size = 1.0
    # Everything transposed, since x and b hold the transposes of X and B.
    generator[:] = 0.0
    for i in range(p):
        for j in range(p):
            generator[i, j] = -2.0 * t * a[i, j]
    if n > p:
        gram = np.dot(b, b.T)
        for i in range(p):
            for j in range(p):
                generator[p + i, j] = -t * gram[i, j] / size
            generator[i, p + i] = t * size
    exponential(generator, flow, rest)
    turn_generator = scratch[: p * p].reshape(p, p)
    turn = rest[: p * p].reshape(p, p)
    for i in range(p):
        for j in range(p):
            turn_generator[i, j] = t * a[i, j]
    exponential(turn_generator, turn, rest[p * p :])
    if n > p:
        left = np.dot(turn, flow[:p])
        right = np.dot(turn, flow[p:])
        moved = np.dot(np.ascontiguousarray(left[:, :p]), x) + np.dot(np.ascontiguousarray(left[:, p:]), b) / size
        b[:] = size * np.dot(np.ascontiguousarray(right[:, :p]), x) + np.dot(np.ascontiguousarray(right[:, p:]), b)
        x[:] = moved
    else:
        x[:] = np.dot(np.dot(turn, flow), x)


@inner
def exponential(generator, out, scratch):
    """Matrix exponential by scaling and squaring around the [7/7] Pade approximant. Overwrites ``generator``."""
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
    generator *= 0.5**squarings
    two = scratch[: k * k].reshape(k, k)
    four = scratch[k * k : 2 * k * k].reshape(k, k)
    six = scratch[2 * k * k : 3 * k * k].reshape(k, k)
    odd = scratch[3 * k * k : 4 * k * k].reshape(k, k)
    multiply(generator, generator, two)
    multiply(two, two, four)
    multiply(four, two, six)
    for i in range(k):
        for j in range(k):
            unit = 1.0 if i == j else 0.0
            s2, s4, s6 = two[i, j], four[i, j], six[i, j]
            two[i, j] = s6 + 1512.0 * s4 + 277200.0 * s2 + 8648640.0 * unit
            four[i, j] = 56.0 * s6 + 25200.0 * s4 + 1995840.0 * s2 + 17297280.0 * unit
    multiply(generator, two, odd)
    for i in range(k):
        for j in range(k):
            even = four[i, j]
            two[i, j] = even - odd[i, j]
            out[i, j] = even + odd[i, j]
    if k > 16:
        out[:] = np.linalg.solve(two, out)
    else:
        solve_pivoted(two, out)
    for _ in range(squarings):
        multiply(out, out, two)
        out[:] = two


@inner
def multiply(left, right, out):
    k = left.shape[0]
    if k * k * k > _BLAS:
        np.dot(left, right, out)
        return
    for i in range(k):
        row = out[i]
        row[:] = 0.0
        for j in range(k):
            axpy(left[i, j], right[j], row)


@inner
def solve_pivoted(system, right):
    """Gaussian elimination with partial pivoting, in place."""
    k = system.shape[0]
    for i in range(k):
        best = i
        for j in range(i + 1, k):
            if abs(system[j, i]) > abs(system[best, i]):
                best = j
        if best != i:
            for j in range(k):
                system[i, j], system[best, j] = system[best, j], system[i, j]
                right[i, j], right[best, j] = right[best, j], right[i, j]
        pivot = 1.0 / system[i, i]
        for j in range(i + 1, k):
            factor = system[j, i] * pivot
            axpy(-factor, system[i], system[j])
            axpy(-factor, right[i], right[j])
    for i in range(k - 1, -1, -1):
        for j in range(i + 1, k):
            axpy(-system[i, j], right[j], right[i])
        right[i] /= system[i, i]


def scratch_size(n: int, p: int) -> int:
    """Length of the scratch vector that any drift of an (n, p) matrix needs."""
    return max(2 * p * p + n * p, 6 * (2 * p) ** 2 + p * p)
