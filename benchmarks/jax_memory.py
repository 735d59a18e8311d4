"""Peak memory of a run with thousands of chains: ``python -m benchmarks.jax_memory``; results in jax_memory.json.

A process of its own samples PPCA with a 30 x 3 matrix, 4096 chains of 1000 draws. The peak is that of the whole
process, libraries and compilation included.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path

from benchmarks.problems import PROBLEMS
from benchmarks.report import replace_table

RESULTS = Path(__file__).with_suffix(".json")
PROBLEM = "ppca 30, [12, 4, 1.2]"


def peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(chains: int, draws: int, tune: int) -> dict:
    """Bytes of one run."""
    import pymc_stiefel as pst

    model = PROBLEMS[PROBLEM]().build("manifold")
    sizes = {"problem": PROBLEM, "chains": chains, "draws": draws, "tune": tune}
    libraries = pst.jax.sample and peak()
    idata = pst.jax.sample(draws, tune=tune, chains=chains, model=model, random_seed=1, progressbar=False)
    stats = sum(array.nbytes for name, array in idata["sample_stats"].data_vars.items() if name != "step_size")
    posterior = sum(array.nbytes for array in idata["posterior"].data_vars.values())
    return sizes | {"libraries": libraries, "posterior": posterior, "statistics": stats, "peak": peak()}


def write_page(page: Path) -> None:
    """Put a table of the record into a page."""
    row = json.loads(RESULTS.read_text())
    parts = [f"{row[part] / 1e9:.2f}" for part in ("posterior", "statistics", "libraries", "peak")]
    head = ("chains x draws", "posterior", "statistics", "libraries", "peak")
    replace_table(page, RESULTS.name, head, [[f"{row['chains']} x {row['draws']}", *parts]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=4096)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--page", type=Path, help="write the table of the record into this page, without measuring")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(arguments.page)
        return
    found = measure(arguments.chains, arguments.draws, arguments.tune)
    print(json.dumps(found))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
