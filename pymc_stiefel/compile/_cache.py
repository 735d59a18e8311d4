"""What has been compiled for a model is kept as long as the model lives, and serves every later call.

Compiled functions read data by address, so new data (``pm.set_data``) need nothing new. What they depend on is in the
key: the graph, by the identity of its variables, and whatever the caller adds, such as shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pymc as pm
import pytensor

__all__ = ["kept", "structure"]

Made = TypeVar("Made")
MOST = 12
"""Results kept for a model: of a few steps, or of data of a few shapes."""

_results: WeakKeyDictionary[pm.Model, OrderedDict[tuple, Any]] = WeakKeyDictionary()


class _Same:
    """Compares by identity, and keeps its object alive, so that no other one gets its ``id``."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def structure(model: pm.Model) -> tuple:
    """What the compiled functions of a model depend on, besides shapes: its variables, transforms and options."""
    mappings = (model.rvs_to_values, model.rvs_to_transforms, model.rvs_to_initial_values)
    things = [thing for mapping in mappings for pair in mapping.items() for thing in pair]
    things += [*model.potentials, None, *model.deterministics]
    return (*map(_Same, things), model.check_bounds, pytensor.config.floatX)


def kept(model: pm.Model, key: tuple, make: Callable[[], Made]) -> Made:
    """The result of ``make`` for this model as it is now, made only once. It must not refer to the model itself."""
    results = _results.setdefault(model, OrderedDict())
    key = (*key, structure(model))
    if key not in results:
        results[key] = make()
        while len(results) > MOST:
            results.popitem(last=False)
    results.move_to_end(key)
    return results[key]
