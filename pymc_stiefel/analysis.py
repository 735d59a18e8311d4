r"""What the draws of an orthonormal matrix say: means, spread, angles, and diagnostics that mean something.

Entries of ``X`` are often not identified: a posterior that knows :math:`X X'` only has as many modes as there are
signs, orders or rotations of the columns. R-hat of raw entries is then large in a perfect run. Quantities that do not
change with the choice of basis (projector entries, principal angles) or draws that have been aligned
(:func:`~pymc_stiefel.align`) have a mean, an effective sample size and an R-hat that can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import geometry
from pymc_stiefel.alignment import align
from pymc_stiefel.frechet import frechet_mean, squared_length, stiefel_log
from pymc_stiefel.posterior import VECTOR_DIM, flat, like_draws, matrix_draws

__all__ = ["dispersion", "invariants", "mean", "orthogonality_error", "principal_angles", "summary"]

Array = NDArray[np.float64]
MEANS = ("extrinsic", "frechet", "subspace")
KINDS = ("projector", "angles", "aligned", "raw")
ALL_ENTRIES = 100  # a projector with at most so many distinct entries is shown whole
N_WORST = 20


def orthogonality_error(data: Any, var: str | None = None, *, group: str = "posterior") -> xr.DataArray:
    """Largest entry of ``|X'X - I|`` in each draw.

    Parameters
    ----------
    data, var, group
        Draws, see :func:`~pymc_stiefel.align`; they need not be orthonormal.

    Returns
    -------
    DataArray
        Dims ``(chain, draw, *batch)``.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> float(pst.orthogonality_error(np.ones((1, 2, 3, 1))).max())
    2.0
    """
    draws = matrix_draws(data, var, group=group, orthonormal=False)
    return draws.isel({draws.dims[-1]: 0, draws.dims[-2]: 0}, drop=True).copy(
        data=geometry.orthogonality_error(np.asarray(draws.values, dtype=float))
    )


def mean(data: Any, var: str | None = None, *, kind: str = "extrinsic", group: str = "posterior") -> xr.DataArray:
    r"""The mean of the draws as an orthonormal matrix.

    Parameters
    ----------
    data, var, group
        Draws, see :func:`~pymc_stiefel.align`. Align them first if columns are not identified.
    kind : {"extrinsic", "frechet", "subspace"}
        - ``"extrinsic"``: the polar factor of the average, :math:`\arg\min_M E|X - M|^2`;
        - ``"frechet"``: :math:`\arg\min_M E\,d(X, M)^2` with the geodesic distance of the canonical metric;
        - ``"subspace"``: the leading ``p`` eigenvectors of the average projector :math:`E\,XX'`. It needs no
          alignment; columns come in the order of their eigenvalues, with their largest entry positive.

    Returns
    -------
    DataArray
        Dims ``(*batch, n, p)``.

    References
    ----------
    Chikuse (2003), doi:10.1007/978-0-387-21540-2; Zimmermann (2017), doi:10.1137/16M1074485.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.tile(np.eye(3, 1), (2, 10, 1, 1)) * np.array([1, -1])[:, None, None, None]
    >>> pst.mean(draws, kind="subspace").values.ravel().round(6)
    array([1., 0., 0.])
    """
    draws = matrix_draws(data, var, group=group)
    X = flat(draws)
    _check_mean(kind)
    compute = {"extrinsic": _extrinsic_mean, "frechet": frechet_mean, "subspace": _subspace_mean}[kind]
    return like_draws(np.stack([compute(x) for x in X]), draws, sampled=False)


def dispersion(data: Any, var: str | None = None, *, kind: str = "extrinsic", group: str = "posterior") -> xr.DataArray:
    r"""Spread of the draws about their mean of the same kind.

    Parameters
    ----------
    data, var, group
        Draws, see :func:`~pymc_stiefel.align`. Align them first if columns are not identified.
    kind : {"extrinsic", "frechet", "subspace"}
        That of :func:`~pymc_stiefel.mean`.

        - ``"extrinsic"``: :math:`E|X - M|^2 / 2p`, between 0 and 1;
        - ``"frechet"``: the mean squared geodesic distance of the canonical metric;
        - ``"subspace"``: the mean of :math:`\sin^2` of the principal angles, between 0 and :math:`1 - p/n`, which is
          the value for uniform draws.

    Returns
    -------
    DataArray
        Dims ``(*batch,)``.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> float(pst.dispersion(np.tile(np.eye(3, 2), (2, 10, 1, 1))))
    0.0
    """
    draws = matrix_draws(data, var, group=group)
    _check_mean(kind)
    spread = np.array([_spread(x, kind) for x in flat(draws)])
    return draws.isel(dict.fromkeys((*draws.dims[:2], *draws.dims[-2:]), 0), drop=True).copy(
        data=spread.reshape(draws.shape[2:-2])
    )


def _check_mean(kind: str) -> None:
    if kind not in MEANS:
        raise ValueError(f"kind must be one of {', '.join(MEANS)}, got {kind!r}")


def _extrinsic_mean(X: Array) -> Array:
    return geometry.polar(X.mean(axis=0))


def _subspace_mean(X: Array) -> Array:
    n_draws, n, p = X.shape
    rows = X.transpose(0, 2, 1).reshape(n_draws * p, n)
    if n <= len(rows):
        M = np.linalg.eigh(rows.T @ rows)[1][:, : -p - 1 : -1]
    else:
        M = np.linalg.svd(rows, full_matrices=False)[2][:p].T
    top = np.take_along_axis(M, np.abs(M).argmax(axis=0)[None], axis=0)
    return M * np.where(top < 0, -1.0, 1.0)


def _spread(X: Array, kind: str) -> float:
    p = X.shape[-1]
    if kind == "extrinsic":
        return 1 - float(np.linalg.svd(X.mean(axis=0), compute_uv=False).sum()) / p
    if kind == "frechet":
        M = frechet_mean(X)
        return float(squared_length(M, stiefel_log(M, X)).mean())
    return float((np.sin(_angles(X, _subspace_mean(X))) ** 2).mean())


# ---------------------------------------------------------------- principal angles


def principal_angles(data: Any, var: str | None = None, *, to: Any = "mean", group: str = "posterior") -> xr.DataArray:
    r"""Principal angles between column spaces, in radians, ascending along the last dimension ``angle``.

    Parameters
    ----------
    data, var, group
        Draws, see :func:`~pymc_stiefel.align`. Angles do not depend on signs, order or rotation of the columns.
    to : {"mean", "draws", "chains"} or array (n, q)
        What the draws are compared with: the mean subspace; other draws (half a chain away and in the next chain, so
        that the pair is all but independent: the spread of the posterior without a centre); or a given matrix with
        orthonormal columns. ``"chains"`` compares the mean subspaces of the chains with each other.

    Returns
    -------
    DataArray
        Dims ``(chain, draw, *batch, angle)``, or ``(chain, other_chain, *batch, angle)`` for ``to="chains"``.

    Notes
    -----
    Cosines are the singular values of :math:`X'Y`, sines those of :math:`Y - XX'Y`; both are used, so that small
    angles are exact [1]_.

    References
    ----------
    .. [1] Björck & Golub (1973), doi:10.1090/S0025-5718-1973-0348991-3.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.tile(np.eye(4, 2), (2, 10, 1, 1))
    >>> pst.principal_angles(draws, to=np.eye(4)[:, 1:3]).values[0, 0].round(4)
    array([0.    , 1.5708])
    """
    draws = matrix_draws(data, var, group=group)
    X = np.asarray(draws.values, dtype=float)
    batch = tuple(draws.dims[2:-2])
    coords = {dim: draws.coords[dim] for dim in ("chain", "draw", *batch) if dim in draws.coords}
    dims: tuple[Any, ...] = ("chain", "draw", *batch, "angle")
    if isinstance(to, str):
        if to not in ("mean", "draws", "chains"):
            raise ValueError(f"to must be 'mean', 'draws', 'chains' or a matrix, got {to!r}")
        if to == "chains":
            means = np.stack([_batched_mean(chain) for chain in X])
            coords = {dim: values for dim, values in coords.items() if dim != "draw"}
            if "chain" in coords:
                coords["other_chain"] = xr.DataArray(coords["chain"].values, dims="other_chain")
            return xr.DataArray(
                _angles(means[:, None], means[None]), dims=("chain", "other_chain", *batch, "angle"), coords=coords
            )
        if to == "mean":
            Y = _batched_mean(X.reshape(-1, *X.shape[2:]))
        else:
            if X.shape[0] * X.shape[1] < 2:
                raise ValueError("need at least two draws to compare draws with each other")
            Y = np.roll(X, (1, max(1, X.shape[1] // 2)), axis=(0, 1))
    else:
        Y = _matrix(to, X.shape[-2])
    return xr.DataArray(_angles(X, Y), dims=dims, coords=coords, name="angle")


def _angles(X: Array, Y: Array) -> Array:
    if X.shape[-1] > Y.shape[-1]:  # the smaller space is the one that is projected
        X, Y = Y, X
    overlap = np.swapaxes(Y, -1, -2) @ X
    cosines = np.linalg.svd(overlap, compute_uv=False)
    sines = np.linalg.svd(X - Y @ overlap, compute_uv=False)[..., ::-1]
    return np.arctan2(sines, cosines)


def _batched_mean(X: Array) -> Array:
    """Subspace mean over the first axis, for any batch in the middle."""
    flat_batch = X.reshape(len(X), -1, *X.shape[-2:])
    return np.stack([_subspace_mean(flat_batch[:, b]) for b in range(flat_batch.shape[1])]).reshape(X.shape[1:])


def _matrix(reference: Any, n: int) -> Array:
    Y = np.asarray(reference, dtype=float)
    Y = Y[:, None] if Y.ndim == 1 else Y
    if Y.shape[-2] != n:
        raise ValueError(f"the reference has {Y.shape[-2]} rows, the draws have n = {n}")
    error = float(np.max(geometry.orthogonality_error(Y)))
    if error > 1e-6:
        raise ValueError(f"the columns of the reference are not orthonormal: |Y'Y - I| is {error:.2g}")
    return Y


# ---------------------------------------------------------------- diagnostics


def invariants(
    data: Any, var: str | None = None, *, kind: str | None = None, method: str = "permutation", group: str = "posterior"
) -> xr.DataArray:
    """Scalar quantities that the posterior identifies, draw by draw, for diagnostics.

    Parameters
    ----------
    data, var, group
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
    draws = matrix_draws(data, var, group=group)
    n, p = draws.shape[-2:]
    kind = kind or ("projector" if n > p else "aligned")
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if kind in ("projector", "angles") and n == p:
        raise ValueError(f"n = p = {n}: the columns span the whole space, use kind='aligned' or kind='raw'")
    if kind == "projector":
        return _projector_entries(draws)
    if kind == "angles":
        values, label = principal_angles(draws), "angle"
    else:
        squeezed = draws.isel({VECTOR_DIM: 0}, drop=True) if VECTOR_DIM in draws.dims else draws
        values = squeezed if kind == "raw" else align(squeezed, method=method)  # type: ignore[assignment]
        label = kind
    labels = [_label(label, index, values.isel(chain=0, draw=0)) for index in np.ndindex(values.shape[2:])]
    return _as_quantities(values.values.reshape(*values.shape[:2], -1), labels, draws)


def summary(
    data: Any,
    var: str | None = None,
    *,
    kind: str | Sequence[str] | None = None,
    method: str = "permutation",
    group: str = "posterior",
) -> pd.DataFrame:
    r"""Mean, spread, ESS and R-hat of quantities that the posterior identifies.

    Parameters
    ----------
    data, var, group
        Draws, see :func:`~pymc_stiefel.align`.
    kind : {"projector", "angles", "aligned", "raw"} or several of them
        - ``"projector"``: entries of :math:`P = XX'`. All of them if there are at most 100; for larger ``n`` the
          diagonal (the share of each feature in the subspace) and the 20 entries off the diagonal with the largest
          split R-hat, which is computed for all :math:`n^2` entries by matrix products;
        - ``"angles"``: principal angles to the mean subspace;
        - ``"aligned"``: entries after :func:`~pymc_stiefel.align`;
        - ``"raw"``: entries as sampled, for comparison.

        Default: ``"projector"``, or ``"aligned"`` for square matrices, whose projector is the identity.
    method : str
        The ``method`` of :func:`~pymc_stiefel.align`, for ``kind="aligned"``.

    Returns
    -------
    DataFrame
        One row per quantity; columns ``mean, sd, q5, q95, mcse_mean, ess_bulk, ess_tail, r_hat``.

    References
    ----------
    Vehtari et al. (2021), doi:10.1214/20-BA1221.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 100, 3, 1)))[0]
    >>> pst.summary(draws, kind=("angles", "raw"))["r_hat"].lt(1.1).all()
    np.True_
    """
    kinds = [kind] if kind is None or isinstance(kind, str) else list(kind)
    draws = matrix_draws(data, var, group=group)
    if draws.sizes["draw"] < 4:
        raise ValueError(f"need at least 4 draws in each chain for R-hat and ESS, got {draws.sizes['draw']}")
    draws = draws.isel({VECTOR_DIM: 0}, drop=True) if VECTOR_DIM in draws.dims else draws
    return pd.concat([_table(invariants(draws, kind=one, method=method)) for one in kinds])


def _table(quantities: xr.DataArray) -> pd.DataFrame:
    # a Dataset goes in and comes out on both ArviZ lines
    ds = quantities.rename("value").to_dataset()
    flat_values = quantities.values.reshape(-1, quantities.sizes["quantity"])
    q5, q95 = np.quantile(flat_values, (0.05, 0.95), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # constant quantities have no R-hat: NaN says so
        columns = {
            "mean": flat_values.mean(axis=0),
            "sd": flat_values.std(axis=0, ddof=1),
            "q5": q5,
            "q95": q95,
            "mcse_mean": az.mcse(ds, method="mean")["value"].values,
            "ess_bulk": az.ess(ds, method="bulk")["value"].values,
            "ess_tail": az.ess(ds, method="tail")["value"].values,
            "r_hat": az.rhat(ds)["value"].values if quantities.sizes["chain"] > 1 else np.nan,
        }
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
        return np.nan_to_num(np.sqrt((half - 1) / half + first.var(axis=0, ddof=1) / within))


def _label(kind: str, index: tuple[int, ...], template: xr.DataArray, *, repeat_rows: bool = False) -> str:
    """``kind[label, ...]`` with coordinate labels where there are any; a projector has its rows twice."""
    dims = (*template.dims[:-1], template.dims[-2]) if repeat_rows else template.dims
    parts = [template[dim].values[i] if dim in template.coords else i for dim, i in zip(dims, index, strict=True)]
    return f"{kind}[{', '.join(map(str, parts))}]"


def _as_quantities(values: Array, labels: list[str], draws: xr.DataArray) -> xr.DataArray:
    coords: dict[str, Any] = {dim: draws.coords[dim] for dim in ("chain", "draw") if dim in draws.coords}
    coords["quantity"] = np.array(labels, dtype=object)
    return xr.DataArray(values, dims=("chain", "draw", "quantity"), coords=coords, name=draws.name)
