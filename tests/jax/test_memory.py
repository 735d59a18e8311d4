"""Memory of a run with many draws."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytest.importorskip("blackjax")

PROGRAM = """
import resource, pymc as pm, pymc_stiefel as pst
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
sample = pst.jax.sample
libraries = peak()
with pm.Model():
    X = pst.StiefelUniform("X", n=30, p=3)
    pm.Potential("tilt", X[0, 0])
    idata = sample(600, tune=20, chains=1024, random_seed=1, progressbar=False)
print(peak() - libraries, sum(idata[g].nbytes for g in ("posterior", "sample_stats")))
"""


@pytest.mark.integration
def test_a_run_needs_little_more_memory_than_its_draws():
    """Neither copies of the draws nor what the compiler has freed are kept."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True)
    used, size = map(int, done.stdout.split())
    assert size > 4e8
    assert used < size + 2.5e8
