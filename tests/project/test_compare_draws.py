"""The comparison of draws at two revisions tells the smallest difference."""

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.compare_draws import differences, main
from tests import ROOT


def arrays():
    rng = np.random.default_rng(1)
    return {"a/draws/X": rng.standard_normal((20, 3)), "a/statistics/energy": rng.standard_normal(20)}


def test_equal_bits_are_identical_also_where_numbers_are_not():
    old = arrays()
    old["a/statistics/energy"][3] = np.nan
    assert differences(old, {key: value.copy() for key, value in old.items()}, ["a"]) == [("a", "")]


def test_a_single_bit_is_a_difference():
    old, new = arrays(), arrays()
    new["a/draws/X"][7, 1] = np.nextafter(new["a/draws/X"][7, 1], 9)
    assert differences(old, new, ["a"]) == [("a", "draws/X 1 of 20 from draw 7")]
    zero = {"a/draws/X": np.zeros(2)}
    assert differences(zero, {"a/draws/X": -zero["a/draws/X"]}, ["a"])[0][1]


def test_what_is_missing_or_of_another_shape_is_a_difference():
    old = arrays()
    new = {"a/draws/X": old["a/draws/X"][:, :2]}
    (_, text), (_, nothing) = differences(old, new, ["a", "b"])
    assert "draws/X float64(20, 3) became float64(20, 2)" in text
    assert "statistics/energy only in OLD" in text
    assert nothing == "empty"


def test_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["HEAD", "--models", "unheard of"])
    assert "no such models: ['unheard of']" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.integration
def test_a_change_of_the_sampler_is_found(tmp_path):
    """The working tree against a copy of it in which trajectories are shorter."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", str(tmp_path / "copy")]
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "copy")], check=True)
    step = tmp_path / "copy" / "pymc_stiefel" / "steps" / "_hmc.py"
    step.write_text(step.read_text().replace("target_accept: float = 0.8", "target_accept: float = 0.7"))
    subprocess.run([*git, "commit", "-qam", "another target"], check=True)
    script = tmp_path / "copy" / "benchmarks" / "compare_draws.py"
    for old, status, word in [("HEAD", 0, "identical"), ("HEAD~1", 1, "differs: draws/X")]:
        arguments = [old, "HEAD", "--models", "Langevin-Bingham", "--keep", str(tmp_path / "kept")]
        command = [sys.executable, str(script), *arguments]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (run.returncode, word in run.stdout) == (status, True), run.stdout + run.stderr
