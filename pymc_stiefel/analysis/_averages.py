"""Location and spread of draws of an orthonormal matrix: means, dispersion, principal angles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel import geometry
from pymc_stiefel.analysis._frechet import frechet_mean
from pymc_stiefel.analysis._inputs import flat, like_draws, matrix_draws, matrix_like

__all__ = ["dispersion", "mean", "orthogonality_error", "principal_angles"]

Array = NDArray[np.float64]
MEANS = ("extrinsic", "frechet", "subspace")


@check.renamed(var="var_names")
def orthogonality_error(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    vectors: bool = False,
    group: str = "posterior",
) -> xr.DataArray:
    """Largest entry of ``|X'X - I|`` in each draw.

    Parameters
    ----------
    data, var_names, vectors, group
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
    draws = matrix_draws(data, var_names, group=group, orthonormal=False, vectors=vectors)
    return draws.isel({draws.dims[-1]: 0, draws.dims[-2]: 0}, drop=True).copy(
        data=geometry.orthogonality_error(np.asarray(draws.values, dtype=float))
    )


@check.renamed(var="var_names")
def mean(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str = "extrinsic",
    vectors: bool = False,
    group: str = "posterior",
) -> xr.DataArray:
    r"""The mean of the draws as an orthonormal matrix.

    Parameters
    ----------
    data, var_names, vectors, group
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
    check.choice("kind", kind, MEANS)
    draws = matrix_draws(data, var_names, group=group, vectors=vectors)
    X = flat(draws)
    compute = {"extrinsic": _extrinsic_mean, "frechet": lambda x: frechet_mean(x)[0], "subspace": _subspace_mean}[kind]
    return like_draws(np.stack([compute(x) for x in X]), draws, sampled=False)


@check.renamed(var="var_names")
def dispersion(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str = "extrinsic",
    vectors: bool = False,
    group: str = "posterior",
) -> xr.DataArray:
    r"""Spread of the draws about their mean of the same kind.

    Parameters
    ----------
    data, var_names, vectors, group
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
    check.choice("kind", kind, MEANS)
    draws = matrix_draws(data, var_names, group=group, vectors=vectors)
    spread = np.array([_spread(x, kind) for x in flat(draws)])
    return draws.isel(dict.fromkeys((*draws.dims[:2], *draws.dims[-2:]), 0), drop=True).copy(
        data=spread.reshape(draws.shape[2:-2])
    )


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
    p: int = X.shape[-1]
    if kind == "extrinsic":
        return 1 - float(np.linalg.svd(X.mean(axis=0), compute_uv=False).sum()) / p
    if kind == "frechet":
        return frechet_mean(X)[1]
    return float((np.sin(_angles(X, _subspace_mean(X))) ** 2).mean())


# ---------------------------------------------------------------- principal angles


@check.renamed(var="var_names")
def principal_angles(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    to: Any = "mean",
    vectors: bool = False,
    group: str = "posterior",
) -> xr.DataArray:
    r"""Principal angles between column spaces, in radians, ascending along the last dimension ``angle``.

    Parameters
    ----------
    data, var_names, vectors, group
        Draws, see :func:`~pymc_stiefel.align`. Angles do not depend on signs, order or rotation of the columns.
    to : {"mean", "draws", "chains"} or array (n, q)
        What the draws are compared with: the mean subspace; other draws (half a chain away and in the next chain, so
        nearly independent; this measures the spread of the posterior without a centre); or a given matrix with
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
    draws = matrix_draws(data, var_names, group=group, vectors=vectors)
    X = np.asarray(draws.values, dtype=float)
    batch = tuple(draws.dims[2:-2])
    coords = {dim: draws.coords[dim] for dim in ("chain", "draw", *batch) if dim in draws.coords}
    dims: tuple[Any, ...] = ("chain", "draw", *batch, "angle")
    if not isinstance(to, str):
        Y = _reference(to, draws)
    elif check.choice("to", to, ("mean", "draws", "chains")) == "mean":
        Y = _batched_mean(X.reshape(-1, *X.shape[2:]))
    elif to == "draws":
        if X.shape[0] * X.shape[1] < 2:
            raise ValueError("to='draws': need at least two draws to compare draws with each other")
        Y = np.roll(X, (1, max(1, X.shape[1] // 2)), axis=(0, 1))
    else:
        means = np.stack([_batched_mean(chain) for chain in X])
        coords = {dim: values for dim, values in coords.items() if dim != "draw"}
        if "chain" in coords:
            coords["other_chain"] = xr.DataArray(coords["chain"].values, dims="other_chain")
        X, Y, dims = means[:, None], means[None], ("chain", "other_chain", *batch, "angle")
    return xr.DataArray(_angles(X, Y), dims=dims, coords=coords, name="angle")


def _angles(X: Array, Y: Array) -> Array:
    if X.shape[-1] > Y.shape[-1]:  # the smaller space is the one that is projected
        X, Y = Y, X
    overlap = np.swapaxes(Y, -1, -2) @ X
    cosines = np.linalg.svd(overlap, compute_uv=False)
    sines = np.linalg.svd(X - Y @ overlap, compute_uv=False)[..., ::-1]
    angles: Array = np.arctan2(sines, cosines)
    return angles


def _batched_mean(X: Array) -> Array:
    """Subspace mean over the first axis, for any batch in the middle."""
    flat_batch = X.reshape(len(X), -1, *X.shape[-2:])
    return np.stack([_subspace_mean(flat_batch[:, b]) for b in range(flat_batch.shape[1])]).reshape(X.shape[1:])


def _reference(to: Any, draws: xr.DataArray) -> Array:
    if to is None:
        raise TypeError("to must be 'mean', 'draws', 'chains' or a matrix, got None")
    Y = matrix_like("to", to, draws)
    error = float(np.max(geometry.orthogonality_error(Y))) if Y.shape[-1] <= Y.shape[-2] else np.inf
    if error > 1e-6:
        raise ValueError(f"to: the columns of the matrix are not orthonormal: |Y'Y - I| is up to {error:.2g}")
    return Y
