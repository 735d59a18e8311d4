"""One sampler on one problem, in a process of its own: a record for every seed that it is asked for."""

from __future__ import annotations

import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import arviz as az
import numpy as np

from benchmarks.problems import PROBLEMS, Problem
from benchmarks.runs import Run
from benchmarks.samplers import SAMPLERS


def diagnostics(x: np.ndarray) -> dict[str, Any]:
    """Effective sizes, R-hat, means and their errors of quantities (chain, draw, k), by ArviZ."""
    if len(x) == 1:  # R-hat wants two chains: the halves will do
        x = x.reshape(2, -1, x.shape[-1])
    data = az.convert_to_dataset({"x": x})
    bulk, tail = (az.ess(data, method=method)["x"].values for method in ("bulk", "tail"))
    return {
        "min_ess": float(bulk.min()),
        "median_ess": float(np.median(bulk)),
        "min_tail_ess": float(tail.min()),
        "median_tail_ess": float(np.median(tail)),
        "r_hat": float(az.rhat(data)["x"].values.max()),
        "means": [float(f"{value:.6g}") for value in x.mean((0, 1))],
        "errors": [float(f"{value:.3g}") for value in az.mcse(data, method="mean")["x"].values],
    }


def record_of(problem: Problem, run: Run) -> dict[str, Any]:
    x = problem.quantities(run.draws)
    costs = {key: value for key, value in vars(run).items() if key != "draws"}
    return costs | {"draws": x.shape[1], "note": problem.note(run.draws) if problem.note else ""} | diagnostics(x)


def work(connection: Connection, problem_name: str, sampler_name: str, draws: int | None, options: dict) -> None:
    """Answer every seed with a record, until the other side hangs up."""
    warnings.filterwarnings("ignore")
    try:
        problem = PROBLEMS[problem_name](**options)
        sampler = SAMPLERS[sampler_name](problem, draws or problem.draws)
        while True:
            seed = connection.recv()
            start = time.perf_counter()
            record = record_of(problem, sampler(seed))
            wall = time.perf_counter() - start - record["compile"]  # the next seed will not compile again
            connection.send({"seed": seed, "wall": wall} | record)
    except EOFError:
        pass  # no more seeds
    except Exception as error:  # reported in the table, and on the screen
        traceback.print_exc()
        connection.send({"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})
