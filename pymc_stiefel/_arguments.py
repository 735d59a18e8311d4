"""Checks of distribution arguments at declaration: what is wrong, what was given, what to do.

Numbers are checked here. Symbolic parameters are checked for dtype and dimensions only; their values are checked
when the density is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import geometry
from pymc_stiefel._checks import numbers, whole
from pymc_stiefel.ops._polar import manifold_tolerance

SYMMETRY_TOLERANCE = 1e-8


def integer(name: str, value: Any) -> int:
    """A positive Python integer, from an integer only."""
    return whole(name, value.data if isinstance(value, Constant) else value)


def dimensions(n: Any, p: Any) -> tuple[int, int]:
    """``n >= p >= 1``."""
    n, p = integer("n", n), integer("p", p)
    if n < p:
        raise ValueError(
            f"n must be at least p: {p} orthonormal columns do not fit in dimension n = {n}; "
            "swap them, or transpose the variable where it is used"
        )
    return n, p


def array(name: str, value: Any, ndim: int) -> TensorVariable:
    """A floating point tensor with at least ``ndim`` dimensions; numbers must be real and finite."""
    if isinstance(value, Variable) and not isinstance(value, Constant):
        if not hasattr(value.type, "dtype") or value.type.dtype.startswith("complex"):
            raise TypeError(f"{name} must be a real tensor, got {value.type}")
        tensor: Any = value
    else:
        tensor = pt.constant(
            numbers(name, value.data if isinstance(value, Constant) else value).astype(pytensor.config.floatX)
        )
    if tensor.type.ndim < ndim:
        kind = {0: "a scalar", 1: "a vector", 2: "a matrix"}[ndim]
        raise ValueError(f"{name} must be {kind} (batch dimensions first), got {tensor.type.ndim} dimensions")
    return tensor.astype(pytensor.config.floatX)


def known(tensor: TensorVariable) -> NDArray | None:
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
    if error > SYMMETRY_TOLERANCE * max(1.0, np.abs(values).max(initial=0.0)):
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
        raise ValueError(f"{name} must not be negative, got {values.min():.6g}; turn the direction round instead")


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
