"""Transitions of many chains in lockstep by BlackJAX's kernels, with tuning of step size and trajectory length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import optax
from blackjax.adaptation import chees_adaptation
from blackjax.mcmc import dynamic_hmc, hmc, nuts
from blackjax.optimizers.dual_averaging import dual_averaging

from pymc_stiefel.jax._integrator import stiefel_integrator, stiefel_metric
from pymc_stiefel.jax._manifolds import Masses, Position, nearest

FIRST_STEP = 0.3
CHEES_STEPS = 250
"""Largest number of integration steps of a ChEES trajectory."""
SHORTEST, LONGEST = 0.6, 1.4
"""Range of the factors by which the length of a ChEES trajectory varies."""
TREE_DEPTH = 10
TUNING_TREE_DEPTH = 7
"""Largest number of doublings of a NUTS trajectory. Before masses are tuned, one long trajectory delays all chains."""
MOST_REFLECTIONS = 8
"""Sign flips proposed for each variable after a trajectory."""


class Tuned(NamedTuple):
    """Tuned settings that sampling uses."""

    step_size: Any
    length: Any  # integration time of a ChEES trajectory; not used by NUTS


class Move(NamedTuple):
    """Statistics of a transition, one number per chain."""

    acceptance_rate: Any
    diverging: Any
    energy: Any
    n_steps: Any  # gradients
    tree_depth: Any
    proposal: Any  # of ChEES


class Algorithm(Protocol):
    """ChEES or NUTS."""

    def first(self, dtype: Any) -> Any:
        """State of the tuning before the first draw."""

    def current(self, tuning: Any) -> Tuned:
        """Step size and length for the next tuning draw."""

    def final(self, tuning: Any) -> Tuned:
        """Step size and length after tuning."""

    def update(self, tuning: Any, before: Any, move: Move, masses: Masses) -> Any:
        """State of the tuning after a draw."""

    def restart(self, tuning: Any) -> Any:
        """State of the tuning after the masses have changed."""

    def move(
        self, keys: Any, noise: Any, states: Any, number: Any, tuned: Tuned, masses: Masses, tune: bool
    ) -> tuple[Any, Move]:
        """One transition of every chain."""


class ChEES:
    """Trajectories of equal length for all chains, tuned by the ChEES criterion (Hoffman, Radul & Sountsov 2021)."""

    stages = 2

    def __init__(self, density: Callable, drift: str, target_accept: float):
        self._density = density
        self._kernel = hmc.build_kernel(stiefel_integrator(density, drift, self.stages))
        self._first, self._update = chees_adaptation.base(
            self._jitter, lambda number: number + 1, optax.adam(0.05), target_accept, 0.5, CHEES_STEPS
        )

    @staticmethod
    def _jitter(number):
        """Quasi-random factors of the length: a fixed length can be a period of the motion."""
        return SHORTEST + (LONGEST - SHORTEST) * dynamic_hmc.halton_sequence(jnp.asarray(number, jnp.int32), 11)

    def first(self, dtype):
        state = self._first(jnp.zeros((), jnp.int32), jnp.asarray(FIRST_STEP, dtype))
        return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                            jax.tree.map(jnp.asarray, state))  # fmt: skip

    def current(self, tuning):
        return Tuned(tuning.step_size, jnp.exp(tuning.log_trajectory_length_moving_average))

    def final(self, tuning):
        length = jnp.exp(tuning.log_trajectory_length_moving_average)
        return Tuned(jnp.minimum(jnp.exp(tuning.log_step_size_moving_average), LONGEST * length), length)

    def update(self, tuning, before, move, masses):
        whiten = jax.vmap(lambda position: _whitened(position, masses))
        new = self._update(
            tuning._replace(trajectory_length=self.current(tuning).length),  # BlackJAX raises it to the step size
            whiten(move.proposal.position),
            jax.vmap(lambda state: _velocity(state.position, state.momentum, masses))(move.proposal),
            whiten(before.position),
            move.acceptance_rate,
            move.diverging,
            jnp.ones((), tuning.step_size.dtype),
        )
        return jax.tree.map(lambda x, old: x.astype(old.dtype), new, tuning)

    def restart(self, tuning):
        return tuning

    def move(self, keys, noise, states, number, tuned, masses, tune):
        # all chains make the same number of steps, so none waits for another
        length = self._jitter(number) * tuned.length
        steps = jnp.clip(jnp.ceil(length / tuned.step_size), 1, CHEES_STEPS).astype(jnp.int32)
        step_size = jnp.minimum(length / steps, tuned.step_size)

        def one(key, state, noise):
            metric = stiefel_metric(masses, noise)
            return self._kernel(key, state, self._density, step_size, metric, num_integration_steps=steps)

        states, info = jax.vmap(one)(keys, states, noise)
        taken = jnp.full(info.energy.shape, self.stages * steps)
        # BlackJAX reverses the momentum of the proposal and minimises; in the criterion the two signs cancel
        move = Move(info.acceptance_rate, info.is_divergent, info.energy, taken, jnp.zeros_like(taken), info.proposal)
        return states, move


class NUTS:
    """BlackJAX's NUTS with one step size for all chains. Every chain waits for the longest trajectory."""

    stages = 1

    def __init__(self, density: Callable, drift: str, target_accept: float):
        self._density, self._target = density, target_accept
        self._kernel = nuts.build_kernel(stiefel_integrator(density, drift, self.stages))
        self._first, self._update, self._final = dual_averaging()

    def first(self, dtype):
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), self._first(jnp.asarray(FIRST_STEP, dtype)))

    def current(self, tuning):
        step_size = jnp.exp(tuning.log_x)
        return Tuned(step_size, step_size)

    def final(self, tuning):
        step_size = jnp.exp(tuning.log_x_avg)
        return Tuned(step_size, step_size)

    def update(self, tuning, before, move, masses):
        accept = jnp.mean(jnp.nan_to_num(move.acceptance_rate))
        return jax.tree.map(lambda x, old: x.astype(old.dtype), self._update(tuning, self._target - accept), tuning)

    def restart(self, tuning):
        new = self._first(jnp.exp(tuning.log_x))
        return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, tuning)

    def move(self, keys, noise, states, number, tuned, masses, tune):
        depth = TUNING_TREE_DEPTH if tune else TREE_DEPTH

        def one(key, state, noise):
            return self._kernel(key, state, self._density, tuned.step_size, stiefel_metric(masses, noise), depth)

        states, info = jax.vmap(one)(keys, states, noise)
        depth = info.num_trajectory_expansions
        move = Move(info.acceptance_rate, info.is_divergent, info.energy, info.num_integration_steps, depth, None)
        return states, move


ALGORITHMS: dict[str, type[ChEES] | type[NUTS]] = {"chees": ChEES, "nuts": NUTS}


def _whitened(position: Position, masses: Masses) -> Any:
    """The position in the criterion. For a subspace it is the projector, because the basis is arbitrary."""
    parts, L = [], masses.L
    for X, c, w in zip(position.X, masses.c, masses.w, strict=True):
        root = jnp.sqrt(c)[..., None, :]
        parts.append((X / root if w is not None else (X / root) @ jnp.swapaxes(X, -1, -2)).ravel())
    parts.append(position.z / L if L.ndim == 1 else jsl.solve_triangular(L, position.z, lower=True))
    return jnp.concatenate(parts)


def _velocity(position: Position, momentum: Position, masses: Masses) -> Any:
    """Velocity of what ``_whitened`` returns, from the whitened momentum."""
    parts = []
    for X, r, w in zip(position.X, momentum.X, masses.w, strict=True):
        turning = r @ jnp.swapaxes(X, -1, -2) if w is None else r
        parts.append((turning + jnp.swapaxes(turning, -1, -2) if w is None else r).ravel())
    return jnp.concatenate([*parts, momentum.z])


def repaired(states: Any) -> Any:
    """The states, with rounding errors of the matrices removed."""
    position = states.position
    return states._replace(position=position._replace(X=tuple(map(nearest, position.X))))


def reflect(key: Any, state: Any, density: Callable, which: list[int]) -> Any:
    """Propose several sign flips for each matrix of ``which``, so that a chain on O(n) reaches both determinants."""
    for number in which:
        X = state.position.X[number]
        count = min(X.size // X.shape[-1] ** 2, MOST_REFLECTIONS)
        keys = jax.random.split(jax.random.fold_in(key, number), count)

        def once(carry, key, n=number):
            return flip(key, carry, density, [n])[0], None

        state = jax.lax.scan(once, state, keys)[0]
    return state


def flip(key: Any, state: Any, density: Callable, which: list[int]) -> tuple[Any, Any]:
    """Flip the sign of a column of one of the matrices ``which``, by a Metropolis step of one chain.

    Returns the state, and whether the flip was accepted.
    """
    pick, place, accept = jax.random.split(key, 3)
    chosen = jnp.asarray(which)[jax.random.randint(pick, (), 0, len(which))]

    def signs(number, X):
        column = jax.random.randint(place, (), 0, X.size // X.shape[-2])
        signs = jnp.ones(X.size // X.shape[-2], X.dtype).at[column].set(-1.0)
        return jnp.where(chosen == number, signs.reshape(*X.shape[:-2], 1, X.shape[-1]), 1.0)

    matrices = tuple(X * signs(i, X) if i in which else X for i, X in enumerate(state.position.X))
    new = hmc.init(state.position._replace(X=matrices), density)
    log_ratio = new.logdensity - state.logdensity
    taken = jnp.log(jax.random.uniform(accept, dtype=log_ratio.dtype)) < log_ratio
    return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, state), taken
