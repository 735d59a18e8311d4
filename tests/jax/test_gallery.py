"""The notebooks of the gallery that use JAX."""

import matplotlib.pyplot as plt
import pytest

pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pymc_stiefel as pst
from tests.gallery import SCRIPTS, load_runner, make_short, shortened, uses_jax


@pytest.mark.integration
@pytest.mark.parametrize("path", [path for path in SCRIPTS if uses_jax(path)], ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    make_short(monkeypatch)
    few = shortened(pst.jax.sample, 100, 200, 256, progressbar=False, compute_convergence_checks=False)
    monkeypatch.setattr(pst.jax, "sample", few)
    load_runner().run(path, {"__name__": "__main__"})
    plt.close("all")
