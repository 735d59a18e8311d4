"""Targets with known answers: compiled densities, statistics and their expectations.

One C function serves every law: the parameters travel in its ``extra`` argument, so nothing is compiled per target.
Expectations are exact where a normaliser gives them, else from independent draws (weighted Haar draws or exact
draws of ``pymc_stiefel.draws``). Two statistics of every target have expectation zero for *any* smooth density:
Stein's identities of the flows X -> exp(t W) X and X -> X exp(t W),
E[tr(C'V) + tr(C'X) tr(G'V)] = 0 with V = W X or X W and G the gradient of the log density.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
from numba import carray

from pymc_stiefel import draws
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE
from pymc_stiefel.normalizers import log_bingham, log_hyp0f1

SHAPES = [(3, 1), (50, 1), (2, 2), (3, 3), (5, 2), (7, 3), (20, 4)]
QUADRATIC, MIXTURE, ANGULAR = range(3)
HEADER = 4
HAAR_DRAWS = 200_000


@numba.njit(cache=True)
def _quadratic(x, g, data):
    """tr(F'X) + tr(diag(b) X'AX)."""
    p, n = x.shape
    F, A, b = data[: n * p].reshape(p, n), data[n * p : n * p + n * n].reshape(n, n), data[n * p + n * n :]
    total = 0.0
    for k in range(p):
        for i in range(n):
            row = 0.0
            for j in range(n):
                row += A[i, j] * x[k, j]
            g[k, i] = F[k, i] + 2.0 * b[k] * row
            total += x[k, i] * (F[k, i] + b[k] * row)
    return total


@numba.njit(cache=True)
def _mixture(x, g, data):
    """log(w1 etr(F1'X) + w2 etr(F2'X))."""
    p, n = x.shape
    F1, F2 = data[: n * p].reshape(p, n), data[n * p : 2 * n * p].reshape(p, n)
    first, second = np.log(data[2 * n * p]) + np.sum(F1 * x), np.log(data[2 * n * p + 1]) + np.sum(F2 * x)
    high = max(first, second)
    total = high + np.log(np.exp(first - high) + np.exp(second - high))
    g[:] = np.exp(first - total) * F1 + np.exp(second - total) * F2
    return total


@numba.njit(cache=True)
def _angular(x, g, data):
    """-n/2 log det(X'PX)."""
    p, n = x.shape
    P = data[: n * n].reshape(n, n)
    Px = np.zeros((p, n))
    inner = np.zeros((p, p))
    for k in range(p):
        for i in range(n):
            for j in range(n):
                Px[k, i] += P[i, j] * x[k, j]
    for k in range(p):
        for m in range(p):
            for i in range(n):
                inner[k, m] += x[k, i] * Px[m, i]
    inverse = np.linalg.inv(inner)
    for k in range(p):
        for i in range(n):
            g[k, i] = 0.0
            for m in range(p):
                g[k, i] -= n * inverse[k, m] * Px[m, i]
    return -0.5 * n * np.log(np.linalg.det(inner))


@numba.cfunc(DENSITY_SIGNATURE, cache=True)
def target_density(q, gradient, extra):
    header = carray(extra, (HEADER,))
    kind, n, p, size = header
    data = carray(extra, (HEADER + size,))[HEADER:].view(np.float64)
    x, g = carray(q, (p, n)), carray(gradient, (p, n))
    if kind == QUADRATIC:
        return _quadratic(x, g, data)
    if kind == MIXTURE:
        return _mixture(x, g, data)
    return _angular(x, g, data)


@dataclass(frozen=True)
class Target:
    """A law on St(n, p), the statistics to compare, and their expectations with standard errors."""

    name: str
    n: int
    p: int
    extra: np.ndarray
    gradient: object  # (draws, n, p) -> (draws, n, p)
    reference: np.ndarray
    error: np.ndarray
    moments: object  # (draws, n, p) -> (draws, k - 2)

    def statistics(self, X):
        return np.column_stack([self.moments(X), stein(X, self.gradient(X))])

    def matrices(self, flat):
        """Draws of the engine, stored by columns, as (draws, n, p)."""
        return flat[:, : self.n * self.p].reshape(-1, self.p, self.n).swapaxes(1, 2)


def stein(X, G):
    """The statistics of expectation zero, (draws, 2), of which p = 1 leaves the first."""
    n, p = X.shape[1:]
    rng = np.random.default_rng(1)
    C = rng.standard_normal((n, p))
    W = rng.standard_normal((n, n))
    left = (W - W.T) @ X
    W = rng.standard_normal((p, p))
    fields = [left, X @ (W - W.T)] if p > 1 else [left]
    linear = np.einsum("np,knp->k", C, X)
    return np.column_stack([np.einsum("np,knp->k", C, V) + linear * np.einsum("knp,knp->k", G, V) for V in fields])


def _pack(kind, n, p, *arrays):
    data = np.concatenate([np.ravel(a) for a in arrays]).astype(float)
    return np.concatenate([np.array([kind, n, p, data.size], dtype=np.int64), data.view(np.int64)])


# ---------------------------------------------------------------- references


@cache
def haar_draws(n, p):
    count = HAAR_DRAWS if n * p < 60 else HAAR_DRAWS // 4
    return draws.haar(n, p, size=count, rng=np.random.default_rng(100 * n + p))


def weighted(values, log_weight):
    """Self-normalised importance sampling: means and standard errors of ``values`` (draws, k)."""
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / np.sum(weight**2) > 500, "too few effective draws for a reference"
    mean = weight @ values
    return mean, np.sqrt(weight**2 @ (values - mean) ** 2)


def _with_stein(mean, error, p):
    """Expectations and errors, with those of Stein's identities behind them."""
    zeros = np.zeros(1 if p == 1 else 2)
    return np.concatenate([mean, zeros]), np.concatenate([np.broadcast_to(error, mean.shape), zeros])


def second_moments(X):
    """Squares and products of entries; the determinant where there is one."""
    n, p = X.shape[1:]
    columns = [X[:, 0, 0], X[:, 0, 0] ** 2, X[:, -1, 0] ** 2, X[:, 1, -1] ** 2]
    if p > 1:
        columns.append(X[:, 0, 0] * X[:, 1, 1])
    if n == p:
        columns.append(np.linalg.det(X))
    return np.column_stack(columns)


def _concentrations(p, largest):
    return largest * np.linspace(1.0, 0.5, p)


def _spread_matrix(n, seed):
    """Eigenvalues from -1 to 1 in a random basis."""
    Q = draws.haar(n, n, rng=np.random.default_rng(seed))
    return (Q * np.linspace(-1, 1, n)) @ Q.T


def _scaled(values, size):
    """The factor that gives a log density the standard deviation ``size`` under Haar measure (1 if it is constant)."""
    spread = values.std()
    return size / spread if spread > 1e-9 else 1.0


def quadratic_value(X, F, A, b):
    return np.einsum("np,knp->k", F, X) + np.einsum("knp,nm,kmp,p->k", X, A, X, b, optimize=True)


def _quadratic_target(name, n, p, F, A, b, moments, mean, error):
    extra = _pack(QUADRATIC, n, p, F.T, A, b)
    return Target(name, n, p, extra, lambda X: F + 2 * (A @ X) * b, *_with_stein(mean, error, p), moments)


# ---------------------------------------------------------------- the laws


def uniform(n, p):
    """X_ij^2 ~ Beta(1/2, (n-1)/2): its first two moments."""
    mean = np.array([0.0, 1 / n, 3 / (n * (n + 2)), 1 / n])

    def moments(X):
        return np.column_stack([X[:, 0, 0], X[:, 0, -1] ** 2, X[:, -1, 0] ** 4, X[:, 1, 0] ** 2])

    return _quadratic_target("uniform", n, p, np.zeros((n, p)), np.zeros((n, n)), np.zeros(p), moments, mean, 0.0)


def langevin(n, p, level):
    """E tr(C'X) exactly, for F with p different singular values."""
    s = _concentrations(p, (0.4 if level == "low" else 4.0) * n)
    rng = np.random.default_rng(n + p)
    U, V = draws.haar(n, p, rng=rng), draws.haar(p, p, rng=rng)
    grad = log_hyp0f1(n, s)[1]

    def moments(X):
        inner = np.einsum("np,knr,rp->kp", U, X, V, optimize=True)
        return np.column_stack([inner, inner @ s])

    F, A = (U * s) @ V.T, np.zeros((n, n))
    mean = np.append(grad, grad @ s)
    name = f"matrix Langevin, {level} concentration"
    return _quadratic_target(name, n, p, F, A, np.zeros(p), moments, mean, 0.0)


def bingham_spread(n, p):
    """Different eigenvalues in A and in B."""
    X, A, b = haar_draws(n, p), _spread_matrix(n, n), np.linspace(1.5, 0.5, p)
    F = np.zeros((n, p))
    A = A * _scaled(quadratic_value(X, F, A, b), 1.2)
    mean, error = weighted(second_moments(X), quadratic_value(X, F, A, b))
    return _quadratic_target("Bingham, spread", n, p, F, A, b, second_moments, mean, error)


def bingham_equal(n, p):
    """B = I, half of the eigenvalues of A equal; concentrated. E (XX')_ii is the derivative of the normaliser."""
    a = np.where(np.arange(n) < n // 2, 2.0 * n, 0.0)
    mean = log_bingham(n, a, np.ones(p))[1][[0, n - 1]]

    def moments(X):
        return (X[:, [0, n - 1]] ** 2).sum(axis=-1)

    F, b = np.zeros((n, p)), np.ones(p)
    return _quadratic_target("Bingham, equal eigenvalues", n, p, F, np.diag(a), b, moments, mean, 0.0)


def bingham_langevin(n, p):
    X, A, b = haar_draws(n, p), _spread_matrix(n, n + 1), np.linspace(1.0, -1.0, p) if p > 1 else np.ones(1)
    F = np.random.default_rng(n).standard_normal((n, p))
    zero = np.zeros((n, p))
    A = A * _scaled(quadratic_value(X, zero, A, b), 1.0)
    F = F * _scaled(quadratic_value(X, F, 0 * A, b), 1.0)
    mean, error = weighted(second_moments(X), quadratic_value(X, F, A, b))
    return _quadratic_target("Bingham-Langevin", n, p, F, A, b, second_moments, mean, error)


def mixture(n, p):
    """Two matrix Langevin laws with the first column turned round, weights 0.3 and 0.7: moments exact."""
    s = _concentrations(p, 0.3 * n + 1.5)
    s[1:] *= 0.5
    F1 = np.eye(n, p) * s
    F2 = F1 * np.where(np.arange(p) == 0, -1.0, 1.0)
    grad = log_hyp0f1(n, s)[1]
    mean = np.append(-0.4 * grad[:1], grad[1:])

    def moments(X):
        return np.column_stack([X[:, k, k] for k in range(p)])

    def gradient(X):
        first, second = np.log(0.3) + np.einsum("np,knp->k", F1, X), np.log(0.7) + np.einsum("np,knp->k", F2, X)
        share = 1 / (1 + np.exp(second - first))
        return share[:, None, None] * F1 + (1 - share)[:, None, None] * F2

    extra = _pack(MIXTURE, n, p, F1.T, F2.T, np.array([0.3, 0.7]))
    return Target("bimodal mixture", n, p, extra, gradient, *_with_stein(mean, 0.0, p), moments)


def angular(n, p):
    """Matrix angular central Gaussian of condition number 100, against its exact draws."""
    Q = draws.haar(n, n, rng=np.random.default_rng(n))
    Sigma = (Q * np.geomspace(1, 100, n)) @ Q.T
    P = np.linalg.inv(Sigma)
    exact = draws.angular_central_gaussian(Sigma, p, size=len(haar_draws(n, p)) // 2, rng=np.random.default_rng(n))
    values = second_moments(exact)
    mean, error = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))

    def gradient(X):
        PX = P @ X
        return -n * PX @ np.linalg.inv(X.swapaxes(1, 2) @ PX)

    extra = _pack(ANGULAR, n, p, P)
    name = "angular central Gaussian, condition 100"
    return Target(name, n, p, extra, gradient, *_with_stein(mean, error, p), second_moments)


@cache
def targets(n, p):
    """All laws on St(n, p)."""
    return (
        uniform(n, p),
        langevin(n, p, "low"),
        langevin(n, p, "high"),
        bingham_spread(n, p),
        bingham_equal(n, p),
        bingham_langevin(n, p),
        mixture(n, p),
        angular(n, p),
    )
