"""Draws of fixed models at two revisions, compared bit by bit: ``python -m benchmarks.compare_draws OLD [NEW]``.

A refactoring keeps them identical, or its commit says why not. Each revision is checked out into a git worktree of its
own and runs in a process of its own, with compile caches of its own. Without NEW the working tree is compared as it is,
with changes that are not committed. ``--keep DIRECTORY`` keeps worktrees, caches and draws for the next comparison.
Draws depend on the processor and on the versions of PyMC and its dependencies: they are made on one machine, by the
interpreter that runs this script. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
CLOCKS = ("perf_counter_diff", "perf_counter_start", "process_time_diff", "warning", "sampling_time")
"""Statistics that differ from run to run."""

Arrays = dict[str, np.ndarray]
MODELS: dict[str, Callable] = {}
"""Name -> function that builds the model in the present context and returns the step, or None for PyMC's choice."""


def _model(name: str):
    def register(build):
        MODELS[name] = build
        return build

    return register


def _uniform(n: int, p: int, step: str | None = None, **options):
    def build(pm, pst):
        pst.StiefelUniform("X", n=n, p=p)
        return getattr(pst, step)(**options) if step else None

    return build


def _langevin_bingham(step: str | None = None, **options):
    def build(pm, pst):
        F = 5 * np.eye(6, 2)[::-1]
        pst.MatrixBinghamLangevin("X", F=F, A=np.diag(np.arange(6.0)), B=np.diag([1.0, 0.5]))
        return getattr(pst, step)(**options) if step else None

    return build


MODELS |= {f"uniform ({n}, {p})": _uniform(n, p) for n, p in [(10, 1), (3, 3), (30, 3)]}
MODELS["Langevin-Bingham"] = _langevin_bingham()
for _name in ("OrthogonalHMC", "GeodesicHMC"):
    MODELS[f"Langevin-Bingham, {_name}"] = _langevin_bingham(_name)
    MODELS[f"Langevin-Bingham, {_name}, n_steps"] = _langevin_bingham(_name, n_steps=7)
    MODELS[f"uniform (3, 3), {_name}, path_length"] = _uniform(3, 3, _name, path_length=1.5)


def _noisy_directions(rows: int, n: int, p: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.standard_normal((n, p)))[0]
    return rng.standard_normal((rows, p)) * np.geomspace(5, 1.5, p) @ directions.T + rng.standard_normal((rows, n))


@_model("ppca, ordered scales")
def _ppca(pm, pst):
    import pytensor.tensor as pt
    from pymc.distributions.transforms import Chain, log, ordered

    rows, n, p = 100, 20, 3
    Y = _noisy_directions(rows, n, p)
    gram = pm.Data("gram", Y.T @ Y)
    U = pst.StiefelUniform("U", n=n, p=p)
    start = np.arange(1, p + 1.0)
    scale = pm.HalfNormal("scale", 5, shape=p, default_transform=Chain([log, ordered]), initval=start)
    noise = pm.HalfNormal("noise", 2)
    shrink = scale**2 / (scale**2 + noise**2)
    quadratic = (pt.trace(gram) - pt.sum(shrink * pt.sum(U * (gram @ U), axis=0))) / noise**2
    log_det = pt.sum(pt.log(scale**2 + noise**2)) + (n - p) * pt.log(noise**2)
    pm.Potential("likelihood", -0.5 * (rows * log_det + quadratic))


@_model("subspace")
def _subspace(pm, pst):
    U = pst.Grassmann("U", n=8, p=3)
    pm.Potential("likelihood", ((U @ U.T) * np.diag(np.linspace(8.0, 0.0, 8))).sum())


@_model("batch of matrices")
def _batch(pm, pst):
    X = pst.StiefelUniform("X", n=5, p=2, shape=(3, 5, 2))
    pm.Normal("y", X[..., 0] @ np.linspace(1, 2, 5), 0.3, observed=[0.5, 1.0, 1.5])


@_model("vectors")
def _vectors(pm, pst):
    kappa = pm.Gamma("kappa", 2, 0.1)
    mu = pst.UnitVector("mu", n=3)
    observed = np.random.default_rng(2).normal([1.0, 0.0, 0.0], 0.3, size=(50, 3))
    pst.VonMisesFisher("x", mu=mu, kappa=kappa, observed=observed / np.linalg.norm(observed, axis=1, keepdims=True))


@_model("compound with a discrete variable")
def _compound(pm, pst):
    u = pst.UnitVector("u", n=4)
    flip = pm.Bernoulli("flip", 0.3, shape=30)
    y = np.random.default_rng(3).normal(size=(30, 4))
    pm.Normal("y", (1 - 2 * flip)[:, None] * u, 0.7, observed=y)


@_model("OrthogonalSGHMC with minibatches")
def _minibatches(pm, pst):
    U = pst.StiefelUniform("U", n=6, p=2)
    offset = pm.Normal("offset")
    rows = pm.Minibatch(_noisy_directions(500, 6, 2), batch_size=50)
    pm.Normal("y", offset + rows @ U @ U.T, 3.0, observed=rows, total_size=(500, None))
    return pst.OrthogonalSGHMC(step_size=0.01, n_steps=5)


# ---------------------------------------------------------------- one revision, in its own process


def draw(names: list[str], output: Path) -> None:
    """Sample the models with whatever pymc_stiefel is on the path, and save draws and statistics."""
    import logging
    import warnings

    import pymc as pm

    import pymc_stiefel as pst

    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    found: Arrays = {}
    for name in names:
        with pm.Model():
            step = MODELS[name](pm, pst)
            options = {"compute_convergence_checks": False, "progressbar": False, "return_inferencedata": False}
            trace = pm.sample(150, tune=350, chains=2, cores=1, step=step, random_seed=[11, 12], **options)
        for variable in trace.varnames:
            found[f"{name}/draws/{variable}"] = trace.get_values(variable, combine=True)
        for statistic in sorted(trace.stat_names - set(CLOCKS)):
            found[f"{name}/statistics/{statistic}"] = np.asarray(trace.get_sampler_stats(statistic), dtype=float)
        print(f"  {name}", file=sys.stderr, flush=True)
    np.savez(output, **found)


# ---------------------------------------------------------------- two revisions


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def draws_at(revision: str | None, names: list[str], directory: Path) -> Arrays:
    """Draws at a revision; of the working tree for None. Those of a commit are made once for a ``directory``."""
    commit = "working-tree" if revision is None else _git("rev-parse", f"{revision}^{{commit}}")
    caches, tree = directory / "caches" / commit, ROOT if revision is None else directory / "trees" / commit
    chosen = hashlib.sha256("\n".join([sys.version, Path(__file__).read_text(), *names]).encode()).hexdigest()[:8]
    output = directory / f"{commit}-{chosen}.npz"
    if revision is not None and not tree.exists():
        _git("worktree", "add", "--detach", str(tree), commit)
    if revision is None or not output.exists():
        environment = os.environ | {
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(tree),
            "PYTHONHASHSEED": "0",
            "NUMBA_CACHE_DIR": str(caches / "numba"),
            "PYTENSOR_FLAGS": f"base_compiledir={caches / 'pytensor'}",
        }
        print(f"{revision or 'working tree'} ({commit[:12]})", file=sys.stderr, flush=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--draw", str(output), "--models", *names]
        subprocess.run(command, cwd=directory, env=environment, check=True)
    with np.load(output) as saved:
        return dict(saved)


def differences(old: Arrays, new: Arrays, names: list[str]) -> list[tuple[str, str]]:
    """For each model what differs, as a text: empty if every number of draws and statistics has the same bits."""
    table = []
    for name in names:
        keys = sorted(key for key in old.keys() | new.keys() if key.startswith(f"{name}/"))
        table.append((name, "; ".join(filter(None, (_difference(key, old, new) for key in keys))) if keys else "empty"))
    return table


def _difference(key: str, old: Arrays, new: Arrays) -> str:
    label = key.split("/", 1)[1]
    if key not in old or key not in new:
        return f"{label} only in {'NEW' if key in new else 'OLD'}"
    before, after = old[key], new[key]
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"{label} {before.dtype}{before.shape} became {after.dtype}{after.shape}"
    rows = [a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True)]
    return f"{label} {sum(rows)} of {len(rows)} from draw {rows.index(True)}" if any(rows) else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.compare_draws", description=__doc__.splitlines()[0])
    parser.add_argument("old", nargs="?", metavar="OLD", help="a revision")
    parser.add_argument("new", nargs="?", metavar="NEW", help="another one; default: the working tree")
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME", help="; ".join(MODELS))
    parser.add_argument("--keep", type=Path, help="directory to keep for the next comparison")
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no such models: {sorted(unknown)}")
    if options.draw:
        draw(options.models, options.draw)
        return 0
    if options.old is None:
        parser.error("name a revision to compare with")
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.keep or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        try:
            old, new = (draws_at(revision, options.models, directory) for revision in (options.old, options.new))
        finally:
            if options.keep is None:
                for tree in (directory / "trees").glob("*"):
                    _git("worktree", "remove", "--force", str(tree))
    table = differences(old, new, options.models)
    width = max(len(name) for name, _ in table)
    for name, text in table:
        print(f"{name:{width}s}  {'differs: ' + text if text else 'identical'}")
    return int(any(text for _, text in table))


if __name__ == "__main__":
    sys.exit(main())
