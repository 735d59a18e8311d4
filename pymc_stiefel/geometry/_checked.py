"""Argument checks of the public functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymc_stiefel import _checks as check

Matrix = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")
TOLERANCE = 1e-6  # allowed error of orthonormal and tangent matrices


def _orthonormal(name: str, given: Any, others: dict[str, Any]) -> Matrix:
    X = check.matrix(name, given)
    n, p = X.shape
    error = np.abs(X.T @ X - np.eye(p)).max()
    if n < p or error > TOLERANCE:
        raise ValueError(f"{name} must have orthonormal columns, got shape {X.shape} with |X'X - I| up to {error:.2g}")
    return X


def _tangent(name: str, given: Any, others: dict[str, Any]) -> Matrix:
    X, r = others["X"], check.matrix(name, given, like=("X", others["X"]))
    error = np.abs(X.T @ r + r.T @ X).max()
    if error > TOLERANCE * max(1.0, np.abs(r).max()):
        raise ValueError(
            f"{name} must be tangent at X, got |X'r + r'X| up to {error:.2g}; use tangent_project(X, {name})"
        )
    return r


def _masses(name: str, given: Any, others: dict[str, Any]) -> Matrix:
    p = others["X"].shape[1]
    shape, masses = (p,) if name == "c" else (p, p), check.numbers(name, given)
    if masses.shape != shape or not (masses > 0).all() or not np.array_equal(masses, masses.T):
        raise ValueError(
            f"{name} must be positive{', symmetric' * (name == 'w')} of shape {shape}, got {masses.tolist()}"
        )
    return masses


def _generator(name: str, rng: Any, others: dict[str, Any]) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{name} must be a numpy.random.Generator such as np.random.default_rng(1), got {rng!r}")
    return rng


def _batch(name: str, Z: Any, others: dict[str, Any]) -> Matrix:
    return check.matrix(name, Z, batch=True)


def _square(name: str, given: Any, others: dict[str, Any]) -> Matrix:
    Z = check.matrix(name, given, batch=True)
    if Z.shape[-2] != Z.shape[-1]:
        raise ValueError(f"{name} must be square, got shape {Z.shape}")
    return Z


def _gradient(name: str, given: Any, others: dict[str, Any]) -> Matrix:
    beside = next(iter(others))  # X or Z. Non-finite entries are allowed and give a non-finite result
    G = np.asarray(given)
    if G.dtype.kind not in "fiub" or G.shape != others[beside].shape or isinstance(G, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must be real numbers of the shape {others[beside].shape} of {beside}, got {check.shown(G)}"
        )
    return G


RULES: dict[str, Callable[[str, Any, dict[str, Any]], Any]] = {
    "X": _orthonormal,
    "r": _tangent,
    "G": _gradient,
    "Z": _batch,
    "c": _masses,
    "w": _masses,
    "rng": _generator,
    "t": lambda name, t, others: check.real(name, t),
    "n": lambda name, n, others: check.whole(name, n),
    "p": lambda name, p, others: check.whole(name, p),
    "kind": lambda name, kind, others: check.choice(name, kind, ("canonical", "embedded")),
}


def _checked(**special: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check every argument by the rule for its name: a name means the same in all functions."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature, rules = inspect.signature(function), RULES | special

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            checked: dict[str, Any] = {}
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                checked[name] = rules[name](name, value, checked)
            return function(**checked)  # type: ignore[call-arg]

        return call

    return decorate
