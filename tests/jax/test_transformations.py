"""oSGHMC as an optax transformation, and the ensemble helper."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
pytest.importorskip("blackjax")
import jax.numpy as jnp  # noqa: E402

import pymc_stiefel as pst  # noqa: E402
from pymc_stiefel import geometry  # noqa: E402
from pymc_stiefel.normalizers import log_hyp0f1  # noqa: E402

F = 3.0 * np.eye(5, 2)
CHAINS = 400


def run(transformation, loss, params, steps, kept=1):
    """Chains under ``vmap``: the mean over steps of ``-loss``, chain by chain, and the last parameters."""

    def step(carry, _):
        params, state = carry
        updates, state = transformation.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), -loss(params)

    def chain(params, seed):
        state = transformation.init(params)
        state = jax.tree.map(lambda x: x, state)._replace(key=jax.random.PRNGKey(seed))
        (params, _), values = jax.lax.scan(step, (params, state), None, steps)
        return values[steps // 4 :].mean(), params

    return jax.jit(jax.vmap(chain))(params, jnp.arange(CHAINS))


def langevin_mean(scale):
    s = np.array([3.0, 3.0]) * scale
    return float(np.array([3.0, 3.0]) @ log_hyp0f1(5, s)[1])


def starts():
    with jax.enable_x64(True):
        return jax.vmap(lambda seed: pst.jax.orthonormal_like(jnp.zeros((5, 2)), seed))(jnp.arange(CHAINS))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_law_is_the_posterior_to_the_power_one_over_temperature(temperature):
    with jax.enable_x64(True):
        means, last = run(pst.jax.osghmc(0.4, temperature=temperature), lambda X: -jnp.sum(F * X), starts(), 400)
        assert geometry.orthogonality_error(np.asarray(last)).max() < 1e-12
        z = (means.mean() - langevin_mean(1 / temperature)) / (means.std() / np.sqrt(CHAINS))
        assert abs(z) < 4.5, z
        wrong = (means.mean() - langevin_mean(1.2 / temperature)) / (means.std() / np.sqrt(CHAINS))
        assert abs(wrong) > 6  # the test would see a temperature that is off by a fifth


def test_noise_of_the_gradients_is_taken_off():
    """A noisy gradient heats the chain; noise_estimate takes most of that off."""
    eps, noise = 0.2, 4.0
    key = jax.random.PRNGKey(3)

    def noisy(estimate):
        transformation = pst.jax.osghmc(eps, noise_estimate=estimate)

        def step(carry, k):
            X, state = carry
            grads = -F + noise * jax.random.normal(jax.random.fold_in(state.key, 10_000_000 + k), X.shape)
            updates, state = transformation.update(grads, state, X)
            return (X + updates, state), jnp.sum(F * X)

        def chain(X, seed):
            state = transformation.init(X)._replace(key=jax.random.fold_in(key, seed))
            return jax.lax.scan(step, (X, state), jnp.arange(400))[1][100:].mean()

        return float(jax.jit(jax.vmap(chain))(starts(), jnp.arange(CHAINS)).mean())

    with jax.enable_x64(True):
        exact = langevin_mean(1.0)
        left_out, taken_off = abs(noisy(0.0) - exact), abs(noisy(eps**2 * noise**2 / 10) - exact)
    assert taken_off < left_out / 4


def test_ordinary_parameters_have_the_right_variance():
    with jax.enable_x64(True):
        transformation = pst.jax.sghmc(0.5, friction=0.3)
        _, last = run(transformation, lambda x: jnp.sum(0.5 * x**2), jnp.zeros((CHAINS, 20)), 60)
    assert float(jnp.var(last)) == pytest.approx(1.0, abs=0.06)


def test_single_precision_stays_orthonormal():
    X = pst.jax.orthonormal_like(jnp.zeros((30, 5), jnp.float32), seed=1)
    transformation = pst.jax.osghmc(jnp.float32(0.5))

    def step(_, carry):
        X, state = carry
        updates, state = transformation.update(jnp.ones_like(X), state, X)
        return optax.apply_updates(X, updates), state

    X, _ = jax.jit(lambda carry: jax.lax.fori_loop(0, 100_000, step, carry))((X, transformation.init(X)))
    assert X.dtype == jnp.float32
    assert geometry.orthogonality_error(np.asarray(X, dtype=float)) < 1e-6


def test_partition_kernels_and_checkpoints(tmp_path):
    params = {
        "conv": pst.jax.orthonormal_like(jnp.zeros((3, 3, 2, 4)), seed=1),
        "wide": pst.jax.orthonormal_like(jnp.zeros((3, 8)), seed=2),
        "bias": jnp.zeros(8),
    }
    kinds = {"conv": "stiefel", "wide": "stiefel", "bias": "free"}
    schedule = pst.jax.CyclicalSchedule(0.3, length=10)
    parts = {
        "stiefel": pst.jax.for_kernels(pst.jax.osghmc(schedule, temperature=schedule.temperature)),
        "free": pst.jax.sghmc(0.1),
    }
    transformation = optax.partition(parts, kinds)

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: sum(jnp.sum(jnp.sin(x)) for x in p.values()))(params)
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = transformation.init(params)
    for _ in range(12):
        params, state = step(params, state)
    leaves, tree = jax.tree.flatten((params, state))
    np.savez(tmp_path / "checkpoint.npz", *[np.asarray(leaf) for leaf in leaves])
    saved = np.load(tmp_path / "checkpoint.npz")
    resumed = jax.tree.unflatten(tree, [jnp.asarray(saved[name]) for name in saved.files])
    for _ in range(5):
        params, state = step(params, state)
        resumed = step(*resumed)
    for name, kernel in params.items():
        np.testing.assert_array_equal(kernel, resumed[0][name])
        if name != "bias":
            matrix = np.asarray(pst.jax.to_matrix(kernel), dtype=float)
            assert geometry.orthogonality_error(matrix) < 2e-6


def test_momentum_is_without_noise_and_finds_the_optimum():
    X = pst.jax.orthonormal_like(jnp.zeros((6, 2)), seed=1)
    transformation = pst.jax.momentum(0.4)
    state = transformation.init(X)
    step = jax.jit(lambda X, state: transformation.update(-jnp.asarray(np.eye(6, 2)), state, X))
    for _ in range(300):
        updates, state = step(X, state)
        X = X + updates
    np.testing.assert_allclose(X, np.eye(6, 2), atol=1e-5)


def test_cycles_explore_without_noise_and_then_sample():
    schedule = pst.jax.CyclicalSchedule(0.2, length=10, exploration=0.5, temperature_after=2.0)
    assert [float(schedule.temperature(k)) for k in (0, 4, 5, 9, 10)] == [0.0, 0.0, 2.0, 2.0, 0.0]
    assert float(schedule(10)) == pytest.approx(0.2)
    assert float(schedule(5)) ** 2 == pytest.approx(0.5 * 0.2**2)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"friction must be between 0 and 1, got 1\.5"):
        pst.jax.osghmc(0.1, friction=1.5)
    with pytest.raises(ValueError, match=r"noise_estimate .* 0.2"):
        pst.jax.osghmc(0.1, noise_estimate=0.2)
    with pytest.raises(ValueError, match=r"temperature must be .*got -1"):
        pst.jax.osghmc(0.1, temperature=-1)
    with pytest.raises(ValueError, match=r"params\['w'\] has shape \(2, 5\)"):
        pst.jax.osghmc(0.1).init({"w": jnp.zeros((2, 5))})
    with pytest.raises(ValueError, match="params"):
        transformation = pst.jax.momentum(0.1)
        transformation.update(jnp.eye(2), transformation.init(jnp.eye(2)))
    with pytest.raises(ValueError, match="two or more dimensions"):
        pst.jax.to_matrix(jnp.zeros(3))


def test_ensemble_scores():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4) / 2, size=4000)
    labels = np.array([rng.choice(4, p=row) for row in probabilities])
    logits = np.log(probabilities + 1e-12)
    fair = pst.jax.ensemble(lambda scale, x: scale * x, [1.0], logits, labels)
    assert fair.calibration_error < 0.03
    assert fair.log_score == pytest.approx(logits[np.arange(4000), labels].mean(), abs=1e-4)
    sure = pst.jax.ensemble(lambda scale, x: scale * x, [3.0, 3.0], logits, labels)
    assert sure.accuracy == fair.accuracy
    assert sure.calibration_error > 0.08
    assert sure.log_score < fair.log_score
    assert len(sure.member_accuracy) == 2
    mixed = pst.jax.ensemble(lambda scale, x: scale * x, [1.0, 3.0], logits, labels, batch_size=999)
    np.testing.assert_allclose(mixed.probabilities, (fair.probabilities + sure.probabilities) / 2, atol=1e-6)
    ax = mixed.plot_reliability()
    assert len(ax.lines) == 2
    with pytest.raises(ValueError, match="members is empty"):
        pst.jax.ensemble(lambda scale, x: x, [], logits, labels)
    with pytest.raises(ValueError, match="labels must have shape"):
        pst.jax.ensemble(lambda scale, x: x, [1.0], logits, labels[:-1])


SHARDED = """
import re, jax, jax.numpy as jnp, numpy as np, optax, pymc_stiefel as pst
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",)); assert len(jax.devices()) == 4
transformation = pst.jax.osghmc(0.1)
import sys; assert not jax.config.jax_enable_x64 and "blackjax" not in sys.modules  # networks stay as they are
def step(X, state, rows):
    loss = lambda X: jnp.mean((rows @ X) ** 2)
    updates, state = transformation.update(jax.grad(loss)(X), state, X)
    return optax.apply_updates(X, updates), state
X = pst.jax.orthonormal_like(jnp.zeros((64, 4)), seed=1); state = transformation.init(X)
rows = jax.random.normal(jax.random.key(0), (400, 64))
one = jax.jit(step)(X, state, rows)[0]
spread = jax.device_put(rows, NamedSharding(mesh, P("d")))
whole = lambda tree: jax.device_put(tree, NamedSharding(mesh, P()))
program = jax.jit(step).lower(whole(X), whole(state), spread).compile()
text = program.as_text()
assert len(re.findall(r" all-reduce(-start)?\\(", text)) == 1 and "all-gather" not in text, text
np.testing.assert_allclose(program(whole(X), whole(state), spread)[0], one, atol=1e-6)
by_rows = NamedSharding(mesh, P("d", None))
def local(X, state, G):
    updates, state = transformation.update(G, state, X)
    return optax.apply_updates(X, updates), state
A, B = state.momentum
X2 = jax.device_put(X, by_rows)
state2 = whole(state)._replace(momentum=(whole(A), jax.device_put(B, by_rows)))
G = jax.device_put(jnp.ones_like(X), by_rows)
results = (by_rows, jax.tree.map(lambda x: x.sharding, state2))
program = jax.jit(local, out_shardings=results).lower(X2, state2, G).compile()
assert "all-gather" not in program.as_text()
np.testing.assert_allclose(program(X2, state2, G)[0], local(X, state, jnp.ones_like(X))[0], atol=1e-6)
print("sharded")
"""


def test_sharded_data_need_one_all_reduce_and_sharded_rows_no_all_gather():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "sharded", done.stderr[-3000:]
