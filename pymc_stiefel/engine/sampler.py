"""A chain: the pieces of the engine put together, still without PyMC."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass, field, replace

import numba
import numpy as np

from pymc_stiefel.engine.adaptation import (
    MAX_DENSE,
    MAX_STEP_SIZE,
    DualAveraging,
    Moments,
    first_metric,
    learnt_metric,
    make_moments,
    merged,
    nearly_flat,
    precisions_of,
    window_left,
    window_of,
)
from pymc_stiefel.engine.blocks import (
    FLIPPED,
    NOT,
    WEIGHED,
    Layout,
    Metric,
    Point,
    isotropic_metric,
    make_point,
    overwrite,
)
from pymc_stiefel.engine.compiling import random_source
from pymc_stiefel.engine.drifts import GEODESIC, drift_address, drift_kinds
from pymc_stiefel.engine.integrator import LEAPFROG, STRETCH, THREE_STAGE, Scheme
from pymc_stiefel.engine.kernels import Pace, no_u_turn_draws, static_draws
from pymc_stiefel.engine.plans import U_TURN, Plan, Trajectories
from pymc_stiefel.engine.table import make_table, rows_of
from pymc_stiefel.engine.trajectory import (
    INDEX,
    MATRIX,
    MAX_ENERGY,
    STATISTICS,
    WEIGHT,
    make_workspace,
)

EARLY_DRAWS, EARLY_TREEDEPTH = 80, 8
"""A window's end until which step sizes are sought anew, and the tree depth until then."""

FIRST_GUESSES = 35
"""A window's end until which masses are guesses."""

ENOUGH_DRAWS = 50
"""Draws of a window without which plans are not compared."""

NO_ERROR = 1e-3
"""Share of rejections below which steps of one stage will do."""

TRIES = 10
"""Trajectories that get nowhere before a chain whose tuning has ended is taken to be stuck."""

ENOUGH_WEIGHTS, SELDOM = 100, 0.02
"""Draws in which to weigh flips of signs, and the chance of acceptance that makes them worthwhile."""


@dataclass(frozen=True)
class Settings:
    """What a user chooses. ``n_steps`` and ``path_length`` both None means no-U-turn trajectories."""

    drift: str
    stages: int = LEAPFROG  # of a step
    n_steps: int | None = None
    path_length: float | None = None
    jitter: float = 0.0
    step_size: float | None = None
    target_accept: float = 0.8
    max_treedepth: int = 10
    adapt_step_size: bool = True
    adapt_metric: bool = True
    settle_length: bool = False  # of no-U-turn trajectories, where tuning finds that to pay
    weigh_flips: bool = False  # of signs of columns, to make those that join separate modes

    @property
    def pair(self) -> float:
        """Ratio of pair to column mass where the metric is not adapted: embedded for geodesic, else canonical."""
        return 1.0 if self.drift == GEODESIC else 2.0


@dataclass
class Chain:
    """Everything a chain remembers from draw to draw."""

    state: Point
    kinds: list[str]  # of drifts, one for each matrix
    metric: Metric
    averaging: DualAveraging
    moments: Moments
    previous: Moments
    draws: int = 0
    tune: bool = True
    started: bool = False
    frozen: bool = False  # tuning has ended
    refuge: np.ndarray | None = None  # the state at the end of the last window
    seek: bool = False  # masses are new: look for a step size before the next draw
    trajectories: Trajectories = field(default_factory=Trajectories)  # of the window
    plan: Plan = field(default_factory=Plan)
    fallback: Plan | None = None  # what to return to if the present plan, on trial, does not pay
    turning: float = 0.0  # efficiency that is expected of trajectories that end at a U-turn; 0: not compared
    settled: bool = False  # nothing more will be tried
    flips: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # of signs, for each matrix
    weights: np.ndarray | None = None  # while flips are weighed: for each matrix their number and sum
    decided: bool = False  # which signs to flip


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

    Attributes
    ----------
    states, statistics : ndarray
        What the last call drew and reports, one draw a row.
    tuning : int or None
        Number of draws after which tuning will end, if that is known.
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
        self._flips, self.layout = layout.flips, layout._replace(flips=layout.flips.copy())
        self.extra = np.zeros(1, dtype=np.int64) if extra is None else extra
        self._kernel = no_u_turn_draws if self.is_dynamic else static_draws
        self.work = make_workspace(layout, settings.max_treedepth if self.is_dynamic else 0)
        self._lasting = rows_of(self.layout), rows_of(self.work)
        self._make_room(1)
        self.tuning: int | None = None
        self.reset()

    def compile(self) -> None:
        """Build the compiled parts, or load them from the disk cache, before the first draw (and before a fork)."""
        for kind in {*self.chain.kinds, *drift_kinds(self.settings.drift, self.layout.p, self.layout.p > 0)}:
            drift_address(kind)
        arguments = (*self._arguments(), Pace(0.5, True, 10), True, True, self.states, self.statistics)
        self._kernel.compile(tuple(map(numba.typeof, arguments)))
        if self.may_settle:
            static_draws.compile(tuple(map(numba.typeof, arguments)))

    @property
    def is_dynamic(self) -> bool:
        return self.settings.n_steps is None and self.settings.path_length is None

    @property
    def may_settle(self) -> bool:
        """Only where all is matrices: with other variables, scales of their columns say, their periods change."""
        return self.settings.settle_length and self.is_dynamic and self.layout.size == self.layout.stiefel

    @property
    def rng(self) -> np.random.Generator:
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self._rng, self._source = rng, random_source(rng)

    @property
    def chain(self) -> Chain:
        return self._chain

    @chain.setter
    def chain(self, chain: Chain) -> None:
        self._chain = chain
        self._bind()

    def _bind(self) -> None:
        """Tell the compiled code where the arrays of the chain are: none of them is replaced later."""
        chain = self._chain
        layout, work = self._lasting
        self._table = make_table(
            layout,
            rows_of(chain.metric),
            rows_of(chain.state),
            work,
            rows_of(chain.moments),
            rows_of(chain.averaging.values),
        )
        self._direct()

    def _direct(self) -> None:
        """Tell the compiled code what kinds of drifts, steps and flips the chain makes."""
        chain = self._chain
        self.scheme = Scheme(np.array([drift_address(kind) for kind in chain.kinds], np.int64), chain.plan.stages)
        self.layout.flips[:] = chain.flips

    def reset(self) -> None:
        """Forget everything learnt, as for a new chain."""
        layout = self.layout
        dense = layout.size - layout.stiefel <= MAX_DENSE
        largest = MAX_STEP_SIZE if layout.stiefel else math.inf
        self.chain = Chain(
            state=make_point(layout),
            kinds=drift_kinds(self.settings.drift, layout.p),
            metric=isotropic_metric(layout, self.settings.pair, dense),
            averaging=DualAveraging(self.settings.target_accept, largest),
            moments=make_moments(layout),
            previous=make_moments(layout),
            plan=Plan(self.settings.stages),
            flips=self._flips.copy(),
            decided=not (self.settings.weigh_flips and NOT in self._flips),
        )

    @property
    def _adapts(self) -> bool:
        """Whether the step size changes from draw to draw."""
        return self.chain.tune and self.settings.adapt_step_size and not self.chain.plan.length

    @property
    def step_size(self) -> float:
        """The step size of the next draw, but for jitter."""
        return self.chain.averaging.step_size if self._adapts else self.averaged_step_size

    @property
    def averaged_step_size(self) -> float:
        """The step size that tuning has settled on so far."""
        plan = self.chain.plan
        return plan.length / plan.steps if plan.length else self.chain.averaging.averaged

    @property
    def stats(self) -> np.ndarray:
        """Statistics of the last draw."""
        return self.statistics[-1]

    @property
    def plan_holds(self) -> int:
        """How many draws can be made before tuning may change how."""
        chain = self.chain
        if not chain.tune:
            return sys.maxsize
        if self.tuning is None or chain.draws >= self.tuning:
            return 1
        return min(window_left(chain.draws), self.tuning - chain.draws)

    def draw(self, q: np.ndarray | None, *, keep_gradient: bool = True) -> np.ndarray:
        """One draw from ``q``, or from where the last one ended. Returns the new state (a view).

        ``keep_gradient=False`` says that the density may have changed since the last draw.
        """
        return self.draws(1, q, keep_gradient=keep_gradient)[0]

    def draws(self, count: int, q: np.ndarray | None = None, *, keep_gradient: bool = True) -> np.ndarray:
        """``count`` draws, of which all but the first start where the last one ended; at most ``plan_holds``."""
        chain = self.chain
        stayed = q is None or (chain.started and q.tobytes() == chain.state.q.tobytes())
        if not stayed:
            chain.state.q[:] = q
        fresh = not (keep_gradient and stayed)
        if not chain.started:
            self._start()
            fresh = False
        elif chain.seek:
            chain.averaging.restart(self._search_step_size(self.step_size, fresh), boldness=2.0)
            chain.seek = fresh = False
        if chain.tune:
            chain.frozen = False
        elif not chain.frozen:
            fresh = self._freeze(fresh)
        if len(self.statistics) != count:
            self._make_room(count)
        self._run(fresh)
        chain.draws += count
        if chain.tune:
            self._learn()
        return self.states

    def _run(self, fresh: bool) -> None:
        """As many draws as there is room for."""
        kernel = static_draws if self.chain.plan.length else self._kernel
        learn = self.chain.tune and self.settings.adapt_metric
        kernel(*self._arguments(), self._pace(), fresh, learn, self.states, self.statistics)

    def _pace(self) -> Pace:
        """Of the next trajectories."""
        plan, settings, eps, adapts = self.chain.plan, self.settings, self.averaged_step_size, self._adapts
        if plan.length:
            return Pace(eps, adapts, plan.steps, jitter=settings.jitter)
        if self.is_dynamic:
            return Pace(eps, adapts, self._max_treedepth())
        if settings.n_steps is not None:
            return Pace(eps, adapts, settings.n_steps, spread=settings.jitter)
        return Pace(eps, adapts, 2**settings.max_treedepth, settings.path_length or 0.0, settings.jitter)

    def _make_room(self, count: int) -> None:
        self.states, self.statistics = np.zeros((count, self.layout.size)), np.zeros((count, len(STATISTICS)))

    def _single_step(self, eps: float, fresh: bool) -> None:
        """A trajectory of one step, of which only the last row of statistics is kept."""
        pace = Pace(eps, False, 1)
        self._kernel(*self._arguments(), pace, fresh, False, self.states[:0], self.statistics[-1:])

    def _max_treedepth(self) -> int:
        chain, most = self.chain, self.settings.max_treedepth
        return min(most, EARLY_TREEDEPTH) if chain.tune and chain.draws < EARLY_DRAWS else most

    def _arguments(self) -> tuple:
        return self._table, self.density, self.extra, self._source, self.scheme

    def _start(self) -> None:
        """First masses and step size, from the gradient at the start."""
        chain, settings = self.chain, self.settings
        chain.started = True
        eps = settings.step_size or 0.5
        if settings.adapt_step_size:
            eps = self._search_step_size(eps, fresh=True)
        else:  # one move by the given step, for the gradient
            chain.averaging.averaged = eps
            self._single_step(eps, fresh=True)
        if settings.adapt_metric and chain.tune:
            overwrite(chain.metric, first_metric(self.layout, chain.state, chain.kinds, settings.pair))
            if settings.adapt_step_size:
                eps = self._search_step_size(settings.step_size or eps)
        if settings.adapt_step_size:
            chain.averaging.restart(eps, boldness=2.0)

    def _search_step_size(self, eps: float, fresh: bool = False) -> float:
        """A step size whose single step is accepted about eight times in ten (Hoffman & Gelman's heuristic).

        Every trial is a trajectory of one step, and moves the chain. ``fresh`` asks for the density first.
        """
        direction = 0
        for _ in range(60):
            self._single_step(eps, fresh)
            fresh = False
            error = self.stats[MAX_ENERGY]
            way = 1 if math.isfinite(error) and error < 0.22 else -1
            if direction not in (0, way) or (way == 1 and eps > 3.0):
                break
            direction = way
            eps *= 2.0**way
        return eps

    def _learn(self) -> None:
        chain, settings = self.chain, self.settings
        if not settings.adapt_metric:
            return
        if self.may_settle:
            chain.trajectories.add(self.states, self.statistics)
        if chain.weights is not None:
            for m, weight in self.statistics[:, [MATRIX, WEIGHT]].tolist():
                if m > 0.0:  # else a flip was made, of a matrix of O(n)
                    chain.weights[int(m) - 1] += 1.0, weight
        window = window_of(chain.draws - 1)
        if window_of(chain.draws) == window:
            return
        if chain.draws > EARLY_DRAWS:
            chain.refuge = chain.state.q.copy()
            if not chain.decided:
                self._weigh_flips()
        both, kinds = merged(chain.previous, chain.moments), chain.kinds
        precisions = precisions_of(self.layout, both)
        flat = nearly_flat(self.layout, precisions)
        if both.has_moved:  # a chain that did not move teaches nothing
            chain.kinds = drift_kinds(settings.drift, self.layout.p, flat)
            overwrite(chain.metric, learnt_metric(self.layout, both, precisions, chain.kinds, settings.pair))
        overwrite(chain.previous, chain.moments)
        for moment in chain.moments:
            moment.fill(0.0)
        if settings.adapt_step_size:
            untried = chain.draws <= FIRST_GUESSES or (chain.plan.length and not chain.turning)
            if chain.kinds != kinds or (untried and not (self.may_settle and flat.all())):
                chain.seek, chain.plan = True, Plan(settings.stages)
                chain.fallback, chain.settled = None, False
            else:
                self._choose_trajectories()
        chain.trajectories = Trajectories()
        self._direct()

    def _choose_trajectories(self) -> None:
        """The plan, or the step size, after a window in which the masses have changed little."""
        chain = self.chain
        if self.may_settle:
            chain.plan = self._next_plan()
        if chain.plan.length:
            return
        if chain.draws <= EARLY_DRAWS:
            chain.seek = True
        else:  # a search by single steps would only add noise
            chain.averaging.restart(self.averaged_step_size, boldness=1.0)

    def _next_plan(self) -> Plan:
        """The plan of the last window with a better length, or one to be tried, or the one before if this does not pay.

        Trajectories that turn after a few steps, for which masses have to fit, are tried at one length, in steps of
        three stages, or of one where there are no errors. If nearly all are accepted one stage less is tried. In every
        window one length has to be more efficient than U-turns would be; if not, these come back for good. In the short
        windows of the beginning it is taken to be. Nearly flat densities come to one length in the shortest, and are
        not compared.
        """
        chain, plan, window, target = self.chain, self.chain.plan, self.chain.trajectories, self.settings.target_accept
        if not plan.length:
            if chain.settled or not window.are_short:
                return plan
            chain.fallback, length = plan, 1.2 * window.quarter()
            chain.turning = window.efficiency_of(U_TURN, plan.stages) if chain.draws > FIRST_GUESSES else 0.0
            if window.acceptance > 1.0 - NO_ERROR:
                return Plan(LEAPFROG, length, window.steps(length, target))
            return Plan(THREE_STAGE, length, window.steps(length / STRETCH, target))
        if window.count < ENOUGH_DRAWS:
            length = window.better_length(plan.length)
            return replace(plan, length=length, steps=window.steps(length, target))
        before, chain.fallback = chain.fallback, None
        yields = window.efficiency_of(1.0 - window.acceptance, plan.stages)  # at best; fewer stages change only this
        if before and before.length and (yields < before.yields or window.acceptance < target):
            chain.settled = True
            return before
        if window.efficiency(plan.stages) < chain.turning:
            chain.settled = True
            return Plan(self.settings.stages)
        length = window.better_length(plan.length)
        plan = replace(plan, length=length, steps=window.steps(length, target), yields=yields)
        if plan.stages == LEAPFROG or chain.settled or window.acceptance < 0.97:
            return plan
        chain.fallback = plan
        return replace(plan, stages=plan.stages - 1)

    def _weigh_flips(self) -> None:
        """Have flips of signs weighed for a while, and then make those that would be accepted now and then.

        What is hardly ever accepted only costs a gradient. What always is, by a density that does not depend on signs,
        changes nothing that could be told from the density.
        """
        chain = self.chain
        if chain.weights is None:
            chain.weights = np.zeros((len(chain.flips), 2))
            chain.flips[chain.flips == NOT] = WEIGHED
        elif chain.weights[:, 0].sum() >= ENOUGH_WEIGHTS:
            mean = chain.weights[:, 1] / np.maximum(chain.weights[:, 0], 1.0)
            chain.flips[(chain.flips == WEIGHED) & (mean > SELDOM) & (mean < 1.0 - SELDOM)] = FLIPPED
            self._end_weighing()

    def _end_weighing(self) -> None:
        chain = self.chain
        chain.flips[chain.flips == WEIGHED] = NOT
        chain.weights, chain.decided = None, True

    def _freeze(self, fresh: bool) -> bool:
        """Tuning has ended: what is still on trial is dropped, and the chain has to be able to move.

        While it was sought, a small step size may have let the chain into a place that the final one cannot leave. If
        trajectories get nowhere the chain goes on from where it was at the end of the last window. Returns whether the
        density is to be evaluated.
        """
        chain = self.chain
        chain.plan, chain.fallback, chain.frozen = chain.fallback or chain.plan, None, True
        self._end_weighing()
        self._direct()
        if chain.refuge is None:
            return fresh
        self._make_room(1)
        for _ in range(TRIES):
            self._run(fresh)
            fresh = False
            if self.stats[INDEX] != 0.0:
                return False
        chain.state.q[:] = chain.refuge
        return True

    def snapshot(self) -> Chain:
        """A copy of what the chain remembers, to be given to ``restore``."""
        return copy.deepcopy(self.chain)

    def restore(self, chain: Chain) -> None:
        self.chain = copy.deepcopy(chain)
