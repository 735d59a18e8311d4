"""Checks of arguments, of package versions on driver and workers, and of whether objects can be pickled."""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
from pytensor.graph.basic import Apply, Variable

__all__ = ["checked_options", "needs", "pickled", "version_difference", "versions", "with_target_accept"]

PACKAGES = ("pymc", "pytensor", "numpy", "scipy", "numba", "xarray", "cloudpickle")
"""Packages on which the draws, or the pickles, depend."""

REFUSED = {
    "trace": "draws are kept in memory, or in `store`",
    "return_inferencedata": "the result is what pm.sample returns by default",
    "nuts_sampler_kwargs": "write nuts={...}",
    "cores": "the engine says how many tasks run at once; write joblib.parallel_config('loky', n_jobs=2)",
    "mp_ctx": "the engine starts the processes",
    "progressbar_theme": "there is one line for all chains",
}


def needs(module: str) -> Any:
    """Import an optional package, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"sample_chains needs {package} for this, which cannot be imported ({error}); "
            "install it by `pip install 'pymc-stiefel[cluster]'`"
        ) from error


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of ``pm.sample`` that go to the steps; refuse others, with the reason."""
    for name in options.keys() & REFUSED.keys():
        raise TypeError(f"sample_chains does not take {name}={options[name]!r}: {REFUSED[name]}")
    sampler = options.pop("nuts_sampler", None)
    if sampler not in (None, "pymc"):
        raise ValueError(
            f"nuts_sampler must be 'pymc', got {sampler!r}: external samplers run all chains in one process"
        )
    return with_target_accept(options)


def with_target_accept(options: dict[str, Any]) -> dict[str, Any]:
    """Pass ``target_accept`` to the step named "nuts"."""
    if "target_accept" in options:
        nuts = dict(options.get("nuts", {}))
        if "target_accept" in nuts:
            raise ValueError("target_accept was given twice, directly and in nuts={...}; keep one of them")
        options["nuts"] = nuts | {"target_accept": options.pop("target_accept")}
    return options


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that must agree between the driver and the workers."""
    import pymc_stiefel

    found = {"python": ".".join(platform.python_version_tuple()[:2]), "pymc_stiefel": pymc_stiefel.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def version_difference(driver: dict[str, str], here: dict[str, str]) -> str:
    """``"numpy 2.1 on the driver, 2.2 on the worker"`` for everything that differs, or an empty string."""
    names = sorted(driver.keys() | here.keys())
    return "; ".join(
        f"{name} {driver.get(name, 'missing')} on the driver, {here.get(name, 'missing')} on the worker"
        for name in names
        if driver.get(name) != here.get(name)
    )


def pickled(value: Any) -> bytes:
    """``value`` pickled by cloudpickle, or an error that names the object within it that cannot be pickled."""
    try:
        data: bytes = cloudpickle.dumps(value)
        return data
    except Exception as error:
        path, culprit = _culprit(value, "", set()) or ("", value)
        raise TypeError(
            f"{path.lstrip('.')} cannot be pickled, so it cannot be sent to a worker: it is {_short(culprit)} "
            f"({type(error).__name__}: {error}). Make it where it is used, for instance by a step factory "
            "`step=lambda: ...`, or leave it out of the model."
        ) from error


def _culprit(value: Any, path: str, seen: set[int]) -> tuple[str, Any] | None:
    """The innermost part that cannot be pickled; None if it fails only through an object that leads to it."""
    seen.add(id(value))
    leads_back = False
    for label, part in _parts(value):
        if id(part) in seen:
            leads_back = True
        elif not _pickles(part) and (found := _culprit(part, path + label, seen)):
            return found
    return None if leads_back else (path, value)


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # whatever a foreign __reduce__ raises
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, ModuleType | type):
        return
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        yield from (
            (f" -> {name}", cell.cell_contents) for name, cell in zip(names, value.__closure__ or (), strict=True)
        )
        used = [name for name in value.__code__.co_names if name in value.__globals__]
        yield from ((f" -> {name}", value.__globals__[name]) for name in used)
    elif isinstance(value, Variable) and value.owner is not None:
        yield from ((f" -> {part.name or part.owner or part}", part) for part in value.owner.inputs)
        yield ".owner.op", value.owner.op
    elif isinstance(value, Apply):
        yield ".op", value.op
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text[:77]}..." if len(text) > 80 else text
