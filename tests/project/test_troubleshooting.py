"""The page on troubleshooting has every message that it promises and no other, that on statistics every statistic."""

import ast
import inspect
import re

import pymc.stats.convergence
import pytest

import pymc_stiefel as pst
from tests import ROOT

SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "pymc_stiefel").rglob("*.py")}
PAGE = (ROOT / "docs/howto/troubleshooting.md").read_text()
TERMS = re.findall(r"^`(.+)`\n: ", PAGE, flags=re.MULTILINE)  # the whole message is known
FAMILIES = [
    term.replace("\\|", "|") for term in re.findall(r"^\| `(.+?)` \|", PAGE, flags=re.MULTILINE)
]  # errors about an argument
EMITTERS = ("warnings.warn", "SamplerWarning", "_log.warning", "_log.error", "_log.info", "logger.info")
ABOUT_THE_RUN = ("SamplingError", "RuntimeError", "OSError")  # errors, besides those of these files
FILES = ("pymc_stiefel/compile/", "pymc_stiefel/steps/_base.py")
EXCEPTIONS = tuple(
    {*re.findall(r"raise ([A-Z]\w*|check\.\w+)\(", "".join(SOURCES.values()))} - {"Unsupported", "TypingError"}
)
INTERNAL = ("pymc_stiefel/engine/jit/", "pymc_stiefel/engine/blocks.py")  # for developers
SHORT = 14  # characters of a message that consists of variable parts


def template(node, names):
    """The text of an expression, with a null character for whatever varies."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, names) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template(node.value, names) if isinstance(node.value, ast.Name) else "\0"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, names) + template(node.right, names)
    return names.get(node.id, "\0") if isinstance(node, ast.Name) else "\0"


def emitted(source, kinds):
    """Line and text of everything that these calls say; a name stands for what its function assigned to it before."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = {}
        nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.AugAssign | ast.Call)]
        for node in sorted(nodes, key=lambda node: node.lineno):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = template(node.value, names)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names[node.target.id] = names.get(node.target.id, "") + template(node.value, names)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in kinds:
                said = node.args[1 if ast.unparse(node.func) == "SamplerWarning" else 0]
                yield node.lineno, re.sub(r"%[\d.]*[sdf]", "\0", template(said, names))


def pattern(term):
    return ".+".join(re.escape(part.strip()) for part in term.split("…"))


def found_in(text, terms=tuple(TERMS)):
    return any(re.search(pattern(term), text, flags=re.DOTALL) for term in terms)


WARNINGS = {
    f"{name}:{line}": text
    for name, source in SOURCES.items()
    for line, text in emitted(source, EMITTERS)
    if len(text.replace("\0", "")) > 0
}
ERRORS = {
    f"{name}:{line}": text
    for name, source in SOURCES.items()
    for line, text in emitted(source, ("ValueError", "IndexError") if name.startswith(FILES) else ABOUT_THE_RUN)
}
# the rest: argument errors, without those that only say that a name or a derivative does not exist
ARGUMENT_ERRORS = {
    f"{name}:{line}": text
    for name, source in SOURCES.items()
    if not name.startswith(INTERNAL)
    for line, text in emitted(source, set(EXCEPTIONS) - {"AttributeError", "NotImplementedError", "KeyboardInterrupt"})
    if len(text.replace("\0", "")) >= SHORT and not found_in(text)
}


def test_every_argument_error_belongs_to_a_family():
    assert {place: text for place, text in ARGUMENT_ERRORS.items() if not found_in(text, FAMILIES)} == {}
    unused = [term for term in FAMILIES if not any(found_in(text, [term]) for text in ARGUMENT_ERRORS.values())]
    assert unused == []
    assert len(ARGUMENT_ERRORS) > 150 and len(FAMILIES) == len(set(FAMILIES))
    assert [term for term in FAMILIES if len(term.replace("…", "")) < 12] == []


@pytest.mark.parametrize("texts", [WARNINGS, ERRORS], ids=["warnings", "errors"])
def test_every_message_has_an_entry(texts):
    assert {place: text for place, text in texts.items() if not found_in(text)} == {}


def test_every_entry_belongs_to_a_message():
    sources = [*SOURCES.values(), inspect.getsource(pymc.stats.convergence)]
    said = [text for source in sources for _, text in emitted(source, (*EMITTERS, *EXCEPTIONS, "_warn"))]
    said += [
        ast.literal_eval(text) for text in re.findall(r'^[A-Z_]+ = (".*")$', "\n".join(sources), flags=re.MULTILINE)
    ]
    assert len(TERMS) == len(set(TERMS)) > 60
    assert [term for term in TERMS if not any(re.search(pattern(term), text, flags=re.DOTALL) for text in said)] == []
    assert [term for term in TERMS if len(term.replace("…", "")) < 12] == []


def test_a_missing_entry_is_seen():
    source = 'def f(x):\n    message = f"{x} of these"\n    message += " were lost at sea"\n    warnings.warn(message)'
    ((line, text),) = emitted(source, EMITTERS)
    assert (line, text) == (4, "\0 of these were lost at sea")
    assert not found_in(text)
    assert len(WARNINGS) > 25 and len(ERRORS) > 15


@pytest.mark.parametrize("step", [pst.StiefelNUTS, pst.OrthogonalSGHMC])
def test_every_statistic_is_explained(step):
    """In the section of its step, in the first column, under the name it has inside of the step or in the trace."""
    page, stochastic = (ROOT / "docs/sample_stats.md").read_text().split("## `OrthogonalSGHMC`")
    rows = stochastic + page if step is pst.OrthogonalSGHMC else page
    explained = "".join(re.findall(r"^\|([^|]+)\|", rows, flags=re.MULTILINE))
    in_trace = {"tree_size": "n_steps", "model_logp": "lp"}
    names = [in_trace.get(name, name) for name in step.stats_dtypes_shapes]
    assert [name for name in names if f"`{name}`" not in explained] == []
