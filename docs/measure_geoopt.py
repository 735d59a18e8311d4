"""Time pst.find_MAP beside geoopt (pip install geoopt): a table of howto/from_geoopt_pymanopt.md."""

from __future__ import annotations

import time

import geoopt
import numpy as np
import pymc as pm
import torch

import pymc_stiefel as pst

STARTS, MOST = 3, 20_000


def run_geoopt(A: np.ndarray, weights: np.ndarray, start: np.ndarray, exact: float, rate: float) -> tuple[int, float]:
    """Steps until the cost is within a millionth of the optimum, and the cost."""
    A, weights = torch.tensor(A), torch.tensor(weights)
    X = geoopt.ManifoldParameter(torch.tensor(start), manifold=geoopt.Stiefel())
    optimizer = geoopt.optim.RiemannianSGD([X], lr=rate, momentum=0.9)
    for step in range(1, MOST + 1):
        optimizer.zero_grad()
        cost = -(weights * (X * (A @ X)).sum(dim=0)).sum()
        cost.backward()
        optimizer.step()
        if abs(cost.item() + exact) < 1e-6 * exact:
            return step, cost.item()
    raise RuntimeError(f"geoopt did not converge in {MOST} steps: cost {cost.item():.8g}, optimum {-exact:.8g}")


def compare(n: int, p: int, rate: float) -> str:
    """A row of the table: a Brockett cost, the same starts for both."""
    rng = np.random.default_rng(0)
    A, weights = rng.normal(size=(n, n)), np.arange(p, 0, -1.0)
    A = (A + A.T) / 2
    exact = weights @ np.linalg.eigvalsh(A)[::-1][:p]
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=n, p=p)
        pm.Potential("minus_cost", (weights * (X * (pm.Data("A", A) @ X)).sum(axis=0)).sum())
        pst.find_MAP(start={"X": np.eye(n, p)}, progressbar=False)  # fills the caches on disk
    theirs, ours, ratios = [], [], []
    for _ in range(STARTS):
        start = pst.draws.haar(n, p, rng=rng)
        began = time.perf_counter()
        steps, _ = run_geoopt(A, weights, start, exact, rate)
        between = time.perf_counter()
        best = pst.find_MAP(start={"X": start}, gtol=1e-6, progressbar=False, model=model)
        ratios.append((between - began) / (time.perf_counter() - between))
        theirs.append(steps)
        ours.append(best.n_evaluations)
        if abs(best.logp - exact) > 1e-6 * exact:
            raise RuntimeError(f"find_MAP ended at {best.logp:.8g}, the optimum is {exact:.8g}")
    return f"| {n}, {p} | {np.median(theirs):.0f} | {np.median(ours):.0f} | {np.median(ratios):.1f} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for shape in ((50, 3, 0.01), (200, 5, 0.003), (500, 10, 0.001)):
        print(compare(*shape), flush=True)
