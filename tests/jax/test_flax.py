"""The transformations serve a Flax network, and a checkpoint of orbax continues its chain."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
linen = pytest.importorskip("flax.linen")
orbax = pytest.importorskip("orbax.checkpoint")
import jax.numpy as jnp  # noqa: E402

import pymc_stiefel as pst  # noqa: E402
from pymc_stiefel import geometry  # noqa: E402


class Network(linen.Module):
    """A convolution, a dense layer and a head."""

    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Conv(8, (3, 3), use_bias=False, name="conv")(x))
        x = linen.relu(linen.Dense(16, name="dense")(x.reshape(len(x), -1)))
        return linen.Dense(2, name="head")(x)


def kind(path, _):
    """Kernels of hidden layers are orthonormal, all other parameters free."""
    layer, parameter = (key.key for key in path)
    return "orthonormal" if parameter == "kernel" and layer != "head" else "free"


@pytest.fixture
def problem():
    """Parameters, transformation and a compiled step: is the left half of an image brighter than the right?"""
    network = Network()
    x = jax.random.normal(jax.random.PRNGKey(1), (300, 6, 6, 1))
    y = jnp.asarray(x[:, :, :3].sum((1, 2, 3)) > x[:, :, 3:].sum((1, 2, 3)), dtype=int)
    params = network.init(jax.random.PRNGKey(2), x)["params"]
    kinds = jax.tree.map_with_path(kind, params)
    params = jax.tree.map(lambda w, k: pst.jax.orthonormal_like(w, 3) if k == "orthonormal" else w, params, kinds)
    parts = {"orthonormal": pst.jax.for_kernels(pst.jax.osghmc(0.05)), "free": pst.jax.sghmc(0.05)}
    transformation = optax.partition(parts, kinds)

    def loss(params):
        logits = network.apply({"params": params}, x)
        prior = 0.5 * sum(jnp.sum(w**2) for w in jax.tree.leaves(params))
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y).sum() + prior

    @jax.jit
    def step(params, state):
        updates, state = transformation.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    def predict(params, x):
        return network.apply({"params": params}, x)

    return params, transformation.init(params), step, predict, (x, y)


def matrices(params):
    return [np.asarray(pst.jax.to_matrix(params[layer]["kernel"]), dtype=float) for layer in ("conv", "dense")]


def test_flax_network_is_sampled(problem):
    params, state, step, predict, (x, y) = problem
    start, members = params, []
    for k in range(400):
        params, state = step(params, state)
        if k >= 200 and k % 20 == 0:
            members.append(params)
    found = pst.jax.ensemble(predict, members, x, y)
    assert found.accuracy > 0.9
    assert pst.jax.ensemble(predict, [start], x, y).accuracy < 0.7  # so the steps did it
    assert max(geometry.orthogonality_error(X).max() for X in matrices(params)) < 2e-6
    assert all(np.abs(X - X0).max() > 0.1 for X, X0 in zip(matrices(params), matrices(start), strict=True))


def test_orbax_checkpoint_continues_the_chain(problem, tmp_path):
    params, state, step, *_ = problem
    for _ in range(5):
        params, state = step(params, state)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "chain", (params, state))
        checkpointer.wait_until_finished()
        resumed = checkpointer.restore(tmp_path / "chain", (params, state))
    for _ in range(5):
        params, state = step(params, state)
        resumed = step(*resumed)
    for one, other in zip(jax.tree.leaves((params, state)), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
