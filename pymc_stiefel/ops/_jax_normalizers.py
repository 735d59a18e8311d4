"""The normalising constants in JAX: values and derivatives under ``jit``, ``vmap`` and ``grad``, without callbacks.

The methods are those of :mod:`pymc_stiefel.normalizers`, whose modules derive them and whose tables are used here.
Loops have no arrays of variable length: sums that need a downward recurrence are accumulated on the way down.
Derivatives come with the values, so that no loop is differentiated.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pymc_stiefel.normalizers._bessel import DEBYE, DEBYE_NU, SERIES_PEAK
from pymc_stiefel.normalizers._recurrence import RECURRENCE_3, RECURRENCE_4, RECURRENCE_5, Recurrence

TABLES = {3: RECURRENCE_3, 4: RECURRENCE_4, 5: RECURRENCE_5}
EXACT_COLUMNS = 5


# ---------------------------------------------------------------- 0F1, one column


def _series(a: Any, x: Any) -> tuple[Any, Any]:
    """``(log 0F1(a; x), 0F1(a + 1; x) / 0F1(a; x))`` by the power series; its terms are positive."""
    tiny = jnp.finfo(x.dtype).eps / 16

    def more(carry):
        _, term, total, slope_term, slope = carry
        return (term > tiny * total) | (slope_term > tiny * slope)

    def add(carry):
        k, term, total, slope_term, slope = carry
        term, slope_term = term * x / (k * (a + k - 1.0)), slope_term * x / (k * (a + k))
        return k + 1.0, term, total + term, slope_term, slope + slope_term

    one = jnp.ones_like(x)
    _, _, total, _, slope = jax.lax.while_loop(more, add, (one, one, 0.0 * x, one, one))
    return jnp.log1p(total), slope / (1.0 + total)


def _debye(nu: Any, kappa: Any) -> tuple[Any, Any]:
    """Value and derivative by the uniform expansion for large order (DLMF 10.41.3), Stirling's series divided out."""
    z = kappa / nu
    root = jnp.sqrt(1.0 + z * z)
    t = 1.0 / root
    powers = nu ** -jnp.arange(len(DEBYE), dtype=z.dtype)
    coefficients = powers @ jnp.asarray(DEBYE, z.dtype)  # of the powers of t
    total = jnp.polyval(coefficients[::-1], t)
    slope = jnp.polyval((coefficients * jnp.arange(DEBYE.shape[1]))[:0:-1], t)
    value = nu * (z * z / (1.0 + root) - jnp.log1p(z * z / (2.0 * (1.0 + root))))
    value += -0.5 * jnp.log(root) + jnp.log(total / jnp.sum(coefficients))
    return value, z / (1.0 + root) - z / (2.0 * nu * root * root) - slope / total * z * t**3 / nu


def _step_down(value: Any, ratio: Any, kappa: Any, dimension: Any) -> tuple[Any, Any]:
    """From ``dimension + 2`` to ``dimension``: the recurrence in the order, stable downwards."""
    growth = ratio * kappa / dimension
    return value + jnp.log1p(growth), kappa / dimension / (1.0 + growth)


def _vector(n: Any, kappa: Any) -> tuple[Any, Any]:
    """``log 0F1(n/2; kappa^2 / 4)`` and its derivative."""
    nu = 0.5 * n - 1.0
    by_series = kappa * kappa < 4.0 * SERIES_PEAK * (SERIES_PEAK + nu)
    inner = jnp.where(by_series, kappa, 0.0)  # the loops of lanes that take the other branch end at once
    value, ratio = _series(0.5 * n, 0.25 * inner * inner)
    shift = jnp.where(by_series, 0.0, jnp.maximum(0.0, jnp.ceil(DEBYE_NU - nu)))
    far, far_ratio = _debye(jnp.maximum(nu + shift, DEBYE_NU), kappa)

    def descend(carry):
        left, value, ratio = carry
        return left - 1.0, *_step_down(value, ratio, kappa, n + 2.0 * left - 2.0)

    _, far, far_ratio = jax.lax.while_loop(lambda carry: carry[0] > 0.5, descend, (shift, far, far_ratio))
    value, slope = jnp.where(by_series, value, far), jnp.where(by_series, kappa / n * ratio, far_ratio)
    cosh = kappa + jnp.log1p(jnp.expm1(-2.0 * kappa) / 2.0)  # n = 1
    near = jnp.log1p(2.0 * jnp.sinh(0.5 * jnp.minimum(kappa, 1.0)) ** 2)
    one = n == 1.0
    return (
        jnp.where(one, jnp.where(kappa > 1.0, cosh, near), value),
        jnp.where(one, jnp.tanh(kappa), slope),
    )


# ---------------------------------------------------------------- 0F1, two columns


def _muirhead(n: Any, s: Any) -> tuple[Any, Any]:
    """p = 2: Muirhead's series over one-variable functions, summed downwards, relative to the current term."""
    a, kappa, log_product = 0.5 * n, jnp.hypot(s[0], s[1]), 2.0 * jnp.log(0.25 * s[0] * s[1])
    depth = 41.0 if s.dtype == jnp.float64 else 20.0

    def log_divisor(k):
        return jnp.log((k + 1.0) * (a - 0.5 + k) * (a + 2.0 * k) * (a + 2.0 * k + 1.0))

    def rise(carry):
        k, log_term, log_peak = carry
        log_term += log_product - log_divisor(k)
        return k + 1.0, log_term, jnp.maximum(log_peak, log_term)

    zero = 0.0 * kappa
    size, _, _ = jax.lax.while_loop(lambda carry: carry[1] > carry[2] - depth, rise, (zero, zero, zero))
    value, ratio = _vector(n + 4.0 * size, kappa)

    def fall(carry):
        """Add term k: ``rest`` is the log of the sum of later terms over term k + 1, the means are over these."""
        k, value, ratio, rest, radial, index, _ = carry
        k = k - 1.0
        upper = value
        value, ratio = _step_down(value, ratio, kappa, n + 4.0 * k + 2.0)
        value, ratio = _step_down(value, ratio, kappa, n + 4.0 * k)
        bare = upper - value - log_divisor(k) + rest
        rest = jnp.logaddexp(0.0, bare + log_product)
        later = jnp.exp(bare + log_product - rest)  # share of the terms beyond k
        across = jnp.exp(bare - rest) * index / 8.0
        return k, value, ratio, rest, (1.0 - later) * ratio + later * radial, later * index + (1.0 - later) * k, across

    start = (size, value, ratio, zero, ratio, size, zero)
    _, value, _, rest, radial, _, across = jax.lax.while_loop(lambda carry: carry[0] > 0.5, fall, start)
    along = jnp.where(kappa > 0.0, radial / jnp.where(kappa > 0.0, kappa, 1.0), 1.0 / n)
    return value + rest, s * (along + across * s[::-1] ** 2)


# ---------------------------------------------------------------- 0F1, three to five columns


def _entries(n: Any, y: Any, table: Recurrence) -> Any:
    """Values of the entries of P at n and y."""
    basis = [jnp.ones_like(n)] + [jnp.zeros_like(n)] * len(y)
    for i in range(len(y)):
        basis = [basis[0]] + [basis[k] + y[i] * basis[k - 1] for k in range(1, len(basis))]
    stacked = jnp.stack([n, *basis[1:]])
    powers = stacked[:, None] ** np.arange(int(table.powers.max()) + 1)
    chosen = powers[np.arange(len(basis), dtype=np.int32), table.powers.astype(np.int32)]
    terms = jnp.prod(chosen, axis=-1) * jnp.asarray(table.coefficient, n.dtype)
    return jax.ops.segment_sum(terms, table.entry.astype(np.int32), len(table.row))


def _padded(table: Recurrence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of degree 1 and more by rows: which entry, where its factor stands in the history, what is padding."""
    size = int(table.row.max()) + 1
    rows = [[e for e in range(len(table.row)) if table.row[e] == i and table.degree[e] > 0] for i in range(size)]
    width = max(map(len, rows))
    entry, place, real = (np.zeros((size, width), kind) for kind in (np.int32, np.int32, bool))
    for i, row in enumerate(rows):
        entry[i, : len(row)], real[i, : len(row)] = row, True
        place[i, : len(row)] = [(table.degree[e] - 1) * size + table.column[e] for e in row]
    return entry, place, real


def _eliminate(matrix: dict[tuple[int, int], Any], rhs: list[Any]) -> list[Any]:
    """Solve a sparse system by elimination, written out: the unknowns are ordered so that little fills in."""
    size = len(rhs)
    for j in range(size):
        for i in range(j + 1, size):
            if (i, j) in matrix:
                factor = matrix.pop((i, j)) / matrix[j, j]
                for k in range(j + 1, size):
                    if (j, k) in matrix:
                        matrix[i, k] = matrix.get((i, k), 0.0) - factor * matrix[j, k]
                rhs[i] = rhs[i] - factor * rhs[j]
    for i in reversed(range(size)):
        for k in range(i + 1, size):
            if (i, k) in matrix:
                rhs[i] = rhs[i] - matrix[i, k] * rhs[k]
        rhs[i] = rhs[i] / matrix[i, i]
    return rhs


def _recurrence(n: Any, s: Any) -> tuple[Any, Any]:
    """p = 3, 4, 5: the exact value and derivative, see ``normalizers._recurrence``."""
    p, table = len(s), TABLES[len(s)]
    values = _entries(n, s * s, table).astype(s.dtype)
    fixed = {(int(table.row[e]), int(table.column[e])): -values[e] for e in np.flatnonzero(table.degree == 0)}
    entry, place, real = _padded(table)
    weights = jnp.where(real, values[entry], 0.0)
    size, depth = 2**p, int(table.degree.max())
    small = 1e-200 if s.dtype == jnp.float64 else 1e-25

    def solve(m, rhs):
        matrix = dict(fixed)
        for i in range(size):
            matrix[i, i] = matrix.get((i, i), 0.0) + m
        return jnp.stack(_eliminate(matrix, [rhs[i] for i in range(size)]))

    def add(carry):
        m, history, total, excess, last, _, log_factor = carry
        u = solve(m, jnp.sum(weights * history.ravel()[place], axis=-1))
        total, excess = total + u, excess + u[0]
        scale = jnp.where(total[0] > 1.0 / small, small, 1.0)
        history = scale * jnp.concatenate([u[None], history[:-1]])
        return m + 1.0, history, scale * total, scale * excess, scale * u[0], scale * last, log_factor - jnp.log(scale)

    def more(carry):
        _, _, total, _, newest, before, _ = carry
        return (newest > 0.05 * jnp.finfo(s.dtype).eps * total[0]) | (newest > before)

    first = _first(fixed, size, s)
    history = jnp.zeros((depth, size), s.dtype).at[0].set(first)
    one, zero = jnp.ones_like(s[0]), jnp.zeros_like(s[0])
    start = (one, history, first, zero, one, 2.0 * one, zero)
    _, _, total, excess, _, _, log_factor = jax.lax.while_loop(more, add, start)
    slope = jnp.polyval(total[table.single[::-1].astype(np.int32)], s * s)
    value = jnp.where(log_factor > 0.0, jnp.log(total[0]) + log_factor, jnp.log1p(excess))
    return value, 2.0 * s * slope / total[0]


def _first(fixed: dict[tuple[int, int], Any], size: int, s: Any) -> Any:
    """u_0, with f(0) = 1."""
    matrix = {key: value for key, value in fixed.items() if key[0] > 0} | {(0, 0): jnp.ones_like(s[0])}
    return jnp.stack(_eliminate(matrix, [jnp.ones_like(s[0]) if i == 0 else jnp.zeros_like(s[0]) for i in range(size)]))


# ---------------------------------------------------------------- 0F1, any number of columns


def _diagrams(a: Any, N: Any, c: Any) -> Any:
    """The second-order term for exponent N/2 and prefactor c/2, see ``normalizers._saddlepoint``."""
    g = 0.5 / (a[:, None] + a[None, :] + 0.5 * N)
    own = jnp.diagonal(g)
    row = jnp.sum(g, axis=1) + own
    cubic = a + N / 6.0
    mixed = (2.0 * cubic[:, None] + cubic[None, :]) / 3.0
    vertex = (a[:, None, None] + a[None, :, None] + a[None, None, :]) / 3.0 + N / 6.0
    fourth = row**2 + own * row + 3.0 * own**2 + jnp.sum(g * (row[None, :] + g), axis=1)
    tadpole = own * cubic + jnp.sum(mixed * g, axis=1)
    crossed = 4.0 * jnp.sum(own**3 * cubic**2) + 3.0 * jnp.sum(mixed**2 * own[:, None] * g**2)
    crossed += jnp.sum(vertex**2 * g[:, :, None] * g[None, :, :] * g[:, None, :])
    total = jnp.sum((a + N / 8.0) * fourth - 9.0 * tadpole**2 * own) - 3.0 * crossed
    return total + jnp.sum(c * (3.0 * tadpole * own - 0.25 * row) - 0.25 * c**2 * own)


def _saddlepoint_value(n: Any, s: Any) -> Any:
    p = len(s)
    rest = 2.0 * n / (n + jnp.sqrt(n * n + 4.0 * s**2))
    vacancy = jnp.exp(p * (0.9 + 2.0 * (p / n) ** 2) * jnp.log(rest * (2.0 - rest)))
    c = 0.5 * (jnp.sum(1.0 - vacancy) + 1.0 - jnp.prod(vacancy))
    N = n - c
    gap = 2.0 * N / (N + jnp.sqrt(N * N + 4.0 * s**2))
    a = 0.5 * s**2 * gap / N
    pairs = jnp.log(gap[:, None] + gap[None, :] - gap[:, None] * gap[None, :])
    value = jnp.sum(2.0 * a + 0.5 * n * jnp.log(gap)) - 0.25 * (jnp.sum(pairs) + jnp.trace(pairs))
    return value + _diagrams(a, N, c) - _diagrams(jnp.zeros_like(a), N, c)


def _saddlepoint(n: Any, s: Any) -> tuple[Any, Any]:
    return jax.value_and_grad(_saddlepoint_value, argnums=1)(n, s)


def _exact_limit(n: Any, p: int) -> Any:
    """``normalizers._functions.exact_limit`` for any n."""
    if p == 2:
        return 1e5
    factor, base, most = {3: (3.0, 300.0, 2000.0), 4: (1.0, 100.0, 700.0), 5: (1.0, 30.0, 400.0)}[p]
    return jnp.minimum(base + factor * n, most)


def hyp0f1_value_and_grad(n: Any, s: Any) -> tuple[Any, Any]:
    """``log 0F1(n/2; diag(s)^2 / 4)`` of one vector and its derivative; NaN unless all of ``s`` is finite and >= 0."""
    s = jnp.asarray(s)
    n = jnp.asarray(n).astype(s.dtype)
    fine = jnp.all(jnp.isfinite(s) & (s >= 0.0))
    s = jnp.where(fine, s, 1.0)  # a loop over NaN would not terminate
    if len(s) == 1:
        value, slope = _vector(n, s[0])
        grad = slope[None]
    elif len(s) > EXACT_COLUMNS:
        value, grad = _saddlepoint(n, s)
    else:  # beyond the limit: the exact value at an inner point, and the saddlepoint's difference from there to s
        limit = _exact_limit(n, len(s))
        ratio = jnp.minimum(limit / jnp.maximum(s, limit), 1.0)
        inner = jnp.where(s > limit, limit * (1.5 - 0.5 * ratio**2), s)
        value, grad = (_muirhead if len(s) == 2 else _recurrence)(n, inner)
        (near, far), (near_grad, far_grad) = jax.vmap(_saddlepoint, (None, 0))(n, jnp.stack([inner, s]))
        inside = jnp.all(s <= limit)
        value = value + jnp.where(inside, 0.0, far - near)
        grad = jnp.where(inside, grad, far_grad + ratio**3 * (grad - near_grad))
    return jnp.where(fine, value, jnp.nan), jnp.where(fine, grad, jnp.nan)


@jax.custom_jvp
def log_hyp0f1(n: Any, s: Any) -> Any:
    """Matrix Langevin normaliser of ``n`` rows and singular values ``s``; its derivative in ``s`` comes with it."""
    return hyp0f1_value_and_grad(n, s)[0]


@log_hyp0f1.defjvp
def _(primals, tangents):
    value, grad = hyp0f1_value_and_grad(*primals)
    return value, jnp.sum(grad * tangents[1])


def hyp0f1_matrix_value_and_grad(F: Any) -> tuple[Any, Any]:
    """The same of a matrix, with the gradient E[X]."""
    U, s, Vt = jnp.linalg.svd(F, full_matrices=False)
    value, grad = hyp0f1_value_and_grad(F.shape[0], s)
    return value, (U * grad) @ Vt


@jax.custom_jvp
def log_hyp0f1_matrix(F: Any) -> Any:
    """Matrix Langevin normaliser of a matrix ``F``."""
    return hyp0f1_value_and_grad(F.shape[0], jnp.linalg.svd(F, compute_uv=False))[0]


@log_hyp0f1_matrix.defjvp
def _(primals, tangents):
    value, grad = hyp0f1_matrix_value_and_grad(*primals)
    return value, jnp.sum(grad * tangents[0])
