"""The samplers, each as a user would call it: compile once, then one run for each seed.

A sampler is made with a problem, which compiles what can be compiled beforehand; calling it with a seed returns a
:class:`Run`. All run their chains one after the other on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import pymc as pm

import pymc_stiefel as pst
from benchmarks.constrained import Mici
from benchmarks.problems import Problem
from benchmarks.runs import CHAINS, Run


def gradients(stats) -> int:
    """How many were evaluated: PyMC's own steps have one each."""
    return int(stats["gradients" if "gradients" in stats else "n_steps"].values.sum())


class PyMC:
    """``pm.sample`` with a given step; None leaves the choice to PyMC, which is its NUTS for an expanded model."""

    def __init__(
        self, problem: Problem, draws: int, expansion: str, step: Callable | None, chains: int = CHAINS
    ) -> None:
        self.problem, self.size, self.make_step, self.chains = problem, draws, step, chains
        self.model = problem.build(expansion)
        self.options: dict = {}

    def __call__(self, seed: int) -> Run:
        start = time.perf_counter()
        with self.model:
            if not self.options:  # a step starts every chain anew, so it serves all seeds
                self.options = {"step": self.make_step()} if self.make_step else self._nuts_options()
            idata = pm.sample(
                self.size,
                tune=self.size,
                chains=self.chains,
                cores=1,
                random_seed=seed,
                discard_tuned_samples=False,
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
                **self.options,
            )
        total = time.perf_counter() - start
        seconds = float(idata["posterior"].attrs["sampling_time"])
        stats, before = idata["sample_stats"], idata["warmup_sample_stats"]
        begin, each = (stats[f"perf_counter_{name}"].values for name in ("start", "diff"))
        sampling = float(np.sum(begin[:, -1] + each[:, -1] - begin[:, 0]))
        return Run(
            draws={name: idata["posterior"][name].values for name in idata["posterior"].data_vars},
            compile=total - seconds,
            warmup=seconds - sampling,
            sampling=sampling,
            warmup_gradients=gradients(before),
            gradients=gradients(stats),
            divergences=int(stats["diverging"].values.sum()),
        )

    def _nuts_options(self) -> dict:
        init = "jitter+adapt_diag" if self.problem.jitter else "adapt_diag"
        return {"nuts_sampler": "pymc", "init": init, "compile_kwargs": {"mode": "NUMBA"}}


class Nutpie:
    """nutpie, which does not say when warm-up ended: its seconds are split in proportion to gradients."""

    def __init__(self, problem: Problem, draws: int, expansion: str, low_rank: bool = False) -> None:
        self.size = draws
        self.model = problem.build(expansion)
        self.jitter = {} if problem.jitter else {"jitter_rvs": set()}
        self.compiled = None
        old = tuple(map(int, version("nutpie").split(".")[:3])) < (0, 16, 9)
        wanted = {"low_rank_modified_mass_matrix": True} if old else {"adaptation": "low_rank"}
        self.options = wanted if low_rank else {}

    def __call__(self, seed: int) -> Run:
        import nutpie

        start = time.perf_counter()
        if self.compiled is None:
            self.compiled = nutpie.compile_pymc_model(self.model, **self.jitter)
        compiled = time.perf_counter()
        idata = nutpie.sample(
            self.compiled,
            draws=self.size,
            tune=self.size,
            chains=CHAINS,
            cores=1,
            seed=seed,
            progress_bar=False,
            **self.options,
        )
        seconds = time.perf_counter() - compiled
        stats = idata["sample_stats"]
        before = int(idata["warmup_sample_stats"]["n_steps"].values.sum())
        after = int(stats["n_steps"].values.sum())
        return Run(
            draws={name: idata["posterior"][name].values for name in idata["posterior"].data_vars},
            compile=compiled - start,
            warmup=seconds * before / (before + after),
            sampling=seconds * after / (before + after),
            warmup_gradients=before,
            gradients=after,
            divergences=int(stats["diverging"].values.sum()),
        )


OURS = ("StiefelNUTS", "OrthogonalHMC", "GeodesicHMC")
SAMPLERS: dict[str, Callable[[Problem, int], Callable[[int], Run]]] = {
    "StiefelNUTS": lambda problem, draws: PyMC(problem, draws, "manifold", pst.StiefelNUTS),
    "OrthogonalHMC": lambda problem, draws: PyMC(problem, draws, "manifold", pst.OrthogonalHMC),
    "GeodesicHMC": lambda problem, draws: PyMC(problem, draws, "manifold", pst.GeodesicHMC),
    "nutpie, polar": lambda problem, draws: Nutpie(problem, draws, "polar"),
    "nutpie, QR": lambda problem, draws: Nutpie(problem, draws, "qr"),
    "nutpie low rank, polar": lambda problem, draws: Nutpie(problem, draws, "polar", low_rank=True),
    "nutpie low rank, QR": lambda problem, draws: Nutpie(problem, draws, "qr", low_rank=True),
    "PyMC NUTS, polar": lambda problem, draws: PyMC(problem, draws, "polar", None),
    "PyMC NUTS, QR": lambda problem, draws: PyMC(problem, draws, "qr", None),
    "PyMC HMC, polar": lambda problem, draws: PyMC(
        problem, draws, "polar", lambda: pm.HamiltonianMC(compile_kwargs={"mode": "NUMBA"})
    ),
    "mici": Mici,
}
"""Name -> a function of a problem and a number of draws that makes the sampler."""
