"""The benchmarks run, and disqualify a sampler that is wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import jax_chains, jax_memory
from benchmarks.__main__ import Journal, better_expansion, main
from benchmarks.agreement import verdicts
from benchmarks.constrained import Mici, constraint, jacobian
from benchmarks.problems import PROBLEMS, mixture_modes, positive_qr
from benchmarks.summary import with_earlier
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine.blocks import make_layout
from tests import ROOT


def test_quick_run_and_resumption(tmp_path, capsys):
    arguments = ["--quick", "--output", str(tmp_path), "--draws", "100", "--limit", "600"]
    arguments += ["--problems", "uniform (10, 1)", "--samplers", "OrthogonalHMC", "GeodesicHMC"]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["sampler"] for line in lines] == ["OrthogonalHMC", "GeodesicHMC"]
    (tmp_path / "results.json").unlink()
    main(arguments)  # everything is there already
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2
    assert "seed 0" not in capsys.readouterr().out
    table = json.loads((tmp_path / "results.json").read_text())["problems"]["uniform (10, 1)"]
    for row in table.values():
        assert row["disqualified"] == ""
        assert row["speed"] > 0
        run = row["runs"][0]
        assert run["gradients"] >= 200 and run["warmup"] > 0 and run["sampling"] > 0
        assert run["min_ess"] <= run["median_ess"]


def synthetic(rng, shift=0.0, r_hat=1.0, runs=5):
    error = np.geomspace(0.01, 1, 40)
    common = {"errors": list(error), "r_hat": r_hat, "draws": 1000}
    return [common | {"means": list(error * rng.standard_normal(40) + shift * error)} for _ in range(runs)]


def test_the_expansion_is_chosen_by_first_runs_alone(tmp_path):
    """So that a run which was interrupted goes on with the samplers it had."""
    journal = Journal(tmp_path / "runs.jsonl", False, None)
    for sampler, ess in [("nutpie, QR", 5.0), ("nutpie, polar", 6.0), ("nutpie, QR", 9.0)]:
        journal.add({"problem": "a", "sampler": sampler, "min_ess": ess, "warmup": 1.0, "sampling": 1.0})
    assert better_expansion("a", journal) == "polar"


def test_verdicts_disqualify_what_is_wrong_and_nothing_else():
    rng = np.random.default_rng(1)
    right = {name: synthetic(rng) for name in "abc"}
    assert not any(row["disqualified"] for row in verdicts(right).values())
    wrong = verdicts(right | {"biased": synthetic(rng, shift=4.0), "stuck": synthetic(rng, r_hat=1.5)})
    assert {name for name, row in wrong.items() if row["disqualified"]} == {"biased", "stuck"}
    two = verdicts({"a": right["a"], "biased": synthetic(rng, shift=8.0)})
    assert all(row["disqualified"] for row in two.values())
    exact = (np.zeros(40), np.zeros(40))
    known = verdicts({"a": right["a"], "biased": synthetic(rng, shift=4.0)}, exact)
    assert {name for name, row in known.items() if row["disqualified"]} == {"biased"}


def test_the_table_of_chains_on_jax_replaces_only_what_is_between_its_marks(tmp_path, monkeypatch):
    row = {"problem": "a", "sampler": "chees", "chains": 512, "ess_per_gradient": 0.25, "ess_per_second": 1000.0}
    row |= {"times_engine": 4.5, "compile": 7.0, "compile_cached": 0.5}
    record, page = tmp_path / "record.json", tmp_path / "page.md"
    record.write_text(json.dumps([row, row | {"sampler": "StiefelNUTS"}]))
    begin, end = "<!-- figures of benchmarks/jax_chains.json -->", "<!-- end of figures -->"
    other = f"{begin.replace('jax_chains', 'weak_component')}\nkept\n{end}"
    page.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n{other}\n")
    monkeypatch.setattr(jax_chains, "RESULTS", record)
    for _ in range(2):
        jax_chains.write_page(page)
        text = page.read_text()
        assert text.startswith("before\n\n") and text.endswith(f"\n\nafter\n{other}\n") and "old" not in text
        assert text.count("| a | chees | 512 | 0.250 | 1000 | 4.50 | 7 s, 0.5 s |") == 1
        assert text.count("| a | StiefelNUTS | 512 | 0.250 | 1000 | 4.50 |  |") == 1


def test_the_table_of_memory_is_in_gigabytes(tmp_path, monkeypatch):
    record, page = tmp_path / "jax_memory.json", tmp_path / "page.md"
    bytes_ = {"posterior": 3_080_000_000, "statistics": 114_000_000, "libraries": 444_000_000, "peak": 3_816_000_000}
    record.write_text(json.dumps({"chains": 4096, "draws": 1000} | bytes_))
    page.write_text("before\n<!-- figures of benchmarks/jax_memory.json -->\nold\n<!-- end of figures -->\nafter\n")
    monkeypatch.setattr(jax_memory, "RESULTS", record)
    jax_memory.write_page(page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| 4096 x 1000 | 3.08 | 0.11 | 0.44 | 3.82 |" in text


def test_jacobian_of_the_constraint():
    layout = make_layout([(4, 2), (3, 3)], 2)
    rng = np.random.default_rng(0)
    q, d = rng.standard_normal(layout.size), rng.standard_normal(layout.size)
    slope = (constraint(layout, q + 1e-6 * d) - constraint(layout, q - 1e-6 * d)) / 2e-6
    np.testing.assert_allclose(jacobian(layout, q) @ d, slope, rtol=1e-6)


def test_flat_states_become_draws_of_the_variables():
    sampler = Mici(PROBLEMS["ppca 30, [5, 3, 1.5]"](), 2)
    density = ModelDensity(sampler.model, sampler.model.value_vars, sampler.model.initial_point())
    states = np.array([sampler._starts(density, seed) for seed in (1, 2, 3)]).swapaxes(0, 1)
    draws = sampler._draws(density, states)
    assert draws["scale"].shape == (2, 3, 3) and draws["noise"].shape == (2, 3)
    np.testing.assert_allclose(draws["scale"], np.broadcast_to([1.0, 2.0, 3.0], (2, 3, 3)))
    np.testing.assert_array_equal(draws["U"].swapaxes(-1, -2).reshape(2, 3, -1), states[..., :90])


def test_mixture_density_is_that_of_a_factorised_mixture():
    """In the coordinates (angle, log R_11, log R_22, R_12) the density is that of M times the Jacobian of M."""
    model = PROBLEMS["qr-mixture (2, 2)"]().build("manifold")
    density = ModelDensity(model, model.value_vars, model.initial_point(1))
    rng = np.random.default_rng(0)

    def matrix(u):
        angle, a, b, upper = u
        Q = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return Q, Q @ np.array([[np.exp(a), upper], [0.0, np.exp(b)]])

    gaps = []
    for _ in range(3):
        M = mixture_modes(2)[5] + 0.3 * rng.standard_normal((2, 2))
        Q, R = positive_qr(M)
        Q[:, 1] *= np.linalg.det(Q)  # a rotation; M is then another matrix, no less good
        u = np.array([np.arctan2(Q[1, 0], Q[0, 0]), *np.log(np.diag(R)), R[0, 1]])
        columns = [(matrix(u + h)[1] - matrix(u - h)[1]).ravel() / 2e-6 for h in 1e-6 * np.eye(4)]
        M = matrix(u)[1]
        target = np.log(np.exp(-0.5 * np.sum((M - mixture_modes(2)) ** 2, axis=(1, 2)) / 0.09).sum())
        point = {"Q_polar__": matrix(u)[0], "diagonal_log__": u[1:3], "upper": u[3]}
        value = density(density.pack(point))[0]
        gaps.append(value - target - np.linalg.slogdet(np.array(columns))[1])
    assert gaps == pytest.approx([gaps[0]] * 3, abs=1e-6)


def test_rows_of_an_earlier_run_are_kept_and_marked():
    row = {"speed": 2.0, "disqualified": ""}
    earlier = {"problems": {"a": {"mici": row | {"speed": 5.0}, "StiefelNUTS": row}, "b": {"mici": row}}}
    results = {"problems": {"a": {"StiefelNUTS": row | {"speed": 10.0}, "nutpie, QR": row}}}
    found = with_earlier(results, earlier)["problems"]
    assert found["a"]["StiefelNUTS"]["speed"] == 10.0
    assert found["a"]["StiefelNUTS"]["ratio"] == 5.0  # not against mici
    assert found["a"]["mici"]["earlier"] and found["b"]["mici"]["earlier"]
