"""A chain: the pieces of the engine put together, still without PyMC."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numba
import numpy as np

from pymc_stiefel.engine.adaptation import (
    MAX_DENSE,
    MAX_STEP_SIZE,
    DualAveraging,
    Moments,
    accumulate,
    first_metric,
    learnt_metric,
    make_moments,
    merged,
    window_of,
)
from pymc_stiefel.engine.blocks import Layout, Metric, Point, isotropic_metric, make_point
from pymc_stiefel.engine.compiling import random_source
from pymc_stiefel.engine.drifts import GEODESIC, drift_address
from pymc_stiefel.engine.trajectory import STATISTICS, evaluate_state, first_step_size, make_workspace, transition

EARLY_DRAWS, EARLY_TREEDEPTH = 100, 8


@dataclass(frozen=True)
class Settings:
    """What a user chooses. ``n_steps`` and ``path_length`` both None means no-U-turn trajectories."""

    drift: str
    n_steps: int | None = None
    path_length: float | None = None
    jitter: float = 0.0
    step_size: float | None = None
    target_accept: float = 0.8
    max_treedepth: int = 10
    adapt_step_size: bool = True
    adapt_metric: bool = True

    @property
    def pair(self) -> float:
        """Ratio of pair to column mass where the metric is not adapted: embedded for geodesic, else canonical."""
        return 1.0 if self.drift == GEODESIC else 2.0


@dataclass
class Chain:
    """Everything a chain remembers from draw to draw."""

    state: Point
    metric: Metric
    averaging: DualAveraging
    moments: Moments
    previous: Moments
    draws: int = 0
    tune: bool = True
    started: bool = False


class Sampler:
    """Draws from a density on a product of Stiefel manifolds and a Euclidean space.

    Parameters
    ----------
    layout : Layout
        The blocks of the state.
    density : int
        Address of the compiled log density, see :mod:`pymc_stiefel.engine.compiling`.
    settings : Settings
    rng : numpy.random.Generator
    extra : ndarray of int64, optional
        Handed to the density with every call.
    """

    def __init__(
        self,
        layout: Layout,
        density: int,
        settings: Settings,
        rng: np.random.Generator,
        extra: np.ndarray | None = None,
    ) -> None:
        self.layout, self.density, self.settings, self.rng = layout, density, settings, rng
        self.extra = np.zeros(1, dtype=np.int64) if extra is None else extra
        self.drift = drift_address(settings.drift)
        self.work = make_workspace(layout, settings.max_treedepth if self.is_dynamic else 0)
        self.stats = np.zeros(len(STATISTICS))
        self.last_step_size = math.nan
        self.reset()

    def compile(self) -> None:
        """Build the compiled parts, or load them from the disk cache, before the first draw (and before a fork)."""
        chain = self.chain
        arguments = self._kernel_arguments()
        transition.compile(
            tuple(map(numba.typeof, (*arguments, 0.5, 0, self.settings.max_treedepth, True, self.stats)))
        )
        first_step_size.compile(tuple(map(numba.typeof, (*arguments, 0.5))))
        accumulate.compile(tuple(map(numba.typeof, (self.layout, chain.state, chain.moments))))
        evaluate_state.compile(
            tuple(map(numba.typeof, (self.density, self.extra, self.layout, self.work, chain.state)))
        )

    @property
    def is_dynamic(self) -> bool:
        return self.settings.n_steps is None and self.settings.path_length is None

    @property
    def rng(self) -> np.random.Generator:
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self._rng, self._source = rng, random_source(rng)

    def reset(self) -> None:
        """Forget everything learnt, as for a new chain."""
        layout = self.layout
        dense = layout.size - layout.stiefel <= MAX_DENSE
        largest = MAX_STEP_SIZE if layout.stiefel else math.inf
        self.chain = Chain(
            state=make_point(layout),
            metric=isotropic_metric(layout, self.settings.pair, dense),
            averaging=DualAveraging(self.settings.target_accept, largest),
            moments=make_moments(layout),
            previous=make_moments(layout),
        )

    @property
    def step_size(self) -> float:
        """The step size of the next draw."""
        if self.chain.tune and self.settings.adapt_step_size:
            return math.exp(self.chain.averaging.log_step)
        return self.averaged_step_size

    @property
    def averaged_step_size(self) -> float:
        """The step size that tuning has settled on so far."""
        return math.exp(self.chain.averaging.log_bar)

    def draw(self, q: np.ndarray, *, keep_gradient: bool = True) -> np.ndarray:
        """One draw from ``q``. Returns the new state (a view); ``stats`` has what happened.

        ``keep_gradient=False`` says that the density may have changed since the last draw.
        """
        chain, settings = self.chain, self.settings
        fresh = not (keep_gradient and chain.started and np.array_equal(q, chain.state.q))
        if fresh:
            chain.state.q[:] = q
        if not chain.started:
            self._start()
            fresh = True
        eps = self.last_step_size = self.step_size
        max_treedepth = settings.max_treedepth
        if chain.tune and chain.draws < EARLY_DRAWS:
            max_treedepth = min(max_treedepth, EARLY_TREEDEPTH)
        transition(*self._kernel_arguments(), eps, self._n_steps(eps), max_treedepth, fresh, self.stats)
        if chain.tune:
            self._learn()
        chain.draws += 1
        return chain.state.q

    def _n_steps(self, eps: float) -> int:
        """Leapfrogs of the next trajectory, 0 for one that ends at a U-turn."""
        settings = self.settings
        if settings.n_steps is not None:
            length = float(settings.n_steps)
        elif settings.path_length is not None:
            length = min(settings.path_length / eps, 2.0**settings.max_treedepth)
        else:
            return 0
        if settings.jitter:
            length *= 1.0 + settings.jitter * (2.0 * self._rng.random() - 1.0)
        return max(1, round(length))

    def _start(self) -> None:
        """First masses and step size, from the gradient at the start."""
        chain, settings = self.chain, self.settings
        chain.started = True
        evaluate_state(self.density, self.extra, self.layout, self.work, chain.state)
        if settings.adapt_metric and chain.tune:
            chain.metric = first_metric(self.layout, chain.state, settings.drift, settings.pair)
        self._restart_step_size(settings.step_size or 0.5)

    def _kernel_arguments(self):
        chain = self.chain
        return (
            self.density,
            self.extra,
            self._source,
            self.drift,
            self.layout,
            chain.metric,
            self.work,
            chain.state,
        )

    def _restart_step_size(self, eps: float) -> None:
        averaging = self.chain.averaging
        if not self.settings.adapt_step_size:
            averaging.log_bar = math.log(eps)
        elif self.chain.tune:
            averaging.restart(first_step_size(*self._kernel_arguments(), eps))

    def _learn(self) -> None:
        chain, settings = self.chain, self.settings
        if settings.adapt_step_size:
            chain.averaging.update(self.stats[STATISTICS.index("mean_tree_accept")])
        if not settings.adapt_metric:
            return
        accumulate(self.layout, chain.state, chain.moments)
        window = window_of(chain.draws)
        if window_of(chain.draws + 1) == window:
            return
        both = chain.moments if window == 0 else merged(chain.previous, chain.moments)
        if both.has_moved:  # a chain that did not move teaches nothing
            chain.metric = learnt_metric(self.layout, both, settings.drift, settings.pair)
        chain.previous, chain.moments = chain.moments, make_moments(self.layout)
        self._restart_step_size(self.step_size)

    def snapshot(self) -> Chain:
        """A copy of what the chain remembers, to be given to ``restore``."""
        return copy.deepcopy(self.chain)

    def restore(self, chain: Chain) -> None:
        self.chain = copy.deepcopy(chain)
