"""A kernel for ``pm.sample_smc`` that moves particles along trajectories on the manifold."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_expression
from pymc.smc.kernels import SMC_KERNEL

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.compile._ordered_log import to_widths
from pymc_stiefel.engine.adaptation.step_size import MAX_STEP_SIZE
from pymc_stiefel.engine.blocks import overwrite
from pymc_stiefel.engine.drifts import AUTOMATIC
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.smc._population import correlation, evaluate, population_metric

PILOTS = 40
"""Trajectories with which a stage tunes its step size. They are discarded."""

LOG_LARGEST = math.log(MAX_STEP_SIZE)

ROUND = 2
"""Moves of every particle between two checks of the correlation."""


class ManifoldSMC(SMC_KERNEL):
    r"""Kernel for ``pm.sample_smc``: gradient moves on the manifold.

    Particles start as draws from the prior and move through the densities :math:`p(\theta)\, p(y \mid \theta)^\beta`
    with :math:`\beta` increasing from 0 to 1. In every stage they are weighted, resampled and moved by no-U-turn
    trajectories whose masses and step size are learnt from the particles. The result represents separate modes by their
    weights and contains the log marginal likelihood, see :func:`~pymc_stiefel.log_marginal_likelihood`.

    Observed variables and ``pm.Potential`` terms are tempered, the prior of the free variables is not, as in PyMC. The
    log marginal likelihood of a model with a potential is therefore that of data and potential together. All free
    variables start from their prior; ``initval`` is ignored.

    Parameters
    ----------
    draws : int
        Number of particles of a chain, as ``pm.sample_smc`` passes it.
    threshold : float, default 0.5
        A stage raises beta until the effective sample size of the weights falls to this fraction of the particles.
    correlation_threshold : float, default 0.2
        A stage ends when the correlation of the particles with their positions at its start is below this, or no
        longer decreases.
    max_moves : int, default 40
        Largest number of moves in a stage.
    target_accept : float, default 0.8
    max_treedepth : int, default 6
        A trajectory has at most ``2**max_treedepth`` steps.
    start, model, random_seed, compile_kwargs
        As for PyMC's kernels.

    References
    ----------
    Del Moral, Doucet & Jasra (2006), Sequential Monte Carlo samplers, doi:10.1111/j.1467-9868.2006.00553.x.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.UnitVector("x", n=3)
    ...     y = pm.Normal("y", x, 1, observed=[3.0, 0.0, 0.0])
    ...     idata = pm.sample_smc(200, kernel=pst.ManifoldSMC, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> exact = np.log(np.sinh(3) / 3) - 5 - 1.5 * np.log(2 * np.pi)
    >>> bool(abs(pst.log_marginal_likelihood(idata).value - exact) < 0.3)
    True
    """

    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list[int]]]] = {
        "log_marginal_likelihood": (float, []),
        "beta": (float, []),
        "accept_rate": (float, []),
        "step_size": (float, []),
        "moves": (int, []),
        "gradients": (int, []),
        "correlation": (float, []),
    }

    def __init__(
        self,
        draws: int = 2000,
        start: dict[str, Any] | None = None,
        model: pm.Model | None = None,
        random_seed: Any = None,
        threshold: float = 0.5,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        correlation_threshold: float = 0.2,
        max_moves: int = 40,
        target_accept: float = 0.8,
        max_treedepth: int = 6,
    ) -> None:
        model = model_of(model)
        for name, value in {"start": start, "compile_kwargs": compile_kwargs}.items():
            _checks.mapping(name, value)
        _checks.seed("random_seed", random_seed)
        fractions = {"correlation_threshold": correlation_threshold, "target_accept": target_accept}
        _check_start([str(value.name) for value in model.value_vars], start)
        _check(model, draws, max_moves, max_treedepth, threshold=threshold, **fractions)
        self.correlation_threshold, self.max_moves, self.target_accept = correlation_threshold, max_moves, target_accept
        # The functions that the base class compiles are not used, so they are compiled as quickly as possible.
        super().__init__(draws, start, model, random_seed, threshold, {"mode": "FAST_COMPILE"})
        self._prior_expression = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=dict.fromkeys(model.free_RVs),
            default_strategy="prior",
            return_transformed=True,
        )
        self._density = ModelDensity(
            model, model.value_vars, model.initial_point(), widths=True, tempered=True, compile_kwargs=compile_kwargs
        )
        self._settings = Settings(drift=AUTOMATIC, stages=TWO_STAGE, max_treedepth=max_treedepth, step_size=0.5)
        self._make_sampler()
        self._sampler.compile()

    def _make_sampler(self) -> None:
        density = self._density
        self._sampler = Sampler(density.layout, density.address, self._settings, self.rng, density.extra)
        self._step_size = 0.5

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_sampler"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_sampler()

    def initialize_population(self) -> dict[str, np.ndarray]:
        """Draws from the prior. The graph runs once per particle, too seldom to compile it for each chain."""
        values = pm.draw(self._prior_expression, draws=self.draws, random_seed=self.rng, mode="FAST_COMPILE")
        return dict(zip(self._prior_var_names, values, strict=True))

    def _initialize_kernel(self) -> None:
        init = self.start or self.initialize_population()
        _check_start(list(self.var_info), init)
        self._make_sampler()
        rows = [np.reshape(np.asarray(init[name])[: self.draws], (self.draws, -1)) for name in self.var_info]
        self.tempered_posterior = np.concatenate(rows, axis=1).astype(np.float64)
        self._take(self._to_states(self.tempered_posterior))
        finite = int(np.argmax(np.isfinite(self.likelihood_logp)))
        gradient = self._prior_gradient[finite] + self._likelihood_gradient[finite]
        self._density.check_subspaces(self._states[finite], gradient)

    # ------------------------------------------------------------ particles as rows of value variables, and as states

    def _to_states(self, rows: np.ndarray) -> np.ndarray:
        states, first = np.empty((len(rows), self._density.layout.size)), 0
        slots = {str(slot.value.name): slot for slot in self._density.slots}
        for name, (shape, size) in self.var_info.items():
            values, slot = rows[:, first : first + size].reshape(-1, *shape), slots[name]
            slot.view(states)[...] = to_widths(values) if slot.widths else values
            first += size
        return states

    def _to_rows(self, states: np.ndarray) -> np.ndarray:
        values = {str(slot.value.name): slot.read(states) for slot in self._density.slots}
        return np.concatenate([values[name].reshape(len(states), -1) for name in self.var_info], axis=1)

    def _temper(self, beta: float) -> None:
        """Set the inverse temperature of the compiled density to ``beta``."""
        self._density.inverse_temperature.set_value(np.asarray(float(beta)))
        self._density.refresh()
        self._sampler.extra = self._density.extra

    def _take(self, states: np.ndarray) -> None:
        """Store the particles with their log densities and gradients of prior and likelihood."""
        self._states, found = states, []
        for beta in (0.0, 1.0):
            self._temper(beta)
            found.append(evaluate(self._density.address, self._density.extra, states))
        (self.prior_logp, self._prior_gradient), (both, gradient) = found
        self._likelihood_gradient = gradient - self._prior_gradient
        self.likelihood_logp = np.where(np.isfinite(both), both - self.prior_logp, -np.inf)

    def resample(self) -> None:
        super().resample()
        chosen = self.resampling_indexes
        self._states = self._states[chosen]
        self._gradient = (self._prior_gradient + self.beta * self._likelihood_gradient)[chosen]

    # ------------------------------------------------------------ one stage

    def tune(self) -> None:
        """Masses from the particles, then a step size by trial."""
        self._temper(self.beta)
        chain, layout = self._sampler.chain, self._density.layout
        overwrite(chain.metric, population_metric(layout, self._states, self._gradient, chain.metric, chain.kinds))
        chain.tune, chain.started, chain.frozen = False, True, True
        log_eps, tried = math.log(self._step_size), []
        for k, j in enumerate(self.rng.integers(self.draws, size=PILOTS)):
            self._sampler.step_size = math.exp(log_eps)
            self._sampler.draws(1, self._states[j], keep_gradient=False)
            gain = 1.5 / (1.0 + k) ** 0.6
            log_eps = min(log_eps + gain * (self._sampler.stats["mean_tree_accept"] - self.target_accept), LOG_LARGEST)
            tried.append(log_eps)
        self._step_size = self._sampler.step_size = math.exp(np.mean(tried[PILOTS // 2 :]))

    def mutate(self) -> None:
        """Move every particle until the population is no longer correlated with its start of the stage."""
        sampler, states = self._sampler, self._states.copy()
        self.moves, self.gradients, accepted, last = 0, 0, [], 1.0
        while self.moves < self.max_moves:
            for k in range(self.draws):
                states[k] = sampler.draws(ROUND, states[k], keep_gradient=False)[-1]
                accepted.append(sampler.statistics["mean_tree_accept"].mean())
                self.gradients += int(sampler.statistics["gradients"].sum())
            self.moves += ROUND
            self.correlation = correlation(self._density.layout, self._states, states)
            if self.correlation < self.correlation_threshold or self.correlation > 0.9 * last:
                break
            last = self.correlation
        self.acc_rate = float(np.mean(accepted))
        self._take(states)
        self.tempered_posterior = self._to_rows(states)
        self.tempered_posterior_logp = self.prior_logp + self.beta * self.likelihood_logp

    def sample_stats(self) -> dict[str, Any]:
        return {
            "log_marginal_likelihood": self.log_marginal_likelihood if self.beta == 1 else np.nan,
            "beta": self.beta,
            "accept_rate": self.acc_rate,
            "step_size": self._step_size,
            "moves": self.moves,
            "gradients": self.gradients,
            "correlation": self.correlation,
        }

    def sample_settings(self) -> dict[str, Any]:
        return {
            "_n_draws": self.draws,
            "threshold": self.threshold,
            "correlation_threshold": self.correlation_threshold,
            "max_moves": self.max_moves,
            "target_accept": self.target_accept,
        }


def _check_start(names: list[str], start: dict[str, Any] | None) -> None:
    missing, unknown = sorted(set(names) - set(start or names)), sorted(set(start or ()) - set(names))
    if missing:
        raise ValueError(f"start lacks the variables {missing}; give the values of all of {names}")
    if unknown:
        raise ValueError(f"start names {unknown}, which are not among {names}")


def _check(model: pm.Model, draws: int, max_moves: int, max_treedepth: int, **fractions: float) -> None:
    if model.discrete_value_vars:
        names = [value.name for value in model.discrete_value_vars]
        raise ValueError(
            f"ManifoldSMC moves particles by gradients, which the discrete variables {names} do not have: marginalise "
            "them, or use pm.sample_smc with PyMC's own kernels"
        )
    if not model.value_vars:
        raise ValueError("the model has no free variables to sample")
    for name, value, least in (("draws", draws, 2), ("max_moves", max_moves, 1), ("max_treedepth", max_treedepth, 1)):
        _checks.whole(name, value, least)
    for name, fraction in fractions.items():
        _checks.real(name, fraction, 0, 1)
    if model.potentials:
        names = [potential.name for potential in model.potentials]
        warnings.warn(
            f"the potentials {names} are tempered together with the likelihood: the log marginal likelihood is that of "
            "data and potentials under the prior of the free variables. Declare priors as variables.",
            UserWarning,
            stacklevel=4,
        )
