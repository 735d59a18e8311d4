"""What LowRankMvNormal gains: ``python -m benchmarks.factors [gradients | sampling] [--quick] [--seeds K]``.

``gradients``: microseconds of a log density with gradient for several (n, p, N), beside ``pm.MvNormal`` and beside a
potential derived by hand, with one noise for all features and with one for each. ``sampling``: least effective draws a
second at (100, 5, 500), warm-up included and compilation not, of this package and of nutpie on the same model, of
nutpie on ``pm.MvNormal``, and of NumPyro with its own low-rank normal if it is installed. One thread; rounds are
interleaved, so that ratios are of the same run. Results go to ``benchmarks/factors.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst
from benchmarks.problems import Problem
from benchmarks.samplers import Nutpie, PyMC
from pymc_stiefel.compile._density import ModelDensity

HERE = Path(__file__).parent
SIZES = ((30, 3, 200), (100, 5, 500), (1000, 5, 2000), (2000, 5, 100), (50, 3, 1_000_000))
MOST = 4e9
"""Operations of a dense density, N n^2 + n^3, beyond which it is left out."""


def simulate(n: int, p: int, N: int, noise: str) -> np.ndarray:
    rng = np.random.default_rng(24)
    W = pst.draws.haar(n, p, rng=rng) * np.linspace(0.6, 0.3, p) * np.sqrt(n)
    sd = 1.0 if noise == "common" else rng.uniform(0.5, 1.5, n)
    return rng.normal(size=(N, p)) @ W.T + sd * rng.normal(size=(N, n)) + rng.normal(size=n)


def build(kind: str, y: np.ndarray, p: int, noise: str) -> pm.Model:
    """The same posterior, with the likelihood written in one of three ways."""
    n, feature = y.shape[1], noise == "feature"
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=n, p=p)
        d = pm.HalfNormal("d", 5 * np.sqrt(n), shape=p)
        W = Q * d
        sd = pm.HalfNormal("noise", 2, shape=n if feature else ())
        mu = pm.Normal("mu", 0, 3, shape=n)
        if kind == "dense":
            pm.MvNormal("y", mu, cov=W @ W.T + (pt.diag(sd**2) if feature else sd**2 * np.eye(n)), observed=y)
        elif kind == "by hand":
            pm.Potential("y", by_hand(y, mu, Q, d, sd))
        else:
            pst.LowRankMvNormal("y", mu, W, sd**2, observed=y)
    return model


def by_hand(y, mu, Q, d, sd):
    """What docs/howto/speed.md used to tell: moments about the mean, and the inverse by Woodbury's identity."""
    N, n = y.shape
    mean = y.mean(axis=0)
    centred = y - mean
    squares, m = (centred**2).sum(axis=0), mean - mu
    if sd.ndim == 0:
        V, scale = Q, 1 / (sd**2 + d**2) - 1 / sd**2
        log_det, weight = (n - d.shape[0]) * pt.log(sd**2) + pt.log(sd**2 + d**2).sum(), 1 / sd**2
    else:
        V, weight = Q * d / sd[:, None] ** 2, 1 / sd**2
        L = pt.linalg.cholesky(pt.eye(Q.type.shape[1]) + (Q * d).T @ V)
        V = pt.linalg.solve_triangular(L, V.T, lower=True).T
        log_det, scale = pt.log(sd**2).sum() + 2 * pt.log(pt.diag(L)).sum(), -1.0
    along = (V * (pt.constant(centred.T @ centred) @ V)).sum(axis=0) if n < N else ((centred @ V) ** 2).sum(axis=0)
    misfit = (weight * (squares + N * m**2)).sum() + (scale * (along + N * (m @ V) ** 2)).sum()
    return -0.5 * (N * (n * np.log(2 * np.pi) + log_det) + misfit)


# ---------------------------------------------------------------- gradients


def measure(functions: dict, rounds: int, seconds: float) -> dict[str, float]:
    """Least seconds of a call, in interleaved rounds."""
    best = dict.fromkeys(functions, np.inf)
    for _ in range(rounds):
        for name, call in functions.items():
            start, calls = time.perf_counter(), 0
            while time.perf_counter() - start < seconds or calls == 0:
                before = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - before)
                calls += 1
    return best


def gradients(sizes, rounds: int, seconds: float) -> list[dict]:
    found = []
    for n, p, N in sizes:
        for noise in ("common", "feature"):
            y = simulate(n, p, N, noise)
            kinds = ["low rank", "by hand"] + ["dense"] * (N * n**2 + n**3 < MOST)
            calls, values = {}, {}
            for kind in kinds:
                model = build(kind, y, p, noise)
                point = model.initial_point(1)
                density = ModelDensity(model, model.continuous_value_vars, point)
                flat = density.pack(point)
                values[kind] = density(flat)[0]
                calls[kind] = lambda density=density, flat=flat: density(flat)
            worst = max(abs(value / values["low rank"] - 1) for value in values.values())
            assert worst < 1e-8, f"the densities differ: {values}"
            seconds_of = measure(calls, rounds, seconds)
            row = {"n": n, "p": p, "N": N, "noise": noise} | {k: round(1e6 * s, 1) for k, s in seconds_of.items()}
            found.append(row)
            print(row, flush=True)
    return found


# ---------------------------------------------------------------- sampling


def quantities(draws: dict) -> np.ndarray:
    """Diagonal of WW', lengths in order, mean and noise: all of them are identified."""
    W = draws["Q"] * draws["d"][..., None, :]
    lengths = np.sort(draws["d"], axis=-1)
    noise = draws["noise"].reshape(*W.shape[:2], -1)
    return np.concatenate([(W**2).sum(axis=-1), lengths, draws["mu"], noise], axis=-1)


def numpyro_run(y: np.ndarray, p: int, draws: int, seed: int):
    """NumPyro's NUTS on its LowRankMultivariateNormal, with a Gaussian matrix made orthonormal by its polar factor."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    jax.config.update("jax_enable_x64", True)
    n = y.shape[1]

    def model():
        Z = numpyro.sample("Z", dist.Normal(0, 1).expand([n, p]).to_event(2))
        values, vectors = jnp.linalg.eigh(Z.T @ Z)
        Q = numpyro.deterministic("Q", Z @ (vectors / jnp.sqrt(values)) @ vectors.T)
        d = numpyro.sample("d", dist.HalfNormal(5 * np.sqrt(n)).expand([p]).to_event(1))
        sd = numpyro.sample("noise", dist.HalfNormal(2.0))
        mu = numpyro.sample("mu", dist.Normal(0, 3).expand([n]).to_event(1))
        law = dist.LowRankMultivariateNormal(mu, cov_factor=Q * d, cov_diag=sd**2 * jnp.ones(n))
        numpyro.sample("y", law, obs=jnp.asarray(y))

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=draws,
        num_samples=draws,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.PRNGKey(seed), collect_warmup=True)  # compiles; its draws are not counted
    start = time.perf_counter()
    mcmc.run(jax.random.PRNGKey(seed))
    seconds = time.perf_counter() - start
    return {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}, seconds


def sampling(seeds: int, draws: int, dense_draws: int) -> list[dict]:
    n, p, N = 100, 5, 500
    y = simulate(n, p, N, "common")
    problem = Problem(lambda kind: build(kind, y, p, "common"), quantities)
    samplers = {
        "StiefelNUTS, LowRankMvNormal": PyMC(problem, draws, "low rank", pst.StiefelNUTS),
        "nutpie, LowRankMvNormal": Nutpie(problem, draws, "low rank"),
        "nutpie, pm.MvNormal": Nutpie(problem, dense_draws, "dense"),
    }
    found = []
    for seed in range(seeds):
        for name, sampler in samplers.items():
            run = sampler(seed)
            found.append(record(name, seed, quantities(run.draws), run.warmup + run.sampling))
        try:
            run_draws, seconds = numpyro_run(y, p, draws, seed)
        except ModuleNotFoundError:
            print("NumPyro is not installed: left out")
        else:
            found.append(record("NumPyro, LowRankMultivariateNormal", seed, quantities(run_draws), seconds))
    return found


def record(name: str, seed: int, values: np.ndarray, seconds: float) -> dict:
    ess = az.ess(az.convert_to_dataset({"x": values}))["x"].values
    row = {"sampler": name, "seed": seed, "min_ess": round(float(ess.min()), 1), "seconds": round(seconds, 2)}
    row["min_ess_per_second"] = round(row["min_ess"] / seconds, 2)
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["gradients", "sampling"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "factors.json")
    options = parser.parse_args()
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    results["load average"] = os.getloadavg()
    if options.part != "sampling":
        results["gradients"] = gradients(
            SIZES[:2] if options.quick else SIZES, *((3, 0.2) if options.quick else (7, 1.0))
        )
    if options.part != "gradients":
        sizes = (100, 20) if options.quick else (1000, 300)
        results["sampling"] = sampling(1 if options.quick else options.seeds, *sizes)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
