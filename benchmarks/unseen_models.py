"""Models that nobody tuned the sampler on, looked at once: ``python -m benchmarks.unseen_models --record``.

Each was written down, with the seed of its data, before it was sampled for the first time. A run makes four chains of
500 + 1000 draws with ``pst.sample`` and with nutpie on the polar expansion, one thread each, and judges both by the
same rule: every chain has to be where the posterior is (its mean log density within 10 nats, or two standard
deviations, of the best chain of either sampler), and chains have to agree on what is identified (R-hat below 1.05).
Seconds are CPU time of the process, tuning included and compilation excluded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from scipy.optimize import linear_sum_assignment

import pymc_stiefel as pst
from benchmarks.head_to_head import SAMPLERS
from benchmarks.machine import machine, sentence
from benchmarks.problems import Draws, Problem, entries, orthonormal
from pymc_stiefel.analysis._check import Tested

RECORD = Path(__file__).with_name("unseen_models.json")
PAGE = Path(__file__).parents[1] / "docs" / "notes" / "unseen_models.md"
CHAINS, TUNE, DRAWS = 4, 500, 1000
NATS, RHAT = 10.0, 1.05


def frame(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    return pst.geometry.polar(rng.normal(size=(n, p)))


def cca(n: int = 8, q: int = 6, p: int = 2, rows: int = 150) -> Problem:
    """Canonical correlations of whitened data: (x, y) is normal with cross-covariance U diag(rho) V'."""
    rng = np.random.default_rng(101)
    U0, V0, rho0 = frame(rng, n, p), frame(rng, q, p), np.array([0.9, 0.6])
    x = rng.normal(size=(rows, n))
    y = rng.normal(size=(rows, q))
    y += (x @ U0 * rho0 + (y @ V0) * (np.sqrt(1 - rho0**2) - 1)) @ V0.T
    xx, xy, yy = x.T @ x, x.T @ y, y.T @ y

    def build(expansion):
        with pm.Model() as model:
            U, V = orthonormal("U", n, p, expansion), orthonormal("V", q, p, expansion)
            rho = pm.Uniform("rho", 0, 1, shape=p)
            a, b = (U * (xx @ U)).sum(0), (V * (yy @ V)).sum(0)
            c = (U * (xy @ V)).sum(0)
            quadratic = ((rho**2 * (a + b) - 2 * rho * c) / (1 - rho**2)).sum()
            pm.Potential("likelihood", -0.5 * (rows * pt.log1p(-(rho**2)).sum() + quadratic))
        return model

    def quantities(draws):
        return entries((draws["U"] * draws["rho"][..., None, :]) @ draws["V"].swapaxes(-1, -2), 48)

    return Problem(build, quantities)


def ica(n: int = 6, rows: int = 600) -> Problem:
    """Unmixing of whitened data into heavy-tailed sources with Student's t."""
    rng = np.random.default_rng(102)
    W0 = frame(rng, n, n)
    x = rng.standard_t(4, size=(rows, n)) @ W0.T

    def build(expansion):
        with pm.Model() as model:
            W = orthonormal("W", n, n, expansion)
            scale = pm.HalfNormal("scale", 2, shape=n)
            pm.Potential("sources", pm.logp(pm.StudentT.dist(nu=4, mu=0, sigma=scale), x @ W).sum())
        return model

    def quantities(draws):  # sources in the order and with the signs of the true ones
        W = draws["W"]
        out = np.empty(W.shape)
        for c, d in itertools.product(*map(range, W.shape[:2])):
            overlap = W0.T @ W[c, d]
            found = linear_sum_assignment(-np.abs(overlap))[1]
            out[c, d] = W[c, d][:, found] * np.sign(overlap[np.arange(n), found])
        return entries(out, 36)

    return Problem(build, quantities)


def tucker(shape: tuple[int, ...] = (15, 12, 10), ranks: tuple[int, ...] = (3, 2, 2)) -> Problem:
    """A noisy tensor of three ways with a small core."""
    rng = np.random.default_rng(103)
    frames = [frame(rng, n, r) for n, r in zip(shape, ranks, strict=True)]
    mean = np.einsum("abc,ia,jb,kc->ijk", 8 * rng.normal(size=ranks), *frames)
    y = mean + 0.5 * rng.normal(size=shape)

    def build(expansion):
        with pm.Model() as model:
            A, B, C = (orthonormal(name, n, r, expansion) for name, n, r in zip("ABC", shape, ranks, strict=True))
            core = pm.Normal("core", 0, 10, shape=ranks)
            flat = A @ core.reshape((ranks[0], -1))  # 15 x (b c)
            BC = (B[:, None, :, None] * C[None, :, None, :]).reshape((shape[1] * shape[2], -1))
            pm.Normal("y", flat @ BC.T, pm.HalfNormal("noise", 1), observed=y.reshape(shape[0], -1))
        return model

    def quantities(draws):
        A, B, C = (draws[name][:, :, :4] for name in "ABC")
        found = np.einsum("cdxyz,cdix,cdjy,cdkz->cdijk", draws["core"], A, B, C, optimize=True)
        return np.concatenate([entries(found, 40), draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


def common_components(n: int = 6, groups: int = 4, rows: int = 80) -> Problem:
    """Covariances of several groups with the same principal components, each with variances of its own."""
    rng = np.random.default_rng(104)
    Q0 = frame(rng, n, n)
    sd0 = np.exp(rng.normal(0, 0.8, size=(groups, n)))
    moments = []
    for g in range(groups):
        y = rng.normal(size=(rows, n)) * sd0[g] @ Q0.T
        moments.append(y.T @ y)
    S = np.stack(moments)

    def build(expansion):
        with pm.Model() as model:
            Q = orthonormal("Q", n, n, expansion)
            sd = pm.LogNormal("sd", 0, 1, shape=(groups, n))
            quadratic = (Q[None] * (pt.constant(S) @ Q)).sum(1)  # groups x n
            pm.Potential("likelihood", -(rows * pt.log(sd) + 0.5 * quadratic / sd**2).sum())
        return model

    def quantities(draws):
        Q = draws["Q"][:, :, None]
        return entries((Q * draws["sd"][..., None, :] ** 2) @ Q.swapaxes(-1, -2), 60)

    return Problem(build, quantities)


def network_layer(n: int = 10, hidden: int = 4, rows: int = 300) -> Problem:
    """Regression by a network whose hidden layer has orthonormal weights."""
    rng = np.random.default_rng(105)
    X0 = frame(rng, n, hidden)
    x, fresh = rng.normal(size=(rows, n)), rng.normal(size=(20, n))
    gain0, bias0, out0 = np.array([2.0, 1.5, 1.0, 3.0]), rng.normal(size=hidden), np.array([2.0, -1.5, 1.0, 2.5])
    y = np.tanh(x @ X0 * gain0 + bias0) @ out0 + 0.2 * rng.normal(size=rows)

    def build(expansion):
        with pm.Model() as model:
            X = orthonormal("X", n, hidden, expansion)
            gain, bias = pm.HalfNormal("gain", 3, shape=hidden), pm.Normal("bias", 0, 1, shape=hidden)
            out = pm.Normal("out", 0, 2, shape=hidden)
            layer = pt.tanh(x @ X * gain + bias)
            pm.Normal("y", layer @ out, pm.HalfNormal("noise", 1), observed=y)
        return model

    def quantities(draws):
        layer = np.tanh(fresh @ draws["X"] * draws["gain"][..., None, :] + draws["bias"][..., None, :])
        predicted = (layer @ draws["out"][..., None])[..., 0]
        return np.concatenate([predicted, draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


def process_on_subspace(n: int = 8, p: int = 2, rows: int = 80) -> Problem:
    """A Gaussian process on x U: its kernel depends on two directions of eight."""
    rng = np.random.default_rng(106)
    U0, x = frame(rng, n, p), rng.normal(size=(rows, n))
    z = x @ U0
    y = np.sin(1.5 * z[:, 0]) + 0.5 * z[:, 1] ** 2 + 0.1 * rng.normal(size=rows)
    y = (y - y.mean()) / y.std()

    def build(expansion):
        with pm.Model() as model:
            U = orthonormal("U", n, p, expansion)
            length = pm.InverseGamma("length", 3, 3, shape=p)
            height, noise = pm.HalfNormal("height", 2), pm.HalfNormal("noise", 0.5)
            z = (x @ U) / length
            norm = (z**2).sum(1)
            distance = norm[:, None] + norm[None, :] - 2 * z @ z.T
            cov = height**2 * pt.exp(-0.5 * distance) + (noise**2 + 1e-6) * pt.eye(rows)
            pm.MvNormal("y", np.zeros(rows), cov=cov, observed=y)
        return model

    def quantities(draws):
        U = draws["U"]
        relevance = (U / draws["length"][..., None, :] ** 2) @ U.swapaxes(-1, -2)
        return np.concatenate([entries(relevance, 64), draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


def mixture_of_planes(n: int = 6, p: int = 2, groups: int = 2, rows: int = 200) -> Problem:
    """Clusters about the origin that differ in the plane in which they vary; labels summed out."""
    rng = np.random.default_rng(107)
    frames, label = [frame(rng, n, p) for _ in range(groups)], rng.integers(groups, size=rows)
    y = np.stack([frames[g] @ (rng.normal(size=p) * [4.0, 2.5]) for g in label]) + 0.7 * rng.normal(size=(rows, n))

    def build(expansion):
        with pm.Model() as model:
            U = [orthonormal(f"U{g}", n, p, expansion) for g in range(groups)]
            scale, noise = pm.HalfNormal("scale", 5, shape=(groups, p)), pm.HalfNormal("noise", 2)
            weight, terms = pm.Dirichlet("weight", np.ones(groups)), []
            for g in range(groups):
                shrink = scale[g] ** 2 / (scale[g] ** 2 + noise**2)
                quadratic = ((y**2).sum(1) - ((y @ U[g]) ** 2 * shrink).sum(1)) / noise**2
                log_det = pt.log(scale[g] ** 2 + noise**2).sum() + (n - p) * 2 * pt.log(noise)
                terms.append(pt.log(weight[g]) - 0.5 * (quadratic + log_det))
            pm.Potential("likelihood", pt.logsumexp(pt.stack(terms), axis=0).sum())
        return model

    def quantities(draws):  # the mean of the two covariances does not depend on labels
        W = [draws[f"U{g}"] * draws["scale"][..., g, None, :] for g in range(groups)]
        return np.concatenate([entries(sum(w @ w.swapaxes(-1, -2) for w in W), 36), draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


def counts(rows: int = 40, columns: int = 15, p: int = 2) -> Problem:
    """A low-rank table of log rates, seen through Poisson counts."""
    rng = np.random.default_rng(108)
    rate = (frame(rng, rows, p) * [14.0, 8.0]) @ frame(rng, columns, p).T + 1.0
    y = rng.poisson(np.exp(rate))

    def build(expansion):
        with pm.Model() as model:
            U, V = orthonormal("U", rows, p, expansion), orthonormal("V", columns, p, expansion)
            scale, level = pm.HalfNormal("scale", 15, shape=p), pm.Normal("level", 0, 2)
            pm.Poisson("y", pt.exp(level + (U * scale) @ V.T), observed=y)
        return model

    def quantities(draws):
        table = (draws["U"] * draws["scale"][..., None, :]) @ draws["V"].swapaxes(-1, -2)
        return np.concatenate([entries(table, 60), draws["level"][..., None]], axis=-1)

    return Problem(build, quantities)


def intensities(n: int = 10, p: int = 2, rows: int = 150) -> Problem:
    """Phase retrieval: of the projections of x on two directions only their sum of weighted squares is seen."""
    rng = np.random.default_rng(109)
    U0, x = frame(rng, n, p), rng.normal(size=(rows, n))
    y = (x @ U0) ** 2 @ np.array([3.0, -1.5]) + 0.3 * rng.normal(size=rows)

    def build(expansion):
        with pm.Model() as model:
            U, weight = orthonormal("U", n, p, expansion), pm.Normal("weight", 0, 3, shape=p)
            pm.Normal("y", ((x @ U) ** 2 * weight).sum(1), pm.HalfNormal("noise", 1), observed=y)
        return model

    def quantities(draws):
        U = draws["U"]
        return entries((U * draws["weight"][..., None, :]) @ U.swapaxes(-1, -2), 100)

    return Problem(build, quantities)


MODELS: dict[str, Callable[[], Problem]] = {
    "CCA": cca,
    "ICA": ica,
    "Tucker": tucker,
    "common principal components": common_components,
    "network layer": network_layer,
    "Gaussian process on x U": process_on_subspace,
    # written down after the sampler had been changed by what was seen, to confirm
    "mixture of planes": mixture_of_planes,
    "Poisson counts": counts,
    "phase retrieval": intensities,
}


# ---------------------------------------------------------------- looking at them


def _log_densities(tested: Tested, draws: Draws) -> tuple[np.ndarray, float]:
    """Mean of each chain over 100 of its draws, by the model on the manifold, and the sd within chains."""
    values = np.array(
        [
            [float(tested.logp({name: x[chain, draw] for name, x in draws.items()})) for draw in range(9, DRAWS, 10)]
            for chain in range(CHAINS)
        ]
    )
    return values.mean(1), float(np.sqrt(values.var(1).mean()))


def look(make: Callable[[], Problem], seed: int) -> dict[str, dict[str, Any]]:
    """Both samplers on one model, judged by the rule above."""
    problem, rows, found, means, sds = make(), {}, {}, {}, {}
    model = problem.build("manifold")
    for name, sampler in SAMPLERS.items():
        idata, seconds, gradients = sampler(problem.build, CHAINS, DRAWS, TUNE, seed)
        draws = {str(key): values.values for key, values in idata["posterior"].items()}
        free = {rv.name: draws[rv.name] for rv in model.free_RVs}
        said = pst.check(idata, model)
        x = az.convert_to_dataset({"x": problem.quantities(draws)})
        ess, found[name] = float(az.ess(x)["x"].min()), problem.quantities(draws)
        means[name], sds[name] = _log_densities(Tested(model, free), free)
        rows[name] = {
            "rhat": float(az.rhat(x)["x"].max()),
            "min_ess": ess,
            "per_second": ess / seconds,
            "per_1000_gradients": 1000 * ess / gradients,
            "seconds": seconds,
            "gradients": gradients,
            "divergences": int(idata["sample_stats"]["diverging"].sum()),
            "mean_log_density": means[name].round(1).tolist(),
            "check": [f"{warning.level}: {warning.message}" for warning in said],
        }
    best = max(values.max() for values in means.values())
    for name, row in rows.items():
        allowed = max(NATS, 2 * sds[name])
        row["off"] = int(np.sum(means[name] < best - allowed))
        row["right"] = row["off"] == 0 and row["rhat"] < RHAT
        row["warned"] = any(text.startswith("error") or "rhat" in text for text in row["check"])
    rows["agreement"] = _agreement(*found.values())
    return rows


def _agreement(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Differences of means, in their standard errors, and in standard deviations of the posterior."""
    one, two = (xr.DataArray(part, dims=("chain", "draw", "k")).to_dataset(name="x") for part in (x, y))
    error = np.sqrt(az.mcse(one)["x"].values ** 2 + az.mcse(two)["x"].values ** 2)
    gap = x.mean((0, 1)) - y.mean((0, 1))
    return {
        "rms_z": float(np.sqrt(np.nanmean((gap / error) ** 2))),
        "largest_in_sd": float(np.nanmax(np.abs(gap) / np.sqrt((x.var((0, 1)) + y.var((0, 1))) / 2))),
    }


def report() -> str:
    """The page made of the record."""
    record = json.loads(RECORD.read_text())
    lines = [
        "# Models that were not used for tuning the sampler",
        "",
        "Made by `python -m benchmarks.unseen_models --report` from benchmarks/unseen_models.json. The models "
        "and the seeds of their data were fixed before anything was sampled, and the results were looked at once: the "
        f"first six before the changes that followed, the others after them. {CHAINS} chains of {TUNE} + "
        f"{DRAWS} draws by `pst.sample` and by nutpie on the polar expansion. A sampler is right if no chain "
        f"is far below the best in mean log density ({NATS:.0f} nats, or two standard deviations) and R-hat of "
        f"identified quantities is below {RHAT}. Effective draws are those of the worst identified quantity, "
        "tuning included; seconds are CPU time. The last two columns compare posterior means: root mean "
        "square of differences in standard errors, and the largest one in posterior standard deviations.",
        "",
        f"{sentence(record['machine'])}. The machine was busy: gradients are comparable, seconds only within a row.",
        "",
        "| model | right | nutpie right | divergences | ESS per 1000 gradients | nutpie | ESS per second | nutpie "
        "| ratio | z | sd |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in record["models"].items():
        one, two, agreement = rows["StiefelNUTS"], rows["nutpie, polar"], rows["agreement"]
        right = ["yes" if row["right"] else f"no ({row['off']} chains off)" for row in (one, two)]
        lines.append(
            f"| {name} | {right[0]} | {right[1]} | {one['divergences']}, {two['divergences']} "
            f"| {one['per_1000_gradients']:.3g} | {two['per_1000_gradients']:.3g} | {one['per_second']:.3g} "
            f"| {two['per_second']:.3g} | {one['per_second'] / two['per_second']:.3g} | {agreement['rms_z']:.2f} "
            f"| {agreement['largest_in_sd']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.unseen_models", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"beginnings of: {'; '.join(MODELS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help=f"write to {RECORD.name}")
    parser.add_argument("--report", action="store_true", help=f"write {PAGE.name} from the record")
    options = parser.parse_args(arguments)
    if options.report:
        PAGE.write_text(report())
        return
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {"models": {}}
    for name, make in MODELS.items():
        if options.names and not any(name.startswith(given) for given in options.names):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = look(make, options.seed)
        print(name, json.dumps(rows, indent=1), flush=True)
        known["models"][name] = rows
        if options.record:
            RECORD.write_text(json.dumps(known | {"seed": options.seed, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
