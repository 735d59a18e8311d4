"""Hamiltonian Monte Carlo under ``pm.sample``."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.hmc.nuts import NUTS
from pymc.step_methods.state import dataclass_state
from pymc.vartypes import continuous_types

from pymc_stiefel import _checks
from pymc_stiefel._arguments import point_of, value_variables
from pymc_stiefel._compat import choice_of_steps, model_of, start_is_among, start_is_given
from pymc_stiefel.compile._density import ModelDensity, model_density
from pymc_stiefel.compile._layout import manifold_block
from pymc_stiefel.engine.adaptation.search import Search
from pymc_stiefel.engine.drifts import AUTOMATIC, CAYLEY, GEODESIC
from pymc_stiefel.engine.integrator import LEAPFROG, TWO_STAGE
from pymc_stiefel.engine.sampler import Chain, Sampler, Settings
from pymc_stiefel.engine.statistics import NAMES, STATISTICS
from pymc_stiefel.steps._base import Ahead, ManifoldStep, Statistics, check_values

__all__ = ["GeodesicHMC", "OrthogonalHMC", "StiefelNUTS"]

MOST_AHEAD, PATIENCE = 32, 5e-3
"""Limits of a batch of draws (count, seconds). Batching amortises the overhead of a call from Python, which is long
compared with a short trajectory.
"""

UNUSED = ("largest_eigval", "smallest_eigval")
"""Statistics of PyMC's NUTS that only its masses have."""


@dataclass_state
class ManifoldHMCState(StepMethodState):
    """State of a chain between draws, besides its random numbers."""

    chain: Chain
    ahead: Ahead | None
    divergences: int
    iter_count: int
    settings: Settings = field(metadata={"frozen": True})


class ManifoldHMC(ManifoldStep):
    """Base class of the three step methods, which differ in their drift."""

    name: str
    drift: str
    stages = LEAPFROG
    weigh_flips = False
    _state_class = ManifoldHMCState

    stats_dtypes_shapes: ClassVar = {
        **{name: (bool if STATISTICS[name].kind == "b" else STATISTICS[name].type, []) for name in NAMES},
        # for statistics that PyMC's NUTS has too, its exact types, so that both fit in one compound step
        **{name: kind for name, kind in NUTS.stats_dtypes_shapes.items() if name not in UNUSED},
    }
    blank_stats: ClassVar = dict.fromkeys(stats_dtypes_shapes)

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | None = None,
        n_steps: int | None = None,
        path_length: float | None = None,
        jitter: float = 0.2,
        target_accept: float = 0.8,
        max_treedepth: int = 10,
        adapt_step_size: bool | None = None,
        adapt_metric: bool = True,
        adapt_rows: bool = True,
        reflect: bool | None = None,
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
        initial_point: dict[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        model = model_of(model)
        _checks.mapping("compile_kwargs", compile_kwargs)
        _checks.seed("rng", rng)
        for name, value in {"adapt_step_size": adapt_step_size, "reflect": reflect}.items():
            _checks.flag(name, value is not None if value is None else value)
        for name, value in {"adapt_metric": adapt_metric, "adapt_rows": adapt_rows}.items():
            _checks.flag(name, value)
        self.settings = _checked_settings(
            drift=self.drift,
            stages=self.stages,
            step_size=step_size,
            n_steps=n_steps,
            path_length=path_length,
            jitter=jitter,
            target_accept=target_accept,
            max_treedepth=max_treedepth,
            adapt_step_size=step_size is None if adapt_step_size is None else adapt_step_size,
            adapt_metric=adapt_metric,
            adapt_rows=adapt_rows and adapt_metric,
            weigh_flips=self.weigh_flips,
            search=True,
        )
        values = value_variables(model, vars)
        check_values(model, values, type(self).__name__)
        initial_point = point_of(model, initial_point)
        self._density = model_density(model, values, initial_point, reflect=reflect, compile_kwargs=compile_kwargs)
        super().__init__(values, self._density.shared, blocked, rng=rng)
        self._model = model
        self.divergences = 0
        self.iter_count = 0
        self._start_given = bool(self._is_start_given())
        self._make_sampler()
        self._sampler.compile()

    def _make_sampler(self) -> None:
        density = self._density
        self._sampler = Sampler(density.layout, density.address, self.settings, self.rng, density.extra)

    def set_rng(self, rng: Any) -> None:
        super().set_rng(rng)
        given = self._is_start_given()
        self._start_given = self._start_given if given is None else given

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self._sampler.tuning = tune

    def __getstate__(self) -> dict[str, Any]:
        given = self._is_start_given()  # a spawned process cannot see the caller
        return super().__getstate__() | ({} if given is None else {"_start_given": given})

    def _is_start_given(self) -> bool | None:
        """Whether the user gave a start for an orthonormal variable; None if only ``pm.sample`` knows."""
        return start_is_given(self._model, self._matrices)

    def tell_starts(self, initvals: Any) -> None:
        """Callers other than ``pm.sample`` pass the starts that the user has given."""
        self._start_given = start_is_among(initvals, self._model, self._matrices)

    @property
    def density(self) -> ModelDensity:
        """The compiled log density."""
        return self._density

    @property
    def _matrices(self) -> list[Any]:
        return [slot.value for slot in self._density.slots if slot.block is not None]

    def new_chain(self, rng: np.random.Generator) -> tuple[Sampler, ModelDensity]:
        """A sampler of its own for one more chain, and the density that it refers to by address."""
        density = self._density.copy()
        sampler = Sampler(density.layout, density.address, self.settings, rng, density.extra)
        self._leave_start(sampler)
        return sampler, density

    def _leave_start(self, sampler: Sampler) -> None:
        """If the user has given a start, the chain begins there, without a search."""
        if self._start_given:
            kept = [adapter for adapter in sampler.chain.adapters if not isinstance(adapter, Search)]
            sampler.chain.adapters[:] = kept

    def _draws(self, flat: np.ndarray | None, changed: bool) -> tuple[np.ndarray, list[Statistics]]:
        sampler, count = self._sampler, 1
        if not self.chain.started:
            self._leave_start(sampler)
        if self.ahead and not (self.shared or changed):
            count = max(1, min(MOST_AHEAD, sampler.plan_holds, int(PATIENCE / self.ahead.seconds)))
        states = sampler.draws(count, flat, keep_gradient=not (self.shared or changed))
        kept = not self.tune
        return states, [self._statistics(row, kept) for row in sampler.statistics.tolist()]

    @staticmethod
    def _statistics(row: tuple[Any, ...], kept: bool) -> Statistics:
        stats = ManifoldHMC.blank_stats.copy()  # a draw is so short that this overhead matters
        stats.update(zip(NAMES, row, strict=True))
        stats["reached_max_treedepth"] = kept and stats["reached_max_treedepth"]
        return stats

    def _hand_out(self, stats: Statistics) -> None:
        self.iter_count += 1
        if stats["diverging"]:
            tune = self.tune
            self.divergences += not tune
            stats["warning"] = self.divergence_warning(tune, stats["max_energy_error"], self.iter_count)
        stats["divergences"] = self.divergences

    @staticmethod
    def divergence_warning(tune: bool, error: float, draw: int) -> SamplerWarning:
        """Statistics and warning that PyMC gets for the draw with this number, counted from 1."""
        kind = WarningType.TUNING_DIVERGENCE if tune else WarningType.DIVERGENCE
        return SamplerWarning(kind, f"Energy change in leapfrog step is too large: {error}.", "debug", draw)

    _progressbar_config = staticmethod(NUTS._progressbar_config)
    _make_progressbar_update_functions = staticmethod(NUTS._make_progressbar_update_functions)


class OrthogonalHMC(ManifoldHMC):
    r"""Orthogonal Hamiltonian Monte Carlo (oHMC): Cayley drift, canonical metric.

    Samples orthonormal matrices on their manifolds jointly with all other continuous variables. With ``n_steps`` or
    ``path_length`` it is the paper's algorithm with trajectories of a fixed length; without, trajectories stop at a
    U-turn. A drift costs O(n p^2) and one p x p solve.

    Parameters
    ----------
    vars : list of variables, optional
        Default: all continuous variables of the model.
    step_size : float, optional
        Leapfrog step. If given it is used as it is, unless ``adapt_step_size=True`` makes it a first guess.
    n_steps, path_length : int, float, optional
        Leapfrogs of a trajectory, or its length (steps times step size); at most one of them.
    jitter : float, default 0.2
        Relative spread of the length of a fixed-length trajectory: lengths are uniform within ``1 - jitter`` to
        ``1 + jitter`` times the given one. 0 gives exactly the paper's algorithm, which may have periodic orbits.
    target_accept : float, default 0.8
        Target of the mean acceptance probability when the step size is adapted.
    max_treedepth : int, default 10
        A no-U-turn trajectory has at most ``2**max_treedepth`` leapfrogs.
    adapt_step_size, adapt_metric : bool, optional
        What tuning learns. The metric is one scale for each matrix, and a covariance for the Euclidean variables.
    adapt_rows : bool, default True
        Whether tuning may also learn coordinates ``X = polar(R Z)`` of a matrix with n > p, where the directions of
        R^n differ much. Draws are of ``X`` in any case.
    reflect : bool, optional
        Whether a draw also proposes to flip the sign of one column, accepted by the ratio of densities. Default: for
        matrices of O(n), whose two components no continuous path connects.
    model, rng, initial_point, compile_kwargs, blocked
        As for PyMC's own step methods.

    References
    ----------
    Yanush & Kropotov (2019), Hamiltonian Monte-Carlo for orthogonal matrices, arXiv:1901.08045.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     Q = pst.StiefelUniform("Q", n=4, p=2)
    ...     idata = pm.sample(
    ...         draws=20, tune=20, chains=1, step=pst.OrthogonalHMC(n_steps=5), progressbar=False, random_seed=1
    ...     )
    >>> idata["posterior"]["Q"].shape
    (1, 20, 4, 2)
    """

    name = "ohmc"
    drift = CAYLEY


class GeodesicHMC(ManifoldHMC):
    """Geodesic Monte Carlo (gHMC): exact geodesics of the embedded metric.

    A drift costs O(n p^2), with two matrix exponentials.

    Parameters
    ----------
    vars, step_size, n_steps, path_length, jitter, target_accept, max_treedepth, reflect
        As for :class:`~pymc_stiefel.OrthogonalHMC`.
    adapt_step_size, adapt_metric, adapt_rows
        As for :class:`~pymc_stiefel.OrthogonalHMC`.
    model, rng, initial_point, compile_kwargs, blocked
        As for PyMC's own step methods.

    References
    ----------
    Byrne & Girolami (2013), Geodesic Monte Carlo on embedded manifolds, doi:10.1111/sjos.12036.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=20)
    ...     idata = pm.sample(draws=50, tune=50, chains=1, step=pst.GeodesicHMC(), progressbar=False, random_seed=1)
    >>> bool(idata["posterior"]["x"][..., 2].mean() > 0.8)
    True
    """

    name = "ghmc"
    drift = GEODESIC


class StiefelNUTS(ManifoldHMC):
    """No-U-turn sampler with a two-stage integrator and masses learnt for every column and pair of columns.

    ``pm.sample()`` picks this step for models with orthonormal variables. An integration step evaluates the gradient
    twice, and is more than twice as long as a leapfrog step with the same acceptance. Matrices of more than 12 columns
    drift by the Cayley map with one mass for all columns. Unless you give starting values (``initvals`` or ``initval``)
    for an orthonormal variable, the first tuning draw begins with a short search: up to 40 iterations of L-BFGS over
    the matrices, with all other variables fixed. The sampler also proposes sign flips of columns, in single matrices
    and along batches, if tuning finds that they are accepted sometimes but not always. Pass options through
    ``pm.sample`` as for PyMC's NUTS: ``pm.sample(target_accept=0.95)`` or ``pm.sample(nuts={"max_treedepth": 12})``.

    Parameters
    ----------
    vars, step_size, n_steps, path_length, jitter, target_accept, max_treedepth
        As for :class:`~pymc_stiefel.OrthogonalHMC`.
    adapt_step_size, adapt_metric, adapt_rows
        As for :class:`~pymc_stiefel.OrthogonalHMC`.
    reflect : bool, optional
        True proposes to flip the sign of one column with every draw, False never does. Default: always for matrices of
        O(n), for others if tuning finds it worthwhile.
    model, rng, initial_point, compile_kwargs, blocked
        As for PyMC's own step methods.

    References
    ----------
    Hoffman & Gelman (2014), The no-U-turn sampler, arXiv:1111.4246; Betancourt (2017), A conceptual introduction to
    Hamiltonian Monte Carlo, arXiv:1701.02434; Blanes, Casas & Sanz-Serna (2014), Numerical integrators for the hybrid
    Monte Carlo method, doi:10.1137/130932740.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     X = pst.MatrixLangevin("X", F=30 * np.eye(4, 2))
    ...     idata = pm.sample(draws=50, tune=50, chains=1, progressbar=False, random_seed=1)
    >>> bool(pst.orthogonality_error(idata, "X").max() < 1e-12)
    True
    """

    # PyMC passes keyword arguments to a step by its name; those for NUTS also go to this step.
    name = "nuts"
    drift = AUTOMATIC
    stages = TWO_STAGE
    weigh_flips = True

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Ideal for the continuous variables of a model with an orthonormal one that has no step yet."""
        choice = choice_of_steps()
        if choice is None or choice.external or not has_grad or var.dtype not in continuous_types:
            return Competence.INCOMPATIBLE
        left = [value for value in choice.model.continuous_value_vars if value not in choice.assigned]
        if any(manifold_block(choice.model, value) is not None for value in left):
            return Competence.IDEAL
        return Competence.INCOMPATIBLE


_KINDS: dict[str, Any] = {
    "step_size": partial(_checks.real, low=0),
    "n_steps": _checks.whole,
    "path_length": partial(_checks.real, low=0),
    "jitter": _checks.real,
    "target_accept": partial(_checks.real, low=0, high=1),
    "max_treedepth": _checks.whole,
}


def _checked_settings(**given: Any) -> Settings:
    """The settings, or an error that names the wrong one and its value."""
    for name, check in _KINDS.items():
        if given[name] is not None or name not in ("step_size", "n_steps", "path_length"):
            given[name] = check(name, given[name])
    settings = Settings(**given)
    rules = [
        (
            "path_length",
            settings.path_length is None or settings.n_steps is None,
            f"cannot be given together with n_steps={settings.n_steps}",
        ),
        ("jitter", 0 <= settings.jitter < 1, "must be at least 0 and below 1"),
        ("max_treedepth", settings.max_treedepth <= 20, "must be between 1 and 20"),
        (
            "adapt_step_size",
            settings.adapt_step_size or settings.step_size is not None,
            "needs a step_size to go with it",
        ),
    ]
    for name, holds, message in rules:
        if not holds:
            raise ValueError(f"{name} {message}, got {name}={getattr(settings, name)}")
    return settings


if StiefelNUTS not in STEP_METHODS:
    STEP_METHODS.append(StiefelNUTS)
