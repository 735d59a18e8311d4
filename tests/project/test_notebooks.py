"""Figures in a real notebook: each is shown once, and ours do not spoil those of others."""

import os
import sys

import pytest

from tests import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

SETUP = """
import numpy as np
import pymc_stiefel as pst
draws = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 50, 6, 2)))[0]
"""
CELLS = {
    "the first figure of the kernel is ours": "pst.plot_columns(draws)",
    "and a figure of somebody else": "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
    "not the value of the cell": "figure = pst.plot_loadings(draws)",
    "shown again on request": "figure",
    "two figures": "pst.plot_subspace(draws)\npst.plot_alignment(draws)",
    "a batch": "pst.plot_columns(np.stack([draws, draws], axis=2))",
    "without display": "plt.ioff()\nother = pst.plot_columns(draws)",
    "until asked for": "other",
}
PICTURES = [1, 1, 1, 1, 2, 1, 0, 1]


@pytest.mark.integration
@pytest.mark.filterwarnings("default")  # those of the client are not ours
def test_figures_are_shown_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *CELLS.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    spec = tmp_path / "kernels" / "here"
    spec.mkdir(parents=True)
    command = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (spec / "kernel.json").write_text(f'{{"argv": {command}, "display_name": "here", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="here").execute()
    shown = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in notebook.cells[1:]]
    assert dict(zip(CELLS, shown, strict=True)) == dict(zip(CELLS, PICTURES, strict=True))
