"""The key of cached code changes with every file that goes into it, and with no other."""

import ast
import importlib.util
import shutil
from pathlib import Path

import pytest

from tests import ROOT

PACKAGE = ROOT / "pymc_stiefel"


def imports(path: Path, package: Path) -> set[Path]:
    """Files that a file imports, read from its syntax tree."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: the key knows no relative imports"
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "pymc_stiefel":
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "pymc_stiefel"}
    found = set()
    for name in names - {"pymc_stiefel"}:
        base = package.joinpath(*name.split(".")[1:])
        found |= {file for file in (base.with_suffix(".py"), base / "__init__.py") if file.exists()}
    return found


def closure(path: Path, package: Path) -> set[Path]:
    found, waiting = {path}, [path]
    while waiting:
        new = imports(waiting.pop(), package) - found
        found |= new
        waiting += new
    return found


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    package = tmp_path_factory.mktemp("copy") / "pymc_stiefel"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def load(package: Path):
    """The module that makes the key, from the copy and fresh."""
    (path,) = (path for path in package.rglob("*.py") if "def source_key" in path.read_text())
    spec = importlib.util.spec_from_file_location("copied_compiling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(package: Path, users: list[Path]) -> dict[Path, str]:
    source_key = load(package).source_key
    return {path: source_key(path) for path in users}


def compiling(package: Path) -> list[Path]:
    """Files with code that is compiled and cached."""
    words = ("@compiled", "Routine(", "c_function(", "source_key(__file__)")
    return [path for path in package.rglob("*.py") if any(word in path.read_text() for word in words)]


def test_an_edited_file_changes_the_keys_of_what_it_goes_into(copy):
    users = compiling(copy)
    assert len(users) > 8
    closures = {path: closure(path, copy) for path in users}
    before = keys(copy, users)
    helpers = set.union(*closures.values())
    assert copy / "engine" / "jit" / "vectors.py" in closures[copy / "compile" / "rewrites" / "products.py"]
    for edited in [*sorted(helpers), copy / "plots" / "_figures.py"]:
        text = edited.read_text()
        edited.write_text(text + "\nEDITED = True\n")
        after = keys(copy, users)
        edited.write_text(text)
        changed = {path for path in users if after[path] != before[path]}
        assert changed == {path for path in users if edited in closures[path]}, edited


def test_no_cache_has_a_rule_of_its_own():
    """Whatever is cached on disk goes by ``source_key``."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "cache=True" not in text, path
        if "_cache_key(" in text and "def indexing" not in text:  # what PyTensor caches
            assert "source_key(__file__)" in text, path
