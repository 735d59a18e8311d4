"""Docstrings are complete and their examples run, the code of the pages runs, links lead somewhere."""

import doctest
import importlib.util
import inspect
import re
import sys

import matplotlib.pyplot as plt
import pymc as pm
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws, geometry, normalizers
from pymc_stiefel.distributions import transforms
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = [DOCS / "tutorial.md", DOCS / "building_blocks.md", *sorted((DOCS / "howto").glob("[!i]*.md"))]

# ---------------------------------------------------------------- docstrings


def public_objects():
    for module in (pst, geometry, transforms, draws, normalizers):
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.ismodule(found) and (callable(found) or inspect.isclass(found)):
                yield f"{module.__name__}.{name}", found


OBJECTS = dict(public_objects())


def named_arguments(found):
    """What a user may write, without what all PyMC variables take."""
    function = found.dist if hasattr(found, "dist") else found.__init__ if inspect.isclass(found) else found
    function = getattr(function, "py_func", function)  # compiled functions
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "rng") and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_is_complete(name):
    found = OBJECTS[name]
    text = inspect.getdoc(found) or ""
    sections = re.split(r"^(\w+)\n-{3,}$", text, flags=re.MULTILINE)
    by_title = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert ">>>" in by_title.get("Examples", ""), f"{name} has no example"
    described = by_title.get("Parameters", "") + by_title.get("Attributes", "") + sections[0]
    missing = [argument for argument in named_arguments(found) if not re.search(rf"\b{argument}\b", described)]
    if not isinstance(found, transforms.Transform):
        assert not missing, f"{name} does not say what {missing} are"


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_examples_run(name):
    found = OBJECTS[name]
    module = sys.modules[name.rpartition(".")[0]]
    text = inspect.getdoc(found) or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, inspect.getsourcefile(module), 0)
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    plt.close("all")
    assert result.attempted > 0
    assert result.failed == 0


# ---------------------------------------------------------------- pages


@pytest.fixture(scope="module")
def run_page():
    spec = importlib.util.spec_from_file_location("run_page", DOCS / "run_page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_page"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def few_draws(monkeypatch):
    """``pm.sample`` with small defaults: pages show what a user writes."""
    sample = pm.sample
    quick = {"chains": 2, "cores": 1, "random_seed": 1, "compute_convergence_checks": False, "progressbar": False}

    def short(draws=200, *, tune=200, **given):
        return sample(min(draws, 200), tune=min(tune, 200), **(quick | given))

    monkeypatch.setattr(pm, "sample", short)


@pytest.mark.integration
@pytest.mark.filterwarnings(
    "ignore:the potentials:UserWarning",  # which the page on ranks explains, as the next one
    "ignore:the chains' estimates of the log marginal:UserWarning",
    "ignore:Estimated shape parameter:UserWarning",  # with the few draws of a test
    "ignore:Numba will use object mode to run EighGrad:UserWarning",  # PyTensor 2.38, in a model written by hand
)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_code_of_the_page_runs(path, run_page, few_draws):
    namespace = {}
    for block in run_page.blocks(path.read_text()):
        if "numpyro" in block.code or "pst.jax" in block.code:  # elsewhere: JAX and forked workers do not go together
            continue
        run_page.run(block, namespace, str(path))
        assert not block.text or block.printed, f"line {block.start}: this code prints nothing, the page says it does"
        assert not block.picture or hasattr(block.value, "savefig"), f"line {block.start}: this code draws no picture"
    plt.close("all")


@pytest.mark.integration
def test_numpyro_code_runs_on_JAX(run_page, few_draws):
    pytest.importorskip("numpyro")
    path = DOCS / "howto" / "other_samplers.md"
    namespace = {}
    found = [block for block in run_page.blocks(path.read_text()) if "numpyro" in block.code]
    assert found
    for block in found:
        run_page.run(block, namespace, str(path))


def test_runner_sees_errors_and_output(run_page):
    page = "```python\n1 + 1\n```\n\n```text\n3\n```\n\n```python\nraise KeyError('here')\n```\n"
    first, second = run_page.blocks(page)
    run_page.run(first, {}, "page")
    assert first.printed == "2\n"
    assert first.text == (page.index("3\n"), page.index("3\n") + 2)
    with pytest.raises(KeyError):
        run_page.run(second, {}, "page")


# ---------------------------------------------------------------- links


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", prose) if not target.startswith("http")]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.integration
def test_examples_of_the_reference_run():
    text = (DOCS / "api.rst").read_text()
    test = doctest.DocTestParser().get_doctest(text, {}, "api.rst", "docs/api.rst", 0)
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    plt.close("all")
    groups = re.findall(r"^(.+)\n-{4,}\n(.*?)\.\. autosummary", text, flags=re.MULTILINE | re.DOTALL)
    assert result.failed == 0
    assert [title for title, body in groups if ">>>" not in body and "code-block" not in body] == []


def test_every_public_object_is_in_the_reference():
    text = (DOCS / "api.rst").read_text()
    names = [name.rpartition(".")[2] for name in OBJECTS]
    ready_made = {"polar", "rotation", "sphere", "householder"}
    assert [name for name in names if name not in ready_made and not re.search(rf"^   {name}$", text, re.M)] == []
