"""Ready-made factor analysis and probabilistic PCA of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel._arguments import integer
from pymc_stiefel._checks import choice, flag, reals, string
from pymc_stiefel.builders._spectra import check_positive, column_lengths
from pymc_stiefel.distributions import StiefelUniform
from pymc_stiefel.distributions._low_rank_normal import LowRankMvNormal

__all__ = ["factor_model"]

NOISE = ("common", "feature")


def factor_model(
    data: Any,
    rank: int,
    *,
    noise: str = "common",
    mean: bool = True,
    scale_prior: TensorVariable | str | None = None,
    noise_prior: TensorVariable | None = None,
    location: Any = None,
    scale: Any = None,
    name: str = "y",
) -> pm.Model:
    r"""A factor model of a table: :math:`y = \mu + Wz + e` with orthogonal columns of ``W`` in order of length.

    Parameters
    ----------
    data : DataFrame, array or masked array
        Rows and features. NaN and masked entries are missing, and are integrated out.
    rank : int
        Number of factors.
    noise : {"common", "feature"}
        One standard deviation of the noise for all features (probabilistic PCA; the features should have the same
        unit), or one for each (factor analysis; units do not matter).
    mean : bool
        Whether the features have a mean to be learnt; otherwise it is zero.
    scale_prior : distribution, "normal" or None
        Law of the lengths of the columns before they are put in order, in units of ``scale``: a positive scalar such
        as ``pm.HalfNormal.dist(2)``; ``"normal"`` is the law that corresponds to independent standard normal
        loadings, see :func:`~pymc_stiefel.orthogonal_columns`. Default: half-normal with scale :math:`\sqrt n`, since
        the variances of ``n`` standardised features add up to ``n``.
    noise_prior : distribution, optional
        Law of the standard deviation of the noise, a positive distribution in the units of the data. Default:
        half-normal with scale ``scale``.
    location, scale : float or array, optional
        Centre and size of the features, for the priors only. Default: mean and standard deviation of each column; with
        ``noise="common"`` one size for all, the root mean square of the standard deviations.
    name : str
        Name of the observed variable.

    Returns
    -------
    pymc.Model
        With coordinates ``row``, ``feature`` and ``factor`` (from 0), those of a DataFrame being its labels, and

        ========== ============================ ===============================================================
        variable   dims                         law
        ========== ============================ ===============================================================
        ``W_Q``    feature, factor              uniform with orthonormal columns
        ``W_d``    factor                       ``scale_prior``, in descending order
        ``W``      feature, factor              ``scale`` times ``W_Q`` times ``W_d``: the loadings
        ``mu``     feature                      normal about ``location`` with standard deviation ``2 scale``
        ``noise``  none or feature              ``noise_prior``: the standard deviation of the noise
        ``y``      row, feature                 :class:`~pymc_stiefel.LowRankMvNormal`
        ========== ============================ ===============================================================

    Examples
    --------
    >>> import numpy as np, pandas as pd, pymc_stiefel as pst
    >>> table = pd.DataFrame(np.random.default_rng(1).normal(size=(50, 3)), columns=["a", "b", "c"])
    >>> model = pst.factor_model(table, rank=1, noise="feature")
    >>> [rv.name for rv in model.free_RVs], list(model.coords["feature"])
    (['W_Q', 'W_d', 'mu', 'noise'], ['a', 'b', 'c'])
    """
    choice("noise", noise, NOISE)
    flag("mean", mean)
    string("name", name)
    if isinstance(scale_prior, str):
        choice("scale_prior", scale_prior, ("normal",))
    elif scale_prior is not None:
        check_positive(scale_prior, "scale_prior")
    table = _numbers(data)
    (N, n), rank = table.shape, integer("rank", rank)
    if rank > n:
        raise ValueError(f"rank must be at most the number of features, got rank = {rank} with {n} features")
    location, scale = _sizes(table, location, scale, common=noise == "common")
    lengths = pm.HalfNormal.dist(np.sqrt(n)) if scale_prior is None else scale_prior
    normal = lengths if isinstance(lengths, str) else None
    coords = {"row": getattr(data, "index", range(N)), "feature": getattr(data, "columns", range(n))}
    with pm.Model(coords=coords | {"factor": range(rank)}) as model:
        Q = StiefelUniform("W_Q", n=n, p=rank, dims=("feature", "factor"))
        d = column_lengths("W_d", n, rank, None if normal else lengths, normal, 1.0, True, ("factor",))
        unit = scale if noise == "common" else scale[:, None]
        W = pm.Deterministic("W", Q * (unit * d), dims=("feature", "factor"))
        mu = pm.Normal("mu", location, 2 * scale, dims="feature") if mean else 0.0
        dims, size = (("feature",), (n,)) if noise == "feature" else ((), ())
        law = pm.HalfNormal.dist(scale) if noise_prior is None else noise_prior
        check_positive(law, "noise_prior")
        sigma = model.register_rv(change_dist_size(law, size), "noise", dims=dims)
        LowRankMvNormal(name, mu=mu, cov_factor=W, cov_diag=sigma**2, observed=data, dims=("row", "feature"))
    return model


def _numbers(data: Any) -> NDArray[Any]:
    """A table of numbers, NaN where they are missing."""
    values = data.to_numpy() if hasattr(data, "to_numpy") else data
    try:
        table = np.ma.filled(np.ma.asarray(values).astype(object).astype("float64"), np.nan)
    except (TypeError, ValueError):
        kinds = f" with dtypes {sorted(set(map(str, data.dtypes)))}" if hasattr(data, "dtypes") else ""
        raise TypeError(f"data must be a table of numbers, got {type(data).__name__}{kinds}") from None
    if table.ndim != 2:
        raise ValueError(f"data must have rows and columns, got shape {table.shape}")
    return table


def _sizes(table: NDArray[Any], location: Any, scale: Any, *, common: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Centre of each feature, and size of each or of all of them, from the table where they are not given."""
    seen = np.ma.masked_invalid(table)
    if location is None:
        location = np.ma.filled(seen.mean(axis=0), 0.0)
    if scale is None:
        spread = np.ma.filled(seen.std(axis=0), 0.0)
        scale = np.sqrt(np.mean(spread[spread > 0] ** 2)) if common and (spread > 0).any() else spread
        scale = np.where(scale > 0, scale, 1.0)  # a feature without spread, or without data
    location, scale = reals("location", location), reals("scale", scale)
    if not (scale > 0).all():
        raise ValueError(f"scale must be positive, got {scale}")
    if common and scale.ndim:
        raise ValueError(f"noise='common' needs one scale for all features, got shape {scale.shape}")
    n = table.shape[1]
    for name, sizes in (("location", location), ("scale", scale)):
        if sizes.shape not in ((), (1,), (n,)):
            raise ValueError(f"{name} must be one number, or one for each of {n} features, got shape {sizes.shape}")
    return np.broadcast_to(location, (n,)), scale if common else np.broadcast_to(scale, (n,))
