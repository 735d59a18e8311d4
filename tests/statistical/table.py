"""Write docs/exactness.md from the scores of a session."""

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
    8: "The same posterior from several samplers",
    9: "Stochastic sampler",
    10: "Long runs",
}

OUTCOMES = {
    0: "all tests passed",
    1: "**some tests failed**",
    2: "**the run was interrupted; the tables show what was measured until then**",
}

HEAD = """# The exactness ladder: results

These tests check that the samplers draw from the right distribution. They are ordered in *rungs*, from simple to
complex. The tests write this page:

    python -m pytest tests/statistical -m statistical{option} --exactness-table=docs/exactness.md

Continuous integration runs a reduced version, `--ladder=quick`, with fewer draws and one of the three kernels per
target.

A *comparison* is the z-score of the mean of one statistic against its known value. Its standard error combines the
Monte Carlo error of the chain (by batch means) and, if the reference value is not exact, the error of that. For a
correct sampler the scores look standard normal. A test fails if its largest score exceeds the limit for its number of
comparisons: 4, or the two-sided normal quantile of 0.00001 / comparisons if that is larger. A *control* is a sampler
or density with a deliberate mistake; the same test must reject it. Rungs 1 to 3 (identities, structure of the flows,
distribution of the momentum) hold up to rounding errors and are in tests/engine and tests/geometry.

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
    lines += ["", "## Other measurements", "", "| rung | quantity | value |", "|---|---|---|"]
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
