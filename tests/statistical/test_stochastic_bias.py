"""Rung 9: the bias of the stochastic-gradient schemes shrinks with the step size at the order claimed."""

import numpy as np
import pytest

from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.stochastic import scaled_metric
from tests.engine.test_stochastic import diagonal_means, langevin

pytestmark = pytest.mark.statistical

N, SIZES = 5, np.array([8.0, 4.0])
TARGET = "matrix Langevin, St(5, 2)"


def bias(scheme, step_size, draws, metric=None, temperature=1.0):
    """Bias of E tr(F'X) and its standard error, at friction 0.5 in units of time; the law is that of F, tempered."""
    density, _ = langevin(N, SIZES)
    _, exact = langevin(N, SIZES / temperature)
    friction = 1.0 - np.exp(-0.5 * step_size)
    n_steps = max(1, round(1.2 / step_size))
    mean, error, _ = diagonal_means(
        density, N, 2, draws, 7, metric, step_size=step_size, friction=friction, n_steps=n_steps, scheme=scheme,
        temperature=temperature,
    )  # fmt: skip
    return float(SIZES @ (mean - exact)), float(np.linalg.norm(SIZES * error))


@pytest.fixture(scope="module")
def draws(full):
    return 200_000 if full else 50_000


def test_paper_scheme_is_of_second_order(draws, book):
    (coarse, coarse_error), (fine, fine_error) = bias("euler", 0.8, draws), bias("euler", 0.4, draws)
    assert coarse < -20 * coarse_error
    order = np.log2(coarse / fine)
    spread = np.hypot(coarse_error / coarse, fine_error / fine) / np.log(2)
    # at 0.8 the next term of the expansion still adds to the second
    assert 2 - 4 * spread < order < 2.7 + 4 * spread
    book.note(9, "order of the bias of OrthogonalSGHMC's euler scheme, steps 0.8 to 0.4", f"{order:.2f} ± {spread:.2f}")


def test_symmetric_scheme_is_of_second_order_or_better(draws, book):
    (coarse, coarse_error), (fine, fine_error) = bias("symmetric", 1.2, draws), bias("symmetric", 0.6, draws)
    assert abs(fine) < abs(coarse) / 4 + 4 * np.hypot(coarse_error / 4, fine_error)
    euler, euler_error = bias("euler", 0.6, draws)
    assert abs(coarse) + 4 * coarse_error < abs(euler) - 4 * euler_error  # at twice the step
    book.note(9, "bias of E tr(F'X), symmetric scheme, step 1.2", f"{coarse:.4f} ± {coarse_error:.4f}")
    book.note(9, "bias of E tr(F'X), euler scheme, step 0.6", f"{euler:.4f} ± {euler_error:.4f}")


def test_no_bias_is_left_at_small_steps(draws, book):
    value, error = bias("symmetric", 0.3, draws)
    book.check(9, "OrthogonalSGHMC, symmetric", TARGET, np.array([value / error]))


@pytest.mark.parametrize("temperature", [0.3, 3.0])
@pytest.mark.parametrize("scheme, step_size", [("symmetric", 0.3), ("euler", 0.05)])
def test_tempered_law(scheme, step_size, temperature, draws, book):
    value, error = bias(scheme, step_size, draws // 4 if scheme == "euler" else draws, temperature=temperature)
    book.check(9, f"OrthogonalSGHMC, {scheme}, temperature {temperature}", TARGET, np.array([value / error]))


def test_another_temperature_is_caught(draws, book):
    """The control: draws at temperature 1 are not from the law at temperature 1.1."""
    _, exact = langevin(N, SIZES)
    _, other = langevin(N, SIZES / 1.1)
    value, error = bias("symmetric", 0.3, draws)
    gap = float(SIZES @ (exact - other))
    book.caught(9, "temperature 1 for 1.1", TARGET, np.array([(value + gap) / error]))


def test_noise_of_another_law_is_caught(draws, book):
    """The control: a projected Gaussian gives the skew part twice its variance, at any step size."""
    right = scaled_metric(make_layout([(N, 2)], 0), np.ones(1), np.zeros(0))
    value, error = bias("symmetric", 0.3, draws, right._replace(w=right.w / 2))
    book.caught(9, "noise of another law", TARGET, np.array([value / error]))
