"""Differences between versions of PyMC and PyTensor; the only module that inspects PyMC's stack frames."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor import subtensor

from pymc_stiefel import _checks

MCMC = "pymc.sampling.mcmc"


def model_of(model: Any) -> pm.Model:
    """The model that was given, or the one in context."""
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(f"model must be a pymc.Model, got {_checks.shown(model)}")
    return pm.modelcontext(model)


class Differentiable(Op):
    """An Op whose gradient is written once, as ``pullback``; PyTensor 2 calls it ``L_op``."""

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        raise NotImplementedError(f"{type(self).__name__} has no derivative")


if not hasattr(Op, "pullback"):  # PyTensor 2

    def _l_op(self: Any, inputs: Any, outputs: Any, output_grads: Any) -> list[Variable]:
        return self.pullback(inputs, outputs, output_grads)

    Differentiable.L_op = _l_op  # type: ignore[method-assign]


_READS = {
    getattr(subtensor, name): getattr(subtensor, name.replace("Inc", ""))
    for name in ("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1")
    if hasattr(subtensor, name)  # the last does not exist in PyTensor 3
}


def indexing(node: Any) -> Any:
    """The node that reads the entries that ``node`` reads or writes; None if it does neither."""
    kind = type(node.op)
    if kind in _READS:
        options = [node.op.idx_list] if hasattr(node.op, "idx_list") else []  # in PyTensor 2 only with slices
        return _READS[kind](*options).make_node(node.inputs[0], *node.inputs[2:])
    return node if kind in _READS.values() else None


class Choice(NamedTuple):
    """A choice of step methods that PyMC is making."""

    model: pm.Model
    assigned: set[Variable]  # value variables that have a step already
    external: bool  # whether a NUTS of another library was asked for


def choice_of_steps() -> Choice | None:
    """The model that PyMC is choosing steps for; None if it cannot be found.

    PyMC asks a step method for its competence for a variable, but does not pass the model. Only the caller has it.
    """
    frame: FrameType | None = sys._getframe(1)
    model, assigned, external = None, set(), False
    while frame is not None:
        if frame.f_globals.get("__name__") == MCMC:
            if frame.f_code.co_name == "assign_step_methods":
                model = frame.f_locals.get("model")
                assigned = frame.f_locals.get("assigned_vars", set())
            elif frame.f_code.co_name == "sample":
                external = frame.f_locals.get("nuts_sampler") not in (None, "pymc")
                break
        frame = frame.f_back
    return Choice(model, set(assigned), external) if isinstance(model, pm.Model) else None


def start_is_given(model: pm.Model, values: Sequence[Variable]) -> bool | None:
    """Whether a user has given the start of one of ``values``, by ``initval`` or by ``initvals`` of ``pm.sample``.

    PyMC passes the start of a chain to a step, but not where it comes from. ``initval`` is in the model; ``initvals``
    is known only to ``pm.sample``. If that is not running and there is no ``initval``, the result is None.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == MCMC and frame.f_code.co_name == "sample":
            return start_is_among(frame.f_locals.get("initvals"), model, values)
        frame = frame.f_back
    return start_is_among(None, model, values) or None


def start_is_among(initvals: Any, model: pm.Model, values: Sequence[Variable]) -> bool:
    """The same for known ``initvals``."""
    variables = [model.values_to_rvs[value] for value in values]
    if any(model.rvs_to_initial_values.get(rv) is not None for rv in variables):
        return True
    each = initvals if isinstance(initvals, list | tuple) else [initvals]
    names = {rv.name for rv in variables} | {value.name for value in values}
    return any(names & set(start) for start in each if start)
