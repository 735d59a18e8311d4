"""Run the code of a page and write what it printed and drew back into the page.

``python docs/run_page.py docs/tutorial.md`` runs the ``python`` blocks in order, in one namespace. A ``text`` block
that follows one is replaced by its output, and a picture that follows one is drawn anew from the figure that is the
value of its last expression. The tests run the same blocks with fewer draws and write nothing.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pymc as pm

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<text>.*?)^```\n)?(?:\n*!\[[^\]]*\]\((?P<picture>[^)]+)\))?",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """A block of code with what it showed."""

    code: str
    start: int
    text: tuple[int, int] | None
    picture: str | None
    printed: str = ""
    value: Any = None


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        text = found.span("text") if found["text"] is not None else None
        yield Block(found["code"], page.count("\n", 0, found.start()) + 2, text, found["picture"])


def run(block: Block, namespace: dict[str, Any], name: str) -> None:
    """Execute a block; the value of a last expression is kept, and printed unless it is a figure."""
    tree = ast.parse("\n" * (block.start - 1) + block.code, name)  # tracebacks name the line of the page
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            block.value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
            if block.value is not None and not hasattr(block.value, "savefig"):
                print(block.value)
    block.printed = printed.getvalue()


def main() -> None:
    matplotlib.use("Agg")
    pm.sample = functools.partial(pm.sample, progressbar=False)  # which would be in the output
    for path in map(Path, sys.argv[1:]):
        page = path.read_text()
        namespace: dict[str, Any] = {}
        done = list(blocks(page))
        for block in done:
            run(block, namespace, str(path))
            if block.picture:
                block.value.savefig(path.parent / block.picture, dpi=150, bbox_inches="tight")
        for block in reversed(done):  # from the end, so that places stay right
            if block.text:
                page = page[: block.text[0]] + block.printed + page[block.text[1] :]
        path.write_text(page)


if __name__ == "__main__":
    main()
