"""What chains as tasks cost beside ``pm.sample``: ``python -m benchmarks.cluster``.

- overhead: seconds per chain that are not draws, on one warm worker process, with and without a store, between the ends
  of two tasks; the same for ``pm.sample(chains=1)`` in a warm process, which the overhead is measured against;
- efficiency: time of one worker divided by that of two, on probabilistic PCA with long chains;
- memory: peak of the driver for 1000 chains of 1000 draws of a 30 x 3 matrix on two workers with a store (a process
  of its own, so that the peak is that of this run).

Ratios are taken within one run and repeated, since the machine may be busy. Results go to ``benchmarks/cluster.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pymc as pm
from joblib.externals.loky import get_reusable_executor

import pymc_stiefel as pst
from benchmarks.machine import machine
from benchmarks.problems import PROBLEMS

PCA = "ppca 30, [5, 3, 1.5]"
SILENT = {"progressbar": False, "compute_convergence_checks": False}

MEMORY = """
import json, os, sys, time
import arviz, joblib, numpy as np, pymc as pm, pymc_stiefel as pst, zarr
def megabytes(name):  # not getrusage: its peak is inherited from the process that started this one
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(name))
chains, draws, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
imported = megabytes("VmRSS")
with pm.Model():
    pst.MatrixLangevin("X", F=20 * np.eye(30, 3))
    begin = time.perf_counter()
    with joblib.parallel_config("loky", n_jobs=2):
        idata = pst.sample_chains(draws, tune=200, chains=chains, random_seed=1, store=store, progressbar=False)
seconds, peak = time.perf_counter() - begin, megabytes("VmHWM")
files = [os.path.join(root, name) for root, _, names in os.walk(store) for name in names]
print(json.dumps({
    "chains": chains,
    "draws": draws,
    "driver_peak_megabytes": peak,
    "driver_megabytes_after_imports": imported,
    "seconds": seconds,
    "store_megabytes": sum(map(os.path.getsize, files)) / 1e6,
    "files_per_chain": len(files) / chains,
    "shape": list(idata["posterior"]["X"].shape),
}))
"""


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


class Timed:
    """A pool of one worker process that notes when each task ends."""

    def __init__(self) -> None:
        self.pool, self.ends = get_reusable_executor(max_workers=1, timeout=600), []

    def submit(self, function, task):
        future = self.pool.submit(function, task)
        future.add_done_callback(lambda _: self.ends.append(time.perf_counter()))
        return future


def overhead(repeats: int, chains: int = 9) -> dict[str, float]:
    """Seconds per chain that are not draws. A worker is warm from its second task on: the first one compiles."""
    draws = tune = 200
    options = {"tune": tune, "random_seed": 1, "discard_tuned_samples": False} | SILENT
    found: dict[str, list[float]] = {"pm.sample(chains=1)": [], "task": [], "task with store": []}

    def drawn(idata) -> np.ndarray:
        groups = [idata["warmup_sample_stats"], idata["sample_stats"]]
        return sum(group["perf_counter_diff"].sum("draw").values for group in groups)

    def one() -> list[float]:
        begin = time.perf_counter()
        idata = pm.sample(draws, chains=1, cores=1, quiet=True, **options)
        return [time.perf_counter() - begin - drawn(idata)[0]]

    def tasks(**store) -> list[float]:
        executor = Timed()
        idata = pst.sample_chains(draws, chains=chains, executor=executor, **options, **store)
        return list(np.diff(executor.ends) - drawn(idata)[1:])

    with PROBLEMS[PCA]().build("manifold"), tempfile.TemporaryDirectory() as folder:
        one(), tasks()
        for i in range(repeats):
            found["pm.sample(chains=1)"] += one()
            found["task"] += tasks()
            found["task with store"] += tasks(store=f"{folder}/{i}")
    return {name: median(values) for name, values in found.items()}


def efficiency(repeats: int, draws: int) -> dict[str, float]:
    """Time of one worker process over that of two, for four chains; each repeat runs both."""
    ratios, loads = [], []
    taken = {}
    with PROBLEMS[PCA]().build("manifold"):

        def run(workers: int, draws: int) -> float:
            options = {"tune": 500, "chains": 4, "random_seed": 1, "executor": get_reusable_executor(workers)} | SILENT
            begin = time.perf_counter()
            pst.sample_chains(draws, **options)
            return time.perf_counter() - begin

        for _ in range(repeats):
            for workers in (1, 2):
                run(workers, 10)  # starts the processes, which load all they need
                taken[workers] = run(workers, draws)
            ratios.append(taken[1] / taken[2])
            loads.append(os.getloadavg()[0])
    return {"ratio": median(ratios), "best": max(ratios), "seconds_of_two": taken[2], "load_average": median(loads)}


def memory(chains: int, draws: int = 1000) -> dict:
    """Peak of the driver, and what it had when the packages were loaded."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(chains), str(draws), f"{folder}/draws.zarr"]
        run = subprocess.run(command, cwd=Path(__file__).parent.parent, check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def per_task(chains: int = 5000) -> dict[str, float]:
    """What the driver does for each chain before it is submitted, and the size of a task."""
    from pymc_stiefel.cluster._checks import pickled, versions
    from pymc_stiefel.cluster._plan import Job, prepare
    from pymc_stiefel.cluster._store import Store
    from pymc_stiefel.cluster._tasks import Task

    # a factory: no step is compiled, so that only the chains count
    job = Job(PROBLEMS[PCA]().build("manifold"), pst.StiefelNUTS, {}, 10, 10, {}, {})
    few, many = (min(seconds(lambda n=n: prepare(job, n, 1)) for _ in range(3)) for n in (2, 2 + chains))
    chain = prepare(job, 2, 1)[0]
    task = Task(pickled(chain), 0, None, "0" * 64, versions(), Store.at("draws.zarr"))
    return {"preparing_milliseconds": 1e3 * (many - few) / chains, "bytes": float(len(pickled(task)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("cluster.json"))
    parser.add_argument("--memory", action="store_true", help="measure the driver's memory only; print, write nothing")
    parser.add_argument("--chains", type=int, default=1000, help="of the measurement of memory")
    parser.add_argument("--draws", type=int, default=100_000, help="of the measurement of efficiency")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.chains), indent=1))
        return
    record: dict = {"machine": machine(), "load_average": os.getloadavg()[0]}
    for name, measure in {
        "per_task": per_task,
        "overhead": lambda: overhead(options.repeats),
        "efficiency": lambda: efficiency(options.repeats, options.draws),
        "memory": lambda: memory(options.chains),
    }.items():
        begin = time.perf_counter()
        record[name] = measure()
        print(f"{name} ({time.perf_counter() - begin:.0f} s):", json.dumps(record[name]), flush=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
