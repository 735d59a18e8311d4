"""Variables in models: starts, interventions, data, predictive draws, and PyMC's own samplers."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws, geometry
from pymc_stiefel.distributions import StiefelBlock, _langevin, stiefel_block, transforms
from tests.distributions.laws import DISTRIBUTIONS, EYE42, make

# ---------------------------------------------------------------- PyMC around them


def test_starts_are_seeded_prior_draws():
    with pm.Model() as model:
        for kind in DISTRIBUTIONS:
            make(kind, kind)
    first, again, other = (model.initial_point(seed) for seed in (1, 1, 2))
    for name, value in first.items():
        assert np.array_equal(value, again[name]) and not np.allclose(value, other[name])
    assert all(np.isfinite(v).all() for v in first.values())


def test_initval_is_projected_and_initvals_are_checked():
    near = EYE42 + 1e-8
    with pm.Model() as model:
        make("uniform", "Q", initval=near)
        make("unit vector", "u", initval=np.eye(4)[2] * (1 + 1e-8))
    point = model.initial_point(0)
    assert geometry.orthogonality_error(point["Q_polar__"]) < 1e-14
    assert np.abs(point["Q_polar__"] - near).max() < 1e-7
    assert np.linalg.norm(point["u_sphere__"]) == pytest.approx(1, abs=1e-15)
    from pymc.initial_point import make_initial_point_fn

    with pytest.raises(ValueError, match="initial value is not orthonormal"):
        make_initial_point_fn(model=model, overrides={"Q": np.ones((4, 2))})(0)


def test_interventions_copies_and_pictures_keep_the_mark():
    with pm.Model(coords={"row": range(4), "column": range(2), "item": range(3)}) as model:
        Q = make("uniform", "Q", dims=("item", "row", "column"))
        X = pst.MatrixLangevin("X", Q[0], 3.0)
        pm.Normal("y", X[0, 0], 1)
    expected = StiefelBlock(4, 2, (3,), vector=False, special=False)
    observed = pm.observe(model, {"y": 0.3})
    for candidate in (model, observed, model.copy()):
        assert stiefel_block(candidate["Q"]) == expected
        assert isinstance(candidate.rvs_to_transforms[candidate["Q"]], transforms.PolarTransform)
    assert [rv.name for rv in pm.do(model, {"Q": np.stack([EYE42] * 3)}).free_RVs] == ["X", "y"]
    seen = pm.observe(model, {"X": EYE42, "y": 0.0})
    assert np.isfinite(seen.compile_logp(mode="FAST_COMPILE")(seen.initial_point(0)))
    wrong = pm.observe(model, {"X": np.ones((4, 2)), "y": 0.0})
    assert wrong.compile_logp(mode="FAST_COMPILE")(wrong.initial_point(0)) == -np.inf
    pytest.importorskip("graphviz")
    assert "StiefelUniform" in str(pm.model_to_graphviz(model))
    assert "Q ~ StiefelUniform" in model.str_repr()


def test_observed_data_and_predictive_draws():
    data = draws.matrix_langevin(5 * EYE42, size=6, rng=np.random.default_rng(11))
    with pm.Model() as model:
        kappa = pm.HalfNormal("kappa", 5)
        pst.MatrixLangevin("X", EYE42, kappa, observed=data)
        prior = pm.sample_prior_predictive(4, random_seed=1)
    drawn = prior["prior_predictive"]["X"].values
    assert drawn.shape == (1, 4, 6, 4, 2) and geometry.orthogonality_error(drawn).max() < 1e-12
    with model:
        predicted = pm.sample_posterior_predictive(prior["prior"], random_seed=2, progressbar=False)
    assert predicted["posterior_predictive"]["X"].shape == (1, 4, 6, 4, 2)


def test_pm_data_can_be_exchanged():
    with pm.Model() as model:
        data = pm.Data("data", np.stack([EYE42] * 3))
        make("langevin", "X", observed=data)
        f = model.compile_logp(mode="FAST_COMPILE")
        before = f({})
        pm.set_data({"data": EYE42[None]})
    assert f({}) == pytest.approx(before / 3)


def concentration_model(data, mean):
    with pm.Model() as model:
        kappa = pm.Uniform("kappa", 0, 60)
        pst.MatrixLangevin("X", mean, kappa, observed=data)
    return model


def test_concentration_is_learnt_and_without_normaliser_is_not(monkeypatch):
    truth, rng = 8.0, np.random.default_rng(12)
    data = draws.matrix_langevin(truth * EYE42, size=60, rng=rng)
    settings = {
        "draws": 250, "tune": 250, "chains": 1, "cores": 1, "random_seed": 1,
        "progressbar": False, "compute_convergence_checks": False,
    }  # fmt: skip
    with concentration_model(data, EYE42):
        kappa = pm.sample(step=pm.NUTS(), **settings)["posterior"]["kappa"].values
    assert abs(kappa.mean() - truth) < 4 * kappa.std()
    assert kappa.std() < 2
    monkeypatch.setattr(_langevin, "log_hyp0f1_singular", lambda n, s: pt.zeros(s.shape[:-1]))
    with concentration_model(data, EYE42):
        wrong = pm.sample(step=pm.NUTS(), **settings)["posterior"]["kappa"].values
    assert abs(wrong.mean() - truth) > 10 * wrong.std()


# ---------------------------------------------------------------- one model, every sampler


@pytest.fixture(scope="module")
def factor_model():
    """Probabilistic principal components with the covariance in closed form."""
    rng = np.random.default_rng(13)
    loadings = np.linalg.qr(rng.standard_normal((4, 2)))[0] * [3.0, 1.5]
    y = rng.standard_normal((50, 2)) @ loadings.T + 0.5 * rng.standard_normal((50, 4))
    with pm.Model() as model:
        U = pst.StiefelUniform("U", 4, 2)
        scale, noise = pm.HalfNormal("scale", 3, shape=2), pm.HalfNormal("noise", 1)
        weight = scale**2 / (scale**2 + noise**2)
        fit = (np.sum(y**2) - (weight * (U * (y.T @ y @ U)).sum(axis=0)).sum()) / noise**2
        log_det = pt.log(scale**2 + noise**2).sum() + 2 * 2 * pt.log(noise)
        pm.Potential("likelihood", -0.5 * (fit + 50 * log_det))
        pm.Deterministic("covariance", (U * scale**2) @ U.T)
    return model


SETTINGS = {"draws": 300, "tune": 300, "chains": 2, "random_seed": 1, "progressbar": False}


@pytest.fixture(scope="module")
def nuts_covariance(factor_model):
    with factor_model:
        idata = pm.sample(step=pm.NUTS(), cores=1, compute_convergence_checks=False, **SETTINGS)
    U = idata["posterior"]["U"].values
    assert geometry.orthogonality_error(U).max() < 1e-12
    assert not np.allclose(U[0, 0], U[1, 0])
    return idata["posterior"]["covariance"].values


def assert_same(one, other):
    """Means of all entries within four standard errors, if a tenth of the draws count as independent."""
    scatter = np.sqrt(one.var(axis=(0, 1)) + other.var(axis=(0, 1))) / np.sqrt(one[..., 0, 0].size / 10)
    assert np.abs((one.mean(axis=(0, 1)) - other.mean(axis=(0, 1))) / scatter).max() < 4


@pytest.mark.integration
@pytest.mark.parametrize("sampler", ["nutpie", "numpyro"])
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:There are not enough devices"
)
def test_other_samplers_agree_with_nuts(factor_model, nuts_covariance, sampler):
    pytest.importorskip(sampler)
    with factor_model:
        idata = pm.sample(nuts_sampler=sampler, compute_convergence_checks=False, **SETTINGS)
    assert_same(idata["posterior"]["covariance"].values, nuts_covariance)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyMC 6.4 renames arguments of its find_MAP
def test_optimisation_and_variational_inference(factor_model, nuts_covariance):
    with factor_model:
        best = pm.find_MAP(progressbar=False, seed=1)
        approximation = pm.fit(1000, random_seed=1, progressbar=False, obj_optimizer=pm.adam(learning_rate=0.05))
    assert geometry.orthogonality_error(best["U"]) < 1e-12
    spread = nuts_covariance.std(axis=(0, 1))
    assert (np.abs(best["covariance"] - nuts_covariance.mean(axis=(0, 1))) < 3 * spread).all()
    assert np.isfinite(approximation.hist).all()
    assert np.median(approximation.hist[-200:]) < np.median(approximation.hist[:200])
