"""Shared by the optimisers on the manifold: the density without Jacobians, the start, the result, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.initial_point import make_initial_point_fn
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_stiefel._arguments import value_variables
from pymc_stiefel._checks import whole
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.steps._base import Point, check_values


class Optimum(dict[str, Any]):
    """Names and values of the variables at an optimum: a dict that ``initvals`` of ``pm.sample`` takes.

    Attributes
    ----------
    logp : float
        Log density there, without Jacobians; for :func:`minimize_stochastic` its mean over the last epoch.
    gradient_norm : float
        Norm of the Riemannian gradient; nan for :func:`minimize_stochastic`.
    history : ndarray
        The loss, minus the log density, for each iteration or epoch.
    n_evaluations : int
        Gradients used.
    converged : bool

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=5)
    ...     best = pst.find_MAP(progressbar=False, seed=1)
    >>> list(best), best.converged, bool(best.gradient_norm < 1e-8)
    (['x'], True, True)
    """

    logp: float
    gradient_norm: float
    history: np.ndarray
    n_evaluations: int
    converged: bool

    def _describe(self, **facts: Any) -> Optimum:
        for name, fact in facts.items():
            setattr(self, name, fact)
        return self


def positive(**given: Any) -> None:
    for name, value in given.items():
        whole(name, value)


def compiled(
    model: pm.Model, vars: Any, start: Mapping[str, Any] | None, random_seed: Any, compile_kwargs: dict[str, Any] | None
) -> tuple[ModelDensity, Point]:
    """The density without Jacobians, and the point to start from."""
    values = value_variables(model, vars)
    check_values(model, values, "the optimiser", needs_manifold=False)
    unknown = set(start or ()) - {variable.name for variable in (*model.free_RVs, *model.value_vars)}
    if unknown:
        raise ValueError(f"start names {sorted(unknown)}, which are not among {[rv.name for rv in model.free_RVs]}")
    make_point = make_initial_point_fn(model=model, overrides=None if start is None else dict(start))
    point = make_point(random_seed)
    density = ModelDensity(model, values, point, minibatches=True, jacobian=False, compile_kwargs=compile_kwargs)
    return density, point


def checked_start(density: ModelDensity, point: Point, rng: np.random.Generator | None = None) -> np.ndarray:
    flat = density.on_manifold(density.pack(point))
    if rng is not None:
        density.draw_batches(rng)
    density.check(flat)
    value, gradient = density(flat)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise ValueError(
            f"the log density is {value} at the start, its gradient "
            f"{'finite' if np.all(np.isfinite(gradient)) else 'not finite'}: give another `start`"
        )
    return flat


def reader(
    model: pm.Model, density: ModelDensity, point: Point, transformed: bool = False
) -> Callable[[np.ndarray], Optimum]:
    """A function from a flat vector to the constrained values of all free variables, or also to transformed ones."""
    names = {rv.name: model.rvs_to_values[rv].name for rv in model.free_RVs}
    on_manifold = {model.values_to_rvs[slot.value].name for slot in density.slots if slot.block is not None}
    outputs = [
        variable
        for variable in model.unobserved_value_vars
        if variable.name in names and variable.name not in on_manifold
    ]
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")  # to be called a few times
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=mode, on_unused_input="ignore")

    def read(flat: np.ndarray) -> Optimum:
        values = density.unpack(flat[None], point)[0]
        found = {name: values[value] for name, value in names.items()}
        if transformed:
            found.update({value: values[value] for value in names.values()})
        if outputs:
            found.update(zip((variable.name for variable in outputs), function(values), strict=True))
        return Optimum(found)

    return read


class progress:
    """A progress bar as a context manager; it yields a function that shows a text, or does nothing without a bar."""

    def __init__(self, name: str, total: int | None, wanted: bool, theme: Any = None):
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = None if theme is None else Console(theme=theme)
        self.bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=console, disable=not wanted)
        self.task = self.bar.add_task(name, total=total, text="")

    def __enter__(self) -> Callable[[str], None]:
        self.bar.start()
        return lambda text: self.bar.update(self.task, advance=1, text=text)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
