"""Make the pictures of ``docs/analysis.md``: ``python docs/make_pictures.py``, under a minute; or those that are named.

Draws come from the model of ``examples/quickstart.py``, sampled with a fixed seed, and from exact samplers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import xarray as xr

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
matplotlib.use("Agg")

import pymc_stiefel as pst  # noqa: E402
from examples.quickstart import build_model, monthly_returns  # noqa: E402
from pymc_stiefel import draws as exact  # noqa: E402


def stocks() -> Any:
    """Posterior of the quickstart: loadings of seven stocks on two components."""
    with build_model(monthly_returns()):
        return pm.sample(
            1000, tune=1000, chains=4, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )


def directions() -> xr.DataArray:
    """Two orthogonal directions in space, the first better known than the second; their signs are not identified."""
    rng = np.random.default_rng(2)
    mode = np.linalg.qr([[1.0, -0.3], [0.1, 1.0], [0.8, 0.5]])[0]
    X = exact.matrix_langevin(mode * [150.0, 15.0], size=(2, 400), rng=rng)
    X *= rng.choice([-1.0, 1.0], (2, 400, 1, 2))
    return xr.DataArray(X, dims=("chain", "draw", "axis", "direction"), coords={"direction": ["first", "second"]})


def genes() -> xr.DataArray:
    """120 features on three sparse components, with the spread that a posterior of that size has."""
    rng = np.random.default_rng(3)
    n = 120
    loadings = np.zeros((n, 3))
    for k in range(3):
        loadings[rng.choice(n, 14, replace=False), k] = rng.normal(0, 1, 14)
    mode = np.linalg.qr(loadings + 0.02 * rng.normal(size=(n, 3)))[0]
    X = exact.matrix_langevin(mode * [900.0, 500.0, 250.0], size=(2, 500), rng=rng)
    X *= rng.choice([-1.0, 1.0], (2, 500, 1, 3))
    names = [f"gene {i + 1}" for i in range(n)]
    coords = {"gene": names, "component": ["A", "B", "C"]}
    return xr.DataArray(X, dims=("chain", "draw", "gene", "component"), coords=coords)


def main() -> None:
    idata, sphere, many = stocks(), directions(), genes()
    aligned = pst.align(idata, "U", order_by="scale")["U"]
    figures = {
        "columns": pst.plot_columns(aligned),
        "columns_many": pst.plot_columns(many),
        "loadings": pst.plot_loadings(aligned),
        "loadings_many": pst.plot_loadings(many),
        "alignment": pst.plot_alignment(idata, "U"),
        "subspace": pst.plot_subspace(idata, "U"),
        "sphere": pst.plot_sphere(sphere, view=(10, 80)),
        "invariants": pst.plot_invariants(idata, "U"),
        "energy": pst.plot_energy(idata),
    }
    for name in sys.argv[1:] or figures:
        figures[name].savefig(ROOT / "docs" / "images" / f"analysis_{name}.png", dpi=160, bbox_inches="tight")


if __name__ == "__main__":
    main()
