"""Shared by the JAX examples: passes through data, transformations of whole networks, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pymc_stiefel as pst


class Chain(NamedTuple):
    """The state of a run, enough to continue it: parameters, the optimiser's or sampler's state, and the random key."""

    params: Any
    state: Any
    key: Any


def transformation_of(params: dict, step_size: Any, *, free: float = 0.1, **settings: Any) -> Any:
    """oSGHMC for the kernels in ``params["orthogonal"]``, SGHMC with ``free`` times their step size for the rest."""

    def scaled(count):
        return free * (step_size(count) if callable(step_size) else step_size)

    kinds = {name: "stiefel" if name == "orthogonal" else "free" for name in params}
    parts = {
        "stiefel": pst.jax.for_kernels(pst.jax.osghmc(step_size, **settings)),
        "free": pst.jax.sghmc(scaled, **settings),
    }
    return optax.partition(parts, kinds)


def cosine(largest: float, steps: int) -> Callable:
    """Step sizes whose squares, the learning rates, fall to zero along a cosine."""
    return lambda count: largest * jnp.cos(0.5 * jnp.pi * jnp.minimum(count / steps, 1.0))


def pass_of(
    loss: Callable, transformation: Any, batch_size: int, augment: Callable | None = None, scan: bool = True
) -> Callable:
    """One pass through the data in random order, or ``steps`` of it.

    ``loss(params, x, y)`` is the mean over a batch of minus the log likelihood, minus the log prior divided by the
    number of rows of all data. The transformations need the sum over the data; without it the temperature is wrong.
    With ``scan`` the pass is one compiled program, without it each step is one. Convolutions need the latter on CPUs:
    inside a loop, XLA falls back to a kernel that is 25 times slower.
    """

    def step(carry: tuple, key: Any, x: Any, y: Any, batch: Any) -> tuple[tuple, Any]:
        params, state = carry
        inputs = x[batch]
        if augment is not None:
            inputs = augment(jax.random.fold_in(key, batch[0]), inputs)
        value, grads = jax.value_and_grad(lambda p: len(x) * loss(p, inputs, y[batch]))(params)
        updates, state = transformation.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value / len(x)

    def run(chain: Chain, x: Any, y: Any, steps: int | None = None) -> tuple[Chain, Any]:
        key, order, noise = jax.random.split(chain.key, 3)
        steps = len(x) // batch_size if steps is None else steps
        rows = jax.random.permutation(order, len(x))[: steps * batch_size].reshape(steps, batch_size)
        if scan:
            carry, values = jax.lax.scan(lambda carry, batch: step(carry, noise, x, y, batch), chain[:2], rows)
            return Chain(*carry, key), values.mean()
        carry, values = chain[:2], []
        for batch in rows:
            carry, value = compiled_step(carry, noise, x, y, batch)
            values.append(value)
        return Chain(*carry, key), jnp.stack(values).mean()

    compiled_step = jax.jit(step, donate_argnums=0)
    return jax.jit(run, static_argnums=3, donate_argnums=0) if scan else run


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def squares(tree: Any) -> Any:
    """Half the sum of squares: minus the log density of standard normal priors."""
    return 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))


def orthogonality_error(kernels: Any) -> float:
    """Largest entry of ``|X'X - I|``."""
    matrices = [np.asarray(pst.jax.to_matrix(kernel), dtype=float) for kernel in jax.tree.leaves(kernels)]
    return max(float(np.abs(X.T @ X - np.eye(X.shape[1])).max()) for X in matrices)


def save(path: Path, tree: Any) -> None:
    """Write the arrays of a tree, atomically, so that an interrupted run leaves a complete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, *[np.asarray(leaf) for leaf in jax.tree.leaves(tree)])
    part.replace(path)


def load(path: Path, like: Any) -> Any:
    """Read what :func:`save` wrote, into the shape of ``like``."""
    with np.load(path) as saved:
        return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(saved[name]) for name in saved.files])
