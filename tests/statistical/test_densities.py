"""Rung 6: densities integrate to one, draws have the density's moments, expansions have the law declared."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws
from pymc_stiefel.distributions.transforms import HouseholderTransform, PolarTransform
from pymc_stiefel.normalizers import log_hyp0f1
from tests.statistical.ladder import independent_z, z_scores
from tests.statistical.targets import second_moments, weighted

pytestmark = pytest.mark.statistical

SMALL = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


def _symmetric(n, size):
    A = np.random.default_rng(n).standard_normal((n, n))
    return size * (A + A.T) / 2


F = np.random.default_rng(0).standard_normal((5, 2))
SIGMA = np.diag(np.geomspace(1.0, 8.0, 5))
MODE = np.eye(5, 2)[::-1]

# name -> (shape of the Haar draws, distribution, does its density include the normaliser)
DENSITIES = {
    "StiefelUniform": ((5, 2), lambda: pst.StiefelUniform.dist(n=5, p=2), True),
    "MatrixLangevin, F": ((5, 2), lambda: pst.MatrixLangevin.dist(F), True),
    "MatrixLangevin, M and kappa": ((5, 2), lambda: pst.MatrixLangevin.dist(MODE, np.array([2.0, 3.0])), True),
    "MatrixLangevin on O(3)": ((3, 3), lambda: pst.MatrixLangevin.dist(np.diag([2.0, 1.0, 0.5])), True),
    "MatrixLangevin on St(7, 3)": ((7, 3), lambda: pst.MatrixLangevin.dist(np.eye(7, 3) * [3.0, 2.0, 1.0]), True),
    "MatrixBingham, B = I": ((5, 2), lambda: pst.MatrixBingham.dist(_symmetric(5, 0.8), p=2), True),
    "MatrixBingham, vector": ((4, 1), lambda: pst.MatrixBingham.dist(_symmetric(4, 1.0), p=1), True),
    "MatrixBingham, general B": (
        (5, 2),
        lambda: pst.MatrixBingham.dist(_symmetric(5, 0.8), np.array([1.0, -0.5])),
        False,
    ),
    "MatrixBinghamLangevin": (
        (5, 2),
        lambda: pst.MatrixBinghamLangevin.dist(_symmetric(5, 0.6), np.array([1.0, -0.5]), 0.7 * F),
        False,
    ),
    "MatrixAngularCentralGaussian": ((5, 2), lambda: pst.MatrixAngularCentralGaussian.dist(SIGMA, p=2), True),
    "VonMisesFisher": ((4,), lambda: pst.VonMisesFisher.dist(np.array([0.6, 0, 0.8, 0]), 2.0), True),
    "UnitVector": ((4,), lambda: pst.UnitVector.dist(n=4), True),
    "SpecialOrthogonal": ((3, 3), lambda: pst.SpecialOrthogonal.dist(n=3), True),
    "MatrixFisher on SO(2)": ((2, 2), lambda: pst.MatrixFisher.dist(F[:2]), True),
    "MatrixFisher on SO(3)": ((3, 3), lambda: pst.MatrixFisher.dist(np.diag([2.0, 1.0, -0.5])), True),
    "MatrixFisher on SO(4)": ((4, 4), lambda: pst.MatrixFisher.dist(np.diag([2.0, 1.0, 1.0, 0.5])), False),
}
ROTATIONS = [name for name in DENSITIES if name == "SpecialOrthogonal" or "MatrixFisher" in name]


def haar_of(name, count, rng):
    """Independent draws from the base measure of a distribution."""
    shape = DENSITIES[name][0]
    X = draws.haar(*((*shape, 1) if len(shape) == 1 else shape), size=count, rng=rng)
    if name in ROTATIONS:
        X[..., 0] *= np.linalg.det(X)[:, None]
    return X[..., 0] if len(shape) == 1 else X


def log_densities(distribution, X):
    """The log density of every matrix in ``X``, which is a batch to PyMC."""
    value = pt.tensor("value", shape=(None, *X.shape[1:]), dtype="float64")
    return pm.compile(inputs=[value], outputs=pm.logp(distribution, value))(X)


def moments(X):
    return second_moments(X[..., None] if X.ndim == 2 else X)


@pytest.mark.parametrize("name", DENSITIES)
def test_density_and_draws_agree(name, book, full):
    """E_Haar f = 1, and draws have the moments of Haar draws weighted by f."""
    _, make, normalised = DENSITIES[name]
    X = haar_of(name, 200_000 if full else 50_000, np.random.default_rng(6))
    log_density = log_densities(make(), X)
    if normalised and np.ptp(log_density) > 0:
        book.check(6, "density", name, independent_z(np.exp(log_density), 1.0), "integral")
    elif normalised:
        assert np.all(log_density == 0.0)  # uniform: exactly one
    mean, error = weighted(moments(X), log_density)
    drawn = pm.draw(make(), draws=20_000 if full else 4000, random_seed=7)
    values = moments(drawn)
    keep = values.std(axis=0) > 1e-9  # the determinant of a rotation does not vary
    np.testing.assert_allclose(values[:, ~keep], mean[~keep] + 0 * values[:, ~keep], atol=1e-9)
    book.check(6, "draws", name, independent_z(values, mean, error)[keep])


def test_missing_normaliser_is_caught(book):
    """The control of the integral: the bare kernel etr(F'X)."""
    X = haar_of("MatrixLangevin, F", 50_000, np.random.default_rng(6))
    z = independent_z(np.exp(np.einsum("np,knp->k", F, X)), 1.0)
    book.caught(6, "density without its normaliser", "MatrixLangevin, F", z)


# ---------------------------------------------------------------- expansions under PyMC's NUTS

S = np.array([4.0, 2.0])


def nuts_scores(transform, full, max_treedepth=10, seed=8):
    """X from PyMC's NUTS in the coordinates of ``transform``: E[X_kk], and the law of the coordinates' size."""
    with pm.Model() as model:
        pst.MatrixLangevin("X", np.eye(5, 2) * S, transform=transform, initval=np.eye(5, 2))
        step = pm.NUTS(max_treedepth=max_treedepth)
        size = 3000 if full else 1500
        trace = pm.sample(size, tune=800, chains=2, step=step, random_seed=seed, return_inferencedata=False, **SMALL)
    name = model.value_vars[0].name
    exact = log_hyp0f1(5, S)[1]
    scores = []
    for chain in range(2):
        X = trace.get_values("X", chains=chain)
        scores.append(z_scores(np.column_stack([X[:, 0, 0], X[:, 1, 1]]), exact))
        if isinstance(transform, PolarTransform):
            Z = trace.get_values(name, chains=chain)
            scores.append(z_scores((Z**2).mean(axis=(1, 2)), 1.0))  # Gaussian whatever the law of X
    return np.concatenate(scores)


class PolarWithoutGaussian(PolarTransform):
    """Mutant: the Jacobian term left out."""

    def log_jac_det(self, value, *inputs):
        return pt.zeros(value.shape[:-2])


class HouseholderWithoutJacobian(HouseholderTransform):
    """Mutant: a chart without its Jacobian (but with a weak Gaussian, so that the density has an integral)."""

    def for_shape(self, n, p, vector):
        return HouseholderWithoutJacobian(n, p, vector)

    def log_jac_det(self, value, *inputs):
        return -0.005 * (value**2).sum(axis=-1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", [pst.transforms.polar, pst.transforms.householder], ids=["polar", "householder"])
def test_transform_under_nuts(transform, book, full):
    book.check(6, f"pm.NUTS, {transform.name} transform", "MatrixLangevin, St(5, 2)", nuts_scores(transform, full))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", [PolarWithoutGaussian(), HouseholderWithoutJacobian()], ids=["polar", "householder"])
def test_missing_jacobian_is_caught(mutant, book, full):
    z = nuts_scores(mutant, full, max_treedepth=4)  # where the density has no integral, trajectories never turn
    book.caught(6, f"{mutant.name} transform without its Jacobian", "MatrixLangevin, St(5, 2)", z)
