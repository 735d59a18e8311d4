"""One declaration of every law, and what the tests of laws share."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws

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
