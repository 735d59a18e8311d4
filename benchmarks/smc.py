"""Sequential Monte Carlo against PyMC's own kernels: ``python -m benchmarks.smc``; results in smc.json.

Log marginal likelihood of a probabilistic PCA, 100 rows of 12 numbers. A kernel is judged by the variance of its
estimates over chains times the time of a chain: the time it takes to reach a given error.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst
from benchmarks.machine import machine

N_FEATURES, ROWS = 12, 100
RESULTS = Path(__file__).with_suffix(".json")


def second_moments() -> np.ndarray:
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((N_FEATURES, 2)))[0]
    Y = rng.standard_normal((ROWS, 2)) * [3.0, 1.5] @ U.T + rng.standard_normal((ROWS, N_FEATURES))
    return Y.T @ Y


def ppca(rank: int) -> pm.Model:
    C = second_moments()
    with pm.Model() as model:
        U = pst.StiefelUniform("U", n=N_FEATURES, p=rank)
        scale, noise = pm.HalfNormal("scale", 5, shape=rank), pm.HalfNormal("noise", 2)
        weight = scale**2 / (scale**2 + noise**2)
        quadratic = (np.trace(C) - pt.sum(weight * pt.sum(U * pt.dot(C, U), axis=0))) / noise**2
        log_det = pt.sum(pt.log(scale**2 + noise**2)) + (N_FEATURES - rank) * pt.log(noise**2)
        pm.Potential("rows", -0.5 * (quadratic + ROWS * (log_det + N_FEATURES * np.log(2 * np.pi))))
    return model


def measure(kernel, rank: int, particles: int, chains: int) -> tuple[float, float, float]:
    """Mean and standard deviation of the estimates, and seconds of a chain without compilation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"cores": 1, "progressbar": False, "compute_convergence_checks": False, "kernel": kernel}
        model = ppca(rank)
        times = []
        for count, seed in ((1, 1), (chains, 2)):  # the first compiles what is compiled once
            started = time.perf_counter()
            idata = pm.sample_smc(particles, model=model, chains=count, random_seed=seed, **options)
            times.append(time.perf_counter() - started)
    found = pst.log_marginal_likelihood(idata).chains
    return float(found.mean()), float(found.std(ddof=1)), times[1] / chains


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--particles", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    options = parser.parse_args()
    record: dict = {"machine": machine(), "particles": options.particles, "chains": options.chains, "ranks": {}}
    for rank in options.ranks:
        costs, rows = {}, record["ranks"].setdefault(rank, {})
        for name, kernel in (("ManifoldSMC", pst.ManifoldSMC), ("PyMC IMH", pm.smc.IMH), ("PyMC MH", pm.smc.MH)):
            mean, spread, seconds = measure(kernel, rank, options.particles, options.chains)
            costs[name] = spread**2 * seconds
            rows[name] = {"log_marginal": mean, "sd_of_a_chain": spread, "seconds_a_chain": seconds}
            print(f"rank {rank}, {name}: {mean:.2f}, sd of a chain {spread:.2f}, {seconds:.1f} s a chain", flush=True)
        ours = costs.pop("ManifoldSMC")
        rows["ratio"] = min(costs.values()) / ours
        print(f"rank {rank}: at equal error {rows['ratio']:.0f} times faster than the better of PyMC's")
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
