"""What a leapfrog costs, and what it grows with: ``python -m benchmarks.scaling [--quick]``.

Processor time of a leapfrog against n and p for the three drifts on a density that costs nothing; against the number
of matrices and of data; and the memory of a chain. One thread, the best of several repetitions. Results go to
``benchmarks/scaling.json``, the picture to ``docs/images/scaling.png``. ``--redraw`` draws the picture from the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numba import carray

import pymc_stiefel as pst
from benchmarks.problems import PROBLEMS
from pymc_stiefel import geometry
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.jit.calls import DENSITY_SIGNATURE, call_density
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.plots._figures import PALETTE

HERE = Path(__file__).parent
DRIFTS = ("splitting", "cayley", "geodesic")
ROWS = (10, 30, 100, 300, 1000, 3000, 10_000)
COLUMNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100, 200, 300)
RATIOS = ((2, 2), (20, 10), (100, 20), (300, 300))
MATRICES = (1, 3, 10, 30, 100, 300, 1000)
DATA = (100, 1000, 10_000, 100_000)
MEMORY = ((1000, 100), (1000, 300), (10_000, 30), (10_000, 100), (10_000, 300))
SECONDS = 0.4  # of repetitions for each cell
LONGEST = 0.5  # seconds of a leapfrog beyond which a cell is left out


Chain = tuple[Sampler, np.ndarray]  # and where it starts


@numba.cfunc(DENSITY_SIGNATURE)
def cheap_density(q, gradient, extra):
    """Log density q[0]: nothing beside a leapfrog. The length of q is extra[0]."""
    g = carray(gradient, (carray(extra, (1,))[0],))
    g[:] = 0.0
    g[0] = 1.0
    return carray(q, (1,))[0]


def seconds_per_leapfrog(chains: dict[str, Chain], seconds: float = SECONDS) -> dict[str, float]:
    """From static trajectories of two lengths, so that the cost of a draw around its leapfrogs cancels.

    The samplers take turns: on a machine whose speed drifts, each of them meets it at its best.
    """
    lengths, best = {}, {}
    for name, (sampler, q) in chains.items():
        sampler.draw(q)  # compiled or loaded, and started
        lengths[name] = (2, 2 + int(np.clip(5e-5 / _seconds_of_draw(sampler, q, 1), 10, 200)))
        best[name] = [np.inf, np.inf]
    end = time.process_time() + seconds * len(chains)
    while not np.all(np.isfinite(list(best.values()))) or time.process_time() < end:
        for name, (sampler, q) in chains.items():
            for k, length in enumerate(lengths[name]):
                best[name][k] = min(best[name][k], _seconds_of_draw(sampler, q, length))
    return {name: (best[name][1] - best[name][0]) / (lengths[name][1] - lengths[name][0]) for name in chains}


def _seconds_of_draw(sampler: Sampler, q: np.ndarray, length: int) -> float:
    object.__setattr__(sampler.settings, "n_steps", length)
    start = time.process_time()
    sampler.draw(q)
    return time.process_time() - start


def make_sampler(layout, address: int, drift: str, extra: np.ndarray, dynamic: bool = False) -> Sampler:
    """A sampler that does not tune; its trajectories are static, or stop at a U-turn."""
    length, step_size = (None, 0.5) if dynamic else (1, 1e-3)
    settings = Settings(drift=drift, n_steps=length, step_size=step_size, adapt_step_size=False, adapt_metric=False)
    sampler = Sampler(layout, address, settings, np.random.default_rng(0), extra)
    sampler.chain.tune = False
    return sampler


def cheap_sampler(shapes: list[tuple[int, int]], drift: str, dynamic: bool = False) -> Chain:
    """A sampler of the cheap density and a start point."""
    rng = np.random.default_rng(0)
    q = np.concatenate([geometry.polar(rng.standard_normal(shape)).T.ravel() for shape in shapes])
    extra = np.array([q.size], dtype=np.int64)
    return make_sampler(make_layout(shapes, 0), cheap_density.address, drift, extra, dynamic), q


def by_shape(quick: bool) -> list[dict]:
    """Cost of the three drifts; cells that would take too long are left out."""
    table = []
    for n in ROWS[:2] if quick else ROWS:
        slow: set[str] = set()  # too slow for more columns
        for p in (p for p in COLUMNS if p <= n and not (quick and p > 10)):
            chains = {drift: cheap_sampler([(n, p)], drift) for drift in DRIFTS if drift not in slow}
            row = {"n": n, "p": p} | seconds_per_leapfrog(chains, 0.02 if quick else SECONDS)
            slow |= {drift for drift in chains if row[drift] * 3 > LONGEST}
            table.append(row)
            print(f"({n}, {p}): " + ", ".join(f"{d} {1e6 * row[d]:.1f} us" for d in DRIFTS if d in row), flush=True)
    return table


def crossovers(table: list[dict]) -> dict[int, int | None]:
    """For each n the smallest p from which on the Cayley drift is cheaper than splitting."""
    found: dict[int, int | None] = {}
    for n in dict.fromkeys(row["n"] for row in table):
        rows = [row for row in table if row["n"] == n and "splitting" in row]
        slower = [row["p"] for row in rows if row["splitting"] < row["cayley"]]
        found[n] = next((row["p"] for row in rows if row["p"] > max(slower, default=0)), None)
    return found


def geodesic_over_cayley(quick: bool) -> list[dict]:
    """How much dearer the geodesic leapfrog is, at a few shapes."""
    table = []
    for n, p in RATIOS[:1] if quick else RATIOS:
        chains = {drift: cheap_sampler([(n, p)], drift) for drift in ("cayley", "geodesic")}
        row = seconds_per_leapfrog(chains, 0.02 if quick else 4 * SECONDS)
        table.append({"n": n, "p": p, "ratio": row["geodesic"] / row["cayley"]} | row)
        print(f"({n}, {p}): a geodesic leapfrog costs {table[-1]['ratio']:.2f} of a Cayley one", flush=True)
    return table


def by_matrices(quick: bool) -> list[dict]:
    """Cost against the number of (10, 3) matrices in one model."""
    return [
        {"matrices": k}
        | seconds_per_leapfrog({d: cheap_sampler([(10, 3)] * k, d) for d in DRIFTS}, 0.02 if quick else SECONDS)
        for k in (MATRICES[:2] if quick else MATRICES)
    ]


@numba.njit
def _evaluate(address, q, gradient, extra, count):
    for _ in range(count):
        call_density(address, q, gradient, extra)


def density_and_leapfrog(model, seconds: float = SECONDS) -> dict:
    """Seconds of a model's compiled log density with gradient, and of a StiefelNUTS leapfrog on it."""
    point = model.initial_point(1)
    density = ModelDensity(model, model.value_vars, point)
    q = density.pack(point)
    gradient = np.empty_like(q)
    _evaluate(density.address, q, gradient, density.extra, 1)
    raw, end = np.inf, time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        _evaluate(density.address, q, gradient, density.extra, 50)
        raw = min(raw, (time.process_time() - start) / 50)
    sampler = make_sampler(density.layout, density.address, "splitting", density.extra)
    return {"density": raw} | seconds_per_leapfrog({"leapfrog": (sampler, q)}, seconds)


def by_data(quick: bool) -> list[dict]:
    """Cost against the number of observations of a regression on three orthonormal directions of 30 predictors."""
    table, rng = [], np.random.default_rng(0)
    for count in DATA[:2] if quick else DATA:
        with pm.Model() as model:
            U = pst.StiefelUniform("U", n=30, p=3)
            slope = pm.Normal("slope", shape=3)
            x = pt.constant(rng.standard_normal((count, 30)))
            pm.Normal("y", x @ U @ slope, 1, observed=rng.standard_normal(count))
        table.append({"data": count} | density_and_leapfrog(model, 0.02 if quick else SECONDS))
    return table


RESIDENT = """
import os
from pathlib import Path
from benchmarks.scaling import cheap_sampler

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

# a small chain first, so that code and compiler are not counted
small, start = cheap_sampler([(3, 2)], "cayley", dynamic=True)
small.draw(start)
before = resident()
sampler, q = cheap_sampler([({n}, {p})], "cayley", dynamic=True)
for _ in range(3):
    sampler.draw(q)
print(resident() - before)
"""


def by_memory(quick: bool) -> list[dict]:
    """Resident bytes of one no-U-turn chain after a few draws (Linux)."""
    table = []
    for n, p in MEMORY[:1] if quick else MEMORY:
        command = [sys.executable, "-c", RESIDENT.format(n=n, p=p)]
        done = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, text=True)
        size = int(done.stdout)
        table.append({"n": n, "p": p, "bytes": size, "matrices": size / (8 * n * p)})
        print(f"({n}, {p}): {size / 2**20:.0f} MB, {table[-1]['matrices']:.0f} matrices", flush=True)
    return table


def draw_picture(record: dict, path: Path) -> None:
    """Three panels: against p, against the number of matrices, against the number of data."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    styles = dict(zip(DRIFTS, ("-", "--", ":"), strict=True))
    rows = [n for n in dict.fromkeys(row["n"] for row in record["shapes"]) if n in (10, 100, 1000, 10_000)]
    for k, n in enumerate(rows):
        for drift in DRIFTS:
            cells = [row for row in record["shapes"] if row["n"] == n and drift in row]
            label = f"n = {n}" if drift == DRIFTS[0] else None
            p, cost = [row["p"] for row in cells], [1e6 * row[drift] for row in cells]
            axes[0].loglog(p, cost, styles[drift], color=PALETTE[k], label=label)
    axes[0].set(xlabel="columns p", ylabel="microseconds a leapfrog", title="one matrix")
    for drift in DRIFTS:
        cells = record["matrices"]
        axes[1].loglog(
            [row["matrices"] for row in cells],
            [1e6 * row[drift] for row in cells],
            "k",
            ls=styles[drift],
            label="Cayley" if drift == "cayley" else drift,
        )
    axes[1].set(xlabel="number of 10 × 3 matrices", title="many matrices")
    for key, style in (("leapfrog", "-"), ("density", "--")):
        cells = record["data"]
        axes[2].loglog([row["data"] for row in cells], [1e6 * row[key] for row in cells], "k", ls=style, label=key)
    axes[2].set(xlabel="observations", title="regression on St(30, 3)")
    for axis in axes:
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few small sizes: a smoke test that records nothing")
    parser.add_argument("--output", type=Path, default=HERE / "scaling.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "images" / "scaling.png")
    parser.add_argument("--redraw", action="store_true", help="draw the picture from the record, without measuring")
    options = parser.parse_args()
    if options.redraw:
        draw_picture(json.loads(options.output.read_text()), options.picture)
        return
    shapes = by_shape(options.quick)
    record = {
        "shapes": shapes,
        "crossover": crossovers(shapes),
        "geodesic_over_cayley": geodesic_over_cayley(options.quick),
        "matrices": by_matrices(options.quick),
        "data": by_data(options.quick),
        "ppca": density_and_leapfrog(PROBLEMS["ppca 30, [5, 3, 1.5]"]().build("manifold")),
        "memory": by_memory(options.quick),
    }
    for n, p in record["crossover"].items():
        print(f"n = {n}: " + ("splitting is cheaper for every p" if p is None else f"Cayley is cheaper from p = {p}"))
    if not options.quick:
        options.output.write_text(json.dumps(record, indent=1) + "\n")
        draw_picture(record, options.picture)


if __name__ == "__main__":
    main()
