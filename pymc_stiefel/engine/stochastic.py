"""Chains with stochastic gradients; :mod:`pymc_stiefel.engine.stochastic_kernels` describes the schemes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from pymc_stiefel.engine.blocks import (
    Layout,
    Metric,
    Point,
    make_point,
)
from pymc_stiefel.engine.drifts import CAYLEY, drift_address
from pymc_stiefel.engine.jit.random import random_source
from pymc_stiefel.engine.manifolds import MANIFOLDS
from pymc_stiefel.engine.stochastic_kernels import (
    DIVERGING,
    EULER,
    ORTHOGONALITY,
    STATISTICS,
    STEPS,
    SYMMETRIC,
    TEMPERATURE,
    TIDY,
    Batches,
    make_work,
    no_batches,
    stochastic_draw,
)


def scaled_metric(layout: Layout, matrix_scale: np.ndarray, scale: np.ndarray) -> Metric:
    """Canonical masses ``c = scale^2 / n``, ``w = 2 c`` for every matrix, ``scale^2`` for every Euclidean number.

    A step then moves a variable by about ``eps * scale``: radians for a matrix, units for a number.
    """
    c = np.asarray(matrix_scale, dtype=float) ** 2 / layout.n
    empty = np.zeros((0, 0))
    return Metric(
        c=np.repeat(c, layout.p),
        w=np.repeat(2.0 * c, layout.p**2),
        variance=np.asarray(scale, dtype=float) ** 2,
        covariance=empty,
        cholesky=empty.copy(),
    )


def degrees_of_freedom(layout: Layout) -> int:
    blocks = zip(layout.n, layout.p, layout.manifold, strict=True)
    matrices = sum(int(p * (n - p)) + MANIFOLDS[manifold].pairs(int(p)) for n, p, manifold in blocks)
    return matrices + layout.size - layout.stiefel


@dataclass(frozen=True)
class StochasticSettings:
    """Settings chosen by the user. ``step_size`` may be a function of the number of the draw."""

    step_size: float | Callable[[int], float]
    friction: float
    noise_estimate: float = 0.0
    n_steps: int = 1
    scheme: str = SYMMETRIC
    resample: bool = False
    temperature: float | Callable[[int], float] = 1.0  # 0 is momentum SGD

    @property
    def keep(self) -> float:
        """Fraction of the momentum that a step keeps."""
        return 1.0 - self.friction

    def spread(self, temperature: float) -> float:
        """Standard deviation of the noise of a step, relative to that of the density exp(-K)."""
        alpha, beta = self.friction, self.noise_estimate
        if temperature == 0.0:
            return 0.0
        if self.scheme == EULER:
            return math.sqrt(max(2.0 * (alpha * temperature - beta), 0.0))
        # A kick adds 2 beta to the variance: T - beta before it, T + beta after it, T on average over the two drifts.
        return math.sqrt(max((temperature - beta) - (1.0 - alpha) ** 2 * (temperature + beta), 0.0))

    def step_size_at(self, draw: int) -> float:
        return float(self.step_size(draw) if callable(self.step_size) else self.step_size)

    def temperature_at(self, draw: int) -> float:
        return float(self.temperature(draw) if callable(self.temperature) else self.temperature)


@dataclass
class StochasticChain:
    """The state of a chain between draws."""

    state: Point
    draws: int = 0
    tune: bool = True
    started: bool = False
    stopped: bool = False  # diverged: does not move any more
    untidy: int = 0  # steps since X'X was corrected
    orthogonality_error: float = 0.0
    heat: float = 0.0  # sum of temperatures over steps after tuning
    steps: int = 0
    warned: bool = False


class StochasticSampler:
    """Draws from a density, with stochastic gradients.

    Parameters
    ----------
    layout, density, rng, extra
        As for :class:`pymc_stiefel.engine.sampler.Sampler`.
    settings : StochasticSettings
    metric : Metric
        Canonical masses, see :func:`scaled_metric`.
    batches : Batches
        Row numbers of the minibatches, which the density reads.
    """

    def __init__(
        self,
        layout: Layout,
        density: int,
        settings: StochasticSettings,
        metric: Metric,
        rng: np.random.Generator,
        extra: np.ndarray | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.layout, self.density, self.settings, self.metric, self.rng = layout, density, settings, metric, rng
        self.extra = np.zeros(1, dtype=np.int64) if extra is None else extra
        self.batches = no_batches() if batches is None else batches
        self.drifts = np.full(layout.n.size, drift_address(CAYLEY), dtype=np.int64)
        self.work = make_work(layout)
        self.freedom = float(max(degrees_of_freedom(layout), 1))
        self.stats = np.zeros(len(STATISTICS))
        self.last_step_size = self.target = math.nan
        self.reset()

    @property
    def rng(self) -> np.random.Generator:
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self._rng, self._source = rng, random_source(rng)

    def reset(self) -> None:
        """Discard the state, as for a new chain."""
        self.chain = StochasticChain(make_point(self.layout))

    def draw(self, q: np.ndarray | None, **_) -> np.ndarray:
        """One draw from ``q``, or from where the last one ended. Returns the new state (a view)."""
        chain, settings = self.chain, self.settings
        eps = self.last_step_size = settings.step_size_at(chain.draws)
        if not (eps > 0.0 and math.isfinite(eps)):
            raise ValueError(f"step_size must be positive and finite, got step_size({chain.draws})={eps}")
        temperature = settings.temperature_at(chain.draws)
        if not (temperature >= 0.0 and math.isfinite(temperature)):
            raise ValueError(
                f"temperature must be finite and not negative, got temperature({chain.draws})={temperature}"
            )
        chain.draws += 1
        if chain.stopped:
            self.stats[STEPS] = 0.0
            return chain.state.q
        moved = not (q is None or (chain.started and _same(q, chain.state.q)))
        if moved:
            chain.state.q[:] = q
            chain.state.a[:], chain.state.b[:] = 0.0, 0.0
        chain.started = True
        chain.untidy += settings.n_steps
        tidy = chain.untidy >= TIDY
        self.target = temperature
        fresh = math.sqrt(temperature) if moved or settings.resample else 0.0
        stochastic_draw(*self._kernel_arguments(eps, temperature, fresh, tidy))
        self._remember(tidy)
        return chain.state.q

    def compile(self) -> None:
        """Build the compiled parts, or load them from the disk cache, before the first draw (and before a fork)."""
        stochastic_draw.compile(tuple(map(numba.typeof, self._kernel_arguments(0.1, 1.0, 1.0, True))))

    def _kernel_arguments(self, eps: float, temperature: float, fresh: float, tidy: bool) -> tuple:
        settings = self.settings
        return (
            self.density,
            self.extra,
            self._source,
            self.batches,
            self.drifts,
            self.layout,
            self.metric,
            self.work,
            self.chain.state,
            eps,
            settings.keep,
            settings.spread(temperature),
            settings.scheme == SYMMETRIC,
            settings.n_steps,
            fresh,
            tidy,
            self.freedom,
            self.stats,
        )

    def _remember(self, tidy: bool) -> None:
        chain, stats = self.chain, self.stats
        if self.settings.scheme == SYMMETRIC:
            # Half a kick has a quarter of its noise: the temperature in its middle is beta / 2 below the drifts'.
            stats[TEMPERATURE] += 0.5 * self.settings.noise_estimate
        else:
            stats[TEMPERATURE] *= 1.0 - 0.5 * self.settings.friction  # temperature of R, see stochastic_kernels
        chain.stopped = bool(stats[DIVERGING])
        if tidy:
            chain.untidy, chain.orthogonality_error = 0, float(stats[ORTHOGONALITY])
        if not chain.tune and self.target > 0.0:
            chain.heat += stats[TEMPERATURE] / self.target * stats[STEPS]
            chain.steps += int(stats[STEPS])

    @property
    def temperature(self) -> tuple[float, float]:
        """Mean kinetic temperature since tuning, relative to its expected value, and its standard error (nan before).

        A step forgets a fraction ``1 - keep^2`` of the kinetic energy, whose relative variance is ``2 / d``.
        """
        steps = self.chain.steps
        if steps == 0:
            return math.nan, math.nan
        forgets = 1.0 - self.settings.keep**2
        independent = max(steps * forgets / (2.0 - forgets), 1.0)
        return self.chain.heat / steps, math.sqrt(2.0 / (self.freedom * independent))


def _same(q: np.ndarray, state: np.ndarray) -> bool:
    """Whether PyMC returns the state that it was given, perhaps rounded to single precision; ours has all digits."""
    return np.array_equal(q, state) or np.array_equal(q.astype(np.float32), state.astype(np.float32))
