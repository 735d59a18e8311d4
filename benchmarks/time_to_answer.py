"""Seconds from a model to 400 effective draws of everything identified: ``python -m benchmarks.time_to_answer``.

Every run is a process of its own, with compile caches as the run before has left them. The clock starts when the model
has been built and stops when the result is there: compilation, tuning, draws and the InferenceData count, imports do
not. Four chains, each sampler with its own length of tuning. A first run, not timed, fills the caches and tells how
many draws are needed; the time is that of the first run that has 400, of at most four. Samplers that disagree with the
others are marked. Results go to ``benchmarks/time_to_answer.json``, in place of earlier ones of the same problems and
number of cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import logging

import pymc as pm

import pymc_stiefel as pst
from benchmarks.agreement import verdicts
from benchmarks.everyday import EVERYDAY
from benchmarks.machine import machine
from benchmarks.problems import DATA, PROBLEMS, Problem

WANTED, CHAINS, FIRST_DRAWS, MOST_DRAWS, TRIES, MARGIN = 400, 4, 300, 100_000, 4, 1.15
CHOSEN = ("ppca", "eigenmodel", "svd")
KNOWN = {name: make for name, make in PROBLEMS.items() if name.startswith(CHOSEN)} | EVERYDAY
SAMPLERS = {
    "pst.sample": "manifold",
    "pm.sample, ours": "manifold",
    "nutpie, polar": "polar",
    "nutpie, QR": "qr",
    "PyMC NUTS, polar": "polar",
    "PyMC NUTS, QR": "qr",
}
"""Name -> how its model has orthonormal matrices."""
OURS = ("pst.sample", "pm.sample, ours")


def answer(sampler: str, problem: Problem, draws: int, cores: int, seed: int) -> tuple[Any, float]:
    """The result, and its seconds."""
    model = problem.build(SAMPLERS[sampler])
    common = {"chains": CHAINS, "cores": cores}
    quiet = {"progressbar": False, "compute_convergence_checks": False, "random_seed": seed} | common
    if sampler.startswith("nutpie"):
        import nutpie  # not on the clock
    start = time.perf_counter()
    with model:
        if sampler == "pst.sample":
            idata = pst.sample(draws, **quiet)
        elif sampler in OURS:
            idata = pm.sample(draws, **quiet)
        elif sampler.startswith("nutpie"):
            compiled = nutpie.compile_pymc_model(model, **({} if problem.jitter else {"jitter_rvs": set()}))
            idata = nutpie.sample(compiled, draws=draws, seed=seed, progress_bar=False, **common)
        else:
            init = "jitter+adapt_diag" if problem.jitter else "adapt_diag"
            idata = pm.sample(draws, nuts_sampler="pymc", init=init, compile_kwargs={"mode": "NUMBA"}, **quiet)
    return idata, time.perf_counter() - start


def run_one(name: str, sampler: str, draws: int, cores: int, seed: int, data: Path) -> dict[str, Any]:
    """One run in this process."""
    from benchmarks.worker import diagnostics  # imports ArviZ

    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem = KNOWN[name](**({"path": data} if name == "eigenmodel" else {}))
    idata, seconds = answer(sampler, problem, draws, cores, seed)
    found = {str(key): idata["posterior"][key].values for key in idata["posterior"].data_vars}
    return {"seconds": seconds, "draws": draws, **diagnostics(problem.quantities(found))}


def run_apart(options: argparse.Namespace, name: str, sampler: str, draws: int) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.time_to_answer", "--one", name, sampler, str(draws)]
    command += ["--cores", str(options.cores), "--seed", str(options.seed), "--data", str(options.data)]
    root = Path(__file__).parent.parent
    try:
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result in {options.limit:.0f} s"}
    if run.returncode:
        return {"failed": (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]}
    return json.loads(run.stdout.splitlines()[-1])


def measure(options: argparse.Namespace, name: str, sampler: str) -> dict[str, Any]:
    """The first run with enough effective draws, or why there is none."""
    draws = FIRST_DRAWS
    for attempt in range(TRIES + 1):
        record = run_apart(options, name, sampler, draws)
        if "failed" in record:
            return record
        if attempt and record["min_ess"] >= WANTED:
            return record
        factor = MARGIN * WANTED / max(record["min_ess"], 1.0)
        draws = int(min(max(draws * (max(factor, MARGIN) if attempt else factor), 100), MOST_DRAWS))
    return {"failed": f"{record['min_ess']:.0f} effective draws after {record['draws']} draws a chain"}


def earlier(path: Path) -> dict[str, Any]:
    """The record to add to: that on disk if it is of this machine and these versions, else an empty one."""
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("machine") != machine():
        record = {"machine": machine(), "cores": {}}
    return record


def ratio_of(row: dict[str, dict]) -> float | None:
    """How many times faster the better of ours is than the best of the others."""
    right = {key: each["seconds"] for key, each in row.items() if "seconds" in each and not each["disqualified"]}
    ours, others = ([right[key] for key in right if (key in OURS) == mine] for mine in (True, False))
    return min(others) / min(ours) if ours and others else None


def table(results: dict[str, dict[str, dict]]) -> list[str]:
    """A line for each problem: seconds, and the ratio."""
    lines = [f"| problem | {' | '.join(SAMPLERS)} | ratio |", "|---" * (len(SAMPLERS) + 2) + "|"]
    for name, row in results.items():
        found = ratio_of(row)
        ratio = "-" if found is None else f"{found:.1f}"
        cells = [
            f"{row[key]['seconds']:.1f}{'*' if row[key]['disqualified'] else ''}"
            if "seconds" in row.get(key, {})
            else "-"
            for key in SAMPLERS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    reasons = [
        f"{name}, {key}: {each.get('failed') or each['disqualified']}"
        for name, row in results.items()
        for key, each in row.items()
        if each.get("failed") or each.get("disqualified")
    ]
    if ratios := [ratio for row in results.values() if (ratio := ratio_of(row)) is not None]:
        lines.append(f"| **median** |{' |' * len(SAMPLERS)} {statistics.median(ratios):.1f} |")
    return [*lines, "", "`-`: no result; `*`: disagrees with the others.", "", *(f"- {text}" for text in reasons)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.time_to_answer", description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", metavar="NAME", help=f"beginnings of: {'; '.join(KNOWN)}")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS, metavar="NAME")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is stopped")
    parser.add_argument("--data", type=Path, default=DATA, help="where eigenmodel/hoff.dat is")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("time_to_answer.json"))
    parser.add_argument("--one", nargs=3, metavar=("PROBLEM", "SAMPLER", "DRAWS"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.one:
        name, sampler, draws = options.one
        print(json.dumps(run_one(name, sampler, int(draws), options.cores, options.seed, options.data)))
        return
    names = [n for n in KNOWN if not options.problems or any(n.startswith(given) for given in options.problems)]
    if not names:
        sys.exit(f"no problem begins with any of {options.problems}; there are: {'; '.join(KNOWN)}")
    record = earlier(options.output)
    results = record["cores"].setdefault(str(options.cores), {})
    for name in names:
        row = {}
        for sampler in options.samplers:
            row[sampler] = measure(options, name, sampler)
            shown = row[sampler].get("failed") or f"{row[sampler]['seconds']:.1f} s, {row[sampler]['draws']} draws"
            print(f"{name:30s} {sampler:18s} {shown}", flush=True)
        judged = verdicts({key: [each] for key, each in row.items() if "seconds" in each})
        results[name] = {key: each | judged.get(key, {"disqualified": ""}) for key, each in row.items()}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
