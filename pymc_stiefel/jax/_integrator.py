"""Metric and integrator for BlackJAX.

BlackJAX does not pass the position to the kinetic energy or to the U-turn criterion. We therefore give it the whitened
momentum ``X (sqrt(w) * A) + B diag(sqrt(c))``, an ambient matrix of the shape of X. Its kinetic energy is half its
squared norm, a draw is the projection of a standard Gaussian matrix, and BlackJAX's kernels need no change. The masses
are an attribute of the kinetic energy, because this is the only object that BlackJAX passes to the integrator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.integrators import IntegratorState
from blackjax.mcmc.metrics import Metric
from jax.flatten_util import ravel_pytree

from pymc_stiefel.jax._manifolds import DRIFTS, Masses, Position, complement, tangent

STAGES: dict[int, tuple[float, ...]] = {
    1: (0.5, 1.0, 0.5),
    2: (0.211781, 0.5, 1 - 2 * 0.211781, 0.5, 0.211781),
}
"""Coefficients of alternating kicks and drifts: leapfrog, and the two-stage scheme of Blanes et al. (2014)."""


class KineticEnergy:
    """Half the squared norm of the whitened momentum."""

    def __init__(self, masses: Masses):
        self.masses = masses

    def __call__(self, momentum: Position, position: Position | None = None) -> Any:
        return 0.5 * sum(jnp.sum(part * part) for part in jax.tree.leaves(momentum))


def apply_root(L: Any, z: Any) -> Any:
    """``L z``, for a triangular or a diagonal ``L``."""
    return L * z if L.ndim == 1 else L @ z


def apply_root_transposed(L: Any, z: Any) -> Any:
    """``L' z``."""
    return L * z if L.ndim == 1 else L.T @ z


def gaussian(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Standard normal numbers by the method of Box and Muller, on CPUs twice as fast as ``jax.random.normal``.

    The angle is one of four quadrants and an angle within it, for which the series of sine and cosine are short.
    """
    half = -(-int(np.prod(shape)) // 2)
    kind, digits = (jnp.uint64, 53) if dtype == jnp.float64 else (jnp.uint32, 24)
    bits = jax.random.bits(key, (2, half), kind)
    unused = jnp.iinfo(kind).bits - digits
    uniform = ((bits >> unused).astype(dtype) + 0.5) * 2.0**-digits
    radius = jnp.sqrt(-2 * jnp.log(uniform[0]))
    angle = (uniform[1] - 0.5) * (0.5 * np.pi)
    square, sin, cos = angle * angle, jnp.zeros_like(angle), jnp.zeros_like(angle)
    for k in reversed(range(9)):
        sin = sin * square + (-1) ** k / math.factorial(2 * k + 1)
        cos = cos * square + (-1) ** k / math.factorial(2 * k)
    turned = (bits[1] & 1) == 1  # the lowest bits are not in ``uniform``
    radius = jnp.where((bits[1] & 2) == 2, -radius, radius)
    x, y = radius * cos, radius * sin * angle
    both = jnp.stack([jnp.where(turned, -y, x), jnp.where(turned, x, y)])
    return both.ravel()[: int(np.prod(shape))].reshape(shape)


def draw_noise(key: Any, positions: Position) -> Position:
    """Standard normal numbers for the momenta of all chains."""
    leaves, tree = jax.tree.flatten(positions)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(tree, [gaussian(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])


def draw_momentum(noise: Position, position: Position, masses: Masses) -> Position:
    """A whitened momentum from standard normal numbers."""
    matrices = []
    for r, X, w in zip(noise.X, position.X, masses.w, strict=True):
        A, B = tangent(X, r, w)
        matrices.append(X @ A + B)
    return Position(tuple(matrices), noise.z)


def stiefel_metric(masses: Masses, noise: Position) -> Metric:
    """The metric with the given ``masses``, for one transition of BlackJAX, whose momentum is made from ``noise``."""

    def is_turning(left, right, total, position_left=None, position_right=None):
        left, right, total = (ravel_pytree(momentum)[0] for momentum in (left, right, total))
        middle = total - (left + right) / 2
        return (jnp.dot(left, middle) <= 0) | (jnp.dot(right, middle) <= 0)

    def scale(position, element, *, inv, trans):
        raise NotImplementedError("scaling by the metric is not implemented: no algorithm used here needs it")

    def draw(key, position):
        return draw_momentum(noise, position, masses)

    return Metric(draw, KineticEnergy(masses), is_turning, scale)


def stiefel_integrator(density: Callable, drift: str, stages: int) -> Callable:
    """BlackJAX's ``integrator(logdensity_fn, kinetic_energy) -> one_step(state, step_size)``, for this density."""
    shares = STAGES[stages]
    value_and_grad = jax.value_and_grad(density)

    def flow(part, time, c, w):
        return DRIFTS["cayley" if w is None else drift](*part, time, c, w)

    def kick(masses, parts, momentum, grad, time):
        moved = []
        for (X, A, B), G, w in zip(parts, grad.X, masses.w, strict=True):
            dA, dB = tangent(X, G, w)
            moved.append((X, A + time * dA, complement(X, B + time * dB)))
        return moved, momentum + time * apply_root_transposed(masses.L, grad.z)

    @jax.jit  # traced once for all places where BlackJAX calls it
    def step(masses: Masses, state: IntegratorState, step_size: Any) -> IntegratorState:
        (matrices, z), (whitened, momentum), logp, grad = state
        parts = []
        for X, r, c, w in zip(matrices, whitened, masses.c, masses.w, strict=True):
            A, B = tangent(X, r, w)
            parts.append((X, A if w is None else A / jnp.sqrt(w), B / jnp.sqrt(c)[..., None, :]))
        parts, momentum = kick(masses, parts, momentum, grad, step_size * shares[0])

        def stage(carry, times):
            parts, z, momentum, _, grad = carry
            drift_time, kick_time = step_size * times[0], step_size * times[1]
            parts = [flow(part, drift_time, c, w) for part, c, w in zip(parts, masses.c, masses.w, strict=True)]
            z = z + drift_time * apply_root(masses.L, momentum)
            logp, grad = value_and_grad(Position(tuple(X for X, _, _ in parts), z))
            parts, momentum = kick(masses, parts, momentum, grad, kick_time)
            return (parts, z, momentum, logp, grad), None

        # a loop even over two stages, so that the program has one density and drift and compiles in half the time
        times = jnp.asarray(shares[1:], z.dtype).reshape(-1, 2)
        (parts, z, momentum, logp, grad), _ = jax.lax.scan(stage, (parts, z, momentum, logp, grad), times)
        whitened = tuple(
            (0.0 if w is None else X @ (jnp.sqrt(w) * A)) + B * jnp.sqrt(c)[..., None, :]
            for (X, A, B), c, w in zip(parts, masses.c, masses.w, strict=True)
        )
        position = Position(tuple(X for X, _, _ in parts), z)
        return IntegratorState(position, Position(whitened, momentum), logp, grad)

    def integrator(_, kinetic_energy):
        return lambda state, step_size: step(kinetic_energy.masses, state, step_size)

    return integrator
