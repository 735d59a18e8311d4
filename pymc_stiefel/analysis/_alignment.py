r"""Alignment of draws: the same column means the same in all draws and chains.

A posterior that depends on :math:`X X'` or :math:`X \,\mathrm{diag}(s)\, X'` only does not determine the signs, the
order or even the rotation of the columns of ``X``. Every draw ``X_d`` is replaced by ``X_d R_d``, with ``R_d`` in the
group that leaves the posterior unchanged, such that the draws agree:

.. math:: \max_{R_1 \dots R_D,\, M}\ \sum_d \mathrm{tr}(R_d' X_d' M), \qquad M = \frac1D \sum_d X_d R_d,

alternating between ``R`` and ``M`` (generalised Procrustes). Each half-step is exact, so the objective never decreases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel import geometry
from pymc_stiefel.analysis._companions import descending, move_companion, rotation_array
from pymc_stiefel.analysis._inputs import ALIGNED, flat, like_draws, matrix_draws, matrix_like, variable_of

__all__ = ["align"]

Array = NDArray[np.float64]
METHODS = ("sign", "permutation", "rotation", "varimax")
N_PIVOTS = 8
MAX_ROUNDS = 100
VARIMAX_SWEEPS, VARIMAX_ANGLE = 50, 1e-6  # most sweeps, and the largest angle of one that ends them


@check.renamed(var="var_names")
def align(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    method: str = "permutation",
    reference: Any = None,
    companions: Mapping[str, str | tuple[str, ...]] | None = None,
    order_by: str | None = None,
    vectors: bool = False,
    group: str = "posterior",
    orthonormal: bool | None = None,
) -> xr.DataArray | xr.Dataset:
    r"""Resolve signs, order or rotation of the columns of a matrix, draw by draw.

    Parameters
    ----------
    data : array, DataArray, Dataset, InferenceData or DataTree
        Draws of shape ``(chain, draw, *batch, n, p)``; every matrix of a batch is aligned by itself.
    var_names : str, optional
        Name of the variable; not needed for an array or if there is only one.
    method : {"permutation", "sign", "rotation", "varimax"}
        What the posterior does not identify.

        - ``"sign"``: the sign of each column;
        - ``"permutation"``: signs and order (an exact assignment for each draw);
        - ``"rotation"``: everything but the subspace (orthogonal Procrustes);
        - ``"varimax"``: the same for factor loadings, each draw being first rotated to simple structure by varimax,
          then matched by signs and order. The rotation is then the usual one and does not depend on other draws.
          MatchAlign [1]_, with an exact assignment to an iterated mean in place of a greedy one to a pivot.
    reference : array (n, p), optional
        Align to this matrix. Without it, to the mean of the aligned draws; then columns keep the place they have in
        most draws, and the largest entry of each mean column is positive.
    companions : mapping, optional
        Other variables to change along with this one, as ``{name: how}`` or ``{name: (how, dim, ...)}``.
        ``"rotate"``: signs, order and rotation apply (scores, the other factor of a low-rank matrix);
        ``"permute"``: only the order does (scales, variances). ``dim`` says which dimensions index the columns; it
        may be left out if one has the name that the columns have, or if only one has the right length.
    order_by : str, optional
        Put the columns in the order of this variable's posterior mean, largest first: a scale, a variance. Dimensions
        other than that of the columns (scales that change in time) are averaged over. It is a companion by
        ``"permute"`` unless ``companions`` has it. Labels refer to positions and do not move.
    vectors : bool
        The variable holds unit vectors: its last dimension is ``n``, all others are a batch. Not needed for a single
        vector, with one dimension besides ``chain`` and ``draw``.
    group : str
        Group of an ``InferenceData`` or ``DataTree``.
    orthonormal : bool, optional
        Refuse draws that are not orthonormal. By default all methods but ``"varimax"`` do.

    Returns
    -------
    DataArray
        The aligned draws with dims and coords kept; with ``companions`` or ``order_by``, a Dataset of the variable and
        all of them. The attribute ``aligned`` has the method, so that pictures and summaries leave them as they are.

    Notes
    -----
    Cost :math:`O(D n p^2)` per round plus :math:`O(D p^3)`; Python loops over rounds only.

    References
    ----------
    .. [1] Poworoznek, Anceschi, Ferrari & Dunson (2021), doi:10.48550/arXiv.2107.13783.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.tile(np.eye(4, 2), (2, 50, 1, 1)) * np.random.default_rng(1).choice([-1, 1], (2, 50, 1, 2))
    >>> float(pst.align(draws, method="sign").std(("chain", "draw")).max())
    0.0
    """
    check.choice("method", method, METHODS)
    orthonormal = method != "varimax" if orthonormal is None else check.flag("orthonormal", orthonormal)
    check.flag("vectors", vectors)
    loadings = "Loadings with free scales can be aligned with orthonormal=False"
    draws = matrix_draws(data, var_names, group=group, orthonormal=orthonormal, vectors=vectors, loadings=loadings)
    X = flat(draws)
    targets = _references(reference, draws)
    companions = _named_companions(companions)
    if order_by is not None:
        check.string("order_by", order_by)
        if reference is not None:
            raise ValueError(f"order_by={order_by!r} and reference both fix the order of the columns: choose one")
        companions.setdefault(order_by, "permute")
    if companions and isinstance(data, np.ndarray | list | tuple | xr.DataArray):
        raise TypeError(
            f"companions {list(companions)} are looked up by name: data must be a Dataset, InferenceData or DataTree, "
            f"got {type(data).__name__}"
        )
    others = {
        name: variable_of(data, name, group, argument="order_by" if name == order_by else "companions")
        for name in companions
    }
    R = np.stack([alignment(x, method, target) for x, target in zip(X, targets, strict=True)])
    if order_by is not None:
        how = companions[order_by]
        levels = move_companion(others[order_by], how, rotation_array(R, draws), method)
        order = descending(levels, how, rotation_array(R, draws), draws)
        R = np.take_along_axis(R, order[:, None, None, :], axis=-1)
    aligned = like_draws(X @ R, draws).assign_attrs({ALIGNED: method})
    if not companions:
        return aligned
    rotation = rotation_array(R, draws)
    moved = {name: move_companion(others[name], how, rotation, method) for name, how in companions.items()}
    return xr.Dataset({str(draws.name): aligned} | moved)


def aligned_once(draws: xr.DataArray, method: str) -> xr.DataArray:
    """``draws`` of :func:`matrix_draws`, aligned unless :func:`align` has returned them."""
    if ALIGNED in draws.attrs:
        return draws
    aligned = align(draws, method=method)
    assert isinstance(aligned, xr.DataArray)
    return aligned if aligned.ndim == draws.ndim else aligned.expand_dims(draws.dims[-1], axis=-1)


def _named_companions(companions: Any) -> dict[str, Any]:
    if companions is None:
        return {}
    if not isinstance(companions, Mapping) or not all(isinstance(name, str) for name in companions):
        raise TypeError(f"companions must be a dict as {{'scale': 'permute'}}, got {check.shown(companions)}")
    return dict(companions)


def alignment(X: Array, method: str, target: Array | None = None) -> Array:
    """The matrices ``R`` of shape (draws, p, p) that align ``X`` (draws, n, p) by ``X @ R``."""
    nearest = {"sign": nearest_signs, "rotation": geometry.polar}.get(method, nearest_signed_permutation)
    if method == "varimax":
        simple = varimax(X)
        R = simple @ _procrustes(X @ simple, nearest, target)
    else:
        R = _procrustes(X, nearest, target)
    if target is not None:
        return R
    # the solution is unique up to a common element of the group: choose the one closest to the original draws
    if method != "sign":
        R = R @ nearest((R if method == "rotation" else np.abs(R)).sum(axis=0).T[None])[0]
    average = np.tensordot(X, R, ((0, 2), (0, 1)))
    top = np.take_along_axis(average, np.abs(average).argmax(axis=0)[None], axis=0)[0]
    return R * np.where(top < 0, -1.0, 1.0)


def _procrustes(X: Array, nearest: Callable[[Array], Array], target: Array | None) -> Array:
    """Rotations to ``target``, or to the mean of the rotated draws."""
    n_draws, n, p = X.shape
    rows = np.ascontiguousarray(X.transpose(0, 2, 1)).reshape(n_draws * p, n)  # makes each turn two matrix products

    def turn(M: Array, rows: Array = rows) -> tuple[Array, float]:
        gains = (rows @ M).reshape(-1, p, p)
        R = nearest(gains)
        return R, float(np.vdot(R, gains))

    if target is not None:
        return turn(target)[0]
    # the best of a few draws, judged by some hundred, as the start keeps the search away from poor local optima
    pivots = X[np.unique(np.linspace(0, n_draws - 1, N_PIVOTS).astype(int))]
    some = rows.reshape(n_draws, p, n)[:: -(-n_draws // 200)].reshape(-1, n)
    R, _ = turn(max(pivots, key=lambda pivot: turn(pivot, some)[1]))
    reached = -np.inf
    for _ in range(MAX_ROUNDS):
        R, gain = turn(rows.T @ R.reshape(n_draws * p, p) / n_draws)
        if gain <= reached * (1 + 1e-10):
            break
        reached = gain
    return R


# ---------------------------------------------------------------- the nearest element of each group


def nearest_signs(gains: Array) -> Array:
    """Diagonal signs that maximise ``tr(R' gains)``."""
    signs = np.where(np.diagonal(gains, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return signs[..., None] * np.eye(gains.shape[-1])


def nearest_signed_permutation(gains: Array) -> Array:
    """Signed permutations that maximise ``tr(R' gains)``: an assignment problem in ``|gains|``."""
    rows = _assign(np.abs(gains))
    R = np.zeros_like(gains)
    np.put_along_axis(R, rows[:, None, :], 1.0, axis=1)
    return np.where(gains < 0, -R, R)


def _assign(gains: Array) -> NDArray[np.int64]:
    """Row for each column, maximising the sum of the chosen entries, for matrices (draws, p, p)."""
    from scipy.optimize import linear_sum_assignment  # imported late: it takes a tenth of a second

    rows: NDArray[np.int64] = gains.argmax(axis=1)
    # if the best rows all differ they are the solution; only the other draws need the full algorithm
    for d in np.flatnonzero((np.sort(rows, axis=1) != np.arange(rows.shape[1])).any(axis=1)):
        row, column = linear_sum_assignment(gains[d], maximize=True)
        rows[d, column] = row
    return rows


def varimax(X: Array) -> Array:
    r"""Varimax rotations of many loading matrices at once, by plane rotations.

    Each plane's angle maximises :math:`\sum_k \mathrm{Var}_i\,(X R)_{ik}^2` exactly (Kaiser 1958,
    doi:10.1007/BF02289233). Shapes: ``X`` (draws, n, p), result (draws, p, p).
    """
    n_draws, n, p = X.shape
    R = np.tile(np.eye(p), (n_draws, 1, 1))
    L = np.ascontiguousarray(X.transpose(2, 0, 1))  # (p, draws, n): a column of all draws is contiguous
    active = np.arange(n_draws)
    for _ in range(VARIMAX_SWEEPS):
        moved = np.zeros(len(active))
        for i in range(p):
            for j in range(i + 1, p):
                x, y = L[i], L[j]
                u, v = x * x - y * y, 2 * x * y
                a, b = u.sum(axis=1), v.sum(axis=1)
                numerator = 2 * np.einsum("di,di->d", u, v) - 2 * a * b / n
                denominator = np.einsum("di,di->d", u, u) - np.einsum("di,di->d", v, v) - (a * a - b * b) / n
                angle = np.arctan2(numerator, denominator) / 4
                cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
                L[i], L[j] = cos * x + sin * y, cos * y - sin * x
                r_i, r_j = R[active, :, i], R[active, :, j]
                R[active, :, i], R[active, :, j] = cos * r_i + sin * r_j, cos * r_j - sin * r_i
                moved = np.maximum(moved, np.abs(angle))
        going = moved > VARIMAX_ANGLE
        if not going.any():
            break
        if not going.all():
            active, L = active[going], L[:, going]
    return R


def _references(reference: Any, draws: xr.DataArray) -> list[Array | None]:
    shape = draws.shape[2:]
    n_batch = math.prod(shape[:-2])
    if reference is None:
        return [None] * n_batch
    M = matrix_like("reference", reference, draws)
    if M.shape[-2:] != shape[-2:]:
        raise ValueError(f"reference must have shape {shape[-2:]} like {draws.name!r}, got {M.shape}")
    return list(np.broadcast_to(M, shape).reshape(n_batch, *shape[-2:]))
