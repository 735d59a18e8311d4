"""Write docs/reproduction.md from the records in docs/results: ``python docs/reproduction.py``.

An example writes its record with ``--record docs``: a JSON file with the keys below, and its pictures in docs/images.
Remarks come from the constant ``REMARKS`` of the script, so that they can be reworded without a new run.
A title that begins with a number ("3. Orthogonal network") is an experiment of the paper; these come first, in the
paper's order.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
KEYS = {"title", "command", "seeds", "wall_seconds", "data", "rows", "pictures", "remarks"}
ROW_KEYS = {"quantity", "ours", "paper", "note"}

INTRODUCTION = """\
# Reproduction

This page repeats every experiment of V. Yanush and D. Kropotov, *Hamiltonian Monte-Carlo for Orthogonal Matrices*
(2019), arXiv:1901.08045, with this package, and adds some of our own. It shows our numbers next to the paper's; remarks
say where and why they differ. Each section names the command that wrote it. Without `--record docs` the command prints
its results and saves the picture, but does not record them. `python docs/reproduction.py` writes this page. Wall times
are from one run on two busy cores; for reliable timings see [Benchmarks](benchmarks.md).
"""


def read_record(path: Path) -> dict:
    """Read a record. The error of an incomplete one names the file and the missing keys."""
    record = json.loads(path.read_text())
    if missing := KEYS - set(record):
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing))}")
    for row in record["rows"]:
        if missing := ROW_KEYS - set(row):
            raise ValueError(f"{path.name} has a row without {', '.join(sorted(missing))}: {row}")
    return record


def remarks_of(record: dict) -> list[str]:
    """Remarks of the script that made the record; those in the record if the script is not in this repository."""
    script = HERE.parent / record["command"].split()[1]
    for statement in ast.parse(script.read_text()).body if script.exists() else []:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "REMARKS":
            return list(ast.literal_eval(statement.value))
    return [record["remarks"]] if isinstance(record["remarks"], str) else record["remarks"]


def number_of(record: dict) -> float:
    """Number of the experiment in the paper; infinity if it is not from the paper."""
    found = re.match(r"(\d+)\. ", record["title"])
    return float(found.group(1)) if found else float("inf")


def table(rows: list[dict]) -> list[str]:
    """A Markdown table of the rows, without columns that are empty throughout."""
    columns = [key for key in ("quantity", "ours", "paper", "note") if any(str(row[key] or "") for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [str(row[key] if row[key] is not None else "").replace("|", "\\|") for key in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def section(record: dict, images: Path) -> list[str]:
    seeds = record["seeds"]
    seeds = ", ".join(map(str, seeds)) if isinstance(seeds, list) else str(seeds)
    lines = [
        f"## {record['title']}" if number_of(record) < float("inf") else f"### {record['title']}",
        "",
        f"`{record['command']}`  ",
        f"Seeds: {seeds}. Wall time: {float(record['wall_seconds']):.0f} s. Data: {record['data']}",
        "",
        *table(record["rows"]),
        "",
    ]
    for picture in record["pictures"]:
        name = Path(picture).name
        if not (images / name).exists():
            raise FileNotFoundError(f"{record['title']} shows {name}, which is not in {images}")
        lines += [f"![{record['title']}](images/{name})", ""]
    for remark in remarks_of(record):
        lines += [remark, ""]
    return lines


def page(records: list[dict], images: Path) -> str:
    records = sorted(records, key=lambda record: (number_of(record), record["title"]))
    lines = [INTRODUCTION]
    beyond = False
    for record in records:
        if number_of(record) == float("inf") and not beyond:
            beyond = True
            lines += ["## Beyond the paper", ""]
        lines += section(record, images)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    records = [read_record(path) for path in sorted((HERE / "results").glob("*.json"))]
    (HERE / "reproduction.md").write_text(page(records, HERE / "images"))


if __name__ == "__main__":
    main()
