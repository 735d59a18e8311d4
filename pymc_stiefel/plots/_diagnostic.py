"""Plots of how well a subspace is known, and of how well it was sampled.

Every function takes draws as :func:`~pymc_stiefel.align` does, plots on ``ax`` (one ``Axes``, or as many as it has
panels) if given, and returns the ``Figure``. A batch of up to twelve matrices gives small multiples. Angles are in
degrees. The colours of Okabe & Ito can be told apart by colour-blind readers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel import geometry
from pymc_stiefel.analysis._alignment import METHODS
from pymc_stiefel.analysis._averages import principal_angles
from pymc_stiefel.analysis._inputs import dataset_of, matrix_like
from pymc_stiefel.analysis._summaries import KINDS, invariants
from pymc_stiefel.analysis._summaries import table as summary_table
from pymc_stiefel.plots._figures import GREY, PALETTE, density, panels, plain_draws, rank_shares, small_multiples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_energy", "plot_invariants", "plot_subspace"]


@check.renamed(var="var_names")
def plot_subspace(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    to: Any = "mean",
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Density of the principal angles: how well the column space is known.

    Pooled draws are filled, thin lines are single chains, and dashed lines show what uniform draws would give. With
    more than four angles, the smallest, the middle and the largest are shown.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    to : "mean", "draws" or array
        As for :func:`~pymc_stiefel.principal_angles`.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
    >>> pst.plot_subspace(draws).axes[0].get_xlabel()
    'principal angle (degrees)'
    """
    draws = plain_draws(data, var_names, group)
    n, p = draws.shape[-2:]
    if n == p:
        raise ValueError(f"data: n = p = {n}: the columns span the whole space, all principal angles are zero")
    if isinstance(to, str) and to == "chains":
        raise ValueError(
            "to='chains': angles between chain means are a small table: principal_angles(..., to='chains')"
        )
    if draws.ndim > 4:
        return small_multiples(draws, ax, (5.6, 2.6), lambda one, ax: plot_subspace(one, to=to, ax=ax))
    angles = np.degrees(principal_angles(draws, to=to).values)
    q = p if isinstance(to, str) else matrix_like("to", to, draws).shape[-1]
    null = np.degrees(_uniform_angles(n, p, q, 20_000 if p < 6 else 4000))
    m = angles.shape[-1]
    chosen = range(m) if m <= 4 else (0, m // 2, m - 1)
    grid = np.linspace(0, 90, 721)
    with panels(ax, (1, 1), (5.6, 2.6)) as (figure, (axis,)):
        for colour, k in zip(PALETTE, chosen, strict=False):
            curve = density(angles[..., k].ravel(), grid)
            axis.fill_between(grid, curve, color=colour, alpha=0.3, lw=0)
            axis.plot(grid, curve, color=colour, lw=1.4, label=rf"$\theta_{{{k + 1}}}$")
            for chain in angles[..., k]:
                axis.plot(grid, density(chain, grid), color=colour, lw=0.4, alpha=0.7)
            axis.plot(grid, density(null[:, k], grid), color=colour, lw=1.0, ls=(0, (4, 2)))
        axis.plot([], [], color=GREY, lw=1.0, ls=(0, (4, 2)), label="uniform")
        axis.set(xlabel="principal angle (degrees)", ylabel="density", xlim=(0, 90), xticks=range(0, 91, 15))
        axis.set_ylim(bottom=0)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.6)
    return figure


def _uniform_angles(n: int, p: int, q: int, size: int) -> NDArray[np.float64]:
    """Principal angles between a uniform p-dimensional space and a fixed one of dimension q, shape (size, min(p, q)).

    Only q rows of an n x p Gaussian matrix matter; the others enter by their Gram matrix, a Wishart matrix, whose
    triangular factor is drawn instead (Bartlett).
    """
    rng = np.random.default_rng(0)
    rest = rng.standard_normal((size, min(n - q, p), p))
    if n - q > p:
        lengths = np.sqrt(rng.chisquare(n - q - np.arange(p), size=(size, p)))
        rest = np.triu(rest, 1) + lengths[..., None] * np.eye(p)
    Y = geometry.polar(np.concatenate([rng.standard_normal((size, q, p)), rest], axis=1))
    return np.asarray(principal_angles(Y[None], to=np.eye(Y.shape[1], q)).values[0])


@check.renamed(var="var_names")
def plot_invariants(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str | None = None,
    method: str = "permutation",
    max_rows: int = 4,
    group: str = "posterior",
    ax: Any = None,
) -> Figure:
    """Traces and rank plots of identified quantities, those with the largest R-hat first.

    In the rank plot each line is the share of one chain in each bin of pooled ranks. The lines are flat and close
    together if the chains agree.

    Parameters
    ----------
    data, var_names, group
        Draws, see :func:`~pymc_stiefel.align`.
    kind : str, optional
        As for :func:`~pymc_stiefel.summary`; default ``"angles"``, or ``"aligned"`` if n = p.
    method : str
        As for :func:`~pymc_stiefel.align`; used for ``kind="aligned"``.
    max_rows : int
        Number of quantities to show.
    ax : Axes, sequence of Axes or Figure, optional
        Where to draw: one for each panel, or a figure (or subfigure) to put them in. Default: a new figure.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
    >>> len(pst.plot_invariants(draws).axes)  # two angles, a trace and a rank plot each
    4
    """
    check.choice("method", method, METHODS)
    max_rows = check.whole("max_rows", max_rows)
    draws = plain_draws(data, var_names, group)
    if kind is None:
        kind = "angles" if draws.shape[-2] > draws.shape[-1] else "aligned"
    check.choice("kind", kind, KINDS)
    if draws.ndim > 4:
        again: dict[str, Any] = {"kind": kind, "method": method, "max_rows": max_rows}
        size = (7.0, 0.5 + 1.45 * min(max_rows, draws.shape[-1] if kind == "angles" else max_rows))
        return small_multiples(draws, ax, size, lambda one, ax: plot_invariants(one, ax=ax, **again))
    quantities = invariants(draws, kind=kind, method=method)
    table = summary_table(quantities)
    if kind == "angles":
        quantities = quantities * (180 / np.pi)
    order = np.argsort(-table["r_hat"].fillna(0).to_numpy(), kind="stable")[:max_rows]
    n_chains, n_draws = quantities.shape[:2]
    n_bins = int(np.clip(n_draws // 20, 5, 20))
    with panels(ax, (len(order), 2), (7.0, 0.5 + 1.45 * len(order))) as (figure, axes):
        for row, index in enumerate(order):
            trace, rank = axes[2 * row], axes[2 * row + 1]
            values, stats = quantities.values[..., index], table.iloc[index]
            bins = rank_shares(values, n_bins)
            edges = np.linspace(0, 1, n_bins + 1)
            rank.axhline(1, color="black", lw=0.6, zorder=0)
            for c in range(n_chains):
                colour = PALETTE[c % len(PALETTE)]
                trace.plot(values[c], color=colour, lw=0.5, alpha=0.8)
                rank.stairs(
                    bins[c], edges, baseline=None, color=colour, lw=1.1, alpha=0.9, label=f"{c}" if row == 0 else None
                )
            trace.set_title(f"{table.index[index]}{' (degrees)' if kind == 'angles' else ''}", loc="left")
            rank.set_title(rf"$\hat R$ = {stats['r_hat']:.3f}, bulk ESS = {stats['ess_bulk']:.0f}", loc="left")
            rank.set_ylim(0, max(2.0, 1.1 * bins.max()))
            rank.set_yticks(range(int(rank.get_ylim()[1]) + 1))
            rank.set_xlim(0, 1)
            trace.margins(x=0)
            if row < len(order) - 1:
                trace.tick_params(labelbottom=False)
                rank.tick_params(labelbottom=False)
        if ax is None:
            figure.get_layout_engine().set(w_pad=0.1)
        axes[-2].set_xlabel("draw")
        axes[-1].set_xlabel("pooled rank (scaled)")
        for rank in axes[1::2]:
            rank.set_ylabel("share of chain")
        axes[1].legend(title="chain", loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.0)
    return figure


ENERGY_LABELS = {"xlabel": "energy minus its mean; change between draws", "ylabel": "density", "yticks": []}


def plot_energy(data: Any, *, group: str = "sample_stats", ax: Any = None) -> Figure:
    """Marginal energy and its changes between draws (``az.plot_energy``); very different widths mean heavy tails.

    The figure also shows the E-BFMI of each chain. Below 0.3, energies are explored slowly.

    Parameters
    ----------
    data : Dataset, InferenceData or DataTree
        With the statistic ``energy``.
    group : str
        Group of an ``InferenceData`` or ``DataTree``.
    ax : Axes, optional
        Where to draw, with ArviZ 0.x. Default: a new figure.

    Returns
    -------
    Figure

    References
    ----------
    Betancourt (2016), doi:10.48550/arXiv.1604.00695.

    Examples
    --------
    >>> import numpy as np, xarray as xr, pymc_stiefel as pst
    >>> energy = np.random.default_rng(0).normal(size=(2, 100))
    >>> len(pst.plot_energy(xr.Dataset({"energy": (("chain", "draw"), energy)})).axes) > 0
    True
    """
    import arviz as az  # late, as in PyMC 6: it takes longer to import than this package

    stats = dataset_of(data, group)
    if "energy" not in stats:
        raise check.UnknownName(f"data: no 'energy' among the statistics {', '.join(map(str, stats.data_vars))}")
    stats = stats[["energy"]].assign_coords({dim: np.arange(stats.sizes[dim]) for dim in ("chain", "draw")})
    if ax is not None and not hasattr(ax, "fill_between"):
        raise TypeError(f"ax must be Axes of Matplotlib, got {check.shown(ax)}")
    draw: Any = az.plot_energy  # its arguments depend on the version
    if az.__version__.startswith("0."):
        with warnings.catch_warnings():  # ArviZ 0.23 uses functions that Matplotlib 3.11 deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            axes = draw(az.InferenceData(sample_stats=stats), ax=ax, fill_color=PALETTE[:2])
        axes.set(**ENERGY_LABELS)
        return axes.figure
    if ax is not None:
        raise ValueError(f"ax must be None, since ArviZ {az.__version__} makes a figure of its own, got {ax!r}")
    tree = xr.DataTree.from_dict({"/sample_stats": stats})
    plot = draw(tree, backend="matplotlib", color=list(PALETTE))
    figure = plot.viz["figure"].item()
    figure.set_size_inches(9, 2.8)  # ArviZ's own figure is so wide that its labels are too small on a page
    figure.axes[0].set(title="", xlabel="E-BFMI", ylabel="chain", yticks=range(stats.sizes["chain"]))
    figure.axes[-1].set(**ENERGY_LABELS)
    return figure
