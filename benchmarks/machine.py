"""Versions and shape of the machine, for every record."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pymc_stiefel

PACKAGES = ("pymc", "pytensor", "nutpie", "mici", "numba", "numpy", "arviz")


@cache
def machine() -> dict:
    cpu = Path("/proc/cpuinfo")
    models = (
        [line.split(":")[1].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")]
        if (cpu.exists())
        else [platform.processor()]
    )
    installed = {distribution.name.lower(): distribution.version for distribution in distributions()}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    return {
        "python": platform.python_version(),
        "versions": {"pymc_stiefel": pymc_stiefel.__version__} | versions,
        "cores": os.cpu_count(),
        "cpu": models[0] if models else "unknown",
    }


def sentence(facts: dict) -> str:
    """The machine of a record, in words."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return f"{facts['cores']} cores ({facts['cpu']}), Python {facts['python']}, {versions}"
