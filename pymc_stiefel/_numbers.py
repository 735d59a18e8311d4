"""Checks of plain numbers: an error names the argument, shows the value and says what to give instead."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

SYMMETRY_TOLERANCE = 1e-8
LARGEST_INTEGER = 2**31 - 1


def shown(value: Any) -> str:
    """A short description of a value, for error messages."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} of type {type(value).__name__}"


def integer(name: str, value: Any, least: int = 1) -> int:
    """A Python integer from an integer; not from a float, a truth value or text."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {shown(value)}; write {name}=4, not 4.0") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > LARGEST_INTEGER:
        raise ValueError(f"{name} must be at most {LARGEST_INTEGER}, got {shown(value)}")
    return number


def dimensions(n: Any, p: Any) -> tuple[int, int]:
    """``n >= p >= 1``."""
    n, p = integer("n", n), integer("p", p)
    if n < p:
        raise ValueError(
            f"n must be at least p, got n={n}, p={p}: {p} orthonormal columns do not fit in dimension {n}; "
            "swap them, or transpose the variable where it is used"
        )
    return n, p


def real(name: str, value: Any, ndim: int | None = None, dtype: Any = np.float64) -> NDArray[Any]:
    """A new array of real, finite numbers, with ``ndim`` dimensions if that is given."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(f"{name} must have no masked entries, got {count} masked of {value.size}; fill them in first")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        raise TypeError(f"{name} must be an array of numbers, got {shown(value)}") from None
    if array.dtype.kind == "c":
        raise TypeError(f"{name} must be real, got complex numbers: {shown(value)}; use {name}.real")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of numbers, got {shown(value)}")
    array = np.array(array, dtype=dtype)
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        place = f" at {where}" if where else ""
        raise ValueError(f"{name} must be finite, got {array[where]}{place}; remove NaN and infinite entries")
    if ndim is not None and array.ndim != ndim:
        kind = ("a number", "a vector", "a matrix")[ndim]
        raise ValueError(f"{name} must be {kind}, got shape {array.shape}: {shown(value)}")
    return array


def scalar(name: str, value: Any, least: float | None = None) -> float:
    """A finite number, not below ``least``."""
    number = float(real(name, value, 0))
    if least is not None and number < least:
        raise ValueError(f"{name} must be finite and >= {least:g}, got {number:g}")
    return number


def symmetric(name: str, value: Any) -> NDArray[Any]:
    """A symmetric matrix, its symmetric part if it is off by rounding."""
    array = real(name, value, 2)
    if array.shape[0] != array.shape[1] or not array.size:
        raise ValueError(f"{name} must be a square matrix, got shape {array.shape}")
    error = float(np.abs(array - array.T).max())
    if error > SYMMETRY_TOLERANCE * max(1.0, float(np.abs(array).max())):
        raise ValueError(f"{name} must be symmetric; max |{name} - {name}'| = {error:.3g}. Use ({name} + {name}') / 2.")
    return array / 2 + array.T / 2


def generator(rng: Any) -> np.random.Generator:
    """A NumPy random generator."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {shown(rng)}; use numpy.random.default_rng(seed)")
    return rng


def sizes(size: Any) -> tuple[int, ...]:
    """``size`` as a tuple of lengths; None is a single draw."""
    if size is None:
        return ()
    try:
        given = tuple(size) if np.ndim(size) else (size,)
        return tuple(integer("size", k, least=0) for k in given)
    except TypeError:
        raise TypeError(f"size must be an integer or a tuple of integers, got {shown(size)}") from None
    except ValueError:
        raise ValueError(f"size must be between 0 and {LARGEST_INTEGER}, got {shown(size)}") from None
