"""Sign flips: of one column of a matrix, or of several matrices of a batch, accepted by the ratio of densities.

A flip is its own inverse and conserves volume, so the move is exact however the flip is chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.blocks import FLIPPED, Layout, copy_into, copy_position
from pymc_stiefel.engine.integrator import evaluate
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.random import uniform
from pymc_stiefel.engine.jit.records import IntegerMatrix, Vector


class Flips(NamedTuple):
    """Kinds of sign flips, as in ``Layout.flips``, with counts of proposed and accepted flips."""

    kinds: IntegerMatrix
    tried: Vector
    accepted: Vector


def make_flips(layout: Layout) -> Flips:
    count = len(layout.flips)
    return Flips(layout.flips.copy(), np.zeros(count), np.zeros(count))


@inner
def reflect(density, extra, source, layout, work, flips, state, stats):
    """Propose one sign flip, of a kind whose policy is ``FLIPPED``."""
    eligible = 0
    for kind in range(flips.kinds.shape[0]):
        eligible += flips.kinds[kind, 0] == FLIPPED
    if eligible == 0:
        return
    pick = int(uniform(source) * eligible)
    kind = -1
    while pick >= 0:
        kind += 1
        pick -= flips.kinds[kind, 0] == FLIPPED
    first, count = flips.kinds[kind, 1], flips.kinds[kind, 2]
    stride, length = flips.kinds[kind, 3], flips.kinds[kind, 4]
    place = int(uniform(source) * count)
    n, column = layout.n[first], int(uniform(source) * layout.p[first])
    point = work.right
    copy_into(state.q, point.q)
    for along in range(place // stride % length, length):
        m = first + place + (along - place // stride % length) * stride
        start = layout.offset[m] + column * n
        for k in range(start, start + n):
            point.q[k] = -point.q[k]
    evaluate(density, extra, layout, work.blas, point)
    stats.gradients += 1
    flips.tried[kind] += 1.0
    if np.log(uniform(source)) < point.value[0] - state.value[0]:
        flips.accepted[kind] += 1.0
        copy_position(point, state)
        stats.reflected = True
