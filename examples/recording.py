"""Shared by the examples: command-line options, and the record from which docs/reproduction.py makes a page.

``python examples/recording.py docs recurrent`` draws the picture of a recorded example again, without a new run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

_started = time.perf_counter()
# The colours of Okabe and Ito, which colour-blind readers can tell apart: C0 is blue, C1 vermillion, C2 green, C3 pink
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
matplotlib.rcParams["axes.prop_cycle"] = cycler(color=PALETTE)


def options_of(doc: str, output: str, *, data: str | None = None) -> argparse.ArgumentParser:
    """The options that all examples have; ``data`` is the help text of ``--data``, for examples that read data."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run, for a test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(output), help="where to save the picture")
    parser.add_argument("--record", type=Path, help="a folder whose results/ and images/ get a record of this run")
    if data is not None:
        parser.add_argument("--data", type=Path, help=data)
    return parser


def row(quantity: str, ours: Any, paper: Any = "", note: str = "") -> dict[str, str]:
    """One line of the table: our number and the paper's."""
    return {"quantity": quantity, "ours": str(ours), "paper": str(paper), "note": note}


def finish(
    options: argparse.Namespace,
    figure: Figure,
    *,
    title: str,
    data: str,
    rows: list[dict],
    remarks: list[str],
    seeds: list[int] | None = None,
    seconds: float | None = None,
    drawn: dict[str, Any] | None = None,
) -> None:
    """Print the table, save the picture and, with ``--record``, the record.

    ``seeds`` is for examples with several seeds, ``seconds`` for examples that resume from checkpoints, ``drawn`` for
    the arguments of the example's function ``picture``, so that :func:`redraw` needs no new run.
    """
    for line in rows:
        beside = f"   paper: {line['paper']}" if line["paper"] else ""
        print(f"{line['quantity']}: {line['ours']}{beside}" + (f"   ({line['note']})" if line["note"] else ""))
    figure.savefig(options.output, dpi=150, bbox_inches="tight")
    print(f"picture: {options.output}")
    if options.record is None:
        return
    name = Path(sys.argv[0]).stem
    _save(figure, options.record, name)
    record = {
        "title": title,
        "command": _command(options),
        "seeds": [options.seed] if seeds is None else seeds,
        "wall_seconds": round(time.perf_counter() - _started if seconds is None else seconds, 1),
        "data": data,
        "rows": rows,
        "pictures": [f"docs/images/{name}.png"],
        "remarks": remarks,
    }
    record |= {"drawn": drawn} if drawn else {}
    results = options.record / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def redraw(folder: Path, name: str) -> None:
    """Draw the picture of a recorded example again, by its function ``picture``."""
    drawn = json.loads((folder / "results" / f"{name}.json").read_text()).get("drawn", {})
    _save(importlib.import_module(name).picture(**drawn), folder, name)


def _save(figure: Figure, folder: Path, name: str) -> None:
    path = folder / "images" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _command(options: argparse.Namespace) -> str:
    """The command of this run, without private places: of the data only the folder's name, and no other folders."""
    words = ["python", f"examples/{Path(sys.argv[0]).name}"]
    for name, value in vars(options).items():
        flag = "--" + name.replace("_", "-")
        if name == "data" and value is not None:
            words += [flag, value.name]
        elif value is True:
            words.append(flag)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            words += [flag, str(value)]
    return shlex.join([*words, "--record", "docs"])


if __name__ == "__main__":
    for example in sys.argv[2:]:
        redraw(Path(sys.argv[1]), example)
