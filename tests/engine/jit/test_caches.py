"""Compile caches that are damaged, full or shared cost time and nothing else."""

import errno
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import CompileResultCacheImpl, IndexDataCacheFile

from pymc_stiefel.engine.jit import caching
from pymc_stiefel.engine.jit.compiling import compiled
from tests import ROOT

DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "random": lambda data: np.random.default_rng(1).bytes(len(data)),
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function that loads a compiled function anew, as a new process does."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    path = tmp_path / "triple.py"
    path.write_text("def triple(x):\n    return 3 * x\n")

    def load():
        spec = importlib.util.spec_from_file_location("triple", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "triple", module)
        spec.loader.exec_module(module)
        return compiled(module.triple)

    return load


def files(directory: Path, kind: str) -> list[Path]:
    return [path for path in directory.rglob(f"*.{kind}") if path.is_file()]


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_replaced(make, tmp_path, damage, kind):
    make()(1.0)
    (path,) = files(tmp_path, kind)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=r"damaged file in the compile cache .*__pycache__"):
        assert make()(2.0) == 6.0
    healed = make()
    assert healed(2.0) == 6.0
    assert sum(healed.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_disk_that_cannot_be_written(make, monkeypatch, number):
    def refuse(self, path):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", refuse)
    with pytest.warns(RuntimeWarning, match=f"could not be saved.*{os.strerror(number)}"):
        assert make()(2.0) == 6.0


def test_no_folder_that_can_be_written(make, monkeypatch):
    """As on a read-only system, where numba finds no place for a cache."""
    monkeypatch.setattr(caching, "_reported", set())
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    with pytest.warns(RuntimeWarning, match=r"could not be saved \(numba found no .*NUMBA_CACHE_DIR") as seen:
        assert [make()(2.0), make()(2.0)] == [6.0, 6.0]
    assert len(seen) == 1  # not one for each function


PYTENSOR = """
import sys, warnings
import numpy as np, pytensor, pytensor.tensor as pt
import pymc_stiefel
warnings.simplefilter("always")
x = pt.vector()
function = pytensor.function([x], [pt.exp(x)], mode="NUMBA")
(value,) = function(np.arange(3.0))
print(value.tolist())
"""


def run(code: str, caches: Path) -> subprocess.Popen:
    environment = os.environ | {"NUMBA_CACHE_DIR": f"{caches}/n", "PYTENSOR_FLAGS": f"base_compiledir={caches}/p"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, env=environment, **pipes)


def test_functions_of_pytensor_are_compiled_anew(tmp_path):
    outputs = []
    for damage in (None, DAMAGES["random"]):
        if damage:
            for path in files(tmp_path, "nb[ci]"):
                path.write_bytes(damage(path.read_bytes()))
        process = run(PYTENSOR, tmp_path)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert bool(damage) == ("damaged file in the compile cache" in err)
        outputs.append(out)
    assert len(set(outputs)) == 1


STEP = """
import numpy as np, pymc as pm, pymc_stiefel as pst
with pm.Model():
    u = pst.UnitVector("u", n=3)
    pm.Normal("y", u, 0.3, observed=np.eye(3))
    step = pst.OrthogonalHMC(n_steps=3)
    trace = pm.sample(20, tune=20, chains=1, cores=1, step=step, progressbar=False, random_seed=1,
                      compute_convergence_checks=False)
print(trace["posterior"]["u"].values.tobytes().hex())
"""


FULL = """
import resource, sys, warnings
import numpy as np, pymc as pm, pymc_stiefel as pst
with pm.Model() as model:
    x = pm.Normal("x", shape=3)
    pm.Deterministic("y", 2 * x + 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # writing more is an OSError, as on a full disk
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function = model.compile_fn(model.unobserved_value_vars, mode="NUMBA")
    print([value.tolist() for value in function({"x": np.arange(3.0)})])
print([str(w.message) for w in caught if "could not be saved" in str(w.message)], file=sys.stderr)
"""


def test_a_full_disk_ends_no_function_of_pymc(tmp_path):
    process = run(FULL, tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.strip() == "[[0.0, 1.0, 2.0], [1.0, 3.0, 5.0]]"
    assert err.count("could not be saved") == 1  # one warning, not one for each function
    assert f"could not be saved in {tmp_path}/p/numba" in err and "PYTENSOR_FLAGS=base_compiledir" in err


@pytest.mark.integration
def test_two_processes_compile_at_once(tmp_path):
    """Into one empty cache; and a third reads what they left."""
    outputs = []
    for count in (2, 1):
        processes = [run(STEP, tmp_path) for _ in range(count)]
        for process in processes:
            out, err = process.communicate(timeout=800)
            assert process.returncode == 0, err
            assert "damaged" not in err
            outputs.append(out)
    assert len(set(outputs)) == 1
