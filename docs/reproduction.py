"""Write docs/reproduction.md from the records in docs/results: ``python docs/reproduction.py``.

A record is what an example writes with ``--record docs``: a JSON file with the keys below, and its pictures in
docs/images. A title that begins with a number ("3. Orthogonal network") is an experiment of the paper, in its order.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
KEYS = {"title", "command", "seeds", "wall_seconds", "data", "rows", "pictures", "remarks"}
ROW_KEYS = {"quantity", "ours", "paper", "note"}

INTRODUCTION = """\
# Reproduction

Every experiment of V. Yanush and D. Kropotov, *Hamiltonian Monte-Carlo for Orthogonal Matrices* (2019),
arXiv:1901.08045, run with this package, and some beyond it. Our numbers stand beside the paper's; remarks say where and
why they differ. Each section was written by the command it names (without `--record docs` it only prints and
draws), and this page by `python docs/reproduction.py`. Wall times are those of one run on two cores that others kept
busy: for timings see [benchmarks.md](benchmarks.md).
"""


def read_record(path: Path) -> dict:
    """A record, or an error that says what is missing from which file."""
    record = json.loads(path.read_text())
    if missing := KEYS - set(record):
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing))}")
    for row in record["rows"]:
        if missing := ROW_KEYS - set(row):
            raise ValueError(f"{path.name} has a row without {', '.join(sorted(missing))}: {row}")
    return record


def number_of(record: dict) -> float:
    """Number of the paper's experiment; infinity for those beyond it."""
    found = re.match(r"(\d+)\. ", record["title"])
    return float(found.group(1)) if found else float("inf")


def table(rows: list[dict]) -> list[str]:
    """Columns that are empty throughout (no paper to compare with, no notes) are left out."""
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
    remarks = record["remarks"]
    for remark in [remarks] if isinstance(remarks, str) else remarks:
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
