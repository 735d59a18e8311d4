"""Checks of arguments: of distributions at declaration, of variables and points of a model. Errors name the argument,
its value and the remedy.

Numbers are checked here. Symbolic parameters are checked for dtype and dimensions only; their values are checked
when the density is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.util import get_value_vars_from_user_vars
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _checks, geometry
from pymc_stiefel.ops._polar import manifold_tolerance


def integer(name: str, value: Any, least: int = 1) -> int:
    """An integer, also from the shape of data or constants, but not a random variable."""
    if isinstance(value, Variable):
        value = _fixed(value)
    return _checks.whole(name, value, least)


def integers(name: str, value: Any) -> tuple[int, ...]:
    """One integer or a sequence of them, as a tuple."""
    if isinstance(value, str | bytes | Variable) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return (integer(name, value),)
    return tuple(integer(name, one) for one in value)


def _fixed(value: Variable) -> Any:
    """The value of a graph of constants and existing data, otherwise ``value`` itself."""
    if isinstance(value, Constant):
        return value.data
    inputs = [v for v in ancestors([value]) if v.owner is None]
    if any(not isinstance(v, Constant | SharedVariable) for v in inputs) or any(
        isinstance(v.type, RandomType) for v in inputs
    ):
        return value
    number = value.eval()
    return number.item() if np.ndim(number) == 0 else number


def dimensions(n: Any, p: Any) -> tuple[int, int]:
    """``n >= p >= 1``."""
    return _checks.dimensions(integer("n", n), integer("p", p))


def fold(tensor: TensorVariable) -> TensorVariable:
    """A constant, if the graph depends on constants only."""
    if any(v.owner is None and not isinstance(v, Constant) for v in ancestors([tensor])):
        return tensor
    return pt.constant(tensor.eval())


def array(name: str, value: Any, ndim: int) -> TensorVariable:
    """A floating point tensor with at least ``ndim`` dimensions; numbers must be real and finite."""
    if isinstance(value, Variable) and not isinstance(value, Constant):
        if not hasattr(value.type, "dtype") or value.type.dtype.startswith("complex"):
            raise TypeError(f"{name} must be a real tensor, got {value.type}")
        tensor: Any = value
    else:
        tensor = pt.constant(numbers(name, value.data if isinstance(value, Constant) else value))
    if tensor.type.ndim < ndim:
        kind = {0: "a scalar", 1: "a vector", 2: "a matrix"}[ndim]
        raise ValueError(
            f"{name} must be {kind} (batch dimensions first), got {tensor.type.ndim} dimensions: {_checks.shown(value)}"
        )
    if ndim and 0 in tensor.type.shape[tensor.type.ndim - ndim :]:
        raise ValueError(f"{name} must not be empty, got shape {tensor.type.shape}")
    return tensor.astype(pytensor.config.floatX)


def numbers(name: str, value: Any) -> NDArray[Any]:
    """An array of real, finite numbers in PyTensor's precision."""
    return _checks.reals(name, value, dtype=pytensor.config.floatX)


def known(tensor: TensorVariable) -> NDArray[Any] | None:
    """The value of a constant tensor, None if it is symbolic."""
    return np.asarray(tensor.data) if isinstance(tensor, Constant) else None


def tall(name: str, tensor: TensorVariable) -> None:
    """Last two dimensions ``n >= p``, as far as they are known."""
    n, p = tensor.type.shape[-2:]
    if n is not None and p is not None and n < p:
        raise ValueError(f"{name} must have at least as many rows as columns, got shape ({n}, {p}); transpose it")


def square(name: str, tensor: TensorVariable) -> None:
    """Last two dimensions equal, as far as they are known."""
    rows, columns = tensor.type.shape[-2:]
    if rows is not None and columns is not None and rows != columns:
        raise ValueError(f"{name} must be a square matrix, got shape ({rows}, {columns})")


def symmetric(name: str, tensor: TensorVariable) -> None:
    """Square and, if known, symmetric."""
    square(name, tensor)
    values = known(tensor)
    if values is None:
        return
    error = np.abs(values - np.swapaxes(values, -1, -2)).max(initial=0.0)
    if error > _checks.SYMMETRY_TOLERANCE * max(1.0, np.abs(values).max(initial=0.0)):
        raise ValueError(
            f"{name} must be symmetric, but max|{name} - {name}'| = {error:.3g}; use ({name} + {name}') / 2"
        )


def positive_definite(name: str, tensor: TensorVariable) -> None:
    """Symmetric and, if known, positive definite."""
    symmetric(name, tensor)
    values = known(tensor)
    if values is None:
        return
    smallest = float(np.linalg.eigvalsh(values).min(initial=np.inf))
    if smallest <= 0:
        raise ValueError(
            f"{name} must be positive definite, its smallest eigenvalue is {smallest:.3g}; "
            "add a multiple of the identity"
        )


def non_negative(name: str, tensor: TensorVariable) -> None:
    """No negative entry, if known."""
    values = known(tensor)
    if values is not None and (values < 0).any():
        raise ValueError(f"{name} must not be negative, got {values.min():.6g}; reverse the direction instead")


def orthonormal(name: str, tensor: TensorVariable, *, vector: bool = False) -> None:
    """Orthonormal columns, or unit length, if known."""
    values = known(tensor)
    if values is None:
        return
    error = float(np.max(geometry.orthogonality_error(values[..., None] if vector else values), initial=0.0))
    if error > manifold_tolerance(str(values.dtype)):
        what, remedy = (
            ("a unit vector", f"{name} / norm({name})")
            if vector
            else ("orthonormal", f"pymc_stiefel.geometry.polar({name})")
        )
        raise ValueError(f"{name} must be {what}, max|{name}'{name} - I| = {error:.3g}; use {remedy}")


def same_length(first: str, length: int | None, second: str, other: int | None) -> None:
    """Two dimensions that must agree, as far as they are known."""
    if length is not None and other is not None and length != other:
        raise ValueError(f"shapes do not match: {first} is {length}, {second} is {other}")


def core_shape(what: str, given: Sequence[int | None], expected: Sequence[int | None]) -> None:
    """The support dimensions that the user gave against those of the distribution."""
    for mine, theirs in zip(given, expected, strict=True):
        if mine is not None and theirs is not None and mine != theirs:
            raise ValueError(
                f"{what} ends in {tuple(given)}, but this variable has support shape {tuple(expected)}; "
                "batch dimensions come first, the matrix (n, p) or vector (n,) comes last"
            )


def value_variables(model: pm.Model, vars: Any) -> list[Any]:
    """The value variables of ``vars``; of all continuous variables if it is None."""
    if vars is None:
        return list(model.continuous_value_vars)
    try:
        return list(get_value_vars_from_user_vars(vars, model))
    except (AttributeError, TypeError, ValueError):
        names = [rv.name for rv in model.free_RVs]
        raise ValueError(f"vars must be variables of the model, which has {names}, got {_checks.shown(vars)}") from None


def point_of(model: pm.Model, initial_point: Any) -> dict[str, Any]:
    """The given point, with a value for every value variable, or that of the model."""
    if initial_point is None:
        return dict(model.initial_point())
    _checks.mapping("initial_point", initial_point)
    for value in model.value_vars:
        if value.name not in initial_point:
            raise ValueError(f"initial_point must have {value.name}, got {sorted(initial_point)}")
        shape = np.shape(initial_point[value.name])
        if len(shape) != value.ndim or any(
            known not in (None, given) for known, given in zip(value.type.shape, shape, strict=True)
        ):
            raise ValueError(f"initial_point: {value.name} must have shape {value.type.shape}, got {shape}")
    return dict(initial_point)
