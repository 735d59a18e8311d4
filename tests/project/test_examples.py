"""Every example runs, and says something a wrong sampler would not."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import pymc_stiefel as pst
from tests import ROOT

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.integration


def run(name, *arguments):
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py"), "--quick", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def test_quickstart(tmp_path):
    picture = tmp_path / "columns.png"
    text = run("quickstart", "--output", str(picture))
    assert picture.stat().st_size > 5000
    assert "divergences: 0" in text
    # the market is the first component, well determined: its angle to the mean is small
    angle = float(re.search(r"angle\[0\]\s+(\S+)", text).group(1))
    assert angle < 0.15
    scales = [float(s) for s in re.search(r"scales: \[(.*?)\]", text).group(1).split()]
    assert scales[0] == pytest.approx(1.7, abs=0.2)
    assert scales[1] < 1.0


def number(pattern, text):
    return float(re.search(pattern, text).group(1))


def test_qr_mixture(tmp_path):
    """All sixteen modes, with their weights, the moments and the law of Q on both components of O(2)."""
    text = run("qr_mixture", "--output", str(tmp_path / "mixture.png"))
    assert text.count("16 of 16") == 3
    scores = [float(z) for z in re.findall(r"\|z\| <= (\S+)", text)]
    assert len(scores) == 3 and max(scores) < 4.5  # of 28 quantities each


def test_noisy_gradients(tmp_path):
    """Quantiles and spread are those of direct draws: no collapse to the mode."""
    text = run("noisy_gradients", "--output", str(tmp_path / "noise.png"))
    low, high = map(float, re.search(r"oSGHMC: spread .*?: (\S+) to (\S+)", text).groups())
    assert 0.92 < low <= high < 1.08
    assert number(r"oHMC: largest gap .*? \|z\| <= (\S+)\)", text) < 4.5  # of 45
    assert number(r"oSGHMC: largest gap of cumulative shares: (\S+)", text) < 0.03


def test_rotation(tmp_path):
    """Posterior means by quadrature over SO(3)."""
    text = run("rotation", "--output", str(tmp_path / "rotation.png"))
    assert number(r"\|z\| against quadrature: (\S+)", text) < 4
    assert number(r"posterior mean to Kabsch \(degrees\): (\S+)", text) < 0.5
    assert number(r"units of the posterior: (\S+)", text) < 16  # chi-squared with three degrees of freedom


def test_bayesian_pca(tmp_path):
    """Integrations by parts hold, and a known rank is found."""
    text = run("bayesian_pca", "--output", str(tmp_path / "pca.png"))
    assert number(r"integrations by parts: (\S+)", text) < 4.5  # of some 700
    assert 0.8 < number(r"variance of z (\d\.\d+)", text) < 1.3
    assert number(r"simulated with three: 3: ([\d.]+)", text) > 0.9
    assert number(r"divergences: (\d+)", text) < 5


def test_many_features(tmp_path):
    """Intervals of held-out entries cover what they should, and the factors are those simulated."""
    text = run("many_features", "--output", str(tmp_path / "scores.png"))
    assert 0.88 < number(r"90 % interval: (\S+)", text) < 0.92  # of 20 000, in rows that share their scores
    assert number(r"variance that is predicted: (\S+)", text) > 0.1
    assert max(float(a) for a in re.search(r"loadings \(degrees\): (.*)", text).group(1).split(" / ")) < 45


def test_eigenmodel(tmp_path):
    """All chains find the signs of the simulated network, and integrations by parts hold."""
    text = run("eigenmodel", "--output", str(tmp_path / "network.png"))
    assert re.search(r"mode 1: signs \+\+-", text)
    assert number(r"log posterior probability of signs \+\+-: (\S+)", text) > -0.1
    assert number(r"log posterior probability of signs \+\+\+: (\S+)", text) < -10
    assert number(r"integrations by parts: (\S+)", text) < 4.5  # of some 400
    assert 0.7 < number(r"variance of z (\d\.\d+)", text) < 1.4
    assert number(r"divergences: (\d+)", text) < 5


@pytest.mark.parametrize("temperature,passes", [(1.0, True), (1.25, False)])
def test_integrations_by_parts_tell_a_wrong_law(temperature, passes, monkeypatch):
    """The check that two examples lean on: exact draws pass, those of a law that is a little too wide do not."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from stein import stein_scores

    F = np.array([[6.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 0.0]])
    with pm.Model() as model:
        pst.MatrixLangevin("X", F=F)
        pm.Normal("x", 1.0, 2.0)
    found = []
    for seed in range(1, 6):  # the scores of one run are few, and correlated
        rng = np.random.default_rng(seed)
        draws = {
            "X_polar__": pst.draws.matrix_langevin(F / temperature, size=(2, 1500), rng=rng),
            "x": rng.normal(1.0, 2.0 * temperature**0.5, size=(2, 1500)),
        }
        found.append(stein_scores(model, xr.Dataset({name: _draws(name, value) for name, value in draws.items()})))
    scores = np.concatenate(found)
    assert (np.abs(scores).max() < 4) == passes
    assert (0.5 < scores.var() < 1.6) == passes


def _draws(name, value):
    return (("chain", "draw", *(f"{name}_{k}" for k in range(value.ndim - 2))), value)


def numbers(text):
    """What an example prints as ``quantity: number``."""
    return {name: float(value) for name, value in re.findall(r"^(.*?): (-?\d[\d.e-]*)", text, flags=re.MULTILINE)}


def test_movielens(tmp_path):
    found = numbers(run("movielens", "--output", str(tmp_path / "ratings.png")))
    assert found["RMSE, SVD, ensemble of ten"] < found["RMSE, SVD, one draw"] - 0.02
    assert found["RMSE, SVD, ensemble of ten"] < found["RMSE, mean of all ratings"] - 0.05
    assert found["RMSE, bottleneck, optimum"] < found["RMSE, mean of all ratings"]
    assert found["kinetic temperature"] == pytest.approx(1, abs=0.1)
    assert found["orthogonality error"] < 1e-10


def test_rank(tmp_path):
    """Few particles do for a clear answer: one component is not enough for the wines."""
    found = numbers(run("rank", "--output", str(tmp_path / "rank.png")))
    assert found["most probable rank"] > 1
    assert found["log marginal likelihood, rank 2"] > found["log marginal likelihood, rank 1"] + 20


def test_records_name_the_options_of_the_run_and_no_private_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "ratings.py"), "--data", str(tmp_path / "ml-100k")])
    from recording import finish, options_of

    parser = options_of("Ratings.", str(tmp_path / "ratings.png"), data="ratings")
    parser.add_argument("--step-size", type=float, default=0.01)
    parser.add_argument("--state", type=Path, default=tmp_path)
    options = parser.parse_args([*sys.argv[1:], "--seed", "3", "--record", str(tmp_path)])
    finish(options, Figure(), title="Ratings", data="none", rows=[], remarks=[])
    record = json.loads((tmp_path / "results" / "ratings.json").read_text())
    assert record["command"] == "python examples/ratings.py --seed 3 --data ml-100k --step-size 0.01 --record docs"


def test_a_recorded_picture_is_drawn_again_without_a_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    from recording import redraw

    (tmp_path / "one_curve.py").write_text(
        "from matplotlib.figure import Figure\n\n"
        "def picture(values):\n"
        "    figure = Figure(figsize=(len(values), 1))\n"
        "    figure.subplots().plot(values)\n"
        "    return figure\n"
    )
    (tmp_path / "results").mkdir()
    sizes = []
    for values in ([1, 2], [1, 2, 3, 4]):
        (tmp_path / "results" / "one_curve.json").write_text(json.dumps({"drawn": {"values": values}}))
        redraw(tmp_path, "one_curve")
        sizes.append(plt.imread(tmp_path / "images" / "one_curve.png").shape[1])
    assert sizes[1] > 1.5 * sizes[0]  # the numbers of the record are in the picture
