"""From a PyMC model to JAX: the log density that is sampled, and the variables of a draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import convert_str_to_rv_dict
from pymc.logprob.utils import local_check_parameter_to_ninf_switch, replace_rvs_by_values
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out
from pytensor.graph.traversal import graph_inputs
from pytensor.link.jax.dispatch import jax_funcify

from pymc_stiefel import _checks, geometry
from pymc_stiefel.compile._density import _log_density, _refuse_random, manifold_block, refuse_turning
from pymc_stiefel.compile._ordered_log import has_log_gaps, in_widths, to_widths
from pymc_stiefel.jax._manifolds import Position

__all__ = ["JaxDensity", "jax_function", "jittered", "refuse_discrete"]

_CHECKS = in2out(local_check_parameter_to_ninf_switch)


def jax_function(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    """A JAX function of a graph, with shared variables at their current values.

    ``pymc.sampling.jax.get_jaxified_graph`` does the same, but importing it changes XLA_FLAGS. If a parameter is out of
    bounds, the log density is minus infinity.
    """
    shared = [variable for variable in graph_inputs(outputs) if isinstance(variable, SharedVariable)]
    graph = clone_replace(list(outputs), [(variable, pt.constant(variable.get_value())) for variable in shared])
    fgraph = FunctionGraph(inputs=list(inputs), outputs=graph, clone=True)
    _CHECKS.rewrite(fgraph)
    get_mode("JAX").optimizer.rewrite(fgraph)
    function = jax_funcify(fgraph)

    def call(*values):
        with warnings.catch_warnings():  # warnings during tracing about assertions that JAX does not support
            warnings.filterwarnings("ignore", "Skipping", UserWarning)
            return function(*values)

    return call


def refuse_discrete(model: pm.Model) -> None:
    """Raise an error for discrete variables, which have no gradient."""
    if model.discrete_value_vars:
        names = ", ".join(sorted(str(model.values_to_rvs[value].name) for value in model.discrete_value_vars))
        raise ValueError(
            f"pst.jax.sample needs a log density that is differentiable in every variable, and {names} is discrete. "
            "Marginalise it, or use pm.sample, which combines StiefelNUTS with a step method for discrete variables."
        )


def jittered(model: pm.Model, initvals: Any) -> set[Variable]:
    """Variables whose start is jittered: those without a start in ``initvals``."""
    points = [initvals] if isinstance(initvals, dict) else initvals or []
    given = {variable for point in points for variable in convert_str_to_rv_dict(model, point or {})}
    return set(model.free_RVs) - given


class JaxDensity:
    """Log density of a model: untransformed for variables on a manifold, with PyMC's transforms for all others.

    Parameters
    ----------
    model : pymc.Model
    point : dict
        Any point; it defines the shapes.
    """

    def __init__(self, model: pm.Model, point: dict[str, np.ndarray]):
        self.model = model
        self.values = list(model.value_vars)
        self.blocks = {value: manifold_block(model, value) for value in self.values}
        self.matrices = [value for value in self.values if self.blocks[value] is not None]
        self.others = [value for value in self.values if self.blocks[value] is None]
        self._gaps = [value for value in self.others if has_log_gaps(model, value)]
        self.shapes = {value: np.shape(point[value.name]) for value in self.values}
        logp = _log_density(model, self.matrices)
        _refuse_random(logp)
        symbols: dict[Variable, Variable] = {value: value for value in self.values}
        for value in self._gaps:
            logp, symbols[value] = in_widths(logp, value)
        self._logp = jax_function([symbols[value] for value in self.values], [logp])

    @property
    def reflected(self) -> list[int]:
        """Indices of the matrices on O(n), whose determinant no drift changes."""
        blocks = [self.blocks[value] for value in self.matrices]
        return [i for i, block in enumerate(blocks) if block is not None and block.n == block.p and not block.special]

    @property
    def flipped(self) -> list[int]:
        """Indices of the other matrices whose columns may be flipped: trajectories reach both signs, perhaps rarely."""
        blocks = [self.blocks[value] for value in self.matrices]
        return [i for i, block in enumerate(blocks) if block is not None and block.n > block.p and not block.subspace]

    @property
    def subspaces(self) -> list[int]:
        """Indices of the matrices that represent subspaces."""
        blocks = [self.blocks[value] for value in self.matrices]
        return [i for i, block in enumerate(blocks) if block is not None and block.subspace]

    def check_subspaces(self, position: Position, gradient: Position) -> None:
        """Raise an error if the density of a subspace depends on more than the span of the columns."""
        for i in self.subspaces:
            X, G = np.asarray(position.X[i]), np.asarray(gradient.X[i])
            refuse_turning(str(self.matrices[i].name), X, G)

    def pack(self, points: Sequence[dict[str, np.ndarray]]) -> Position:
        """Convert PyMC's points to positions, stacked along the first dimension."""
        matrices = []
        for value in self.matrices:
            block = self.blocks[value]
            x = np.stack([np.asarray(point[value.name]) for point in points])
            x = x[..., None] if block is not None and block.vector else x
            flat = x.reshape(-1, *x.shape[-2:])
            nearest = geometry.rotation if block is not None and block.special else geometry.polar
            matrices.append(jnp.asarray(np.stack([nearest(matrix) for matrix in flat]).reshape(x.shape)))
        rows = []
        for value in self.others:
            x = np.stack([np.asarray(point[value.name], dtype=float) for point in points])
            rows.append((to_widths(x) if value in self._gaps else x).reshape(len(points), -1))
        return Position(tuple(matrices), jnp.asarray(np.concatenate(rows, 1) if rows else np.zeros((len(points), 0))))

    def _unpack(self, position: Position) -> dict[Variable, Any]:
        found: dict[Variable, Any] = {}
        for value, X in zip(self.matrices, position.X, strict=True):
            block = self.blocks[value]
            found[value] = X[..., 0] if block is not None and block.vector else X
        start = 0
        for value in self.others:
            size = int(np.prod(self.shapes[value], dtype=int))
            found[value] = position.z[start : start + size].reshape(self.shapes[value])
            start += size
        return found

    def __call__(self, position: Position) -> Any:
        """The log density; minus infinity instead of NaN, so that the proposal is rejected."""
        found = self._unpack(position)
        value = self._logp(*[found[value] for value in self.values])[0]
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def variables(self, names: Sequence[str] | None = None) -> tuple[list[str], Callable[[Position], list[Any]]]:
        """Names of variables and deterministics, and the function that maps a position to their values."""
        model = self.model
        known = {variable.name: variable for variable in model.unobserved_RVs}
        names = _checks.names("var_names", names, known)
        chosen = [variable for name, variable in known.items() if names is None or name in names]
        transforms = {
            rv: None if model.rvs_to_values[rv] in self.matrices else transform
            for rv, transform in model.rvs_to_transforms.items()
        }
        outputs = replace_rvs_by_values(chosen, rvs_to_values=model.rvs_to_values, rvs_to_transforms=transforms)
        function = jax_function(self.values, outputs)

        def evaluate(position):
            found = self._unpack(position)
            for value in self._gaps:
                width = found[value]
                gap = jnp.log(jnp.logaddexp(0.0, width[..., 1:]))
                found[value] = jnp.concatenate([width[..., :1], gap], axis=-1)
            return function(*[found[value] for value in self.values])

        return [str(variable.name) for variable in chosen], evaluate
