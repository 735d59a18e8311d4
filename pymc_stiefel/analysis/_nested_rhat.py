"""Nested R-hat for many short chains that start in groups from the same points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr
from numpy.typing import NDArray

from pymc_stiefel import _checks

__all__ = ["nested_rhat"]

Array = NDArray[np.float64]


def nested_rhat(quantities: Any, superchains: int | Sequence[int]) -> pd.Series:
    r"""Nested R-hat (Margossian et al. 2024), rank-normalised, of chains in groups.

    R-hat compares single chains, so it needs chains that are long enough for precise means of their own. Nested R-hat
    compares groups ("superchains") of chains that share their start: many chains of a few draws each can pass it.

    Parameters
    ----------
    quantities : DataArray or array
        Dims ``(chain, draw, quantity)``, for instance of :func:`~pymc_stiefel.invariants`.
    superchains : int or sequence of int
        Number of groups, of consecutive chains; or the group of each chain. All groups must have the same size, and the
        chains of a group the same start (``initvals``), different from that of the other groups.

    Returns
    -------
    Series
        One value per quantity; with one chain in each group close to the usual R-hat.

    References
    ----------
    Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari & Gelman (2024), Nested R-hat: assessing the convergence of
    Markov chain Monte Carlo when running many short chains, doi:10.1214/24-BA1453.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> draws = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 10, 3, 1)))[0]
    >>> bool(pst.nested_rhat(pst.invariants(draws), superchains=4).lt(1.05).all())
    True
    """
    if isinstance(quantities, xr.Dataset | Mapping):
        raise TypeError(f"quantities must be an array, such as invariants returns, got {type(quantities).__name__}")
    values = _checks.reals("quantities", quantities)
    if values.ndim != 3:
        raise ValueError(f"quantities must have dims (chain, draw, quantity), got shape {values.shape}; use invariants")
    if values.shape[1] < 4:
        raise ValueError(f"quantities must have at least 4 draws in each chain, got {values.shape[1]}")
    groups = _groups(superchains, len(values))
    by_quantity = np.moveaxis(values, -1, 0)
    try:
        from arviz_stats.base import array_stats  # late, as in PyMC 6: ArviZ takes long to import
    except ImportError:  # ArviZ before version 1 has no nested R-hat
        result = np.array([_ranked(one, groups) for one in by_quantity])
    else:
        result = np.asarray(array_stats.rhat_nested(by_quantity, superchain_ids=groups))
    named = isinstance(quantities, xr.DataArray) and "quantity" in quantities.coords
    return pd.Series(result, index=quantities["quantity"].values if named else None, name="r_hat_nested")


def _groups(superchains: int | Sequence[int], chains: int) -> NDArray[np.int64]:
    """Numbers 0, 1, ... of the groups, one for each chain."""
    if np.ndim(superchains) == 0:
        number = _checks.whole("superchains", superchains, 2)
        if chains % number:
            raise ValueError(f"superchains must divide the {chains} chains, got {number}")
        return np.repeat(np.arange(number), chains // number)
    if np.ndim(superchains) != 1 or np.size(superchains) != chains:
        raise ValueError(f"superchains must have one entry for each of the {chains} chains, got {np.size(superchains)}")
    _, groups, sizes = np.unique(superchains, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.min() != sizes.max():
        raise ValueError(f"superchains must name at least 2 groups of equal size, got sizes {sizes.tolist()}")
    return groups


def _ranked(x: Array, groups: NDArray[np.int64]) -> float:
    """The larger value of ranks (location) and folded ranks (scale), of split chains."""
    half = x.shape[1] // 2
    split, groups = np.concatenate([x[:, :half], x[:, -half:]]), np.concatenate([groups, groups])
    return max(_nested(_normal_scores(one), groups) for one in (split, np.abs(split - np.median(split))))


def _normal_scores(x: Array) -> Array:
    from scipy.stats import rankdata

    scores: Array = scipy.special.ndtri((rankdata(x).reshape(x.shape) - 3 / 8) / (x.size + 1 / 4))
    return scores


def _nested(x: Array, groups: NDArray[np.int64]) -> float:
    """Equations 6 to 8 of the paper."""
    x = x[np.argsort(groups, kind="stable")].reshape(groups.max() + 1, -1, x.shape[1])  # (group, chain, draw)
    means = x.mean(axis=2)
    within = x.var(axis=2, ddof=1).mean(axis=1) + means.var(axis=1, ddof=1)
    return float(np.sqrt(1 + means.mean(axis=1).var(ddof=1) / within.mean()))
