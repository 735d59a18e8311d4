"""Plots of orthonormal matrices, after alignment.

Every function takes draws as :func:`~pymc_stiefel.align` does, plots on ``ax`` (one ``Axes``, or as many as it has
panels) if given, and returns the ``Figure``. A batch of up to twelve matrices gives small multiples. Draws that
``align`` has returned are not aligned again. The colours of Okabe & Ito can be told apart by colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_stiefel import _checks as check
from pymc_stiefel import geometry
from pymc_stiefel.analysis._alignment import METHODS
from pymc_stiefel.plots._figures import (
    GREY,
    MANY,
    PALETTE,
    aligned,
    camera,
    dim_name,
    draw_globe,
    first_two,
    label_columns,
    label_features,
    labels,
    name_largest,
    named,
    numeric,
    panels,
    plain_draws,
    quantiles,
    small_multiples,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_alignment", "plot_columns", "plot_loadings", "plot_sphere"]


@check.renamed(var="var_names")
def plot_columns(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    method: str | None = "permutation",
    prob: float = 0.9,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Median and central interval of every entry, one panel for each column.

    Up to 40 features are listed by name. If there are more, or if their coordinates are numbers or dates, features run
    along the x axis. Entries whose ``prob`` interval excludes zero are coloured.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    method : str or None
        As for :func:`~pymc_stiefel.align`; None leaves the draws as they are.
    prob : float
        Probability of the outer interval.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
    >>> len(pst.plot_columns(draws).axes)
    2
    """
    _check_method(method)
    prob = check.real("prob", prob, 0, 1)
    draws = plain_draws(data, var_names, group, orthonormal=method not in (None, "varimax"))
    n, p = draws.shape[-2:]
    along = n > MANY or numeric(draws)
    grid = (p, 1) if along else (1, p)
    size = (7.0, 0.9 + 1.35 * p) if along else (1.0 + 1.9 * p, max(1.8, 0.9 + 0.19 * n))
    if draws.ndim > 4:
        return small_multiples(draws, ax, size, lambda one, ax: plot_columns(one, method=method, prob=prob, ax=ax))
    draws = aligned(draws, method)
    low, half_low, middle, half_high, high = quantiles(draws, (1 - prob) / 2, 0.25, 0.5, 0.75, (1 + prob) / 2)
    names, columns = labels(draws, -2), labels(draws, -1)
    place = draws[draws.dims[-2]].values if numeric(draws) else np.arange(n)
    with panels(ax, grid, size, sharex=True, sharey=True) as (figure, axes):
        for k, axis in enumerate(axes):
            clear = (low[:, k] > 0) | (high[:, k] < 0)
            colours = np.where(clear, PALETTE[k % len(PALETTE)], GREY)
            lines, spans = (axis.vlines, axis.axhline) if along else (axis.hlines, axis.axvline)
            spans(0, color="black", lw=0.6, zorder=0)
            lines(place, low[:, k], high[:, k], color=colours, lw=0.7 if along else 1.0)
            if not along:
                lines(place, half_low[:, k], half_high[:, k], color=colours, lw=2.6)
            xy = (place, middle[:, k]) if along else (middle[:, k], place)
            axis.scatter(*xy, s=4 if along else 14, c=colours, edgecolor="none" if along else "white", lw=0.6, zorder=3)
            if along:
                axis.set_ylabel(f"{columns[k]}")
                axis.margins(x=0.01)
                if named(draws, -2):
                    name_largest(axis, place, np.where(clear, middle[:, k], 0), low[:, k], high[:, k], names)
            else:
                axis.set_title(f"{columns[k]}")
        if along:
            label_features(axes[-1], draws, place)
            figure.supylabel(f"entry (median and {prob:.0%} interval)", fontsize=9)
        else:
            axes[0].set_yticks(place, names)
            axes[0].set_ylim(n - 0.4, -0.6)
            figure.supxlabel(f"entry (median, 50% and {prob:.0%} interval)", fontsize=9)
    return figure


def _check_method(method: Any) -> None:
    if method is not None:
        check.choice("method", method, METHODS)


@check.renamed(var="var_names")
def plot_loadings(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    method: str | None = "permutation",
    prob: float = 0.9,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Heat maps of the posterior median (grey where the ``prob`` interval covers zero) and of the standard deviation.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    method : str or None
        As for :func:`~pymc_stiefel.align`; None leaves the draws as they are.
    prob : float
        Probability of the outer interval.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
    >>> len(pst.plot_loadings(draws).axes)  # two maps, two colour bars
    4
    """
    _check_method(method)
    prob = check.real("prob", prob, 0, 1)
    draws = plain_draws(data, var_names, group, orthonormal=method not in (None, "varimax"))
    n, p = draws.shape[-2:]
    many = n > MANY
    grid, size = ((2, 1), (7.0, 1.7 + 0.36 * p)) if many else ((1, 2), (3.0 + 0.6 * p, max(2.4, 1.1 + 0.19 * n)))
    if draws.ndim > 4:
        return small_multiples(draws, ax, size, lambda one, ax: plot_loadings(one, method=method, prob=prob, ax=ax))
    draws = aligned(draws, method)
    low, middle, high = quantiles(draws, (1 - prob) / 2, 0.5, (1 + prob) / 2)
    spread = draws.values.std(axis=(0, 1))
    clear = (low > 0) | (high < 0)
    top = np.abs(middle).max()
    known, unknown = np.where(clear, middle, np.nan), np.where(clear, np.nan, np.abs(middle))
    note = f"grey: {prob:.0%} interval covers 0"
    style: Any = {"aspect": "auto", "interpolation": "nearest"}
    with panels(ax, grid, size, sharex=True, sharey=True) as (figure, axes):
        axes[0].imshow(unknown.T if many else unknown, cmap="Greys", vmin=-0.5 * top, vmax=2 * top, **style)
        images = [
            axes[0].imshow(known.T if many else known, cmap="RdBu_r", vmin=-top, vmax=top, **style),
            axes[1].imshow(spread.T if many else spread, cmap="Purples", vmin=0, vmax=spread.max(), **style),
        ]
        for axis, image, title in zip(axes, images, (f"median ({note})" if many else "median", "sd"), strict=True):
            bar = figure.colorbar(image, ax=axis, pad=0.02, fraction=0.05 if many else 0.12)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=7)
            axis.set_title(title)
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0)
            if many:
                axis.set_yticks(np.arange(p), labels(draws, -1))
            else:
                label_columns(axis, draws, width=0.6)
        if many:
            label_features(axes[-1], draws, np.arange(n))
        else:
            axes[0].set_yticks(np.arange(n), labels(draws, -2))
            figure.supxlabel(note, fontsize=8)
    return figure


@check.renamed(var="var_names")
def plot_sphere(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    method: str | None = None,
    view: tuple[float, float] = (25.0, 35.0),
    max_draws: int = 2000,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Columns as points on the circle (n = 2) or on the sphere (n = 3); points on the far side are pale.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    method : str or None
        As for :func:`~pymc_stiefel.align`; None leaves the draws as they are.
    view : (float, float)
        Elevation and azimuth of the viewpoint, in degrees.
    max_draws : int
        Largest number of draws to show; more are thinned.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 3, 2)))[0]
    >>> len(pst.plot_sphere(draws).axes)
    1
    """
    _check_method(method)
    max_draws = check.whole("max_draws", max_draws)
    if check.numbers("view", view).shape != (2,):
        raise ValueError(f"view must be two numbers, elevation and azimuth, got {view!r}")
    draws = plain_draws(data, var_names, group)
    n, p = draws.shape[-2:]
    if n not in (2, 3):
        raise ValueError(f"data: only n = 2 and n = 3 can be seen on a sphere, got n = {n}; try plot_alignment")
    if draws.ndim > 4:
        again: dict[str, Any] = {"method": method, "view": view, "max_draws": max_draws}
        return small_multiples(draws, ax, (3.6, 3.6), lambda one, ax: plot_sphere(one, ax=ax, **again))
    draws = aligned(draws, method)
    X = draws.values.reshape(-1, n, p)
    X = X[:: max(1, -(-len(X) // max_draws))]
    with panels(ax, (1, 1), (3.6, 3.6)) as (figure, (axis,)):
        eye = camera(*view) if n == 3 else np.eye(2)
        draw_globe(axis, eye)
        rng = np.random.default_rng(0)
        for k in range(p):
            points = X[..., k] @ eye.T
            front = np.ones(len(points), bool) if n == 2 else points[:, 2] >= 0
            if n == 2:  # a little radial jitter shows how many draws are at the same angle
                points = points * (1 + 0.02 * rng.standard_normal((len(points), 1)))
            colour = PALETTE[k % len(PALETTE)]
            style = {"s": 7, "color": colour, "edgecolor": "none"}
            axis.scatter(*points[~front, :2].T, alpha=0.12, zorder=1, **style)
            axis.scatter(*points[front, :2].T, alpha=0.5, zorder=3, **style)
            axis.scatter([], [], s=18, color=colour, label=str(labels(draws, -1)[k]))
        axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
        axis.axis("off")
        if p > 1:
            axis.legend(
                loc="upper left",
                handletextpad=0.1,
                borderaxespad=0,
                title=dim_name(draws, -1) if named(draws, -1) else None,
            )
    return figure


@check.renamed(var="var_names")
def plot_alignment(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    method: str = "permutation",
    max_draws: int = 2000,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Columns before and after :func:`~pymc_stiefel.align`, projected on two columns of the aligned mean.

    Aligned draws gather in one cloud per column: at (1, 0), (0, 1) and the origin if they are well identified. With
    more than seven columns, all but the first two are grey.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    method : str
        As for :func:`~pymc_stiefel.align`.
    max_draws : int
        Largest number of draws to show; more are thinned.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
    >>> [axis.get_title() for axis in pst.plot_alignment(draws).axes]
    ['as sampled', 'aligned (permutation)']
    """
    check.choice("method", method, METHODS)
    max_draws = check.whole("max_draws", max_draws)
    raw = plain_draws(data, var_names, group, orthonormal=method != "varimax")
    if raw.ndim > 4:
        again: dict[str, Any] = {"method": method, "max_draws": max_draws}
        return small_multiples(raw, ax, (6.2, 3.2), lambda one, ax: plot_alignment(one, ax=ax, **again))
    after = aligned(raw, method)
    n, p = raw.shape[-2:]
    centre = after.values.mean(axis=(0, 1))
    plane = geometry.polar(centre)[:, :2] if p > 1 else first_two(after.values.reshape(-1, n))
    thin = max(1, -(-raw.shape[0] * raw.shape[1] // max_draws))
    scale = np.linalg.norm(raw.values, axis=-2).max()
    names = labels(raw, -1)
    few = p <= len(PALETTE)  # otherwise all columns but the two that span the plane are grey
    with panels(ax, (1, 2), (6.2, 3.2), sharex=True, sharey=True) as (figure, axes):
        for axis, draws, title in zip(axes, (raw, after), ("as sampled", f"aligned ({method})"), strict=True):
            points = np.einsum("dnp,nk->dpk", draws.values.reshape(-1, n, p)[::thin], plane)
            style = {"alpha": 0.35, "edgecolor": "none", "rasterized": True}
            for k in range(p if few else 2):
                axis.scatter(*points[:, k].T, s=5, color=PALETTE[k], **style)
                axis.scatter([], [], s=18, color=PALETTE[k], label=names[k])
            if not few:
                others = points[:: max(1, p // 10), 2:].reshape(-1, 2)
                axis.scatter(*others.T, s=2, color=GREY, zorder=0, **style)
                axis.scatter([], [], s=18, color=GREY, label=f"{p - 2} others")
            turn = np.linspace(0, 2 * np.pi, 200)
            axis.plot(scale * np.cos(turn), scale * np.sin(turn), color=GREY, lw=0.6, zorder=0)
            axis.set(title=title, aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
            axis.set_xlabel(f"along the mean of {names[0]}")
        axes[0].set_ylabel(f"along the mean of {names[1]}" if p > 1 else "main direction of spread")
        if p > 1:
            axes[1].legend(
                loc="center left",
                bbox_to_anchor=(1.0, 0.5),
                title=dim_name(raw, -1) if named(raw, -1) else None,
                handletextpad=0.1,
            )
    return figure
