"""Sampling by stochastic gradients under ``pm.sample``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.hmc.nuts import NUTS
from pymc.step_methods.state import dataclass_state

from pymc_stiefel import _checks
from pymc_stiefel._arguments import point_of, value_variables
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine.blocks import Metric
from pymc_stiefel.engine.stochastic import (
    StochasticChain,
    StochasticSampler,
    StochasticSettings,
    scaled_metric,
)
from pymc_stiefel.engine.stochastic_kernels import EULER, STATISTICS, SYMMETRIC
from pymc_stiefel.steps._base import ManifoldStep, check_values

__all__ = ["OrthogonalSGHMC"]

_log = logging.getLogger("pymc.stiefel")  # a child of PyMC's logger, so that hints appear where PyMC's own do

TOLERATED_HEAT = 0.1


@dataclass_state
class StochasticState(StepMethodState):
    """State of a chain between draws, besides its random numbers."""

    chain: StochasticChain
    divergences: int
    iter_count: int


class OrthogonalSGHMC(ManifoldStep):
    r"""Stochastic-gradient Hamiltonian Monte Carlo on the manifold (oSGHMC), for data in minibatches.

    There is no accept step, so draws have a bias that falls with the step size: see the notes and
    ``docs/stochastic.md``.
    Every gradient draws new rows of ``pm.Minibatch``, inside compiled code, from the chain's own generator.
    Orthonormal matrices move by the Cayley map, all other continuous variables as in plain SGHMC.

    Parameters
    ----------
    vars : list of variables, optional
        Default: all continuous variables of the model.
    step_size : float or callable
        Time step :math:`\epsilon`. A callable, such as :class:`PolynomialDecay`, is given the number of the draw.
    friction : float, default 0.1
        :math:`\alpha`, the share of its momentum that a step loses, between 0 and 1.
    noise_estimate : float, default 0
        :math:`\hat\beta`, the contribution of the gradients' own noise to the noise term, from 0 to ``friction``. With
        gradients of variance V and mass 1/c it is :math:`\epsilon^2 c V / 2`. If it is neglected, the kinetic
        temperature is too high by about :math:`\hat\beta / \alpha`.
    n_steps : int, default 1
        Steps, and gradients, for every draw that is kept.
    scales : dict, optional
        Name of a variable -> its scale, by which its steps are multiplied (default 1): a step moves numbers by about
        ``step_size * scale`` and turns matrices by about that many radians. Numbers may have a scale each.
    scheme : {"symmetric", "euler"}
        ``"symmetric"``: half drift, exact Ornstein-Uhlenbeck step, half drift, kick. ``"euler"``: the paper's
        Algorithm 2. The bias of both is of second order in the step size, but far smaller for the first, which has
        none for a Gaussian density; a step of the second has one drift instead of two.
    resample : bool, default False
        Draw a new momentum for every draw, as the paper's algorithm does. Only sensible with many ``n_steps``.
    temperature : float or callable, default 1
        T of the tempered law, whose density is that of the model to the power 1/T. 0 adds no noise, which is momentum
        SGD on the manifold. A callable, such as ``CyclicalSchedule.temperature``, is given the number of the draw.
    model, rng, initial_point, compile_kwargs, blocked
        As for PyMC's own step methods.

    Notes
    -----
    With K the canonical kinetic energy and :math:`\xi` from the law :math:`e^{-K}` on the tangent space, the paper's
    step is a drift by :math:`\epsilon` and then
    :math:`r \leftarrow (1 - \alpha) r + \epsilon P_X(\hat\nabla) + \sqrt{2(\alpha - \hat\beta)}\,\xi`.
    Read as momentum SGD, the learning rate is :math:`\epsilon^2 c` with :math:`c = \mathrm{scale}^2 / n` for an n x p
    matrix and :math:`\mathrm{scale}^2` for numbers, and ``1 - friction`` is the momentum coefficient.

    The statistic ``temperature`` is 2K/d, averaged over the steps of a draw (times ``1 - friction / 2`` for the paper's
    scheme, whose momentum is larger by that factor). If its mean after tuning differs from 1 by more than a tenth, a
    warning says so: the step is too large (or the gradients too noisy) for these masses.

    A chain that diverges stays where it was before: its remaining draws repeat the last good one, marked ``diverging``.

    References
    ----------
    Yanush & Kropotov (2019), Hamiltonian Monte-Carlo for orthogonal matrices, arXiv:1901.08045.
    Chen, Fox & Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, arXiv:1402.4102.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> data = np.random.default_rng(0).normal([1.0, 0.0, 0.0], 1.0, size=(1000, 3))
    >>> with pm.Model():
    ...     u = pst.UnitVector("u", n=3)
    ...     rows = pm.Minibatch(data, batch_size=50)
    ...     y = pm.Normal("y", u, 1.0, observed=rows, total_size=(1000, None))
    ...     step = pst.OrthogonalSGHMC(step_size=0.01, n_steps=10)
    ...     idata = pm.sample(20, tune=20, chains=1, step=step, progressbar=False, random_seed=1)
    >>> idata["posterior"]["u"].shape
    (1, 20, 3)
    """

    name = "osghmc"
    _state_class = StochasticState

    stats_dtypes_shapes: ClassVar = {
        **{
            key: NUTS.stats_dtypes_shapes[key]
            for key in (
                "tree_size",
                "step_size",
                "diverging",
                "divergences",
                "energy",
                "model_logp",
                "warning",
                "perf_counter_diff",
                "perf_counter_start",
                "process_time_diff",
            )
        },
        "temperature": (np.float64, []),
        "orthogonality_error": (np.float64, []),
    }

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | Callable[[int], float],
        friction: float = 0.1,
        noise_estimate: float = 0.0,
        n_steps: int = 1,
        scales: Mapping[str, Any] | None = None,
        scheme: str = SYMMETRIC,
        resample: bool = False,
        temperature: float | Callable[[int], float] = 1.0,
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
        initial_point: dict[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        model = model_of(model)
        _checks.flag("resample", resample)
        _checks.mapping("scales", scales)
        _checks.mapping("compile_kwargs", compile_kwargs)
        _checks.seed("rng", rng)
        self.settings = checked_settings(
            step_size=step_size,
            friction=friction,
            noise_estimate=noise_estimate,
            n_steps=n_steps,
            scheme=scheme,
            resample=resample,
            temperature=temperature,
        )
        values = value_variables(model, vars)
        check_values(model, values, type(self).__name__)
        initial_point = point_of(model, initial_point)
        self._density = ModelDensity(
            model, values, initial_point, reflect=False, minibatches=True, compile_kwargs=compile_kwargs
        )
        self._metric = variable_masses(model, self._density, scales or {})
        if len(self._density.batches.rows) == 0:
            _log.info(
                "OrthogonalSGHMC: this model has no pm.Minibatch, so its gradients are exact; "
                "StiefelNUTS or OrthogonalHMC would draw from it without bias."
            )
        super().__init__(values, self._density.shared, blocked, rng=rng)
        self._model = model
        self.divergences = 0
        self.iter_count = 0
        self._make_sampler()
        self._sampler.compile()

    def _make_sampler(self) -> None:
        density = self._density
        self._sampler = StochasticSampler(
            density.layout, density.address, self.settings, self._metric, self.rng, density.extra, density.batches
        )

    def _draws(self, flat: np.ndarray | None, changed: bool) -> tuple[np.ndarray, list[dict[str, Any]]]:
        state = self._sampler.draw(flat, keep_gradient=not (self.shared or changed))
        return state[None], [self._statistics(self._sampler.stats)]

    def _statistics(self, row: np.ndarray) -> dict[str, Any]:
        raw = dict(zip(STATISTICS, row.tolist(), strict=True))
        diverging = self.chain.stopped
        warning = self._warning(raw)
        self.divergences += diverging and not self.tune
        self.iter_count += 1
        return {
            "tree_size": raw["steps"],
            "step_size": self._sampler.last_step_size,
            "diverging": diverging,
            "divergences": self.divergences,
            "energy": raw["energy"],
            "model_logp": raw["model_logp"],
            "temperature": raw["temperature"],
            "orthogonality_error": self.chain.orthogonality_error,
            "warning": warning,
        }

    def _warning(self, raw: dict[str, float]) -> SamplerWarning | None:
        """Warnings about this draw, each once per chain."""
        if raw["diverging"] and raw["steps"] > 0:
            kind = WarningType.TUNING_DIVERGENCE if self.tune else WarningType.DIVERGENCE
            message = (
                f"The chain diverged in draw {self.iter_count}, step {raw['steps']:.0f} of {self.settings.n_steps}: "
                f"log density {raw['model_logp']:.3g}, kinetic temperature {raw['temperature']:.3g} with "
                f"step_size={self._sampler.last_step_size:.3g}. It stays at its last good draw, and the draws from "
                "here on are marked `diverging`. Use a smaller step_size or scales, or start nearer to the mode."
            )
            return SamplerWarning(kind, message, "error", self.iter_count)
        mean, error = self._sampler.temperature
        # wait until the standard error is below a third of the tolerance
        if self.chain.warned or not error < TOLERATED_HEAT / 3 or abs(mean - 1.0) < TOLERATED_HEAT + 2.0 * error:
            return None
        self.chain.warned = True
        message = (
            f"The kinetic temperature is {mean:.3f} (+-{error:.3f}) times what it should be: step_size="
            f"{self._sampler.last_step_size:.3g} is too large"
            + (", or the gradients are noisier than noise_estimate says." if mean > 1.0 else ".")
        )
        return SamplerWarning(WarningType.BAD_ENERGY, message, "warn", self.iter_count)

    _progressbar_config = staticmethod(NUTS._progressbar_config)
    _make_progressbar_update_functions = staticmethod(NUTS._make_progressbar_update_functions)


def checked_settings(**given: Any) -> StochasticSettings:
    """The settings, or an error that names the wrong one and its value."""
    for name, least in (("friction", 0.0), ("noise_estimate", -np.inf)):
        given[name] = _checks.real(name, given[name], least)
    given["n_steps"] = _checks.whole("n_steps", given["n_steps"])
    _checks.choice("scheme", given["scheme"], (EULER, SYMMETRIC))
    if not callable(given["step_size"]):
        given["step_size"] = _checks.real("step_size", given["step_size"], 0)
    if not callable(given["temperature"]):
        given["temperature"] = _checks.real("temperature", given["temperature"])
    settings = StochasticSettings(**given)
    first, temperature = settings.step_size_at(0), settings.temperature_at(0)
    friction, noise_estimate = settings.friction, settings.noise_estimate
    rules = [
        ("step_size", first > 0 and np.isfinite(first), "must be positive and finite", first),
        ("friction", 0 < friction < 1, "must lie between 0 and 1", friction),
        ("noise_estimate", noise_estimate >= 0, "must not be negative", noise_estimate),
        ("temperature", 0 <= temperature < np.inf, "must be finite and not negative", temperature),
        (
            "noise_estimate",
            noise_estimate <= friction * (temperature or 1.0),
            f"must not exceed friction={friction}"
            + (f" times temperature={temperature}" if temperature not in (0, 1) else ""),
            noise_estimate,
        ),
    ]
    for name, holds, message, value in rules:
        if not holds:
            raise ValueError(f"{name} {message}, got {name}={value!r}")
    return settings


def variable_masses(model: pm.Model, density: ModelDensity, scales: Mapping[str, Any]) -> Metric:
    """The metric with the given scales, by the name of the variable or of its value variable."""
    names = {slot.value.name: model.values_to_rvs[slot.value].name for slot in density.slots}
    unknown = set(scales) - set(names) - set(names.values())
    if unknown:
        raise ValueError(f"scales names {sorted(unknown)}, which are not among {sorted(names.values())}")
    matrices: list[float] = []
    numbers: list[float] = []
    for slot in density.slots:
        name = names[slot.value.name]
        scale = np.asarray(scales.get(name, scales.get(str(slot.value.name), 1.0)), dtype=np.float64)
        if not (np.all(np.isfinite(scale)) and np.all(scale > 0)):
            raise ValueError(f"scales must be positive, got scales[{name!r}]={scale}")
        shape = slot.shape if slot.block is None else slot.block.batch_shape
        try:
            spread = np.broadcast_to(scale, shape).ravel().tolist()
        except ValueError:
            raise ValueError(f"scales[{name!r}] has shape {scale.shape}, which does not fit {shape}") from None
        (numbers if slot.block is None else matrices).extend(spread)
    return scaled_metric(density.layout, np.array(matrices), np.array(numbers))
