"""The notebooks of the gallery that use JAX."""

import matplotlib.pyplot as plt
import pytest

pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pymc_stiefel as pst
from tests import ROOT
from tests.gallery import SCRIPTS, aiming_at_a_power, load_runner, make_short, shortened, uses_jax


def few(sample):
    return shortened(sample, 100, 200, 256, progressbar=False, compute_convergence_checks=False)


@pytest.mark.integration
@pytest.mark.parametrize("path", [path for path in SCRIPTS if uses_jax(path)], ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    make_short(monkeypatch)
    monkeypatch.setattr(pst.jax, "sample", few(pst.jax.sample))
    load_runner().run(path, {"__name__": "__main__"})
    plt.close("all")


@pytest.mark.integration
def test_chains_that_are_too_narrow_are_seen(monkeypatch):
    make_short(monkeypatch)
    monkeypatch.setattr(pst.jax, "sample", aiming_at_a_power(few(pst.jax.sample), 2.0))
    with pytest.raises(AssertionError, match="standard deviations of JAX"):
        load_runner().run(ROOT / "docs" / "gallery" / "many_chains_jax.py", {"__name__": "__main__"})
    plt.close("all")
