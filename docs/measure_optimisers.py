"""Time pst.find_MAP beside pymanopt (pip install pymanopt): the table of howto/from_geoopt_pymanopt.md."""

from __future__ import annotations

import time

import numpy as np
import pymanopt
import pymc as pm
from pymanopt.optimizers import ConjugateGradient

import pymc_stiefel as pst

STARTS = 3


def compare(n: int, p: int) -> str:
    """A row of the table: a Brockett cost, the same starts for both, to the same norm of the gradient."""
    rng = np.random.default_rng(0)
    A, weights = rng.normal(size=(n, n)), np.arange(p, 0, -1.0)
    A = (A + A.T) / 2
    exact = weights @ np.linalg.eigvalsh(A)[::-1][:p]
    manifold, calls = pymanopt.manifolds.Stiefel(n, p), [0]

    @pymanopt.function.numpy(manifold)
    def cost(X):
        return -np.sum(weights * np.sum(X * (A @ X), axis=0))

    @pymanopt.function.numpy(manifold)
    def gradient(X):
        calls[0] += 1
        return -2 * (A @ X) * weights

    problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
    optimizer = ConjugateGradient(verbosity=0, min_gradient_norm=1e-6, max_iterations=10_000, max_time=300)
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=n, p=p)
        pm.Potential("minus_cost", (weights * (X * (pm.Data("A", A) @ X)).sum(axis=0)).sum())
        pst.find_MAP(start={"X": np.eye(n, p)}, progressbar=False)  # fills the caches on disk
    theirs, ours, ratios = [], [], []
    for _ in range(STARTS):
        start = pst.draws.haar(n, p, rng=rng)
        calls[0], began = 0, time.perf_counter()
        result = optimizer.run(problem, initial_point=start)
        between = time.perf_counter()
        best = pst.find_MAP(start={"X": start}, gtol=1e-6, progressbar=False, model=model)
        ratios.append((between - began) / (time.perf_counter() - between))
        theirs.append(calls[0])
        ours.append(best.n_evaluations)
        for name, value in {"pymanopt": -result.cost, "find_MAP": best.logp}.items():
            if abs(value - exact) > 1e-6 * exact:
                raise RuntimeError(f"{name} ended at {value:.8g}, the optimum is {exact:.8g}")
    return f"| {n}, {p} | {np.median(theirs):.0f} | {np.median(ours):.0f} | {np.median(ratios):.1f} |"


if __name__ == "__main__":
    for shape in ((50, 3), (200, 5), (500, 10)):
        print(compare(*shape))
