"""An interrupt while LLVM compiles is not lost."""

import signal

import numba
import pytest

from pymc_stiefel.engine.jit.compiling import c_function


@pytest.mark.parametrize("kind", ["function", "C function"])
def test_interrupts_while_llvm_calls_back_are_not_lost(kind, monkeypatch, tmp_path):
    """llvmlite prints "Exception ignored" for an error in what LLVM calls back, and goes on."""
    from llvmlite.binding import executionengine

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # empty: the code must be compiled, not loaded

    original = executionengine.string_at

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    def plus_one(x):
        return x + 1.0

    monkeypatch.setattr(executionengine, "string_at", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            if kind == "function":
                numba.njit(plus_one)(1.0)
            else:
                c_function(plus_one, numba.float64(numba.float64))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
