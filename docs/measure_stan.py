"""Run the Stan programs of howto/from_stan.md beside its model (pip install pystan): the table of that page."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import stan
import xarray as xr

import pymc_stiefel as pst

PAGE = Path(__file__).parent / "howto" / "from_stan.md"
CHAINS = 2


def data() -> tuple[np.ndarray, int, int]:
    """The data of the page."""
    rng = np.random.default_rng(3)
    n, p = 10, 2
    truth = pst.draws.haar(n, p, rng=rng)
    return rng.normal(size=(150, p)) * [4.0, 2.0] @ truth.T + 0.5 * rng.normal(size=(150, n)), n, p


def run_stan(program: str, Y: np.ndarray, n: int, p: int) -> tuple[xr.Dataset, float]:
    """Draws and seconds of warm-up and sampling, one chain after the other."""
    values = {"N": len(Y), "n": n, "p": p, "Y": Y.tolist()}
    draws: dict[str, list[np.ndarray]] = {"U": [], "scale": [], "noise": []}
    seconds = 0.0
    for seed in range(CHAINS):
        posterior = stan.build(program, data=values, random_seed=seed + 1)  # compiled once, then cached
        began = time.perf_counter()
        fit = posterior.sample(num_chains=1, num_warmup=1000, num_samples=1000)
        seconds += time.perf_counter() - began
        for name, chains in draws.items():
            chains.append(np.moveaxis(fit[name], -1, 0).squeeze())
    dims = {"U": ("chain", "draw", "row", "column"), "scale": ("chain", "draw", "column"), "noise": ("chain", "draw")}
    return xr.Dataset({name: (dims[name], np.stack(chains)) for name, chains in draws.items()}), seconds


def run_ours(Y: np.ndarray, n: int, p: int) -> tuple[xr.Dataset, float]:
    with pm.Model():
        U = pst.StiefelUniform("U", n=n, p=p)
        scale = pm.HalfNormal("scale", 5, shape=p)
        noise = pm.HalfNormal("noise", 2)
        pst.LowRankMvNormal("Y", 0, cov_factor=U * scale, cov_diag=noise**2, observed=Y)
        options = {"chains": CHAINS, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
        pm.sample(10, tune=10, **options)  # compiles
        idata = pm.sample(1000, tune=1000, random_seed=1, **options)
    return idata["posterior"], idata["posterior"].attrs["sampling_time"]


def row(name: str, posterior: xr.Dataset, seconds: float) -> tuple[str, np.ndarray, float]:
    aligned = pst.align(posterior, "U", order_by="scale")
    ess = az.ess(aligned.assign(noise=posterior["noise"]))
    smallest = min(float(ess[variable].min()) for variable in ess)
    scales = aligned["scale"].mean(("chain", "draw")).values
    print(f"{name}: scales {scales.round(2)}, ESS {smallest:.0f} in {seconds:.2f} s", file=sys.stderr)
    return name, scales, smallest / seconds


def main() -> None:
    Y, n, p = data()
    programs = re.findall(r"^```stan\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = [row("this package", *run_ours(Y, n, p))]
    for name, program in zip(("Stan, QR", "Stan, Givens"), programs, strict=True):
        rows.append(row(name, *run_stan(program, Y, n, p)))
    print("| sampler | scales | effective draws a second |\n|---|---|---|")
    for name, scales, speed in rows:
        if np.abs(scales - rows[0][1]).max() > 0.1:
            raise RuntimeError(f"{name} has scales {scales}, the page's model {rows[0][1]}")
        print(f"| {name} | {', '.join(f'{scale:.1f}' for scale in scales)} | {speed:.0f} |")


if __name__ == "__main__":
    main()
