"""Normalisers against independent oracles: fixtures, mpmath, quadrature, Monte Carlo, finite differences."""

from __future__ import annotations

import itertools
import json
import math

import numba
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_stiefel import draws
from pymc_stiefel.normalizers import (
    log_bingham,
    log_bingham_vector,
    log_hyp0f1,
    log_hyp0f1_batch,
    log_hyp0f1_vector,
)
from pymc_stiefel.normalizers._bingham import log_bingham_frame
from pymc_stiefel.normalizers._functions import _exact, exact_limit
from tests import ROOT

FIXTURE = ROOT.parent / "shared/data/fixtures/hyper0F1.json"
CASES = json.loads(FIXTURE.read_text()) if FIXTURE.exists() else []
WITHOUT_FIXTURE = f"no {FIXTURE.name} beside the repository"


def finite_difference(function, x, step):
    """Central differences with one Richardson step."""
    grad = np.empty(len(x))
    for i in range(len(x)):
        e = step * np.eye(len(x))[i]
        near = (function(x + e) - function(x - e)) / (2 * step)
        far = (function(x + 2 * e) - function(x - 2 * e)) / (4 * step)
        grad[i] = (4 * near - far) / 3
    return grad


def by_conditioning(n, s, nodes):
    """0F1 for p columns from p - 1 columns and one: an integral over the squared entries of one row of X.

    Given the row t of the first p - 1 columns in which the last column's mean stands, the columns before it contribute
    0F1 for n - 1 rows at D (I - tt') D and the last one a vector's 0F1 in n - p + 1 dimensions at s_p sqrt(1 - |t|^2).
    """
    k = len(s) - 1
    rules = [scipy.special.roots_jacobi(nodes, (n - i) / 2 - 1, -0.5) for i in range(1, k + 1)]  # of Beta(1/2, (n-i)/2)
    total, mass = 0.0, 0.0
    for picks in itertools.product(range(nodes), repeat=k):
        weight, rest, t = 1.0, 1.0, np.empty(k)
        for i, pick in enumerate(picks):
            part = (1 + rules[i][0][pick]) / 2
            weight *= rules[i][1][pick]
            t[i] = math.sqrt(rest * part)
            rest *= 1 - part
        D = np.diag(s[:k])
        inner = np.sqrt(np.maximum(np.linalg.eigvalsh(D @ (np.eye(k) - np.outer(t, t)) @ D), 0))
        value = log_hyp0f1(n - 1, inner)[0] + log_hyp0f1(n - k, np.array([s[k] * math.sqrt(rest)]))[0]
        total += weight * math.exp(value)
        mass += weight
    return math.log(total / mass)


# ---------------------------------------------------------------- 0F1, exact


@pytest.mark.skipif(not CASES, reason=WITHOUT_FIXTURE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"n{case['n']}-{case['d']}")
def test_fixture(case):
    value, grad = log_hyp0f1(case["n"], np.array(case["d"]))
    assert value == pytest.approx(case["log_mhg"], rel=1e-8)
    np.testing.assert_allclose(grad, case["EX_diag"], rtol=1e-8)


@pytest.mark.parametrize(("n", "s"), [(3, [3.0, 2, 1]), (4, [6.0, 6, 6]), (10, [9.0, 4, 0.5]), (200, [60.0, 20, 5])])
def test_three_columns_by_conditioning_on_two(n, s):
    assert log_hyp0f1(n, np.array(s))[0] == pytest.approx(by_conditioning(n, np.array(s), 30), rel=1e-10)


@pytest.mark.parametrize(("n", "s"), [(4, [3.0, 2, 2, 1]), (7, [5.0, 5, 5, 5]), (30, [12.0, 10, 1, 0.1])])
def test_four_columns_by_conditioning_on_three(n, s):
    assert log_hyp0f1(n, np.array(s))[0] == pytest.approx(by_conditioning(n, np.array(s), 14), rel=1e-9)


@pytest.mark.parametrize(("n", "s"), [(5, [2.0, 1.5, 1, 1, 0.5]), (9, [4.0, 3, 3, 3, 1])])
def test_five_columns_by_conditioning_on_four(n, s):
    assert log_hyp0f1(n, np.array(s))[0] == pytest.approx(by_conditioning(n, np.array(s), 8), rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 52, 53, 1000, 10_000])
def test_bessel_against_mpmath(n):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        for kappa in [1e-8, 0.1, 3.0, 60.0, 61.0, 62.0, 500.0, 2e4]:
            order = mpmath.mpf(n) / 2 - 1
            bessel = mpmath.besseli(order, kappa, maxterms=10**7)
            value = mpmath.loggamma(order + 1) - order * mpmath.log(mpmath.mpf(kappa) / 2) + mpmath.log(bessel)
            slope = mpmath.besseli(order + 1, kappa, maxterms=10**7) / bessel
            ours = log_hyp0f1_vector(float(n), kappa)
            assert ours[0] == pytest.approx(float(value), rel=1e-12)
            assert ours[1] == pytest.approx(float(slope), rel=1e-12)


def test_bessel_at_extreme_concentration():
    # log(sinh(k)/k) in three dimensions, log(cosh k) in one; derivative 1 - (n - 1) / (2 k) to first order in any
    value, slope = log_hyp0f1_vector(3.0, 1e6)
    assert value == pytest.approx(1e6 - math.log(2e6), rel=1e-14)
    assert slope == pytest.approx(1 - 1e-6, rel=1e-14)
    assert log_hyp0f1_vector(1.0, 1e6) == (pytest.approx(1e6 - math.log(2), rel=1e-15), 1.0)
    assert log_hyp0f1_vector(1e4, 1e6)[1] == pytest.approx(1 - 9999 / 2e6, abs=2e-5)


# 80-digit values of the recurrence itself: they guard its rounding where singular values are spread and large, and are
# no independent check of its tables (the quadratures by conditioning are)
HARD = [
    (4, [50.0, 50, 50, 50], 183.66104158926808),
    (4, [50.0, 1, 1, 1], 44.38863920028911),
    (5, [50.0, 0.1, 0.1, 0.1], 42.56489410903819),
    (4, [50.0, 50, 1, 1], 89.43133153929142),
    (3, [50.0, 10, 0.1], 53.25583533081735),
    (3, [50.0, 50, 50], 140.79079035833942),
]


@pytest.mark.parametrize(("n", "s", "expected"), HARD)
def test_spread_singular_values_do_not_lose_digits(n, s, expected):
    s = np.array(s)
    value, grad = log_hyp0f1(n, s)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(grad, finite_difference(lambda x: log_hyp0f1(n, x)[0], s, 1e-2), rtol=1e-5)


@pytest.mark.parametrize(("n", "p"), [(3, 1), (2, 2), (9, 2), (3, 3), (8, 3), (4, 4), (20, 4), (5, 5), (11, 5)])
def test_zero_singular_values_drop_out(n, p):
    s = np.linspace(9, 0.3, p)
    value, grad = log_hyp0f1(n, s)
    for more in range(p + 1, min(n, 5) + 1):
        padded = log_hyp0f1(n, np.concatenate([s, np.zeros(more - p)]))
        assert padded[0] == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(padded[1][:p], grad, rtol=1e-11)
        np.testing.assert_array_equal(padded[1][p:], 0)


def test_limits():
    assert log_hyp0f1(1, np.array([2.0]))[0] == pytest.approx(math.log(math.cosh(2)), rel=1e-15)
    for n, p in [(1, 1), (2, 2), (5, 3), (4, 4), (5, 5), (9, 7)]:
        value, grad = log_hyp0f1(n, np.zeros(p))
        assert value == pytest.approx(0, abs=1e-13)
        np.testing.assert_array_equal(grad, 0)
    for p in range(1, 6):  # |s|^2 / (2 n) near zero, without losing the digits to log(1 + tiny)
        value, grad = log_hyp0f1(7, np.full(p, 1e-7))
        assert value == pytest.approx(p * 1e-14 / 14, rel=1e-12)
        np.testing.assert_allclose(grad, 1e-7 / 7, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(p=st.integers(1, 7), extra=st.integers(0, 12), scale=st.floats(0.01, 40), seed=st.integers(0, 2**32 - 1))
def test_symmetry_parity_and_bounds(p, extra, scale, seed):
    rng = np.random.default_rng(seed)
    n, s = p + extra, scale * rng.random(p)
    value, grad = log_hyp0f1(n, s)
    assert 0 <= value <= s.sum() * (1 + 1e-12)
    assert np.all(grad >= 0) and np.all(grad <= 1 + 1e-9)
    order, signs = rng.permutation(p), rng.choice([-1.0, 1.0], p)
    turned = log_hyp0f1(n, signs * s[order])
    assert turned[0] == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(turned[1], signs * grad[order], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("n", [7, 12])
@pytest.mark.parametrize(
    "s", [[5.0], [4.0, 4], [3.0, 2, 2], [8.0, 8, 8, 1], [5.0, 5, 5, 5, 5], [6.0, 5, 4, 3, 2, 1, 0.5]]
)
def test_gradient_is_that_of_the_value(n, s):
    s = np.array(s)
    np.testing.assert_allclose(
        log_hyp0f1(n, s)[1], finite_difference(lambda x: log_hyp0f1(n, x)[0], s, 1e-3), rtol=1e-8
    )


# ---------------------------------------------------------------- 0F1, approximate


@pytest.mark.parametrize(
    ("n", "direction"), [(2, [1, 1]), (10, [1, 0.1]), (3, [3, 2, 1]), (4, [1, 1, 1, 1]), (6, [4, 4, 2, 1, 1])]
)
def test_methods_meet_with_value_and_derivative(n, direction):
    d = np.array(direction, dtype=float) / max(direction)
    limit = exact_limit(float(n), len(d))
    inside, outside = (log_hyp0f1(n, d * limit * factor) for factor in (1 - 1e-9, 1 + 1e-9))
    assert outside[0] - inside[0] == pytest.approx(2e-9 * limit * (inside[1] @ d), abs=1e-8)
    np.testing.assert_allclose(outside[1], inside[1], atol=1e-8)
    s = 2.5 * limit * d
    np.testing.assert_allclose(
        log_hyp0f1(n, s)[1], finite_difference(lambda x: log_hyp0f1(n, x)[0], s, 1e-3 * limit), rtol=1e-7
    )


@pytest.mark.parametrize(
    ("n", "s"),
    [(2, [2e5, 2e5]), (5, [2e5, 10.0]), (5, [600.0, 600, 600]), (8, [600.0, 60, 6]), (20, [800.0, 500, 100])],
)
def test_continuation_beyond_the_exact_limit(n, s):
    s = np.array(s)
    assert s.max() > exact_limit(float(n), len(s))
    value, grad = log_hyp0f1(n, s)
    exact, exact_grad = _exact(float(n), s)
    assert value == pytest.approx(exact, abs=1e-3)
    np.testing.assert_allclose(grad, exact_grad, atol=1e-4)


@pytest.mark.parametrize(("n", "bound"), [(6, 0.05), (12, 5e-3), (25, 5e-4), (60, 5e-5)])
def test_saddlepoint_error_bound(n, bound):
    """Six columns with one zero singular value are five columns, which are exact."""
    for shape in ([1, 1, 1, 1, 1], [1, 0.5, 0.25, 0.1, 0.1], [1, 1, 0.2, 0.2, 0.2]):
        for scale in (0.2, 0.5, 0.8):
            s = scale * n * np.array(shape)
            assert log_hyp0f1(n, np.append(s, 0.0))[0] == pytest.approx(log_hyp0f1(n, s)[0], abs=bound)


@pytest.mark.parametrize(("n", "p"), [(4, 2), (5, 5), (9, 7)])
def test_haar_monte_carlo(n, p):
    s = np.linspace(1.2, 0.4, p)
    X = draws.haar(n, p, size=60_000, rng=np.random.default_rng(7))
    weight = np.exp(np.einsum("kii,i->k", X[:, :p], s))
    value, grad = log_hyp0f1(n, s)
    error = weight.std() / math.sqrt(len(weight))
    assert abs(weight.mean() - math.exp(value)) < 4 * error
    assert abs(weight.mean() - math.exp(1.1 * value)) > 4 * error  # the check bites
    residual = weight[:, None] * (np.einsum("kii->ki", X[:, :p]) - grad)
    assert np.all(np.abs(residual.mean(0)) < 4 * residual.std(0) / math.sqrt(len(weight)))


def test_batch_and_compiled_callers():
    s = np.random.default_rng(0).random((2, 3, 4))
    value, grad = log_hyp0f1_batch(6, s)
    assert value.shape == (2, 3) and grad.shape == s.shape
    assert value[1, 2] == log_hyp0f1(6, s[1, 2])[0]
    double = numba.njit(lambda n, x: 2 * log_hyp0f1(n, x)[0])  # the unchecked function, in compiled code
    assert double(6, s[0, 0]) == 2 * value[0, 0]


# ---------------------------------------------------------------- Bingham


@pytest.mark.parametrize("n", [2, 3, 10, 100])
@pytest.mark.parametrize("a", [-1e3, -5.0, 0.01, 5.0, 100.0, 1e3])
def test_bingham_vector_with_one_distinct_eigenvalue(n, a):
    value, grad = log_bingham_vector(np.append(a, np.zeros(n - 1)))
    kummer = scipy.special.hyp1f1(0.5, n / 2, a) if a < 500 else None
    if kummer is not None:
        assert value == pytest.approx(math.log(kummer), rel=1e-9)
        assert grad[0] == pytest.approx(scipy.special.hyp1f1(1.5, n / 2 + 1, a) / n / kummer, rel=1e-9)
    assert grad.sum() == pytest.approx(1, rel=1e-12)


def test_bingham_vector_on_the_circle_and_shifts():
    for gap in [0.0, 1e-9, 1.0, 40.0, 1e4]:
        value, grad = log_bingham_vector(np.array([gap - 3, -3.0]))
        assert value == pytest.approx(gap - 3 + math.log(scipy.special.ive(0, gap / 2)), rel=1e-12, abs=1e-14)
        ratio = scipy.special.ive(1, gap / 2) / scipy.special.ive(0, gap / 2)
        np.testing.assert_allclose(grad, [(1 + ratio) / 2, (1 - ratio) / 2], rtol=1e-9)
    assert log_bingham_vector(np.array([2.5]))[0] == 2.5


@pytest.mark.parametrize(("n", "p"), [(3, 1), (100, 1), (4, 2), (5, 3), (9, 4), (12, 7), (24, 10)])
def test_bingham_derivative(n, p):
    a = 3 * np.random.default_rng(n).standard_normal(n)
    a[1] = a[0]
    value, grad = log_bingham(n, a, 1.5 * np.ones(p))
    assert grad.sum() == pytest.approx(1.5 * p, rel=1e-9)
    difference = finite_difference(lambda x: log_bingham(n, x, 1.5 * np.ones(p))[0], a, 3e-3)
    np.testing.assert_allclose(grad, difference, rtol=1e-6, atol=1e-7)
    assert log_bingham(n, a + 2, 1.5 * np.ones(p))[0] == pytest.approx(value + 3 * p, rel=1e-10)


@pytest.mark.parametrize(("n", "p"), [(4, 2), (6, 3), (5, 4), (10, 5)])
def test_bingham_frame_monte_carlo(n, p):
    rng = np.random.default_rng(11)
    a = rng.standard_normal(n)
    X = draws.haar(n, p, size=60_000, rng=rng)
    weight = np.exp(np.einsum("kij,i,kij->k", X, a, X))
    value = log_bingham(n, a, np.ones(p))[0]
    error = weight.std() / weight.mean() / math.sqrt(len(weight))
    assert abs(math.log(weight.mean()) - value) < 4 * error


def test_bingham_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="multiple of the identity"):
        log_bingham(4, np.arange(4.0), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="min"):
        log_bingham(40, np.arange(40.0), np.ones(20))
    with pytest.raises(ValueError, match="n = 3 eigenvalues"):
        log_bingham(3, np.arange(4.0), np.ones(2))
    with pytest.raises(ValueError, match="finite"):
        log_bingham(2, np.array([np.nan, 0.0]), np.ones(1))


def test_bingham_derivative_is_right_or_nan():
    """Where eigenvalues are far apart the Pfaffian cancels: a derivative that is no mean projector is not returned."""
    lost = 0
    for seed in range(20):
        a = 100 * np.random.default_rng(seed).standard_normal(5)
        grad = log_bingham_frame(2, a)[1]
        if np.isnan(grad).any():
            lost += 1
        else:
            assert grad.sum() == pytest.approx(2, abs=1e-5) and (grad > -1e-5).all() and (grad < 1 + 1e-5).all()
    assert lost > 10  # without the check these would be returned
