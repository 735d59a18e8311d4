"""The progress bar of chains on JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(show: bool, total: int, chains: int) -> Iterator[Callable[..., Any]]:
    """A function ``report(draws, describe)`` that moves a progress bar. Without a bar, no text is computed."""
    if not show:
        yield lambda done, describe: None
        return
    columns = [TextColumn(f"{chains} chains"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, TextColumn("{task.description}")) as bar:
        task = bar.add_task("compiling", total=total)
        yield lambda done, describe: bar.update(task, advance=done, description=describe())
