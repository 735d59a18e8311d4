"""Draws against exact moments, as z-scores with controls that must fail, and at the edges of the parameter space."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_stiefel import draws
from pymc_stiefel.draws import _batches
from pymc_stiefel.geometry import orthogonality_error
from pymc_stiefel.normalizers import log_bingham, log_hyp0f1, log_hyp0f1_vector


def z_scores(samples, expected):
    """Standardised differences of the means along axis 0; a statistic without variance must be exact to rounding."""
    error = samples.std(axis=0) / math.sqrt(len(samples))
    return (samples.mean(axis=0) - expected) / (error + 1e-12)


def importance_moments(n, p, log_density, size=150_000):
    """E[X] and E[X^2] by weighted Haar draws, with their variances and the effective sample size."""
    X = draws.haar(n, p, size=size, rng=np.random.default_rng(99))
    weight = np.exp(log_density(X))
    weight /= weight.sum()
    moments = []
    for statistic in (X, X**2):
        mean = np.einsum("k,kij->ij", weight, statistic)
        moments.append((mean, np.einsum("k,kij->ij", weight**2, (statistic - mean) ** 2)))
    return moments


def assert_moments(X, moments):
    for statistic, (mean, variance) in zip((X, X**2), moments, strict=True):
        error = np.sqrt(statistic.var(axis=0) / len(X) + variance)
        assert np.abs((statistic.mean(axis=0) - mean) / error).max() < 4


# ---------------------------------------------------------------- Haar and angular central Gaussian


@pytest.mark.parametrize(("n", "p"), [(1, 1), (2, 1), (2, 2), (4, 3), (5, 5)])
def test_haar(n, p):
    X = draws.haar(n, p, size=20_000, rng=np.random.default_rng(1))
    assert orthogonality_error(X).max() < 1e-13
    assert np.abs(z_scores(X.reshape(len(X), -1), 0)).max() < 4
    if n > 1:
        entry = scipy.stats.kstest(X[:, 0, 0] ** 2, scipy.stats.beta(0.5, (n - 1) / 2).cdf)
        assert entry.pvalue > 1e-4
    if n == p:  # both components of O(n)
        assert abs(z_scores(np.linalg.det(X), 0)) < 4


def test_angular_central_gaussian():
    Sigma = np.diag([4.0, 1.0, 1.0, 0.25])
    inverse = np.linalg.inv(Sigma)

    def log_density(X):
        return -2 * np.linalg.slogdet(np.swapaxes(X, 1, 2) @ inverse @ X)[1]

    X = draws.angular_central_gaussian(Sigma, 2, size=20_000, rng=np.random.default_rng(2))
    assert orthogonality_error(X).max() < 1e-12
    assert_moments(X, importance_moments(4, 2, log_density))


# ---------------------------------------------------------------- von Mises-Fisher


@pytest.mark.parametrize("n", [1, 2, 3, 20])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 20.0, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
def test_von_mises_fisher(n, kappa, sign):
    mu = sign * np.eye(n)[0]
    x = draws.von_mises_fisher(mu, kappa, size=5000, rng=np.random.default_rng(n))
    assert np.abs(np.linalg.norm(x, axis=-1) - 1).max() < 1e-14
    cosine = np.clip(x @ mu, -1, 1)
    if kappa < 1e6:
        assert abs(z_scores(cosine, log_hyp0f1_vector(float(n), kappa)[1])) < 4
    elif n > 1:  # kappa |x - mu|^2 is chi-squared to within 1/kappa; by this path no digits are lost to 1 - cosine
        assert scipy.stats.kstest(kappa * ((x - mu) ** 2).sum(-1), scipy.stats.chi2(n - 1).cdf).pvalue > 1e-4
    assert np.abs(z_scores(x[:, 1:], 0)).max(initial=0) < 4


# ---------------------------------------------------------------- matrix Langevin

LANGEVIN = [
    (1, [2.0]),
    (2, [0.0, 0.0]),
    (2, [1.0, 0.5]),
    (3, [3.0, 2, 1]),
    (3, [5.0, 4]),
    (5, [4.0, 3, 1, 0.5, 0]),
    (6, [40.0, 30, 20, 10]),
    (10, [300.0, 300, 300]),
    (40, [50.0, 20, 1]),
]


def langevin_parameter(n, s, seed):
    """F with singular values s and random singular vectors."""
    rng = np.random.default_rng(seed)
    U, V = draws.haar(n, len(s), rng=rng), draws.haar(len(s), len(s), rng=rng)
    return U, np.array(s), V


@pytest.mark.parametrize(("n", "s"), LANGEVIN)
def test_matrix_langevin_mean_is_the_derivative_of_the_normaliser(n, s):
    U, s, V = langevin_parameter(n, s, 3)
    X = draws.matrix_langevin((U * s) @ V.T, size=4000, rng=np.random.default_rng(4))
    assert orthogonality_error(X).max() < 1e-12
    in_basis = U.T @ X @ V
    assert np.abs(z_scores(in_basis, np.diag(log_hyp0f1(n, s)[1]))).max() < 4


def test_a_slightly_wrong_concentration_is_caught():
    U, s, V = langevin_parameter(5, [4.0, 3.0], 5)
    X = draws.matrix_langevin((U * 1.1 * s) @ V.T, size=4000, rng=np.random.default_rng(6))
    assert np.abs(z_scores(U.T @ X @ V, np.diag(log_hyp0f1(5, s)[1]))).max() > 4


@pytest.mark.parametrize(("n", "s"), [(2, [1.0, 0.5]), (3, [3.0, 2, 1]), (6, [8.0, 4, 1]), (5, [6.0, 5, 4, 3, 1])])
def test_gibbs_sweeps_reach_the_same_law(n, s, monkeypatch):
    monkeypatch.setattr(_batches, "SMALLEST_RATE", 2.0)  # rejection is never good enough
    U, s, V = langevin_parameter(n, s, 7)
    X = draws.matrix_langevin((U * s) @ V.T, size=2000, rng=np.random.default_rng(8))
    assert orthogonality_error(X).max() < 1e-12
    assert np.abs(z_scores(U.T @ X @ V, np.diag(log_hyp0f1(n, s)[1]))).max() < 4
    monkeypatch.setattr(_batches, "GIBBS_SWEEPS", 0)  # control: the start alone is not the law
    X = draws.matrix_langevin((U * s) @ V.T, size=20_000, rng=np.random.default_rng(8))
    if len(s) > 2:
        assert np.abs(z_scores(U.T @ X @ V, np.diag(log_hyp0f1(n, s)[1]))).max() > 4


def test_both_components_of_the_orthogonal_group():
    """The odds of det = -1 on O(2) are I0(s1 - s2) : I0(s1 + s2)."""
    F = np.diag([1.5, 0.5])
    weights = np.i0([1.0, 2.0])
    for X in (
        draws.matrix_langevin(F, size=5000, rng=np.random.default_rng(9)),
        draws.matrix_bingham_langevin(np.eye(2), None, F, size=2000, rng=np.random.default_rng(9)),
    ):
        assert abs(z_scores(np.linalg.det(X) < 0, weights[0] / weights.sum())) < 4


def test_large_and_concentrated():
    rng = np.random.default_rng(10)
    for n, p, scale in [(1000, 20, 1e5), (200, 20, 100.0), (20, 20, 50.0)]:
        F = scale * draws.haar(n, p, rng=rng)
        X = draws.matrix_langevin(F, rng=rng)
        assert X.shape == (n, p) and orthogonality_error(X) < 1e-11
    # at high concentration the deficit 2 (tr F - tr F'X) is chi-squared with the manifold's dimension
    X = draws.matrix_langevin(1e6 * np.eye(8, 6), size=300, rng=rng)
    deficit = 2e6 * (6 - np.einsum("kii->k", X[:, :6]))
    assert abs(z_scores(deficit, 8 * 6 - 21)) < 4


# ---------------------------------------------------------------- Bingham and Bingham-Langevin


@pytest.mark.parametrize(("n", "p"), [(1, 1), (2, 1), (3, 1), (5, 2), (4, 3), (3, 3), (30, 2)])
def test_matrix_bingham_moments(n, p):
    rng = np.random.default_rng(11)
    a, Q = 3 * rng.standard_normal(n), draws.haar(n, n, rng=rng)
    X = draws.matrix_bingham((Q * a) @ Q.T, None, p, size=3000, rng=rng)
    assert orthogonality_error(X).max() < 1e-12
    occupation = ((Q.T @ X) ** 2).sum(axis=-1)  # its mean is the derivative of the normaliser in a
    assert np.abs(z_scores(occupation, log_bingham(n, a, np.ones(p))[1])).max() < 4
    if 1 < p < n < 10:
        assert np.abs(z_scores(occupation, log_bingham(n, 1.15 * a, np.ones(p))[1])).max() > 4


def test_bingham_at_high_concentration_and_negative_coupling():
    rng = np.random.default_rng(12)
    a = np.array([0.0, 1e4, 1e4, 2e4])
    for coupling in (1.0, -1.0):
        X = draws.matrix_bingham(np.diag(a), np.array([coupling]), 1, size=2000, rng=rng)
        assert np.abs(z_scores((X**2)[..., 0], coupling * log_bingham(4, a, np.array([coupling]))[1])).max() < 4


@pytest.mark.parametrize(("n", "p"), [(3, 1), (3, 2), (3, 3), (5, 2)])
@pytest.mark.parametrize("linear", [False, True])
def test_general_coupling_and_linear_term(n, p, linear):
    rng = np.random.default_rng(13)
    A, B = (M + M.T for M in (rng.standard_normal((n, n)) / 2, rng.standard_normal((p, p)) / 2))
    F = rng.standard_normal((n, p)) if linear else np.zeros((n, p))

    def log_density(X):
        return np.einsum("jm,kij,il,klm->k", B, X, A, X, optimize=True) + np.einsum("kij,ij->k", X, F)

    if linear:
        X = draws.matrix_bingham_langevin(A, B, F, size=1000, rng=rng)
    else:
        X = draws.matrix_bingham(A, B, p, size=1000, rng=rng)
    assert orthogonality_error(X).max() < 1e-12
    assert_moments(X, importance_moments(n, p, log_density))


@pytest.mark.parametrize("linear", [False, True])
def test_column_sweeps_reach_the_law(linear, monkeypatch):
    """n >= 2p - 1: columns are drawn in the complement of the others without a basis of it."""
    rng = np.random.default_rng(17)
    a, b = np.array([-2.0, -1, 0, 1, 1.5, 2.5]), np.array([0.3, 1.0, 2.0])
    F = 1.5 * rng.standard_normal((6, 3)) if linear else np.zeros((6, 3))

    def sample(size, factor=1.0):
        rng = np.random.default_rng(18)
        return draws.matrix_bingham_langevin(np.diag(a), factor * np.diag(b), F, size=size, rng=rng)

    known = importance_moments(6, 3, lambda X: np.einsum("kij,i,j->k", X**2, a, b) + np.einsum("kij,ij->k", X, F))
    X = sample(4000)
    assert orthogonality_error(X).max() < 1e-12
    assert_moments(X, known)
    with pytest.raises(AssertionError):  # a control: a coupling a quarter larger
        assert_moments(sample(20_000, 1.25), known)
    monkeypatch.setattr(_batches, "COLUMN_SWEEPS", 0)
    with pytest.raises(AssertionError):  # a control: the start alone, columns drawn one after the other
        assert_moments(sample(20_000), known)


@pytest.mark.parametrize("strength", [1e3, 1e8])
@pytest.mark.parametrize("linear", [0.0, 1.0])
def test_column_sweeps_at_high_concentration(strength, linear):
    """Twice the deficit of the log density is chi-squared with the manifold's dimension."""
    a, b = np.array([-3.0, -2, -1, 1, 2, 2.5, 4, 6]), np.array([0.5, 1.0, 2.0])
    F = linear * np.eye(8, 3)[::-1] * [1.0, 2.0, 3.0]
    rng = np.random.default_rng(19)
    arguments = strength * np.diag(a), np.diag(b), strength * F[:, ::-1]
    X = draws.matrix_bingham_langevin(*arguments, size=500, rng=rng)
    mode = np.eye(8, 3, -5)
    mode = mode * np.sign(np.einsum("kij,ij->kj", X, mode))[:, None] if not linear else mode
    change = X - mode
    # differences from the mode, not of log densities, which would cancel
    deficit = -np.einsum("kij,i,j->k", change * (X + mode), a, b) - np.einsum("kij,ij->k", change, F[:, ::-1])
    assert abs(z_scores(2 * strength * deficit, 8 * 3 - 6)) < 4


def test_bingham_frames_where_rejection_gives_up(monkeypatch):
    monkeypatch.setattr(_batches, "PROPOSALS", 0)
    a = np.array([30.0, 20, 10, 0, -10])
    X = draws.matrix_bingham(np.diag(a), None, 3, size=600, rng=np.random.default_rng(16))
    assert np.abs(z_scores((X**2).sum(axis=-1), log_bingham(5, a, np.ones(3))[1])).max() < 4


@pytest.mark.parametrize("kappa", [0.0, 1.0, 200.0])
def test_vector_bingham_langevin_without_quadratic_part_is_von_mises_fisher(kappa):
    f = kappa * np.eye(6)[:, :1]
    X = draws.matrix_bingham_langevin(np.zeros((6, 6)), None, f, size=3000, rng=np.random.default_rng(14))
    assert abs(z_scores(X[:, 0, 0], log_hyp0f1_vector(6.0, kappa)[1])) < 4


# ---------------------------------------------------------------- arguments

LAWS = {
    "haar": lambda size, rng: draws.haar(4, 2, size=size, rng=rng),
    "langevin": lambda size, rng: draws.matrix_langevin(np.eye(4, 2), size=size, rng=rng),
    "bingham": lambda size, rng: draws.matrix_bingham(np.diag(np.arange(4.0)), None, 2, size=size, rng=rng),
    "bingham_langevin": lambda size, rng: draws.matrix_bingham_langevin(
        np.diag(np.arange(4.0)), np.diag([1.0, 2.0]), np.eye(4, 2), size=size, rng=rng
    ),
    "angular_central_gaussian": lambda size, rng: draws.angular_central_gaussian(np.eye(4), 2, size=size, rng=rng),
    "von_mises_fisher": lambda size, rng: draws.von_mises_fisher(np.ones(4), 2.0, size=size, rng=rng)[..., None],
}


@settings(max_examples=25, deadline=None)
@given(
    size=st.one_of(st.none(), st.integers(0, 3), st.tuples(st.integers(0, 2), st.integers(1, 2))),
    law=st.sampled_from(sorted(LAWS)),
)
def test_size_and_seed(size, law):
    first, second = (LAWS[law](size, np.random.default_rng(15)) for _ in range(2))
    leading = () if size is None else (size,) if isinstance(size, int) else size
    assert first.shape[:-1] == (*leading, 4)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda rng: draws.haar(2, 3, rng=rng), "n=2, p=3"),
        (lambda rng: draws.matrix_langevin(np.full((3, 2), np.nan), rng=rng), "F must be finite, got nan"),
        (lambda rng: draws.matrix_langevin(np.eye(3) * 1j, rng=rng), "F must be real"),
        (lambda rng: draws.matrix_langevin(np.ones(3), rng=rng), "F must be a matrix"),
        (lambda rng: draws.matrix_bingham(np.triu(np.ones((3, 3))), None, 1, rng=rng), "A must be symmetric"),
        (lambda rng: draws.matrix_bingham(np.ones((3, 2)), None, 1, rng=rng), "A must be a square"),
        (lambda rng: draws.matrix_bingham(np.eye(3), np.eye(3), 2, rng=rng), "B must be 2 x 2"),
        (lambda rng: draws.matrix_bingham_langevin(np.eye(3), None, np.ones((2, 1)), rng=rng), "3 rows of A"),
        (lambda rng: draws.angular_central_gaussian(np.diag([1.0, -1]), 1, rng=rng), "Sigma must be positive definite"),
        (lambda rng: draws.von_mises_fisher(np.zeros(3), 1.0, rng=rng), "mu must be a nonzero"),
        (lambda rng: draws.von_mises_fisher(np.ones(3), -1.0, rng=rng), "kappa must be finite and >= 0, got -1"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(np.random.default_rng(0))
