"""Many chains on JAX against the compiled engine: ``python -m benchmarks.jax_chains``; results in jax_chains.json.

Everything is one run on one machine: the engine at its best, which is StiefelNUTS or OrthogonalHMC by ``pst.sample``
with 4 long chains in threads; ChEES and NUTS of ``pst.jax.sample``. A sampler of a problem is a process of its own. It
samples twice: the first call compiles, the second is timed. Seconds include tuning and starting points, not
compilation, which is reported twice: without and with JAX's cache on disk (tracing included). ESS is the smallest bulk
ESS over the identified quantities and over their squares. Whatever device JAX has is used; ``--chains`` is for
accelerators.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr

import pymc_stiefel as pst
from benchmarks.problems import PROBLEMS, Problem, entries
from benchmarks.report import replace_table
from pymc_stiefel.analysis._summaries import table as summary_table

RESULTS = Path(__file__).with_suffix(".json")


def langevin(n: int, p: int) -> Problem:
    """Matrix Langevin with unequal concentrations."""
    F = np.diag(np.linspace(1, 3, n))[:, :p]

    def build(expansion):
        with pm.Model() as model:
            pst.MatrixLangevin("X", F=F)
        return model

    return Problem(build, lambda draws: entries(draws["X"], 40))


CASES = {
    "langevin (5, 2)": partial(langevin, 5, 2),
    "uniform (10, 1)": PROBLEMS["uniform (10, 1)"],
    "ppca 30, [12, 4, 1.2]": PROBLEMS["ppca 30, [12, 4, 1.2]"],
    "ppca 30, [5, 3, 1.5]": PROBLEMS["ppca 30, [5, 3, 1.5]"],
    "ppca 100, [5, 3, 1.5]": PROBLEMS["ppca 100, [5, 3, 1.5]"],
}


ENGINE = {"StiefelNUTS": pst.StiefelNUTS, "OrthogonalHMC": pst.OrthogonalHMC}
DRAWS = {"langevin (5, 2)": 4000, "uniform (10, 1)": 4000}
"""Draws of ChEES where a draw costs microseconds; elsewhere, and with NUTS, there are 200."""


def measure(name: str, sampler: str, chains: int, draws: int, tune: int) -> dict:
    """ESS, seconds and gradients of one sampler on one problem."""
    problem = CASES[name]()
    model = problem.build("manifold")
    options = {"tune": tune, "chains": chains, "progressbar": False, "compute_convergence_checks": False}

    def run(seed):
        with model:
            if sampler in ENGINE:
                step = ENGINE[sampler]()
                return pst.sample(draws, step=step, cores=min(chains, os.cpu_count() or 1), random_seed=seed, **options)
            return pst.jax.sample(draws, algorithm=sampler, random_seed=seed, **options)

    start = time.perf_counter()
    cold = run(1)["posterior"].attrs.get("compile_time", 0.0)
    first = time.perf_counter() - start
    start = time.perf_counter()
    idata = run(2)
    wall = time.perf_counter() - start
    cached = idata["posterior"].attrs.get("compile_time", 0.0)
    quantities = problem.quantities({key: np.asarray(value) for key, value in idata["posterior"].data_vars.items()})
    both = np.concatenate([quantities, quantities**2], axis=-1)
    coords = {"quantity": np.arange(both.shape[-1])}
    table = summary_table(xr.DataArray(both, dims=("chain", "draw", "quantity"), coords=coords))
    stats = idata["sample_stats"]
    steps = np.asarray(stats["gradients"] if "gradients" in stats else stats["n_steps"])
    # in lockstep all chains wait for the longest trajectory
    lockstep = steps.sum() if sampler in ENGINE else chains * steps.max(axis=0).sum()
    ess = float(np.min(table["ess_bulk"]))
    return {
        "problem": name,
        "sampler": sampler,
        "chains": chains,
        "ess": ess,
        "ess_per_gradient": ess / float(lockstep),
        "ess_per_second": ess / (wall - cached),
        "first_call": first,
        "seconds": wall - cached,
        "compile": cold,
        "compile_cached": cached,
        "divergences": int(np.asarray(stats["diverging"]).sum()),
        "r_hat": float(np.max(table["r_hat"])),
        "means": table["mean"].tolist(),
        "errors": table["mcse_mean"].tolist(),
    }


def disagreement(one: dict, other: dict) -> float:
    """Largest distance of means in standard errors: to be looked at before any figure is believed."""
    gap = np.array(one["means"]) - np.array(other["means"])
    return float(np.max(np.abs(gap) / np.hypot(one["errors"], other["errors"])))


def write_page(page: Path) -> None:
    """Put a table of the record into a page."""
    rows = []
    for row in json.loads(RESULTS.read_text()):
        rows.append([row["problem"], row["sampler"], str(row["chains"]), f"{row['ess_per_gradient']:.3f}"])
        rows[-1] += [f"{row['ess_per_second']:.0f}", f"{row['times_engine']:.2f}"]
        rows[-1].append("" if row["sampler"] in ENGINE else f"{row['compile']:.0f} s, {row['compile_cached']:.1f} s")
    head = ("problem", "sampler", "chains", "ESS per gradient", "ESS per second", "times the engine")
    replace_table(page, "jax_chains.json", (*head, "compilation, from cache"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="*", default=list(CASES)[:3])
    parser.add_argument("--chains", type=int, default=512)
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--page", type=Path, help="write the table of the record into this page, without measuring")
    parser.add_argument("--worker", nargs=5)
    arguments = parser.parse_args()
    if arguments.worker:
        name, sampler, *numbers = arguments.worker
        print(json.dumps(measure(name, sampler, *map(int, numbers))))
        return
    if arguments.page:
        write_page(arguments.page)
        return
    found = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        for name in arguments.problems:
            for sampler in (*ENGINE, "chees", "nuts"):
                draws = DRAWS.get(name, 200) if sampler == "chees" else 200
                sizes = (4, 20_000, 1000) if sampler in ENGINE else (arguments.chains, draws, arguments.tune)
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.jax_chains", "--worker", name, sampler]
                done = subprocess.run([*command, *map(str, sizes)], env=environment, capture_output=True, text=True)
                if done.returncode:
                    print(f"{name}, {sampler}: failed\n{done.stderr[-2000:]}")
                    continue
                found.append(json.loads(done.stdout.splitlines()[-1]))
                gap = disagreement(found[-1], next(row for row in found if row["problem"] == name))
                row = found[-1]
                engine = [r["ess_per_second"] for r in found if r["problem"] == name and r["sampler"] in ENGINE]
                row |= {"largest_z": gap, "times_engine": row["ess_per_second"] / max(engine, default=float("nan"))}
                print(
                    f"{name:24} {sampler:13} {row['chains']:4} chains  ESS {row['ess']:8.0f}, "
                    f"{row['ess_per_gradient']:.3f} a gradient, {row['ess_per_second']:8.0f} a second "
                    f"({row['times_engine']:.2f} engine)  compile {row['compile']:.1f}, {row['compile_cached']:.1f} s  "
                    f"R-hat {row['r_hat']:.3f}  z {gap:.1f}",
                    flush=True,
                )
                kept = [{key: value for key, value in row.items() if key not in ("means", "errors")} for row in found]
                RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
