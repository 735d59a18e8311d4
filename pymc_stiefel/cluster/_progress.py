"""One line for all chains: how many are done, draws per second, divergences so far."""

from __future__ import annotations

import logging
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["ChainProgress"]

_log = logging.getLogger("pymc_stiefel")
LOG_SECONDS = 30.0


class ChainProgress:
    """A bar in a terminal or notebook; elsewhere, as in a batch job, a line in the log twice a minute.

    Parameters
    ----------
    chains, finished : int
        Number of all chains, and of those that an earlier run has left in the store.
    length : int
        Draws of one chain, including tuning.
    """

    def __init__(self, chains: int, finished: int, length: int, shown: bool) -> None:
        self.chains, self.done, self.length, self.shown = chains, finished, length, shown
        self.divergences, self.earlier = 0, finished
        self.begin = self.logged = time.monotonic()
        console = Console(stderr=True)
        self._bar: Any = None
        if shown and (console.is_terminal or console.is_jupyter):
            self._bar = Progress(
                TextColumn("Chains"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("", total=chains, completed=finished)

    def __enter__(self) -> ChainProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.shown:
            _log.info(self.text())

    def text(self) -> str:
        """``3 of 8 chains, 1200 draws/s, 0 divergences``."""
        speed = (self.done - self.earlier) * self.length / max(time.monotonic() - self.begin, 1e-9)
        return f"{self.done} of {self.chains} chains, {speed:.0f} draws/s, {self.divergences} divergences"

    def finished(self, divergences: int) -> None:
        """One more chain is done."""
        self.divergences += divergences
        self.count(self.done + 1)

    def count(self, done: int) -> None:
        """Set the number of finished chains. Engines that return all results at the end report nothing else."""
        self.done = done
        if self._bar is not None:
            _, speed, divergences = self.text().split(", ")
            self._bar.update(self._task, completed=done, description=f"{speed}, {divergences}")
        elif self.shown and time.monotonic() - self.logged > LOG_SECONDS:
            self.logged = time.monotonic()
            _log.info(self.text())
