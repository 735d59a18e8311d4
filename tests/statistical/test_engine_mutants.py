"""Controls on the compiled engine: a copy of the package with one mistake in it has to fail."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests import ROOT

pytestmark = pytest.mark.statistical

MISTAKES = {
    "momenta of a column too large": (
        "langevin", "manifolds/stiefel.py", "scale = 1.0 / np.sqrt(mass)", "scale = 1.15 / np.sqrt(mass)",
    ),
    "weights of subtrees ignored": (
        "langevin", "trajectory.py", "store_leaf(trees, top, point, work.r, work.v, -error, new_energy, index)",
        "store_leaf(trees, top, point, work.r, work.v, 0.0, new_energy, index)",
    ),
    "changes of sign always accepted": (
        "flips", "reflection.py", "if np.log(uniform(source)) < point.value[0] - state.value[0]:", "if True:",
    ),
    "no Jacobian of row coordinates": ("rows", "coordinates.py", "total -= n * np.log(s[i])", "total -= 0.0"),
    "momenta of a subspace too large": (
        "subspace", "manifolds/grassmann.py", "stiefel.draw_column(source, b[j], c[j])",
        "stiefel.draw_column(source, b[j], 0.75 * c[j])",
    ),
}  # fmt: skip
QUICK = ("no Jacobian of row coordinates", "momenta of a subspace too large")


def scores(target, draws, folder, env=()):
    """By the package in ``folder``."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", "tests.statistical.engine_check", target, str(draws)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path} | dict(env), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return np.array(done.stdout.split(), dtype=float)


@pytest.mark.parametrize("target", ["langevin", "flips", "rows", "subspace"])
def test_the_engine_is_right(target, book, full):
    book.check(5, "compiled engine", target, scores(target, 40_000 if full else 20_000, ROOT))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_caught(mistake, book, full, tmp_path):
    if not full and mistake not in QUICK:
        pytest.skip("a compilation each: in the full ladder")
    target, file, old, new = MISTAKES[mistake]
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(ROOT / "pymc_stiefel", tmp_path / "pymc_stiefel", ignore=ignored) / "engine" / file
    text = copy.read_text()
    assert text.count(old) == 1, f"{file} has changed: find the place of the mistake again"
    copy.write_text(text.replace(old, new))
    found = scores(target, 100_000, tmp_path, [("NUMBA_CACHE_DIR", str(tmp_path / "cache"))])
    book.caught(5, f"compiled: {mistake}", target, found)
