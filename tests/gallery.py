"""The notebooks of docs/gallery for the tests: what runs them, and samplers that make fewer draws."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pymc as pm

import pymc_stiefel as pst
from tests import ROOT

SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("*.py"))


def load_runner():
    spec = importlib.util.spec_from_file_location("run_gallery", ROOT / "docs" / "run_gallery.py")
    runner = importlib.util.module_from_spec(spec)
    sys.modules["run_gallery"] = runner
    spec.loader.exec_module(runner)
    return runner


def uses_jax(path: Path) -> bool:
    """Whether a notebook needs JAX, and with it a process of its own: JAX and forked workers do not go together."""
    code = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    return "pst.jax" in code or "import jax" in code


def shortened(sample, draws: int, tune: int, chains: int, **always):
    """``sample`` with at most so many tuning draws, draws and chains, however it is called."""

    def short(given: int = draws, **options):
        options = options | {"tune": min(options.get("tune", tune), tune)} if tune else options
        options["chains"] = min(options.get("chains", chains), chains)
        if isinstance(options.get("initvals"), list):
            options["initvals"] = options["initvals"][: options["chains"]]
        return sample(min(options.pop("draws", given), draws), **(options | always))

    return short


def aiming_at_a_power(sample: Callable, power: float) -> Callable:
    """A wrong sampler: its density has the likelihood to the given power, above one too narrow and below too wide."""

    def wrong(*args, **options):
        model = pm.modelcontext(options.get("model"))
        with model:
            excess = pm.Potential("excess", (power - 1) * model.logp(vars=model.observed_RVs, jacobian=False))
        try:
            return sample(*args, **options)
        finally:  # the rest of the notebook has the right model
            model.potentials.remove(excess)
            del model.named_vars["excess"]

    return wrong


def make_short(monkeypatch) -> None:
    """All samplers make few draws in few chains."""
    quiet = {"progressbar": False}
    unchecked = quiet | {"compute_convergence_checks": False}
    monkeypatch.setattr(pm, "sample", shortened(pm.sample, 200, 200, 2, cores=1, **unchecked))
    monkeypatch.setattr(pst, "sample", shortened(pst.sample, 200, 200, 2, cores=1, **unchecked))
    monkeypatch.setattr(pm, "sample_smc", shortened(pm.sample_smc, 200, 0, 2, cores=1, **unchecked))
    monkeypatch.setattr(pst, "sample_chains", shortened(pst.sample_chains, 200, 200, 40, **unchecked))
