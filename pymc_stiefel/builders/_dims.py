"""Shared by the building blocks: names of dimensions, and checks of sizes and scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel._checks import shown, string

__all__ = ["dims_of", "inner_dim", "known_dims", "positive"]


def dims_of(
    name: str, dims: Any, sizes: Sequence[int], suffixes: Sequence[str], size: Any = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Dims of the batch and of one matrix: the user's, or new ones. Parts then share the names of common dimensions."""
    string("name", name)
    model = pm.modelcontext(None)
    batch_shape = () if size is None else check.integers("size", size)
    if dims is None:
        dims = [*(f"{name}_batch_{i}" for i in range(len(batch_shape))), *(f"{name}_{suffix}" for suffix in suffixes)]
        for dim, length in zip(dims, (*batch_shape, *sizes), strict=True):
            model.add_coord(dim, range(length))
    wanted = f"{len(batch_shape) + len(sizes)} names" + ("" if size is not None else ", those of a batch in front")
    if not isinstance(dims, list | tuple) or not all(isinstance(dim, str) for dim in dims):
        raise TypeError(f"dims of {name!r} must be {wanted}, got {shown(dims)}")
    n_batch = len(dims) - len(sizes)
    if n_batch < 0 or (size is not None and n_batch != len(batch_shape)):
        raise ValueError(f"dims of {name!r} must be {wanted}, got {shown(dims)}")
    lengths = (*(batch_shape or (None,) * n_batch), *sizes)
    for dim, length in zip(dims, lengths, strict=True):
        _check_dim("dims", model, name, dim, length)
    return tuple(dims[:n_batch]), tuple(dims[n_batch:])


def inner_dim(name: str, argument: str, dim: Any, length: int, suffix: str) -> str:
    """The dimension of columns and scales: the user's, or a new one."""
    model = pm.modelcontext(None)
    if dim is None:
        dim = f"{name}_{suffix}"
        model.add_coord(dim, range(length))
    elif string(argument, dim) not in model.dim_lengths:
        model.add_coord(dim, range(length))
    _check_dim(argument, model, name, dim, length)
    return dim


def known_dims(name: str, dims: Any) -> None:
    """Refuse dims that are not in the model."""
    names = (dims,) if dims is None or isinstance(dims, str) else dims
    if not isinstance(names, list | tuple) or not all(dim is None or isinstance(dim, str) for dim in names):
        raise TypeError(f"dims of {name!r} must be a name or several names, got {shown(dims)}")
    for dim in names:
        if dim is not None:
            _check_dim("dims", pm.modelcontext(None), name, dim, None)


def _check_dim(argument: str, model: pm.Model, name: str, dim: str, length: int | None) -> None:
    if dim not in model.dim_lengths:
        known = ", ".join(map(str, model.dim_lengths)) or "none"
        raise ValueError(
            f"{argument} of {name!r}: {dim!r} is not a dim of the model, which has {known}; add it to coords"
        )
    has = int(model.dim_lengths[dim].eval())
    if length is not None and has != length:
        raise ValueError(f"{argument}: {name!r} has {length} along {dim!r}, which has length {has}")


def positive(argument: str, value: Any, batch: Sequence[str] | None = None) -> TensorVariable:
    """A positive scale, or one for each matrix of a ``batch`` with these dims."""
    tensor = check.array(argument, value, 0)
    numbers = check.known(tensor)
    if numbers is not None and not (numbers > 0).all():
        raise ValueError(f"{argument} must be positive, got {shown(value)}")
    if batch is not None:
        lengths = [int(pm.modelcontext(None).dim_lengths[dim].eval()) for dim in batch]
        own = tensor.type.shape
        fits = len(own) <= len(lengths) and all(
            mine in (None, 1, theirs) for mine, theirs in zip(own[::-1], lengths[::-1], strict=False)
        )
        if not fits:
            raise ValueError(
                f"{argument} must be one number, or fit the batch of shape {tuple(lengths)}, got shape {own}"
            )
    return tensor
