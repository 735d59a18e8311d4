"""Layout of the state, a flat vector of matrices and Euclidean variables, and of momenta and masses.

A state ``q`` holds the matrices one after the other, each stored by columns (so that a column is contiguous), and then
the Euclidean variables. A momentum has two parts, see ``manifolds.base``. The vector ``a`` holds the skew parts ``A``
of all matrices. The vector ``b`` holds the parts ``B``, laid out as ``q``, with the Euclidean momentum at its end.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.jit.compiling import inlined, inner
from pymc_stiefel.engine.jit.memory import view
from pymc_stiefel.engine.jit.records import IntegerMatrix, Integers, Matrix, Vector

NEVER, UNDECIDED, FLIPPED = -1, 0, 1
"""Sign-flip policies: never, if tuning finds them useful, always."""


class Layout(NamedTuple):
    """Position of each matrix in the state: one entry per matrix, also for the matrices of a batch."""

    offset: Integers  # start in q
    n: Integers
    p: Integers
    manifold: Integers  # index in engine.manifolds.MANIFOLDS
    skew: Integers  # start in a, and in the pair masses w
    column: Integers  # start in the column masses c
    flips: IntegerMatrix  # one kind of sign flip per row, see flip_kinds
    stiefel: int  # length of the Stiefel part of q; the Euclidean part follows
    size: int


class Metric(NamedTuple):
    """Masses of the kinetic energy: K = 1/2 sum c |B e_k|^2 + 1/2 sum w A^2 + 1/2 p' C p."""

    c: Vector  # of columns, one matrix after the other
    w: Vector  # of pairs of columns, p x p for each matrix
    variance: Vector  # Euclidean part: diagonal of C
    covariance: Matrix  # C if dense, otherwise 0 x 0
    cholesky: Matrix  # lower Cholesky factor of C


class Point(NamedTuple):
    """A point of phase space. ``value`` holds the log density."""

    q: Vector
    a: Vector
    b: Vector
    ga: Vector
    gb: Vector
    value: Vector


def flip_kinds(first: int, batch: tuple[int, ...], policy: int) -> list[tuple[int, int, int, int, int]]:
    """Kinds of sign flips of a batch of matrices: (policy, first matrix, matrices, stride, length).

    A flip picks one of the matrices and one of its columns. It changes the sign of that column in the matrix and in the
    matrices that follow it at distances of ``stride``, up to the end of a row of ``length`` matrices. This is one
    matrix (length 1), or the rest of the batch along one of its axes.
    """
    count = int(np.prod(batch, dtype=int))
    kinds = [(policy, first, count, 1, 1)]
    stride = count
    for length in batch:
        stride //= length
        if length > 1:
            kinds.append((min(policy, UNDECIDED), first, count, stride, length))
    return kinds


def make_layout(
    shapes: list[tuple[int, int]], n_euclidean: int, flips: list | None = None, manifolds: list[int] | None = None
) -> Layout:
    """Layout of matrices of the given shapes, then ``n_euclidean`` numbers.

    ``flips`` are rows of ``flip_kinds``, or a policy for each matrix; ``manifolds`` are numbers of
    :mod:`pymc_stiefel.engine.manifolds`, by default Stiefel's.
    """
    n = np.array([shape[0] for shape in shapes], dtype=np.int64)
    p = np.array([shape[1] for shape in shapes], dtype=np.int64)
    if np.any(p < 1) or np.any(n < p):
        raise ValueError(f"every matrix needs n >= p >= 1, got {shapes}")
    stiefel = int(np.sum(n * p))
    return Layout(
        offset=_starts(n * p),
        n=n,
        p=p,
        manifold=np.array(manifolds or [0] * len(shapes), dtype=np.int64),
        skew=_starts(p * p),
        column=_starts(p),
        flips=_flip_table(len(shapes), flips),
        stiefel=stiefel,
        size=stiefel + n_euclidean,
    )


def groups(layout: Layout, manifold: int | None = None):
    """Groups of neighbouring matrices of equal shape, of one manifold or of all: (slice of q, count, n, p)."""
    kinds, m = list(zip(layout.n.tolist(), layout.p.tolist(), layout.manifold.tolist(), strict=True)), 0
    for (n, p, lives_on), members in itertools.groupby(kinds):
        count, start = len(list(members)), int(layout.offset[m])
        if manifold in (None, lives_on):
            yield slice(start, start + count * n * p), count, n, p
        m += count


def _flip_table(count: int, flips: list | None) -> np.ndarray:
    policies: list = [UNDECIDED] * count if flips is None else flips
    rows = [
        row for m, kind in enumerate(policies) for row in ([kind] if np.ndim(kind) else flip_kinds(m, (), int(kind)))
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return (np.cumsum(lengths) - lengths).astype(np.int64)


def make_point(layout: Layout) -> Point:
    skew = int(np.sum(layout.p**2))
    return Point(*(np.zeros(k) for k in (layout.size, skew, layout.size, skew, layout.size, 1)))


def isotropic_metric(layout: Layout, pair: float, dense: bool) -> Metric:
    """Masses of the uniform law: ``c = 1 / n``, ``w = pair / n``, and the identity for the Euclidean part.

    ``pair`` is 2 for the canonical metric and 1 for the embedded one.
    """
    d = layout.size - layout.stiefel
    identity = np.eye(d if dense else 0)
    return Metric(
        c=np.repeat(1.0 / layout.n, layout.p),
        w=np.repeat(pair / layout.n, layout.p**2),
        variance=np.ones(d),
        covariance=identity,
        cholesky=identity.copy(),
    )


def overwrite(old: tuple[np.ndarray, ...], new: tuple[np.ndarray, ...]) -> None:
    """Copy values into arrays in place: compiled code holds the addresses of these arrays."""
    for one, other in zip(old, new, strict=True):
        one[:] = other


# ---------------------------------------------------------------- compiled operations on one point


@inner
def copy_into(x, y):
    for i in range(x.size):
        y[i] = x[i]


@inner
def copy_position(source, target):
    """Copy everything but the momentum."""
    copy_into(source.q, target.q)
    copy_into(source.ga, target.ga)
    copy_into(source.gb, target.gb)
    target.value[0] = source.value[0]


@inner
def copy_point(source, target):
    copy_position(source, target)
    copy_into(source.a, target.a)
    copy_into(source.b, target.b)


@inlined
def matrix_at(layout, m, vector):
    """The m-th matrix in a vector laid out as ``q``; its columns are the rows of the result."""
    return view(vector, layout.offset[m], layout.p[m], layout.n[m])


@inlined
def square_at(layout, m, vector):
    """The m-th p x p block in a vector laid out as ``a``."""
    return view(vector, layout.skew[m], layout.p[m], layout.p[m])
