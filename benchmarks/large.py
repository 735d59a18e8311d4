"""Large matrices: how much of the attainable speed a leapfrog reaches. ``python -m benchmarks.large [--record]``.

The operations of a leapfrog are counted, with their floating-point operations and the bytes that they read and write.
An operation cannot take less time than its flops at the rate of a large matrix product, or its bytes at the rate at
which vectors of this size are added; the sum over the operations is the attainable time. Both rates are measured here,
on one thread, just before the leapfrog. The density costs nothing. Effective draws are those of the density tr(F'X).
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.machine import machine
from benchmarks.scaling import cheap_sampler, seconds_per_leapfrog

SHAPES = ((2000, 50), (10_000, 20), (200, 200), (1000, 10), (2000, 5))
RECORD = Path(__file__).with_suffix(".json")
REPEATS, DRAWS, TUNE = 15, 100, 200


class Operation(NamedTuple):
    """What one part of a leapfrog needs at least."""

    flops: float
    numbers: float  # read and written


def operations(n: int, p: int, drift: str) -> list[Operation]:
    """The parts of a leapfrog with p columns of length n; small terms, of p^2 numbers, are left out."""
    product = 2 * p * p * n
    size = n * p
    kicks = [Operation(2 * size, 3 * size)] * 2
    normal = [Operation(product, 2 * size), Operation(product, 3 * size)]  # X'B, then B - X (X'B)
    split = [Operation(product, 2 * size), Operation(product, 3 * size)] if n > p else [Operation(product, 2 * size)]
    energy = [Operation(2 * size, size)]
    if drift == "cayley":
        inverse = [Operation(2 * p**3, p * p)]
        move = [Operation(2 * size, 3 * size), Operation(product, 2 * size), Operation(2 * size, 3 * size)]
        into = [Operation(product / 2, size), Operation(product, 3 * size)]  # B'B, then B - Y S
        parts = inverse + move + (into if n > p else [])
    else:  # products of [X B] with the matrix of all rotations
        parts = (
            [Operation(product / 2, size), Operation(4 * product, 4 * size)] if n > p else [Operation(product, size)]
        )
    return kicks + (normal if n > p else []) + parts + split + energy


def best_of(call: Callable[[], object], repeats: int = REPEATS) -> float:
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def flop_rate(size: int = 1000) -> float:
    """Floating-point operations a second of a large matrix product."""
    a, b, out = (np.random.default_rng(0).standard_normal((size, size)) for _ in range(3))
    return 2 * size**3 / best_of(lambda: np.matmul(a, b, out=out))


def number_rate(size: int) -> float:
    """Numbers read and written a second by a sum of two vectors of this length."""
    a, b, out = (np.ones(size) for _ in range(3))
    times = max(1, 1_000_000 // size)

    def several() -> None:
        for _ in range(times):
            np.add(a, b, out=out)

    return 3 * size * times / best_of(several)


def leapfrog(n: int, p: int, drift: str) -> dict[str, float]:
    flops, numbers = flop_rate(), number_rate(n * p)
    counted = operations(n, p, drift)
    attainable = sum(max(each.flops / flops, each.numbers / numbers) for each in counted)
    seconds = seconds_per_leapfrog({drift: cheap_sampler([(n, p)], drift)}, 2.0)[drift]
    return {
        "seconds": seconds,
        "attainable": attainable,
        "share": attainable / seconds,
        "gflops": sum(each.flops for each in counted) / seconds / 1e9,
        "largest gflops": flops / 1e9,
        "gbytes": 8 * sum(each.numbers for each in counted) / seconds / 1e9,
        "largest gbytes": 8 * numbers / 1e9,
    }


def effective_draws(n: int, p: int) -> dict[str, float]:
    """CPU seconds an effective draw of the worst of forty entries, with the density tr(F'X)."""
    import arviz as az
    import pymc as pm

    import pymc_stiefel as pst

    rng = np.random.default_rng(1)
    with pm.Model():
        F = n * np.geomspace(0.3, 3, p) * pst.geometry.polar(rng.standard_normal((n, p)))
        X = pst.StiefelUniform("X", n, p, initval=pst.geometry.polar(F))
        pm.Potential("langevin", (F * X).sum())  # without the normalizer, which is not needed
        quiet = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}
        pst.sample(10, tune=10, chains=1, cores=1, **quiet)  # compiled
        start = time.process_time()
        idata = pst.sample(DRAWS, tune=TUNE, chains=2, cores=1, **quiet)
        seconds = time.process_time() - start
    x = idata["posterior"]["X"].values.reshape(2, DRAWS, -1)[..., rng.permutation(n * p)[:40]]
    ess = float(az.ess(az.convert_to_dataset({"x": x}))["x"].values.min())
    steps = float(idata["sample_stats"]["n_steps"].values.mean())
    return {"seconds per effective draw": seconds / ess, "ess": ess, "gradients a draw": steps}


def measure() -> dict:
    rows = []
    for n, p in SHAPES:
        drift = "cayley" if p > 12 else "splitting"  # what StiefelNUTS uses
        rows.append({"n": n, "p": p, "drift": drift} | leapfrog(n, p, drift) | effective_draws(n, p))
        show = rows[-1]
        print(
            f"({n}, {p}) {drift}: {1e6 * show['seconds']:.0f} us a leapfrog, {show['share']:.0%} of the attainable "
            f"speed, {show['seconds per effective draw']:.2g} s an effective draw",
            flush=True,
        )
    return {"machine": machine(), "shapes": rows}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.large", description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    record = measure()
    if options.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
