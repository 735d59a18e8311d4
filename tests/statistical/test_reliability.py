"""What happens when a run is disturbed: draws already made are kept or the error is clear, and the next run works."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pymc as pm
import pytest

import pymc_stiefel as pst
from tests import ROOT

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore")]

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}

ENGINE_RUN = """
import numpy as np
from pymc_stiefel.engine.blocks import make_layout
from tests import kernels
density = kernels.bingham_langevin_density(np.eye(5, 2) * 3.0, np.zeros((5, 5)), np.zeros(2))
draws, *_ = kernels.run_chain(density, make_layout([(5, 2)], 0), np.eye(5, 2).T.ravel(), 50,
                              np.random.default_rng(0), tune=20, drift="splitting")
print("checksum", repr(float(np.abs(draws).sum())))
"""

# A file size limit makes every write of more than a few bytes fail, as a full disk does.
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))\n"

# For root no directory is read-only, so the refusal is put where numba asks for one.
READ_ONLY = """
import numba.core.caching as caching
def refuse(self):
    raise OSError(30, "Read-only file system")
for locator in (caching._CacheLocator, *caching._CacheLocator.__subclasses__()):
    locator.ensure_cache_path = refuse
"""


def start(code, cache_directory):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache_directory), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process):
    """Checksum of the draws, or the last line of the error."""
    output, error = process.communicate(timeout=600)
    if process.returncode:
        return error.strip().splitlines()[-1]
    return output.split("checksum")[1].strip()


def model():
    with pm.Model() as built:
        pst.MatrixLangevin("X", np.eye(4, 2) * 5.0)
    return built


def sample(**options):
    with model():
        return pm.sample(**({"draws": 50, "tune": 50, "chains": 2, "cores": 1} | QUIET | options))


# ---------------------------------------------------------------- the compile cache


def test_two_processes_compile_at_once(tmp_path, full):
    if not full:
        pytest.skip("in the full ladder: everything is compiled three times")
    both = [start(ENGINE_RUN, tmp_path) for _ in range(2)]
    sums = {finish(process) for process in both}
    assert len(sums) == 1, sums
    assert {finish(start(ENGINE_RUN, tmp_path))} == sums  # and what they left behind is whole


def test_disk_full_while_caching(tmp_path):
    """Either the run goes on without a cache or the error names its cause; what was half written does no harm."""
    outcome = finish(start(FULL_DISK + ENGINE_RUN, tmp_path))
    assert "OSError: [Errno" in outcome or outcome[0].isdigit(), outcome
    assert finish(start(ENGINE_RUN, tmp_path))[0].isdigit()


def test_read_only_cache_directory(tmp_path):
    assert finish(start(READ_ONLY + ENGINE_RUN, tmp_path))[0].isdigit()


def test_cache_directory_that_cannot_exist(tmp_path):
    """A path below a file: numba looks for another place by itself."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert finish(start(ENGINE_RUN, blocker / "below"))[0].isdigit()


# ---------------------------------------------------------------- interrupted and killed runs


@pytest.mark.parametrize("cores", [1, 2])
def test_interrupt_keeps_the_draws_made(cores):
    """Twice, then a whole run. Keeping draws is PyMC's doing; the step must come out of it unharmed."""
    for _ in range(2):
        seen = []

        def interrupt(trace, draw, seen=seen):
            seen.append(draw)
            if len(seen) == 300:
                raise KeyboardInterrupt

        trace = sample(draws=400, callback=interrupt, cores=cores, return_inferencedata=False)
        kept = trace.get_values("X")
        assert 0 < len(kept) < 800
        assert np.all(np.isfinite(kept))
    assert sample()["posterior"]["X"].shape == (2, 50, 4, 2)


def test_killed_worker_is_an_error_and_the_next_run_works():
    """PyMC reports the lost worker; nothing hangs, and nothing of the step outlives it."""
    killed = []

    def kill(trace, draw):
        workers = multiprocessing.active_children()
        if workers and not killed:
            killed.append(workers[0].pid)
            workers[0].kill()

    with pytest.raises(Exception, match=r"(?i)chain|worker|pipe|process|connection|EOF") as caught:
        sample(draws=100_000, cores=2, callback=kill)
    assert killed and not isinstance(caught.value, KeyboardInterrupt)
    assert sample(cores=2)["posterior"]["X"].shape == (2, 50, 4, 2)
