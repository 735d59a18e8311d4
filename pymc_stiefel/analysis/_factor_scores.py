"""Scores, missing entries and predictions of factor models: exact draws given each draw of the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import NDArray
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.analysis._inputs import SAMPLE_DIMS, dataset_of
from pymc_stiefel.distributions._low_rank_data import Patterns
from pymc_stiefel.distributions._low_rank_normal import LowRankMvNormalRV, OrthogonalFactorRV

__all__ = ["condition", "factor_scores", "impute"]

Array = NDArray[np.float64]
KINDS = ("draws", "mean")
CHUNK = 4_000_000
"""Largest size of an intermediate array, so that memory does not grow with the number of draws."""


def factor_scores(
    data: Any,
    *,
    model: pm.Model | None = None,
    var: str | None = None,
    kind: str = "draws",
    random_seed: Any = None,
    group: str = "posterior",
) -> xr.DataArray:
    r"""Latent scores of each row of a :class:`~pymc_stiefel.LowRankMvNormal`, given its data and the parameters.

    For :math:`y = \mu + Wz + \sqrt{d}\,e` the scores ``z`` of a row are normal given its observed entries and the
    parameters. They belong to the columns of ``W``, so align both together:
    ``align(..., companions={"scores": "rotate"})``.

    Parameters
    ----------
    data : InferenceData, DataTree or Dataset
        Draws of the parameters.
    model : pymc.Model, optional
        The model they come from; default: that of the context.
    var : str, optional
        Name of the observed variable; not needed if the model has only one ``LowRankMvNormal``.
    kind : {"draws", "mean"}
        One draw of the scores for each draw of the parameters, or their conditional means.
    random_seed : int or Generator, optional
        For ``kind="draws"``.
    group : str
        Group of an ``InferenceData`` or ``DataTree``.

    Returns
    -------
    DataArray
        ``scores``, with dims ``(chain, draw, row, factor)`` named as in the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst, xarray as xr
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", shape=3)
    ...     y = pst.LowRankMvNormal("y", mu, cov_factor=np.ones((3, 1)), cov_diag=0.1, observed=np.eye(3))
    >>> draws = xr.Dataset({"mu": (("chain", "draw", "feature"), np.zeros((1, 10, 3)))})
    >>> pst.factor_scores(draws, model=model, kind="mean").values[0, 0, 0].round(3)
    array([0.323])
    """
    law = _law(model, var)
    draws = _Parameters.of(law, dataset_of(data, group))
    scores = _scores(draws, law.table, _noise(kind, random_seed))
    coords = {law.row: law.rows, law.factor: law.factors}
    return draws.label(scores, "scores", (law.row, law.factor), coords)


def impute(
    data: Any,
    *,
    model: pm.Model | None = None,
    var: str | None = None,
    kind: str = "draws",
    random_seed: Any = None,
    group: str = "posterior",
) -> xr.DataArray:
    """Missing entries of the data of a :class:`~pymc_stiefel.LowRankMvNormal`, given all that is observed.

    Parameters
    ----------
    data, model, var, random_seed, group
        As for :func:`~pymc_stiefel.factor_scores`.
    kind : {"draws", "mean"}
        One draw of the missing entries for each draw of the parameters, or their conditional means.

    Returns
    -------
    DataArray
        Dims ``(chain, draw, missing)``; the row and the feature of each missing entry are coordinates, named as in
        the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst, xarray as xr
    >>> table = np.array([[1.0, 1.0, np.nan], [0.0, 0.0, 0.0]])
    >>> with pm.Model(coords={"row": ["a", "b"], "feature": ["x", "y", "z"]}) as model:
    ...     mu = pm.Normal("mu", dims="feature")
    ...     y = pst.LowRankMvNormal("y", mu, np.ones((3, 1)), 0.1, observed=table, dims=("row", "feature"))
    >>> draws = xr.Dataset({"mu": (("chain", "draw", "feature"), np.zeros((1, 10, 3)))})
    >>> filled = pst.impute(draws, model=model, kind="mean")
    >>> filled.row.item(), filled.feature.item(), filled.values[0, 0].round(3)
    ('a', 'z', array([0.952]))
    """
    law = _law(model, var)
    i, j = np.nonzero(np.isnan(law.table))
    if not len(i):
        raise ValueError(f"nothing is missing in the data of {law.name!r}")
    draws, noise = _Parameters.of(law, dataset_of(data, group)), _noise(kind, random_seed)
    scores = _scores(draws, law.table, noise)
    values = draws.predict(scores[:, i], i, j, noise)
    result = draws.label(values, law.name, ("missing",), {})
    return result.assign_coords({law.row: ("missing", law.rows[i]), law.feature: ("missing", law.features[j])})


def condition(
    data: Any,
    given: Any,
    *,
    model: pm.Model | None = None,
    var: str | None = None,
    kind: str = "draws",
    random_seed: Any = None,
    group: str = "posterior",
) -> xr.DataArray:
    """Predict features of new rows from their other features.

    Parameters
    ----------
    data, model, var, random_seed, group
        As for :func:`~pymc_stiefel.factor_scores`.
    given : DataFrame or array
        Known entries of the new rows: a DataFrame with some of the model's features as columns, or an array with all
        of them. Absent columns and NaN entries are predicted.
    kind : {"draws", "mean"}
        One draw for each draw of the parameters, or conditional means.

    Returns
    -------
    DataArray
        Dims ``(chain, draw, row, feature)`` with the features that are not known in all rows. Entries that are known
        are returned as they are.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst, xarray as xr
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", shape=3)
    ...     y = pst.LowRankMvNormal("y", mu, cov_factor=np.ones((3, 1)), cov_diag=0.1, observed=np.eye(3))
    >>> draws = xr.Dataset({"mu": (("chain", "draw", "feature"), np.zeros((1, 10, 3)))})
    >>> pst.condition(draws, [[1.0, 1.0, np.nan]], model=model, kind="mean").values[0, 0].round(3)
    array([[0.952]])
    """
    law = _law(model, var)
    table, rows = _new_rows(law, given)
    columns = np.flatnonzero(np.isnan(table).any(axis=0))
    if not len(columns):
        raise ValueError("given has all features of all rows: nothing is left to predict")
    draws, noise = _Parameters.of(law, dataset_of(data, group)), _noise(kind, random_seed)
    scores = _scores(draws, table, noise)
    i, j = (index.ravel() for index in np.meshgrid(np.arange(len(table)), columns, indexing="ij"))
    values = draws.predict(scores[:, i], i, j, noise).reshape(len(scores), len(table), len(columns))
    values = np.where(np.isnan(table[:, columns]), values, table[:, columns])
    return draws.label(values, law.name, (law.row, law.feature), {law.row: rows, law.feature: law.features[columns]})


# ---------------------------------------------------------------- the model


@dataclass
class _Law:
    """A likelihood of a model: its parameters as graphs, its data, its labels."""

    name: str
    params: list[Any]  # mu, W, d
    free: list[Any]  # the random variables that they depend on
    scalar: bool  # d is a scalar
    table: Array
    row: str
    feature: str
    factor: str
    rows: NDArray[Any]
    features: NDArray[Any]
    factors: NDArray[Any]


def _law(model: pm.Model | None, var: str | None) -> _Law:
    model = model_of(model)
    found = {rv.name: node for rv in model.observed_RVs if (node := _node(rv)) is not None}
    if var is None and len(found) == 1:
        (var,) = found
    if not isinstance(var, str) or var not in found:
        names = ", ".join(map(repr, found)) or "none"
        raise ValueError(f"var must name an observed LowRankMvNormal, got {var!r}; the model has {names}")
    node = found[var]
    mu, W, d = params = list(node.op.dist_params(node))
    if W.ndim != 2 or mu.ndim > 2 or d.ndim > 1:
        raise ValueError(f"the covariance of {var!r} differs by row: scores are defined for one cov_factor only")
    above = set(ancestors(params))
    free = [rv for rv in model.free_RVs if rv in above]
    value = model.rvs_to_values[model[var]]
    values = value.data if isinstance(value, Constant) else value.eval()
    table = np.asarray(values, dtype=float).reshape(-1, values.shape[-1])
    row, feature = model.named_vars_to_dims.get(var, (f"{var}_dim_0", f"{var}_dim_1"))[-2:]
    factor = (model.named_vars_to_dims.get(W.name) or ("factor",))[-1]
    p = int(W.type.shape[1] or W.shape[1].eval())
    labels = [_coord(model, dim, size) for dim, size in zip((row, feature, factor), (*table.shape, p), strict=True)]
    scalar = isinstance(node.op, OrthogonalFactorRV)
    return _Law(str(var), params, free, scalar, table, str(row), str(feature), str(factor), *labels)


def _node(rv: Any) -> Any:
    """The node of a LowRankMvNormal, with or without ``total_size``; None for other variables."""
    while rv.owner is not None and not isinstance(rv.owner.op, LowRankMvNormalRV):
        if type(rv.owner.op).__name__ != "MinibatchRandomVariable":
            return None
        rv = rv.owner.inputs[0]
    return rv.owner


def _coord(model: pm.Model, dim: str, size: int) -> NDArray[Any]:
    labels = model.coords.get(dim)
    return np.arange(size) if labels is None or len(labels) != size else np.asarray(labels)


def _new_rows(law: _Law, given: Any) -> tuple[Array, NDArray[Any]]:
    """A table with all features, NaN where nothing is given, and labels of its rows."""
    if hasattr(given, "columns"):
        unknown = [str(name) for name in given.columns if name not in law.features]
        if unknown:
            raise ValueError(f"given has columns that the model does not know: {', '.join(unknown)}")
        return given.reindex(columns=law.features).to_numpy(dtype=float), np.asarray(given.index)
    try:
        table = np.ma.filled(np.ma.asarray(given).astype(float, casting="same_kind"), np.nan)
    except (TypeError, ValueError):
        raise TypeError(f"given must be a table of numbers, got {_checks.shown(given)}") from None
    if table.ndim != 2 or table.shape[1] != len(law.features):
        raise ValueError(
            f"given must have shape (rows, {len(law.features)}), NaN for what is to be predicted, got {table.shape}; a "
            "DataFrame may have some of the columns only"
        )
    return table, np.arange(len(table))


# ---------------------------------------------------------------- conditional laws


@dataclass
class _Parameters:
    """Draws of the parameters, with one leading dimension."""

    mu: Array  # (draws, n) or (draws, rows, n)
    W: Array  # (draws, n, p)
    d: Array  # (draws, n)
    sample: dict[str, Any]  # coordinates of chain and draw
    shape: tuple[int, int]

    @classmethod
    def of(cls, law: _Law, draws: xr.Dataset) -> _Parameters:
        absent = [rv.name for rv in law.free if rv.name not in draws]
        if absent:
            raise KeyError(f"the draws lack {', '.join(absent)}, on which the parameters of {law.name!r} depend")
        shape = draws.sizes["chain"], draws.sizes["draw"]
        values = [draws[rv.name].transpose(*SAMPLE_DIMS, ...).values for rv in law.free]
        values = [value.reshape(-1, *value.shape[2:]) for value in values]
        inputs = [rv.type.clone(shape=(None, *rv.type.shape))() for rv in law.free]
        outputs = vectorize_graph(law.params, dict(zip(law.free, inputs, strict=True)))
        function = pytensor.function(
            inputs, outputs, mode=Mode(linker="py", optimizer="fast_compile"), on_unused_input="ignore"
        )
        n_draws, n = shape[0] * shape[1], law.table.shape[1]
        found = function(*(value.astype(one.dtype) for value, one in zip(values, inputs, strict=True)))
        mu, W, d = (  # a parameter that is no random variable has no dimension of draws
            np.broadcast_to(x, (n_draws, *x.shape[-param.ndim :])) if x.ndim == param.ndim else x
            for x, param in zip(map(np.asarray, found), law.params, strict=True)
        )
        mu = mu[:, 0] if mu.ndim == 3 and mu.shape[1] == 1 else mu
        d = np.broadcast_to(d.reshape(n_draws, 1), (n_draws, n)) if law.scalar else d
        return cls(mu, W, d, {dim: draws[dim].values for dim in SAMPLE_DIMS if dim in draws.coords}, shape)

    def predict(self, scores: Array, i: NDArray[Any], j: NDArray[Any], rng: np.random.Generator | None) -> Array:
        """Entries of rows ``i`` and columns ``j``, given the scores of each (draws, entries, p)."""
        values: Array = np.einsum("dek,dek->de", scores, self.W[:, j])
        values += self.mu[:, j] if self.mu.ndim == 2 else self.mu[:, i, j]
        return values if rng is None else values + np.sqrt(self.d[:, j]) * rng.standard_normal(values.shape)

    def label(self, values: Array, name: str, dims: tuple[str, ...], coords: dict[str, Any]) -> xr.DataArray:
        values = values.reshape(*self.shape, *values.shape[1:])
        return xr.DataArray(values, dims=(*SAMPLE_DIMS, *dims), coords=self.sample | coords, name=name)


def _noise(kind: str, random_seed: Any) -> np.random.Generator | None:
    _checks.choice("kind", kind, KINDS)
    _checks.seed("random_seed", random_seed)
    return np.random.default_rng(random_seed) if kind == "draws" else None


def _scores(draws: _Parameters, table: Array, rng: np.random.Generator | None) -> Array:
    """Scores (draws, rows, p) given what is observed of a table: means, or draws if there is a generator."""
    if draws.mu.ndim == 3 and draws.mu.shape[1] != len(table):
        raise ValueError(f"the mean differs by row: need {draws.mu.shape[1]} rows, got {len(table)}")
    patterns, seen = Patterns(table), (~np.isnan(table)).astype(float)
    n_draws, n, p = draws.W.shape
    result = np.empty((n_draws, len(table), p))
    largest = max(len(table) * p * p, n * p * p, len(table) * n if draws.mu.ndim == 3 else 0)
    step = max(1, CHUNK // largest)
    for first in range(0, n_draws, step):
        part = slice(first, first + step)
        mu, W, d = draws.mu[part], draws.W[part], draws.d[part]
        V = W / d[..., None]
        outer = (W[..., :, None] * V[..., None, :]).reshape(len(W), n, p * p)
        precision = np.eye(p) + (patterns.observed.astype(float) @ outer).reshape(len(W), -1, p, p)
        root = np.linalg.inv(np.linalg.cholesky(precision))  # its inverse, so that root' root is the covariance
        if mu.ndim == 2:
            centre = mu.mean(axis=0)  # differences of numbers of the size of the spread
            T = np.where(seen, table - centre, 0.0) @ V - seen @ ((mu - centre)[..., None] * V)
        else:
            T = np.where(seen, table - mu, 0.0) @ V
        root = root[:, patterns.of_row]
        whitened = np.einsum("drab,drb->dra", root, T)
        if rng is not None:
            whitened += rng.standard_normal(whitened.shape)
        result[part] = np.einsum("drab,dra->drb", root, whitened)
    return result
