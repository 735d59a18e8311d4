"""What the pictures are made of: axes in the house style, labels, densities, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import geometry
from pymc_stiefel.analysis._alignment import align
from pymc_stiefel.analysis._inputs import VECTOR_DIM, matrix_draws

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#8C8C8C"
MANY = 40  # with more features than this, they run along the x axis and most names are left out
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "figure.dpi": 120,
    "savefig.dpi": 200,
}


@contextmanager
def panels(ax: Any, grid: tuple[int, int], size: tuple[float, float], **shared: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A new figure in the house style, or the user's axes; either way a flat list of ``rows * columns`` axes."""
    import matplotlib.pyplot as plt  # late, so that importing the package needs no display and no second

    needed = grid[0] * grid[1]
    with plt.rc_context(STYLE):
        if ax is None:
            figure, axes = plt.subplots(*grid, figsize=size, squeeze=False, layout="constrained", **shared)
        else:
            axes = np.asarray(ax, dtype=object)
            if axes.size != needed:
                raise ValueError(f"this picture has {needed} panels, got {axes.size} axes")
            figure = axes.flat[0].figure
        yield figure, list(axes.flat)


def name_largest(axis: Any, middle: Any, low: Any, high: Any, names: list[str], count: int = 5) -> None:
    """Names above (or below) the largest entries, leaving out those that would collide, and zeros."""
    taken: list[int] = []
    room = max(0.05, 0.013 * max(map(len, names))) * len(middle)
    for i in np.argsort(-np.abs(middle)):
        if len(taken) == count or middle[i] == 0:
            break
        if all(abs(int(i) - other) > room for other in taken):
            taken.append(int(i))
            up = middle[i] > 0
            axis.annotate(
                names[i],
                (i, high[i] if up else low[i]),
                xytext=(0, 2 if up else -2),
                textcoords="offset points",
                ha="left" if i < 0.05 * len(middle) else "right" if i > 0.95 * len(middle) else "center",
                va="bottom" if up else "top",
                fontsize=7,
            )
    axis.margins(y=0.18)


def label_features(axes: list[Any], draws: xr.DataArray) -> None:
    """Many features along the x axis: their numbers, or nothing but what they are if they have names."""
    axes[-1].set_xlabel(dim_name(draws, -2))
    if named(draws, -2):
        for axis in axes:
            axis.set_xticks([])


def label_columns(axis: Any, draws: xr.DataArray, width: float) -> None:
    """Columns along the x axis, slanted if their names need more than ``width`` inches each."""
    names = [str(value) for value in labels(draws, -1, prefix=False)]
    slanted = max(map(len, names)) * 0.08 > width
    axis.set_xticks(range(len(names)), names, **({"rotation": 40, "ha": "right"} if slanted else {}))
    axis.set_xlabel(dim_name(draws, -1))


def draw_globe(axis: Any, camera: NDArray[np.float64]) -> None:
    turn = np.linspace(0, 2 * np.pi, 361)
    axis.plot(np.cos(turn), np.sin(turn), color=GREY, lw=0.9, zorder=2)
    if len(camera) == 3:
        angles = np.radians(np.arange(-60, 61, 30))
        circles = [np.stack([np.cos(a) * np.cos(turn), np.cos(a) * np.sin(turn), 0 * turn + np.sin(a)]) for a in angles]
        for b in np.radians(np.arange(0, 180, 30)):
            circles.append(np.stack([np.cos(turn) * np.cos(b), np.cos(turn) * np.sin(b), np.sin(turn)]))
        for circle in circles:
            x, y, depth = camera @ circle
            axis.plot(np.where(depth >= 0, x, np.nan), y, color=GREY, lw=0.35, alpha=0.8, zorder=2)
            axis.plot(np.where(depth < 0, x, np.nan), y, color=GREY, lw=0.3, alpha=0.25, zorder=0)
    for i, name in enumerate(("$e_1$", "$e_2$", "$e_3$")[: len(camera)]):
        tip = camera[:2, i]
        length = float(np.hypot(*tip))
        outwards = tip / length if length > 1e-6 else np.array([0.0, 1.0])
        axis.plot(*np.stack([tip, tip + 0.08 * outwards], axis=1), color="black", lw=0.9, zorder=4)
        axis.text(*(tip + 0.16 * outwards), name, ha="center", va="center", zorder=5)


def camera(elevation: float, azimuth: float) -> NDArray[np.float64]:
    """Rows: right, up, and towards the viewer."""
    e, a = np.radians(elevation), np.radians(azimuth)
    towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    return np.stack([right, np.cross(towards, right), towards])


# ---------------------------------------------------------------- numbers


def aligned(data: Any, var: str | None, method: str | None, group: str, *, loadings: bool = True) -> xr.DataArray:
    """One matrix, aligned if ``method`` says so; without an orthonormal method, ``loadings`` of any length may come."""
    orthonormal = not loadings or method not in (None, "varimax")
    draws = one_matrix(matrix_draws(data, var, group=group, orthonormal=orthonormal))
    if method is None:
        return draws
    aligned = align(draws, method=method)
    assert isinstance(aligned, xr.DataArray)
    return aligned.expand_dims(VECTOR_DIM, axis=-1) if VECTOR_DIM in draws.dims else aligned


def one_matrix(draws: xr.DataArray) -> xr.DataArray:
    if draws.ndim > 4:
        raise ValueError(
            f"{draws.name!r} is a batch with dims {tuple(map(str, draws.dims[2:-2]))}: choose one with .isel(...)"
        )
    return draws


def named(draws: xr.DataArray, axis: int) -> bool:
    return draws.dims[axis] in draws.coords and draws[draws.dims[axis]].dtype.kind in "OSU"


def labels(draws: xr.DataArray, axis: int, *, prefix: bool = True) -> list[str]:
    """Coordinate labels; numbered columns get the name of their dimension in front, if ``prefix``."""
    dim = draws.dims[axis]
    if dim == VECTOR_DIM:
        return [str(draws.name)]
    values = draws[dim].values if dim in draws.coords else np.arange(draws.sizes[dim])
    front = f"{dim_name(draws, axis)} " if prefix and axis == -1 and not named(draws, axis) else ""
    return [f"{front}{value}" for value in values]


def dim_name(draws: xr.DataArray, axis: int) -> str:
    name = str(draws.dims[axis])
    return "" if name == VECTOR_DIM else name


def quantiles(draws: xr.DataArray, *levels: float) -> NDArray[np.float64]:
    return np.quantile(draws.values, levels, axis=(0, 1))


def first_two(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean direction of unit vectors (draws, n) and the main direction of their spread, as (n, 2)."""
    centre = geometry.polar(rows.mean(axis=0)[:, None])[:, 0]
    residual = rows - np.outer(rows @ centre, centre)
    return np.stack([centre, np.linalg.svd(residual, full_matrices=False)[2][0]], axis=1)


def density(
    values: NDArray[np.float64], grid: NDArray[np.float64], bounds: tuple[float, float] | None = (0.0, 90.0)
) -> NDArray[np.float64]:
    """Gaussian kernel density with Silverman's bandwidth, reflected at ``bounds``; binned, so cheap for many draws."""
    spread = min(values.std(), float(np.subtract(*np.percentile(values, [75, 25]))) / 1.34) or values.std()
    step = grid[1] - grid[0]
    width = max(1.06 * spread * len(values) ** -0.2, step)
    counts, edges = np.histogram(values, bins=len(grid), range=(grid[0] - step / 2, grid[-1] + step / 2))
    centres = (edges[1:] + edges[:-1]) / 2
    points = [centres] if bounds is None else [centres, 2 * bounds[0] - centres, 2 * bounds[1] - centres]
    kernel = sum(np.exp(-0.5 * ((grid[:, None] - c[None]) / width) ** 2) for c in points)
    return np.asarray(kernel @ counts) / (len(values) * width * np.sqrt(2 * np.pi))


def rank_shares(values: NDArray[np.float64], n_bins: int) -> NDArray[np.float64]:
    """Share of each chain in bins of pooled ranks, relative to its expected share; shape (chain, bin)."""
    ranks = values.ravel().argsort().argsort().reshape(values.shape)
    bins = ranks * n_bins // values.size
    counts = np.stack([np.bincount(row, minlength=n_bins) for row in bins])
    return counts * n_bins / values.shape[1]
