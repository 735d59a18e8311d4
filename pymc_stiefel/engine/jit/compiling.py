"""Decorators for compiled code.

The sampler is compiled once for all models. This works because it receives the density as an integer, the address of a
C function ``double density(double *q, double *gradient, int64 *extra)``. A call with integers and arrays takes a third
of a microsecond; passing a first-class numba function would take thirty. NumPy's random generator is used in the same
way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
from numba import types
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher

from pymc_stiefel.engine.jit import collection  # noqa: F401 (registers a listener)
from pymc_stiefel.engine.jit.caching import enable_cache
from pymc_stiefel.engine.jit.interrupts import interrupts_kept
from pymc_stiefel.engine.jit.linking import InnerCompiler

UNCOUNTED = {"_nrt": False}
"""Option of the engine: its arrays outlive every call, so it allocates nothing and does not count references.

Counting references of fifty arrays in every inner call took half to two thirds of the time of a draw.
"""

UNLOCKED = {"nogil": True}
"""Option of long-running functions: they release the GIL, so that chains can run in threads of one process."""


_LINKED = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": InnerCompiler,
}


class _LinkedDispatcher(CPUDispatcher):
    """Has no code that Python could call: numba would jump to address 0."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(
            f"{self.__module__}.{self.__name__} is for compiled code only and has no version for Python: call it from "
            f"a function that numba compiles, or {self.__name__}.py_func if that calls nothing of this kind"
        )


def _linked(**options: Any) -> Callable[[Callable], Any]:
    decorate = numba.njit(**_LINKED | options)

    def mark(function: Callable) -> Any:
        dispatcher = decorate(function)
        if not numba.config.DISABLE_JIT:
            dispatcher.__class__ = _LinkedDispatcher
        return dispatcher

    return mark


part = _linked()
"""Decorator for functions that only compiled code can call. They compile in a third of the time."""

inner = _linked(**UNCOUNTED)
"""The same for the engine, without reference counting.

"fastmath" is not used anywhere. With it, rounding would depend on inlining, freshly compiled code would differ from
code read from the cache, and the same seed would give different draws in another process.
"""

short = _linked(forceinline=True, **UNCOUNTED)
"""Decorator for functions that take less time than a call, which passes seven arguments for every array."""

inlined = numba.njit(inline="always")
"""Decorator for functions with a single caller, which compile faster inside it, and for functions that return an
array, which must be inlined if references are not counted.
"""


def compiled(function=None, **options):
    """``numba.njit`` with a disk cache that notices changes in imported files.

    If no folder is writable, a warning says so, and the function is compiled in every process.
    """
    if function is None:
        return lambda function: compiled(function, **options)
    dispatcher = numba.njit(function, **({"error_model": "numpy"} | options))
    enable_cache(dispatcher, function)
    return dispatcher


def c_function(function, signature, **options) -> CFunc:
    """``numba.cfunc`` with the same cache. Keep the result alive as long as its ``address`` is in use."""
    types_ = (signature.args, signature.return_type)
    result = CFunc(function, types_, locals={}, options={"error_model": "numpy"} | options)
    enable_cache(result, function)
    with interrupts_kept():
        result.compile()
    return result


class Routine:
    """A C function that other compiled code calls by name. It is compiled or read from the cache on first use."""

    def __init__(self, name: str, function: Callable, signature: Any) -> None:
        self.name, self.function, self.signature = name, function, signature
        self._built: CFunc | None = None  # keeps the code alive

    def load(self) -> types.ExternalFunction:
        """The function, for a closure of code to be compiled."""
        if self._built is None:
            self._built = c_function(self.function, self.signature)
            llvmlite.binding.add_symbol(self.name, self._built.address)
        return types.ExternalFunction(self.name, self.signature)
