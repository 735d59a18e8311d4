"""docs/exactness.md, written from a book of scores."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np

from tests.statistical.ladder import limit

RUNGS = {
    4: "Uniform target",
    5: "Known expectations",
    6: "Normalising constants, densities and draws",
    7: "Joint models: simulation-based calibration and Geweke's test",
    8: "The same posterior several ways",
    9: "Stochastic sampler",
    10: "Soak",
}

OUTCOMES = {
    0: "all tests passed",
    1: "**some tests failed**",
    2: "**the run was interrupted before its end; what it had measured by then is below**",
}

HEAD = """# The exactness ladder, as measured

This page is written by the tests themselves:

    python -m pytest tests/statistical -m statistical{option} --exactness-table=docs/exactness.md

A reduced form for continuous integration, with fewer draws and one of the three kernels a target, is
`--ladder=quick`.

A *comparison* is the mean of one statistic against its known value, as a z-score with the Monte Carlo error of the
chain (batch means) and of the reference where that is not exact. A right sampler gives scores that look standard
normal; a test fails where the largest of its scores exceeds the limit for its number of comparisons (4, or the
two-sided normal quantile of 0.00001 / comparisons where that is larger). A *control* is a wrong sampler or density kept
in the tests, which the same check must refuse. Rungs 1 to 3 (identities, structure of the flows, law of the
momentum) hold to rounding and are in tests/test_engine.py and tests/test_geometry.py.

{summary}
"""


def write_table(path, book, minutes, status):
    z = book.all_scores()
    lines = [HEAD.format(option="" if book.full else " --ladder=quick", summary=_summary(z, minutes, status))]
    lines += ["| rung | sampler | target | comparisons | largest |z| |", "|---|---|---|---|---|"]
    lines[-2] = lines[-2].replace("|z|", r"\|z\|")
    for (rung, sampler, target), scores in sorted(book.scores.items(), key=lambda item: item[0]):
        lines.append(f"| {rung} | {sampler} | {target} | {len(scores)} | {np.abs(scores).max():.2f} |")
    lines += [
        "",
        "## Controls",
        "",
        r"| rung | control | target | comparisons | caught at \|z\| |",
        "|---|---|---|---|---|",
    ]
    for rung, mutant, target, count, worst in sorted(book.controls):
        lines.append(f"| {rung} | {mutant} | {target} | {count} | {worst:.1f} |")
    lines += ["", "## Other measurements", "", "| rung | what | value |", "|---|---|---|"]
    lines += [f"| {rung} | {subject} | {value} |" for rung, subject, value in sorted(book.facts)]
    lines += ["", "Rungs: " + "; ".join(f"{k} {name}" for k, name in RUNGS.items()) + "."]
    path.write_text("\n".join(lines) + "\n")


def _summary(z, minutes, status):
    versions = ", ".join(f"{name} {version(name)}" for name in ("pymc", "pytensor", "numba", "numpy"))
    outcome = OUTCOMES.get(status, f"**the run ended with status {status}**")
    if z.size == 0:
        return f"No comparisons were made; {outcome}."
    return (
        f"This run: {z.size} comparisons, largest |z| = {np.abs(z).max():.2f} (limit for that number "
        f"{limit(z.size):.2f}), root mean square {np.sqrt(np.mean(z**2)):.3f}; {outcome}. "
        f"It took {minutes:.0f} minutes with Python {platform.python_version()}, {versions}."
    )
