"""Write docs/benchmarks.md and its picture from the JSON files beside this script: ``python -m benchmarks.report``."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np

from benchmarks import time_to_answer
from benchmarks.machine import sentence
from benchmarks.samplers import OURS
from pymc_stiefel.plots._figures import PALETTE

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
HEAD = (
    *("sampler", "min ESS/s", "tail", "after warm-up", "seconds", "gradients a draw", "µs a gradient"),
    *("ESS per 1000 gradients", "compile, s", "divergences", "seeds", "ratio"),
)

PEERS = """
Made by {command} and `python -m benchmarks.report` on {machine}; one thread for each sampler. Compare speeds within
one run only; another machine changes all of them.

All samplers have the same model, priors, data and number of draws, and run two chains one after the other. The speed
is the smallest bulk effective sample size (ArviZ) over the identified quantities of a problem, divided by the seconds
of warm-up and sampling. Tables show medians over seeds, with their range. Compilation is listed separately. Gradients
count every evaluation. Divergences are the mean number in a run: a sampler that has some missed part of the
posterior, and its effective draws are overestimated. The last column is the speed relative to the best other sampler.
A sampler is disqualified if its posterior means differ from those of the others (or from exact values, where known),
or if its chains have not converged.

Slow samplers run with fewer seeds. mici, the slowest, runs with 100 draws instead of 500 or 1000 (50 on the
eigenmodel, 20 on O(10) and O(30)). PyMC's NUTS and nutpie's low-rank metric run on the better of the two expansions.
All samplers use this package's derivative of the polar factor, and mici uses the compiled log density and gradient of
StiefelNUTS; both make them faster.
"""
EARLIER = """
† From an earlier run. The machine may have been slower or faster then, so these rows are approximate.
"""
SCALING = """
Made by `python -m benchmarks.scaling`. On the first probabilistic PCA a StiefelNUTS leapfrog costs {leapfrog} µs, of
which the compiled log density and gradient take {density} µs. Microseconds for a density that costs nothing:
"""
WHY_SPLIT = """
StiefelNUTS uses splitting for up to twelve columns nevertheless, unless the density is nearly flat, because it allows
masses for columns and pairs. The tables above show where these pay off: in probabilistic PCA, and in the most
concentrated of the Bingham-Langevin laws.
"""
PAPER = """
The mixture of sixteen matrix normals of Yanush & Kropotov (2019), with n = p = 2 and with n = 3, p = 2. The table has
the smallest and the median effective sample size over the coordinates of Q, R and QR, from {draws} draws after as
many warm-up draws, and the seconds for all of them; means over {seeds} seeds. The paper's numbers are for the square
case, on its machine, and its density lacks the Jacobian of the QR decomposition. HMC is PyMC's on the polar
expansion, with at most 32 leapfrogs. Made by `python -m benchmarks.paper_table`.
"""
PAPER_NUMBERS = {"HMC": ("20.3", "63.8", "13.9"), "gHMC": ("50.2", "80.4", "21.2"), "oHMC": ("103.8", "139.7", "14.7")}
STARTUP = """
CPU seconds and wall-clock seconds of processes that start with empty compile caches (cold) and with those that the same
process has left (warm). *sample* is a whole process with `pm.sample(draws=10, tune=10)`, imports included; *draw* is
the step method's first draw, from the finished model on (nutpie: the compiled density). Cold, this includes compiling
the engine, which happens once after installation. `import pymc_stiefel` adds {imported:.2f} CPU seconds to `import
pymc`. Made by `python -m benchmarks.startup`.
"""

ANSWER = """
Seconds from the finished model to a result with {wanted} effective draws of every identified quantity: compilation,
tuning and drawing, with the compile caches of a run before, imports not counted. Four chains, each sampler with its
own length of tuning; the number of draws is the first of at most four guesses that is enough. The ratio compares the
better of our two ways with the best of the others. Made by `python -m benchmarks.time_to_answer` on {machine}.
"""

LARGE = """
A leapfrog step of large matrices with a density that costs nothing. The attainable time is counted: no part of a step
takes less than its floating-point operations at the rate of a matrix product of size 1000, or the numbers that it reads
and writes at the rate of a sum of two such vectors, both measured just before. The last two columns are for the density
tr(F'X): gradients a draw, and CPU seconds an effective draw, tuning included. Made by `python -m benchmarks.large
--record` on {machine}.
"""


def wrapped(text: str) -> list[str]:
    """Paragraphs in lines of moderate length."""
    paragraphs = [textwrap.wrap(paragraph, 118, break_on_hyphens=False) for paragraph in text.strip().split("\n\n")]
    return [line for paragraph in paragraphs for line in (*paragraph, "")][:-1]


def number(value: float) -> str:
    """Three significant digits, without exponents."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rows_of(table: dict[str, dict]) -> list[list[str]]:
    """A row of cells for each sampler, the fastest first; those without a speed say why instead."""
    rows = []
    for sampler, row in sorted(table.items(), key=lambda item: -(item[1]["ratio"] or 0)):
        name = f"{sampler} †" if row.get("earlier") else sampler
        if row["disqualified"]:
            reason = row.get("failed") or f"disqualified: {row['disqualified']}"
            rows.append([name, reason, *[""] * (len(HEAD) - 2)])
            continue
        spread = f" ({number(row['slowest'])} to {number(row['fastest'])})" if len(row["runs"]) > 1 else ""
        speeds = [number(row["speed"]) + spread, number(row["tail_speed"]), number(row["speed_without_warmup"])]
        costs = [row["seconds"], row["gradients_per_draw"], row["microseconds_per_gradient"]]
        ratio = "" if row["ratio"] is None else number(row["ratio"])
        divergences = float(np.mean([run["divergences"] for run in row["runs"]]))
        rest = [1000 * row["ess_per_gradient"], row["compile"], divergences]
        rows.append([name, *speeds, *map(number, [*costs, *rest]), str(len(row["runs"])), ratio])
    return rows


def markdown(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", r"\|") for cell in cells] for cells in rows]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *escaped)]


def replace_table(page: Path, record: str, head: tuple[str, ...], rows: list[list[str]]) -> None:
    """Put a table of a record between its two marks in a page."""
    begin, end = f"<!-- figures of benchmarks/{record} -->", "<!-- end of figures -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text("\n".join([before + begin, *markdown(head, rows), end]) + after)


def best_ratios(results: dict) -> dict[str, float]:
    """Problem -> speed of StiefelNUTS, which ``pm.sample()`` picks, relative to the best peer."""
    ratios = {problem: table.get("StiefelNUTS", {}).get("ratio") for problem, table in results["problems"].items()}
    return {problem: ratio for problem, ratio in ratios.items() if ratio is not None}


def print_tables(results: dict) -> None:
    """The tables on the screen."""
    for problem, table in results["problems"].items():
        print(f"\n{problem}")
        rows = rows_of(table)
        widths = [max(len(row[k]) for row in (HEAD, *rows) if row[-2] or k != 1) for k in range(len(HEAD))]
        for row in (HEAD, *rows):
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    ratios = best_ratios(results)
    if ratios:
        median = number(float(np.median(list(ratios.values()))))
        print(f"\nStiefelNUTS relative to the best peer: {median} in the median over {len(ratios)} problems")


def draw_picture(results: dict, path: Path) -> None:
    """Speed of every sampler on every problem, relative to the best peer."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    problems = list(results["problems"])
    families = dict.fromkeys(name.split(",")[0] for table in results["problems"].values() for name in table)
    figure, axis = plt.subplots(figsize=(9, 0.42 * len(problems) + 1.6), layout="constrained")
    markers = dict(zip(families, "oDs^vPXd<>", strict=False))
    for family, color in zip(families, (*PALETTE, "0.55"), strict=False):
        points = [
            (row["ratio"], y)
            for y, problem in enumerate(problems)
            for name, row in results["problems"][problem].items()
            if name.split(",")[0] == family and row["ratio"] is not None
        ]
        if points:
            ours = family in OURS
            x, y = zip(*points, strict=True)
            axis.scatter(x, y, 60 if ours else 30, color, marker=markers[family], label=family,
                         zorder=3 if ours else 2, alpha=1 if ours else 0.6)  # fmt: skip
    axis.axvline(1, color="0.6", lw=1, zorder=1)
    axis.set(xscale="log", yticks=range(len(problems)), yticklabels=problems, ylim=(len(problems) - 0.5, -0.5))
    axis.set_xlabel("min ESS per second, warm-up included, relative to the best other sampler")
    axis.grid(axis="y", color="0.93", zorder=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def peers_section(results: dict) -> list[str]:
    ratios = best_ratios(results)
    made = PEERS.format(command=results["command"], machine=sentence(results["machine"]))
    lines = ["## Compared with other samplers", "", *wrapped(made), ""]
    if any(row.get("earlier") for table in results["problems"].values() for row in table.values()):
        lines += [*wrapped(EARLIER), ""]
    lines += ["![Speed of every sampler on every problem, relative to the best peer](images/benchmarks.png)", ""]
    if ratios:
        listed = [[problem, number(ratio)] for problem, ratio in ratios.items()]
        listed.append(["**median**", number(float(np.median(list(ratios.values()))))])
        lines += [*markdown(("problem", "StiefelNUTS, relative to the best peer"), listed), ""]
    for problem, table in results["problems"].items():
        lines += [f"### {problem}", "", *markdown(HEAD, rows_of(table)), ""]
        notes = {name: [run["note"] for run in row.get("runs", []) if run["note"]] for name, row in table.items()}
        if any(notes.values()):
            lines += ["In each run (the values of the two chains):", ""]
            lines += [*(f"- {name}: {'; '.join(dict.fromkeys(found))}" for name, found in notes.items() if found), ""]
    return lines


def scaling_section(record: dict) -> list[str]:
    drifts = ("splitting", "cayley", "geodesic")
    cells = [
        [f"{row['n']}, {row['p']}", *(number(1e6 * row[d]) if d in row else "" for d in drifts)]
        for row in record["shapes"]
        if row["p"] in (1, 3, 10, 30, 100, 300) and row["n"] in (10, 100, 1000, 10_000)
    ]
    memory = [
        [f"{row['n']}, {row['p']}", number(row["bytes"] / 2**20), number(row["matrices"])] for row in record["memory"]
    ]
    leapfrog, density = (number(1e6 * record["ppca"][key]) for key in ("leapfrog", "density"))
    crossings = ", ".join(f"{p if p is not None else 'never'} (n = {n})" for n, p in record["crossover"].items())
    ratios = ", ".join(f"{row['ratio']:.1f} at ({row['n']}, {row['p']})" for row in record["geodesic_over_cayley"])
    return [
        "## Cost of a leapfrog",
        "",
        *wrapped(SCALING.format(leapfrog=leapfrog, density=density)),
        "",
        *markdown(("n, p", "splitting", "Cayley", "geodesic"), cells),
        "",
        *wrapped(f"The Cayley drift is cheaper than splitting from this p on: {crossings}. {WHY_SPLIT.strip()}"),
        "",
        *wrapped(f"A geodesic leapfrog costs, measured in turns with a Cayley leapfrog, {ratios} times as much."),
        "",
        "![Cost of a leapfrog against columns, matrices and data](images/scaling.png)",
        "",
        "Memory of a no-U-turn chain, in addition to that of the loaded program:",
        "",
        *markdown(("n, p", "MB", "in matrices of this size"), memory),
        "",
    ]


def paper_section(record: dict) -> list[str]:
    head = ["sampler"]
    for source in ("n = 2", "n = 3", "paper"):
        head += [f"{source}: min", "median", "seconds"]
    rows = []
    for name in record["2"]:
        cells = [name]
        for n in ("2", "3"):
            row = record[n][name]
            keys = ("min_ess", "median_ess", "seconds")
            cells += [row["disqualified"], "", ""] if row["disqualified"] else [number(row[key]) for key in keys]
        rows.append([*cells, *PAPER_NUMBERS.get(name, ("", "", ""))])
    return [
        "## The paper's mixture",
        "",
        *wrapped(PAPER.format(**record["settings"])),
        "",
        *markdown(tuple(head), rows),
        "",
    ]


def startup_section(record: dict) -> list[str]:
    rows = [
        [name, *(f"{row[kind][clock]:.1f}" for kind in ("cold", "warm") for clock in ("cpu", "wall"))]
        for name, row in record.items()
        if name != "import"
    ]
    return [
        "## Time to the first draw",
        "",
        *wrapped(STARTUP.format(imported=record["import"]["cpu"])),
        "",
        *markdown(("model", "cold, CPU s", "cold, wall s", "warm, CPU s", "warm, wall s"), rows),
        "",
    ]


def answer_section(record: dict) -> list[str]:
    lines = ["## Time to an answer", ""]
    lines += [*wrapped(ANSWER.format(wanted=time_to_answer.WANTED, machine=sentence(record["machine"]))), ""]
    for cores, results in sorted(record["cores"].items(), reverse=True):
        lines += [f"### {'One core' if cores == '1' else f'{cores} cores'}", "", *time_to_answer.table(results), ""]
    return lines


def large_section(record: dict) -> list[str]:
    head = ("matrix", "drift", "step, ms", "attainable, ms", "share", "Gflop/s", "of", "GB/s", "of")
    rows = []
    for row in record["shapes"]:
        rates = [row[key] for key in ("gflops", "largest gflops", "gbytes", "largest gbytes")]
        cells = [
            f"{row['n']} x {row['p']}",
            row["drift"],
            number(1e3 * row["seconds"]),
            number(1e3 * row["attainable"]),
        ]
        cells += [f"{row['share']:.0%}", *(number(rate) for rate in rates)]
        rows.append([*cells, number(row["gradients a draw"]), number(row["seconds per effective draw"])])
    return [
        "## Large matrices",
        "",
        *wrapped(LARGE.format(machine=sentence(record["machine"]))),
        "",
        *markdown((*head, "gradients a draw", "s an effective draw"), rows),
        "",
    ]


def main() -> None:
    lines = ["# Benchmarks", ""]
    sections = {
        "results": peers_section,
        "time_to_answer": answer_section,
        "paper_table": paper_section,
        "scaling": scaling_section,
        "large": large_section,
        "startup": startup_section,
    }
    for name, section in sections.items():
        path = HERE / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            lines += section(record)
            if name == "results":
                draw_picture(record, DOCS / "images" / "benchmarks.png")
        else:
            print(f"no {path.name}: its section is left out")
    (DOCS / "benchmarks.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
