"""What LowRankMvNormal gains: ``python -m benchmarks.factors [gradients | sampling | report] [--quick] [--seeds K]``.

``gradients``: microseconds of a log density with gradient for several (n, p, N), beside ``pm.MvNormal`` and beside a
potential derived by hand, with one noise for all features and with one for each. ``sampling``: least effective draws a
second at (100, 5, 500), warm-up included and compilation not, of this package and of nutpie on the same model, of
nutpie on ``pm.MvNormal``, and of NumPyro with its own low-rank normal if it is installed. Samplers other than this
package use the polar factor of a Gaussian matrix. A sampler runs with more and more draws until it has converged or its
budget is spent; chains that have not converged overstate their effective draws, so that their figure is an upper limit.
One thread; rounds are interleaved, so that ratios are of the same run. Results go to ``benchmarks/factors.json`` or
``--output``. ``report`` makes docs/notes/factor_models.md of the records.
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
from benchmarks.machine import machine
from benchmarks.problems import Problem
from benchmarks.samplers import Nutpie, PyMC
from pymc_stiefel.compile._density import ModelDensity

HERE = Path(__file__).parent
SIZES = ((30, 3, 200), (100, 5, 500), (1000, 5, 2000), (2000, 5, 100), (50, 3, 1_000_000))
MOST = 1e9
"""Operations of a dense density, N n^2 + n^3, beyond which it is left out: at (1000, 5, 2000) a gradient took half a
minute and 10 GB."""

MAX_RHAT, MIN_ESS = 1.01, 400
"""Chains have converged if the largest R-hat and the least effective sample size of all quantities are within these."""

BUDGET = 60.0
"""Seconds that a run may take, as far as the run before it tells; the dense model is stopped after twice as many."""


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
            row["ratio to by hand"] = round(row["low rank"] / row["by hand"], 2)
            if "dense" in row:
                row["dense by low rank"] = round(row["dense"] / row["low rank"], 1)
            else:
                row["dense"] = f"left out: {N * n**2 + n**3:.0e} operations, more than {MOST:.0e}"
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


def sampling(seeds: int, draws: int, budget: float) -> list[dict]:
    n, p, N = 100, 5, 500
    y = simulate(n, p, N, "common")
    problem = Problem(lambda kind: build(kind, y, p, "common"), quantities)
    samplers = {
        "StiefelNUTS, LowRankMvNormal": PyMC(problem, draws, "low rank", pst.StiefelNUTS),
        "nutpie, LowRankMvNormal": Nutpie(problem, draws, "low rank"),
    }
    found = []
    for seed in range(seeds):
        for name, sampler in samplers.items():
            found.append(until_converged(name, sampler, seed, draws, budget))
    found += dense(problem, found, 2 * budget)
    try:
        run_draws, seconds = numpyro_run(y, p, draws, 0)
    except ModuleNotFoundError:
        print("NumPyro is not installed: left out")
    else:
        found.append(record("NumPyro, LowRankMultivariateNormal", 0, draws, quantities(run_draws), seconds))
    return found


def until_converged(name: str, sampler, seed: int, draws: int, budget: float) -> dict:
    """The last of runs with four times as many draws each."""
    while True:
        sampler.size = draws
        run = sampler(seed)
        seconds = run.warmup + run.sampling
        row = record(name, seed, draws, quantities(run.draws), seconds)
        row["microseconds_a_gradient"] = round(1e6 * seconds / (run.warmup_gradients + run.gradients), 1)
        if row["converged"] or 4 * seconds > budget:
            return row
        draws *= 4


def dense(problem: Problem, found: list[dict], budget: float) -> list[dict]:
    """nutpie on ``pm.MvNormal``: one chain, stopped after ``budget`` seconds, with two limits of what it can do.

    It cannot have more effective draws than draws, warm-up included. And its log density is that of the low-rank
    model, so that it needs as many gradients for an effective draw; only their cost differs.
    """
    import nutpie

    compiled = nutpie.compile_pymc_model(problem.build("dense"))
    start = time.perf_counter()
    running = nutpie.sample(
        compiled, draws=1000, tune=1000, chains=1, cores=1, seed=0, blocking=False, progress_bar=False
    )
    try:
        idata = running.wait(timeout=budget)
    except TimeoutError:
        idata = running.abort()
    seconds = time.perf_counter() - start
    steps = [idata[group]["n_steps"].values for group in ("warmup_sample_stats", "sample_stats") if group in idata]
    draws, gradients = sum(x.size for x in steps), int(sum(x.sum() for x in steps))
    others = [row for row in found if row["sampler"] == "nutpie, LowRankMvNormal"]
    rate = np.mean([row["min_ess_per_second"] * row["microseconds_a_gradient"] for row in others])
    cost = 1e6 * seconds / gradients
    row = {"sampler": "nutpie, pm.MvNormal", "seed": 0, "draws with warm-up": draws, "gradients": gradients}
    row |= {"seconds": round(seconds, 2), "microseconds_a_gradient": round(cost, 1), "converged": False}
    row |= {"draws_per_second": round(draws / seconds, 3), "min_ess_per_second": float(f"{rate / cost:.3g}")}
    print(f"nutpie, pm.MvNormal: {draws} draws, warm-up included, in {seconds:.0f} s, so at most {draws / seconds:.3g}")
    print(f"effective draws a second; by the cost of its gradients {rate / cost:.3g}", flush=True)
    return [row]


def record(name: str, seed: int, draws: int, values: np.ndarray, seconds: float) -> dict:
    dataset = az.convert_to_dataset({"x": values})
    ess, rhat = float(az.ess(dataset)["x"].min()), float(az.rhat(dataset)["x"].max())
    converged = rhat < MAX_RHAT and ess > MIN_ESS
    row = {"sampler": name, "seed": seed, "draws": draws, "min_ess": round(ess, 1), "max_rhat": round(rhat, 3)}
    row |= {"seconds": round(seconds, 2), "min_ess_per_second": round(ess / seconds, 3), "converged": converged}
    rate = f"{ess / seconds:.3g} effective draws a second"
    print(f"{name}, seed {seed}, {draws} draws:", end=" ")
    print(rate if converged else f"did not converge in {seconds:.0f} s (R-hat {rhat:.2f}), at most {rate}", flush=True)
    return row


def report() -> None:
    """Tables of the recorded runs."""
    recorded = json.loads((HERE / "factors.json").read_text())
    sampled = json.loads((HERE / "factors_pymc5.json").read_text())
    lines = [
        "# What LowRankMvNormal costs",
        "",
        "Made by `python -m benchmarks.factors report` from the records in benchmarks/.",
        "",
        f"Microseconds for a log density with its gradient, one thread, PyMC {recorded['machine']['versions']['pymc']}:"
        " `LowRankMvNormal`, a potential written by hand with Woodbury's identity and moments of the data, and"
        " `pm.MvNormal`. `pm.MvNormal` is left out where it takes more than 1e9 operations.",
        "",
        "| n | p | rows | noise | LowRankMvNormal | by hand | pm.MvNormal |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in recorded["gradients"]:
        dense = row["dense"] if isinstance(row["dense"], float) else ""
        cells = (row["n"], row["p"], row["N"], row["noise"], row["low rank"], row["by hand"], dense)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "Least effective draws per second at (100, 5, 500), tuning included and compilation not, PyMC "
        f"{sampled['machine']['versions']['pymc']}. Samplers other than StiefelNUTS use the polar factor of a Gaussian"
        " matrix. A run that has not converged gives an upper limit: draws per second for `pm.MvNormal`, which was"
        " stopped while it tuned, and effective draws for NumPyro.",
        "",
        "| sampler, likelihood | seed | effective draws per second | converged |",
        "|---|---|---|---|",
    ]
    for row in sampled["sampling"]:
        rate = row.get("draws_per_second", row["min_ess_per_second"])
        shown = f"{rate:.3g}" if row["converged"] else f"below {rate:.3g}"
        lines.append(f"| {row['sampler']} | {row['seed']} | {shown} | {'yes' if row['converged'] else 'no'} |")
    (HERE.parent / "docs" / "notes" / "factor_models.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["gradients", "sampling", "report"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "factors.json")
    options = parser.parse_args()
    if options.part == "report":
        return report()
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    results |= {"machine": machine(), "load average": os.getloadavg()}
    if options.part != "sampling":
        sizes, effort = (SIZES[:2], (3, 0.2)) if options.quick else (SIZES, (5, 0.5))
        results["gradients"] = gradients(sizes, *effort)
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    if options.part != "gradients":
        effort = (1, 50, 5.0) if options.quick else (options.seeds, 1000, BUDGET)
        results["sampling"] = sampling(*effort)
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
