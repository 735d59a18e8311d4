"""StiefelNUTS beside nutpie on probabilistic PCA: ``python benchmarks/ppca.py [--quick] [--seeds 5]``.

Same model, priors, chains and draws, one thread each. Effective sample sizes are bulk ESS of identified quantities
(entries of U with the sign of each column aligned, ordered scales, noise). Times include warm-up and leave compilation
out. Every speed is printed with the largest |z| between its posterior means and those of StiefelNUTS. Results go to
``benchmarks/ppca.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import arviz as az
import numpy as np
import nutpie
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, log, ordered

import pymc_stiefel as pst

PROBLEMS = {
    "30, [5, 3, 1.5]": (30, 200, (1.5, 3.0, 5.0)),
    "30, [12, 4, 1.2]": (30, 200, (1.2, 4.0, 12.0)),
    "100, [5, 3, 1.5]": (100, 100, (1.5, 3.0, 5.0)),
}


def simulate(n: int, N: int, scales: tuple[float, ...], seed: int) -> np.ndarray:
    """The sufficient statistic Y'Y of N observations."""
    rng = np.random.default_rng(seed)
    U = pst.geometry.polar(rng.standard_normal((n, len(scales))))
    Y = rng.standard_normal((N, len(scales))) * np.array(scales) @ U.T + rng.standard_normal((N, n))
    return Y.T @ Y


def build(gram: np.ndarray, N: int, p: int, expansion: str | None) -> pm.Model:
    """The model; ``expansion="qr"`` writes U as the Q factor of a Gaussian matrix, as a user without this package."""
    n = len(gram)
    with pm.Model() as model:
        if expansion == "qr":
            Q, R = pt.linalg.qr(pm.Normal("Z", shape=(n, p)), mode="reduced")
            U = pm.Deterministic("U", Q * pt.sign(pt.diag(R)))
        else:
            U = pst.StiefelUniform("U", n=n, p=p)
        scale = pm.HalfNormal(
            "scale", 5, shape=p, default_transform=Chain([log, ordered]), initval=np.arange(1, p + 1.0)
        )
        noise = pm.HalfNormal("noise", 2)
        shrink = scale**2 / (scale**2 + noise**2)
        quadratic = (np.trace(gram) - pt.sum(shrink * pt.sum(U * (pt.constant(gram) @ U), axis=0))) / noise**2
        log_det = pt.sum(pt.log(scale**2 + noise**2)) + (n - p) * pt.log(noise**2)
        pm.Potential("likelihood", -0.5 * (N * log_det + quadratic))
    return model


def quantities(idata) -> np.ndarray:
    """Identified quantities, (chain, draw, k)."""
    posterior = idata["posterior"]
    U = pst.align(posterior["U"], method="sign").values
    return np.concatenate(
        [U.reshape(*U.shape[:2], -1), posterior["scale"].values, posterior["noise"].values[..., None]], axis=-1
    )


def effective_sizes(x: np.ndarray, method: str) -> np.ndarray:
    return az.ess(az.convert_to_dataset({"x": x}), method=method)["x"].values


def timed(function):
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def run_ours(gram, N, p, draws, tune, seed):
    model = build(gram, N, p, None)
    with model:
        step, compile_time = timed(pst.StiefelNUTS)
        idata, total = timed(
            lambda: pm.sample(
                draws,
                tune=tune,
                chains=2,
                cores=1,
                step=step,
                random_seed=seed,
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
            )
        )
    # the rest of the call compiles PyMC's functions for starting points and traces
    seconds = float(idata["posterior"].attrs["sampling_time"])
    return idata, seconds, compile_time + total - seconds, idata["sample_stats"]["n_steps"].values.mean()


def run_nutpie(gram, N, p, draws, tune, seed, expansion):
    model = build(gram, N, p, expansion)
    compiled, compile_time = timed(lambda: nutpie.compile_pymc_model(model))
    idata, seconds = timed(
        lambda: nutpie.sample(compiled, draws=draws, tune=tune, chains=2, cores=1, seed=seed, progress_bar=False)
    )
    return idata, seconds, compile_time, idata["sample_stats"]["n_steps"].values.mean()


SAMPLERS = {
    "StiefelNUTS": run_ours,
    "nutpie, polar": lambda *arguments: run_nutpie(*arguments, "polar"),
    "nutpie, QR": lambda *arguments: run_nutpie(*arguments, "qr"),
}


def disagreement(one: np.ndarray, two: np.ndarray) -> float:
    """Largest |z| of the difference of means."""

    def error(x):
        return az.mcse(az.convert_to_dataset({"x": x}), method="mean")["x"].values

    gap = one.mean((0, 1)) - two.mean((0, 1))
    return float(np.abs(gap / np.hypot(error(one), error(two))).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed and 200 draws: a smoke test")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("ppca.json"))
    options = parser.parse_args()
    draws, seeds = (200, 1) if options.quick else (1000, options.seeds)
    rows = []
    for problem, (n, N, scales) in PROBLEMS.items():
        gram = simulate(n, N, scales, seed=1)
        for seed in range(seeds):
            reference = None
            for name, sampler in SAMPLERS.items():
                idata, seconds, compile_time, steps = sampler(gram, N, len(scales), draws, draws, seed)
                x = quantities(idata)
                if reference is None:
                    reference = x
                bulk = effective_sizes(x, "bulk")
                rows.append(
                    {
                        "problem": problem,
                        "sampler": name,
                        "seed": seed,
                        "seconds": seconds,
                        "compile_seconds": compile_time,
                        "steps_per_draw": float(steps),
                        "min_ess": float(bulk.min()),
                        "median_ess": float(np.median(bulk)),
                        "min_tail_ess": float(effective_sizes(x, "tail").min()),
                        "min_ess_per_second": float(bulk.min() / seconds),
                        "disagreement": disagreement(reference, x),
                    }
                )
                row = rows[-1]
                print(
                    f"{problem:18s} {name:14s} seed {seed}: min ESS/s {row['min_ess_per_second']:8.0f}  "
                    f"min ESS {row['min_ess']:6.0f}  {seconds:6.2f} s  {steps:5.1f} steps/draw  "
                    f"compile {compile_time:5.1f} s  |z| {row['disagreement']:.1f}",
                    flush=True,
                )
    summarise(rows)
    if not options.quick:
        packages = ("pymc", "pytensor", "nutpie", "numba", "numpy")
        record = {
            "rows": rows,
            "versions": {name: version(name) for name in packages},
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "command": f"python benchmarks/ppca.py --seeds {seeds}",
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


def summarise(rows: list[dict]) -> None:
    """Medians over seeds and the ratio to the better of nutpie's expansions."""
    print("\nratio of min ESS/s to the better of nutpie's expansions, median over seeds:")
    for problem in PROBLEMS:
        speed = {
            name: np.median(
                [row["min_ess_per_second"] for row in rows if (row["problem"], row["sampler"]) == (problem, name)]
            )
            for name in SAMPLERS
        }
        ours = speed.pop("StiefelNUTS")
        print(f"  {problem:18s} {ours / max(speed.values()):5.1f}  ({ours:.0f} against {max(speed.values()):.0f})")


if __name__ == "__main__":
    main()
