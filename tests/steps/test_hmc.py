"""The step methods under ``pm.sample``: seeds, statistics, errors, and the posterior itself."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pymc_stiefel as pst
from pymc_stiefel.engine.blocks import FLIPPED, NEVER
from tests.models import ppca, ppca_data
from tests.steps.chains import QUIET, draw


def invariants(idata):
    """Rotation- and order-invariant summaries of a PPCA posterior, (chain, draw, quantity)."""
    posterior = idata["posterior"]
    U, scale = posterior["U"].values, posterior["scale"].values
    weighted = np.einsum("cdik,cdk,cdjk->cdij", U, scale**2, U)
    upper = np.triu_indices(U.shape[2])
    return np.concatenate([weighted[..., upper[0], upper[1]], posterior["noise"].values[..., None]], axis=-1)


def z_scores(first, second):
    def mean_and_error(x):
        dataset = az.convert_to_dataset({"x": x})
        return x.mean(axis=(0, 1)), az.mcse(dataset, method="mean")["x"].values

    (mean1, error1), (mean2, error2) = mean_and_error(first), mean_and_error(second)
    return (mean1 - mean2) / np.hypot(error1, error2)


# ---------------------------------------------------------------- draws and statistics


def test_statistics(model):
    idata = draw(model, chains=2)
    stats = idata["sample_stats"]
    for name in ("energy", "diverging", "tree_depth", "n_steps", "acceptance_rate", "lp", "step_size_bar"):
        assert stats[name].shape == (2, 50)
    assert stats["orthogonality_error"].values.max() < 1e-12
    assert np.all(np.isfinite(az.bfmi(idata)["energy"] if hasattr(az.bfmi(idata), "data_vars") else az.bfmi(idata)))
    # energy and lp are those of the accepted state: lp + energy is the kinetic energy, positive
    assert np.all(stats["energy"].values + stats["lp"].values > 0)
    assert list(idata["posterior"]["U"].dims) == ["chain", "draw", "feature", "factor"]


def test_model_logp_is_the_density_of_the_draw(model):
    idata = draw(model, draws=10)
    point = idata["posterior"].isel(chain=0, draw=-1)
    values = {
        "U_polar__": point["U"].values,
        "scale_log__": np.log(point["scale"].values),
        "noise_log__": np.log(point["noise"].values),
    }
    whole = model.compile_logp()(values)
    expansion = -0.5 * 2 - 0.5 * 12 * np.log(2 * np.pi)  # the Gaussian factor of the polar expansion, |U|^2 = 2
    assert float(idata["sample_stats"]["lp"].values[0, -1]) == pytest.approx(float(whole) - expansion)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_same_seed_same_draws_in_every_process(model, start):
    alone = draw(model, draws=30, chains=2)
    together = draw(model, draws=30, chains=2, cores=2, mp_ctx=start)
    np.testing.assert_array_equal(alone["posterior"]["U"].values, together["posterior"]["U"].values)
    assert not np.array_equal(alone["posterior"]["U"].values[0, 0], alone["posterior"]["U"].values[1, 0])


@pytest.mark.parametrize("step", [pst.StiefelNUTS, pst.OrthogonalHMC, pst.GeodesicHMC])
def test_same_posterior_as_nuts_on_the_expansion(model, step, expansion_draws):
    with model:
        method = step()
    idata = draw(model, 1000, 500, chains=2, step=method, seed=11)
    z = z_scores(invariants(idata), expansion_draws)
    assert np.abs(z).max() < 4
    assert idata["sample_stats"]["diverging"].values.sum() == 0


@pytest.fixture(scope="module")
def expansion_draws(model):
    with model:
        step = pm.NUTS()
    return invariants(draw(model, 1000, 500, chains=2, step=step, seed=12, nuts_sampler="pymc"))


def test_wrong_posterior_is_told_apart(expansion_draws):
    """The control: the same check on data with a tenth more noise."""
    other = ppca(1.1 * ppca_data())
    z = z_scores(invariants(draw(other, 1000, 500, chains=2, seed=11)), expansion_draws)
    assert np.abs(z).max() > 6


def test_fixed_length(model):
    with model:
        idata = draw(model, step=pst.OrthogonalHMC(n_steps=7, jitter=0))
        assert np.all(idata["sample_stats"]["n_steps"] == 7)
        idata = draw(model, step=pst.GeodesicHMC(path_length=1.0, step_size=0.1, jitter=0))
        assert np.all(idata["sample_stats"]["n_steps"] == 10)
        np.testing.assert_allclose(idata["sample_stats"]["step_size"], 0.1)


def test_smallest_manifolds():
    """O(1) is two points, between which only reflections lead; long enough for tuning to try a fixed length."""
    with pm.Model():
        pst.StiefelUniform("sign", n=1, p=1)
        idata = pm.sample(400, tune=300, chains=1, random_seed=1, **QUIET)
    draws = idata["posterior"]["sign"].values.ravel()
    assert set(draws) == {-1.0, 1.0}
    assert abs(draws.mean()) < 0.3
    assert not idata["sample_stats"]["diverging"].any()


def test_orthogonal_group_and_rotations():
    with pm.Model() as both:
        pst.StiefelUniform("Q", n=3, p=3)
        pst.SpecialOrthogonal("R", n=3)
        pst.UnitVector("u", n=4)
        pst.StiefelUniform("batch", n=4, p=2, shape=(3, 4, 2))
    posterior = draw(both, 300, 100)["posterior"]
    assert 0.3 < np.mean(np.linalg.det(posterior["Q"].values) > 0) < 0.7
    np.testing.assert_allclose(np.linalg.det(posterior["R"].values), 1.0)
    np.testing.assert_allclose(np.linalg.norm(posterior["u"].values, axis=-1), 1.0)
    assert posterior["batch"].shape == (1, 300, 3, 4, 2)
    # entries of Haar matrices: X_ij^2 has mean 1/n
    for name, n in (("Q", 3), ("R", 3), ("u", 4), ("batch", 4)):
        np.testing.assert_allclose(np.mean(posterior[name].values[:, ::2] ** 2), 1 / n, rtol=0.15)
    assert draw(both, 20, 20, step=pst.StiefelNUTS(model=both, reflect=False))["sample_stats"]["reflected"].sum() == 0


def test_single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as single:
            pst.StiefelUniform("Q", n=4, p=2)
            pm.Normal("x")
        posterior = draw(single)["posterior"]
    assert posterior["Q"].dtype == np.float32
    assert pst.orthogonality_error(posterior["Q"]).max() < 1e-5


def poles(weight):
    """A unit vector near one of two poles, as often as ``weight`` near the first."""
    with pm.Model() as model:
        x = pst.UnitVector("x", n=5)
        pm.Potential("poles", pt.logaddexp(np.log(weight) + 40 * x[0], np.log1p(-weight) - 40 * x[0]))
    return model


def test_signs_are_flipped_where_that_joins_modes():
    idata = draw(poles(0.7), draws=2000, tune=400, chains=2)
    assert 0.3 < idata["sample_stats"]["reflected"].mean() < 0.9  # 2 * 0.3 is to be expected
    np.testing.assert_allclose((idata["posterior"]["x"][..., 0] > 0).mean(), 0.7, atol=0.06)
    model = poles(0.7)
    stuck = draw(model, draws=200, tune=400, step=pst.StiefelNUTS(model=model, reflect=False))
    assert (stuck["posterior"]["x"][..., 0] > 0).values.mean() in (0.0, 1.0)


@pytest.mark.parametrize("weight", [0.5, 1 - 1e-9], ids=["symmetric", "one-sided"])
def test_signs_stay_where_nothing_is_gained(weight):
    idata = draw(poles(weight), draws=100, tune=300)
    assert not idata["sample_stats"]["reflected"].values.any()


def test_flips_that_are_needed_say_nothing_of_others():
    """Beside a matrix of O(n), whose columns are flipped anyway, a vector that needs no flips has none."""
    with poles(0.5) as model:
        pst.StiefelUniform("Q", n=2, p=2)
        step = pst.StiefelNUTS()
    draw(model, draws=20, tune=500, step=step)
    assert step.chain.flips.kinds[:, 0].tolist() == [NEVER, FLIPPED]


def test_rotations_stay_rotations():
    with pm.Model() as model:
        R = pst.SpecialOrthogonal("R", n=3)
        pm.Potential("trace", pt.trace(R))
    idata = draw(model, draws=100, tune=300)
    assert not idata["sample_stats"]["reflected"].values.any()
    np.testing.assert_allclose(np.linalg.det(idata["posterior"]["R"]), 1.0)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"step_size": -0.1}, "step_size must be above 0, got -0.1"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_steps": 2.5}, "n_steps must be an integer .*got 2.5"),
        ({"n_steps": 3, "path_length": 1.0}, "cannot be given together"),
        ({"path_length": 0.0}, "path_length must be above 0"),
        ({"target_accept": 1.2}, "target_accept.*1.2"),
        ({"max_treedepth": 0}, "max_treedepth"),
        ({"jitter": 1.0}, "jitter"),
        ({"adapt_step_size": False}, "step_size"),
    ],
)
def test_bad_settings(model, arguments, message):
    with model, pytest.raises((TypeError, ValueError), match=message):
        pst.OrthogonalHMC(**arguments)


def test_variables_that_cannot_be_sampled(model):
    with pm.Model() as other:
        x = pm.Normal("x")
        flag = pm.Bernoulli("flag", 0.5)
    with model, pytest.raises(ValueError, match="x"):
        pst.StiefelNUTS([x])
    with other, pytest.raises(ValueError, match="flag"):
        pst.StiefelNUTS([flag])
    with other, pytest.warns(UserWarning, match="no orthonormal variable"):
        step = pst.OrthogonalHMC([x])
    assert draw(other, 20, 20, step=step)["posterior"]["x"].shape == (1, 20)


def test_starts_outside_the_support():
    with pm.Model() as impossible:
        u = pst.UnitVector("u", n=3)
        pm.Potential("wall", pt.switch(u[0] > 2, 0.0, -np.inf))
    with pytest.raises(SamplingError, match=r"-inf at the start.*wall.*u_sphere__ = \["):
        draw(impossible)
    with pm.Model() as steep:
        u = pst.UnitVector("u", n=3, initval=np.array([0.0, 0.0, 1.0]))
        x = pm.Normal("x", initval=0.0)
        pm.Potential("root", pt.sqrt(pt.abs(x)) * u[0])
    with pytest.raises(SamplingError, match=r"gradient .* not finite in x"):
        draw(steep)


@pytest.mark.parametrize("strength", [1e16, 1e100, 1e300])
def test_laws_narrower_than_floating_point_numbers(strength):
    """Their draws were NaN, or adaptation met the logarithm of zero."""
    with pm.Model():
        pst.MatrixLangevin("X", F=strength * np.eye(5, 2))
        with pytest.raises(SamplingError, match=r"X_polar__ change in their last digit \(float64\).*too narrow"):
            pm.sample(10, tune=10, chains=1, cores=1, progressbar=False, random_seed=1)


def test_a_law_as_narrow_as_can_be():
    with pm.Model():
        pst.MatrixLangevin("X", F=1e12 * np.eye(5, 2))
        idata = pm.sample(200, tune=200, chains=1, cores=1, progressbar=False, random_seed=1)
    below = idata["posterior"]["X"].values[..., 2:, :]  # normal, with variance 1e-12
    assert 0.8 < below.std() * 1e6 < 1.25
    assert idata["sample_stats"]["diverging"].sum() == 0


def test_minibatch_is_refused():
    data = np.random.default_rng(0).standard_normal((100, 3))
    with pm.Model():
        batch = pm.Minibatch(data, batch_size=10)
        u = pst.UnitVector("u", n=3)
        pm.Normal("y", u, 1.0, observed=batch, total_size=data.shape)
        with pytest.raises(ValueError, match="accept step would be wrong"):
            pst.OrthogonalHMC()
