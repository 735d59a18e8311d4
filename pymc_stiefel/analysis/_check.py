"""Convergence checks of what the posterior identifies, with PyMC's wording and levels."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import NDArray
from pymc.stats.convergence import SamplerWarning, WarningType, log_warnings, warn_divergences, warn_treedepth

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.analysis._inputs import dataset_of
from pymc_stiefel.analysis._invariance import Orbit, constrained_density, find_orbits
from pymc_stiefel.compile._cache import shapes, start_function
from pymc_stiefel.compile._density import manifold_block, model_density
from pymc_stiefel.engine import lbfgs as _lbfgs

__all__ = ["check"]

Array = NDArray[np.float64]
logger = logging.getLogger("pymc.stats.convergence")  # where PyMC's own checks report
NATS = 10.0  # between the modes of two chains, or between their mean log densities
ITERATIONS, ROUNDS = 150, 4  # of a search from a last draw; a chain that seems trapped gets more rounds
FRESH, MOST_FRESH = 8, 64  # searches from new starts: the least, and the most if these disagree
SHARE = 0.2  # of the gradients of the run, for all of these searches together
MOST_CURVATURES = 1000  # largest dimension in which modes are weighed, which takes as many gradients
SETTLED = 0.5  # nats by which the last tenth of a search may still improve
LOW_ENERGY = 0.3
LOW_ACCEPTANCE = 0.2  # below the target
UNSETTLED = 2.0  # of ``mass_change``; quickstart's largest in 200 chains: 1.3 after 1000 tuning draws, 2.2 after 500
SEE = "See https://arxiv.org/abs/1903.08008 for details"


def check(
    idata: Any, model: pm.Model | None = None, *, target_accept: float = 0.8, search: bool = True
) -> list[SamplerWarning]:
    """Check whether the identified quantities of a posterior have converged.

    PyMC's checks look at raw entries. Their R-hat is large even in a perfect run if signs, order or rotation of columns
    are not identified. This function tests at the last draws whether the density is invariant under such changes, logs
    what it found, and computes R-hat and effective sample sizes from aligned draws of the matrix and of all variables
    that belong to its columns. It also checks divergences, tree depth, E-BFMI, acceptance, whether masses were still
    changing when tuning ended, and differences between the mean log densities of the chains. Finally it searches for
    the mode nearest to the last draw of every chain. A chain is trapped if its mode is more than 10 nats below that of
    another chain, or below one found from a new start; R-hat may not show this.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` has returned.
    model : pymc.Model, optional
        The model that was sampled, with the same data. Default: the model in context.
    target_accept : float, default 0.8
        Target of the sampler. Chains are reported if their rate is lower by more than 0.2; a higher rate is no problem.
    search : bool, default True
        Whether to search for modes, which takes a few hundred gradients per chain.

    Returns
    -------
    list of pymc.stats.convergence.SamplerWarning
        As PyMC's checks return, and logged in the same way. Empty if all is well.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.MatrixBingham("x", A=[[0.0, 0.0], [0.0, 9.0]], B=[1.0])
    ...     idata = pm.sample(tune=500, progressbar=False, random_seed=1, compute_convergence_checks=False, chains=4)
    ...     pst.check(idata)
    []
    """
    _checks.flag("search", search)
    _checks.real("target_accept", target_accept, 0, 1)
    model = model_of(model)
    posterior, stats = dataset_of(idata, "posterior", "idata"), _statistics(idata)
    draws = _free_draws(posterior, model)
    found = [*warn_divergences(idata), *warn_treedepth(idata), *_sampler_warnings(stats, target_accept)]
    chains, size = posterior.sizes["chain"], posterior.sizes["draw"]
    if size < 100:
        message = "The number of samples is too small to check convergence reliably."
        found.append(SamplerWarning(WarningType.BAD_PARAMS, message, "info"))
    if chains == 1:
        message = "Only one chain was sampled, this makes it impossible to run some convergence checks"
        found.append(SamplerWarning(WarningType.BAD_PARAMS, message, "info"))
    elif chains < 4:
        message = "We recommend running at least 4 chains for robust computation of convergence diagnostics"
        found.append(SamplerWarning(WarningType.BAD_PARAMS, message, "info"))
    orthonormal = {rv.name for rv in model.free_RVs if manifold_block(model, model.rvs_to_values[rv]) is not None}
    tested = Tested(model, draws) if orthonormal and all(rv.name in draws for rv in model.free_RVs) else None
    orbits = tested.orbits() if tested else []
    for orbit in orbits:
        logger.info("%s: R-hat and ESS are those of aligned draws.", orbit)
    if size >= 100 and chains > 1:
        found += _identified(draws, orbits, orthonormal)
        found += _log_densities(stats)
    if tested and search and chains > 1:
        found += tested.trapped_chains(_gradients(stats))
    log_warnings(found)
    return found


def _statistics(idata: Any) -> xr.Dataset:
    groups = idata.groups() if callable(getattr(idata, "groups", None)) else getattr(idata, "groups", ())
    return dataset_of(idata, "sample_stats") if any(g.strip("/") == "sample_stats" for g in groups) else xr.Dataset()


def _gradients(stats: xr.Dataset) -> float:
    """Number of gradients that the draws took."""
    return next((float(stats[name].sum()) for name in ("gradients", "n_steps", "tree_size") if name in stats), 0.0)


def _free_draws(posterior: xr.Dataset, model: pm.Model) -> dict[str, Array]:
    """Draws of the free variables in the trace, of shape (chain, draw, ...)."""
    names = [rv.name for rv in model.free_RVs if rv.name in posterior]
    if not names:
        raise ValueError(
            f"idata has none of the variables of the model ({', '.join(rv.name for rv in model.free_RVs)}), only "
            f"{', '.join(map(str, posterior.data_vars))}: give the model that was sampled as model="
        )
    draws = {name: posterior[name].transpose("chain", "draw", ...).values for name in names}
    known = shapes(model)
    for name, values in draws.items():
        if values.shape[2:] != known[name]:
            raise ValueError(f"idata: {name!r} has shape {values.shape[2:]}, in the model it has shape {known[name]}")
    return draws


# ---------------------------------------------------------------- sampler statistics


def _sampler_warnings(stats: xr.Dataset, target_accept: float) -> list[SamplerWarning]:
    found = []
    if "energy" in stats and stats.sizes["draw"] > 2:
        energy = stats["energy"].transpose("chain", "draw").values
        with np.errstate(invalid="ignore", divide="ignore"):
            bfmi = (np.diff(energy, axis=1) ** 2).mean(axis=1) / energy.var(axis=1)
        for chain in np.flatnonzero(bfmi < LOW_ENERGY).tolist():
            message = (
                f"Chain {chain} has an E-BFMI of {bfmi[chain]:.2f}, below {LOW_ENERGY}: energies are explored slowly."
            )
            found.append(SamplerWarning(WarningType.BAD_ENERGY, f"{message} Reparameterize.", "warn"))
    accepted = next((stats[name] for name in ("acceptance_rate", "mean_tree_accept") if name in stats), None)
    if accepted is not None:
        for chain, rate in enumerate(accepted.mean("draw").values):
            if rate < target_accept - LOW_ACCEPTANCE:
                message = (
                    f"The acceptance probability does not match the target. It is {rate:.3g} in chain {chain}, but "
                    f"should be close to {target_accept:.3g}. Try to increase the number of tuning steps."
                )
                found.append(SamplerWarning(WarningType.BAD_ACCEPTANCE, message, "warn"))
    if "mass_change" in stats:
        change = stats["mass_change"].isel(draw=-1).values
        late = [
            f"chain {chain} ({f'by a factor of {np.exp(value):.2g}' if value < np.inf else 'too short to tell'})"
            for chain, value in enumerate(change)
            if value > UNSETTLED
        ]
        if late:
            message = (
                f"Masses were still changing when tuning ended in {', '.join(late)}. "
                "Increase the number of tuning steps."
            )
            found.append(SamplerWarning(WarningType.CONVERGENCE, message, "warn", extra=change))
    return found


def _log_densities(stats: xr.Dataset) -> list[SamplerWarning]:
    """Chains whose mean log density is far below that of another."""
    logp = next((stats[name] for name in ("lp", "logp", "model_logp") if name in stats), None)
    if logp is None:
        return []
    values = logp.transpose("chain", "draw", ...).values
    means, allowed = values.mean(axis=1), max(NATS, 2 * float(np.sqrt(values.var(axis=1).mean())))
    found = []
    for chain in np.flatnonzero(means < means.max() - allowed):
        message = (
            f"The mean log density of chain {chain} is {means.max() - means[chain]:.0f} nats below that of chain "
            f"{means.argmax()}: they sample different regions. Run longer chains from other starts (`initvals`)."
        )
        found.append(SamplerWarning(WarningType.CONVERGENCE, message, "error", extra=means))
    return found


# ---------------------------------------------------------------- R-hat and ESS of identified quantities


def _identified(draws: dict[str, Array], orbits: list[Orbit], orthonormal: set[str]) -> list[SamplerWarning]:
    identified = {name: values for name, values in draws.items() if values.dtype.kind in "fiub"}
    for orbit in orbits:
        pooled = {name: draws[name].reshape(-1, *draws[name].shape[2:]) for name in orbit.names}
        aligned = orbit.aligned(pooled, orthonormal)
        identified |= {name: values.reshape(draws[name].shape) for name, values in aligned.items()}
    data = xr.Dataset(
        {
            name: (("chain", "draw", f"{name}_entry"), values.reshape(*values.shape[:2], -1))
            for name, values in identified.items()
        }
    )
    import arviz as az  # late, as in PyMC 6: it takes longer to import than this package

    with np.errstate(invalid="ignore", divide="ignore"):
        r_hat, ess = az.rhat(data), az.ess(data)
    worst = {str(name): float(np.nanmax(values.values, initial=0.0)) for name, values in r_hat.data_vars.items()}
    least = {str(name): float(np.nanmin(values.values, initial=np.inf)) for name, values in ess.data_vars.items()}
    found, name = [], max(worst, key=worst.__getitem__)
    if worst[name] > 1.01:
        message = (
            "The rhat statistic is larger than 1.01 for some parameters. This indicates problems during sampling. "
        )
        message += f"The largest is {worst[name]:.3f}, of {name}. {SEE}"
        found.append(SamplerWarning(WarningType.CONVERGENCE, message, "info", extra=r_hat))
    name = min(least, key=least.__getitem__)
    per_chain = least[name] / data.sizes["chain"]
    if per_chain < 100:
        message = (
            "The effective sample size per chain is smaller than 100 for some parameters. A higher number is needed "
        )
        message += (
            "for reliable rhat and ess computation. "
            f"The smallest is {per_chain:.0f} per chain, {least[name]:.0f} in all, of {name}. {SEE}"
        )
        found.append(SamplerWarning(WarningType.CONVERGENCE, message, "error", extra=ess))
    return found


# ---------------------------------------------------------------- tests with the density


class Tested:
    """The compiled density of the model, at the last draws of the chains."""

    def __init__(self, model: pm.Model, draws: dict[str, Array]) -> None:
        self.model, self.draws = model, draws
        values = model.continuous_value_vars
        self.make_start = start_function(model)
        start = self.make_start(0)
        self.density = model_density(model, values, start, minibatches=True)
        self.random = len(self.density.batches.rows) > 0
        if self.random:  # one batch for all comparisons
            self.density.draw_batches(np.random.default_rng(0))
        self.flat, self.logp = constrained_density(model, self.density)
        self.gradients = 0  # used by searches
        self.last = [
            {name: values[chain, -1] for name, values in draws.items()}
            for chain in range(len(next(iter(draws.values()))))
        ]

    def orbits(self) -> list[Orbit]:
        """Find what the posterior does not identify."""
        return find_orbits(self.model, self.logp, self.last[:2])

    def _objective(self, q: Array) -> tuple[float, Array]:
        self.gradients += 1
        value, gradient = self.density(q)
        return -value, -gradient

    def _search(self, q: Array) -> _lbfgs.Result:
        return _lbfgs.minimize(self._objective, q, self.density.layout, gtol=1e-2, max_iterations=ITERATIONS)

    def _fresh_search(self, seed: int) -> _lbfgs.Result | None:
        """Search from a random start; matrices move first, because scales would adapt to a random matrix."""

        def matrices_only(q: Array) -> tuple[float, Array]:
            value, gradient = self._objective(q)
            gradient[self.density.layout.stiefel :] = 0.0
            return value, gradient

        q = self.density.on_manifold(self.density.pack(self.make_start(seed)))
        value, gradient = self._objective(q)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        return self._search(_lbfgs.minimize(matrices_only, q, self.density.layout, gtol=1e-2, max_iterations=40).q)

    def _log_weight(self, mode: _lbfgs.Result) -> float:
        """Log probability of a mode by Laplace's method, with widths limited to one."""
        manifold, step = _lbfgs.Manifold(self.density.layout), 1e-6 if pytensor.config.floatX == "float64" else 1e-3
        here = manifold.project(mode.q, self._objective(mode.q)[1])
        rows = []
        for unit in np.eye(self.density.layout.size):
            moved = manifold.retract(mode.q, step * manifold.project(mode.q, unit))
            there = manifold.project(mode.q, manifold.project(moved, self._objective(moved)[1]))
            rows.append((there - here) / step)
        curvature = np.array(rows)
        if not np.isfinite(curvature).all():
            return -np.inf
        return -mode.value - 0.5 * float(np.log(np.maximum(np.linalg.eigvalsh((curvature + curvature.T) / 2), 1)).sum())

    def _fresh_modes(self, best: float, gradients: float) -> list[_lbfgs.Result]:
        """Modes that searches from new starts find, until one is better than ``best``.

        If the first searches end at the same height as ``best``, no more are made. Otherwise there are traps, and a
        better mode may be rare.
        """
        found: list[_lbfgs.Result] = []
        most = self.gradients + SHARE * gradients
        for seed in range(MOST_FRESH):
            heights = [mode.value for mode in found] or [best]
            if seed >= FRESH and (min(heights) < best - NATS or self.gradients > most):
                break
            if seed >= FRESH and found and max(heights) < best + NATS:
                break
            mode = self._fresh_search(seed)
            found += [mode] if mode is not None and _settled(mode) else []
        return found

    def trapped_chains(self, gradients: float = 0.0) -> list[SamplerWarning]:
        """Chains whose nearest mode is far below that of another chain, or below one that a fresh search finds.

        ``gradients``, the number in the run, limits the cost of fresh searches.
        """
        if self.random or self.density.shared:  # with discrete variables, chains have densities of their own
            return []
        modes = [self._search(self.density.on_manifold(self.flat(point))) for point in self.last]
        for _ in range(ROUNDS - 1):
            highest = min(mode.value for mode in modes)
            if not any(mode.value > highest + NATS and not _settled(mode) for mode in modes):
                break
            modes = [mode if _settled(mode) else self._search(mode.q) for mode in modes]
        # A draw is about half its dimension below its mode. If the density has a funnel and no mode, or the chain had
        # not arrived (which its mean log density shows), the search climbs higher, and the height means nothing.
        layout = self.density.layout
        longest = 2 * (layout.size - int((layout.p * (layout.p + 1) // 2).sum())) + 20
        usable = {
            chain: mode
            for chain, (point, mode) in enumerate(zip(self.last, modes, strict=True))
            if _settled(mode) and -self.logp(point) - mode.value < longest
        }
        if not usable:
            return []
        known = list(usable.values())
        if layout.size <= MOST_CURVATURES:
            known += self._fresh_modes(min(mode.value for mode in known), gradients)
        best = min(known, key=lambda mode: mode.value)
        low = {chain: mode.value - best.value for chain, mode in usable.items() if mode.value > best.value + NATS}
        if low and layout.size <= MOST_CURVATURES:  # a spike may be high but contain hardly any probability
            weight = self._log_weight(best)
            low = {chain: nats for chain, nats in low.items() if weight > self._log_weight(usable[chain]) + NATS}
        return [
            SamplerWarning(
                WarningType.CONVERGENCE,
                f"Chain {chain} is trapped: the mode nearest to its last draw is {nats:.0f} nats below the best that "
                "is known. Its draws are not those of the posterior; use `initvals=pst.initial_points(...)`.",
                "error",
                extra=[-mode.value for mode in modes],
            )
            for chain, nats in low.items()
        ]


def _settled(mode: _lbfgs.Result) -> bool:
    """Whether a search has converged well enough to compare modes."""
    history = mode.history
    return mode.converged or mode.iterations < ITERATIONS or history[-ITERATIONS // 10] - history[-1] < SETTLED
