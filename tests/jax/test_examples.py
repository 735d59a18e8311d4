"""The network examples run, and their networks do what the examples say."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import correlate2d

jax = pytest.importorskip("jax")
pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

from tests import ROOT  # noqa: E402

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def run(name, *arguments):
    """What an example prints as ``quantity: number``."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py"), "--quick", *arguments]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    return {name: float(value) for name, value in re.findall(r"^(.*?): (-?\d[\d.e-]*)", text, flags=re.MULTILINE)}


def test_orthogonal_mlp(tmp_path):
    arguments = ["--output", str(tmp_path / "mlp.png"), "--state", str(tmp_path)]
    found = run("mnist_orthogonal_mlp", *arguments)
    assert found["ensemble minus single, log score"] > 0
    assert found["ensemble, accuracy"] > 85
    assert found["orthogonality error"] < 2e-6
    again = run("mnist_orthogonal_mlp", *arguments)  # reads all of it from where it was saved
    assert again == {name: value for name, value in found.items() if name in again} and len(again) >= 10


def test_low_rank_mlp(tmp_path):
    found = run("low_rank_mlp", "--output", str(tmp_path / "curves.png"))
    assert found["test accuracy, svd"] > 85
    assert found["training accuracy, svd"] > found["test accuracy, svd"]


def test_recurrent_network(tmp_path):
    """The orthogonal network solves the problem, the ordinary one does not: 1/6 is the error of a constant."""
    found = run("recurrent", "--output", str(tmp_path / "rnn.png"))
    assert found["squared error, orthogonal"] < 0.02
    assert found["squared error, ordinary (tanh)"] > 0.12
    assert found["squared error, mean of the posterior"] < found["squared error, one draw"]
    assert found["orthogonality error"] < 2e-6


@pytest.fixture
def small_vgg(monkeypatch):
    """The module of the example, for a network with two convolutions."""
    import orthogonal_vgg

    monkeypatch.setattr(orthogonal_vgg, "VGG", (32, 0, 48, 0))
    return orthogonal_vgg


def test_vgg_that_was_stopped_goes_on_as_if_it_had_not(small_vgg, tmp_path):
    images, validation = small_vgg.with_validation(small_vgg.load_cifar(None))

    def advance(folder, segments):
        options = SimpleNamespace(state=tmp_path / folder, weights="orthogonal", width=0.25, seed=1)
        run = small_vgg.Run(images, validation, options)
        run.params["last"] = jnp.zeros((8 * 8 * 12, 10), jnp.float32)
        transformation = small_vgg.transformation_of(run.params, 0.01, seed=1)
        return run.advance("draw", transformation, run.params, segments, steps=2)

    advance("stopped", 1)
    whole, resumed = advance("whole", 3), advance("stopped", 3)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


def test_convolutions_of_vgg_are_those_of_scipy(small_vgg, monkeypatch):
    monkeypatch.setattr(small_vgg, "VGG", (32, 0, 48))
    params = small_vgg.start(0.125, "orthogonal", seed=1)
    rng = np.random.default_rng(1)

    def normal(*shape):  # single precision, whatever other tests have set
        return rng.standard_normal(shape).astype("float32")

    params["last"] = normal(2 * 3 * 6, 10)
    params["biases"] = [normal(*b.shape) for b in params["biases"]]
    x = normal(2, 4, 6, 3)
    for image, logits in zip(x, small_vgg.network(params, x), strict=True):
        for k, (kernel, bias) in enumerate(zip(params["orthogonal"], params["biases"][:-1], strict=True)):
            sums = [
                sum(correlate2d(image[..., i], kernel[..., i, o], mode="same") for i in range(kernel.shape[2]))
                for o in range(kernel.shape[3])
            ]
            image = np.maximum(2**0.5 * np.stack(sums, axis=-1) + bias, 0)
            if k == 0:
                image = image.reshape(2, 2, 3, 2, -1).max(axis=(1, 3))
        np.testing.assert_allclose(image.ravel() @ params["last"] + params["biases"][-1], logits, atol=1e-4)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path):
    from training import Chain, load, pass_of, save, transformation_of

    import pymc_stiefel as pst

    x = jax.random.normal(jax.random.PRNGKey(1), (64, 6))
    params = {"orthogonal": pst.jax.orthonormal_like(jnp.zeros((6, 3)), seed=1), "free": jnp.zeros(3)}
    transformation = transformation_of(params, 0.1)
    epoch = pass_of(lambda p, x, y: jnp.mean((x @ p["orthogonal"] + p["free"] - y) ** 2), transformation, 16)
    chain = Chain(params, transformation.init(params), jax.random.PRNGKey(2))
    chain, _ = epoch(chain, x, x[:, :3])
    save(tmp_path / "run" / "checkpoint.npz", chain)
    whole, _ = epoch(chain, x, x[:, :3])
    resumed, _ = epoch(load(tmp_path / "run" / "checkpoint.npz", whole), x, x[:, :3])
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
