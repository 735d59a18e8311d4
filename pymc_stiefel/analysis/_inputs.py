"""Find the draws of a matrix in arrays, xarray objects or results of PyMC; raise a useful error for bad ones.

Every function of :mod:`~pymc_stiefel.analysis` and :mod:`~pymc_stiefel.plots`
starts here, so that arrays, ``xarray`` objects, ``InferenceData`` (ArviZ 0.x) and ``DataTree`` (ArviZ 1.x) are treated
alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel import geometry

__all__ = ["ALIGNED", "dataset_of", "flat", "like_draws", "matrix_draws", "matrix_like", "one_name", "variable_of"]

SAMPLE_DIMS = ("chain", "draw")
ALIGNED = "aligned"  # the attribute of draws that ``align`` has returned: they are not to be aligned again
VECTOR_DIM = "_vector"  # the column of size one that a unit vector gets while it is inside this package


def dataset_of(data: Any, group: str = "posterior", argument: str = "data") -> xr.Dataset:
    """The variables of one group of an ``InferenceData`` or ``DataTree``; a ``Dataset`` or a group itself as it is."""
    check.string("group", group)
    if isinstance(data, xr.Dataset):
        return data
    # InferenceData has a method groups(), DataTree a property with paths: "/posterior"
    groups = data.groups() if callable(getattr(data, "groups", None)) else getattr(data, "groups", None)
    if groups is None:
        raise TypeError(
            f"{argument} must be an array, a DataArray, a Dataset, an InferenceData or a DataTree, got "
            f"{type(data).__name__}: {check.shown(data)}"
        )
    names = sorted(name.strip("/") for name in groups if name.strip("/"))
    if not names and len(getattr(data, "data_vars", ())) > 0:  # a node of a DataTree: ``idata["posterior"]``
        dataset: xr.Dataset = data.to_dataset()
        return dataset
    if group not in names:
        raise check.UnknownName(f"group: {argument} has no group {group!r}; there are {', '.join(names) or 'none'}")
    node = data[group]
    return node if isinstance(node, xr.Dataset) else node.to_dataset()


def one_name(var_names: Any, argument: str = "var_names") -> str | None:
    """The name in ``var_names``, which may be a list of one as for ArviZ."""
    if var_names is None or isinstance(var_names, str):
        return var_names
    if not isinstance(var_names, Sequence) or not all(isinstance(name, str) for name in var_names):
        raise TypeError(f"{argument} must be the name of a variable, got {check.shown(var_names)}")
    if len(var_names) != 1:
        raise ValueError(f"{argument} must be one name here, got {check.shown(var_names)}: call once for each variable")
    name: str = var_names[0]
    return name


def variable_of(
    data: Any, var_names: Any, group: str = "posterior", *, vectors: bool = False, argument: str = "var_names"
) -> xr.DataArray:
    """The draws of one variable with ``chain`` and ``draw`` first. The error for a wrong name suggests similar ones."""
    name, vectors = one_name(var_names, argument), check.flag("vectors", vectors)
    check.string("group", group)
    if isinstance(data, xr.DataArray):
        array = data if data.name is not None else data.rename(name or "X")
    elif isinstance(data, np.ndarray | list | tuple):
        array = _from_array(data, name or "X", vectors)
    else:
        variables = dataset_of(data, group)
        names = [str(known) for known in variables.data_vars]
        if name is None and len(names) == 1:
            name = names[0]
        if name is None:
            raise ValueError(f"{argument}=None: say which variable: {', '.join(names)}")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or _same_letters(name, names)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names)}"
            raise check.UnknownName(f"{argument}: no variable {name!r}; {hint}")
        array = variables[name]
    if array.dtype.kind not in "fiub":
        raise TypeError(f"data: {array.name!r} must have real numbers, got dtype {array.dtype}")
    missing = [dim for dim in SAMPLE_DIMS if dim not in array.dims]
    if missing:
        raise ValueError(
            f"data: {array.name!r} has dims {tuple(map(str, array.dims))} and lacks {' and '.join(missing)}: unstack a "
            f"stacked sample, or add the dimension with expand_dims(chain=[0])"
        )
    if 0 in array.shape:
        raise ValueError(f"data: {array.name!r} is empty: {dict(array.sizes)}")
    return array.transpose(*SAMPLE_DIMS, ...)


def _from_array(data: Any, name: str, vectors: bool) -> xr.DataArray:
    values = np.asarray(data)
    if values.ndim < 3 or np.ma.is_masked(data):
        raise ValueError(
            f"data: an array of draws has shape (chain, draw, ..., n, p) and nothing masked, got {check.shown(data)}"
        )
    core = ["row"] if vectors or values.ndim == 3 else ["row", "column"]
    batch = [f"batch_{i}" for i in range(values.ndim - 2 - len(core))]
    array = xr.DataArray(values, dims=[*SAMPLE_DIMS, *batch, *core], name=name)
    return array.assign_coords({dim: np.arange(array.sizes[dim]) for dim in SAMPLE_DIMS})


def matrix_draws(
    data: Any,
    var_names: Any = None,
    *,
    group: str = "posterior",
    orthonormal: bool = True,
    vectors: bool = False,
    has_vectors: bool = True,
    loadings: str = "",
) -> xr.DataArray:
    """Draws of a matrix as a ``DataArray`` with dims ``(chain, draw, *batch, n, p)``.

    A variable with one dimension besides ``chain`` and ``draw``, or one said to hold ``vectors``, gets a column
    dimension of size one (:func:`like_draws` removes it again). NaN draws are refused, and with ``orthonormal`` those
    whose ``|X'X - I|`` exceeds ``1e-6`` (``1e-3`` for float32). The caller says whether it
    has an argument ``vectors``, and in ``loadings`` what to do with columns of free length.
    """
    array = variable_of(data, var_names, group, vectors=vectors)
    if array.ndim == 2:
        raise ValueError(f"data: {array.name!r} is a scalar: nothing to align or to compare")
    if VECTOR_DIM not in array.dims and (vectors or array.ndim == 3):
        array = array.expand_dims(VECTOR_DIM, axis=-1)
    bad = ~np.isfinite(array.values).all(axis=tuple(range(2, array.ndim)))
    if bad.any():
        chain, draw = np.argwhere(bad)[0]
        raise ValueError(
            f"data: {bad.sum()} of {bad.size} draws of {array.name!r} are not finite (first: chain {chain}, draw "
            f"{draw}; by chain: {bad.sum(axis=1).tolist()}): drop them, or look at the divergences that produced them"
        )
    if orthonormal:
        _check_orthonormal(array, has_vectors, loadings)
    return array


def flat(draws: xr.DataArray) -> NDArray[np.float64]:
    """Values as ``(batch, chain * draw, n, p)`` in double precision."""
    values = np.asarray(draws.values, dtype=float)
    n_draws, n, p = values.shape[0] * values.shape[1], *values.shape[-2:]
    return np.moveaxis(values.reshape(n_draws, -1, n, p), 1, 0)


def like_draws(values: NDArray[np.float64], draws: xr.DataArray, *, sampled: bool = True) -> xr.DataArray:
    """The inverse of :func:`flat`: dims, coords and name of ``draws``; ``sampled=False`` for one matrix per batch."""
    template = draws if sampled else draws.isel(chain=0, draw=0, drop=True)
    if sampled:
        values = np.moveaxis(values, 0, 1)
    result = template.copy(data=np.ascontiguousarray(values).reshape(template.shape))
    return squeeze(result)


def squeeze(draws: xr.DataArray) -> xr.DataArray:
    """Without the column dimension that :func:`matrix_draws` gave to vectors."""
    return draws.isel({VECTOR_DIM: 0}, drop=True) if VECTOR_DIM in draws.dims else draws


def matrix_like(argument: str, reference: Any, draws: xr.DataArray) -> NDArray[np.float64]:
    """A matrix ``(..., n, q)`` to compare ``draws`` with; vectors may come without their column."""
    if isinstance(reference, xr.DataArray):
        order = [dim for dim in draws.dims if dim in reference.dims]
        reference = reference.transpose(*order).values if len(order) == reference.ndim else reference.values
    M = check.numbers(argument, reference).astype(float)
    vector = draws.dims[-1] == VECTOR_DIM and M.shape == draws.shape[2:-1]
    M = M[..., None] if vector or M.ndim == 1 else M
    shape = draws.shape[2:]
    if M.ndim < 2 or M.ndim > len(shape) or M.shape[-2] != shape[-2] or M.shape[:-2] not in ((), shape[:-2]):
        raise ValueError(f"{argument} must have n = {shape[-2]} rows and fit to draws of shape {shape}, got {M.shape}")
    return M


def _check_orthonormal(array: xr.DataArray, has_vectors: bool, loadings: str) -> None:
    n, p = array.shape[-2:]
    name, dims = f"data: {array.name!r}", tuple(map(str, array.dims[-2:]))
    tolerance = 1e-3 if array.dtype == np.float32 else 1e-6
    values = np.asarray(array.values, dtype=float)
    error = geometry.orthogonality_error(values) if n >= p else np.array([np.inf])
    worst = float(error.max())
    if worst <= tolerance:
        return
    if dims[-1] == VECTOR_DIM:
        hint = " Matrices of a single chain need a chain dimension in front, as in X[None]" if array.ndim == 4 else ""
        raise ValueError(
            f"{name} has no unit length along {dims[0]!r}: |x'x - 1| is up to {worst:.2g} "
            f"(median {np.median(error):.2g}); is it the right variable, with its n entries last?{hint}"
        )
    hint = ""
    if float(np.abs((values**2).sum(axis=-1) - 1).max()) <= tolerance:
        remedy = "say vectors=True" if has_vectors else f"choose one with .isel({dims[0]}=0)"
        hint = f", or {remedy} if each row along {dims[1]!r} is a unit vector of its own"
    if n < p:
        raise ValueError(f"{name} has n = {n} < p = {p} in its last two dims {dims}: transpose them{hint}")
    raise ValueError(
        f"{name} is not orthonormal in its last two dims {dims}: |X'X - I| is up to {worst:.2g} "
        f"(median {np.median(error):.2g}); is it the right variable, with (n, p) last{hint}? {loadings}".rstrip()
    )


def _same_letters(var: str, names: list[str]) -> list[str]:
    """Names that differ only in case. difflib misses those of one letter."""
    return [name for name in names if name.lower() == var.lower()]
