"""mici's constrained HMC: dynamic trajectories, the constraint X'X = I solved for in every step."""

from __future__ import annotations

import time

import numpy as np
import pytensor

import pymc_stiefel as pst
from benchmarks.problems import Draws, Problem
from benchmarks.runs import CHAINS, Run
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine.blocks import Layout


def matrices(layout: Layout, q: np.ndarray) -> list[np.ndarray]:
    """Views of the matrices in a flat state, transposed: a row of each is a column of the matrix."""
    places = zip(layout.offset, layout.n, layout.p, strict=True)
    return [q[start : start + n * p].reshape(p, n) for start, n, p in places]


def constraint(layout: Layout, q: np.ndarray) -> np.ndarray:
    """The upper triangles of X'X - I."""
    return np.concatenate([(X @ X.T - np.eye(len(X)))[np.triu_indices(len(X))] for X in matrices(layout, q)])


def jacobian(layout: Layout, q: np.ndarray) -> np.ndarray:
    """Derivative of :func:`constraint`, (constraints, size of q)."""
    counts = layout.p * (layout.p + 1) // 2
    result = np.zeros((counts.sum(), q.size))
    first = 0
    for X, start, count in zip(matrices(layout, q), layout.offset, counts, strict=True):
        i, j = np.triu_indices(len(X))
        block, row = np.zeros((count, *X.shape)), np.arange(count)
        block[row, i] += X[j]
        block[row, j] += X[i]
        result[first : first + count, start : start + X.size] = block.reshape(count, -1)
        first += count
    return result


class Mici:
    """At most ``mici_draws`` draws. The log density is that of StiefelNUTS, compiled: only the samplers differ."""

    def __init__(self, problem: Problem, draws: int) -> None:
        self.problem, self.size = problem, min(draws, problem.mici_draws)
        self.model = problem.build("manifold")

    def __call__(self, seed: int) -> Run:
        start = time.perf_counter()
        density = ModelDensity(self.model, self.model.value_vars, self.model.initial_point(seed))
        sampler = self._sampler(density, seed)
        compiled = time.perf_counter()
        _, traces, stats = sampler.sample_chains(
            self.size,
            self.size,
            self._starts(density, seed),
            trace_funcs=[lambda state: {"q": state.pos, "time": time.perf_counter()}],
            trace_warm_up=True,
            display_progress=False,
        )
        total = time.perf_counter() - compiled
        times, positions, steps = (np.array(x) for x in (traces["time"], traces["q"], stats["n_step"]))
        sampling = float(times[:, -1].max() - times[:, self.size - 1].max())  # all chains are warmed up first
        return Run(
            draws=self._draws(density, positions[:, self.size :]),
            compile=compiled - start,
            warmup=total - sampling,
            sampling=sampling,
            warmup_gradients=int(steps[:, : self.size].sum()),
            gradients=int(steps[:, self.size :].sum()),
            divergences=int(np.array(stats["diverging"])[:, self.size :].sum()),
        )

    @staticmethod
    def _sampler(density: ModelDensity, seed: int):
        import mici

        def gradient(q):
            value, slope = density(q)
            return -slope, -value

        system = mici.systems.DenseConstrainedEuclideanMetricSystem(
            neg_log_dens=lambda q: -density(q)[0],
            grad_neg_log_dens=gradient,
            constr=lambda q: constraint(density.layout, q),
            jacob_constr=lambda q: jacobian(density.layout, q),
            dens_wrt_hausdorff=True,
        )
        integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system)
        return mici.samplers.DynamicMultinomialHMC(system, integrator, np.random.default_rng(seed))

    def _starts(self, density: ModelDensity, seed: int) -> list[np.ndarray]:
        """Where the model says; matrices uniform, if it leaves that open."""
        starts = []
        for chain in range(CHAINS):
            rng = np.random.default_rng([seed, chain])
            q = density.pack(self.model.initial_point(seed))
            for X in matrices(density.layout, q) if self.problem.jitter else []:
                X[:] = pst.geometry.polar(rng.standard_normal(X.T.shape)).T
            starts.append(q)
        return starts

    def _draws(self, density: ModelDensity, positions: np.ndarray) -> Draws:
        """The variables of the model from the flat states (chain, draw, size)."""
        variables = self.model.free_RVs
        back = pytensor.function(
            self.model.value_vars, self.model.replace_rvs_by_values(variables), mode="FAST_COMPILE"
        )
        like = self.model.initial_point()
        points = [[back(**point) for point in density.unpack(chain, like)] for chain in positions]
        return {v.name: np.array([[point[k] for point in chain] for chain in points]) for k, v in enumerate(variables)}
