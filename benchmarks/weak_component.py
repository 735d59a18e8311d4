"""A component that comes and goes: ``python -m benchmarks.weak_component``; results in weak_component.json.

The weakest scale of ``ppca 100, [5, 3, 1.5]`` is rarely near zero, where its direction is unknown. A sampler that does
not go there, or stays there, gives wrong tails. Three samplers make long runs of the same posterior from starts in the
prior; the record has the mean of the weakest scale, the probability of an excursion (``scale < 0.8``) and how many
chains make one, and how far the means are from those of the compiled engine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import xarray as xr

import pymc_stiefel as pst
from benchmarks.problems import PROBLEMS
from benchmarks.report import replace_table
from pymc_stiefel.analysis._summaries import table as summary_table

RESULTS = Path(__file__).with_suffix(".json")
PROBLEM = "ppca 100, [5, 3, 1.5]"
LOW = 0.8
SIZES = {"numba": (4, 20_000, 2000), "chees": (64, 1000, 500), "nuts": (32, 400, 300)}


def excursions(scale: np.ndarray) -> np.ndarray:
    """What is compared: weakest scale, its square and excursions, ``(chain, draw, 3)``."""
    weakest = scale.min(axis=-1)
    return np.stack([weakest, weakest**2, weakest < LOW], axis=-1).astype(float)


def measure(sampler: str, chains: int, draws: int, tune: int, seed: int) -> dict:
    """One long run."""
    model = PROBLEMS[PROBLEM]().build("manifold")
    options = {"tune": tune, "chains": chains, "random_seed": seed, "progressbar": False}
    options["compute_convergence_checks"] = False
    start = time.perf_counter()
    with model:
        if sampler == "numba":
            idata = pst.sample(draws, cores=2, **options)
        else:
            idata = pst.jax.sample(draws, algorithm=sampler, **options)
    seconds = time.perf_counter() - start
    values = excursions(np.asarray(idata["posterior"]["scale"]))
    names = ["weakest", "weakest squared", "excursion"]
    found = summary_table(xr.DataArray(values, dims=("chain", "draw", "quantity"), coords={"quantity": names}))
    stats = idata["sample_stats"]
    steps = np.asarray(stats["gradients"] if "gradients" in stats else stats["n_steps"])
    return {
        "sampler": sampler,
        "chains": chains,
        "draws": draws,
        "seconds": seconds,
        "gradients": int(steps.sum() if sampler == "numba" else chains * steps.max(axis=0).sum()),
        "mean": found["mean"].tolist(),
        "error": found["mcse_mean"].tolist(),
        "ess": found["ess_bulk"].tolist(),
        "r_hat": found["r_hat"].tolist(),
        "chains_with_excursion": int((values[..., 2].max(axis=1) > 0).sum()),
        "chains_always_there": int((values[..., 2].min(axis=1) > 0).sum()),
        "divergences": int(np.asarray(stats["diverging"]).sum()),
    }


def write_page(page: Path) -> None:
    """Put a table of the record into a page."""
    rows = []
    for row in json.loads(RESULTS.read_text()):
        weakest, _, share = (f"{m:.4f} ± {e:.4f}" for m, e in zip(row["mean"], row["error"], strict=True))
        rows.append([row["sampler"], f"{row['chains']} x {row['draws']}", weakest, share])
        rows[-1] += [f"{row['ess'][2]:.0f}", f"{row['r_hat'][2]:.3f}", f"{row['ess'][2] / row['gradients']:.4f}"]
    head = ("sampler", "chains x draws", "weakest scale", "probability of an excursion")
    replace_table(page, RESULTS.name, (*head, "ESS of excursions", "R-hat", "ESS per gradient"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samplers", nargs="*", default=list(SIZES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the table of the record into this page, without measuring")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(arguments.page)
        return
    rows = []
    for sampler in arguments.samplers:
        rows.append(measure(sampler, *SIZES[sampler], arguments.seed))
        row, first = rows[-1], rows[0]
        errors = np.hypot(row["error"], first["error"])
        row["z"] = ((np.array(row["mean"]) - first["mean"]) / np.where(errors > 0, errors, np.inf)).tolist()
        print(json.dumps(row), flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
