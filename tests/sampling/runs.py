"""One model, sampled by pm.sample and by pst.sample."""

import numpy as np
import pymc as pm

import pymc_stiefel as pst

SETTINGS = {"draws": 60, "tune": 70, "chains": 4, "random_seed": 7}
SILENT = {"progressbar": False, "compute_convergence_checks": False, "quiet": True}


def make_model():
    rng = np.random.default_rng(1)
    with pm.Model(coords={"feature": range(8), "factor": range(2)}) as model:
        data = pm.Data("data", rng.normal(size=(30, 8)) * np.array([6, 4, *[1] * 6]))
        Q = pst.StiefelUniform("Q", n=8, p=2, dims=("feature", "factor"))
        scale = pm.HalfNormal("scale", 5, shape=2)
        pm.Deterministic("loadings", Q * scale)
        pm.MvNormal("y", 0, (Q * scale**2) @ Q.T + np.eye(8), observed=data)
    return model


def by_pymc(model, **options):
    with model:
        return pm.sample(**(SETTINGS | {"cores": 1} | SILENT | options))


def by_us(model, **options):
    with model:
        return pst.sample(**(SETTINGS | {"cores": 2} | SILENT | options))
