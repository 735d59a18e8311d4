r"""ESS and R-hat of quantities that the posterior identifies.

Entries of ``X`` are often not identified: a posterior that depends on :math:`X X'` only has a mode for every choice of
signs, order or rotation of the columns. R-hat of raw entries is then large even in a perfect run. Quantities that do
not change with the choice of basis (projector entries, principal angles) or draws that have been aligned
(:func:`~pymc_stiefel.align`) have a mean, an effective sample size and an R-hat that can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel.analysis._alignment import METHODS, aligned_once
from pymc_stiefel.analysis._averages import principal_angles
from pymc_stiefel.analysis._inputs import ALIGNED, matrix_draws, squeeze, variable_of
from pymc_stiefel.analysis._nested_rhat import nested_rhat

__all__ = ["invariants", "summary", "table"]

Array = NDArray[np.float64]
KINDS = ("projector", "angles", "aligned", "raw")
ALL_ENTRIES = 100  # a projector with at most so many distinct entries is shown whole
N_WORST = 20
TAILS = (0.05, 0.95)


@check.renamed(var="var_names")
def invariants(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str | None = None,
    method: str = "permutation",
    vectors: bool = False,
    group: str = "posterior",
) -> xr.DataArray:
    """Scalar quantities that the posterior identifies, draw by draw, for diagnostics.

    Parameters
    ----------
    data, var_names, vectors, group
        Draws, see :func:`~pymc_stiefel.align`.
    kind, method
        Those of :func:`~pymc_stiefel.summary`, which is the table of these quantities; one kind only.

    Returns
    -------
    DataArray
        Dims ``(chain, draw, quantity)``, with the names of the quantities as coordinate.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> pst.invariants(np.tile(np.eye(3, 1), (2, 10, 1, 1)), kind="angles").quantity.values
    array(['angle[0]'], dtype=object)
    """
    check.choice("method", method, METHODS)
    if kind is not None:
        check.choice("kind", kind, KINDS)
    draws = _identified_draws(data, var_names, (kind,), method, vectors, group)
    n, p = draws.shape[-2:]
    kind = kind or ("projector" if n > p else "aligned")
    if kind in ("projector", "angles") and n == p:
        raise ValueError(
            f"kind={kind!r} with n = p = {n}: the columns span the whole space, use kind='aligned' or 'raw'"
        )
    if kind == "projector":
        return _projector_entries(draws)
    if kind == "angles":
        values = principal_angles(draws)
    else:
        values = squeeze(draws if kind == "raw" else aligned_once(draws, method))
    label = "angle" if kind == "angles" else kind
    labels = [_label(label, index, values.isel(chain=0, draw=0)) for index in np.ndindex(values.shape[2:])]
    return _as_quantities(values.values.reshape(*values.shape[:2], -1), labels, draws)


def _identified_draws(
    data: Any, var_names: Any, kinds: Sequence[str | None], method: str, vectors: bool, group: str
) -> xr.DataArray:
    """Draws of a matrix; loadings of free length are allowed if they are aligned or shown as they are."""
    array = variable_of(data, var_names, group, vectors=vectors)
    free = set(kinds) <= {"aligned", "raw"} and (ALIGNED in array.attrs or method == "varimax")
    loadings = "Loadings with free scales: summary(align(data, orthonormal=False), kind='aligned')"
    return matrix_draws(array, vectors=vectors, orthonormal=not free, loadings=loadings)


@check.renamed(var="var_names")
def summary(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str | Sequence[str] | None = None,
    method: str = "permutation",
    vectors: bool = False,
    group: str = "posterior",
    superchains: int | Sequence[int] | None = None,
) -> pd.DataFrame:
    r"""Mean, spread, ESS and R-hat of quantities that the posterior identifies.

    Parameters
    ----------
    data, var_names, vectors, group
        Draws, see :func:`~pymc_stiefel.align`; ``var_names`` may be several names, which the rows then begin with.
    kind : {"projector", "angles", "aligned", "raw"} or several of them
        - ``"projector"``: entries of :math:`P = XX'`. All of them if there are at most 100; for larger ``n`` the
          diagonal (the share of each feature in the subspace) and the 20 entries off the diagonal with the largest
          split R-hat, which is computed for all :math:`n^2` entries by matrix products;
        - ``"angles"``: principal angles to the mean subspace;
        - ``"aligned"``: entries after :func:`~pymc_stiefel.align`;
        - ``"raw"``: entries as sampled, for comparison.

        Default: ``"projector"``, or ``"aligned"`` for square matrices, whose projector is the identity.
    method : str
        The ``method`` of :func:`~pymc_stiefel.align`, for ``kind="aligned"``; with ``"varimax"`` columns may have any
        length, so that this is the table of loadings with their intervals.
    superchains : int or sequence of int, optional
        For many short chains that start in groups from the same points: the number of groups, or the group of each
        chain, as for :func:`~pymc_stiefel.nested_rhat`.

    Returns
    -------
    DataFrame
        One row per quantity; columns ``mean, sd, q5, q95, mcse_mean, ess_bulk, ess_tail, r_hat``, and
        ``r_hat_nested`` if there are ``superchains``.

    References
    ----------
    Vehtari et al. (2021), doi:10.1214/20-BA1221; Margossian et al. (2024), doi:10.1214/24-BA1453.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 100, 3, 1)))[0]
    >>> pst.summary(draws, kind=("angles", "raw"))["r_hat"].lt(1.1).all()
    np.True_
    """
    kinds: list[Any] = list(kind) if isinstance(kind, list | tuple) and kind else [kind]
    for one in kinds:
        if one is not None:
            check.choice("kind", one, KINDS)
    if isinstance(var_names, list | tuple) and len(var_names) > 1:
        options: dict[str, Any] = {"method": method, "vectors": vectors, "group": group, "superchains": superchains}
        several = {name: summary(data, name, kind=kind, **options) for name in var_names}
        return pd.concat([one.rename(index=lambda row, name=name: f"{name} {row}") for name, one in several.items()])
    draws = _identified_draws(data, var_names, kinds, method, vectors, group)
    if draws.sizes["draw"] < 4:
        raise ValueError(f"data: need at least 4 draws in each chain for R-hat and ESS, got {draws.sizes['draw']}")
    return pd.concat([table(invariants(draws, kind=one, method=method), superchains) for one in kinds])


def table(quantities: xr.DataArray, superchains: int | Sequence[int] | None = None) -> pd.DataFrame:
    """Diagnostics of ``quantities`` with dims ``(chain, draw, quantity)``, one row each, by ArviZ.

    Constant quantities have no R-hat (NaN), nor has a single chain.
    """
    import arviz as az  # late, as in PyMC 6: it takes longer to import than this package

    data = quantities.drop_vars("quantity").to_dataset(name="x")
    q5, q95 = np.quantile(quantities.values, TAILS, axis=(0, 1))
    tails = {} if az.__version__.startswith("0.") else {"prob": TAILS}  # ArviZ 1 would take them from its rcParams
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = {
            "mean": quantities.values.mean(axis=(0, 1)),
            "sd": quantities.values.std(axis=(0, 1), ddof=1),
            "q5": q5,
            "q95": q95,
            "mcse_mean": az.mcse(data, method="mean")["x"].values,
            "ess_bulk": az.ess(data, method="bulk")["x"].values,
            "ess_tail": az.ess(data, method="tail", **tails)["x"].values,
            "r_hat": az.rhat(data)["x"].values if quantities.sizes["chain"] > 1 else np.nan,
        }
        if superchains is not None:
            columns["r_hat_nested"] = nested_rhat(quantities, superchains).values
    return pd.DataFrame(columns, index=pd.Index(quantities["quantity"].values, name=None))


def _projector_entries(draws: xr.DataArray) -> xr.DataArray:
    X = np.asarray(draws.values, dtype=float)
    n = X.shape[-2]
    values, labels = [], []
    for batch in np.ndindex(X.shape[2:-2]):
        x = X[(slice(None), slice(None), *batch)]
        if n * (n + 1) // 2 <= ALL_ENTRIES:
            i, j = np.triu_indices(n)
        else:
            rhat = np.triu(_projector_rhat(x), 1)
            worst = np.argsort(rhat, axis=None)[: -N_WORST - 1 : -1]
            off = np.unravel_index(worst, rhat.shape)
            i, j = np.concatenate([np.arange(n), off[0]]), np.concatenate([np.arange(n), off[1]])
        values.append(np.einsum("cdkp,cdkp->cdk", x[:, :, i], x[:, :, j]))
        template = draws.isel(chain=0, draw=0)
        for a, b in zip(i.tolist(), j.tolist(), strict=True):
            labels.append(_label("projector", (*batch, a, b), template, repeat_rows=True))
    return _as_quantities(np.concatenate(values, axis=-1), labels, draws)


def _projector_rhat(X: Array) -> Array:
    """Split R-hat (without ranks) of all entries of ``XX'``; ``X`` is (chain, draw, n, p), the result (n, n).

    The second moment of an entry is a sum over pairs of columns of products of fourth order, so it needs matrix
    products of size n only, never the projectors of all draws.
    """
    n_chains, n_draws, n, p = X.shape
    half = n_draws // 2
    Z = np.moveaxis(X[:, : 2 * half].reshape(2 * n_chains, half, n, p), 1, -1)  # (half chain, n, p, draw)
    first = np.zeros((len(Z), n, n))
    second = np.zeros_like(first)
    for a in range(p):
        first += Z[:, :, a] @ np.swapaxes(Z[:, :, a], -1, -2) / half
        for b in range(a, p):
            product = Z[:, :, a] * Z[:, :, b]
            second += (1 if a == b else 2) * (product @ np.swapaxes(product, -1, -2)) / half
    within = (second - first**2).mean(axis=0) * half / (half - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rhat: Array = np.nan_to_num(np.sqrt((half - 1) / half + first.var(axis=0, ddof=1) / within))
    return rhat


def _label(kind: str, index: tuple[int, ...], template: xr.DataArray, *, repeat_rows: bool = False) -> str:
    """``kind[label, ...]`` with coordinate labels where there are any; a projector has its rows twice."""
    dims = (*template.dims[:-1], template.dims[-2]) if repeat_rows else template.dims
    parts = [template[dim].values[i] if dim in template.coords else i for dim, i in zip(dims, index, strict=True)]
    return f"{kind}[{', '.join(map(str, parts))}]"


def _as_quantities(values: Array, labels: list[str], draws: xr.DataArray) -> xr.DataArray:
    coords: dict[str, Any] = {dim: draws.coords[dim] for dim in ("chain", "draw") if dim in draws.coords}
    coords["quantity"] = np.array(labels, dtype=object)
    return xr.DataArray(values, dims=("chain", "draw", "quantity"), coords=coords, name=draws.name)
