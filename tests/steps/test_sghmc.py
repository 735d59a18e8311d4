"""OrthogonalSGHMC: minibatches, ``pm.sample``, statistics, bad input."""

import logging

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel.compile._density import ModelDensity
from tests.models import ppca_data

QUIET = {"progressbar": False, "compute_convergence_checks": False}


# ---------------------------------------------------------------- minibatches


def pca_data(N=400):
    return ppca_data(N=N)


def pca(Y, batch_size=None):
    """Probabilistic PCA with known noise, row by row: through minibatches or the whole data."""
    N, n = Y.shape
    with pm.Model() as model:
        U = pst.StiefelUniform("U", n=n, p=2)
        scale = pm.HalfNormal("scale", 5, shape=2)
        rows = pm.Data("rows", Y)
        rows = pm.Minibatch(rows, batch_size=batch_size) if batch_size else rows
        shrink = scale**2 / (scale**2 + 1)
        quadratic = pt.sum(rows**2) - pt.sum(shrink * (rows @ U) ** 2)
        weight = N / batch_size if batch_size else 1.0
        pm.Potential("likelihood", -0.5 * (N * pt.sum(pt.log(scale**2 + 1)) + weight * quadratic))
    return model


@pytest.fixture(scope="module")
def minibatch_model():
    return pca(pca_data(), batch_size=50)


def sample(model, draws=30, tune=20, chains=1, cores=1, seed=3, step=None, **kwargs):
    with model:
        step = step or pst.OrthogonalSGHMC(step_size=0.02, n_steps=5)
        return pm.sample(draws, tune=tune, chains=chains, cores=cores, random_seed=seed, step=step, **(QUIET | kwargs))


def test_rows_are_shared_within_a_call_and_scaled():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((100, 3)), rng.standard_normal(100)
    with pm.Model() as model:
        x_rows, y_rows = pm.Minibatch(pm.Data("X", X), y, batch_size=10)
        other = pm.Minibatch(np.arange(7.0), batch_size=3)
        u = pst.UnitVector("u", n=3)
        pm.Normal("y", x_rows @ u, 1.0, observed=y_rows, total_size=100)
        pm.Potential("other", other.sum())
    density = ModelDensity(model, model.value_vars, model.initial_point(), minibatches=True)
    assert sorted(density.batches.bounds[:, 2]) == [7, 100]
    q = np.array([1.0, 0.0, 0.0])
    for _ in range(3):
        density.draw_batches(rng)
        groups = {upper: density.batches.rows[first:last] for first, last, upper in density.batches.bounds}
        rows = groups[100]
        normal = -0.5 * np.sum((y[rows] - X[rows, 0]) ** 2 + np.log(2 * np.pi))
        assert density(q)[0] == pytest.approx(10 * normal + groups[7].sum())
        np.testing.assert_allclose(density(q)[1], 10 * (y[rows] - X[rows, 0]) @ X[rows])
    with model:
        pm.set_data({"X": X[:100] * 2})
    assert density.refresh()


def test_minibatch_posterior_is_that_of_the_whole_data():
    Y = pca_data()
    whole, parts = pca(Y), pca(Y, batch_size=100)

    def projector(idata):
        U = idata["posterior"]["U"].values
        return np.einsum("cdik,cdjk->cdij", U, U)

    exact = sample(whole, 2000, 500, step=pst.OrthogonalHMC(model=whole))
    step = pst.OrthogonalSGHMC(model=parts, step_size=0.004, friction=0.2, n_steps=60)
    noisy = sample(parts, 3000, 100, step=step)
    for one, two in [
        (projector(exact), projector(noisy)),
        (np.sort(exact["posterior"]["scale"].values), np.sort(noisy["posterior"]["scale"].values)),
    ]:
        sd = one.std(axis=(0, 1))
        assert np.all(np.abs(one.mean(axis=(0, 1)) - two.mean(axis=(0, 1))) < 0.25 * sd)
        assert np.all(np.abs(two.std(axis=(0, 1)) / sd - 1) < 0.2)
    assert noisy["sample_stats"]["temperature"].mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_same_seed_same_draws_in_every_process(minibatch_model, start):
    alone = sample(minibatch_model, chains=2)["posterior"]["U"].values
    together = sample(minibatch_model, chains=2, cores=2, mp_ctx=start)["posterior"]["U"].values
    np.testing.assert_array_equal(alone, together)
    assert not np.array_equal(alone[0, 0], alone[1, 0])


def test_noisy_gradients_do_not_collapse():
    """The paper's toy: M = QR for M normal with sigma = 1, gradients with noise of standard deviation 0.1."""
    n, p, rng = 3, 2, np.random.default_rng(1)
    mean = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=n, p=p)
        diagonal = pm.HalfFlat("diagonal", shape=p)
        upper = pm.Flat("upper")
        R = pt.stack([pt.stack([diagonal[0], upper]), pt.stack([pt.zeros(()), diagonal[1]])])
        pm.Potential("normal", -0.5 * pt.sum((Q @ R - mean) ** 2))
        pm.Potential("jacobian", pt.sum(pt.log(diagonal) * (n - 1 - np.arange(p))))
        # A linear term with random coefficients has the noise as its gradient.
        noise = pm.Minibatch(0.1 * rng.standard_normal((100_000, n * p + p + 1)), batch_size=1)[0]
        pm.Potential("noise", pt.sum(noise[:6] * Q.ravel()) + pt.sum(noise[6:8] * pt.log(diagonal)) + noise[8] * upper)
    step = pst.OrthogonalSGHMC(model=model, step_size=0.2, friction=0.1, n_steps=8)
    posterior = sample(model, 6000, 300, step=step)["posterior"]
    M = mean + rng.standard_normal((60_000, n, p))
    Q_true, R_true = np.linalg.qr(M)
    sign = np.sign(np.diagonal(R_true, axis1=1, axis2=2))
    Q_true, R_true = Q_true * sign[:, None], R_true * sign[..., None]
    pairs = [
        (posterior["Q"].values[0].reshape(-1, 6), Q_true.reshape(-1, 6)),
        (posterior["diagonal"].values[0], np.diagonal(R_true, axis1=1, axis2=2)),
        (posterior["upper"].values[0][:, None], R_true[:, 0, 1][:, None]),
    ]
    for sampled, direct in pairs:
        for k in range(sampled.shape[1]):
            levels = np.quantile(direct[:, k], [0.05, 0.25, 0.5, 0.75, 0.95])
            share = np.mean(sampled[:, k, None] < levels, axis=0)
            assert np.all(np.abs(share - [0.05, 0.25, 0.5, 0.75, 0.95]) < 0.045)


def test_state_saves_and_restores(minibatch_model):
    """Momentum, random numbers and rows of the batches continue where they were."""
    step = pst.OrthogonalSGHMC(model=minibatch_model, step_size=0.02, n_steps=3, rng=5)
    point = minibatch_model.initial_point(3)
    for _ in range(30):
        point, _ = step.step(point)
    saved = step.sampling_state
    other = pst.OrthogonalSGHMC(model=minibatch_model, step_size=0.02, n_steps=3, rng=6)
    runs = []
    for run in (step, other):
        run.sampling_state = saved
        here = point
        for _ in range(20):
            here, stats = run.step(here)
        runs.append((here["U_polar__"], here["scale_log__"], stats[0]["energy"]))
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_beside_a_discrete_variable():
    """PyMC gives the discrete variable a step of its own; each step sees what the other does."""
    kappa = np.array([1.0, 8.0])
    with pm.Model() as model:
        kind = pm.Bernoulli("kind", 0.3)
        u = pst.VonMisesFisher("u", mu=np.array([0.0, 0.0, 1.0]), kappa=pt.as_tensor(kappa)[kind])
        step = pst.OrthogonalSGHMC([u], step_size=0.25, friction=0.3, n_steps=8)
    posterior = sample(model, 6000, 100, step=step)["posterior"]
    kind, height = posterior["kind"].values[0], posterior["u"].values[0, :, 2]
    assert kind.mean() == pytest.approx(0.3, abs=0.04)
    for k in (0, 1):
        exact = 1 / np.tanh(kappa[k]) - 1 / kappa[k]
        assert height[kind == k].mean() == pytest.approx(exact, abs=0.05)


def test_single_precision():
    """The engine computes in double precision; the draws are rounded only when they are handed over."""
    with pytensor.config.change_flags(floatX="float32"):
        Y = pca_data().astype("float32")
        single = pca(Y, batch_size=200)
        idata = sample(single, 300, 100, step=pst.OrthogonalSGHMC(model=single, step_size=0.002, n_steps=50))
    posterior = idata["posterior"]
    assert posterior["U"].dtype == np.float32
    assert pst.orthogonality_error(posterior["U"]).max() < 1e-6
    assert idata["sample_stats"]["orthogonality_error"].max() < 1e-12
    assert idata["sample_stats"]["temperature"].mean() == pytest.approx(1, abs=0.1)


# ---------------------------------------------------------------- settings, statistics, warnings


def test_statistics_and_schedule(minibatch_model):
    step = pst.OrthogonalSGHMC(
        model=minibatch_model, step_size=pst.PolynomialDecay(0.02, power=0.5, after=10), n_steps=7
    )
    stats = sample(minibatch_model, step=step)["sample_stats"]
    assert np.all(stats["n_steps"].values == 7)
    np.testing.assert_allclose(stats["step_size"].values[0], 0.02 * (1 + np.arange(20, 50) / 10) ** -0.5)
    for name in ("temperature", "energy", "lp", "orthogonality_error"):
        assert np.all(np.isfinite(stats[name].values))
    assert not stats["diverging"].values.any()


def test_noise_estimate_cools():
    """The share of the gradients' noise that is owned up to leaves the temperature."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        u = pst.UnitVector("u", n=3)
        noise = pm.Minibatch(4.0 * rng.standard_normal((50_000, 3)), batch_size=1)[0]
        pm.Potential("target", 5.0 * u[0] + noise @ u)
    found = {}
    for beta in (0.0, 0.5 * 0.2**2 / 3 * 16):  # eps^2 c V / 2 with c = 1 / n
        step = pst.OrthogonalSGHMC(
            model=model, step_size=0.2, friction=0.3, noise_estimate=beta, n_steps=20, scheme="symmetric"
        )
        posterior = sample(model, 1500, 100, step=step)
        found[beta > 0] = float(posterior["sample_stats"]["temperature"].mean())
    assert found[False] > 1.2
    assert abs(found[True] - 1) < 0.05


def test_hot_chain_is_told(caplog):
    density_model = pca(pca_data())
    with caplog.at_level(logging.INFO, logger="pymc.stiefel"):
        step = pst.OrthogonalSGHMC(model=density_model, step_size=0.06, n_steps=20)
    assert "has no pm.Minibatch" in caplog.text
    with caplog.at_level(logging.WARNING):
        sample(density_model, 300, 50, step=step)
    assert caplog.text.count("kinetic temperature is") == 1


def test_divergence_keeps_the_draws(caplog):
    with pm.Model() as model:
        pst.UnitVector("u", n=3)
        pm.Normal("x", 0, 1e-3)
    with caplog.at_level(logging.WARNING):
        idata = sample(model, 20, 5, step=pst.OrthogonalSGHMC(model=model, step_size=0.1, n_steps=50))
    assert caplog.text.count("The chain diverged in draw 0, step") == 1
    assert idata["posterior"]["x"].shape == (1, 20)
    assert np.all(np.isfinite(idata["posterior"]["x"].values)) and idata["sample_stats"]["diverging"].values.all()


def test_scales_set_the_pace():
    with pm.Model() as model:
        pst.UnitVector("u", n=3)
        pm.Normal("x", 0, [1e-3, 1.0])
    step = pst.OrthogonalSGHMC(model=model, step_size=0.3, n_steps=10, scales={"x": [1e-3, 1.0], "u": 0.5})
    idata = sample(model, 3000, 50, step=step)
    np.testing.assert_allclose(idata["posterior"]["x"].values.std(axis=(0, 1)), [1e-3, 1.0], rtol=0.15)
    assert idata["sample_stats"]["temperature"].mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"step_size": -0.1}, "step_size must be above 0, got -0.1"),
        ({"step_size": lambda draw: 0.0}, "step_size must be positive"),
        ({"friction": 0.0}, "friction must be above 0, got 0.0"),
        ({"friction": 1.5}, "friction must lie between 0 and 1, got friction=1.5"),
        (
            {"friction": 0.1, "noise_estimate": 0.2},
            "noise_estimate must not exceed friction=0.1, got noise_estimate=0.2",
        ),
        ({"noise_estimate": -0.1}, "noise_estimate must not be negative"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_steps": 1.5}, "n_steps must be an integer .*got 1.5"),
        ({"scheme": "heun"}, "scheme must be one of euler, symmetric, got 'heun'"),
        ({"scales": {"V": 1.0}}, r"scales names \['V'\], which are not among \['U', 'scale'\]"),
        ({"scales": {"U": -1.0}}, r"scales must be positive, got scales\['U'\]=-1.0"),
        ({"scales": {"scale": [1.0, 1.0, 1.0]}}, r"scales\['scale'\] has shape \(3,\), which does not fit \(2,\)"),
    ],
)
def test_bad_settings(minibatch_model, arguments, message):
    with minibatch_model, pytest.raises((TypeError, ValueError), match=message):
        pst.OrthogonalSGHMC(**({"step_size": 0.1} | arguments))


def test_temperature_zero_is_an_optimisation(minibatch_model):
    """Without noise, and with all of the data, the chain runs to the optimum and stays there."""
    F = np.eye(4, 2) * [5.0, 3.0]
    with pm.Model():
        pst.MatrixLangevin("X", F=F)
        step = pst.OrthogonalSGHMC(step_size=0.3, friction=0.3, temperature=0.0, n_steps=200)
        idata = pm.sample(3, tune=2, chains=1, step=step, progressbar=False, random_seed=1)
    np.testing.assert_allclose(idata["posterior"]["X"][0, -1], np.eye(4, 2), atol=1e-8)
    assert float(idata["sample_stats"]["temperature"][0, -1]) < 1e-12


def test_cycles_of_step_size_and_temperature():
    schedule = pst.CyclicalSchedule(0.2, length=10, exploration=0.5, temperature_after=0.5)
    with pm.Model():
        pst.MatrixLangevin("X", F=5 * np.eye(4, 2))
        step = pst.OrthogonalSGHMC(step_size=schedule, friction=0.3, temperature=schedule.temperature, n_steps=40)
        idata = pm.sample(20, tune=10, chains=1, step=step, progressbar=False, random_seed=1)
    stats = idata["sample_stats"]
    np.testing.assert_allclose(stats["step_size"][0], [schedule(k) for k in range(10, 30)])
    temperature = stats["temperature"].values[0].reshape(2, 10)
    assert temperature[:, 3:5].max() < 0.1  # cooled down
    assert 0.3 < temperature[:, 6:].mean() < 0.7


@pytest.mark.parametrize("temperature", [-1.0, np.inf, np.nan])
def test_bad_temperature(temperature, minibatch_model):
    with pytest.raises(ValueError, match="temperature must be finite"):
        pst.OrthogonalSGHMC(model=minibatch_model, step_size=0.1, temperature=temperature)
