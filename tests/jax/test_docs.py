"""Docstrings of pymc_stiefel.jax are complete and their examples run; so does the page on accelerators."""

from __future__ import annotations

import doctest
import inspect

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
pytest.importorskip("optax")

import pymc_stiefel as pst  # noqa: E402
from tests.project import test_docs  # noqa: E402
from tests.project.test_docs import DOCS, run_page  # noqa: E402, F401 (a fixture)

NAMES = pst.jax.__all__
SAMPLING = ("sample", "Sampler")


@pytest.mark.parametrize("name", NAMES)
def test_docstring_is_complete(name, monkeypatch):
    if name == "Ensemble":  # a result, made by ``ensemble``
        assert "Attributes" in inspect.getdoc(pst.jax.Ensemble)
        return
    monkeypatch.setitem(test_docs.OBJECTS, name, getattr(pst.jax, name))
    test_docs.test_docstring_is_complete(name)


def runs(name):
    text = inspect.getdoc(getattr(pst.jax, name))
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    return doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*SAMPLING, "Ensemble")])
def test_docstring_examples_run(name):
    assert runs(name)


@pytest.mark.integration
@pytest.mark.parametrize("name", SAMPLING)
def test_docstring_examples_that_sample_run(name):
    assert runs(name)


@pytest.mark.integration
def test_code_of_the_page_runs(run_page, monkeypatch):  # noqa: F811
    sample = pst.jax.sample
    quick = {"progressbar": False, "compute_convergence_checks": False}

    def short(draws=50, *, tune=60, chains=16, **given):
        return sample(min(draws, 50), tune=min(tune, 60), chains=min(chains, 16), **(quick | given))

    monkeypatch.setattr(pst.jax, "sample", short)
    namespace = {}
    path = DOCS / "howto" / "gpu.md"
    for block in run_page.blocks(path.read_text()):
        run_page.run(block, namespace, str(path))
