"""How much of their effective draws chains keep with a short tuning: ``python -m benchmarks.short_tuning --record``.

For each problem, effective draws per draw with a short and a long tuning phase, over several seeds, and effective
draws per 1000 gradients and gradients per draw after the long one. With ``--label`` and an earlier version of the
package on the path the same is recorded for that version. Gradients, unlike times, do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import pymc_stiefel as pst
from benchmarks import everyday
from benchmarks.machine import machine
from benchmarks.problems import PROBLEMS, Problem, svd

RECORD = Path(__file__).with_name("short_tuning.json")
LONG = 1000
SELECTED: dict[str, tuple[Callable[[], Problem], int, int]] = {  # with a short tuning, and draws
    "ppca 30, [5, 3, 1.5]": (PROBLEMS["ppca 30, [5, 3, 1.5]"], 200, 1000),
    "ppca 30, [12, 4, 1.2]": (PROBLEMS["ppca 30, [12, 4, 1.2]"], 200, 1000),
    "ppca 100, [5, 3, 1.5]": (partial(PROBLEMS["ppca 100, [5, 3, 1.5]"], draws=1000), 200, 1000),
    "eigenmodel": (PROBLEMS["eigenmodel"], 200, 300),
    "svd (40, 30), rank 3": (partial(svd, 40, 30, (10.0, 20.0, 30.0)), 200, 1000),
    "mixture of 5 directions": (everyday.directions, 200, 1000),
    "rotation, 50 directions": (everyday.rotation, 200, 1000),
    "hierarchy of 20 matrices": (everyday.hierarchy, 500, 1000),
}


def run(problem: Problem, model: pm.Model, draws: int, tune: int, chains: int, seed: int) -> tuple[float, int]:
    """Least effective draws, and gradients after tuning."""
    with warnings.catch_warnings(), model:
        warnings.simplefilter("ignore")
        idata = pm.sample(
            draws, tune=tune, chains=chains, cores=1, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, step=pst.StiefelNUTS(),
        )  # fmt: skip
    found = {str(name): values.values for name, values in idata["posterior"].items()}
    ess = az.ess(az.convert_to_dataset({"x": problem.quantities(found)}))["x"].values.min()
    return float(ess), int(idata["sample_stats"]["gradients"].sum())


def compare(make: Callable[[], Problem], short: int, draws: int, chains: int, seeds: int) -> dict[str, float]:
    """Medians over the seeds."""
    problem = make()
    model, kept, each, cost = problem.build("manifold"), {short: [], LONG: []}, [], []
    for seed in range(1, seeds + 1):
        for tune, shares in kept.items():
            ess, gradients = run(problem, model, draws, tune, chains, seed)
            shares.append(ess / (draws * chains))
        each.append(1000 * ess / gradients)  # of the long one, which comes last
        cost.append(gradients / (draws * chains))
    at_short, at_long = (float(np.median(shares)) for shares in kept.values())
    return {
        "short": short,
        "ess per draw, short": at_short,
        "ess per draw, long": at_long,
        "kept": at_short / at_long,
        "ess per 1000 gradients": float(np.median(each)),
        "gradients per draw": float(np.median(cost)),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.short_tuning", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"beginnings of: {'; '.join(SELECTED)}")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--label", default="now", help="of the version of the package")
    parser.add_argument("--record", action="store_true", help=f"write to {RECORD.name}")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name, (make, short, draws) in SELECTED.items():
        if options.names and not any(name.startswith(given) for given in options.names):
            continue
        row = compare(make, short, draws, options.chains, options.seeds)
        print(f"{options.label}, {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()), flush=True)
        record.setdefault(options.label, {})[name] = row | {"chains": options.chains, "seeds": options.seeds}
        if options.record:
            RECORD.write_text(json.dumps(record | {"machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
