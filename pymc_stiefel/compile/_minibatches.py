"""``pm.Minibatch`` with row numbers that the engine draws itself.

The random index in the graph is replaced by a vector in memory, which compiled code fills before every gradient from
the random numbers of its chain: batches are fresh and independent, and a seed reproduces them in every process.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_stiefel.engine.stochastic_kernels import Batches

INDEX_NAME = "minibatch_index__"


def has_minibatches(model: pm.Model) -> bool:
    """Whether the density of a model reads ``pm.Minibatch``."""
    inputs = [*model.rvs_to_values, *model.rvs_to_values.values(), *model.potentials]
    nodes = (variable.owner for variable in ancestors(inputs))
    return any(node is not None and isinstance(node.op, MinibatchOp) for node in nodes)


def with_own_indices(logp: Variable):
    """The density with every random index of ``pm.Minibatch`` replaced by a shared vector.

    Returns it with the vectors and a function that counts the rows to choose from, which ``pm.set_data`` may change,
    and refuses data of unequal lengths, or of none.
    """
    nodes = [
        variable.owner
        for variable in ancestors([logp])
        if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp)
    ]
    replacements: dict[Variable, Variable] = {}
    groups: dict[Variable, tuple[Variable, list[Variable]]] = {}
    for node in dict.fromkeys(nodes):
        *data, rng = node.inputs
        if rng not in groups:  # one generator for all arrays of one call of pm.Minibatch, however often they are cloned
            size = node.outputs[0].type.shape[0]  # known: pm.Minibatch takes an int
            if not size > 0:
                raise ValueError(f"pm.Minibatch needs a positive batch_size, got batch_size={size}")
            index = pytensor.shared(np.zeros(size, dtype=np.int64), f"{INDEX_NAME}{len(groups)}")
            groups[rng] = index, [array.shape[0] for array in data]
        index, _ = groups[rng]
        replacements.update(
            {old: pt.as_tensor(_by_address(new))[index] for old, new in zip(node.outputs, data, strict=False)}
        )
    if not groups:
        return logp, [], None
    indices, lengths = (list(part) for part in zip(*groups.values(), strict=True))
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")
    function = pytensor.function([], [pt.stack(each) for each in lengths], mode=mode)
    return clone_replace(logp, replacements), indices, _RowCount(function)


class _RowCount:
    """Rows of the data of each ``pm.Minibatch``."""

    def __init__(self, function) -> None:
        self.function = function

    def __call__(self) -> list[int]:
        lengths = self.function()
        for each in lengths:
            if len(set(each.tolist())) > 1:
                raise ValueError(
                    "All variables shape[0] in Minibatch should be equal, check your Minibatch(data1, data2, ...) "
                    f"code: they have {', '.join(map(str, each))} rows."
                )
            if each[0] == 0:
                raise ValueError("pm.Minibatch has no rows to choose from: its data are empty.")
        return [int(each[0]) for each in lengths]


def _by_address(data: Variable) -> Variable:
    """Make data given as an array a shared value: a function with constants in it is not cached for other data."""
    return pytensor.shared(data.data, data.name, borrow=True) if isinstance(data, Constant) else data


def make_batches(indices: list) -> Batches:
    sizes = [len(index.get_value(borrow=True)) for index in indices]
    last = np.cumsum(sizes, dtype=np.int64)
    bounds = np.stack([last - sizes, last, np.zeros_like(last)], axis=1) if sizes else np.zeros((0, 3), dtype=np.int64)
    return Batches(np.zeros(sum(sizes), dtype=np.int64), bounds.astype(np.int64))
