"""What a first run costs, cold and warm: ``python -m benchmarks.startup``.

Each measurement is a process of its own. Cold: nothing in any compile cache. Warm: the caches as the first run left
them. Python writes bytecode, so imports are those of an installed package. The peers are measured on probabilistic
PCA. CPU seconds and wall-clock seconds are

- of ``sample``: a whole process, imports included, with ``pm.sample(draws=10, tune=10, chains=1, cores=1)``;
- of ``draw``: one draw by the step method alone, from the finished model on (nutpie: its compilation);
- of ``import``: what ``import pymc_stiefel`` adds to ``import pymc``, the smallest of ten processes.

``--only PART`` measures names with that part and keeps the other entries of ``benchmarks/startup.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_stiefel as pst
from benchmarks.problems import PROBLEMS

ROOT = Path(__file__).parent.parent


def hierarchy(expansion: str) -> pm.Model:
    """Matrices of ten groups around a common one, with a learnt concentration, each seen with noise."""
    rng = np.random.default_rng(7)
    n, p, groups = 8, 2, 10
    common = pst.geometry.polar(rng.normal(size=(n, p)))
    each = np.stack([pst.geometry.polar(common + 0.2 * rng.normal(size=(n, p))) for _ in range(groups)])
    with pm.Model() as model:
        M, kappa = pst.StiefelUniform("M", n=n, p=p), pm.HalfNormal("kappa", 50)
        U = pst.MatrixLangevin("U", M=M, kappa=kappa, shape=(groups, n, p))
        pm.Normal("y", U, pm.HalfNormal("noise", 1), observed=each + 0.15 * rng.normal(size=each.shape))
    return model


def covariance(expansion: str) -> pm.Model:
    """A covariance by its eigenvectors and eigenvalues, seen through angular central Gaussian matrices."""
    rng, n, p = np.random.default_rng(3), 6, 2
    wide = rng.normal(size=(30, n, p)) * np.linspace(1, 3, n)[:, None]
    with pm.Model() as model:
        S = pst.eigen_spd("S", n, eigenvalues=pm.Gamma.dist(2, 1))
        pst.MatrixAngularCentralGaussian("x", S, p, observed=np.stack([pst.geometry.polar(Z) for Z in wide]))
    return model


def ppca(expansion: str) -> pm.Model:
    return PROBLEMS["ppca 30, [5, 3, 1.5]"]().build(expansion)


MODELS = {"hierarchical Langevin": hierarchy, "eigen_spd and ACG": covariance, "ppca": ppca}
MEASURE = """
import time, warnings
warnings.filterwarnings("ignore")
import numpy as np, pymc as pm, pymc_stiefel as pst
from benchmarks import startup
model = startup.MODELS[{model!r}]({expansion!r})
{imports}
start, processor = time.perf_counter(), time.process_time()
{code}
print("measured", time.process_time() - processor, time.perf_counter() - start)
"""
SAMPLE = """
with model:
    pm.sample(draws=10, tune=10, chains=1, cores=1, progressbar=False, compute_convergence_checks=False, random_seed=1)
"""
DRAW = """
with model:
    step = {step}
point = model.initial_point(1)
step.set_rng(np.random.default_rng(1)) if hasattr(step, "set_rng") else step.setup_chain(np.random.default_rng(1), 1, 1)
step.step(point)
"""
NUTPIE = "nutpie.compile_pymc_model(model)"


def _draw(model: str, step: str = "pst.StiefelNUTS()", expansion: str = "manifold") -> str:
    return MEASURE.format(model=model, expansion=expansion, imports="", code=DRAW.format(step=step))


CODE = {f"{name}: sample": MEASURE.format(model=name, expansion="manifold", imports="", code=SAMPLE) for name in MODELS}
CODE |= {f"{name}: draw": _draw(name) for name in MODELS}
CODE |= {
    "ppca, PyMC NUTS, polar: draw": _draw("ppca", 'pm.NUTS(compile_kwargs={"mode": "NUMBA"})', "polar"),
    "ppca, nutpie, polar: draw": MEASURE.format(model="ppca", expansion="polar", imports="import nutpie", code=NUTPIE),
}
IMPORT = """
import time, pymc
start = time.process_time()
import pymc_stiefel
print("measured", time.process_time() - start)
"""
Measured = dict[str, float]


def _run(code: str, caches: str) -> tuple[list[float], Measured]:
    """Numbers that the process prints, and what the whole of it took."""
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    numbers = [float(number) for number in run.stdout.split("measured")[1].split()]
    return numbers, {"cpu": cpu, "wall": time.perf_counter() - start}


def measure(name: str, code: str, caches: str) -> Measured:
    """CPU seconds and wall-clock seconds of one process."""
    (cpu, wall), whole = _run(code, caches)
    return whole if name.endswith("sample") else {"cpu": cpu, "wall": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("startup.json"))
    parser.add_argument("--only", default="", metavar="PART", help="measure names with this part only")
    options = parser.parse_args()
    chosen = {name: code for name, code in CODE.items() if options.only in name}
    record = json.loads(options.output.read_text()) if options.only and options.output.exists() else {}
    for name, code in chosen.items():
        with tempfile.TemporaryDirectory() as caches:
            cold = measure(name, code, caches)
            warm = min((measure(name, code, caches) for _ in range(3)), key=lambda measured: measured["cpu"])
        record[name] = {"cold": cold, "warm": warm}
        text = ", ".join(f"{kind} {m['cpu']:5.1f} s CPU, {m['wall']:5.1f} s wall" for kind, m in record[name].items())
        print(f"{name:30s} {text}", flush=True)
    if options.only in "import":
        with tempfile.TemporaryDirectory() as caches:
            record["import"] = {"cpu": min(_run(IMPORT, caches)[0][0] for _ in range(10))}
        print(f"import pymc_stiefel after pymc: {record['import']['cpu']:.2f} s CPU")
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
