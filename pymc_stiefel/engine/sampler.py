"""The sampler of one chain. It combines the parts of the engine and does not depend on PyMC."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, field

import numba
import numpy as np

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.adaptation.metric import MAX_DENSE, Masses, Moments, make_moments
from pymc_stiefel.engine.adaptation.refuge import Refuge
from pymc_stiefel.engine.adaptation.row_coordinates import Rows
from pymc_stiefel.engine.adaptation.search import Search
from pymc_stiefel.engine.adaptation.settling import Settling
from pymc_stiefel.engine.adaptation.sign_flips import SignFlips
from pymc_stiefel.engine.adaptation.step_size import LOG_STEP, MAX_STEP_SIZE, StepSize, make_averaging
from pymc_stiefel.engine.adaptation.windows import Windows
from pymc_stiefel.engine.blocks import Layout, Metric, Point, isotropic_metric, make_point
from pymc_stiefel.engine.coordinates import LinkedRows, RowCoordinates
from pymc_stiefel.engine.drifts import GEODESIC, drift_address
from pymc_stiefel.engine.integrator import LEAPFROG, Scheme
from pymc_stiefel.engine.jit.random import random_source
from pymc_stiefel.engine.jit.records import address_table
from pymc_stiefel.engine.kernels import Memory, Pace, learn_path, no_u_turn_draws, static_draws
from pymc_stiefel.engine.manifolds import MANIFOLDS
from pymc_stiefel.engine.reflection import Flips, make_flips
from pymc_stiefel.engine.statistics import STATISTICS
from pymc_stiefel.engine.trajectory import make_workspace

EARLY_DRAWS, EARLY_TREEDEPTH = 80, 6
"""Number of tuning draws with a smaller tree depth, and that depth: long trajectories pay only with fitting masses."""

_DENSITY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Settings:
    """Settings chosen by the user. If ``n_steps`` and ``path_length`` are None, trajectories are no-U-turn."""

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
    adapt_rows: bool = False  # adapt row coordinates, if useful
    weigh_flips: bool = False  # try sign flips, and keep those that connect separate modes
    search: bool = False  # search for a start of the matrices

    @property
    def pair(self) -> float:
        """Ratio of pair to column mass if the metric is not adapted: embedded for geodesic, otherwise canonical."""
        return 1.0 if self.drift == GEODESIC else 2.0


def make_adapters(settings: Settings) -> list[Adapter]:
    """The adapters, in the order in which they run: each may use what earlier ones have stored in the chain."""
    adapters: list[tuple[bool, Adapter]] = [
        (settings.search, Search()),
        (settings.adapt_rows and settings.adapt_metric, Rows()),
        (settings.adapt_metric, Masses(settings.pair)),
        (settings.weigh_flips, SignFlips()),
        (settings.adapt_metric, Settling()),
        (settings.adapt_step_size, StepSize(settings.step_size)),
        (settings.adapt_metric, Refuge()),
    ]
    return [adapter for wanted, adapter in adapters if wanted]


@dataclass
class Chain:
    """The state of a chain between draws."""

    state: Point  # in the coordinates of the sampler
    kinds: list[str]  # names of drifts, one for each matrix
    metric: Metric
    averaging: np.ndarray  # state of the step size adaptation
    moments: Moments  # of the current window
    previous: Moments  # of the window before
    flips: Flips
    coordinates: RowCoordinates
    adapters: list[Adapter]
    windows: Windows = field(default_factory=Windows)
    draws: int = 0
    tune: bool = True
    started: bool = False
    frozen: bool = False  # tuning has ended
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the last draw that was returned
    fresh: bool = True  # whether the density has to be evaluated before the next draw
    spent: int = 0  # gradients not yet included in the statistics of a draw
    path: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    mass_change: float = 0.0

    def forget(self) -> None:
        """Restart adaptation, with short windows."""
        self.windows.restart(self.draws)
        for moment in (*self.moments, *self.previous):
            moment.fill(0.0)


class Sampler:
    """Draws from a density on a product of Stiefel manifolds and a Euclidean space.

    Parameters
    ----------
    layout : Layout
        The blocks of the state.
    density : int
        Address of the compiled log density, see :mod:`pymc_stiefel.engine.jit.compiling`.
    settings : Settings
    rng : numpy.random.Generator
    extra : ndarray of int64, optional
        Passed to the density with every call.

    Attributes
    ----------
    states, gradients, statistics : ndarray
        The draws of the last call, one per row, in the sampler's coordinates, with split gradients and statistics.
        Gradients are stored only if an adapter needs them.
    tuning : int or None
        Number of tuning draws, if known.
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
        self._kernel = no_u_turn_draws if self.is_dynamic else static_draws
        self.work = make_workspace(layout, settings.max_treedepth if self.is_dynamic else 0)
        self._make_room(1)
        self.tuning: int | None = None
        self.reset()

    def compile(self) -> None:
        """Build the compiled parts, or load them from the disk cache, before the first draw (and before a fork)."""
        arguments = (*self._arguments(), Pace(0.5, True, 10), True, True, self.states, self.gradients, self.statistics)
        self._kernel.compile(tuple(map(numba.typeof, arguments)))
        path = (self._table, self.states, self.states, np.zeros(1, bool))
        learn_path.compile(tuple(map(numba.typeof, path)))

    @property
    def is_dynamic(self) -> bool:
        return self.settings.n_steps is None and self.settings.path_length is None

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
        """Pass the addresses of the chain's arrays to compiled code. None of the arrays is replaced later."""
        self._chain = chain
        memory = Memory(self.layout, chain.metric, chain.state, self.work, chain.moments, chain.averaging, chain.flips)
        self._table = address_table(memory)
        self.scheme = Scheme(np.array([drift_address(kind) for kind in chain.kinds], np.int64), self.settings.stages)
        self._link_rows()

    def _link_rows(self) -> None:
        self._rows = LinkedRows(self.chain.coordinates) if self.chain.coordinates.factors else None

    def reset(self) -> None:
        """Discard everything learnt, as for a new chain."""
        layout, settings = self.layout, self.settings
        largest = MAX_STEP_SIZE if layout.stiefel else math.inf
        averaging = make_averaging(settings.target_accept, largest)
        averaging[LOG_STEP] = math.log(settings.step_size or 0.5)
        self.chain = Chain(
            state=make_point(layout),
            kinds=[MANIFOLDS[m].drift(settings.drift, p) for m, p in zip(layout.manifold, layout.p, strict=True)],
            metric=isotropic_metric(layout, settings.pair, layout.size - layout.stiefel <= MAX_DENSE),
            averaging=averaging,
            moments=make_moments(layout),
            previous=make_moments(layout),
            flips=make_flips(layout),
            coordinates=RowCoordinates(layout),
            adapters=make_adapters(settings),
        )

    @property
    def step_size(self) -> float:
        """The step size of the next draw, without jitter."""
        return math.exp(self.chain.averaging[LOG_STEP])

    @step_size.setter
    def step_size(self, eps: float) -> None:
        self.chain.averaging[LOG_STEP] = math.log(eps)

    @property
    def stats(self) -> np.void:
        """Statistics of the last draw."""
        return self.statistics[-1]

    @property
    def plan_holds(self) -> int:
        """Number of draws until adaptation may change the settings."""
        chain = self.chain
        if not chain.tune:
            return sys.maxsize
        if self.tuning is None or chain.draws >= self.tuning:
            return 1
        return min([self.tuning - chain.draws, *(adapter.wait(self) for adapter in chain.adapters)])

    @property
    def is_settled(self) -> bool:
        """Whether further tuning would change little; True if masses are not learnt."""
        return all(adapter.is_settled(self) for adapter in self.chain.adapters if isinstance(adapter, Settling))

    @property
    def mass_change(self) -> float:
        """See :class:`Settling`; NaN where masses are not learnt."""
        return next((adapter.change for adapter in self.chain.adapters if isinstance(adapter, Settling)), math.nan)

    def draw(self, q: np.ndarray | None, *, keep_gradient: bool = True) -> np.ndarray:
        """One draw from ``q``, or from where the last one ended. Returns the new state (a view).

        Use ``keep_gradient=False`` if the density may have changed since the last draw.
        """
        return self.draws(1, q, keep_gradient=keep_gradient)[0]

    def draws(self, count: int, q: np.ndarray | None = None, *, keep_gradient: bool = True) -> np.ndarray:
        """Make ``count`` draws (at most ``plan_holds``), starting from ``q`` or from the last state."""
        chain = self.chain
        if q is not None and not (chain.started and q.tobytes() == chain.last.tobytes()):
            self.move_to(q)
        chain.fresh = chain.fresh or not keep_gradient
        if not chain.started:
            chain.started = True
            for adapter in chain.adapters:
                if chain.tune or adapter.without_tuning:
                    adapter.initialize(self)
        if chain.tune:
            chain.frozen = False
        elif not chain.frozen:
            chain.frozen, chain.mass_change = True, 0.0
            for adapter in chain.adapters:
                adapter.finalize(self)
        if len(self.statistics) != count:
            self._make_room(count)
        self._run()
        chain.draws += count
        drawn = chain.coordinates.to_x(self.states)
        chain.last = drawn[-1].copy()
        if chain.tune:
            for adapter in chain.adapters:
                adapter.update(self)
        return drawn

    def _run(self) -> None:
        """Make as many draws as ``statistics`` has rows."""
        chain = self.chain
        learn = chain.tune and self.settings.adapt_metric
        kept = (self.states, self.gradients if learn else self.gradients[:0], self.statistics)
        self._kernel(*self._arguments(), self._pace(), chain.fresh, learn, *kept)
        self.statistics["gradients"][0] += chain.spent
        self.statistics["mass_change"] = self.mass_change
        chain.spent, chain.fresh = 0, False

    def _pace(self) -> Pace:
        """Size and number of steps of the next trajectories."""
        settings, eps, adapts = self.settings, self.step_size, self.chain.tune and self.settings.adapt_step_size
        if self.is_dynamic:
            most, early = settings.max_treedepth, self.chain.tune and self.chain.draws < EARLY_DRAWS
            return Pace(eps, adapts, min(most, EARLY_TREEDEPTH) if early else most)
        if settings.n_steps is not None:
            return Pace(eps, adapts, settings.n_steps, spread=settings.jitter)
        return Pace(eps, adapts, 2**settings.max_treedepth, settings.path_length or 0.0, settings.jitter)

    def _make_room(self, count: int) -> None:
        width = self.layout.size + int(np.sum(self.layout.p**2))
        self.states, self.statistics = np.zeros((count, self.layout.size)), np.zeros(count, STATISTICS)
        self.gradients = np.zeros((count if self.settings.adapt_rows else 0, width))

    def _arguments(self) -> tuple:
        if self._rows is None:
            return self._table, self.density, self.extra, self._source, self.scheme
        return self._table, self._rows.address, self._rows.inside(self.density, self.extra), self._source, self.scheme

    # ------------------------------------------------------------ functions for adapters

    def evaluate(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Log density and gradient at a state of the model."""
        q, gradient = np.array(q), np.empty(self.layout.size)
        value = _DENSITY(self.density)(q.ctypes.data, gradient.ctypes.data, self.extra.ctypes.data)
        return value, gradient

    def move_to(self, q: np.ndarray) -> None:
        """Continue from a state of the model."""
        self.chain.state.q[:] = self.chain.coordinates.to_z(q)
        self.chain.fresh = True

    def set_coordinates(self, coordinates: RowCoordinates) -> None:
        """Change the row coordinates; the state of the model stays the same."""
        here = self.chain.coordinates.to_x(self.chain.state.q)
        self.chain.coordinates = coordinates
        self._link_rows()
        self.move_to(here)

    def learn_path(self, points: np.ndarray, gradients: np.ndarray, connected: np.ndarray) -> None:
        """Add the secants between points, with ambient gradients in the sampler's coordinates, to the moments."""
        learn_path(self._table, points, gradients, connected)

    def try_trajectory(self) -> bool:
        """Make a draw that is not stored; return whether the chain moved."""
        self._make_room(1)
        self._run()
        self.chain.spent += int(self.stats["gradients"])
        return bool(self.stats["index_in_trajectory"] != 0)

    def find_step_size(self, eps: float) -> float:
        """Find a step size at which a single step is accepted about eight times in ten (Hoffman & Gelman's heuristic).

        Every trial is a trajectory of one step and moves the chain.
        """
        direction, statistics = 0, np.zeros(1, STATISTICS)
        for _ in range(60):
            pace = Pace(eps, False, 1)
            kept = (self.states[:0], self.gradients[:0], statistics)
            self._kernel(*self._arguments(), pace, self.chain.fresh, False, *kept)
            self.chain.fresh = False
            self.chain.spent += int(statistics["gradients"][0])
            error = float(statistics["max_energy_error"][0])
            way = 1 if math.isfinite(error) and error < 0.22 else -1
            if direction not in (0, way) or (way == 1 and eps > 3.0):
                break
            direction = way
            eps *= 2.0**way
        return eps
