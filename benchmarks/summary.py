"""From runs to a table: agreement first, then medians over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.agreement import verdicts
from benchmarks.problems import PROBLEMS
from benchmarks.samplers import OURS

PER_RUN = (
    *("seed", "draws", "compile", "warmup", "sampling", "warmup_gradients", "gradients", "divergences"),
    *("min_ess", "median_ess", "min_tail_ess", "median_tail_ess", "r_hat", "note"),
)


def summarise(records: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Problem -> sampler -> its runs, medians and verdict."""
    problems: dict[str, dict] = {}
    for problem in dict.fromkeys(record["problem"] for record in records):
        runs: dict[str, list[dict]] = {}
        failed: dict[str, str] = {}
        for record in records:
            if record["problem"] == problem:
                if "failed" in record:
                    failed[record["sampler"]] = record["failed"]
                else:
                    runs.setdefault(record["sampler"], []).append(record)
        exact = None
        if not problem.startswith("eigenmodel"):  # the only one whose data may be elsewhere, and it has no exact answer
            make = PROBLEMS[problem]().exact
            exact = make() if make else None
        judged = verdicts(runs, exact)
        problems[problem] = {
            name: judged[name] | _medians(group) | {"runs": [{key: run[key] for key in PER_RUN} for run in group]}
            for name, group in runs.items()
        } | {name: {"failed": reason, "disqualified": reason} for name, reason in failed.items() if name not in runs}
        _add_ratios(problems[problem])
    return {"command": command, "machine": records[0]["machine"] if records else {}, "problems": problems}


def with_earlier(results: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Add what only an earlier run has, marked as such: a sampler that takes hours need not run with every change."""
    for problem, table in earlier["problems"].items():
        rows = results["problems"].setdefault(problem, {})
        for name, row in table.items():
            rows.setdefault(name, row | {"earlier": True})
        _add_ratios(rows)
    return results


def _medians(runs: list[dict]) -> dict[str, float]:
    total = np.array([run["warmup"] + run["sampling"] for run in runs])
    sampling = np.array([run["sampling"] for run in runs])
    ess, tail = (np.array([run[key] for run in runs]) for key in ("min_ess", "min_tail_ess"))
    gradients = np.array([run["warmup_gradients"] + run["gradients"] for run in runs])
    speed = ess / total
    return {
        "speed": float(np.median(speed)),
        "slowest": float(speed.min()),
        "fastest": float(speed.max()),
        "tail_speed": float(np.median(tail / total)),
        "speed_without_warmup": float(np.median(ess / sampling)),
        "ess_per_gradient": float(np.median(ess / gradients)),
        "microseconds_per_gradient": float(np.median(1e6 * total / gradients)),
        "gradients_per_draw": float(np.median([run["gradients"] / (2 * run["draws"]) for run in runs])),
        "seconds": float(np.median(total)),
        "compile": runs[0]["compile"],
    }


def _add_ratios(table: dict[str, dict]) -> None:
    """Speed relative to the best peer of the same run that has not been disqualified."""
    peers = {name: row for name, row in table.items() if name not in OURS and not row["disqualified"]}
    best = max((row["speed"] for row in peers.values() if not row.get("earlier")), default=None)
    for row in table.values():
        row["ratio"] = row["speed"] / best if best and not row["disqualified"] else None
