"""One table of addresses for all the arrays of a chain.

Handing fifty arrays to a compiled function costs more than a short trajectory. So they are handed over once, as a table
with a row (address, rows, columns) for each, and compiled code makes its views from that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_stiefel.engine.adaptation import Moments
from pymc_stiefel.engine.blas import Blas
from pymc_stiefel.engine.blocks import Layout, Metric, Point
from pymc_stiefel.engine.compiling import array_at, inlined
from pymc_stiefel.engine.trajectory import Subtrees, Workspace

ENTRIES = 56
"""Rows that ``unpack`` reads, by number: in the order in which the named tuples are flattened."""


def make_table(*parts: np.ndarray) -> np.ndarray:
    """The table, int64 of shape (entries, 3), from the rows of its parts in the order of ``unpack``."""
    table = np.concatenate(parts)
    if len(table) != ENTRIES:
        raise ValueError(f"the table has {len(table)} entries and unpack reads {ENTRIES}: bring them together")
    return table


def rows_of(part: tuple | np.ndarray) -> np.ndarray:
    """The rows of the table for one of its parts. The arrays have to outlive them."""
    return np.array([_row(entry) for entry in _flat(part)], dtype=np.int64)


def _flat(entry: Any):
    if isinstance(entry, tuple):
        for part in entry:
            yield from _flat(part)
    else:
        yield entry


def _row(entry: Any) -> tuple[int, int, int]:
    if not isinstance(entry, np.ndarray):
        return int(entry), 0, 0
    if not entry.flags.c_contiguous:
        raise ValueError("the engine's arrays are C contiguous")
    return entry.ctypes.data, entry.shape[0], entry.shape[1] if entry.ndim == 2 else 0


@inlined
def _vector(table, k):
    return array_at(table[k, 0], (table[k, 1],), np.float64)


@inlined
def _matrix(table, k):
    return array_at(table[k, 0], (table[k, 1], table[k, 2]), np.float64)


@inlined
def _integers(table, k):
    return array_at(table[k, 0], (table[k, 1],), np.int64)


@inlined
def _layout(t):
    k = 0
    return Layout(
        _integers(t, k),
        _integers(t, k + 1),
        _integers(t, k + 2),
        _integers(t, k + 3),
        _integers(t, k + 4),
        _integers(t, k + 5),
        t[k + 6, 0],
        t[k + 7, 0],
    )


@inlined
def _metric(t, k):
    return Metric(_vector(t, k), _vector(t, k + 1), _vector(t, k + 2), _matrix(t, k + 3), _matrix(t, k + 4))


@inlined
def _point(t, k):
    return Point(
        _vector(t, k), _vector(t, k + 1), _vector(t, k + 2), _vector(t, k + 3), _vector(t, k + 4), _vector(t, k + 5)
    )


@inlined
def _subtrees(t, k):
    return Subtrees(
        _matrix(t, k),
        _matrix(t, k + 1),
        _matrix(t, k + 2),
        _matrix(t, k + 3),
        _matrix(t, k + 4),
        _matrix(t, k + 5),
        _matrix(t, k + 6),
        _matrix(t, k + 7),
        _matrix(t, k + 8),
        _vector(t, k + 9),
    )


@inlined
def _blas(t, k):
    return Blas(
        _integers(t, k),
        array_at(t[k + 1, 0], (t[k + 1, 1],), np.int32),
        array_at(t[k + 2, 0], (t[k + 2, 1],), np.int8),
        _vector(t, k + 3),
    )


@inlined
def unpack(t):
    """Layout, metric, state, workspace, moments and what is known of the step size, from the table."""
    work = Workspace(
        _point(t, 19),
        _point(t, 25),
        _subtrees(t, 31),
        _vector(t, 41),
        _vector(t, 42),
        _vector(t, 43),
        _blas(t, 44),
    )
    moments = Moments(
        _vector(t, 48),
        _vector(t, 49),
        _vector(t, 50),
        _vector(t, 51),
        _matrix(t, 52),
        _vector(t, 53),
        _matrix(t, 54),
    )
    return _layout(t), _metric(t, 8), _point(t, 13), work, moments, _vector(t, 55)
