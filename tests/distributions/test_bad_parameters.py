"""Bad parameters, data, starts and dims are refused when a variable is declared."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel import geometry
from tests.distributions.laws import EYE42, SPD, SYMMETRIC, make

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
