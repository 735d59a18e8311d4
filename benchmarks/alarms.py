"""How often ``pst.check`` is wrong, about healthy and about trapped chains: ``python -m benchmarks.alarms``.

``healthy``: the models of the gallery and of examples/quickstart.py and rotation.py, several runs of each as a user
makes them (``pst.sample`` with its own length of tuning). An alarm is a warning that a chain is trapped, that mean log
densities differ, that the acceptance is far from its target, or that masses were still changing.

``trapped``: models whose chains start where they cannot leave: the envelope regression from random rotations (a given
start is not searched) and a regression on sin(a x'u). A chain is lost if its mean log density is more than 20 nats, and
more than four standard deviations, below that of a chain from the truth; a run with a lost chain is missed if
``pst.check`` says neither that a chain is trapped nor that mean log densities differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm

import pymc_stiefel as pst
from benchmarks import hard_models
from benchmarks.machine import machine

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("alarms.json")
OWN_SAMPLER = ("chains_on_dask", "many_chains_jax", "how_many_components")  # notebooks about other samplers
ALARMS = {
    "trapped": "is trapped",
    "log densities": "mean log density of chain",
    "acceptance": "acceptance probability does not match",
    "masses": "Masses were still changing",
}
LOST, DEVIATIONS = 20.0, 4.0


class Captured(Exception):
    """Carries the model that a script was about to sample, and where its chains were to start."""


def captured(script: Path) -> tuple[pm.Model, Any]:
    """The first model that a script samples."""

    def stop(*_, **options):
        raise Captured(pm.modelcontext(options.get("model")), options.get("initvals"))

    with mock.patch.object(pm, "sample", stop), mock.patch.object(pst, "sample", stop):
        try:
            runpy.run_path(str(script))
        except Captured as found:
            return found.args
    raise RuntimeError(f"{script.name} samples nothing")


def _example(name: str):
    sys.path.insert(0, str(ROOT / "examples"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rotation() -> tuple[pm.Model, None]:
    example = _example("rotation")
    x, y, _ = example.simulate(np.random.default_rng(1))
    return example.build_model(x, y), None


def healthy_models() -> dict[str, Callable[[], tuple[pm.Model, Any]]]:
    scripts = {
        script.stem: (lambda script=script: captured(script))
        for script in sorted((ROOT / "docs" / "gallery").glob("*.py"))
        if script.stem not in OWN_SAMPLER
    }
    return scripts | {"examples/rotation": rotation}


def said(idata: Any, model: pm.Model) -> list[str]:
    """Which alarms ``pst.check`` raised."""
    messages = [warning.message for warning in pst.check(idata, model)]
    return [name for name, words in ALARMS.items() if any(words in message for message in messages)]


def sample(model: pm.Model, seed: int, **options: Any) -> Any:
    options = {"draws": 300, "chains": 4} | options
    return pst.sample(
        model=model, cores=1, random_seed=seed, quiet=True, compute_convergence_checks=False, **options
    )  # fmt: skip


def healthy(seeds: int, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, make in healthy_models().items():
        if names and name not in names:
            continue
        model, starts = make()
        rows = []
        for seed in range(1, seeds + 1):
            idata = sample(model, seed, initvals=starts)
            change = idata["sample_stats"]["mass_change"].values[:, -1]
            rows.append({"alarms": said(idata, model), "mass_change": [round(float(x), 2) for x in change]})
        yield name, {"runs": seeds, "with an alarm": sum(bool(row["alarms"]) for row in rows), "each": rows}


# ---------------------------------------------------------------- trapped chains


def waves(seed: int, n: int = 6, rows: int = 150) -> tuple[pm.Model, dict, list]:
    """y = sin(a x'u) + noise: ridges of the likelihood everywhere."""
    rng = np.random.default_rng(200 + seed)
    u0, a0, x = pst.draws.haar(n, 1, rng=rng)[:, 0], 4.0, rng.normal(size=(rows, n))
    y = np.sin(a0 * x @ u0) + 0.1 * rng.normal(size=rows)
    with pm.Model() as model:
        u, a = pst.UnitVector("u", n=n), pm.HalfNormal("a", 3)
        pm.Normal("y", pm.math.sin(a * (x @ u)), pm.HalfNormal("noise", 1), observed=y)
    return model, {"u": u0, "a": a0, "noise": 0.1}, [None] * 4


def envelope(seed: int) -> tuple[pm.Model, dict, list]:
    """Chains from random rotations, which the sampler does not search."""
    model = hard_models.envelope().model
    rng, starts = np.random.default_rng(300 + seed), []
    for _ in range(4):
        Q = pst.geometry.rotation(rng.normal(size=(8, 8)))
        starts.append({"O": Q})
    point = pst.initial_points(model, 1, random_seed=seed)[0]
    return model, {name: point[name] for name in ("O",)}, starts


def trapped(seeds: int, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, make in {"waves": waves, "envelope": envelope}.items():
        if names and name not in names:
            continue
        rows = []
        for seed in range(1, seeds + 1):
            model, truth, starts = make(seed)
            options = {} if starts[0] is None else {"initvals": starts}
            idata = sample(model, seed, tune=300, **options)
            reference = sample(model, seed, tune=300, chains=1, initvals=[truth])["sample_stats"]["lp"].values[0]
            means = idata["sample_stats"]["lp"].values.mean(1)
            below = reference.mean() - means
            lost = int(np.sum(below > max(LOST, DEVIATIONS * reference.std())))
            rows.append({"lost": lost, "nats": [round(float(b)) for b in below], "alarms": said(idata, model)})
        with_lost = [row for row in rows if row["lost"]]
        missed = sum(not {"trapped", "log densities"} & set(row["alarms"]) for row in with_lost)
        yield name, {"runs": seeds, "with a lost chain": len(with_lost), "missed": missed, "each": rows}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.alarms", description=__doc__)
    parser.add_argument("kind", choices=["healthy", "trapped"])
    parser.add_argument("names", nargs="*", help="models; default: all")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--record", action="store_true", help=f"write to {RECORD.name}")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    runs = healthy if options.kind == "healthy" else trapped
    for name, row in runs(options.seeds, options.names):
        print(name, row, flush=True)
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        record.setdefault(options.kind, {})[name] = row
        if options.record:
            RECORD.write_text(json.dumps(record | {"machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
