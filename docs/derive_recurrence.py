"""Derive the tables of ``pymc_stiefel/_recurrence_tables.py`` by exact algebra (needs sympy).

    python docs/derive_recurrence.py 4        # seconds; p = 5 takes about a quarter of an hour

Muirhead's equations for f(y) = 0F1(n/2; diag(y) / 4) read, with d_k the derivative in y_k,

    y_k d_k^2 f = f / 4 - (n - p + 1) / 2 d_k f - 1/2 sum_{j != k} (y_k d_k f - y_j d_j f) / (y_k - y_j).

They reduce every derivative to the square-free ones w_I. The Euler operator acts on these by a matrix with poles at
equal y; conjugation by the Schur polynomials N of the variables in I removes the poles.
"""

import itertools
import sys
from functools import cache

import sympy
from sympy.polys.fields import field
from sympy.polys.polyfuncs import symmetrize

p = int(sys.argv[1])
K, n, *y = field(["n", *(f"y{i}" for i in range(p))], sympy.QQ)
SETS = {k: [frozenset(c) for c in itertools.combinations(range(p), k)] for k in range(p + 1)}


ONE = K(1)


def add(first, second, factor=ONE):
    """Sum of two combinations of the w_I, held as dictionaries."""
    out = dict(first)
    for key, value in second.items():
        out[key] = out.get(key, K(0)) + factor * value
    return {key: value for key, value in out.items() if value}


@cache
def second_derivative(k, J):
    """``y_k d_k^2 w_J`` for k outside J."""
    out = {frozenset(): K(1) / 4, frozenset([k]): -(n - p + 1) / 2}
    for j in set(range(p)) - {k}:
        gap = 2 * (y[k] - y[j])
        out = add(out, {frozenset([k]): -y[k] / gap, frozenset([j]): y[j] / gap})
    for l in sorted(J):
        out = differentiate(out, l)
    return out


@cache
def derivative(l, I):
    """``d_l w_I``."""
    if l not in I:
        return {I | {l}: K(1)}
    return {key: value / y[l] for key, value in second_derivative(l, I - {l}).items()}


def differentiate(combination, l):
    out = {}
    for I, value in combination.items():
        out = add(add(out, {I: value.diff(y[l])}), derivative(l, I), value)
    return out


def euler(I):
    """``sum_k y_k d_k w_I``."""
    out = {}
    for k in range(p):
        out = add(out, second_derivative(k, I - {k}) if k in I else {I | {k}: y[k]})
    return out


def determinant(rows):
    if not rows:
        return K(1)
    minors = ([row[:j] + row[j + 1 :] for row in rows[1:]] for j in range(len(rows)))
    return sum(((-1) ** j * rows[0][j] * determinant(minor) for j, minor in enumerate(minors)), K(0))


def schur(I, S):
    powers = determinant([[y[i] ** k for k in sorted(S)] for i in sorted(I)])
    return powers / determinant([[y[i] ** k for k in range(len(I))] for i in sorted(I)])


def solve(matrix, rhs):
    """Gauss-Jordan elimination over the field of rational functions."""
    rows = [list(a) + list(b) for a, b in zip(matrix, rhs, strict=True)]
    for c in range(len(rows)):
        pivot = next(r for r in range(c, len(rows)) if rows[r][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [value / rows[c][c] for value in rows[c]]
        for r in range(len(rows)):
            if r != c and rows[r][c]:
                rows[r] = [x - rows[r][c] * z for x, z in zip(rows[r], rows[c], strict=True)]
    return [row[len(rows) :] for row in rows]


def in_elementary_symmetric(value):
    """A polynomial in n and y, symmetric in y, as text in n and e1..ep."""
    if not value.denom.is_ground:
        raise ArithmeticError(f"a pole is left: {value}")
    variables = sympy.symbols([f"y{i}" for i in range(p)])
    expression = sympy.expand(value.numer.as_expr() / value.denom.as_expr())
    symmetric, rest, names = symmetrize(expression, *variables, formal=True)
    if rest != 0:
        raise ArithmeticError(f"not symmetric: {value}")
    degree = {name: sympy.Poly(e, *variables).total_degree() for name, e in names}
    e = sympy.symbols(["n", *(f"e{k}" for k in range(1, p + 1))])
    polynomial = sympy.Poly(symmetric.subs({name: e[k] for name, k in degree.items()}), *e)
    text = ""
    for powers, coefficient in polynomial.terms():
        factors = [str(x) for x, k in zip(e, powers, strict=True) for _ in range(k)]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        text += ("-" if coefficient < 0 else "+") + "*".join(factors)
    return text.removeprefix("+")


action = {I: euler(I) for sets in SETS.values() for I in sets}
N = {k: [[schur(I, S) for S in SETS[k]] for I in SETS[k]] for k in SETS}
for k, m in itertools.product(SETS, SETS):
    A = [[action[I].get(J, K(0)) for J in SETS[m]] for I in SETS[k]]
    if not any(value for row in A for value in row):
        continue
    AN = [
        [sum((a * b for a, b in zip(row, column, strict=True)), K(0)) for column in zip(*N[m], strict=True)]
        for row in A
    ]
    for S, row in zip(SETS[k], solve(N[k], AN), strict=True):
        for T, value in zip(SETS[m], row, strict=True):
            value -= sum(S) - k * (k - 1) // 2 if S == T else 0  # N itself is homogeneous
            if value:
                left, right = ("".join(map(str, sorted(X))) or "." for X in (S, T))
                print(f"{left}<{right} {in_elementary_symmetric(value)}")
