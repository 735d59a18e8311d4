"""Names inside numba, llvmlite and PyTensor that this package uses: a new version that lacks one is told by its name.

This file does not import the package, which could not be imported then.
"""

import ast
import importlib
import warnings

import numba
import numpy as np
import pytest

from tests import ROOT

PACKAGE = ROOT / "pymc_stiefel"
LIBRARIES = ("numba", "llvmlite", "pytensor", "pymc")


def imported_names():
    """(module, name) of everything that the package imports from these libraries, but for what it can do without."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        optional = {id(node) for tried in ast.walk(tree) if isinstance(tried, ast.Try) for node in tried.body}
        for node in ast.walk(tree):
            if (
                id(node) not in optional
                and isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.split(".")[0] in LIBRARIES
            ):
                found |= {(node.module, alias.name) for alias in node.names}
    return sorted(found)


@pytest.mark.parametrize("module,name", imported_names(), ids=lambda part: part)
def test_imported_names_exist(module, name):
    if "jax" in module:
        pytest.importorskip("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")


def test_private_names_of_numba_live_in_one_subpackage():
    private = ("numba.core", "numba.np", "llvmlite")
    elsewhere = {
        f"{path.relative_to(PACKAGE)}: {module}"
        for path in PACKAGE.rglob("*.py")
        if "jit" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for module in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
        if module.startswith(private)
    }
    assert not elsewhere, "move this to pymc_stiefel/engine/jit"


@pytest.fixture(scope="module")
def dispatcher(tmp_path_factory):
    """A compiled function with a cache."""
    path = tmp_path_factory.mktemp("source") / "doubling.py"
    path.write_text("def double(x):\n    return 2 * x, x\n")
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    made = numba.njit(space["double"], error_model="numpy", forceinline=True, no_cfunc_wrapper=True, _nrt=True)
    made.enable_caching()
    made.compile((numba.types.float64,))
    return made


@pytest.mark.parametrize(
    "name",
    [
        "fold_argument_types",
        "targetoptions",
        "_cache.save_overload",
        "_cache.load_overload",
        "_cache.cache_path",
        "_cache._cache_file._source_stamp",
        "overloads",
    ],
)
def test_attributes_of_dispatchers(dispatcher, name):
    value = dispatcher
    for part in name.split("."):
        assert hasattr(value, part), f"numba {numba.__version__}: a dispatcher has no {name}"
        value = getattr(value, part)


@pytest.mark.parametrize(
    "name",
    ["signature.return_type", "library.get_pointer_to_function", "fndesc.llvm_func_name", "target_context.call_conv"],
)
def test_attributes_of_compiled_code(dispatcher, name):
    (value,) = dispatcher.overloads.values()
    for part in name.split("."):
        assert hasattr(value, part), f"numba {numba.__version__}: compiled code has no {name}"
        value = getattr(value, part)


@pytest.mark.parametrize(
    "symbol", ["numba_xxgemm", "PyErr_Occurred", "PyErr_ExceptionMatches", "PyErr_Clear", "PyErr_Fetch"]
)
def test_symbols_that_compiled_code_calls(symbol):
    import llvmlite.binding
    import numba.np.linalg
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
    assert llvmlite.binding.address_of_symbol(symbol), f"numba {numba.__version__}: no symbol {symbol}"


def test_a_function_of_pytensor_has_its_compiled_code():
    import pytensor
    import pytensor.tensor as pt

    x = pt.vector()
    function = pytensor.function([x], [2 * x], mode="NUMBA")
    assert hasattr(function.vm, "jit_fn"), f"PyTensor {pytensor.__version__}: vm.jit_fn is gone"
    (double,) = function.vm.jit_fn(np.ones(2))
    np.testing.assert_array_equal(double, [2.0, 2.0])
