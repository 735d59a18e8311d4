"""Marginal likelihoods from sequential Monte Carlo, and the choice of the number of components."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import scipy

from pymc_stiefel import _checks
from pymc_stiefel.smc._kernel import ManifoldSMC

LARGE_ERROR = 2.0
"""Standard error, in nats, above which an estimate says little: probabilities may be wrong by a factor of 7."""


class Evidence(NamedTuple):
    """Log marginal likelihood, as :func:`log_marginal_likelihood` returns it.

    Attributes
    ----------
    value : float
    error : float
        Standard error, from the spread of the chains.
    chains : ndarray
        The estimates of the single chains.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_stiefel as pst
    >>> pst.Evidence(value=-10.0, error=0.1, chains=np.array([-10.1, -9.9])).error
    0.1
    """

    value: float
    error: float
    chains: np.ndarray


def log_marginal_likelihood(idata: Any) -> Evidence:
    """The log marginal likelihood of a model, as estimated by ``pm.sample_smc``.

    Parameters
    ----------
    idata : InferenceData or DataTree
        The result of ``pm.sample_smc`` with any kernel.

    Returns
    -------
    Evidence
        ``value`` is the logarithm of the mean of the chains' estimates, each of which is unbiased. ``error`` is its
        standard error from the spread of the chains, nan for a single chain.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, observed=0.0)
    ...     idata = pm.sample_smc(500, kernel=pst.ManifoldSMC, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> found = pst.log_marginal_likelihood(idata)
    >>> abs(found.value - -1.2655) < 0.1  # y has the law N(0, 2)
    True
    """
    stats = idata["sample_stats"] if hasattr(idata, "groups") and "sample_stats" in idata else {}
    if "log_marginal_likelihood" not in stats:
        raise ValueError(
            "idata must have log_marginal_likelihood in its sample_stats; make it with pm.sample_smc, got "
            f"{type(idata).__name__}"
        )
    # one row of stages per chain, of which only the last has a finite number; rows of different lengths are lists
    values = stats["log_marginal_likelihood"].values
    are_lists = values.dtype == object and isinstance(values.flat[0], list | np.ndarray)
    rows = list(values.flat) if are_lists else np.atleast_2d(values)
    chains = np.array([_last(row) for row in rows])
    error = float(np.std(chains, ddof=1) / np.sqrt(len(chains))) if len(chains) > 1 else float("nan")
    if error > LARGE_ERROR:
        text = (
            f"the chains' estimates of the log marginal likelihood go from {chains.min():.1f} to {chains.max():.1f}: "
            "their particles have not found the same modes. Use more particles (draws), a smaller "
            "correlation_threshold for more moves per stage, or a start nearer to the posterior, as the guide to the "
            "number of components shows"
        )
        warnings.warn(text, UserWarning, stacklevel=2)
    return Evidence(float(scipy.special.logsumexp(chains) - np.log(len(chains))), error, chains)


def _last(row: Any) -> float:
    numbers = np.atleast_1d(np.asarray(row, dtype=float))
    return float(numbers[np.isfinite(numbers)][-1])


def compare_ranks(
    models: Mapping[Hashable, pm.Model],
    draws: int = 1000,
    *,
    chains: int = 4,
    random_seed: int | None = None,
    **kwargs: Any,
) -> pd.DataFrame:
    """Posterior probabilities of models, such as factor models of different ranks.

    Each model is sampled by ``pm.sample_smc`` with the kernel :class:`~pymc_stiefel.ManifoldSMC`. All models have the
    same prior probability.

    Parameters
    ----------
    models : mapping
        Rank (or any other label) -> ``pymc.Model``. All must have the same observed data.
    draws : int, default 1000
        Particles of a chain.
    chains : int, default 4
        Chains per model. The error is estimated from their spread.
    random_seed : int, optional
    kwargs
        Passed to ``pm.sample_smc``.

    Returns
    -------
    pandas.DataFrame
        A row for each model: ``log_marginal``, its standard ``error``, and the posterior ``probability``.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> models = {}
    >>> for sigma in (1.0, 10.0):
    ...     with pm.Model() as models[sigma]:
    ...         y = pm.Normal("y", pm.Normal("x", 0, sigma), observed=[0.1, -0.2])
    >>> table = pst.compare_ranks(models, 300, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> float(table["probability"].idxmax())
    1.0
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models must be a non-empty mapping of ranks to models, got {models!r}")
    for name, model in models.items():
        if not isinstance(model, pm.Model):
            raise TypeError(f"models[{name!r}] must be a pymc.Model, got {model!r}")
    _checks.whole("draws", draws)
    _checks.whole("chains", chains)
    _checks.seed("random_seed", random_seed)
    options = {"kernel": ManifoldSMC, "compute_convergence_checks": False} | kwargs
    found = [
        log_marginal_likelihood(pm.sample_smc(draws, model=model, chains=chains, random_seed=random_seed, **options))
        for model in models.values()
    ]
    values = np.array([evidence.value for evidence in found])
    return pd.DataFrame(
        {
            "log_marginal": values,
            "error": [evidence.error for evidence in found],
            "probability": np.exp(values - scipy.special.logsumexp(values)),
        },
        index=pd.Index(models, name="rank"),
    )
