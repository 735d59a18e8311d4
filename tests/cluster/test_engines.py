"""Chains on real engines: workers that are killed, Ctrl-C, caches that are shared, the scripts of the guide."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pymc as pm
import pytest

import pymc_stiefel as pst
from tests import ROOT
from tests.cluster.test_sample_chains import SETTINGS, SILENT, Inline, assert_same, normal_model, pymc_sample, sample

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # PyMC's NUTS, early in tuning
]


@pytest.fixture(scope="module")
def model():
    return normal_model()


@pytest.fixture(scope="module")
def reference(model):
    with model:
        return pymc_sample()


def kill_once(flag, chain=1):
    """A callback that kills its process in the middle of one chain, the first time."""

    def callback(trace, draw):
        if draw.chain == chain and draw.draw_idx == 30 and not os.path.exists(flag):
            with open(flag, "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

    return callback


@pytest.mark.parametrize("store", [False, True])
def test_loky_with_a_kill(model, reference, tmp_path, store):
    options = {"store": tmp_path / "a"} if store else {}
    with model, joblib.parallel_config("loky", n_jobs=2):
        result = pst.sample_chains(**SETTINGS, **SILENT, callback=kill_once(tmp_path / "flag"), **options)
    assert (tmp_path / "flag").exists()
    assert_same(result, reference)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", ["joblib", "executor", "store"])
def test_dask_with_a_kill(model, reference, tmp_path, way):
    distributed = pytest.importorskip("distributed")
    options = {"callback": kill_once(tmp_path / "flag")} | ({"store": tmp_path / "a"} if way == "store" else {})
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        if way == "executor":
            result = sample(model, client.get_executor(), **options)
        else:
            with model, joblib.parallel_config("dask"):
                result = pst.sample_chains(**SETTINGS, **SILENT, **options)
        assert (tmp_path / "flag").exists()
        assert_same(result, reference)


CACHE = """
import sys, time
import numba.core.event, numpy as np
import pymc_stiefel as pst
from pymc_stiefel.draws._vectors import vmf_deficits
from tests.cluster.test_sample_chains import Inline, normal_model
while time.time() < float(sys.argv[1]):
    time.sleep(0.001)
with numba.core.event.install_recorder("numba:compile") as compilations:
    own = np.empty((1, 4))
    vmf_deficits(3, np.array([5.0]), own, np.random.default_rng(1))
    result = pst.sample_chains(5, tune=5, chains=2, random_seed=1, model=normal_model(), executor=Inline(), quiet=True)
print((own.tobytes() + result["posterior"]["mu"].values.tobytes()).hex(), len(compilations.buffer))
"""


def test_two_workers_fill_one_cache_at_once(tmp_path):
    """Both start with the same empty directory; a third finds all that they compiled."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        # with PyTensor's fast math, code from the cache rounds otherwise than code fresh from the compiler
        "PYTENSOR_FLAGS": f"base_compiledir={tmp_path / 'pytensor'},numba__fastmath=False",
        "PYTHONPATH": os.getcwd(),
    }

    def start(when):
        command = [sys.executable, "-W", "ignore", "-c", CACHE, str(when)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def result(process):
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0
        draws, compilations = output.split()[-2:]
        return draws, int(compilations)

    together = [start(time.time() + 20.0) for _ in range(2)]
    (one, compiled), (two, _) = [result(process) for process in together]
    third, compiled_later = result(start(0.0))
    assert one == two == third
    assert compiled > 0 and compiled_later == 0


@pytest.mark.filterwarnings("ignore")  # Ray has warnings of its own
def test_ray_with_a_kill(model, reference, tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.util.joblib").register_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with model, joblib.parallel_config("ray", n_jobs=2):
            result = pst.sample_chains(
                **SETTINGS, **SILENT, callback=kill_once(tmp_path / "flag"), store=tmp_path / "a"
            )
    finally:
        ray.shutdown()
    assert (tmp_path / "flag").exists()
    assert_same(result, reference)


# ------------------------------------------------------------ Ctrl-C

INTERRUPTED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell runs in the background
from pathlib import Path
import joblib
import pymc_stiefel as pst
from tests.cluster.test_sample_chains import SETTINGS, SILENT, normal_model

folder = Path(sys.argv[1])

def linger(trace, draw):  # the last two chains do not end by themselves
    if draw.chain >= 2 and draw.draw_idx == 30:
        (folder / str(draw.chain)).touch()
        time.sleep(600)

options = {"store": folder / "draws.zarr"} if "store" in sys.argv else {}
with normal_model(), joblib.parallel_config("loky", n_jobs=2):
    idata = pst.sample_chains(**SETTINGS, **SILENT, callback=linger, **options)
    print(idata["posterior"]["mu"].chain.values.tolist(), idata["posterior"]["mu"].values.tobytes().hex())
"""


@pytest.mark.parametrize("receiver, place", [("group", "memory"), ("driver", "store")])
def test_interrupt_on_loky_returns_what_is_finished(reference, tmp_path, receiver, place):
    """SIGINT as from a terminal, which sends it to the workers too, and to the driver alone."""
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(tmp_path), place]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        # when two workers are at chains 2 and 3, chains 0 and 1 have ended
        while not all((tmp_path / name).exists() for name in "23"):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        time.sleep(2.0)  # for the messages to arrive
        (os.kill if receiver == "driver" else os.killpg)(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    chains, draws = output.rsplit(maxsplit=1)
    assert chains == "[0, 1]"
    assert draws == reference["posterior"]["mu"].values[:2].tobytes().hex()
    assert "interrupted; 2 of 4 chains are finished" in errors


# ------------------------------------------------------------ the scripts of docs/howto/cluster.md

SBATCH = """#!/bin/bash
# runs a job at once on this machine; the number of a job is that of its process group
cp "$1" job.sh  # the caller deletes its own
setsid bash job.sh > job.log 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/bash
for job in "$@"; do kill -- "-$job" 2>/dev/null; done
"""
SIZES = {
    r"1000, tune=1000, chains=[\d_]+": "20, tune=20, chains=4",
    r'store="(/shared/)?draws.zarr"': 'store="draws.zarr"',
    r"cores=16, processes=16": "cores=2, processes=2",
    r"scale\(jobs=20\)": "scale(jobs=1)",
    r"/shared/cache": "cache",
    r"source /shared/env": f"source {Path(sys.executable).parent.parent}",
    r"ray.init\(\)": "ray.init(num_cpus=2, include_dashboard=False)",
}
"""What a test changes in a script: sizes, and places that are those of a cluster."""


def script_of(section):
    page = (ROOT / "docs/howto/cluster.md").read_text().split(f"\n## {section}")[1]
    code = re.search(r"```\{code-block\} python\n(.*?)```", page, re.DOTALL)[1]
    for pattern, small in SIZES.items():
        code = re.sub(pattern, small, code)
    assert "chains=4" in code
    return code


@pytest.fixture(scope="module")
def page_reference():
    with pm.Model():
        pst.MatrixLangevin("X", F=10 * np.eye(30, 3))
        return pymc_sample(draws=20, tune=20, random_seed=1)


@pytest.mark.parametrize(
    "section, package", [("Dask", "distributed"), ("Slurm", "dask_jobqueue"), ("Ray", "ray"), ("MPI", "mpi4py.futures")]
)
def test_script_of_the_page(section, package, page_reference, tmp_path):
    """As written, but for sizes. There is no Slurm: its commands are stand-ins that run the jobs on this machine."""
    pytest.importorskip(package)
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "script.py").write_text(script_of(section))
    launcher = [
        shutil.which("mpiexec", path=Path(sys.executable).parent),
        "-n",
        "3",
        sys.executable,
        "-m",
        "mpi4py.futures",
    ]
    command = [*(launcher if section == "MPI" else [sys.executable, "-W", "ignore"]), "script.py"]
    path = os.pathsep.join(map(str, [ROOT, os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    with pm.Model():
        pst.MatrixLangevin("X", F=10 * np.eye(30, 3))
        options = {"draws": 20, "tune": 20, "random_seed": 1, "store": tmp_path / "draws.zarr"}
        finished = sample(None, Inline(interrupt_after=0), **options)  # all are there: nothing is run
    assert_same(finished, page_reference)
