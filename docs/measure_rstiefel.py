"""Run the Gibbs sampler of howto/from_rstiefel.md in R beside the model of that page: its timing.

``python docs/measure_rstiefel.py`` needs ``Rscript`` with the package rstiefel; ``--load file.R`` runs another file
that defines its functions in place of ``library(rstiefel)``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pymc_stiefel as pst

PAGE = Path(__file__).parent / "howto" / "from_rstiefel.md"
CHAINS, DRAWS = 2, 1000


def run_r(code: str, load: str, Y: np.ndarray) -> tuple[xr.Dataset, float]:
    """Draws and seconds of the code of the page, one chain after the other."""
    chains, seconds = [], 0.0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        np.savetxt(folder / "Y.txt", Y)
        for seed in range(CHAINS):
            script = (
                f"{load}\nset.seed({seed + 1})\nY <- as.matrix(read.table('{folder}/Y.txt'))\n"
                f"began <- proc.time()[['elapsed']]\n{code}\ncat(proc.time()[['elapsed']] - began, '\\n')\n"
                f"write.table(draws, '{folder}/draws.txt', row.names=FALSE, col.names=FALSE)\n"
            )
            (folder / "run.R").write_text(script)
            printed = subprocess.run(["Rscript", folder / "run.R"], check=True, capture_output=True, text=True).stdout
            seconds += float(printed.split()[-1])
            chains.append(np.loadtxt(folder / "draws.txt")[-DRAWS:])
    draws = np.stack(chains)
    M = draws[..., 1:].reshape(CHAINS, DRAWS, *Y.shape[::-1]).swapaxes(-1, -2)  # R stores columns
    return xr.Dataset(
        {"sigma": (("chain", "draw"), draws[..., 0]), "M": (("chain", "draw", "row", "column"), M)}
    ), seconds


def run_ours(Y: np.ndarray) -> tuple[xr.Dataset, float]:
    with pm.Model():
        U = pst.StiefelUniform("U", n=30, p=2)
        V = pst.StiefelUniform("V", n=20, p=2)
        d = pm.HalfNormal("d", 50, shape=2)
        sigma = pm.HalfNormal("sigma", 2)
        M = pm.Deterministic("M", (U * d) @ V.T)
        pm.Normal("Y", M, sigma, observed=Y)
        options = {"chains": CHAINS, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
        pm.sample(10, tune=10, **options)  # compiles
        idata = pm.sample(DRAWS, tune=1000, random_seed=1, **options)
    return idata["posterior"][["sigma", "M"]], idata["posterior"].attrs["sampling_time"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", default="", help="a file of R that defines the functions of rstiefel")
    path = parser.parse_args().load
    rng = np.random.default_rng(1)
    truth = 8.0 * rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) / np.sqrt(20)
    Y = truth + rng.normal(size=(30, 20))
    code = re.search(r"^```r\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    load = f"source('{Path(path).resolve()}', chdir=TRUE)" if path else "library(rstiefel)"
    means = []
    print("| sampler | sigma | squared error | effective draws a second |\n|---|---|---|---|")
    for name, (posterior, seconds) in {"rstiefel": run_r(code, load, Y), "this package": run_ours(Y)}.items():
        ess = az.ess(posterior)
        smallest = min(float(ess[variable].min()) for variable in ess)
        mean = posterior["M"].mean(("chain", "draw")).values
        means.append(mean)
        sigma, error = float(posterior["sigma"].mean()), np.mean((mean - truth) ** 2)
        print(f"| {name} | {sigma:.2f} | {error:.3f} | {smallest / seconds:.0f} |")
    if np.abs(means[0] - means[1]).max() > 0.2:
        raise RuntimeError(f"posterior means of M differ by {np.abs(means[0] - means[1]).max():.2f}")


if __name__ == "__main__":
    main()
