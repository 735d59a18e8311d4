"""The notebooks of the gallery run, their assertions hold with few draws, and their records are not out of date."""

import re

import matplotlib.pyplot as plt
import pytest

import pymc_stiefel as pst
from tests import ROOT
from tests.gallery import SCRIPTS, aiming_at_a_power, load_runner, make_short, uses_jax

runner = load_runner()
FAILING = "# %% [markdown]\n# # A title\n\n# %%\nhalf = 1 / 2\n\n# %%\nassert half == 0, 'seen'\n"


@pytest.mark.integration
@pytest.mark.parametrize("path", [path for path in SCRIPTS if not uses_jax(path)], ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    for module in ("sklearn", "dask", "distributed"):
        if re.search(rf"^(import|from) {module}\b", path.read_text(), re.MULTILINE):
            pytest.importorskip(module)
    make_short(monkeypatch)
    runner.run(path, {"__name__": "__main__"})
    plt.close("all")


@pytest.mark.integration
def test_chains_that_are_too_narrow_are_seen(monkeypatch):
    pytest.importorskip("distributed")
    make_short(monkeypatch)
    monkeypatch.setattr(pst, "sample_chains", aiming_at_a_power(pst.sample_chains, 2.0))
    with pytest.raises(AssertionError, match="standard deviations of M"):
        runner.run(ROOT / "docs" / "gallery" / "chains_on_dask.py", {"__name__": "__main__"})
    plt.close("all")


def test_a_failing_assertion_is_seen(tmp_path):
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    with pytest.raises(AssertionError, match="seen"):
        runner.run(path, {})


@pytest.mark.integration
@pytest.mark.filterwarnings("default")  # those of the client are not ours
def test_a_notebook_that_fails_is_not_recorded(tmp_path):
    pytest.importorskip("jupytext")
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="seen"):
        runner.record(path)
    assert [found.name for found in tmp_path.iterdir()] == ["failing.py"]


def test_prose_is_refreshed_without_running_and_code_is_not(tmp_path):
    pytest.importorskip("jupytext")
    nbformat = pytest.importorskip("nbformat")
    path = tmp_path / "page.py"
    path.write_text(FAILING)
    notebook = runner.read(path)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="kept")]
    record = path.with_suffix(".ipynb")
    record.write_text(nbformat.writes(notebook))
    path.write_text(FAILING.replace("A title", "Another title").replace("half = 1 / 2", "half = 1 / 2  # a half"))
    runner.refresh_text(path)
    refreshed = nbformat.read(record, as_version=4)
    assert [cell.source for cell in refreshed.cells[:2]] == ["# Another title", "half = 1 / 2  # a half"]
    assert refreshed.cells[1].outputs[0].text == "kept"
    path.write_text(FAILING.replace("1 / 2", "1 / 3"))
    with pytest.raises(ValueError, match="run it again"):
        runner.refresh_text(path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_record_is_not_out_of_date(path):
    pytest.importorskip("jupytext")
    nbformat = pytest.importorskip("nbformat")
    recorded = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    expected = runner.read(path)
    assert [(cell.cell_type, cell.source) for cell in recorded.cells] == [
        (cell.cell_type, cell.source) for cell in expected.cells
    ]
    errors = [cell for cell in recorded.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert not errors
    outputs = [output for cell in recorded.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    assert not [output.text for output in outputs if "site-packages" in output.get("text", "")]
    assert (runner.THUMBNAILS / f"{path.stem}.png").exists()


def test_every_notebook_has_its_parts_and_its_card():
    index = (ROOT / "docs" / "gallery" / "index.md").read_text()
    for path in SCRIPTS:
        source = path.read_text()
        assert re.search(rf"^{path.stem}$", index, re.MULTILINE), f"docs/gallery/index.md has no card for {path.stem}"
        assert re.match(r"# %% \[markdown\]\n# # \S", source), f"{path.stem} does not begin with its title"
        assert re.search(r"^ *assert ", source, re.MULTILINE), f"{path.stem} asserts nothing"
        assert "\n# ## When to use this\n" in source, f"{path.stem} does not say when to use it"
        headings = " ".join(re.findall(r"^# ## (.+)$", source, re.MULTILINE)).lower()
        for part in ("data", "model", "diagnosis", "answer"):
            assert part in headings, f"{path.stem} has no section on its {part}"
        assert "pst.check(" in source and "sample" in source, f"{path.stem} does not sample and check"
    assert len(SCRIPTS) >= 12
