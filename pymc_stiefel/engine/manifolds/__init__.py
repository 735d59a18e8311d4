"""The manifolds of the engine, one file each, and calls to the manifold of a block."""

from __future__ import annotations

from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.manifolds import grassmann, stiefel
from pymc_stiefel.engine.manifolds.base import Manifold

MANIFOLDS: tuple[Manifold, ...] = (stiefel.MANIFOLD, grassmann.MANIFOLD)
"""``Layout.manifold`` holds the index of a block's manifold in this tuple."""

STIEFEL, GRASSMANN = range(len(MANIFOLDS))


def on_manifold(name: str):
    """The compiled function ``(manifold, *arguments)`` that calls the manifold's function of this name."""
    call = None
    for number in reversed(range(len(MANIFOLDS))):
        call = _choice(number, getattr(MANIFOLDS[number], name), call)
    return call


def _choice(number, function, others):
    if others is None:

        @inner
        def last(manifold, *arguments):
            return function(*arguments)

        return last

    @inner
    def choose(manifold, *arguments):
        if manifold == number:
            return function(*arguments)
        return others(manifold, *arguments)

    return choose
