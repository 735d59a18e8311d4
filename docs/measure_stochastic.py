"""Bias of the two stochastic-gradient schemes against the step size, on a matrix Langevin law with exact moments.

Writes the table and the figure of ``docs/stochastic.md``::

    OPENBLAS_NUM_THREADS=1 python docs/measure_stochastic.py [--draws 400000] [--figure docs/images/stochastic_bias.svg]

``--figure docs/images/stochastic_bias.svg --page docs/stochastic.md`` draws the figure from the table of the page.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numba
import numpy as np

from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE
from pymc_stiefel.engine.stochastic import StochasticSampler, StochasticSettings, scaled_metric
from pymc_stiefel.normalizers import log_hyp0f1
from pymc_stiefel.plots._figures import PALETTE

N, SIZES = 5, np.array([8.0, 4.0])
STEPS = (1.4, 1.2, 1.0, 0.8, 0.6, 0.4)
TIME = 1.2  # between two draws
FRICTION = 0.5  # in units of time: alpha = 1 - exp(-FRICTION * step)


@numba.cfunc(DENSITY_SIGNATURE)
def langevin(q, gradient, extra):
    """etr(F'X) for F with 8 and 4 on its diagonal."""
    for k in range(10):
        gradient[k] = 0.0
    gradient[0], gradient[6] = 8.0, 4.0
    return 8.0 * q[0] + 4.0 * q[6]


def measure(scheme: str, step_size: float, draws: int, seed: int = 1):
    """Mean of log density minus its exact value, standard error, temperature, microseconds a step."""
    layout = make_layout([(N, 2)], 0)
    n_steps = max(1, round(TIME / step_size))
    friction = 1.0 - np.exp(-FRICTION * step_size)
    settings = StochasticSettings(step_size, friction, n_steps=n_steps, scheme=scheme)
    metric = scaled_metric(layout, np.ones(1), np.zeros(0))
    sampler = StochasticSampler(layout, langevin.address, settings, metric, np.random.default_rng(seed))
    sampler.compile()
    q, values = np.eye(N, 2).T.ravel(), np.empty(draws)
    for _ in range(200):
        q = sampler.draw(q)
    sampler.chain.tune = False
    start = time.perf_counter()
    for k in range(draws):
        q = sampler.draw(q)
        values[k] = SIZES[0] * q[0] + SIZES[1] * q[6]
    microseconds = (time.perf_counter() - start) / (draws * n_steps) * 1e6
    exact = float(SIZES @ log_hyp0f1(N, SIZES)[1])
    batches = values[: draws // 50 * 50].reshape(50, -1).mean(axis=1)
    return batches.mean() - exact, batches.std(ddof=1) / np.sqrt(50), sampler.temperature[0], microseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.page:
        draw_figure(rows_of(options.page.read_text()), options.figure)
        return
    print("| scheme | step | bias of E log density | standard error | temperature |\n|---|---|---|---|---|")
    rows: dict[str, list] = {}
    for scheme in ("symmetric", "euler"):
        for step in STEPS:
            bias, error, temperature, _ = measure(scheme, step, options.draws)
            rows.setdefault(scheme, []).append((step, abs(bias), error))
            print(f"| {scheme} | {step} | {bias:+.4f} | {error:.4f} | {temperature:.3f} |", flush=True)
    if options.figure:
        draw_figure(rows, options.figure)


def rows_of(text: str) -> dict[str, list]:
    """Step, size of the bias and its error from a table that this script has printed, for both schemes."""
    rows: dict[str, list] = {}
    for scheme, *numbers in re.findall(
        r"^\| (symmetric|euler) \| (.+?) \| ([+-].+?) \| (.+?) \|", text, flags=re.MULTILINE
    ):
        step, bias, error = map(float, numbers)
        rows.setdefault(scheme, []).append((step, abs(bias), error))
    return rows


def draw_figure(rows, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for scheme, color in zip(("symmetric", "euler"), PALETTE, strict=False):
        step, bias, error = np.array(rows[scheme]).T
        axes.errorbar(step, bias, 2 * error, marker="o", capsize=2, color=color, label=scheme)
    axes.plot(step, bias[-1] * (step / step[-1]) ** 2, ":", color="grey", label="second order")
    axes.set(xscale="log", yscale="log", xlabel="step size", ylabel="|bias| of E log density", ylim=(1e-4, None))
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
