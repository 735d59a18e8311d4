"""Step sizes and temperatures that change from draw to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_stiefel import _checks

__all__ = ["CyclicalSchedule", "PolynomialDecay"]


@dataclass(frozen=True)
class PolynomialDecay:
    r"""Step sizes :math:`\epsilon_t = \epsilon_0 (1 + t / \tau)^{-\gamma}` for draw ``t``, counted from 0 with tuning.

    Parameters
    ----------
    initial : float
        :math:`\epsilon_0`.
    power : float, default 1/3
        :math:`\gamma`. Up to 1/2 the total distance is unbounded; 1/3 balances bias against variance for a first-order
        scheme (Teh, Thiery & Vollmer 2016, arXiv:1409.0578).
    after : float, default 1000
        :math:`\tau`, the number of draws that pass before the decay sets in.

    Examples
    --------
    >>> from pymc_stiefel import PolynomialDecay
    >>> schedule = PolynomialDecay(0.1, power=0.5, after=300)
    >>> schedule(0), schedule(900)
    (0.1, 0.05)
    """

    initial: float
    power: float = 1 / 3
    after: float = 1000.0

    def __post_init__(self) -> None:
        for name in ("initial", "power", "after"):
            _checks.real(name, getattr(self, name), 0)

    def __call__(self, draw: int) -> float:
        factor: float = (1.0 + draw / self.after) ** -self.power
        return self.initial * factor


@dataclass(frozen=True)
class CyclicalSchedule:
    r"""Step sizes and temperatures in cycles, to explore several modes.

    In each cycle the learning rate, the square of the step size, falls from its largest value to zero along a cosine.
    The first part of the cycle adds no noise and finds a mode; the rest samples it. Lengths are counted in draws of
    :class:`~pymc_stiefel.OrthogonalSGHMC`, or in steps of ``pst.jax.osghmc``.

    Parameters
    ----------
    largest : float
        Step size at the start of a cycle.
    length : int
        Draws, or steps, of a cycle.
    exploration : float, default 0.8
        Share of a cycle without noise.
    temperature_after : float, default 1
        Temperature in the rest.

    References
    ----------
    Zhang et al. (2020), Cyclical stochastic gradient MCMC for Bayesian deep learning, arXiv:1902.03932.

    Examples
    --------
    >>> import pymc_stiefel as pst
    >>> schedule = pst.CyclicalSchedule(0.3, length=1000)
    >>> [round(float(schedule(k)), 3) for k in (0, 500, 1000)], bool(schedule.is_sampling(500))
    ([0.3, 0.212, 0.3], False)
    """

    largest: float
    length: int
    exploration: float = 0.8
    temperature_after: float = 1.0

    def __post_init__(self) -> None:
        _checks.real("largest", self.largest, 0)
        _checks.whole("length", self.length)
        if not 0 <= _checks.real("exploration", self.exploration) < 1:
            raise ValueError(f"exploration must be at least 0 and below 1, got {self.exploration}")
        _checks.scalar("temperature_after", self.temperature_after, 0)

    def _place(self, count: Any) -> Any:
        return count % self.length / self.length

    def __call__(self, count: Any) -> Any:
        return self.largest * _namespace(count).cos(0.5 * np.pi * self._place(count))

    def is_sampling(self, count: Any) -> Any:
        """Whether to keep the draw of step ``count``."""
        return self._place(count) >= self.exploration

    def temperature(self, count: Any) -> Any:
        """Temperature of step ``count``."""
        return _namespace(count).where(self.is_sampling(count), self.temperature_after, 0.0)


def _namespace(count: Any) -> Any:
    """NumPy, or JAX for its arrays."""
    return count.__array_namespace__() if hasattr(count, "__array_namespace__") else np
