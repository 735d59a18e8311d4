"""Code that is linked into its callers, and not optimised or translated to machine code separately.

Numba optimises and translates every function on its own and once more in each of its callers. PyTensor
calls functions through four levels, so this took most of the time to compile a density.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import llvmlite.binding
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler, Flags
from numba.core.environment import lookup_environment


class LinkedLibrary(JITCodeLibrary):
    """Code that is only linked into its callers, which optimise it and generate the machine code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0  # as for every function without wrappers

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        return self.serialize_using_bitcode()

    @property
    def codegen(self) -> Any:
        return SimpleNamespace(set_env=lambda name, environment: None)


class InnerCompiler(Compiler):
    """Compiler of functions that only compiled code calls."""

    def compile_extra(self, func: Any) -> Any:
        _link_only(self.state, func)
        return _compile_extra(self, func)


def _link_only(state: Any, func: Any) -> None:
    state.library = LinkedLibrary(state.targetctx.codegen(), func.__qualname__)
    state.library.enable_object_caching()


_compile_extra, _unserialize = Compiler.compile_extra, JITCPUCodegen.unserialize_library
_finalize = JITCodeLibrary._finalize_specific
_active = threading.local()


def _is_inner(flags: Flags) -> bool:
    """Whether Python cannot call the function: it has no wrapper, nor is it a callback that gets one afterwards."""
    return flags.no_cpython_wrapper and (flags.no_cfunc_wrapper or not flags.no_compile)


def _compile_in_context(self: Compiler, func: Any) -> Any:
    if getattr(_active, "depth", 0) and _is_inner(self.state.flags):
        self.state.flags.no_cfunc_wrapper = True
        _link_only(self.state, func)
    return _compile_extra(self, func)


def _unserialize_in_context(self: JITCPUCodegen, serialized: tuple) -> Any:
    name, kind, data = serialized
    if kind != "bitcode" or not getattr(_active, "depth", 0):
        return _unserialize(self, serialized)
    library = LinkedLibrary(self, name)
    library._final_module = llvmlite.binding.parse_bitcode(data)
    library._finalize_final_module()
    return library


def _finalize_in_context(self: JITCodeLibrary) -> None:
    """Give linked functions, which have no addresses of their own, their environments."""
    _finalize(self)
    if getattr(_active, "depth", 0):
        for variable in self._final_module.global_variables:
            if variable.name.startswith("_ZN08NumbaEnv"):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


@contextmanager
def linked_once() -> Iterator[None]:
    """Context in which this thread optimises inner functions only as parts of the functions that Python calls."""
    Compiler.compile_extra = _compile_in_context
    JITCPUCodegen.unserialize_library = _unserialize_in_context
    JITCodeLibrary._finalize_specific = _finalize_in_context
    _active.depth = getattr(_active, "depth", 0) + 1
    try:
        yield
    finally:
        _active.depth -= 1
