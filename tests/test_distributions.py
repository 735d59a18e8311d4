"""Variables: declaration, densities, draws, and what PyMC does with them."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pymc_stiefel as pst
from pymc_stiefel import draws, geometry, normalizers
from pymc_stiefel.distributions import StiefelBlock, _langevin, stiefel_block, transforms
from pymc_stiefel.ops import without_manifold_check

EYE42 = np.eye(4, 2)
SYMMETRIC = np.array([[2.0, 0.5, 0.0, 0.1], [0.5, 1.0, 0.3, 0.0], [0.0, 0.3, -1.0, 0.2], [0.1, 0.0, 0.2, 0.0]])
SPD = SYMMETRIC @ SYMMETRIC + np.eye(4)
DISTRIBUTIONS = {
    "uniform": (pst.StiefelUniform, {"n": 4, "p": 2}),
    "langevin": (pst.MatrixLangevin, {"F": np.arange(8.0).reshape(4, 2) / 4}),
    "langevin of M and kappa": (pst.MatrixLangevin, {"M": EYE42, "kappa": [3.0, 1.0]}),
    "bingham": (pst.MatrixBingham, {"A": SYMMETRIC, "p": 2}),
    "bingham with B": (pst.MatrixBingham, {"A": SYMMETRIC, "B": np.diag([2.0, 1.0])}),
    "bingham-langevin": (pst.MatrixBinghamLangevin, {"A": SYMMETRIC, "B": [2.0, 1.0], "F": EYE42}),
    "angular central gaussian": (pst.MatrixAngularCentralGaussian, {"Sigma": SPD, "p": 2}),
    "rotation": (pst.SpecialOrthogonal, {"n": 3}),
    "unit vector": (pst.UnitVector, {"n": 4}),
    "von mises-fisher": (pst.VonMisesFisher, {"mu": np.eye(4)[0], "kappa": 2.0}),
}
NORMALISED = set(DISTRIBUTIONS) - {"bingham with B", "bingham-langevin"}
every = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def make(kind, name=None, **kwargs):
    distribution, parameters = DISTRIBUTIONS[kind]
    return distribution.dist(**parameters, **kwargs) if name is None else distribution(name, **parameters, **kwargs)


def core_shape(kind):
    return {"rotation": (3, 3), "unit vector": (4,), "von mises-fisher": (4,)}.get(kind, (4, 2))


def as_matrices(X, kind):
    return X[..., None] if len(core_shape(kind)) == 1 else X


def log_density(rv, values):
    value = rv.type()
    return pytensor.function([value], pm.logp(rv, value), mode="FAST_COMPILE")(np.asarray(values, dtype=rv.dtype))


def uniform_values(kind, size, rng):
    n, p = (*core_shape(kind), 1)[:2]
    X = draws.haar(n, p, size=size, rng=rng)
    if kind == "rotation":
        X[..., -1] *= np.sign(np.linalg.det(X))[..., None]
    return X.reshape(*np.atleast_1d(size), *core_shape(kind))


# ---------------------------------------------------------------- shapes, draws, marks


@every
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_batches_of_draws_are_on_the_manifold(kind, batch):
    core = core_shape(kind)
    by_shape, by_size = make(kind, shape=(*batch, *core)), make(kind, size=batch)
    for rv in (by_shape, by_size):
        assert rv.type.shape == (*batch, *core)
        X = rv.eval(mode="FAST_COMPILE")
        assert geometry.orthogonality_error(as_matrices(X, kind)).max() < 1e-12
        block = stiefel_block(rv)
        assert (block.n, block.p, block.batch_shape) == ((*core, 1)[0], (*core, 1)[1], batch)
        assert (block.vector, block.special) == (len(core) == 1, kind == "rotation")
    assert stiefel_block(pm.Normal.dist(size=(4, 2))) is None
    assert stiefel_block(pt.matrix()) is None


def test_batched_parameters_give_each_matrix_its_own():
    F = np.stack([100 * EYE42, -100 * EYE42])
    X = pst.MatrixLangevin.dist(F).eval(mode="FAST_COMPILE")
    assert X[0, 0, 0] > 0.8 and X[1, 0, 0] < -0.8
    kappa = pst.MatrixLangevin.dist(EYE42, np.array([[0.0, 0.0], [500.0, 500.0]]))
    assert kappa.type.shape == (2, 4, 2)
    x = pst.VonMisesFisher.dist(np.eye(3), [10.0, 1e3, 1e6]).eval(mode="FAST_COMPILE")
    assert x.shape == (3, 3) and x[2, 2] > 0.99


def test_draw_in_the_default_backend_follows_the_seed():
    rvs = [make("langevin", size=2), make("von mises-fisher"), make("rotation")]
    first, again, other = (pm.draw(rvs, draws=3, random_seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert first[0].shape == (3, 2, 4, 2) and first[1].shape == (3, 4)
    assert np.linalg.det(first[2]) == pytest.approx(np.ones(3))


def test_draws_have_the_mean_that_the_normaliser_says():
    F = DISTRIBUTIONS["langevin"][1]["F"]
    U, s, Vt = np.linalg.svd(F, full_matrices=False)
    expected = (U * normalizers.log_hyp0f1(4, s)[1]) @ Vt
    X = make("langevin", size=4000).eval(mode="FAST_COMPILE")
    z = (X.mean(axis=0) - expected) / (X.std(axis=0) / np.sqrt(len(X)))
    assert np.abs(z).max() < 4.5


# ---------------------------------------------------------------- densities


@pytest.mark.parametrize("kind", sorted(NORMALISED))
def test_density_integrates_to_one(kind):
    X = uniform_values(kind, 20_000, np.random.default_rng(1))
    weight = np.exp(log_density(make(kind, size=len(X)), X))
    error = weight.std() / np.sqrt(len(weight))
    assert abs(weight.mean() - 1) <= 4 * error + 1e-12


def test_density_without_normaliser_does_not_integrate_to_one(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(_langevin, "log_hyp0f1_matrix", lambda F: pt.zeros(F.shape[:-2]))
    X = uniform_values("langevin", 20_000, np.random.default_rng(1))
    weight = np.exp(log_density(make("langevin", size=len(X)), X))
    assert abs(weight.mean() - 1) > 10 * weight.std() / np.sqrt(len(weight))


def test_densities_against_their_formulas():
    X = uniform_values("uniform", (), np.random.default_rng(2)).reshape(4, 2)
    F = DISTRIBUTIONS["langevin"][1]["F"]
    B = np.diag([2.0, 1.0])
    quadratic = np.trace(B @ X.T @ SYMMETRIC @ X)
    assert log_density(make("uniform"), X) == 0
    assert log_density(make("bingham with B"), X) == pytest.approx(quadratic)
    assert log_density(make("bingham-langevin"), X) == pytest.approx(quadratic + np.trace(EYE42.T @ X))
    macg = -np.linalg.slogdet(SPD)[1] - 2 * np.linalg.slogdet(X.T @ np.linalg.solve(SPD, X))[1]
    assert log_density(make("angular central gaussian"), X) == pytest.approx(macg)
    s = np.linalg.svd(F, compute_uv=False)
    langevin = np.trace(F.T @ X) - normalizers.log_hyp0f1(4, s)[0]
    assert log_density(make("langevin"), X) == pytest.approx(langevin)


def test_both_forms_of_the_langevin_agree():
    X = uniform_values("uniform", 5, np.random.default_rng(3))
    M = geometry.polar(np.random.default_rng(4).standard_normal((4, 2)))
    kappa = np.array([1.0, 6.0])
    one = log_density(pst.MatrixLangevin.dist(M, kappa, size=5), X)
    other = log_density(pst.MatrixLangevin.dist(F=M * kappa, size=5), X)
    np.testing.assert_allclose(one, other, atol=1e-10)
    scalar = log_density(pst.MatrixLangevin.dist(M=M, kappa=2.0, size=5), X)
    np.testing.assert_allclose(scalar, log_density(pst.MatrixLangevin.dist(2 * M, size=5), X), atol=1e-10)


@every
def test_off_the_manifold_the_density_is_minus_infinity(kind):
    rv = make(kind, size=3)
    X = uniform_values(kind, 3, np.random.default_rng(5))
    X[1] *= 1 + 1e-5
    X[2, 0] = np.nan
    assert np.isfinite(log_density(rv, X)).tolist() == [True, False, False]
    assert log_density(rv, X)[1] == -np.inf
    value = rv.type()
    stripped = without_manifold_check(pm.logp(rv, value))
    on_and_off = pytensor.function([value], stripped, mode="FAST_COMPILE")(X)
    assert np.isfinite(on_and_off[1])


def test_reflections_are_no_rotations():
    assert log_density(make("rotation"), np.diag([1.0, 1.0, -1.0])) == -np.inf
    assert log_density(make("rotation"), np.diag([-1.0, 1.0, -1.0])) == 0


@pytest.mark.filterwarnings("ignore:Skipping Check:UserWarning")  # PyTensor's JAX backend leaves out all assertions
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA", "JAX"])
def test_gradients_of_value_and_parameters(mode):
    """One joint function of every parameter that may be random, against finite differences; the check is harmless."""
    if mode == "JAX":
        pytest.importorskip("jax")
    theta = pt.vector("theta", dtype="float64", shape=(3,))
    scale, F = pt.exp(theta[0]), theta[1] * np.arange(8.0).reshape(4, 2) / 4 + theta[2] * EYE42
    X = pt.matrix("X", dtype="float64", shape=(4, 2))
    rvs = [
        pst.MatrixLangevin.dist(F),
        pst.MatrixLangevin.dist(EYE42, kappa=pt.stack([scale, 2 * scale])),
        pst.MatrixBingham.dist(SYMMETRIC * scale, p=2),
        pst.MatrixAngularCentralGaussian.dist(SPD + scale * np.eye(4), p=2),
    ]
    x = pst.VonMisesFisher.dist(np.eye(4)[1], kappa=scale)
    total = sum(pm.logp(rv, X) for rv in rvs) + pm.logp(x, X[:, 0])
    f = pytensor.function([X, theta], [total, *pt.grad(total, [X, theta])], mode=mode)
    bare = without_manifold_check(total)
    g = pytensor.function([X, theta], [bare, *pt.grad(bare, [X, theta])], mode="FAST_COMPILE")
    value, point = geometry.polar(np.random.default_rng(6).standard_normal((4, 2))), np.array([0.3, 0.7, -0.5])
    for a, b in zip(f(value, point), g(value, point), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    if mode != "FAST_COMPILE":
        return
    for k, step in enumerate(1e-6 * np.eye(3)):
        slope = (g(value, point + step)[0] - g(value, point - step)[0]) / 2e-6
        assert g(value, point)[2][k] == pytest.approx(slope, abs=1e-7)
    step = 1e-6 * np.random.default_rng(7).standard_normal((4, 2))
    slope = (g(value + step, point)[0] - g(value - step, point)[0]) / 2
    assert np.sum(g(value, point)[1] * step) == pytest.approx(slope, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0, 20))
def test_langevin_density_is_invariant_under_rotations(invariance, seed, scale):
    """f(QXR; QFR) = f(X; F) for orthogonal Q and R, and the mode is the polar factor of F."""
    rng = np.random.default_rng(seed)
    F, X = scale * rng.standard_normal((4, 2)), draws.haar(4, 2, rng=rng)
    Q, R = draws.haar(4, 4, rng=rng), draws.haar(2, 2, rng=rng)
    assert invariance(Q @ X @ R, Q @ F @ R) == pytest.approx(invariance(X, F), rel=1e-8, abs=1e-8)
    assert invariance(geometry.polar(F + 1e-9 * EYE42), F) >= invariance(X, F) - 1e-6


@pytest.fixture(scope="module")
def invariance():
    X, F = pt.matrix("X", dtype="float64"), pt.matrix("F", dtype="float64")
    return pytensor.function([X, F], pm.logp(pst.MatrixLangevin.dist(F), X), mode="FAST_COMPILE")


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_von_mises_fisher_at_the_poles(sign, n):
    rv = pst.VonMisesFisher.dist(sign * np.eye(n)[0], 50.0, size=200)
    x = rv.eval(mode="FAST_COMPILE")
    assert (x[:, 0] * sign > 0.5).all()
    assert np.isfinite(log_density(rv, x)).all()


def test_zero_concentration_is_uniform():
    X = uniform_values("uniform", 3, np.random.default_rng(8))
    assert log_density(pst.MatrixLangevin.dist(np.zeros((4, 2)), size=3), X) == pytest.approx(0)
    assert log_density(pst.MatrixLangevin.dist(EYE42, 0.0, size=3), X) == pytest.approx(0)
    assert log_density(pst.VonMisesFisher.dist(np.eye(4)[0], 0.0, size=3), X[:, :, 0]) == pytest.approx(0)
    assert pst.MatrixLangevin.dist(np.zeros((4, 2))).eval(mode="FAST_COMPILE").shape == (4, 2)


@pytest.mark.parametrize("distribution", ["uniform", "langevin", "macg", "bingham"])
@pytest.mark.parametrize(("n", "p"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_smallest_and_square_matrices(distribution, n, p):
    rv = {
        "uniform": lambda: pst.StiefelUniform.dist(n, p, size=4000),
        "langevin": lambda: pst.MatrixLangevin.dist(np.eye(n, p), 1.5, size=4000),
        "macg": lambda: pst.MatrixAngularCentralGaussian.dist(np.diag(np.arange(1.0, n + 1)), p, size=4000),
        "bingham": lambda: pst.MatrixBingham.dist(np.diag(np.arange(1.0, n + 1)), p=p, size=4000),
    }[distribution]()
    assert geometry.orthogonality_error(rv.eval(mode="FAST_COMPILE")).max() < 1e-12
    weight = np.exp(log_density(rv, draws.haar(n, p, size=4000, rng=np.random.default_rng(9))))
    assert abs(weight.mean() - 1) <= 4 * weight.std() / np.sqrt(len(weight)) + 1e-10
    if n == p:
        determinants = np.linalg.det(rv.eval(mode="FAST_COMPILE"))
        assert (determinants > 0).any() and (determinants < 0).any()


# ---------------------------------------------------------------- bad input

NAN = np.array([[np.nan, 0], [0, 1], [0, 0]])
BAD = {
    "n < p": (ValueError, "n must be at least p", lambda: pst.StiefelUniform.dist(2, 3)),
    "n not an integer": (TypeError, "n must be an integer", lambda: pst.StiefelUniform.dist(4.0, 2)),
    "p random": (TypeError, "p must be an integer", lambda: pst.StiefelUniform.dist(4, pm.Poisson.dist(2))),
    "p = 0": (ValueError, "p must be at least 1, got 0", lambda: pst.StiefelUniform.dist(4, 0)),
    "n negative": (ValueError, "got -1", lambda: pst.UnitVector.dist(-1)),
    "n missing": (TypeError, "needs n, got n=None", lambda: pst.SpecialOrthogonal.dist(None)),
    "NaN in F": (ValueError, r"F must be finite, got nan at \(0, 0\)", lambda: pst.MatrixLangevin.dist(NAN)),
    "inf in A": (ValueError, "A must be finite", lambda: pst.MatrixBingham.dist(np.diag([np.inf, 1]), p=1)),
    "complex F": (TypeError, "F must be real", lambda: pst.MatrixLangevin.dist(1j * EYE42)),
    "complex symbol": (TypeError, "F must be a real", lambda: pst.MatrixLangevin.dist(pt.zmatrix())),
    "strings": (TypeError, "F must be an array of numbers", lambda: pst.MatrixLangevin.dist([["a"]])),
    "wide F": (ValueError, "transpose", lambda: pst.MatrixLangevin.dist(EYE42.T)),
    "vector F": (ValueError, "F must be a matrix", lambda: pst.MatrixLangevin.dist([1.0, 2.0])),
    "F and M": (ValueError, "either F", lambda: pst.MatrixLangevin.dist(EYE42, M=EYE42)),
    "no parameter": (ValueError, "either F", lambda: pst.MatrixLangevin.dist()),
    "M not orthonormal": (ValueError, "geometry.polar", lambda: pst.MatrixLangevin.dist(2 * EYE42, 1.0)),
    "kappa negative": (ValueError, "kappa must not be negative", lambda: pst.MatrixLangevin.dist(EYE42, -1.0)),
    "kappa too long": (ValueError, "kappa is 3", lambda: pst.MatrixLangevin.dist(EYE42, [1.0, 2.0, 3.0])),
    "mu not unit": (ValueError, "mu must be a unit vector", lambda: pst.VonMisesFisher.dist([1.0, 1.0], 1.0)),
    "A not symmetric": (ValueError, "A must be symmetric", lambda: pst.MatrixBingham.dist(np.triu(SPD), p=2)),
    "A not square": (ValueError, "A must be a square", lambda: pst.MatrixBingham.dist(EYE42, p=2)),
    "B not symmetric": (ValueError, "B must be symmetric", lambda: pst.MatrixBingham.dist(SPD, np.triu(SPD)[:2, :2])),
    "B against p": (ValueError, "B's side is 2, p is 3", lambda: pst.MatrixBingham.dist(SPD, np.eye(2), p=3)),
    "no B, no p": (ValueError, "needs B", lambda: pst.MatrixBingham.dist(SPD)),
    "F against A": (ValueError, "rows of F", lambda: pst.MatrixBinghamLangevin.dist(SPD, None, np.eye(3, 2))),
    "Sigma not PD": (ValueError, "positive definite", lambda: pst.MatrixAngularCentralGaussian.dist(SYMMETRIC, 2)),
    "p > n": (ValueError, "n must be", lambda: pst.MatrixAngularCentralGaussian.dist(np.eye(2), 3)),
    "random B": (ValueError, "would be wrong", lambda: pst.MatrixBingham.dist(SPD, pt.diag(pt.vector()))),
    "random A": (ValueError, "would be wrong", lambda: pst.MatrixBingham.dist(SPD * pt.scalar(), [1.0, 2.0])),
    "random F": (ValueError, "would be wrong", lambda: pst.MatrixBinghamLangevin.dist(SPD, None, EYE42 * pt.scalar())),
    "shape": (ValueError, r"support shape \(4, 2\)", lambda: pst.StiefelUniform.dist(4, 2, shape=(4, 2, 5))),
    "short shape": (ValueError, "shape must end", lambda: pst.StiefelUniform.dist(4, 2, shape=(4,))),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_declaration(case):
    error, message, declare = BAD[case]
    with pytest.raises(error, match=message):
        declare()


def test_symbolic_parameters_are_checked_when_evaluated():
    mu = pt.vector("mu", dtype="float64", shape=(3,))
    logp = pm.logp(pst.VonMisesFisher.dist(mu, 1.0), np.eye(3)[0])
    f = pytensor.function([mu], logp, mode="FAST_COMPILE")
    assert np.isfinite(f(np.eye(3)[1]))
    with pytest.raises(Exception, match="mu must be orthonormal"):
        f(np.ones(3))
    kappa = pt.scalar("kappa", dtype="float64")
    f = pytensor.function([kappa], pm.logp(pst.MatrixLangevin.dist(EYE42, kappa), EYE42), mode="FAST_COMPILE")
    with pytest.raises(Exception, match="kappa >= 0"):
        f(-1.0)


def test_models_refuse_data_starts_and_dims_that_do_not_fit():
    rng = np.random.default_rng(10)
    off = geometry.polar(rng.standard_normal((4, 2))) + 1e-3
    with pm.Model(coords={"row": range(4), "column": range(2), "other": range(5)}) as model:
        with pytest.raises(ValueError, match=r"observed data of X is not orthonormal: max\|X'X - I\| = 0.00"):
            make("langevin", "X", observed=off)
        missing = np.stack([EYE42, EYE42])
        missing[1, 0, 0] = np.nan
        with pytest.raises(ValueError, match="missing values"):
            make("langevin", "X", observed=missing)
        with pytest.raises(ValueError, match="support shape"):
            make("langevin", "X", observed=np.eye(5, 2))
        with pytest.raises(ValueError, match="determinant -1"):
            make("rotation", "X", observed=np.diag([1.0, 1.0, -1.0]))
        with pytest.raises(ValueError, match="initval of X is not orthonormal"):
            make("uniform", "X", initval=off)
        with pytest.raises(ValueError, match="support shape"):
            make("uniform", "X", initval=np.eye(3))
        with pytest.raises(ValueError, match="'other' of X has length 5"):
            make("uniform", "X", dims=("other", "column"))
        with pytest.raises(ValueError, match="too few"):
            make("uniform", "X", dims="row")
    assert not model.basic_RVs


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
