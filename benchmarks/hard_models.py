"""Models on which a sampler can be silently wrong, or slow: ``python -m benchmarks.hard_models [name ...]``.

Each entry of ``MODELS`` makes a model and defines how a run is judged: a log density that a chain has to reach, and the
quantities whose smallest effective sample size counts. Costs are counted in gradients, including those of tuning,
because times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst
from benchmarks import everyday
from benchmarks.head_to_head import SAMPLERS
from benchmarks.machine import machine, sentence

RECORD = Path(__file__).with_name("hard_models.json")
PAGE = Path(__file__).parents[1] / "docs" / "notes" / "hard_models.md"
Draws = dict[str, np.ndarray]


@dataclass(frozen=True)
class HardModel:
    """A model; ``distance`` of draws from the posterior is one number per chain, at most 1 for a correct chain."""

    model: pm.Model
    quantities: Callable[[Draws], np.ndarray]
    distance: Callable[[Draws], np.ndarray] | None = None
    build: Callable[[str], pm.Model] | None = None  # the model, or its polar expansion for nutpie


def orthonormal(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(n, p)))[0]


def entries(name: str) -> Callable[[Draws], np.ndarray]:
    return lambda draws: draws[name].reshape(*draws[name].shape[:2], -1)


def projector(name: str, columns: slice = slice(None)) -> Callable[[Draws], np.ndarray]:
    """Upper triangle of XX'."""

    def quantities(draws):
        X = draws[name][..., columns]
        rows = np.triu_indices(X.shape[-2])
        return (X @ X.swapaxes(-1, -2))[..., rows[0], rows[1]]

    return quantities


def procrustes(n: int = 20, p: int = 5, rows: int = 10_000, noise: float = 0.1) -> HardModel:
    """Regression with an orthonormal coefficient matrix; its posterior sd is about noise / sqrt(rows)."""
    rng = np.random.default_rng(0)
    truth = orthonormal(rng, n, p)
    x = rng.normal(size=(min(rows, 10_000), n)) * np.sqrt(rows / min(rows, 10_000))
    y = x @ truth + noise * rng.normal(size=(len(x), p))
    xx, xy, yy = x.T @ x, x.T @ y, (y**2).sum()
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=n, p=p)
        pm.Potential("likelihood", -0.5 * (yy - 2 * (Q * xy).sum() + (Q * (xx @ Q)).sum()) / noise**2)
    sd = noise / np.sqrt(rows)

    def distance(draws):  # of the last draws from the truth, against six standard deviations
        return np.sqrt(((draws["Q"][:, -100:] - truth) ** 2).mean((1, 2, 3))) / (6 * sd)

    return HardModel(model, entries("Q"), distance)


def langevin_peak(sd: float, n: int = 6, p: int = 2) -> HardModel:
    """tr(F'X) with a standard deviation of ``sd``."""
    F = orthonormal(np.random.default_rng(2), n, p)
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=n, p=p)
        pm.Potential("density", pt.sum(F * X) / sd**2)
    return HardModel(
        model, entries("X"), lambda draws: np.sqrt(((draws["X"][:, -100:] - F) ** 2).mean((1, 2, 3))) / (3 * sd)
    )


def envelope(n: int = 8, u: int = 2, q: int = 3, rows: int = 200) -> HardModel:
    """Khare, Pal & Su (2017): the mean moves within u material directions, which have little noise."""
    rng = np.random.default_rng(16)
    O0 = pst.geometry.polar(rng.normal(size=(n, n)))
    eta0, x = rng.normal(size=(u, q)), rng.normal(size=(rows, q))
    y = x @ eta0.T @ O0[:, :u].T + (rng.normal(size=(rows, u)) * 0.3) @ O0[:, :u].T
    y += (rng.normal(size=(rows, n - u)) * np.linspace(3, 1.5, n - u)) @ O0[:, u:].T
    with pm.Model() as model:
        O = pst.SpecialOrthogonal("O", n=n)
        w, w0 = pm.HalfNormal("w", 1, shape=u), pm.HalfNormal("w0", 3, shape=n - u)
        eta = pm.Normal("eta", 0, 1, shape=(u, q))
        residual = (y - x @ (O[:, :u] @ eta).T) @ O
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(0, pt.concatenate([w, w0])), residual).sum())

    def distance(draws):  # between the material subspaces
        U = draws["O"][:, -100:, :, :u]
        return np.sqrt(u - ((U.swapaxes(-1, -2) @ O0[:, :u]) ** 2).sum((-1, -2)).mean(1)) / 0.3

    return HardModel(model, projector("O", slice(0, u)), distance)


def random_walk(steps: int = 30, n: int = 6, p: int = 2, rows: int = 8, concentration: float = 200.0) -> HardModel:
    """Subspaces that drift in time: U_t given U_{t-1} is matrix Langevin, the data of each time are normal."""
    rng = np.random.default_rng(15)
    U0 = [orthonormal(rng, n, p)]
    while len(U0) < steps:
        U0.append(pst.geometry.polar(U0[-1] + rng.normal(size=(n, p)) / np.sqrt(concentration)))
    y = np.stack([(rng.normal(size=(rows, p)) * [3.0, 1.8]) @ U.T + 0.5 * rng.normal(size=(rows, n)) for U in U0])
    with pm.Model() as model:
        kappa = pm.HalfNormal("kappa", 300)
        U = pst.StiefelUniform("U", n=n, p=p, shape=(steps, n, p))
        pm.Potential("walk", pm.logp(pst.MatrixLangevin.dist(M=U[:-1], kappa=kappa), U[1:]).sum())
        scale, noise = pm.HalfNormal("scale", 3, shape=p), pm.HalfNormal("noise", 1)
        cov = (U * scale**2) @ U.transpose(0, 2, 1) + noise**2 * np.eye(n)
        pm.MvNormal("y", 0, cov=cov[:, None], observed=y)

    def walls(draws):  # columns that change sign from one time to the next
        U = draws["U"][:, -100:]
        return 2.0 * ((U[:, :, 1:] * U[:, :, :-1]).sum(-2).mean(1) < 0).sum((-1, -2))

    return HardModel(model, lambda draws: draws["kappa"][..., None], walls)


def factor_analysis(n: int = 30, p: int = 3, rows: int = 200) -> HardModel:
    """Noise of its own for each feature, over two decades."""
    rng = np.random.default_rng(5)
    X0 = orthonormal(rng, n, p)
    psi = rng.permutation(np.logspace(-1.3, 0.7, n))
    y = rng.normal(size=(rows, p)) * [6.0, 4.0, 2.5] @ X0.T + rng.normal(size=(rows, n)) * psi
    build = partial(everyday.factors, y.T @ y, rows, p, 2.0)
    return HardModel(build("manifold"), projector("X"), build=build)


def functional_pca() -> HardModel:
    """Curves on a grid, half of the points missing, a smooth prior; nutpie gets it whitened."""
    build = everyday.functional_pca().build
    return HardModel(build("manifold"), projector("X"), build=build)


MODELS: dict[str, Callable[[], HardModel]] = {
    "procrustes (20, 5)": procrustes,
    "procrustes (5, 2)": partial(procrustes, 5, 2),
    "procrustes, N = 10^6": partial(procrustes, 20, 5, 1_000_000, 0.01),
    "peak, sd 1e-4": partial(langevin_peak, 1e-4),
    "peak, sd 1e-6": partial(langevin_peak, 1e-6),
    "envelope": envelope,
    "random walk": random_walk,
    "factor analysis": factor_analysis,
    "functional PCA": functional_pca,
}


def run(hard: HardModel, *, chains: int, draws: int, tune: int, seed: int, **options) -> dict[str, float]:
    """Chains that are off, effective draws per 1000 gradients (of sampling, and of all), acceptance, divergences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with hard.model:
            idata = pm.sample(
                draws, tune=tune, chains=chains, random_seed=seed, progressbar=False, compute_convergence_checks=False,
                discard_tuned_samples=False, **{"cores": 1} | options,
            )  # fmt: skip
    found = {str(name): values.values for name, values in idata["posterior"].items()}
    stats, before = idata["sample_stats"], idata["warmup_sample_stats"]
    ess = az.ess(az.convert_to_dataset({"x": hard.quantities(found)}))["x"].values.min()
    gradients, tuning = int(stats["gradients"].sum()), int(before["gradients"].sum())
    off = 0 if hard.distance is None else int(np.sum(~(hard.distance(found) <= 1.0)))
    accept = stats["acceptance_rate"].values
    return {
        "off": off,
        "per 1000 gradients": 1000 * ess / gradients,
        "with tuning": 1000 * ess / (gradients + tuning),
        "tuning": tuning / chains,
        "acceptance": float(accept.mean()),
        "median": float(np.median(accept)),
        "divergences": int(stats["diverging"].sum()),
    }


def against_nutpie(hard: HardModel, *, chains: int, draws: int, tune: int, seed: int) -> dict[str, float]:
    """Ratio of the least effective draws per CPU second and per gradient, tuning included."""
    rates = {}
    for name, sampler in SAMPLERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timed = sampler(hard.build, chains, draws, tune, seed)
        found = {str(key): values.values for key, values in timed.idata["posterior"].items()}
        ess = float(az.ess(az.convert_to_dataset({"x": hard.quantities(found)}))["x"].min())
        rates[name] = ess / timed.seconds, 1000 * ess / timed.gradients
    (ours, ours_each), (theirs, theirs_each) = rates.values()
    return {
        "per second": ours,
        "nutpie per second": theirs,
        "ratio per second": ours / theirs,
        "nutpie with tuning": theirs_each,
        "ratio per gradient": ours_each / theirs_each,
    }


def report() -> str:
    """The page made of the record."""
    record = json.loads(RECORD.read_text())
    lines = [
        "# Models on which a sampler can be wrong",
        "",
        "Made by `python -m benchmarks.hard_models --report` from benchmarks/hard_models.json, which "
        "`python -m benchmarks.hard_models --record` writes. A chain is off if it is far from the posterior; "
        "benchmarks/hard_models.py defines the distance for each model. Effective draws are those of the worst "
        "identified quantity per 1000 gradients, first without and then with the gradients of tuning. The target "
        "acceptance rate is 0.8. Procrustes regressions and peaks accept more, because the step size is at its limit "
        "of 1.4: longer steps would miss U-turns, and a draw takes only three steps already.",
        "",
        f"{sentence(record['machine'])}.",
        "",
        "| model | chains | tuning | off | divergences | median acceptance | ESS per 1000 gradients | with tuning |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in record["models"].items():
        lines.append(
            f"| {name} | {row['chains']} | {row['tune']} | {row['off']} | {row['divergences']} | {row['median']:.2f} "
            f"| {row['per 1000 gradients']:.3g} | {row['with tuning']:.3g} |"
        )
    lines += [
        "",
        "Against nutpie on the polar expansion (functional PCA: whitened by its prior covariance). Four chains each, "
        "CPU seconds of the process, tuning included and compilation not.",
        "",
        "| model | StiefelNUTS, ESS per second | nutpie | ratio | ratio per gradient |",
        "|---|---|---|---|---|",
    ]
    for name, row in record["against nutpie"].items():
        lines.append(
            f"| {name} | {row['per second']:.3g} | {row['nutpie per second']:.3g} | {row['ratio per second']:.3g} "
            f"| {row['ratio per gradient']:.3g} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.hard_models", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"beginnings of: {'; '.join(MODELS)}")
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help=f"write to {RECORD.name}")
    parser.add_argument("--nutpie", action="store_true", help="compare with nutpie, where there is a twin")
    parser.add_argument("--report", action="store_true", help=f"write {PAGE.name} from the record")
    options = parser.parse_args(arguments)
    if options.report:
        PAGE.write_text(report())
        return
    logging.getLogger("pymc").setLevel(logging.ERROR)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"models": {}, "against nutpie": {}}
    setting = {name: getattr(options, name) for name in ("chains", "draws", "tune", "seed")}
    for name, make in MODELS.items():
        if options.names and not any(name.startswith(given) for given in options.names):
            continue
        hard = make()
        if options.nutpie and hard.build is None:
            continue
        counts = (against_nutpie if options.nutpie else run)(hard, **setting)
        shown = ", ".join(f"{key} {value:.3g}" for key, value in counts.items())
        print(f"{name:22s} {options.chains} chains: {shown}", flush=True)
        record["against nutpie" if options.nutpie else "models"][name] = setting | counts
        if options.record:
            RECORD.write_text(json.dumps(record | {"machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
