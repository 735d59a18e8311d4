"""Write docs/benchmarks.md from the JSON files beside this script: ``python benchmarks/report.py``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def ppca_table(record: dict) -> list[str]:
    """One line for each problem and sampler, medians over seeds with their range."""
    rows = record["rows"]
    lines = [
        "| problem n, scales | sampler | min ESS/s | min ESS | seconds | leapfrogs a draw | compile, s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        samplers = {}
        for row in rows:
            if row["problem"] == problem:
                samplers.setdefault(row["sampler"], []).append(row)
        speed = {
            name: np.median([row["min_ess_per_second"] for row in group]) for name, group in samplers.items()
        }
        best_peer = max(value for name, value in speed.items() if "nutpie" in name)
        for name, group in samplers.items():
            values = [row["min_ess_per_second"] for row in group]

            def median(key, group=group):
                return np.median([row[key] for row in group])

            lines.append(
                f"| {problem} | {name} | {median('min_ess_per_second'):.0f} ({min(values):.0f} to {max(values):.0f}) "
                f"| {median('min_ess'):.0f} | {median('seconds'):.2f} | {median('steps_per_draw'):.1f} "
                f"| {median('compile_seconds'):.1f} | {speed[name] / best_peer:.1f} |"
            )
    return lines


def leapfrog_table(record: dict) -> list[str]:
    lines = ["| n, p | splitting, us | Cayley, us | geodesic, us | geodesic / Cayley |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        cells = " | ".join(f"{1e6 * row[name]:.1f}" for name in ("splitting", "cayley", "geodesic"))
        lines.append(f"| {row['n']}, {row['p']} | {cells} | {row['geodesic'] / row['cayley']:.1f} |")
    return lines


def startup_section(record: dict) -> list[str]:
    return [
        "## Time to the first draw",
        "",
        "On the first problem, in a process of its own, from the model to the first draw (nutpie: to the compiled",
        "density). Cold means that nothing was in any cache: for StiefelNUTS that includes compiling the engine, which",
        "happens once after installation. Made by `python benchmarks/startup.py`.",
        "",
        "| | cold, s | warm, s |",
        "|---|---|---|",
        *(f"| {name} | {row['cold']:.1f} | {row['warm']:.1f} |" for name, row in record.items()),
        "",
    ]


def main() -> None:
    ppca = json.loads((HERE / "ppca.json").read_text())
    leapfrog = json.loads((HERE / "leapfrog.json").read_text())
    versions = ", ".join(f"{name} {number}" for name, number in ppca["versions"].items())
    seeds = len({row["seed"] for row in ppca["rows"]})
    worst = max(row["disagreement"] for row in ppca["rows"])
    whole = leapfrog["ppca"]
    lines = [
        "# Benchmarks",
        "",
        f"Made by `{ppca['command']}`, `python benchmarks/leapfrog.py` and `python benchmarks/report.py` on a machine",
        f"with {ppca['cores']} cores, one thread for each sampler; Python {ppca['python']}, {versions}.",
        "Timings are ratios within one run; on another machine all of them change.",
        "",
        "## Probabilistic PCA beside nutpie",
        "",
        f"Two chains of 1000 tuning and 1000 kept draws, medians (and range of the speed) over {seeds} seeds.",
        "Effective sizes are the smallest bulk ESS over all identified quantities. Seconds include warm-up and leave",
        "compilation out. The last column is the speed relative to the better of nutpie's two expansions. Posterior",
        f"means agree between samplers (largest |z| over all quantities, problems and seeds: {worst:.1f}).",
        "",
        *ppca_table(ppca),
        "",
        "In the last problem the weakest component is close to the noise: its scale makes rare excursions towards",
        "zero, where its column is free to turn, and the effective sizes of all samplers vary accordingly.",
        "",
        "## Cost of a leapfrog",
        "",
        f"On the first problem above a StiefelNUTS leapfrog costs {1e6 * whole['leapfrog']:.1f} us, of which the",
        f"compiled log density and gradient take {1e6 * whole['density']:.1f} us. For a density that costs nothing:",
        "",
        *leapfrog_table(leapfrog),
        "",
        "Splitting moves columns one after the other and does not profit from BLAS; from about ten columns on the",
        "Cayley drift is cheaper, and `step=pst.OrthogonalHMC()` worth a try.",
        "",
    ]
    if (HERE / "startup.json").exists():
        lines += startup_section(json.loads((HERE / "startup.json").read_text()))
    (HERE.parent / "docs" / "benchmarks.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
