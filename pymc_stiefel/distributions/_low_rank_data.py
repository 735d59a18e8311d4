"""Data of a low-rank normal law: sufficient statistics by pattern of missing entries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from numpy.typing import NDArray

__all__ = ["Complete", "Patterns", "Scattered", "make_parts"]

MAX_GROUPS = 4
"""Largest number of patterns of missing entries with separate cross products; each adds operations to the graph."""

MIN_ROWS = 8
"""Smallest number of rows for which a pattern gets separate cross products."""

_number = itertools.count()


class Patterns:
    """Rows of a table by the pattern of what is observed.

    Parameters
    ----------
    table : array (rows, n)
        NaN for missing entries.

    Attributes
    ----------
    observed : array (patterns, n) of bool
    of_row : array (rows,) of int
    """

    def __init__(self, table: NDArray[Any]) -> None:
        seen = ~np.isnan(table)
        if seen.all():  # the usual case; np.unique would sort a million rows
            self.observed, self.of_row = np.ones((1, table.shape[1]), bool), np.zeros(len(table), np.int64)
        else:
            packed, self.of_row = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
            self.of_row = self.of_row.reshape(-1).astype(np.int64)
            self.observed = np.unpackbits(packed, axis=1, count=table.shape[1]).astype(bool)

    @property
    def complete(self) -> bool:
        """Nothing is missing."""
        return bool(self.observed.all())


@dataclass(frozen=True)
class Complete:
    """Statistics of ``rows`` rows with the same observed ``columns`` (None: all of them).

    ``arrays`` are the mean, the squares about it by column, and the centred rows or, if ``crossed``, their products.
    """

    columns: NDArray[Any] | None
    rows: Any
    crossed: bool
    arrays: tuple[Any, ...]


@dataclass(frozen=True)
class Scattered:
    """Rows of many patterns.

    ``arrays`` are a centre, the entries about it (rows, n) with zeros where they are missing, what is observed
    (patterns, n), the pattern of each row, and by column the number of entries, their sums and squares.
    """

    rows: NDArray[Any]  # of each pattern
    order: NDArray[Any] | None  # row of each pattern, if there is only one
    arrays: tuple[Any, ...]


def _shared(array: Any) -> Any:
    """Data as shared variables: constants would be compiled into the density."""
    array = np.ascontiguousarray(array, dtype=pytensor.config.floatX if array.dtype != np.int64 else None)
    return pytensor.shared(array, f"low_rank_data_{next(_number)}", borrow=True, shape=array.shape)


def _complete(table: NDArray[Any], columns: NDArray[Any] | None) -> Complete:
    mean = table.mean(axis=0)
    centred = table - mean
    crossed = table.shape[1] <= 2 * len(table)  # one product with n x n numbers, or two with rows x n
    data = centred.T @ centred if crossed else centred
    squares = np.einsum("ij,ij->j", centred, centred)
    return Complete(columns, float(len(table)), crossed, (_shared(mean), _shared(squares), _shared(data)))


def _scattered(table: NDArray[Any]) -> Scattered:
    patterns, seen = Patterns(table), ~np.isnan(table)
    counts = seen.sum(axis=0)
    centre = np.where(seen, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    entries = np.where(seen, table - centre, 0.0)
    squares = np.einsum("ij,ij->j", entries, entries)
    arrays = centre, entries, patterns.observed, patterns.of_row, 1.0 * counts, entries.sum(axis=0), squares
    rows = np.bincount(patterns.of_row)
    order = np.argsort(patterns.of_row) if (rows == 1).all() else None
    return Scattered(rows, order, tuple(map(_shared, arrays)))


def make_parts(table: NDArray[Any]) -> list[Complete | Scattered]:
    """Split the table into parts with the statistics for their sums. Rows without an observed entry are left out."""
    patterns = Patterns(table)
    if patterns.complete:
        return [_complete(table, None)]
    number, width = np.bincount(patterns.of_row), patterns.observed.sum(axis=1)
    many = [k for k in np.argsort(-number)[:MAX_GROUPS] if number[k] >= MIN_ROWS and 0 < width[k] <= 2 * number[k]]
    parts: list[Complete | Scattered] = []
    for k in many:
        columns = np.flatnonzero(patterns.observed[k])
        every = len(columns) == table.shape[1]
        parts.append(_complete(table[patterns.of_row == k][:, columns], None if every else columns))
    rest = ~np.isin(patterns.of_row, many) & (width[patterns.of_row] > 0)
    return [*parts, _scattered(table[rest])] if rest.any() else parts
