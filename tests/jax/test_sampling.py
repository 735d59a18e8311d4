"""pst.jax.sample: arguments, draws against known expectations, and samplers that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import Chain, log, ordered

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pymc_stiefel as pst  # noqa: E402
from pymc_stiefel.jax import _integrator, _sample  # noqa: E402
from pymc_stiefel.jax._density import JaxDensity  # noqa: E402
from pymc_stiefel.normalizers import log_hyp0f1  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")


def test_chees_steps_are_equal_parts_of_the_trajectory():
    """With a flat density nothing limits the step size, and it would become larger than the trajectory."""
    with pm.Model():
        pst.UnitVector("u", n=6)
        idata = pst.jax.sample(
            50, tune=200, chains=64, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    assert float(idata["sample_stats"]["step_size"][0, 0]) < 6
    u = np.asarray(idata["posterior"]["u"])
    again = (u[:, 1:] ** 2 * u[:, :-1] ** 2).mean() - 1 / 36
    assert again < 0.2 * ((u**4).mean() - 1 / 36)  # a step of any length would halve the deviation of a square


# ---------------------------------------------------------------- arguments


def test_bad_arguments_are_named():
    with pm.Model():
        pst.UnitVector("u", n=3)
        for given, message in [
            ({"algorithm": "gibbs"}, "algorithm must be one of .* 'gibbs'"),
            ({"drift": "qr"}, "drift must be one of .* 'qr'"),
            ({"chain_method": "parallel"}, "chain_method must be one of .* 'parallel'"),
            ({"target_accept": 1.5}, "target_accept must be between 0 and 1, got 1.5"),
            ({"draws": 0}, "draws must be at least 1, got 0"),
            ({"superchains": 5, "chains": 8}, "superchains=5"),
            ({"var_names": ["w"]}, r"var_names has \['w'\]"),
            ({"random_seed": -1}, "random_seed"),
            ({"initvals": {"no_such": 1.0}}, "initvals has"),
            ({"progressbar": 3}, "progressbar must be True or False"),
            ({"superchains": 2.5, "chains": 8}, "superchains must be an integer"),
            ({"idata_kwargs": {"group": 1}, "draws": 2, "tune": 0, "chains": 8}, "group"),
        ]:
            with pytest.raises((TypeError, ValueError), match=message):
                pst.jax.sample(**{"progressbar": False, "compute_convergence_checks": False, **given})


def test_discrete_variables_and_minibatches_are_refused():
    with pm.Model():
        pst.UnitVector("u", n=3)
        pm.Bernoulli("switch", 0.5)
        with pytest.raises(ValueError, match="switch is discrete"):
            pst.jax.sample(progressbar=False)
    with pm.Model():
        u = pst.UnitVector("u", n=3)
        pm.Normal("y", u[0], observed=pm.Minibatch(np.zeros(100), batch_size=10), total_size=100)
        with pytest.raises(ValueError, match="Minibatch"):
            pst.jax.sample(progressbar=False)


def test_the_package_does_not_import_jax_and_leaves_flags_alone():
    code = (
        "import sys, os, pymc_stiefel as pst; assert 'jax._src' not in sys.modules; "
        "before = dict(os.environ); pst.jax.sample; assert os.environ.get('XLA_FLAGS') == before.get('XLA_FLAGS'); "
        "assert 'pymc.sampling.jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for missing, used in (("blackjax", "pst.jax.sample"), ("optax", "pst.jax")):
        hidden = f"import sys; sys.modules['{missing}'] = None; import pymc_stiefel as pst; {used}"
        failed = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
        assert f"needs {missing}: pip install 'pymc-stiefel[jax]'" in failed.stderr


def test_starts_of_the_user_are_not_jittered():
    with pm.Model() as model:
        pst.StiefelUniform("X", n=4, p=2)
        pm.HalfNormal("scale", 1.0)
        pm.Normal("z")
    X = pst.geometry.polar(np.random.default_rng(1).normal(size=(4, 2)))
    given = {"X": X, "scale_log__": np.log(0.7)}
    for initvals in (given, [given, given, None]):
        starts = _sample._starts(model, initvals, 3, np.random.default_rng(1))[1].position
        np.testing.assert_allclose(starts.X[0][:2], [X, X], atol=1e-12)
        np.testing.assert_allclose(starts.z[:2, 0], np.log(0.7))
        assert len(set(np.asarray(starts.z[:, 1]))) == 3


# ---------------------------------------------------------------- draws

F = np.array([[2.0, 0], [0, 1], [0.5, 0], [0, 0], [0, 0]])
TURN = np.diag([1.5, 1.0, -1.2])
TILT = np.array([[1.0, 0.3, 0], [0, 1, 0], [0.5, 0, -0.7]])


def many_variables():
    """Independent variables of every kind, with known expectations."""
    with pm.Model(coords={"row": list("abcde"), "pair": [0, 1]}) as model:
        X = pst.MatrixLangevin("X", F=F, dims=("row", "pair"))
        R = pst.MatrixLangevin("R", F=TURN, initval=np.eye(3))
        kappa = pm.Gamma("kappa", 4, 1)
        v = pst.VonMisesFisher("v", mu=np.array([0.0, 0, 1]), kappa=kappa)
        spread = pm.Gamma("spread", 3, 1)
        pst.MatrixBingham("axis", A=spread * np.diag([2.0, 0.5, 0]), p=1)
        pst.UnitVector("U", n=3, size=2)
        S = pst.SpecialOrthogonal("S", n=3)
        pm.Potential("tilt", pt.sum(TILT * S))
        pm.LogNormal("scale", 0, 0.5, shape=2, default_transform=Chain([log, ordered]), initval=[1.0, 2.0])
        pm.Deterministic("along", pt.sum(F * X))
        pm.Deterministic("turned", pt.sum(TURN * R))
        pm.Deterministic("leaning", pt.sum(TILT * S))
        pm.Deterministic("towards", v[2] * kappa)
    return model


def expectations():
    def langevin(M):
        s = np.linalg.svd(M, compute_uv=False)
        return float(s @ log_hyp0f1(len(M), s)[1])

    rng = np.random.default_rng(0)
    rotations = np.array([pst.geometry.rotation(rng.normal(size=(3, 3))) for _ in range(60_000)])
    lean = (TILT * rotations).sum((-2, -1))
    weights = np.exp(lean)
    kappas = rng.gamma(4, size=400_000)
    return {
        "along": (langevin(F), 0.0),
        "turned": (langevin(TURN), 0.0),
        "leaning": (np.average(lean, weights=weights), lean.std() / 170),
        "kappa": (4.0, 0.0),
        "spread": (3.0, 0.0),
        "towards": (np.mean(kappas / np.tanh(kappas) - 1), 0.003),
        "scale": (np.exp(0.125), 0.0),
        "U": (0.0, 0.0),
    }


def largest_z(idata):
    """Of the expectations, by the means of independent chains."""
    found = {}
    for name, (expected, error) in expectations().items():
        values = np.asarray(idata["posterior"][name])
        means = values.reshape(values.shape[0], -1).mean(axis=1)
        found[name] = (means.mean() - expected) / np.hypot(means.std(ddof=1) / np.sqrt(len(means)), error)
    return found


def run(algorithm, **more):
    with many_variables():
        return pst.jax.sample(
            200, tune=200, chains=64, algorithm=algorithm, random_seed=5, progressbar=False,
            compute_convergence_checks=False, **more,
        )  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("drift", ["auto", "cayley"])
@pytest.mark.parametrize("algorithm", ["chees", "nuts"])
def test_expectations(algorithm, drift):
    idata = run(algorithm, drift=drift)
    found = largest_z(idata)
    assert max(map(abs, found.values())) < 4.5, found
    stats = idata["sample_stats"]
    assert float(stats["orthogonality_error"].max()) < 1e-12
    assert {"lp", "acceptance_rate", "diverging", "energy", "n_steps", "tree_depth"} <= set(stats.data_vars)
    assert idata["posterior"]["X"].dims == ("chain", "draw", "row", "pair")
    assert list(idata["posterior"]["X"].coords["row"].values) == list("abcde")
    determinants = np.linalg.det(np.asarray(idata["posterior"]["S"]))
    np.testing.assert_allclose(determinants, 1.0, atol=1e-9)
    if algorithm == "chees" and drift == "auto":
        again = run(algorithm, drift=drift)
        np.testing.assert_array_equal(again["posterior"]["X"], idata["posterior"]["X"])


@pytest.mark.integration
def test_control_momentum_of_another_law_is_found(monkeypatch):
    def draw_momentum(key, position, masses):
        true = _integrator.Position(*original(key, position, masses))
        return true._replace(X=tuple(1.3 * r for r in true.X))

    original = _integrator.draw_momentum
    monkeypatch.setattr(_integrator, "draw_momentum", draw_momentum)
    found = largest_z(run("chees"))
    assert max(abs(found["along"]), abs(found["turned"]), abs(found["leaning"])) > 6, found


@pytest.mark.integration
def test_control_missing_reflection_is_found(monkeypatch):
    monkeypatch.setattr(JaxDensity, "reflected", property(lambda self: []))
    found = largest_z(run("chees"))
    assert abs(found["turned"]) > 6, found


@pytest.mark.integration
def test_superchains_chunks_data_and_likelihood(caplog):
    with pm.Model(coords={"row": list("abc")}) as model:
        data = pm.Data("data", np.array([0.3, -0.1, 0.2]), dims="row")
        u = pst.UnitVector("u", n=3, dims="row")
        pm.Normal("y", u, 0.5, observed=data, dims="row")
        idata = pst.jax.sample(
            23, tune=60, chains=32, superchains=4, random_seed=1, idata_kwargs={"log_likelihood": True}
        )
        model.set_data("data", np.array([3.0, 0.0, 0.0]))
        moved = pst.jax.sample(30, tune=60, chains=16, random_seed=1, progressbar=False, var_names=["u"])
    assert idata["posterior"]["u"].shape == (32, 23, 3)
    assert idata["log_likelihood"]["y"].shape == (32, 23, 3)
    assert idata["posterior"].attrs["nested_r_hat_lp"] < 1.2
    np.testing.assert_array_equal(idata["observed_data"]["y"], [0.3, -0.1, 0.2])
    assert float(moved["posterior"]["u"][..., 0].mean()) > 0.8
    np.testing.assert_allclose((np.asarray(idata["posterior"]["u"]) ** 2).sum(-1), 1.0, atol=1e-12)


SUBPROCESS = """
import sys, numpy as np, pymc as pm, pymc_stiefel as pst, jax
with pm.Model():
    X = pst.MatrixLangevin("X", F=3 * np.eye(5, 2)); s = pm.HalfNormal("s", 1.0)
    idata = pst.jax.sample(100, tune=60, chains=16, random_seed=1, progressbar=False, chain_method=sys.argv[1],
                           compute_convergence_checks=False)
print(len(jax.devices()), np.asarray(idata["posterior"]["X"]).dtype)
np.savez(sys.argv[2], X=idata["posterior"]["X"], error=idata["sample_stats"]["orthogonality_error"])
"""


def elsewhere(tmp_path, name, method, **environment):
    path = tmp_path / f"{name}.npz"
    command = [sys.executable, "-W", "ignore", "-c", SUBPROCESS, method, str(path)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), np.load(path)


@pytest.mark.integration
def test_sharded_chains_are_the_same_chains(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    (devices, _), sharded = elsewhere(tmp_path, "sharded", "sharded", **flags)
    _, one = elsewhere(tmp_path, "one", "vectorized")
    assert devices == "4"
    np.testing.assert_allclose(sharded["X"][:, :20], one["X"][:, :20], atol=1e-5)


@pytest.mark.integration
def test_single_precision_is_right_to_its_precision(tmp_path):
    (_, dtype), found = elsewhere(tmp_path, "single", "vectorized", PYTENSOR_FLAGS="floatX=float32")
    assert dtype == "float32"
    assert found["error"].max() < 1e-6
    means = found["X"][..., 0, 0].mean(axis=1)
    s = np.array([3.0, 3.0])
    assert abs(means.mean() - log_hyp0f1(5, s)[1][0]) < 4.5 * means.std(ddof=1) / 4


@pytest.mark.integration
@pytest.mark.parametrize("flips", [True, False])
def test_modes_that_differ_by_a_sign_have_their_weights(flips, monkeypatch):
    """Two modes at the ends of the first axis, with weights 0.2 and 0.8, which trajectories do not cross."""
    if not flips:  # the control: all chains stay where they started
        monkeypatch.setattr(JaxDensity, "flipped", property(lambda self: []))
    with pm.Model():
        u = pst.UnitVector("u", n=3)
        pm.Potential("modes", pm.math.logaddexp(np.log(0.2) - 60 * u[0], np.log(0.8) + 60 * u[0]))
        idata = pst.jax.sample(
            200, tune=300, chains=50, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    share = (np.asarray(idata["posterior"]["u"])[..., 0] > 0).mean(axis=1)
    if flips:
        assert abs(share.mean() - 0.8) < 4.5 * share.std(ddof=1) / np.sqrt(50)
    else:
        assert set(share) == {0.0, 1.0}


def subspace_z(algorithm, patch=None):
    """Standardised errors of the first two moments of a projector against importance sampling."""
    scale = np.linspace(3.0, 0.0, 4)
    with pm.Model():
        U = pst.Grassmann("U", n=4, p=2)
        pm.Potential("likelihood", ((U @ U.T) * np.diag(scale)).sum())
        idata = pst.jax.sample(
            400, tune=300, chains=64, algorithm=algorithm, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    draws = (np.asarray(idata["posterior"]["U"]) ** 2).sum(-1)
    exact = (np.linalg.qr(np.random.default_rng(2).normal(size=(400_000, 4, 2)))[0] ** 2).sum(-1)
    weight = np.exp(exact @ scale)
    weight /= weight.sum()
    found = []
    for power in (1, 2):
        mean = weight @ exact**power
        error = np.sqrt(weight**2 @ (exact**power - mean) ** 2)
        chains = (draws**power).mean(axis=1)
        found.append((chains.mean(0) - mean) / np.hypot(chains.std(0, ddof=1) / np.sqrt(len(chains)), error))
    return np.abs(found).max(), idata


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ["chees", "nuts"])
def test_subspaces(algorithm):
    z, idata = subspace_z(algorithm)
    assert z < 4.5
    assert float(idata["sample_stats"]["orthogonality_error"].max()) < 1e-12
    assert float(idata["sample_stats"]["n_steps"].mean()) < 60


@pytest.mark.integration
def test_control_subspaces_with_a_momentum_of_another_law(monkeypatch):
    original = _integrator.draw_momentum

    def draw_momentum(key, position, masses):
        true = original(key, position, masses)
        return true._replace(X=tuple(1.3 * r for r in true.X))

    monkeypatch.setattr(_integrator, "draw_momentum", draw_momentum)
    assert subspace_z("chees")[0] > 6


def test_a_density_of_more_than_the_subspace_is_refused():
    with pm.Model():
        U = pst.Grassmann("U", n=4, p=2)
        pm.Potential("likelihood", U[0, 0])
        with pytest.raises(ValueError, match="columns of U are rotated"):
            pst.jax.sample(5, tune=5, chains=2, algorithm="nuts", random_seed=1, progressbar=False)
