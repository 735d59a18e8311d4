r"""Row coordinates: a change of variables that gives all directions of R^n a similar scale.

Masses of columns and pairs cannot express that rows have different scales. With row coordinates the sampler moves ``Z``
with ``X = polar(R Z)``; only this file uses ``Z``. If ``Z`` is uniform, then ``X`` is matrix angular central Gaussian.
A density ``f`` of ``X`` therefore becomes the density :math:`f(X) |Z'R'RZ|^{-n/2}` of ``Z``. The inverse map is
``Z = polar(R^{-1} X)``. With ``RZ = XH``, :math:`H = V \mathrm{diag}(s) V'` and ``G`` the gradient of ``log f``,

.. math:: g_Y = 2 X V [(V' \mathrm{skew}(X'G) V)_{ij} / (s_i + s_j)] V' + (I - XX') G H^{-1} - n X H^{-1},

and :math:`g_Z = R' g_Y`. ``R = I + U' diag(e) U`` is symmetric, with orthonormal rows ``U`` (k x n). Matrices are
stored by columns, as everywhere in the engine: arrays (..., p, n).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address

from pymc_stiefel.engine.blocks import Layout
from pymc_stiefel.engine.jit.blas import Blas, _address, _call, add_product, cross, gram_matrix, make_blas, product
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE, call_density
from pymc_stiefel.engine.jit.compiling import c_function, inner
from pymc_stiefel.engine.jit.memory import array_at, view

Factor = tuple[np.ndarray, np.ndarray]
"""``U`` and ``e``."""


def forward(factor: Factor, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``X = polar(R Z)`` for matrices (..., p, n), with ``V`` and ``s``."""
    Y = times(factor, Z)
    squares, V = np.linalg.eigh(Y @ Y.swapaxes(-1, -2))
    s = np.sqrt(np.maximum(squares, 1e-300))
    return (V / s[..., None, :]) @ V.swapaxes(-1, -2) @ Y, V, s


def times(factor: Factor, Z: np.ndarray) -> np.ndarray:
    """``R Z``"""
    U, e = factor
    return Z + (Z @ U.T * e) @ U


def inverse(factor: Factor) -> Factor:
    """Of ``R``."""
    U, e = factor
    return U, 1.0 / (1.0 + e) - 1.0


def pullback(factor: Factor, X: np.ndarray, V: np.ndarray, s: np.ndarray, G: np.ndarray) -> np.ndarray:
    """Gradient in ``Z``, including the Jacobian, from the gradient ``G`` in ``X`` (or its tangent part)."""
    n = X.shape[-1]
    Vt = V.swapaxes(-1, -2)
    M = X @ G.swapaxes(-1, -2)
    root = (V / s[..., None, :]) @ Vt
    W = V @ (Vt @ (M - M.swapaxes(-1, -2)) @ V / (s[..., :, None] + s[..., None, :])) @ Vt  # twice the skew part
    return times(factor, root @ (G - M.swapaxes(-1, -2) @ X) - (W + n * root) @ X)


@dataclass
class RowCoordinates:
    """The map between the sampler's coordinates and the states of the model; some matrices have a factor ``R``."""

    layout: Layout
    factors: dict[int, Factor] = field(default_factory=dict)

    def _blocks(self):
        for m, factor in self.factors.items():
            n, p, start = (int(part[m]) for part in (self.layout.n, self.layout.p, self.layout.offset))
            yield slice(start, start + n * p), (p, n), factor

    def to_x(self, q: np.ndarray) -> np.ndarray:
        """Map states of the sampler to states of the model: one state, or one per row."""
        return self._moved(q, invert=False)

    def to_z(self, q: np.ndarray) -> np.ndarray:
        return self._moved(q, invert=True)

    def _moved(self, q, invert):
        q = q.copy() if self.factors else q
        for place, shape, factor in self._blocks():
            factor = inverse(factor) if invert else factor
            q[..., place] = forward(factor, q[..., place].reshape(*q.shape[:-1], *shape))[0].reshape(*q.shape[:-1], -1)
        return q

    def gradients(self, q: np.ndarray, g: np.ndarray, to_x: bool) -> tuple[np.ndarray, np.ndarray]:
        """Map states and gradients, one per row, to the coordinates of the model or to those of the sampler.

        Both directions use one formula: a gradient in ``Z`` is pulled back to ``X`` by the map from ``X`` to ``Z``.
        """
        q, g = q.copy(), g.copy()
        for place, shape, factor in self._blocks():
            old, gradient = (part[:, place].reshape(-1, *shape) for part in (q, g))
            there, back = (factor, inverse(factor)) if to_x else (inverse(factor), factor)
            new = forward(there, old)[0]
            q[:, place] = new.reshape(len(q), -1)
            g[:, place] = pullback(back, *forward(back, new), gradient).reshape(len(q), -1)
        return q, g


# ---------------------------------------------------------------- the compiled density in Z


EXTRA, ENTRIES = 9, 6
"""Length of the header of the table, and of each of its rows."""


class LinkedRows:
    """Address and ``extra`` of the density in ``Z``, for given factors."""

    def __init__(self, coordinates: RowCoordinates) -> None:
        layout = coordinates.layout
        self.held = [(np.ascontiguousarray(U), np.ascontiguousarray(e)) for U, e in coordinates.factors.values()]
        rows = [
            (layout.offset[m], layout.n[m], layout.p[m], len(e), U.ctypes.data, e.ctypes.data)
            for m, (U, e) in zip(coordinates.factors, self.held, strict=True)
        ]
        widest = max(int(layout.p[m]) for m in coordinates.factors)
        rank = max(len(e) for _, e in self.held)
        longest = max(int(layout.n[m]) for m in coordinates.factors)
        kept = sum(int(layout.p[m]) * (int(layout.p[m]) + 1) for m in coordinates.factors)  # V and s of each
        self.x = np.zeros(layout.size)
        self.room = np.zeros(kept + widest * (12 * widest + 2 * longest + rank + 40))
        self.blas = make_blas(2 * widest)
        syev = get_cython_function_address("scipy.linalg.cython_lapack", "dsyev")
        self.letters = np.frombuffer(b"VU", dtype=np.int8).copy()
        self.arguments = np.array([syev, self.letters.ctypes.data], dtype=np.int64)
        pointers = np.array([array.ctypes.data for array in (*self.blas, self.arguments)], dtype=np.int64)
        self.held_pointers = pointers
        head = [0, 0, layout.size, len(rows), self.x.ctypes.data, self.room.ctypes.data, len(self.room), kept]
        numbers = [*head, pointers.ctypes.data, *(number for row in rows for number in row)]
        self.extra = np.array(numbers, dtype=np.int64)
        self.address = _c_density().address

    def inside(self, address: int, extra: np.ndarray) -> np.ndarray:
        """The ``extra`` that the density in ``Z`` passes to the density of the model."""
        self.extra[0], self.extra[1] = address, extra.ctypes.data
        return self.extra


@cache
def _c_density():
    return c_function(_row_density, DENSITY_SIGNATURE, _nrt=False)


def _row_density(q_, gradient_, extra_):
    head = array_at(extra_, (EXTRA,), np.int64)
    size, count = head[2], head[3]
    q, g = array_at(q_, (size,), np.float64), array_at(gradient_, (size,), np.float64)
    x, room = array_at(head[4], (size,), np.float64), array_at(head[5], (head[6],), np.float64)
    pointers, table = array_at(head[8], (5,), np.int64), array_at(extra_, (EXTRA + ENTRIES * count,), np.int64)
    for k in range(size):
        x[k] = q[k]
    total, kept = 0.0, 0
    for m in range(count):
        row = table[EXTRA + ENTRIES * m : EXTRA + ENTRIES * (m + 1)]
        total += _to_x(row, pointers, x, room[kept:], room[head[7] :])
        kept += row[2] * (row[2] + 1)
    if not np.isfinite(total):
        return np.nan
    total += call_density(head[0], x, g, array_at(head[1], (1,), np.int64))
    kept = 0
    for m in range(count):
        row = table[EXTRA + ENTRIES * m : EXTRA + ENTRIES * (m + 1)]
        _to_z(row, pointers, x, g, room[kept:], room[head[7] :])
        kept += row[2] * (row[2] + 1)
    return total


@inner
def _blas_of(pointers, p):
    return Blas(
        array_at(pointers[0], (4,), np.int64),
        array_at(pointers[1], (8 + 2 * p,), np.int32),
        array_at(pointers[2], (5,), np.int8),
        array_at(pointers[3], (2,), np.float64),
    )


@inner
def _to_x(row, pointers, x, kept, scratch):
    """Write ``X``, store ``V`` (by rows) and ``s``; return the log of the Jacobian."""
    start, n, p = row[0], row[1], row[2]
    y = view(x, start, p, n)
    V, s = view(kept, 0, p, p), kept[p * p : p * p + p]
    old, root = view(scratch, 0, p, n), view(scratch, p * n, p, p)
    _times(row, pointers, y, scratch)
    blas = _blas_of(pointers, p)
    gram_matrix(blas, y, V)
    for i in range(p):
        for j in range(p):
            if not np.isfinite(V[i, j]):
                return np.nan
    _eigen(pointers, V, s, scratch[p * (n + p) :])
    total = 0.0
    for i in range(p):
        s[i] = np.sqrt(max(s[i], 1e-300))
        total -= n * np.log(s[i])
    _root(V, s, root)
    for i in range(p):
        for j in range(n):
            old[i, j] = y[i, j]
    product(blas, root, old, y)
    return total


@inner
def _to_z(row, pointers, x, g, kept, scratch):
    """Replace the gradient in ``X`` by that in ``Z``."""
    start, n, p = row[0], row[1], row[2]
    X, G = view(x, start, p, n), view(g, start, p, n)
    V, s = view(kept, 0, p, p), kept[p * p : p * p + p]
    blas = _blas_of(pointers, p)
    old, M = view(scratch, 0, p, n), view(scratch, p * n, p, p)
    root, turn = view(scratch, p * (n + p), p, p), view(scratch, p * (n + 2 * p), p, p)
    half, W = view(scratch, p * (n + 3 * p), p, p), view(scratch, p * (n + 4 * p), p, p)
    cross(blas, G, X, M)  # (X'G)'
    add_product(blas, -1.0, M, X, G)  # (I - XX') G
    for i in range(p):
        for j in range(p):
            turn[i, j] = M[j, i] - M[i, j]
    _between(V, turn, half, W, False)
    for i in range(p):
        for j in range(p):
            W[i, j] /= s[i] + s[j]
    _between(V, W, half, turn, True)
    _root(V, s, root)
    for i in range(p):
        for j in range(p):
            turn[i, j] += n * root[i, j]
        for j in range(n):
            old[i, j] = G[i, j]
    product(blas, root, old, G)
    add_product(blas, -1.0, turn, X, G)
    _times(row, pointers, G, scratch)


@inner
def _times(row, pointers, y, scratch):
    """``y <- R y``"""
    n, p, k = row[1], row[2], row[3]
    U, e = array_at(row[4], (k, n), np.float64), array_at(row[5], (k,), np.float64)
    blas, inside = _blas_of(pointers, p), view(scratch, 0, p, k)
    cross(blas, y, U, inside)
    for i in range(p):
        for j in range(k):
            inside[i, j] *= e[j]
    add_product(blas, 1.0, inside, U, y)


@inner
def _root(V, s, out):
    """``H^-1``, from eigenvectors in rows."""
    p = V.shape[0]
    for i in range(p):
        for j in range(p):
            total = 0.0
            for l in range(p):
                total += V[l, i] * V[l, j] / s[l]
            out[i, j] = total


@inner
def _between(V, matrix, half, out, back):
    """``V' matrix V`` for eigenvectors in columns of ``V``, here in rows; or ``V matrix V'``, ``back``."""
    p = V.shape[0]
    for i in range(p):
        for j in range(p):
            total = 0.0
            for l in range(p):
                total += (V[l, i] if back else V[i, l]) * matrix[l, j]
            half[i, j] = total
    for i in range(p):
        for j in range(p):
            total = 0.0
            for l in range(p):
                total += half[i, l] * (V[l, j] if back else V[j, l])
            out[i, j] = total


@inner
def _eigen(pointers, matrix, values, scratch):
    """Eigenvalues, and eigenvectors in rows, which overwrite the symmetric matrix, by LAPACK."""
    p = matrix.shape[0]
    if p == 1:
        values[0], matrix[0, 0] = matrix[0, 0], 1.0
        return
    integers, arguments = array_at(pointers[1], (4,), np.int32), array_at(pointers[4], (2,), np.int64)
    integers[0], integers[1] = p, 40 * p
    _call(
        arguments[0],
        (
            arguments[1],
            arguments[1] + 1,
            _address(integers, 0),
            _address(matrix, 0),
            _address(integers, 0),
            _address(values, 0),
            _address(scratch, 0),
            _address(integers, 1),
            _address(integers, 2),
        ),
    )
