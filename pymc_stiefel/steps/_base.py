"""Base class of all step methods on the manifold: how PyMC starts a chain, draws from it, saves and copies it."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.util import get_random_generator
from pymc.vartypes import continuous_types
from threadpoolctl import threadpool_limits

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.compile._layout import manifold_block

# States up to this size gain nothing from a second thread.
SMALL = 20_000


Point = dict[str, np.ndarray]
Statistics = dict[str, Any]


@dataclass
class Ahead:
    """Draws made in one call; the first ``place`` have been returned to PyMC."""

    states: np.ndarray
    points: list[Point]
    stats: list[Statistics]
    seconds: float  # of each
    place: int = 0

    @property
    def is_over(self) -> bool:
        return self.place == len(self.stats)

    @property
    def last(self) -> np.ndarray:
        """The state returned last."""
        state: np.ndarray = self.states[self.place - 1]
        return state


class ManifoldStep(ArrayStepShared):
    """A step whose draws are made by a sampler of the engine.

    A subclass sets ``_density`` and ``_model``, makes ``_sampler`` and converts its reports into statistics. It may
    make several draws in one call if nothing can change between them.
    """

    default_blocked = True
    _density: ModelDensity
    _model: pm.Model
    _sampler: Any
    _here: Point | None = None  # the point of the last draw, while the chain is there
    ahead: Ahead | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """PyMC's base class reads these arguments here, before ``__init__`` can check them."""
        model_of(kwargs.get("model"))
        if kwargs.get("blocked") is not None:
            _checks.flag("blocked", kwargs["blocked"])
        return super().__new__(cls, *args, **kwargs)

    def _make_sampler(self) -> None:
        """Set ``_sampler`` from the settings and the compiled density."""
        raise NotImplementedError

    def _draws(self, flat: np.ndarray | None, changed: bool) -> tuple[np.ndarray, list[Statistics]]:
        """At least one draw from ``flat``, or from the current state: new states and their statistics."""
        raise NotImplementedError

    def _hand_out(self, stats: Statistics) -> None:
        """Add the statistics of a draw that depend on earlier draws."""

    # ------------------------------------------------------------ state

    @property
    def chain(self) -> Any:
        return self._sampler.chain

    @chain.setter
    def chain(self, chain: Any) -> None:
        self._sampler.chain = chain
        self._here = None

    @property
    def tune(self) -> bool:
        return bool(self.chain.tune)

    @tune.setter
    def tune(self, tune: bool) -> None:
        self.chain.tune = bool(tune)

    def reset_tuning(self) -> None:
        tune = self.tune
        self._sampler.reset()
        self._here = self.ahead = None
        self.tune = tune

    def set_rng(self, rng: Any) -> None:
        """PyMC 5 calls this at the start of a chain."""
        self.rng = get_random_generator(rng, copy=False)
        if multiprocessing.parent_process() is not None and self._density.layout.size <= SMALL:
            # PyMC limits the threads of BLAS except in forked workers, where chains then fight over the cores
            threadpool_limits(limits=1, user_api="blas")

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """PyMC 6 calls this at the start of a chain."""
        self.set_rng(rng)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_sampler"] = self.chain  # addresses and workspace are created again
        state["_here"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        chain = state.pop("_sampler")
        self.__dict__.update(state)
        self._make_sampler()
        self.chain = chain

    # ------------------------------------------------------------ one draw

    def step(self, point: Point) -> tuple[Point, list[Statistics]]:
        """One draw from ``point``."""
        ahead, changed = self.ahead, self._density.reads and self._read(point)
        if changed or ahead is None or ahead.is_over or not (point is self._here or self._is_last(point)):
            ahead = self.ahead = self._make_draws(point, changed)
        place = ahead.place
        ahead.place = place + 1
        stats, self._here = ahead.stats[place], ahead.points[place]
        self._hand_out(stats)
        return self._here, [stats]

    def _read(self, point: Point) -> bool:
        """Pass variables of other steps, and data, to the density; return whether any has been replaced."""
        for name, shared in self.shared.items():
            shared.set_value(point[name], borrow=True)
        return self._density.refresh()

    def _is_last(self, point: Point) -> bool:
        """Whether ``point`` is the last draw returned, possibly as another object."""
        ahead = self.ahead
        if not (ahead and ahead.place):
            return False
        last = ahead.points[ahead.place - 1]
        return all(np.array_equal(point[name], last[name]) for name in self._density.names)

    def _make_draws(self, point: Point, changed: bool) -> Ahead:
        start, processor_start = time.perf_counter(), time.process_time()
        sampler, flat = self._sampler, None
        sampler.extra = self._density.extra
        if sampler.rng is not self.rng:
            sampler.rng = self.rng
        if point is not self._here:
            flat = self._density.pack(point)
            if not self.chain.started:
                flat = self.checked_start(flat, point)
        elif self.ahead and not self.ahead.is_over:  # the data have changed: discard draws made in advance
            flat = self.ahead.last.copy()
        if not self._density.checked:  # the data are new
            self._density.check(self.chain.state.q if flat is None else flat)
        states, statistics = self._draws(flat, changed)
        self._density.raise_error()
        points = self._density.unpack(states, point)
        seconds = (time.perf_counter() - start) / len(points)
        processor_seconds = (time.process_time() - processor_start) / len(points)
        for place, stats in enumerate(statistics):
            stats["perf_counter_diff"], stats["process_time_diff"] = seconds, processor_seconds
            stats["perf_counter_start"] = start + place * seconds
        return Ahead(states, points, statistics, seconds)

    def astep(self, q0: Any) -> Any:
        """Not used: a state is packed in the order of the engine, not in PyMC's."""
        raise NotImplementedError

    # ------------------------------------------------------------ start of a chain

    def checked_start(self, flat: np.ndarray, point: Point) -> np.ndarray:
        """Project the start on the manifold; raise an error if the density or its gradient is not finite there."""
        density = self._density
        flat = density.on_manifold(flat)
        density.check(flat)
        value, gradient = density(flat)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            density.check_subspaces(flat, gradient)
            self._refuse_rounding(flat, gradient)
            return flat
        if not np.isfinite(value):
            terms = {name: float(term) for name, term in self._model.point_logps(point, round_vals=6).items()}
            bad = ", ".join(f"{name}: {term}" for name, term in terms.items() if not np.isfinite(term))
            raise SamplingError(
                f"the log density is {value} at the start of the chain (terms that are not finite: {bad or 'none'}). "
                f"The start is {_short(point)}. Give another one by `initvals`, or see `model.debug()`."
            )
        bad = ", ".join(
            str(slot.value.name)
            for slot in density.slots
            if not np.all(np.isfinite(gradient[slot.start : slot.start + slot.size]))
        )
        raise SamplingError(
            f"the gradient of the log density is not finite in {bad} at the start of the chain, where the point is "
            f"{_short(point)}. Give another start by `initvals`."
        )

    def _refuse_rounding(self, flat: np.ndarray, gradient: np.ndarray) -> None:
        """Raise an error for a density so steep that rounding errors of a matrix change the log density."""
        for slot in self._density.slots:
            part = slice(slot.start, slot.start + slot.size)
            change = float(np.abs(flat[part] * gradient[part]).sum()) * np.finfo(slot.value.dtype).eps
            if slot.block is not None and change > 1:
                raise SamplingError(
                    f"the log density changes by {change:.1g} when entries of {slot.value.name} change in their last "
                    f"digit ({slot.value.dtype}), at {_short({str(slot.value.name): slot.view(flat)})}: its law is too "
                    "narrow for a Markov chain. Use a smaller concentration or more noise, hold the variable fixed, or "
                    "start elsewhere (`initvals`). Draws by `pm.draw` are exact at any concentration."
                )


def check_values(model: pm.Model, values: Sequence[Any], step: str, needs_manifold: bool = True) -> None:
    """Raise an error for variables without a gradient; warn if none is orthonormal."""
    discrete = [f"{value.name} ({value.dtype})" for value in values if value.dtype not in continuous_types]
    if discrete:
        raise ValueError(
            f"{step} needs gradients, which {', '.join(discrete)} cannot have. "
            "Leave discrete variables out of `vars`: PyMC gives them a step of their own."
        )
    if not values:
        raise ValueError(f"{step} found no continuous variable in the model")
    if needs_manifold and all(manifold_block(model, value) is None for value in values):
        warnings.warn(
            f"{step} was given no orthonormal variable (only {', '.join(value.name for value in values)}): "
            "it runs as plain Hamiltonian Monte Carlo; pm.NUTS() may be faster.",
            UserWarning,
            stacklevel=4,
        )


def _short(point: Point) -> str:
    def show(value: Any) -> str:
        text = np.array2string(np.asarray(value).ravel()[:4], precision=4, separator=", ")
        return text if np.size(value) <= 4 else f"{text[:-1]}, ...]"

    return ", ".join(f"{name} = {show(value)}" for name, value in point.items())
