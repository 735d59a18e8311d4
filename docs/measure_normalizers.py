"""Measure the errors and times quoted in docs/normalizers.md: ``python docs/measure_normalizers.py`` (some minutes)."""

import time

import numpy as np

from pymc_stiefel.draws import matrix_langevin
from pymc_stiefel.draws._gibbs import langevin_sweeps
from pymc_stiefel.normalizers import _exact, log_bingham, log_bingham_vector, log_hyp0f1


def continuation() -> None:
    """Beyond the limit of exact summation, against exact summation where rounding still allows it."""
    cases = [(2, [2e5, 2e5]), (5, [2e5, 10]), (5, [600, 600, 600]), (8, [600, 60, 6]), (4, [130, 130, 1, 1])]
    cases += [(4, [180, 180, 180, 1]), (10, [200, 100, 30, 10]), (5, [80, 80, 1, 1, 1]), (10, [80, 70, 10, 5, 1])]
    for n, s in cases:
        value, grad = log_hyp0f1(n, np.array(s, dtype=float))
        exact, exact_grad = _exact(float(n), np.array(s, dtype=float))
        print(f"n={n} s={s}: value {value - exact:+.1e}, derivative {np.abs(grad - exact_grad).max():.1e}")


def saddlepoint_six() -> None:
    """Six columns with a zero singular value, approximate, against five columns, exact."""
    for n in (6, 8, 12, 25, 60):
        worst, worst_grad = 0.0, 0.0
        for shape in ([1, 1, 1, 1, 1], [1, 0.5, 0.25, 0.1, 0.1], [1, 1, 0.2, 0.2, 0.2], [1, 0.1, 0.1, 0.1, 0.1]):
            for scale in np.linspace(0.1, 1, 10):
                s = scale * n * np.array(shape)
                value, grad = log_hyp0f1(n, np.append(s, 0.0))
                exact, exact_grad = log_hyp0f1(n, s)
                worst, worst_grad = max(worst, abs(value - exact)), max(worst_grad, np.abs(grad[:5] - exact_grad).max())
        print(f"p=6, n={n}, s to n: value {worst:.1e}, derivative {worst_grad:.1e}")


def saddlepoint_large() -> None:
    """Many columns against the integral of E tr(F'X) along a ray, by Gibbs sampling."""
    rng = np.random.default_rng(0)
    nodes, weights = np.polynomial.legendre.leggauss(10)
    for n, p, top, draws in [
        (7, 7, 20, 12000),
        (10, 10, 30, 12000),
        (15, 10, 30, 12000),
        (20, 20, 60, 2500),
        (40, 20, 80, 1500),
    ]:
        base = np.linspace(1, 0.5, p) * top
        value, variance, slopes = 0.0, 0.0, []
        for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            F = np.asfortranarray(np.eye(n, p) * base * t)
            X = np.asfortranarray(matrix_langevin(F, rng=rng))
            energy = np.empty(draws)
            for i in range(draws):
                langevin_sweeps(X, F, False, 2, rng)
                energy[i] = np.diag(X[:p]) @ base
            error = energy.reshape(50, -1).mean(1).std() / 7
            value, variance = value + weight * energy.mean(), variance + (weight * error) ** 2
            slopes.append(log_hyp0f1(n, base * t)[1] @ base / energy.mean() - 1)
        ours = log_hyp0f1(n, base)[0]
        print(
            f"n={n} p={p} s to {top}: {ours:.2f} against {value:.2f} +- {variance**0.5:.2f}; "
            f"relative error of E tr(F'X), upper half of the ray: {np.abs(slopes[4:]).max():.4f}"
        )


def forgetting() -> None:
    """Mean of tr(F'X) after some Gibbs sweeps from Haar starts."""
    rng = np.random.default_rng(1)
    for n, p, top in [(10, 10, 10), (20, 20, 20), (12, 8, 12), (100, 20, 100)]:
        F = np.asfortranarray(np.eye(n, p) * np.linspace(1, 0.5, p) * top)
        chains = [np.asfortranarray(matrix_langevin(0 * F, rng=rng)) for _ in range(100)]
        report, done = [], 0
        for sweeps in (1, 2, 3, 5, 10, 20, 40):
            for X in chains:
                langevin_sweeps(X, F, False, sweeps - done, rng)
            done = sweeps
            energy = [np.sum(F * X) for X in chains]
            report.append(f"{sweeps}: {np.mean(energy):.1f}")
        print(f"n={n} p={p} s to {top}: {', '.join(report)} (+- {np.std(energy) / 10:.1f})")


def times() -> None:
    def microseconds(function, *arguments):
        function(*arguments)
        best = np.inf
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(20):
                function(*arguments)
            best = min(best, (time.perf_counter() - start) / 20e-6)
        return best

    for p, size in [
        (1, 5),
        (1, 5e5),
        (2, 5),
        (2, 50),
        (3, 5),
        (3, 50),
        (4, 5),
        (4, 50),
        (5, 5),
        (5, 30),
        (10, 10),
        (20, 10),
    ]:
        print(
            f"log_hyp0f1 n={2 * p} p={p} s={size:g}: {microseconds(log_hyp0f1, 2 * p, np.full(p, float(size))):.0f} us"
        )
    for n in (3, 10, 100):
        print(f"log_bingham_vector n={n}: {microseconds(log_bingham_vector, np.arange(float(n))):.0f} us")
    for n, p in [(5, 2), (20, 5), (30, 10)]:
        print(f"log_bingham n={n} p={p}: {microseconds(log_bingham, n, 0.3 * np.arange(n), np.ones(p)):.0f} us")


if __name__ == "__main__":
    for measurement in (continuation, saddlepoint_six, saddlepoint_large, forgetting, times):
        print(f"## {measurement.__name__}")
        measurement()
