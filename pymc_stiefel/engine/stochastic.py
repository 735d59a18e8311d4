"""Stochastic-gradient dynamics on the manifold: no accept step, momentum kept from draw to draw.

Two schemes, both with one gradient a step. ``EULER`` is Algorithm 2 of Yanush & Kropotov (arXiv:1901.08045): drift,
then ``r <- (1 - alpha) r + eps g + noise``. ``SYMMETRIC`` puts an exact Ornstein-Uhlenbeck step between two half drifts
and gives the kick its place at the end (BAOAB; Leimkuhler & Matthews 2013, doi:10.1063/1.4802990). A kick and the one
that opens the next step use the same gradient, so that they are made as one.

The first is a symmetric splitting in disguise, and of second order too: with ``r = s R`` and
``s^2 = 1 / (1 - alpha / 2)``, its second half is half a kick, an exact Ornstein-Uhlenbeck step of ``R`` and half a
kick, for steps of ``s eps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from pymc_stiefel.engine.blas import Blas, make_blas
from pymc_stiefel.engine.blocks import (
    Layout,
    Metric,
    Point,
    copy_into,
    make_point,
    matrix_at,
    square_at,
)
from pymc_stiefel.engine.compiling import (
    UNCOUNTED,
    call_density,
    compiled,
    inner,
    random_source,
    uniform,
)
from pymc_stiefel.engine.drifts import CAYLEY, drift_address, scratch_size
from pymc_stiefel.engine.manifolds import MANIFOLDS
from pymc_stiefel.engine.phase_space import (
    add_noise,
    draw_momentum,
    drift,
    remove_normal_part,
    reorthonormalise,
    skew_part,
    split_in_place,
)
from pymc_stiefel.engine.vectors import axpy

EULER, SYMMETRIC = "euler", "symmetric"

STATISTICS = ("temperature", "energy", "model_logp", "mean_logp", "diverging", "steps", "orthogonality_error")
TEMPERATURE, ENERGY, LOGP, MEAN_LOGP, DIVERGING, STEPS, ORTHOGONALITY = range(len(STATISTICS))

HOTTEST = 1e8
"""Kinetic temperature that counts as a divergence. A start far out in a steep density may pass through thousands."""

TIDY = 16
"""Steps between corrections of the rounding errors of X'X."""


class Work(NamedTuple):
    """All memory a draw needs beyond its state."""

    safe: np.ndarray  # where the draw started
    scratch: np.ndarray
    blas: Blas


class Batches(NamedTuple):
    """Row numbers of minibatches, drawn anew for every gradient: ``rows[first:last]`` from 0 to ``upper - 1``."""

    rows: np.ndarray
    bounds: np.ndarray  # (first, last, upper), a row for each group


def make_work(layout: Layout) -> Work:
    largest = max([scratch_size(n, p) for n, p in zip(layout.n, layout.p, strict=True)], default=0)
    blas = make_blas(2 * int(layout.p.max(initial=1)))
    return Work(np.zeros(layout.size), np.zeros(max(largest, layout.size, 1)), blas)


def no_batches() -> Batches:
    return Batches(np.zeros(0, dtype=np.int64), np.zeros((0, 3), dtype=np.int64))


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


# ---------------------------------------------------------------- pieces of a step


@inner
def scale(factor, vector):
    for i in range(vector.size):
        vector[i] *= factor


@inner
def draw_batches(source, batches):
    for k in range(batches.bounds.shape[0]):
        upper = batches.bounds[k, 2]
        for i in range(batches.bounds[k, 0], batches.bounds[k, 1]):
            batches.rows[i] = np.int64(uniform(source) * upper)


@inner
def stochastic_kick(density, extra, source, batches, layout, work, state, keep, eps):
    """``r <- keep r + eps P_X(g)`` with a fresh gradient; the old momentum is left in ``ga``, ``gb``.

    Momentum and gradient are projected together: one projection also removes what rounding left of ``X'B``.
    """
    draw_batches(source, batches)
    state.value[0] = call_density(density, state.q, state.gb, extra)
    a, b, ga, gb = state.a, state.b, state.ga, state.gb
    copy_into(a, ga)
    for i in range(b.size):
        old = b[i]
        b[i] = keep * old + eps * gb[i]
        gb[i] = old
    split_in_place(layout, work.blas, state.q, a, b)
    axpy(keep, ga, a)


@inner
def noisy_kick(density, extra, source, batches, layout, metric, work, state, keep, eps, spread):
    """``r <- keep r + eps P_X(g) + spread xi``, in three products for each matrix.

    Normal parts of gradient, noise and rounding are removed together. The skew part of the gradient is taken before the
    noise is added, whose own has another variance.
    """
    draw_batches(source, batches)
    state.value[0] = call_density(density, state.q, state.gb, extra)
    skew_part(layout, work.blas, state.q, state.gb, state.ga)
    a, b, ga, gb = state.a, state.b, state.ga, state.gb
    for i in range(a.size):
        a[i] = keep * a[i] + eps * ga[i]
    for i in range(b.size):
        b[i] = keep * b[i] + eps * gb[i]
    add_noise(source, layout, metric, state, 1.0, spread)
    for m in range(layout.n.size):
        if layout.n[m] == layout.p[m]:
            matrix_at(layout, m, b)[:] = 0.0
    remove_normal_part(layout, work.blas, state, work.scratch)


@inner
def mean_kinetic(layout, metric, state, share):
    """Kinetic energy of the momentum ``(1 - share) old + share new``, old being in ``ga``, ``gb``."""
    total, rest = 0.0, 1.0 - share
    for m in range(layout.n.size):
        w, first, start = square_at(layout, m, metric.w), layout.skew[m], layout.offset[m]
        p, n = layout.p[m], layout.n[m]
        for j in range(p):
            for i in range(p):
                k = first + j * p + i
                total += w[j, i] * (rest * state.ga[k] + share * state.a[k]) ** 2
            if n > p:
                column = 0.0
                for k in range(start + j * n, start + (j + 1) * n):
                    column += (rest * state.gb[k] + share * state.b[k]) ** 2
                total += metric.c[layout.column[m] + j] * column
    for k in range(layout.stiefel, layout.size):
        total += metric.variance[k - layout.stiefel] * (rest * state.gb[k] + share * state.b[k]) ** 2
    return 0.5 * total


@inner
def symmetric_step(density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread):
    """Half drift, Ornstein-Uhlenbeck, half drift, kick; returns the kinetic energy in the middle of the kick."""
    drift(drifts, layout, work.blas, metric, state, 0.5 * eps, work.scratch)
    add_noise(source, layout, metric, state, keep, spread)
    remove_normal_part(layout, work.blas, state, work.scratch)
    drift(drifts, layout, work.blas, metric, state, 0.5 * eps, work.scratch)
    stochastic_kick(density, extra, source, batches, layout, work, state, 1.0, eps)
    return mean_kinetic(layout, metric, state, 0.5)


@inner
def euler_step(density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread):
    """Drift, then friction, gradient and noise at once: the paper's scheme. Momentum SGD if ``spread`` is 0."""
    drift(drifts, layout, work.blas, metric, state, eps, work.scratch)
    if spread > 0.0:
        noisy_kick(density, extra, source, batches, layout, metric, work, state, keep, eps, spread)
    else:
        stochastic_kick(density, extra, source, batches, layout, work, state, keep, eps)
    return mean_kinetic(layout, metric, state, 1.0)


# ---------------------------------------------------------------- one draw


@compiled(**UNCOUNTED)
def stochastic_draw(
    density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread, symmetric, n_steps,
    fresh, tidy, freedom, stats,
):  # fmt: skip
    """``n_steps`` steps; where they diverge the state is left as it was.

    ``fresh``, if positive, asks for a new momentum, that many times as large as one from exp(-K).
    """
    stats[:] = 0.0
    copy_into(state.q, work.safe)
    if fresh > 0.0:
        draw_momentum(source, layout, work.blas, metric, state, work.scratch)
        scale(fresh, state.a)
        scale(fresh, state.b)
    kinetic = 0.0
    for _ in range(n_steps):
        if symmetric:
            kinetic = symmetric_step(
                density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread
            )
        else:
            kinetic = euler_step(
                density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread
            )
        temperature = 2.0 * kinetic / freedom
        stats[STEPS] += 1.0
        stats[LOGP] = state.value[0]
        stats[TEMPERATURE] += temperature
        stats[MEAN_LOGP] += state.value[0]
        if not (np.isfinite(state.value[0]) and temperature < HOTTEST):  # also catches NaN
            stats[DIVERGING] = 1.0
            stats[TEMPERATURE] = temperature * stats[STEPS]
            copy_into(work.safe, state.q)
            break
    stats[TEMPERATURE] /= stats[STEPS]
    stats[MEAN_LOGP] /= stats[STEPS]
    stats[ENERGY] = kinetic - state.value[0]
    if tidy:
        stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)


# ---------------------------------------------------------------- a chain


@dataclass(frozen=True)
class StochasticSettings:
    """What a user chooses. ``step_size`` may be a function of the number of the draw."""

    step_size: float | Callable[[int], float]
    friction: float
    noise_estimate: float = 0.0
    n_steps: int = 1
    scheme: str = SYMMETRIC
    resample: bool = False
    temperature: float | Callable[[int], float] = 1.0  # 0 is momentum SGD

    @property
    def keep(self) -> float:
        """What a step keeps of the momentum."""
        return 1.0 - self.friction

    def spread(self, temperature: float) -> float:
        """Standard deviation of the noise of a step, relative to that of the law exp(-K)."""
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
    """Everything a chain remembers from draw to draw."""

    state: Point
    draws: int = 0
    tune: bool = True
    started: bool = False
    stopped: bool = False  # diverged: stays where it is
    untidy: int = 0  # steps since X'X was corrected
    orthogonality_error: float = 0.0
    heat: float = 0.0  # sum of temperatures over steps after tuning
    steps: int = 0
    warned: bool = False


class StochasticSampler:
    """Draws from a density known by stochastic gradients.

    Parameters
    ----------
    layout, density, rng, extra
        As for :class:`pymc_stiefel.engine.sampler.Sampler`.
    settings : StochasticSettings
    metric : Metric
        Canonical masses, see :func:`scaled_metric`.
    batches : Batches
        Where the density looks for the rows of its data.
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
        """Forget everything, as for a new chain."""
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
            # Half of a kick has a quarter of its noise: its middle is colder than the drifts by beta / 2.
            stats[TEMPERATURE] += 0.5 * self.settings.noise_estimate
        else:
            stats[TEMPERATURE] *= 1.0 - 0.5 * self.settings.friction  # that of R, see the top of this module
        chain.stopped = bool(stats[DIVERGING])
        if tidy:
            chain.untidy, chain.orthogonality_error = 0, float(stats[ORTHOGONALITY])
        if not chain.tune and self.target > 0.0:
            chain.heat += stats[TEMPERATURE] / self.target * stats[STEPS]
            chain.steps += int(stats[STEPS])

    @property
    def temperature(self) -> tuple[float, float]:
        """Mean kinetic temperature since tuning, in units of what it should be, and its standard error (nan before).

        A step forgets a share ``1 - keep^2`` of the kinetic energy, whose variance is ``2 / d`` in units of the mean.
        """
        steps = self.chain.steps
        if steps == 0:
            return math.nan, math.nan
        forgets = 1.0 - self.settings.keep**2
        independent = max(steps * forgets / (2.0 - forgets), 1.0)
        return self.chain.heat / steps, math.sqrt(2.0 / (self.freedom * independent))


def _same(q: np.ndarray, state: np.ndarray) -> bool:
    """Whether PyMC hands back what it was given, perhaps in single precision; the state has all digits."""
    return np.array_equal(q, state) or np.array_equal(q.astype(np.float32), state.astype(np.float32))
