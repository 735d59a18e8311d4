"""Helpers of the plots: axes in one style, small multiples, labels, densities, ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import geometry
from pymc_stiefel.analysis._alignment import aligned_once
from pymc_stiefel.analysis._inputs import ALIGNED, VECTOR_DIM, matrix_draws, variable_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#8C8C8C"
MANY = 40  # with more features than this, they run along the x axis
MOST_MULTIPLES = 12  # matrices of a batch in one figure
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
def style() -> Iterator[None]:
    """``STYLE`` within a context. Unlike ``rc_context`` this leaves other settings alone: the first figure of a
    notebook's kernel switches interactive display on, and undoing that would hide all later figures.
    """
    from matplotlib import rcParams

    before = {name: rcParams[name] for name in STYLE}
    rcParams.update(STYLE)
    try:
        yield
    finally:
        rcParams.update(before)


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure, which a notebook shows only once."""
    import matplotlib.pyplot as plt  # late, so that importing the package needs no display and no second

    figure = plt.figure(figsize=size, layout="constrained")
    figure._ipython_display_ = functools.partial(_display_once, figure)  # type: ignore[attr-defined]
    return figure


def _display_once(figure: Figure) -> None:
    """IPython calls this to display a figure that is the value of a cell. It is then not shown a second time."""
    import matplotlib.pyplot as plt

    if "inline" in plt.get_backend():
        plt.close(figure)
    raise NotImplementedError  # tells IPython to display it like any other figure


@contextmanager
def panels(ax: Any, grid: tuple[int, int], size: tuple[float, float], **shared: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Axes in a new figure, in the user's (sub)figure, or the user's axes; a flat list of ``rows * columns`` axes."""
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    needed = grid[0] * grid[1]
    with style():
        if ax is None or isinstance(ax, FigureBase):
            figure = new_figure(size) if ax is None else ax
            axes = figure.subplots(*grid, squeeze=False, **shared)
        else:
            axes = np.asarray(ax, dtype=object)
            if not all(isinstance(one, Axes) for one in axes.flat):
                raise TypeError(f"ax must be Axes, a sequence of them or a Figure, got {ax!r}")
            if axes.size != needed:
                raise ValueError(f"ax: this picture has {needed} panels, got {axes.size} axes")
            figure = axes.flat[0].figure
        yield figure, list(axes.flat)


def small_multiples(draws: xr.DataArray, ax: Any, size: tuple[float, float], plot: Callable[..., Any]) -> Figure:
    """``plot(one, ax=subfigure)`` for every matrix of a batch."""
    batch = draws.dims[2:-2]
    count = math.prod(draws.shape[2:-2])
    if count > MOST_MULTIPLES or ax is not None:
        rest = "".join(f", {dim}=0" for dim in batch[1:])
        more = (
            ""
            if ax is not None
            else f", or up to {MOST_MULTIPLES} with .isel({batch[0]}=slice({MOST_MULTIPLES}){rest})"
        )
        raise ValueError(
            f"data: {draws.name!r} is a batch of {count} matrices with dims {tuple(map(str, batch))}: choose one with "
            f".isel({batch[0]}=0{rest}){more}"
        )
    columns = min(count, max(1, int(12 // size[0])))
    rows = -(-count // columns)
    with style():
        figure = new_figure((columns * size[0], rows * (size[1] + 0.3)))
        places = figure.subfigures(rows, columns, squeeze=False).flat
        for place, index in zip(places, np.ndindex(draws.shape[2:-2]), strict=False):
            one = draws.isel(dict(zip(batch, index, strict=True)))
            plot(one, ax=place)
            place.suptitle(", ".join(f"{dim} {one[dim].item() if dim in one.coords else i}"
                                     for dim, i in zip(batch, index, strict=True)), fontsize=9)  # fmt: skip
    return figure


def name_largest(axis: Any, place: Any, middle: Any, low: Any, high: Any, names: list[str]) -> None:
    """Write names above (or below) the five largest entries, except zeros and names that would overlap."""
    taken: list[int] = []
    room = max(0.05, 0.013 * max(map(len, names))) * len(middle)
    for i in np.argsort(-np.abs(middle)):
        if len(taken) == 5 or middle[i] == 0:
            break
        if all(abs(int(i) - other) > room for other in taken):
            taken.append(int(i))
            up = middle[i] > 0
            axis.annotate(
                names[i],
                (place[i], high[i] if up else low[i]),
                xytext=(0, 2 if up else -2),
                textcoords="offset points",
                ha="left" if i < 0.05 * len(middle) else "right" if i > 0.95 * len(middle) else "center",
                va="bottom" if up else "top",
                fontsize=7,
            )
    axis.margins(y=0.18)


def label_features(axis: Any, draws: xr.DataArray, place: Any) -> None:
    """Features along the x axis of a picture seven inches wide: names upright, as many as fit, or numbers."""
    axis.set_xlabel(dim_name(draws, -2))
    names = labels(draws, -2)
    if named(draws, -2):
        every = -(-len(names) // 77)
        size = min(7.0, 364 / len(names) * every)
        axis.set_xticks(place[::every], names[::every], rotation=90, fontsize=size)
    elif numeric(draws) and np.array_equal(place, np.arange(len(names))):  # columns of a picture, with their numbers
        chosen = np.unique(np.linspace(0, len(names) - 1, 7).astype(int))
        axis.set_xticks(chosen, [f"{draws[draws.dims[-2]].values[i]:.6g}" for i in chosen])


def numeric(draws: xr.DataArray) -> bool:
    """Whether the rows have coordinates with a numerical meaning, such as times, and not just a count."""
    dim = draws.dims[-2]
    if dim not in draws.coords or draws[dim].dtype.kind not in "fiuM":
        return False
    return draws[dim].dtype.kind == "M" or not np.array_equal(draws[dim].values, np.arange(draws.sizes[dim]))


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


def plain_draws(data: Any, var_names: Any, group: str, **rules: Any) -> xr.DataArray:
    """Draws for a picture. If ``align`` has returned them, they may be loadings whose columns are not unit vectors."""
    array = variable_of(data, var_names, group)
    loadings = "Loadings with free scales: align(data, orthonormal=False) first"
    rules = {"orthonormal": True} | rules
    rules["orthonormal"] &= ALIGNED not in array.attrs
    return matrix_draws(array, has_vectors=False, loadings=loadings, **rules)


def aligned(draws: xr.DataArray, method: str | None) -> xr.DataArray:
    return draws if method is None else aligned_once(draws, method)


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
    found: NDArray[np.float64] = np.quantile(draws.values, levels, axis=(0, 1))
    return found


def first_two(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean direction of unit vectors (draws, n) and the main direction of their spread, as (n, 2)."""
    centre = geometry.polar(rows.mean(axis=0)[:, None])[:, 0]
    residual = rows - np.outer(rows @ centre, centre)
    return np.stack([centre, np.linalg.svd(residual, full_matrices=False)[2][0]], axis=1)


def density(values: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kernel density of angles (Silverman's bandwidth), reflected at 0 and 90 degrees; draws are binned for speed."""
    spread = min(values.std(), float(np.subtract(*np.percentile(values, [75, 25]))) / 1.34) or values.std()
    step = grid[1] - grid[0]
    width = max(1.06 * spread * len(values) ** -0.2, step)
    counts, edges = np.histogram(values, bins=len(grid), range=(grid[0] - step / 2, grid[-1] + step / 2))
    centres = (edges[1:] + edges[:-1]) / 2
    kernel = sum(np.exp(-0.5 * ((grid[:, None] - c[None]) / width) ** 2) for c in (centres, -centres, 180 - centres))
    heights: NDArray[np.float64] = np.asarray(kernel @ counts) / (len(values) * width * np.sqrt(2 * np.pi))
    return heights


def rank_shares(values: NDArray[np.float64], n_bins: int) -> NDArray[np.float64]:
    """Share of each chain in bins of pooled ranks, relative to its expected share; shape (chain, bin)."""
    ranks = values.ravel().argsort().argsort().reshape(values.shape)
    bins = ranks * n_bins // values.size
    counts = np.stack([np.bincount(row, minlength=n_bins) for row in bins])
    shares: NDArray[np.float64] = counts * n_bins / values.shape[1]
    return shares
