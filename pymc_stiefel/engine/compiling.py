"""Compilation: decorators that cache on disk, and calls through plain function addresses.

The sampler is compiled once and serves every model. That works because a density reaches it as an
integer, the address of a C function ``double density(double *q, double *gradient, int64 *extra)``;
calling a compiled kernel with integers and arrays also costs a third of a microsecond, where passing a
first-class numba function costs thirty. Random numbers come from NumPy's own generator in the same way.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import Cache
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numba.np.random._constants import fi_double, ki_double, wi_double, ziggurat_nor_inv_r, ziggurat_nor_r

DENSITY_SIGNATURE = types.float64(
    types.CPointer(types.float64), types.CPointer(types.float64), types.CPointer(types.int64)
)

UNCOUNTED = {"_nrt": False}
"""Option of the engine: its arrays outlive every call, so nothing is allocated and no references are counted.

Counting them for fifty arrays at every call inside was half to two thirds of a draw.
"""

UNLOCKED = {"nogil": True}
"""Option of what runs long: Python's lock is released meanwhile, so that chains can run in threads of one process."""

_INNER = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True} | UNCOUNTED
inner = numba.njit(**_INNER)
"""Decorator for functions that only compiled code calls. Without wrappers they compile in half the time.

No "fastmath" anywhere: with it, rounding would depend on what the compiler inlines where, code fresh from the compiler
would differ from code read from the cache, and the same seed would give other draws in another process.
"""

short = numba.njit(forceinline=True, **_INNER)
"""Decorator for what takes less time than a call, in which every array is seven arguments."""

inlined = numba.njit(inline="always")
"""Decorator for parts of one caller, which compile faster within it, and for functions that return an array, which
without counted references cannot be functions of their own.
"""


def compiled(function=None, **options):
    """``numba.njit`` with a disk cache that notices changes in neighbouring files.

    Where no cache directory can be written the function is compiled in every process.
    """
    if function is None:
        return lambda function: compiled(function, **options)
    dispatcher = numba.njit(function, **({"error_model": "numpy"} | options))
    _enable_cache(dispatcher, function)
    return dispatcher


def c_function(function, signature, **options) -> CFunc:
    """``numba.cfunc`` with the same cache. Keep the result alive as long as its ``address`` is in use."""
    types_ = (signature.args, signature.return_type)
    result = CFunc(function, types_, locals={}, options={"error_model": "numpy"} | options)
    _enable_cache(result, function)
    result.compile()
    return result


class Routine:
    """A C function that other compiled code calls by name. It is built or read from the cache, when first asked for."""

    def __init__(self, name: str, function: Callable, signature: Any) -> None:
        self.name, self.function, self.signature = name, function, signature
        self._built: CFunc | None = None  # kept alive with its code

    def load(self) -> types.ExternalFunction:
        """The function, for a closure of code to be compiled."""
        if self._built is None:
            self._built = c_function(self.function, self.signature)
            llvmlite.binding.add_symbol(self.name, self._built.address)
        return types.ExternalFunction(self.name, self.signature)


def _enable_cache(target, function) -> None:
    """numba's cache looks at the file of a function only; an edited helper beside it must not go unnoticed."""
    try:
        target.enable_caching()
    except RuntimeError:  # numba found no directory it may write to
        return
    cache = target._cache
    cache.load_overload, cache.save_overload = partial(_load, cache), partial(_save, cache)
    cache_file: Any = getattr(target._cache, "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, source_key(function.__code__.co_filename))


_numba_load, _numba_save = Cache.load_overload, Cache.save_overload


def _load(cache, *arguments):
    """A file that was cut off or overwritten costs a compilation, and is replaced."""
    try:
        return _numba_load(cache, *arguments)
    except Exception as error:  # pickle raises whatever the bytes suggest
        text = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"a damaged file in the compile cache {cache.cache_path} is replaced ({text})", RuntimeWarning, stacklevel=2
        )
        with suppress(OSError):  # as for _save
            cache.flush()
        return None


def _save(cache, *arguments):
    """A full disk, or one that cannot be written, costs the next process a compilation, not this one its result."""
    try:
        _numba_save(cache, *arguments)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        text = (
            f"compiled code could not be saved in {cache.cache_path}: {error}. Make space there, or name a folder that "
            "can be written by the environment variable NUMBA_CACHE_DIR"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=2)


@contextmanager
def forgiving_caches() -> Iterator[None]:
    """The same for whatever numba compiles within, such as functions of PyTensor."""
    before = Cache.load_overload, Cache.save_overload
    Cache.load_overload, Cache.save_overload = _load, _save
    try:
        yield
    finally:
        Cache.load_overload, Cache.save_overload = before


_PACKAGE = Path(__file__).parent.parent
_IMPORT = re.compile(r"^\s*from pymc_stiefel([.\w]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def source_key(file: str | Path) -> str:
    """Cache key of what is compiled from ``file``: a digest of it and of all files of this package that it imports."""
    digest = hashlib.sha256()
    for path in sorted(_sources(Path(file))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(file: Path) -> set[Path]:
    found, waiting = {file}, [file]
    while waiting:
        for path in _imports(waiting.pop()) - found:
            found.add(path)
            waiting.append(path)
    return found


@cache
def _imports(file: Path) -> frozenset[Path]:
    """Files of this package that ``file`` imports."""
    found = set()
    for package, several, one in _IMPORT.findall(file.read_text(encoding="utf-8")):
        base = _PACKAGE.joinpath(*package.split("."))
        names = [name.split()[0] for name in (several or one).split(",") if name.strip()]
        found |= {path for name in names for path in (base / f"{name}.py", base / name / "__init__.py")}
        found |= {base.with_suffix(".py"), base / "__init__.py"} if package else set()
    return frozenset(path for path in found if path.exists())


@intrinsic
def array_at(typingctx, address, shape, dtype):
    """An array of ``shape`` over memory that somebody else keeps; ``address`` is an integer or a typed pointer."""
    kind = types.Array(dtype.instance_type, len(shape), "C")

    def codegen(context, builder, signature, args):
        item = context.get_data_type(kind.dtype)
        bytes_each = context.get_abi_sizeof(item)
        lengths = [
            context.cast(builder, length, given, types.intp)
            for length, given in zip(cgutils.unpack_tuple(builder, args[1]), signature.args[1], strict=True)
        ]
        strides = [cgutils.intp_t(bytes_each)] * len(lengths)
        for k in reversed(range(len(lengths) - 1)):
            strides[k] = builder.mul(strides[k + 1], lengths[k + 1])
        to_pointer = builder.bitcast if isinstance(address, types.CPointer) else builder.inttoptr
        array = context.make_array(kind)(context, builder)
        populate_array(
            array,
            data=to_pointer(args[0], item.as_pointer()),
            shape=lengths,
            strides=strides,
            itemsize=bytes_each,
            meminfo=None,
        )
        return array._getvalue()

    return kind(address, shape, dtype), codegen


@intrinsic
def view(typingctx, vector, start, rows, columns):
    """``vector[start:start + rows * columns].reshape(rows, columns)`` at no cost: nothing is checked or counted."""
    kind = types.Array(vector.dtype, 2, "C")

    def codegen(context, builder, signature, args):
        offset, *lengths = (
            context.cast(builder, value, given, types.intp)
            for value, given in zip(args[1:], signature.args[1:], strict=True)
        )
        bytes_each = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        item = cgutils.intp_t(bytes_each)
        array = context.make_array(kind)(context, builder)
        populate_array(
            array,
            data=builder.gep(context.make_array(vector)(context, builder, args[0]).data, [offset]),
            shape=lengths,
            strides=[builder.mul(item, lengths[1]), item],
            itemsize=bytes_each,
            meminfo=None,
        )
        return array._getvalue()

    return kind(vector, start, rows, columns), codegen


@intrinsic
def call_density(typingctx, address, q, gradient, extra):
    """Call the density at ``address``; writes the gradient and returns the log density."""
    signature = types.float64(types.int64, q, gradient, extra)

    def codegen(context, builder, signature, args):
        double, int64 = ir.DoubleType(), ir.IntType(64)
        prototype = ir.FunctionType(double, [double.as_pointer(), double.as_pointer(), int64.as_pointer()])
        pointer = builder.inttoptr(args[0], prototype.as_pointer())
        data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[1:], args[1:], strict=True)
        ]
        return builder.call(pointer, data)

    return signature, codegen


def _next(result):
    """Intrinsic that calls ``result next(void *state)`` of a NumPy bit generator."""

    @intrinsic
    def call(typingctx, address, state):
        def codegen(context, builder, signature, args):
            void = ir.IntType(8).as_pointer()
            prototype = ir.FunctionType(context.get_value_type(result), [void])
            return builder.call(builder.inttoptr(args[0], prototype.as_pointer()), [builder.inttoptr(args[1], void)])

        return result(types.int64, types.int64), codegen

    return call


_next_double, _next_word = _next(types.float64), _next(types.uint64)


def random_source(rng: np.random.Generator) -> np.ndarray:
    """Addresses by which compiled code draws from ``rng`` itself: int64[3]. Keep ``rng`` alive meanwhile."""
    interface = rng.bit_generator.ctypes
    functions: Any = (interface.next_double, interface.next_uint64)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    return np.array([*addresses, interface.state_address], dtype=np.int64)


@inner
def uniform(source):
    """A double in [0, 1)."""
    return _next_double(source[0], source[2])


@inner
def normal(source):
    """A standard normal number, by the ziggurat of NumPy's generators."""
    while True:
        word = _next_word(source[1], source[2])
        layer = word & np.uint64(0xFF)
        integer = (word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF)
        x = integer * wi_double[layer]
        if word & np.uint64(0x100):
            x = -x
        if integer < ki_double[layer]:
            return x
        if layer == 0:
            return _normal_tail(source, x < 0.0)
        height = fi_double[layer] + (fi_double[layer - np.uint64(1)] - fi_double[layer]) * uniform(source)
        if height < np.exp(-0.5 * x * x):
            return x


@inner
def _normal_tail(source, negative):
    """Beyond the lowest layer, by Marsaglia's method."""
    while True:
        beyond = -ziggurat_nor_inv_r * np.log1p(-uniform(source))
        y = -np.log1p(-uniform(source))
        if y + y > beyond * beyond:
            x = ziggurat_nor_r + beyond
            return -x if negative else x


@inner
def fill_normal(source, out):
    """Fill ``out`` with standard normals."""
    for i in range(out.size):
        out[i] = normal(source)
