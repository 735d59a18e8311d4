"""Execute the scripts of docs/gallery and record them: ``python docs/run_gallery.py docs/gallery/*.py``.

A script is a notebook in jupytext's percent format. What is recorded beside it is the notebook with its outputs, which
the site shows, and in docs/images/gallery its last picture as a thumbnail. Nothing is written if a cell fails. The
tests run the same scripts with fewer draws and compare their cells with the record, so that no record is out of date.
``--text`` copies changed prose and comments into the record, and removes noise from its outputs, without running
anything; it refuses if code has changed.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
THUMBNAILS = DOCS / "images" / "gallery"
THUMBNAIL = (400, 220)  # pixels; the same for all, so that cards line up
LARGEST = 250_000  # bytes of a notebook; every clone of the repository carries them all
TIME = re.compile(r" took \d+ seconds?")  # of pm.sample: it would change with each record
STYLE = """
figure.dpi: 90
font.size: 10
axes.prop_cycle: cycler(color=["0072B2", "D55E00", "009E73", "CC79A7", "E69F00", "56B4E9", "000000"])
"""  # colours of Okabe and Ito, which colour-blind readers can tell apart


def read(path: Path) -> Any:
    """The script as a notebook without outputs."""
    import jupytext

    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # a random one would change with each record
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def run(path: Path, namespace: dict[str, Any]) -> None:
    """Execute the code of a script in this process, as the tests do: Markdown cells are comments."""
    exec(compile(path.read_text(), str(path), "exec"), namespace)


def is_noise(output: Any) -> bool:
    """Whether an output is a progress bar, tqdm's warning about it, or the name of an object with its address."""
    data = output.get("data", {})
    widget = "application/vnd.jupyter.widget-view+json" in data
    bar = output.output_type == "display_data" and data.get("text/html", "").startswith("<pre style=")
    address = set(data) == {"text/plain"} and re.search(r" at 0x[0-9a-f]+>", data["text/plain"])
    warning = re.fullmatch(r"\S+: TqdmWarning: .*\n.*\n", output.get("text", ""))
    return bool(widget or bar or address or warning)


def execute(notebook: Any, directory: Path) -> None:
    """Run all cells in a kernel of this Python; raises ``CellExecutionError`` if one fails."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as settings:
        style = Path(settings) / "matplotlibrc"
        style.write_text(STYLE)
        environment = {**os.environ, "MATPLOTLIBRC": str(style), "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("MPLBACKEND", None)  # the kernel's own shows figures in the notebook
        client = NotebookClient(
            notebook, timeout=900, kernel_name="python3", record_timing=False, coalesce_streams=True
        )
        client.execute(env=environment, cwd=str(directory))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_noise(output)]
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.text = TIME.sub("", output.text)


def pictures(notebook: Any) -> list[bytes]:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode(picture) for picture in found]


def record(path: Path) -> None:
    import nbformat
    from PIL import Image, ImageOps

    notebook = read(path)
    execute(notebook, path.parent)
    text = nbformat.writes(notebook) + "\n"
    if len(text) > LARGEST:
        raise ValueError(f"{path.stem}.ipynb would have {len(text)} bytes, allowed {LARGEST}: draw smaller pictures")
    shown = pictures(notebook)
    if not shown:
        raise ValueError(f"{path} draws no picture, and the gallery shows one of each notebook")
    last = Image.open(io.BytesIO(shown[-1])).convert("RGB")
    THUMBNAILS.mkdir(parents=True, exist_ok=True)
    small = ImageOps.pad(last, THUMBNAIL, Image.Resampling.LANCZOS, color="white")
    small.save(THUMBNAILS / f"{path.stem}.png", optimize=True)
    path.with_suffix(".ipynb").write_text(text)
    print(f"{path.stem}: {len(text) // 1000} kB, {len(shown)} pictures")


def code_of(cell: Any) -> str | None:
    """The code of a cell without its comments; None for Markdown."""
    return ast.dump(ast.parse(cell.source)) if cell.cell_type == "code" else None


def refresh_text(path: Path) -> None:
    """Copy prose and comments into the record, which keeps its outputs; the code has to be the recorded one."""
    import nbformat

    new, recorded = read(path), nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    if [code_of(cell) for cell in new.cells] != [code_of(cell) for cell in recorded.cells]:
        raise ValueError(f"the code of {path.name} is not the recorded one: run it again, without --text")
    for cell, text in zip(recorded.cells, new.cells, strict=True):
        cell.source = text.source
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_noise(output)]
    path.with_suffix(".ipynb").write_text(nbformat.writes(recorded) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--text", action="store_true", help="only copy changed prose and comments into the record")
    options = parser.parse_args()
    for path in options.scripts:
        (refresh_text if options.text else record)(path.resolve())


if __name__ == "__main__":
    main()
