"""Checks of plain arguments, with NumPy only: every error names the argument, its value and what is expected."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

SYMMETRY_TOLERANCE = 1e-8
LARGEST_INTEGER = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")


class UnknownName(KeyError, ValueError):
    """An unknown name: a ``KeyError`` whose message is printed without quotes."""

    __str__ = ValueError.__str__


def shown(value: Any) -> str:
    """A short representation of a value."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    """One of a few allowed strings."""
    if not isinstance(value, str) or value not in (options := tuple(options)):
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {shown(value)}")
    return value


def string(name: str, value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a string, got {name}={shown(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """A bool, nothing that is merely truthy."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def whole(name: str, value: Any, least: int = 1) -> int:
    """A Python integer."""
    try:
        if isinstance(value, bool | np.bool_ | np.ma.MaskedArray):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer known at declaration, got {shown(value)}; "
            f"write {name}=4, not 4.0 or a random variable"
        ) from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > LARGEST_INTEGER:
        raise ValueError(f"{name} must be at most {LARGEST_INTEGER}, got {shown(value)}")
    return number


def real(name: str, value: Any, low: float = -np.inf, high: float = np.inf) -> float:
    """A finite number strictly between two bounds."""
    number = numbers(name, value)
    if number.ndim:
        raise TypeError(f"{name} must be one number, got {shown(value)}")
    if not low < number < high:
        bounds = f"above {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {bounds}, got {shown(value)}")
    return float(number)


def numbers(name: str, value: Any) -> NDArray[Any]:
    """Real, finite numbers as an array; nothing that is masked."""
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} must not have masked entries, got {shown(value)}; fill them, or use value.compressed()"
        )
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} must be an array of numbers, got {shown(value)}, whose rows differ in length"
        ) from None
    if np.iscomplexobj(array):
        raise TypeError(f"{name} must be real, got complex numbers: {shown(value)}")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be an array of numbers, got {shown(value)} of dtype {array.dtype}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at {where}; remove NaN and infinite entries")
    return array


def reals(name: str, value: Any, ndim: int | None = None, dtype: Any = np.float64) -> NDArray[Any]:
    """A new array of real, finite numbers, with ``ndim`` dimensions if that is given."""
    array = np.array(numbers(name, value), dtype=dtype)
    if ndim is not None and array.ndim != ndim:
        kind = ("a number", "a vector", "a matrix")[ndim]
        raise ValueError(f"{name} must be {kind}, got shape {array.shape}: {shown(value)}")
    return array


def dimensions(n: Any, p: Any) -> tuple[int, int]:
    """``n >= p >= 1``."""
    n, p = whole("n", n), whole("p", p)
    if n < p:
        raise ValueError(
            f"n must be at least p, got n={n}, p={p}: {p} orthonormal columns do not fit in dimension {n}; "
            "swap them, or transpose the variable where it is used"
        )
    return n, p


def scalar(name: str, value: Any, least: float | None = None) -> float:
    """A finite number, not below ``least``."""
    number = float(reals(name, value, 0))
    if least is not None and number < least:
        raise ValueError(f"{name} must be finite and >= {least:g}, got {number:g}")
    return number


def symmetric(name: str, value: Any) -> NDArray[Any]:
    """A symmetric matrix, its symmetric part if it is off by rounding."""
    array = reals(name, value, 2)
    if array.shape[0] != array.shape[1] or not array.size:
        raise ValueError(f"{name} must be a square matrix, got shape {array.shape}")
    error = float(np.abs(array - array.T).max())
    if error > SYMMETRY_TOLERANCE * max(1.0, float(np.abs(array).max())):
        raise ValueError(f"{name} must be symmetric; max |{name} - {name}'| = {error:.3g}. Use ({name} + {name}') / 2.")
    return array / 2 + array.T / 2


def function(name: str, value: Any) -> Any:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, got {shown(value)}")
    return value


def names(name: str, value: Any, known: Iterable[Any]) -> list[str] | None:
    """A list of known names, or None."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of names, got {shown(value)}")
    given, there = list(value), [str(one) for one in known]
    unknown = [one for one in given if not isinstance(one, str) or one not in there]
    if unknown:
        raise ValueError(f"{name} has {unknown}, which are not among the variables {sorted(there)}")
    return given


def starts(name: str, value: Any, chains: int, known: Iterable[Any]) -> Any:
    """None, a dictionary of starting values by name, or one for each chain."""
    if value is not None and not isinstance(value, Mapping | list | tuple):
        raise TypeError(f"{name} must be one dictionary, or a list of one for each chain, got {shown(value)}")
    each = value if isinstance(value, list | tuple) else [value] * chains
    if len(each) != chains:
        raise ValueError(f"{name} must be one dictionary, or one for each of the {chains} chains, got {len(each)}")
    there = [str(one) for one in known]
    for one in each:
        unknown = [key for key in mapping(name, one) or () if key not in there]
        if unknown:
            raise ValueError(f"{name} has {unknown}, which are not among the variables {sorted(there)}")
    return value


def generator(rng: Any) -> np.random.Generator:
    """A NumPy random generator."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {shown(rng)}; use numpy.random.default_rng(seed)")
    return rng


def seed(name: str, value: Any) -> Any:
    """What ``numpy.random.default_rng`` takes."""
    try:
        np.random.default_rng(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be None, an integer or a generator, got {shown(value)}") from None
    return value


def mapping(name: str, value: Any) -> Any:
    """A dictionary with names as keys, or None."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise TypeError(f"{name} must be a dictionary with names of variables, got {shown(value)}")
    return value


def sizes(size: Any) -> tuple[int, ...]:
    """``size`` as a tuple of lengths; None is a single draw."""
    if size is None:
        return ()
    try:
        given = tuple(size) if np.ndim(size) else (size,)
        return tuple(whole("size", k, least=0) for k in given)
    except TypeError:
        raise TypeError(f"size must be an integer or a tuple of integers, got {shown(size)}") from None
    except ValueError:
        raise ValueError(f"size must be between 0 and {LARGEST_INTEGER}, got {shown(size)}") from None


def matrix(name: str, value: Any, *, like: tuple[str, NDArray[Any]] | None = None, batch: bool = False) -> NDArray[Any]:
    """A matrix in double precision, or a batch of them; ``like`` names another argument that has the same shape."""
    array = numbers(name, value)
    if array.ndim < 2 or (array.ndim > 2 and not batch) or 0 in array.shape:
        what = "a matrix (batch dimensions first)" if batch else "a matrix"
        raise ValueError(f"{name} must be {what}, got {shown(array)}")
    if like is not None and array.shape != like[1].shape:
        raise ValueError(f"{name} must have the shape {like[1].shape} of {like[0]}, got shape {array.shape}")
    return array if array.dtype == np.float64 else array.astype(np.float64)


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old names of arguments, ``old="new"``, with a FutureWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                message = f"{old}= of {function.__name__} is now {names[old]}=; the old name goes with version 0.3"
                warnings.warn(message, FutureWarning, stacklevel=2)
                kwargs.setdefault(names[old], kwargs.pop(old))
            return function(*args, **kwargs)

        return call

    return decorate
