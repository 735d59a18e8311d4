"""The tables of Yanush & Kropotov (2019) on the 16-mode mixture: ``python -m benchmarks.paper_table``.

One chain of 10 000 draws after as many of burn-in. Trajectories of the paper's three methods have a fixed length; its
HMC is PyMC's on the polar expansion, with at most 32 leapfrogs. Results go to ``benchmarks/paper_table.json``.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")

import argparse
import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_stiefel as pst
from benchmarks.agreement import verdicts
from benchmarks.problems import mixture
from benchmarks.samplers import PyMC
from benchmarks.worker import diagnostics

LENGTH, MOST_STEPS = 2.0, 32
NUMBA = {"compile_kwargs": {"mode": "NUMBA"}}
METHODS = {
    "HMC": ("polar", partial(pm.HamiltonianMC, path_length=LENGTH, max_steps=MOST_STEPS, **NUMBA)),
    "gHMC": ("manifold", partial(pst.GeodesicHMC, path_length=LENGTH, reflect=True)),
    "oHMC": ("manifold", partial(pst.OrthogonalHMC, path_length=LENGTH, reflect=True)),
    "StiefelNUTS": ("manifold", partial(pst.StiefelNUTS, reflect=True)),
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.paper_table", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("paper_table.json"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    record: dict[str, dict] = {}
    for n in (2, 3):
        problem = mixture(n)
        runs: dict[str, list[dict]] = {}
        for name, (expansion, step) in METHODS.items():
            sampler = PyMC(problem, options.draws, expansion, step, chains=1)
            for seed in range(options.seeds):
                run = sampler(seed)
                found = diagnostics(problem.quantities(run.draws)) | {"seconds": run.warmup + run.sampling}
                found["draws"] = options.draws
                runs.setdefault(name, []).append(found)
                print(
                    f"n = {n} {name:12s} seed {seed}: {found['seconds']:.1f} s, min ESS {found['min_ess']:.0f}",
                    flush=True,
                )
        judged = verdicts(runs, problem.exact() if problem.exact else None)
        record[str(n)] = {
            name: {key: float(np.mean([run[key] for run in group])) for key in ("min_ess", "median_ess", "seconds")}
            | judged[name]
            for name, group in runs.items()
        }
    record["settings"] = {"seeds": options.seeds, "draws": options.draws}
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
