"""Check the indices of a model before a chain starts: compiled code reads out of bounds without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type_other import NoneTypeT, SliceType

from pymc_stiefel._compat import indexing


def index_check(logp: Variable, inputs: list[Variable], givens: list) -> Callable[[np.ndarray], None] | None:
    """A function of the flat vector that raises IndexError where the graph indexes out of bounds; None if it cannot.

    Only shapes and indices are computed. Inner graphs of Ops (loops) are not checked.
    """
    nodes: dict[Any, None] = dict.fromkeys(
        variable.owner for variable in ancestors([logp]) if variable.owner is not None
    )
    reads = [read for node in nodes if (read := _as_read(node)) is not None]
    later = [read for read in reads if not _is_known(read)]
    for read in reads:
        if read not in later:
            _check(read, read.inputs[0].type.shape, [index.data for index in read.inputs[1:]])
    if not later:
        return None
    outputs = [part for read in later for part in (read.inputs[0].shape, *_unknown(read))]
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")  # called once for a chain
    function = pytensor.function(inputs, outputs, givens=givens, mode=mode, on_unused_input="ignore")
    return _Check(later, function)


class _Check:
    def __init__(self, reads: list[Any], function: Any) -> None:
        self.reads, self.function = reads, function

    def __call__(self, flat: np.ndarray) -> None:
        values = iter(self.function(flat))
        for read in self.reads:
            shape = next(values)
            indices = [index.data if isinstance(index, Constant) else next(values) for index in read.inputs[1:]]
            _check(read, shape, indices)


def _as_read(node: Any) -> Any:
    """The node that reads what ``node`` reads or writes by integers, or None."""
    node = indexing(node)
    if node is None:
        return None
    picks = [index for index in node.inputs[1:] if not isinstance(index.type, SliceType | NoneTypeT)]
    entries = getattr(node.op, "idx_list", None)
    only_slices = entries is not None and all(isinstance(entry, slice) for entry in entries)
    return node if picks and not only_slices else None


def _unknown(read: Any) -> list[Variable]:
    return [index for index in read.inputs[1:] if not isinstance(index, Constant)]


def _is_known(read: Any) -> bool:
    return not _unknown(read) and None not in read.inputs[0].type.shape


def _check(read: Any, shape, indices: list) -> None:
    """Index an array of this shape that takes no memory."""
    source = np.broadcast_to(np.zeros((), read.inputs[0].dtype), tuple(int(length) for length in shape))
    try:
        read.op.perform(read, [source, *indices], [[None]])
    except IndexError as error:
        name = read.inputs[0].name or "an array"
        raise IndexError(f"the model indexes {name} of shape {source.shape} out of bounds: {error}") from None
