"""PyTensor operations: the polar factor with its own derivative, the manifold guard, the normalising constants."""

from pymc_stiefel.ops._polar import (
    MANIFOLD_TOLERANCE,
    Differentiable,
    ManifoldGuard,
    StiefelRV,
    as_float,
    guard,
    manifold_tolerance,
    on_manifold,
    polar,
    project_checked,
    project_numpy,
    rotation,
    without_manifold_check,
)

__all__ = [
    "MANIFOLD_TOLERANCE",
    "Differentiable",
    "ManifoldGuard",
    "StiefelRV",
    "as_float",
    "guard",
    "manifold_tolerance",
    "on_manifold",
    "polar",
    "project_checked",
    "project_numpy",
    "rotation",
    "without_manifold_check",
]
