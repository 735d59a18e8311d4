"""Biplot of a factor model: scores of the rows and loadings of the features, with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel.analysis._inputs import variable_of
from pymc_stiefel.plots._figures import GREY, PALETTE, labels, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_scores"]

LINE = 9
"""Vertical distance of labels, in points."""


def plot_scores(
    data: Any,
    var: str = "scores",
    *,
    loadings: Any = None,
    factors: tuple[int, int] = (0, 1),
    prob: float = 0.9,
    colors: Any = None,
    max_features: int = 12,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Mean scores of the rows, each with an ellipse of posterior probability ``prob``, and loadings as arrows.

    Align scores and loadings together first:
    ``pst.align(draws, "W", method="varimax", companions={"scores": "rotate"})``.

    Parameters
    ----------
    data : DataArray, Dataset, InferenceData or DataTree
        Draws of the scores, of :func:`~pymc_stiefel.factor_scores`, with dims ``(chain, draw, row, factor)``.
    var : str
        Name of the scores in a Dataset or group.
    loadings : str or DataArray, optional
        Draws of the loadings: their name in ``data``, or the draws themselves. The arrows have their own scale.
    factors : (int, int)
        The two factors to show, by position.
    prob : float
        Probability of the ellipses, from the normal law with the covariance of the draws.
    colors : sequence, optional
        A group for each row (its labels, numbers or names), shown by colour.
    max_features : int
        Number of arrows to show, the longest ones.
    group : str
        Group of an ``InferenceData`` or ``DataTree``.
    ax : Axes, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, xarray as xr, pymc_stiefel as pst
    >>> draws = np.random.default_rng(0).normal(size=(2, 50, 8, 2)) + np.arange(8)[:, None]
    >>> scores = xr.DataArray(draws, dims=("chain", "draw", "row", "factor"), name="scores")
    >>> len(pst.plot_scores(scores).axes)
    1
    """
    check.real("prob", prob, 0, 1)
    check.whole("max_features", max_features)
    scores = variable_of(data, var, group, argument="var")
    if not isinstance(factors, Sequence) or isinstance(factors, str | bytes) or len(factors) != 2:
        raise TypeError(f"factors must be two numbers of columns, got {check.shown(factors)}")
    factors = (check.whole("factors", factors[0], 0), check.whole("factors", factors[1], 0))
    if scores.ndim != 4 or max(factors) >= scores.shape[-1]:
        raise ValueError(
            f"need draws of scores with dims (chain, draw, row, factor) and factors {tuple(factors)} among them, got "
            f"sizes {dict(scores.sizes)}"
        )
    given = np.zeros(scores.shape[2]) if colors is None else np.asarray(colors)
    if given.shape != (scores.shape[2],):
        raise ValueError(
            f"colors must have one entry for each of the {scores.shape[2]} rows, got {check.shown(colors)}"
        )
    if loadings is not None and not isinstance(loadings, str | xr.DataArray):
        raise TypeError(f"loadings must be a name in data or a DataArray, got {check.shown(loadings)}")
    source, name = (data, loadings) if isinstance(loadings, str) else (loadings, None)
    arrows = None if loadings is None else variable_of(source, name, group, argument="loadings")
    groups, of_row = np.unique(given, return_inverse=True)
    chosen = list(factors)
    ellipses = _ellipses(scores.values[..., chosen], prob)
    centre = ellipses[0]
    with panels(ax, (1, 1), (4.6, 4.2)) as (figure, (axis,)):
        for k, label in enumerate(groups):
            own, colour = of_row == k, PALETTE[k % len(PALETTE)]
            # many ellipses overlap: the more there are, the fainter they are drawn
            _draw_ellipses(
                axis, tuple(part[own] for part in ellipses), colour, float(np.clip(4 / len(own), 0.015, 0.12))
            )
            axis.scatter(*centre[own].T, s=9, color=colour, label=str(label), zorder=3)
        if arrows is not None:
            tips, features = _draw_arrows(axis, arrows, chosen, prob, np.abs(centre).max(), max_features)
        names = labels(scores, -1)
        axis.axhline(0, color=GREY, lw=0.5, zorder=0)
        axis.axvline(0, color=GREY, lw=0.5, zorder=0)
        axis.set(xlabel=names[chosen[0]], ylabel=names[chosen[1]])
        axis.margins(0.12)
        axis.autoscale_view()
        if arrows is not None:
            _draw_labels(axis, tips, features)
        if colors is not None:
            axis.legend(loc="best", handletextpad=0.1)
    return figure


def _ellipses(points: NDArray[Any], prob: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Centre, axes and angle of an ellipse for each of the points ``(chain, draw, k, 2)``."""
    flat = points.reshape(-1, *points.shape[2:])
    centre = flat.mean(axis=0)
    spread = flat - centre
    values, vectors = np.linalg.eigh(np.einsum("dki,dkj->kij", spread, spread) / max(1, len(flat) - 1))
    axes = 2 * np.sqrt(-2 * np.log1p(-prob) * np.maximum(values, 0))  # chi-squared with two degrees of freedom
    return centre, axes[:, 1], axes[:, 0], np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))


def _draw_ellipses(axis: Any, ellipses: tuple[NDArray[Any], ...], colour: str, alpha: float) -> None:
    from matplotlib.collections import EllipseCollection

    centre, *shape = ellipses
    places: Any = {"units": "xy", "offsets": centre, "offset_transform": axis.transData}
    axis.add_collection(EllipseCollection(*shape, facecolor=colour, edgecolor="none", alpha=alpha, **places))


def _draw_arrows(
    axis: Any, loadings: xr.DataArray, factors: list[int], prob: float, reach: float, count: int
) -> tuple[NDArray[Any], list[str]]:
    """Arrows of the longest loadings; returns their tips and labels."""
    tips, *shape, angles = _ellipses(loadings.values[..., factors], prob)
    lengths = np.linalg.norm(tips, axis=1)
    longest = np.argsort(-lengths)[:count]
    scale = 0.9 * reach / max(lengths.max(), np.finfo(float).tiny)
    tips = scale * tips[longest]
    _draw_ellipses(axis, (tips, *(scale * part[longest] for part in shape), angles[longest]), "black", 0.1)
    for tip in tips:
        axis.annotate("", tip, (0, 0), arrowprops={"arrowstyle": "->", "lw": 0.8, "color": "black"}, zorder=4)
    names = labels(loadings, -2)
    return tips, [names[k] for k in longest]


def _draw_labels(axis: Any, tips: NDArray[Any], names: list[str]) -> None:
    """Labels beside the tips, as near as possible without overlapping."""
    from matplotlib.patheffects import withStroke
    from scipy.optimize import isotonic_regression

    style: Any = {"textcoords": "offset points", "va": "center", "fontsize": 7, "zorder": 5}
    style["path_effects"] = [withStroke(linewidth=2, foreground="white", alpha=0.7)]
    right, points = tips[:, 0] > 0, 72 / axis.figure.dpi
    texts = [
        axis.annotate(name, tip, (4, 0) if side else (-4, 0), ha="left" if side else "right", **style)
        for name, tip, side in zip(names, tips, right, strict=True)
    ]
    width = axis.get_window_extent().width
    shares = [min(0.4, (text.get_window_extent().width + 6 / points) / width) for text in texts]
    for _ in range(3):  # the axis must be wide enough for the labels on both sides
        low, high = axis.get_xlim()
        for k, share in enumerate(shares):
            low = low if right[k] else min(low, (tips[k, 0] - share * high) / (1 - share))
            high = max(high, (tips[k, 0] - share * low) / (1 - share)) if right[k] else high
        axis.set_xlim(low, high)
    for side in (False, True):
        own = np.flatnonzero(right == side)
        own = own[np.argsort(tips[own, 1])]
        heights, least = points * axis.transData.transform(tips[own])[:, 1], LINE * np.arange(len(own))
        placed = isotonic_regression(heights - least).x + least if len(own) else heights
        for i, shift in zip(own, placed - heights, strict=True):
            texts[i].xyann = (4 if side else -4, shift)
