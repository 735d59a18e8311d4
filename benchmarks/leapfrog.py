"""What a leapfrog costs: ``python benchmarks/leapfrog.py [--quick]``.

For the three drifts at several shapes, on a density that costs nothing, and for StiefelNUTS on probabilistic PCA beside
the bare compiled density. One thread; the best of several repetitions. Results go to ``benchmarks/leapfrog.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numba
import numpy as np
from numba import carray
from ppca import build, simulate

from pymc_stiefel import geometry
from pymc_stiefel.density import ModelDensity
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.compiling import DENSITY_SIGNATURE, call_density
from pymc_stiefel.engine.sampler import Sampler, Settings

SHAPES = [(2, 2), (30, 3), (20, 10), (100, 20), (100, 100), (300, 300), (1000, 50), (784, 300)]
DRIFTS = ("splitting", "cayley", "geodesic")


def flat_density(size: int):
    """A density that costs nothing beside the leapfrog: log density x[0]."""

    def density(q, gradient, extra):
        g = carray(gradient, (size,))
        for k in range(size):
            g[k] = 0.0
        g[0] = 1.0
        return carray(q, (size,))[0]

    return numba.cfunc(DENSITY_SIGNATURE)(density)


def seconds_per_leapfrog(sampler: Sampler, q: np.ndarray, repetitions: int) -> float:
    """From static trajectories of two lengths, so that the cost of a draw around its leapfrogs cancels."""
    best = {}
    for _ in range(repetitions):
        for length in (5, 25):
            object.__setattr__(sampler.settings, "n_steps", length)
            start = time.perf_counter()
            sampler.draw(q)
            best[length] = min(best.get(length, np.inf), time.perf_counter() - start)
    return (best[25] - best[5]) / 20


def make_sampler(layout, address, drift, extra=None) -> Sampler:
    settings = Settings(drift=drift, n_steps=1, step_size=1e-3, adapt_step_size=False, adapt_metric=False)
    sampler = Sampler(layout, address, settings, np.random.default_rng(0), extra)
    sampler.chain.tune = False
    return sampler


@numba.njit
def _evaluate(address, q, gradient, extra, count):
    for _ in range(count):
        call_density(address, q, gradient, extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes and few repetitions: a smoke test")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("leapfrog.json"))
    options = parser.parse_args()
    shapes = SHAPES[:3] if options.quick else SHAPES
    rows = []
    for n, p in shapes:
        density = flat_density(n * p)
        q = geometry.polar(np.random.default_rng(0).standard_normal((n, p))).T.ravel()
        repetitions = 5 if options.quick else (200 if n * p < 5000 else 3)
        row = {"n": n, "p": p} | {
            drift: seconds_per_leapfrog(make_sampler(make_layout([(n, p)], 0), density.address, drift), q, repetitions)
            for drift in DRIFTS
        }
        rows.append(row)
        print(
            f"({n}, {p}): " + ", ".join(f"{drift} {1e6 * row[drift]:.1f} us" for drift in DRIFTS)
            + f"; geodesic / Cayley {row['geodesic'] / row['cayley']:.1f}",
            flush=True,
        )

    model = build(simulate(30, 200, (1.5, 3.0, 5.0), 1), 200, 3, None)
    point = model.initial_point(1)
    density = ModelDensity(model, model.value_vars, point)
    q = np.empty(density.layout.size)
    q[density.order] = np.concatenate([np.ravel(point[name]) for name in density.names])
    gradient = np.empty_like(q)
    _evaluate(density.address, q, gradient, density.extra, 1)
    raw = np.inf
    for _ in range(20):
        start = time.perf_counter()
        _evaluate(density.address, q, gradient, density.extra, 1000)
        raw = min(raw, (time.perf_counter() - start) / 1000)
    sampler = make_sampler(density.layout, density.address, "splitting", density.extra)
    leapfrog = seconds_per_leapfrog(sampler, q, 500)
    limit = 1.5 * raw + 3e-6
    print(f"ppca (30, 3): density {1e6 * raw:.1f} us, leapfrog {1e6 * leapfrog:.1f} us (goal {1e6 * limit:.1f} us)")
    if not options.quick:
        record = {"rows": rows, "ppca": {"density": raw, "leapfrog": leapfrog}}
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
