"""Ctrl-C while numba compiles.

Python handles a signal at its next instruction. During compilation that is most often in a function that LLVM calls
back and from which llvmlite cannot raise: it prints "Exception ignored", and compilation goes on for a minute. Such a
signal is kept until the function that is being compiled is done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import llvmlite.binding.executionengine
from numba.core import event

_CALLED_BY_LLVM = llvmlite.binding.executionengine.__file__


class _Keeper(event.Listener):
    """Watches all compilation in the main thread, which alone handles signals."""

    def __init__(self) -> None:
        self.depth = 0
        self.kept = False
        self.before: Any = None  # the handler of the caller

    def on_start(self, event: Any = None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth += 1
        if self.depth == 1 and callable(signal.getsignal(signal.SIGINT)):
            self.before = signal.signal(signal.SIGINT, self.handle)

    def on_end(self, event: Any = None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth -= 1
        before = self.before
        if self.depth == 0 and before is not None:
            signal.signal(signal.SIGINT, before)
            self.before = None
        if self.kept:
            self.kept = False
            before(signal.SIGINT, None)

    def handle(self, number: int, frame: FrameType | None) -> None:
        here = frame
        while here is not None:
            if here.f_code.co_filename == _CALLED_BY_LLVM and here.f_code.co_name.startswith("_raw_object_cache"):
                self.kept = True
                return
            here = here.f_back
        self.before(number, frame)


_keeper = _Keeper()
event.register("numba:compile", _keeper)  # all that numba compiles on being called, by PyTensor and others too


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """For compilation that numba does not announce."""
    _keeper.on_start()
    try:
        yield
    finally:
        _keeper.on_end()
