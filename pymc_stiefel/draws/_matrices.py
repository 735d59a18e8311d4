r"""Compiled rejection samplers for orthonormal matrices: matrix Langevin, and Bingham laws of subspaces."""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.draws._complement import orthogonalise
from pymc_stiefel.draws._vectors import envelope, vmf_deficit, vmf_sign
from pymc_stiefel.engine.jit.blas import copy_vector
from pymc_stiefel.engine.jit.compiling import compiled, part
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector

# ---------------------------------------------------------------- matrix Langevin


@compiled
def langevin_matrices(U, s, Vt, reject, out, rng):
    """Fill ``out[k]`` (draws, n, p) from etr(F'X) with F = U diag(s) V' [k]; Hoff's proposal if not ``reject[k]``.

    The draw is made in the basis of the singular vectors, where the density depends on the first p rows only. ``top``
    holds these and, in a trapezoidal basis, the others, which a Haar frame of the complement of U then rotates.
    """
    n, p = out.shape[2:]
    extra = min(n - p, p)
    top, bound = np.zeros((p, p + extra)), np.empty(p)
    g, z = np.empty(p + extra), np.empty(p + extra)
    frame = np.empty((p + extra, n))  # in rows: the columns of U, then those of a frame of its complement
    for k in range(len(s)):
        for j in range(p):
            bound[j] = log_hyp0f1_vector(float(n - j), s[k, j])[0]
            copy_vector(U[k, :, j], frame[j])
        for draw in range(out.shape[1]):
            _langevin_columns(n, s[k], bound, reject[k], top, g, z, rng)
            _haar_across(frame, p, extra, rng)
            for i in range(n):
                for j in range(p):
                    g[j] = 0.0
                    for l in range(p + extra):
                        g[j] += frame[l, i] * top[j, l]
                for j in range(p):
                    entry = 0.0
                    for l in range(p):
                        entry += g[l] * Vt[k, l, j]
                    out[k, draw, i, j] = entry


@part
def _langevin_columns(n, s, bound, reject, X, g, z, rng):
    """The first rows of a draw for F = [diag(s); 0], by Hoff's (2009) column proposal with or without rejection.

    Column j is von Mises-Fisher around the part of F's column orthogonal to the columns before it. A proposal costs
    p^3 operations. ``X`` holds the columns as its rows.
    """
    p, rows = X.shape
    j = 0
    while j < p:
        used = min(rows, p + j + 1)
        g[:] = 0.0
        g[j] = 1.0
        orthogonalise(g, X, j, used)
        length = 0.0
        for i in range(used):
            length += g[i] ** 2
        length = math.sqrt(length)
        log_ratio = log_hyp0f1_vector(float(n - j), s[j] * length)[0] - bound[j] if reject and j > 0 else 0.0
        if log_ratio < 0.0 and math.log1p(-rng.random()) > log_ratio:
            j = 0  # the acceptance ratio is a product over columns, so a proposal can be rejected early
            continue
        for i in range(used):
            g[i] = g[i] / length if length > 0.0 else 0.0
            z[i] = rng.standard_normal()
        if p + j < rows:  # the norm of all unused rows, as one coordinate
            z[p + j] = math.sqrt(2.0 * rng.standard_gamma(0.5 * (n - p - j)))
        X[j, used:] = 0.0
        if n - j == 1:
            sign = vmf_sign(s[j] * length, rng)
            for i in range(used):
                X[j, i] = sign * g[i]
        else:
            _place_column(X, j, used, g, z, s[j] * length, n - j, rng)
        j += 1


@part
def _place_column(X, j, used, g, z, kappa, m, rng):
    """Row j of X: von Mises-Fisher around g in the complement (dimension m) of the rows before it, from the noise z."""
    deficit = vmf_deficit(float(m), kappa, rng)
    for _ in range(2):
        orthogonalise(z, X, j, used)
        dot = 0.0
        for i in range(used):
            dot += z[i] * g[i]
        for i in range(used):
            z[i] -= dot * g[i]
    norm = 0.0
    for i in range(used):
        norm += z[i] ** 2
    across = math.sqrt(deficit * (2.0 - deficit) / norm)
    for i in range(used):
        X[j, i] = (1.0 - deficit) * g[i] + across * z[i]


@part
def _haar_across(frame, start, count, rng):
    """Rows ``start`` to ``start + count`` of ``frame``: uniform orthonormal, orthogonal to the rows before them."""
    for j in range(start, start + count):
        for i in range(frame.shape[1]):
            frame[j, i] = rng.standard_normal()
        _orthonormalise(frame, j)


@part
def _orthonormalise(frame, j):
    """Row j of ``frame``: orthogonal to the rows before it, of length one."""
    row, n = frame[j], frame.shape[1]
    orthogonalise(row, frame, j, n)
    norm = 0.0
    for i in range(n):
        norm += row[i] ** 2
    norm = math.sqrt(norm)
    for i in range(n):
        row[i] /= norm


# ---------------------------------------------------------------- Bingham laws of subspaces


@compiled
def bingham_frames(q, proposals, out, done, rng):
    """Fill ``out[k]`` (draws, n, p) from etr(X' diag(q[k]) X), by rejection from an angular central Gaussian.

    ``done`` marks the draws that were accepted within ``proposals`` trials per draw on average.
    """
    n, p = out.shape[2:]
    frame, turn = np.empty((p, n)), np.empty((p, p))
    gram, zero = np.empty((p, p)), np.zeros(n)
    for k in range(len(q)):
        _, _, c, bound = envelope(zero, q[k])
        left = proposals * (10 + out.shape[1])
        for draw in range(out.shape[1]):
            done[k, draw] = False
            while left > 0 and not done[k, draw]:
                left -= 1
                done[k, draw] = _subspace_proposal(q[k], c, bound, frame, gram, rng)
            if done[k, draw]:  # the density depends on the span only, so the basis of the span is uniform
                _haar_across(turn, 0, p, rng)
                for i in range(n):
                    for j in range(p):
                        entry = 0.0
                        for l in range(p):
                            entry += frame[l, i] * turn[l, j]
                        out[k, draw, i, j] = entry


@part
def _subspace_proposal(q, c, bound, frame, gram, rng):
    """Propose a subspace, as orthonormal rows of ``frame``; return whether it is accepted."""
    p, n = frame.shape
    for j in range(p):
        for i in range(n):
            frame[j, i] = rng.standard_normal() / math.sqrt(c - q[i])
        _orthonormalise(frame, j)
    energy, log_det = 0.0, 0.0
    for j in range(p):  # Cholesky factor of X'(c - q)X, row by row
        for l in range(j + 1):
            entry = 0.0
            for i in range(n):
                entry += frame[j, i] * (c - q[i]) * frame[l, i]
            if l == j:
                energy += c - entry
            for i in range(l):
                entry -= gram[j, i] * gram[l, i]
            gram[j, l] = entry / gram[l, l] if l < j else math.sqrt(entry)
        log_det += math.log(gram[j, j])
    return math.log1p(-rng.random()) <= energy + n * log_det - p * bound
