"""Laws as variables: declaration, rotations, batches drawn in one call, parameters at the edge."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.transform.conditioning import change_value_transforms

import pymc_stiefel as pst
from pymc_stiefel import draws
from pymc_stiefel.draws import _batches
from pymc_stiefel.geometry import orthogonality_error
from tests.draws.test_draws import z_scores

# ---------------------------------------------------------------- rotations


def rotations(n, size, seed=5):
    return _batches.haar(n, n, (size,), np.random.default_rng(seed), special=True)


def log_densities(distribution, X):
    value = pt.tensor("value", shape=(None, *X.shape[1:]), dtype="float64")
    return pm.compile([value], pm.logp(distribution, value))(X)


@pytest.mark.parametrize("F", [np.array([[1.0, 0.5], [-0.3, 0.4]]), np.diag([2.0, 1.0, -0.5]) + 0.3])
def test_fisher_density_integrates_to_one_on_rotations(F):
    X = rotations(len(F), 20_000)
    assert abs(z_scores(np.exp(log_densities(pst.MatrixFisher.dist(F), X)), 1.0)) < 4
    constant_of_both_signs = np.exp(log_densities(pst.MatrixLangevin.dist(F), X))
    assert abs(z_scores(constant_of_both_signs, 1.0)) > 4  # the control: the normaliser of O(n)


@pytest.mark.parametrize("s", [[1.5, 0.5], [1.5, -0.5], [2.0, 1.0, 0.5], [2.0, 1.0, -1.0], [2, 1, 1, 1], [2, 2, 1, -1]])
def test_fisher_draws_have_the_weighted_moments(s):
    n = len(s)
    U = rotations(n, 2, seed=6)
    F = (U[0] * s) @ U[1]
    X = draws.matrix_fisher(F, size=4000, rng=np.random.default_rng(7))
    assert orthogonality_error(X).max() < 1e-12 and np.allclose(np.linalg.det(X), 1)
    haar = rotations(n, 60_000)
    weight = np.exp(np.einsum("ij,kij->k", F, haar))
    weight /= weight.sum()
    for statistic in (lambda X: X.reshape(len(X), -1), lambda X: X.reshape(len(X), -1) ** 2):
        mean = weight @ statistic(haar)
        error = np.sqrt(weight**2 @ (statistic(haar) - mean) ** 2 + statistic(X).var(axis=0) / len(X))
        assert np.abs((statistic(X).mean(axis=0) - mean) / error).max() < 4
        if n == 3:  # the control: draws of a more concentrated law
            wrong = statistic(draws.matrix_fisher(1.6 * F, size=4000, rng=np.random.default_rng(7))).mean(axis=0)
            assert np.abs((wrong - mean) / error).max() > 4


def test_fisher_parameters():
    with pytest.raises(ValueError, match="n <= 3 only"), pm.Model():
        pst.MatrixFisher("X", M=np.eye(4), kappa=pm.HalfNormal("kappa"))
    with pytest.raises(ValueError, match=r"M must have determinant \+1"):
        pst.MatrixFisher.dist(M=np.diag([1.0, 1, -1]), kappa=1.0)
    assert pm.draw(pst.MatrixFisher.dist(np.eye(4), size=3), random_seed=1).shape == (3, 4, 4)


@pytest.mark.parametrize(("sign", "warned"), [(1.0, True), (-1.0, False)])
def test_langevin_of_rotations_warns(sign, warned, recwarn):
    X = rotations(3, 4)
    X[0, :, 0] *= sign
    with pm.Model():
        pst.MatrixLangevin("X", M=np.eye(3), kappa=2.0, observed=X)
    assert warned == any("use MatrixFisher" in str(w.message) for w in recwarn)


@pytest.mark.parametrize("law", [pst.MatrixLangevin, pst.MatrixFisher])
def test_parameters_that_exclude_each_other(law):
    with pytest.raises(ValueError, match="drop kappa"):
        law.dist(F=np.eye(3), kappa=2.0)
    with pytest.raises(ValueError, match="drop M"):
        law.dist(F=np.eye(3), M=np.eye(3))
    with pytest.raises(ValueError, match="needs kappa"):
        law.dist(M=np.eye(3))


# ---------------------------------------------------------------- declaration


def test_lengths_follow_from_shapes():
    with pm.Model(coords={"feature": range(5), "factor": range(2)}):
        data = pm.Data("data", np.zeros((7, 5)))
        assert pst.StiefelUniform("a", dims=("feature", "factor")).type.shape == (5, 2)
        assert pst.StiefelUniform("b", shape=(3, 5, 2)).type.shape == (3, 5, 2)
        assert pst.StiefelUniform("c", initval=np.eye(5, 2)).type.shape == (5, 2)
        assert pst.StiefelUniform("d", n=data.shape[1], p=2).type.shape == (5, 2)
        assert pst.UnitVector("e", dims="feature").type.shape == (5,)
        assert pst.SpecialOrthogonal("f", initval=np.eye(3)).type.shape == (3, 3)
        assert pst.MatrixBingham("g", A=np.eye(5), dims=("feature", "factor")).type.shape == (5, 2)
        assert pst.MatrixAngularCentralGaussian("h", np.eye(5), initval=np.eye(5, 2)).type.shape == (5, 2)
        with pytest.raises(TypeError, match="needs n"):
            pst.StiefelUniform("i", p=2)
        with pytest.raises(TypeError, match="known at declaration"):
            pst.StiefelUniform("j", n=pm.Poisson("count", 3), p=2)


def test_one_construction_for_each_declaration(monkeypatch):
    calls = []
    build = pst.StiefelUniform.dist.__func__
    monkeypatch.setattr(
        pst.StiefelUniform, "dist", classmethod(lambda cls, *a, **k: calls.append(1) or build(cls, *a, **k))
    )
    with pm.Model():
        pst.StiefelUniform("X", n=4, p=2)
    assert len(calls) == 1


def test_householder_by_change_of_transforms():
    """The value keeps the variable's shape, so idle entries are standard normal: densities differ by theirs alone."""
    with pm.Model() as model:
        pst.StiefelUniform("X", n=4, p=2)
        pst.VonMisesFisher("x", mu=np.eye(3)[:2], kappa=3.0)
    changed = change_value_transforms(model, dict.fromkeys(("X", "x"), pst.transforms.householder))
    with pm.Model() as direct:
        pst.StiefelUniform("X", n=4, p=2, transform=pst.transforms.householder)
        pst.VonMisesFisher("x", mu=np.eye(3)[:2], kappa=3.0, transform=pst.transforms.householder)
    rng = np.random.default_rng(1)
    X, x = rng.standard_normal((4, 2)), rng.standard_normal((2, 3))
    inside = {"X_householder__": np.concatenate([X[1:, 0], X[2:, 1]]), "x_householder__": x[:, 1:]}
    idle = np.concatenate([X[:1, 0], X[:2, 1], x[:, 0]])
    found = changed.compile_logp()({"X_householder__": X, "x_householder__": x})
    expected = direct.compile_logp()(inside) - 0.5 * (idle**2 + np.log(2 * np.pi)).sum()
    np.testing.assert_allclose(found, expected)
    start = changed.initial_point(random_seed=1)
    assert start["X_householder__"].shape == (4, 2) and start["x_householder__"].shape == (2, 3)
    with pm.Model() as square:
        pst.StiefelUniform("X", n=3, p=3)
    with pytest.raises(ValueError, match="determinant"):
        change_value_transforms(square, {"X": pst.transforms.householder}).initial_point()


def test_bad_initvals_raise_without_a_traceback_of_rewrites(caplog):
    with pm.Model() as model:
        pst.StiefelUniform("X", n=4, p=2)
    model.rvs_to_initial_values[model["X"]] = np.ones((4, 2))
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="not orthonormal"):
        model.initial_point(random_seed=1)
    assert not caplog.records


# ---------------------------------------------------------------- batches in one call

BATCHES = {
    "StiefelUniform": lambda: pst.StiefelUniform.dist(n=4, p=2, size=50),
    "UnitVector": lambda: pst.UnitVector.dist(n=4, size=50),
    "VonMisesFisher": lambda: pst.VonMisesFisher.dist(np.eye(3)[0], 2.0, size=50),
    "VonMisesFisher, batched mu": lambda: pst.VonMisesFisher.dist(np.tile(np.eye(3)[0], (50, 1)), 2.0),
    "MatrixLangevin, batched F": lambda: pst.MatrixLangevin.dist(np.tile(np.eye(4, 2), (50, 1, 1))),
    "MatrixBingham, batched A": lambda: pst.MatrixBingham.dist(np.tile(np.diag([2.0, 1, 0]), (50, 1, 1)), p=2),
    "MatrixFisher": lambda: pst.MatrixFisher.dist(np.eye(3), size=50),
    "MatrixAngularCentralGaussian": lambda: pst.MatrixAngularCentralGaussian.dist(np.eye(4), p=2, size=50),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_one_call(name, monkeypatch):
    rv = BATCHES[name]()
    calls, kind = [], type(rv.owner.op)
    draw = kind.rng_fn.__func__
    monkeypatch.setattr(kind, "rng_fn", classmethod(lambda cls, *a: calls.append(1) or draw(cls, *a)))
    counted = []
    for engine in ("vmf_deficits", "langevin_matrices", "bingham_frames", "fisher_bingham_vectors"):
        kernel = getattr(_batches, engine)
        monkeypatch.setattr(_batches, engine, lambda *a, kernel=kernel: counted.append(1) or kernel(*a))
    X = pm.draw(rv, random_seed=1)
    assert len(calls) == 1 and len(counted) <= 1
    assert X.shape[0] == 50 and len(np.unique(X.reshape(50, -1)[:, 0])) == 50  # fifty different draws
    np.testing.assert_array_equal(X, pm.draw(rv, random_seed=1))


def test_batched_parameters_keep_their_places():
    mu = np.vstack([np.eye(3), -np.eye(3)])
    x = pm.draw(pst.VonMisesFisher.dist(mu, np.full(6, 1e6)), random_seed=1)
    np.testing.assert_allclose(x, mu, atol=0.01)
    F = 1e6 * np.stack([np.eye(4, 2), -np.eye(4, 2)])
    np.testing.assert_allclose(pm.draw(pst.MatrixLangevin.dist(F), random_seed=1), F / 1e6, atol=0.01)


# ---------------------------------------------------------------- opposed and huge parameters


@pytest.mark.parametrize("spread", [70.0, 1e3, 1e5])
def test_opposed_parameters_are_drawn_exactly(spread):
    """F pulls to the axis from which A pushes away: the cosine has the density exp(spread (t - t^2)) on (-1, 1)."""
    A, F = np.diag([0.0, 0.0, -spread]), np.array([[0.0], [0.0], [spread]])
    X = draws.matrix_bingham_langevin(A, None, F, size=1000, rng=np.random.default_rng(8))
    t = np.linspace(-1, 1, 400_001)
    weight = np.exp(spread * (t - t**2 - 0.25))
    weight /= weight.sum()
    for power in (1, 2):
        assert abs(z_scores(X[:, 2, 0] ** power, weight @ t**power)) < 4
    assert abs(z_scores(X[:, 2, 0], weight @ t + 0.5 * X[:, 2, 0].std())) > 4  # control


def test_opposed_matrices_and_a_budget(monkeypatch):
    A, F = -50 * np.diag([0.0, 0, 1, 1]), 50 * np.eye(4, 2)[::-1]
    X = draws.matrix_bingham_langevin(A, None, F, size=2, rng=np.random.default_rng(9))
    assert orthogonality_error(X).max() < 1e-12
    monkeypatch.setattr(_batches, "fisher_bingham_vectors", lambda *arguments: False)
    with pytest.raises(RuntimeError, match="no draw in 1000000 proposals"):
        draws.matrix_bingham_langevin(A, None, F[:, :1], rng=np.random.default_rng(9))


@pytest.mark.parametrize("kappa", [1e16, 1e155, 1e300])
def test_huge_concentrations(kappa):
    rng = np.random.default_rng(10)
    mu = np.array([0.6, 0.0, 0.8])
    np.testing.assert_allclose(draws.von_mises_fisher(mu, kappa, rng=rng), mu, atol=1e-6)
    np.testing.assert_allclose(draws.matrix_langevin(kappa * np.eye(5, 2), rng=rng), np.eye(5, 2), atol=1e-6)
    value, grad = pst.normalizers.log_hyp0f1(5, [kappa, kappa])
    np.testing.assert_allclose([value / kappa, *grad], [2, 1, 1])
