"""Keep the compiled functions of a model as long as the model lives, so that later calls reuse them.

Compiled functions read data by address, so new data (``pm.set_data``) need no compilation. The key holds what they
depend on: the graph, by the identity of its variables, and what the caller adds, such as shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
from pymc.initial_point import make_initial_point_fns_per_chain

__all__ = ["kept", "shapes", "start_function", "structure"]

Made = TypeVar("Made")
MOST = 12
"""Results kept for a model: of a few steps, or of data of a few shapes."""

_results: WeakKeyDictionary[pm.Model, OrderedDict[tuple, Any]] = WeakKeyDictionary()


class _Same:
    """A key that compares by identity. It keeps its object alive, so that its ``id`` is not reused."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def structure(model: pm.Model) -> tuple:
    """What compiled functions depend on besides shapes: the variables, transforms and options of the model."""
    mappings = (model.rvs_to_values, model.rvs_to_transforms, model.rvs_to_initial_values)
    things = [thing for mapping in mappings for pair in mapping.items() for thing in pair]
    things += [*model.potentials, None, *model.deterministics]
    return (*map(_Same, things), model.check_bounds, pytensor.config.floatX)


def kept(model: pm.Model, key: tuple, make: Callable[[], Made]) -> Made:
    """``make()``, called once for the current state of the model. Its result must not refer to the model."""
    results = _results.setdefault(model, OrderedDict())
    key = (*key, structure(model))
    if key not in results:
        results[key] = make()
        while len(results) > MOST:
            results.popitem(last=False)
    results.move_to_end(key)
    return results[key]


def start_function(model: pm.Model) -> Callable[[Any], dict[str, np.ndarray]]:
    """The function from a seed to a starting point that ``pm.sample`` uses without ``initvals``."""

    def make() -> Callable[[Any], dict[str, np.ndarray]]:
        return make_initial_point_fns_per_chain(model=model, overrides=None, jitter_rvs=set(), chains=1)[0]

    return kept(model, ("start",), make)


def shapes(model: pm.Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the free variables, with the data that the model has now."""
    names = [rv.name for rv in model.free_RVs]

    def make() -> Any:
        known = [(rv, model.rvs_to_values[rv]) for rv in model.observed_RVs]
        outputs = [rv.shape for rv in model.free_RVs]
        return pytensor.function([], outputs, givens=known, mode="FAST_COMPILE", on_unused_input="ignore")

    return {name: tuple(shape.tolist()) for name, shape in zip(names, kept(model, ("shapes",), make)(), strict=True)}
