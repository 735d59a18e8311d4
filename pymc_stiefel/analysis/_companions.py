"""Variables that move with the columns of an aligned matrix: scales permute, scores and other factors rotate."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel.analysis._inputs import VECTOR_DIM

__all__ = ["descending", "move_companion", "rotation_array"]

Array = NDArray[np.float64]
ALIGNED_DIM, CONTRACTED_DIM = "_aligned", "_contracted"


def descending(
    levels: xr.DataArray, how: str | tuple[str, ...], rotation: xr.DataArray, draws: xr.DataArray
) -> NDArray[np.int64]:
    """Columns of each matrix, of shape (batch, p), by the mean of ``levels`` over all else, largest first."""
    values = _same_batch(levels, rotation)
    dims = [] if isinstance(how, str) else list(how[1:])
    column = dims[0] if dims else _column_dim(levels, values, rotation)
    kept = (*rotation.dims[2:-2], column)
    others = [dim for dim in values.dims if dim not in kept]
    mean = values.mean(others, skipna=False).transpose(*kept).values.reshape(-1, draws.shape[-1])
    if not np.isfinite(mean).all():
        raise ValueError(f"order_by={levels.name!r} has draws that are not finite, so its mean is {mean.tolist()}")
    return np.argsort(-mean, axis=-1, kind="stable")


def rotation_array(R: Array, draws: xr.DataArray) -> xr.DataArray:
    """``R`` with the dims of ``draws`` except the rows, and ``ALIGNED_DIM`` last. No labels: only positions count."""
    dims = (*draws.dims[:-2], draws.dims[-1], ALIGNED_DIM)
    shape = (*draws.shape[:-2], draws.shape[-1], R.shape[-1])
    return xr.DataArray(np.moveaxis(R, 0, 1).reshape(shape), dims=dims)


def move_companion(
    companion: xr.DataArray, how: str | tuple[str, ...], rotation: xr.DataArray, method: str
) -> xr.DataArray:
    """``companion`` after the columns it belongs to have moved by ``rotation``; ``how`` is that of ``align``."""
    if not isinstance(how, str) and not (isinstance(how, tuple | list) and all(isinstance(word, str) for word in how)):
        raise TypeError(f"companions[{companion.name!r}] must be 'rotate', 'permute' or (how, dim, ...), got {how!r}")
    kind, *dims = (how,) if isinstance(how, str) else how or ("",)
    check.choice(f"companions[{companion.name!r}]", kind, ("rotate", "permute"))
    if kind == "permute":
        if method in ("rotation", "varimax"):
            raise ValueError(
                f"companions[{companion.name!r}] cannot be permuted: method={method!r} mixes columns, so separate "
                f"scales have no counterpart; align loadings that contain them, or use method='permutation'"
            )
        rotation = abs(rotation)
    column, p = str(rotation.dims[-2]), rotation.shape[-1]
    values = _same_batch(companion, rotation)
    if column == VECTOR_DIM and not dims:  # one column: a sign for everything that goes with it
        moved = values * rotation.isel({column: 0, ALIGNED_DIM: 0})
        return companion.copy(data=moved.transpose(*values.dims).values)
    chosen = dims or [_column_dim(companion, values, rotation)]
    rotation = rotation.rename({column: CONTRACTED_DIM})
    for dim in chosen:
        if dim not in companion.dims or companion.sizes[dim] != p:
            raise ValueError(
                f"companions[{companion.name!r}] has sizes {dict(companion.sizes)}: need {dim!r} with length {p}"
            )
        turned = xr.dot(values.rename({dim: CONTRACTED_DIM}), rotation, dim=CONTRACTED_DIM)
        values = turned.rename({ALIGNED_DIM: dim}).transpose(*values.dims)
    return companion.copy(data=values.values)


def _same_batch(companion: xr.DataArray, rotation: xr.DataArray) -> xr.DataArray:
    """The companion with batch dimensions named as in ``rotation``, matched by name, or else by position and length."""
    batch = rotation.dims[2:-2]
    names = list(companion.dims)
    if not set(batch) <= set(names):
        if companion.shape[2 : 2 + len(batch)] != rotation.shape[2:-2]:
            raise ValueError(
                f"companions[{companion.name!r}] with sizes {dict(companion.sizes)} lacks the batch dimensions "
                f"{tuple(map(str, batch))} of lengths {rotation.shape[2:-2]}: each matrix is aligned by itself"
            )
        names[2 : 2 + len(batch)] = batch
    return xr.DataArray(companion.values, dims=names)


def _column_dim(companion: xr.DataArray, values: xr.DataArray, rotation: xr.DataArray) -> str:
    column, p, taken = rotation.dims[-2], rotation.shape[-1], rotation.dims[:-2]
    if column in companion.dims:
        return str(column)
    fitting = [dim for dim in values.dims if dim not in taken and values.sizes[dim] == p]
    if len(fitting) == 1:
        return str(fitting[0])
    raise ValueError(
        f"companions[{companion.name!r}] with sizes {dict(companion.sizes)} has {len(fitting)} dimensions of length "
        f"{p}: say which belongs to the columns, as in {{{companion.name!r}: ('rotate', dim)}}"
    )
