"""Time to the first draw on probabilistic PCA, cold and warm: ``python -m benchmarks.startup``.

Each measurement is a process of its own. Cold: nothing in any compile cache. Warm: the caches as the first run left
them. The model is built before the clock starts; it stops after one draw. Results go to ``benchmarks/startup.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PREPARE = """
import time, warnings
warnings.filterwarnings("ignore")
import numpy as np, nutpie, pymc as pm, pymc_stiefel as pst
from benchmarks.problems import PROBLEMS
model = PROBLEMS["ppca 30, [5, 3, 1.5]"]().build("{expansion}")
start = time.perf_counter()
"""
# steps are driven directly: what pm.sample compiles besides is the same for both
STEP = """
with model:
    step = {step}
point = model.initial_point(1)
step.set_rng(np.random.default_rng(1)) if hasattr(step, "set_rng") else step.setup_chain(np.random.default_rng(1), 1, 1)
step.step(point)
print("seconds", time.perf_counter() - start)
"""
NUTPIE = """
compiled = nutpie.compile_pymc_model(model)
print("seconds", time.perf_counter() - start)
"""
CODE = {
    "StiefelNUTS": PREPARE.format(expansion="manifold") + STEP.format(step="pst.StiefelNUTS()"),
    "PyMC NUTS, polar": PREPARE.format(expansion="polar")
    + STEP.format(step='pm.NUTS(compile_kwargs={"mode": "NUMBA"})'),
    "nutpie, polar": PREPARE.format(expansion="polar") + NUTPIE,
}


def seconds(code: str, caches: str) -> float:
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
    }
    command, root = [sys.executable, "-c", code], Path(__file__).parent.parent
    run = subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, text=True)
    return float(run.stdout.split("seconds")[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("startup.json"))
    options = parser.parse_args()
    record = {}
    for name, code in CODE.items():
        with tempfile.TemporaryDirectory() as caches:
            record[name] = {"cold": seconds(code, caches), "warm": min(seconds(code, caches) for _ in range(3))}
        print(f"{name:18s} cold {record[name]['cold']:5.1f} s, warm {record[name]['warm']:4.1f} s", flush=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
