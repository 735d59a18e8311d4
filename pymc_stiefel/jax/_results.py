"""Draws on the host: stored in chunks, summarised for the progress bar, and converted to ArviZ objects."""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
import warnings
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.stats.convergence import log_warnings, run_convergence_checks

__all__ = ["Store"]

_log = logging.getLogger("pymc.stiefel")

MOST_CHECKED = 20_000_000
"""Largest size of a posterior for which PyMC's convergence checks run, because they sort copies of all draws."""
RHAT_LIMIT = 1.01
SHOWN_CHAINS = 256
"""Number of chains whose R-hat the progress bar shows."""


class Store:
    """Arrays (chain, draw, ...), filled from chunks (draw, chain, ...)."""

    def __init__(self, names: list[str], draws: int, chains: int, step_size: float, length: float):
        self.names, self.draws, self.chains = names, draws, chains
        self.step_size, self.length = step_size, length
        self.posterior: dict[str, np.ndarray] = {}
        self.stats: dict[str, np.ndarray] = {"step_size": np.broadcast_to(step_size, (chains, draws))}  # no memory
        self.filled = 0

    def add(self, first: int, values: list[Any], stats: dict[str, Any]) -> None:
        """Write the draws of a chunk; surplus draws of the last chunk are dropped."""
        if not self.filled:
            release_memory()  # before the arrays are allocated
        count = min(self.draws - first, len(stats["lp"]))
        for group, chunk in ((self.posterior, dict(zip(self.names, values, strict=True))), (self.stats, stats)):
            for name, value in chunk.items():
                array = np.asarray(value)
                if name not in group:
                    group[name] = np.empty((self.chains, self.draws, *array.shape[2:]), array.dtype)
                group[name][:, first : first + count] = np.swapaxes(array[:count], 0, 1)
        self.filled = first + count

    def describe(self) -> str:
        """Text for the progress bar; R-hat is that of the log density."""
        lp, steps = self.stats["lp"][:SHOWN_CHAINS, : self.filled], self.stats["n_steps"][:, : self.filled]
        diverging = int(self.stats["diverging"][:, : self.filled].sum())
        return (
            f"step {self.step_size:.3g}, length {self.length:.3g}, {steps.mean():.1f} gradients, "
            f"{diverging} divergences, R-hat {rhat(lp):.3f}"
        )


def release_memory() -> None:
    """Return freed memory to the system. After a compilation glibc would keep several hundred MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def rhat(values: np.ndarray) -> float:
    """Split R-hat of an array (chain, draw); NaN for fewer than four draws."""
    half = values.shape[1] // 2
    if half < 2:
        return float("nan")
    halves = values[:, :half], values[:, half : 2 * half]  # not joined, because there may be millions of draws
    within = np.mean([part.var(axis=1, ddof=1) for part in halves])
    between = np.concatenate([part.mean(axis=1) for part in halves]).var(ddof=1)
    return float(np.sqrt((half - 1) / half + between / within)) if within > 0 else float("nan")


def to_inference_data(model: pm.Model, store: Store, attributes: dict[str, Any], library: Any, options: dict) -> Any:
    """``InferenceData`` with ArviZ 0.x, ``DataTree`` with ArviZ 1.x."""
    options = dict(options)
    with_likelihood = options.pop("log_likelihood", False)
    coords, dims = coords_and_dims_for_inferencedata(model)
    coords = {**coords, **options.pop("coords", {})}
    dims = {**dims, **options.pop("dims", {})}
    if options:
        raise ValueError(f"idata_kwargs takes log_likelihood, coords and dims, got {sorted(options)}")
    groups = {"posterior": store.posterior, "sample_stats": store.stats}
    for name, found in (("observed_data", find_observations(model)), ("constant_data", find_constants(model))):
        if found:
            groups[name] = found
    with warnings.catch_warnings():  # more chains than draws is intended here
        warnings.filterwarnings("ignore", "(Found chain dimension to be longer|More chains)", UserWarning)
        idata = _from_dict(groups, coords, dims, attributes, library)
        if with_likelihood:
            with model:
                pm.compute_log_likelihood(idata, progressbar=False)
    return idata


def _from_dict(groups: dict[str, Any], coords: dict, dims: dict, attributes: dict[str, Any], library: Any) -> Any:
    try:
        base: Any = importlib.import_module("arviz_base")
    except ImportError:  # ArviZ 0.x
        base = importlib.import_module("arviz.data.base")
        attrs = base.make_attrs(attributes, library=library)
        from_dict: Any = importlib.import_module("arviz").from_dict
        return from_dict(**groups, coords=coords, dims=dims, posterior_attrs=attrs, save_warmup=False)
    attrs = {"posterior": base.make_attrs(attributes, inference_library=library)}
    return base.from_dict(data=groups, coords=coords, dims=dims, sample_dims=["chain", "draw"], attrs=attrs)


def convergence_warnings(idata: Any, store: Store, model: pm.Model, target_accept: float) -> None:
    """Log warnings of PyMC's checks, and chains for which the common step size is too large."""
    accept = store.stats["acceptance_rate"].mean(axis=1)
    low = np.flatnonzero(accept < 0.5 * target_accept)
    if len(low):
        _log.warning(
            "The mean acceptance rate of %d of %d chains is below half of target_accept=%.2f (chain %d: %.2f). All "
            "chains share one step size, which is too large for these: raise target_accept or tune longer, "
            "and compare these chains with the others.",
            len(low), len(accept), target_accept, low[0], accept[low[0]],
        )  # fmt: skip
    if sum(values.size for values in store.posterior.values()) <= MOST_CHECKED:
        if store.draws >= 4:
            log_warnings(run_convergence_checks(idata, model))
        return
    diverging, value = int(store.stats["diverging"].sum()), rhat(store.stats["lp"])
    if diverging:
        _log.warning("There were %d divergences after tuning. Increase target_accept or reparameterise.", diverging)
    if value > RHAT_LIMIT:  # NaN for a constant density
        _log.warning("R-hat of the log density is %.3f: run longer chains.", value)
