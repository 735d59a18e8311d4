r"""Exact 0F1 of a 3 x 3, 4 x 4 or 5 x 5 matrix argument, by a linear recurrence without singularities.

Muirhead's partial differential equations form a closed system in the 2^p square-free derivatives
:math:`w_I = \prod_{i \in I} \partial_{y_i} f`, :math:`y_i = s_i^2`, but with denominators :math:`y_i - y_j`. The usual
holonomic gradient method therefore fails at equal singular values. ``f`` is symmetric, so that
:math:`w_I = \sum_S u_S\, \det(y_i^k)_{i \in I, k \in S} / \det(y_i^{k-1})_{i \in I, k \le |I|}`, S running over the
subsets of {0, ..., p-1} of the size of I (Schur polynomials of the variables in I). The :math:`u_S` are symmetric and
analytic, and for them the equations become polynomial in the elementary symmetric functions :math:`e_k` of y:

.. math:: \Big(\sum_i y_i \partial_i\Big) u = P(n, e)\, u .

On the ray c y, the coefficient of c^m follows from :math:`(m - P_0) u_m = \sum_{d \ge 1} P_d u_{m-d}`, where P_d holds
the terms of degree d in y. The terms of f are positive (they are the sums of the zonal polynomials of degree m), so
there is no cancellation. Their number is about (s_1 + ... + s_p) / 2 plus a few times its square root. The tables were
derived by exact algebra (docs/derive_recurrence.py); tests check them against an independent quadrature and series.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.jit.blas import copy_matrix
from pymc_stiefel.engine.jit.compiling import part
from pymc_stiefel.normalizers._recurrence_tables import TABLES

STEP_DOWN = 1e-200  # factor by which all terms are rescaled when the sum exceeds its inverse


class Recurrence(NamedTuple):
    """A table as arrays: entries of P by row, column and degree, and the monomials that add up to them."""

    row: np.ndarray
    column: np.ndarray
    degree: np.ndarray
    entry: np.ndarray  # of each monomial
    coefficient: np.ndarray
    powers: np.ndarray  # of n, e_1, ..., e_p
    single: np.ndarray  # where the u_{k} of the first derivatives stand


def _read(table: str, p: int) -> Recurrence:
    subsets = [tuple(k for k in range(p) if code >> k & 1) for code in range(2**p)]
    subsets.sort(
        key=lambda S: (sum(S) + len(S) - len(S) * (len(S) - 1) // 2, len(S), S)
    )  # P_0 is then block triangular
    place = {"".join(map(str, S)) or ".": i for i, S in enumerate(subsets)}
    entries: dict[tuple[int, int, int], int] = {}
    entry, coefficient, powers = [], [], []
    for line in table.replace(";", "\n").split("\n"):
        if not line.strip():
            continue
        names, polynomial = line.split()
        row, column = (place[name] for name in names.split("<"))
        for monomial in polynomial.replace("-", "+-").strip("+").split("+"):
            value, power = Fraction(-1 if monomial[0] == "-" else 1), [0] * (p + 1)
            for factor in monomial.strip("-").split("*"):
                if factor == "n":
                    power[0] += 1
                elif factor[0] == "e":
                    power[int(factor[1:])] += 1
                else:
                    value *= Fraction(factor)
            degree = sum(k * power[k] for k in range(1, p + 1))
            entry.append(entries.setdefault((row, column, degree), len(entries)))
            coefficient.append(float(value))
            powers.append(power)
    rows, columns, degrees = np.array(list(entries), dtype=np.int64).T.copy()
    single = np.array([place[str(k)] for k in range(p)])
    return Recurrence(rows, columns, degrees, np.array(entry), np.array(coefficient), np.array(powers), single)


RECURRENCE_3 = _read(TABLES[3], 3)
RECURRENCE_4 = _read(TABLES[4], 4)
RECURRENCE_5 = _read(TABLES[5], 5)


@part
def _entries(n, y, entry, coefficient, powers, count):
    """Values of the entries of P at n and y."""
    p = len(y)
    basis = np.zeros(p + 1)  # n, e_1, ..., e_p
    basis[0] = 1.0
    for value in y:
        for k in range(p, 0, -1):
            basis[k] += value * basis[k - 1]
    basis[0] = n
    values = np.zeros(count)
    for i in range(len(entry)):
        term = coefficient[i]
        for k in range(p + 1):
            for _ in range(powers[i, k]):
                term *= basis[k]
        values[entry[i]] += term
    return values


@part
def _eliminate(matrix, rhs):
    """Solve in place by elimination. In the given order of the unknowns the matrix is nearly lower triangular."""
    size = len(rhs)
    for i in range(size):
        for j in range(i):
            if matrix[i, j] != 0.0:
                factor = matrix[i, j] / matrix[j, j]
                for k in range(j + 1, size):
                    matrix[i, k] -= factor * matrix[j, k]
                rhs[i] -= factor * rhs[j]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            rhs[i] -= matrix[i, k] * rhs[k]
        rhs[i] /= matrix[i, i]


@part
def _sum_recurrence(p, row, column, degree, values):
    """Sum over m of u_m, the part of f beyond its first term, and the logarithm of the factor removed from both."""
    size, depth = 2**p, degree.max()
    fixed = np.zeros((size, size))
    for i in range(len(row)):
        if degree[i] == 0:
            fixed[row[i], column[i]] -= values[i]
    history = np.zeros((depth + 1, size))  # row m modulo depth + 1 holds u_m
    total = np.zeros(size)
    matrix = np.empty((size, size))
    excess, log_factor = 0.0, 0.0
    m, last = 0, 0.0
    while True:
        copy_matrix(fixed, matrix)
        for i in range(size):
            matrix[i, i] += m
        u = history[m % (depth + 1)]
        u[:] = 0.0
        if m == 0:  # the only free constant: f(0) = 1
            matrix[0, 0] = 1.0
            u[0] = 1.0
        else:
            for i in range(len(row)):
                if 0 < degree[i] <= m:
                    u[row[i]] += values[i] * history[(m - degree[i]) % (depth + 1), column[i]]
        _eliminate(matrix, u)
        total += u
        excess += u[0] if m > 0 else 0.0
        if u[0] <= 1e-18 * total[0] and u[0] <= last:
            return total, excess, log_factor
        last = u[0]
        if total[0] > 1.0 / STEP_DOWN:
            history *= STEP_DOWN
            total *= STEP_DOWN
            last *= STEP_DOWN
            excess *= STEP_DOWN
            log_factor -= math.log(STEP_DOWN)
        m += 1


@part
def _exact(n, s, table):
    """``log 0F1(n/2; diag(s)^2 / 4)`` and its derivative in s, by the recurrence of a table."""
    y = s * s
    values = _entries(n, y, table.entry, table.coefficient, table.powers, len(table.row))
    total, excess, log_factor = _sum_recurrence(len(s), table.row, table.column, table.degree, values)
    grad = np.empty(len(s))
    for i in range(len(s)):
        slope = 0.0
        for k in range(len(s) - 1, -1, -1):
            slope = slope * y[i] + total[table.single[k]]
        grad[i] = 2.0 * s[i] * slope / total[0]
    if log_factor > 0.0:
        return math.log(total[0]) + log_factor, grad
    return math.log1p(excess), grad


@part
def log_hyp0f1_recurrence(n, s):
    """The exact value and derivative for p = 3, 4, 5."""
    if len(s) == 3:
        return _exact(n, s, RECURRENCE_3)
    if len(s) == 4:
        return _exact(n, s, RECURRENCE_4)
    return _exact(n, s, RECURRENCE_5)
