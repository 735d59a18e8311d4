"""Trajectories: static and no-U-turn.

The no-U-turn trajectory is the multinomial one of Betancourt (2017, arXiv:1701.02434) with the additional checks across
subtrees that Stan and PyMC make. A stack of finished subtrees, merged as in a binary counter, replaces the recursion. A
subtree turns if the velocity at either end points against the sum of its momenta. Both are ambient matrices; with the
embedded metric the sum is the chord between the ends. The momenta at the ends have weight one half (trapezoidal rule).
Steps are long here, and with a plain sum the turns of a geodesic of many frequencies, as in O(n), would rarely be
detected.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.blocks import (
    Layout,
    Point,
    copy_into,
    copy_point,
    copy_position,
    make_point,
)
from pymc_stiefel.engine.drifts import scratch_size
from pymc_stiefel.engine.integrator import step
from pymc_stiefel.engine.jit.blas import Blas, make_blas
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.random import uniform
from pymc_stiefel.engine.jit.records import Matrix, Vector
from pymc_stiefel.engine.jit.vectors import dot
from pymc_stiefel.engine.phase_space import kinetic_energy, velocity_into

MAX_ENERGY_ERROR = 1000.0


class Subtrees(NamedTuple):
    """Summaries of subtrees, one row each, for merging them and choosing a proposal."""

    chord: Matrix  # sum of momenta, the first and the last with weight one half
    r_first: Matrix
    v_first: Matrix
    r_last: Matrix
    v_last: Matrix
    q: Matrix  # the proposal: state, split gradient, (log density, energy, index)
    ga: Matrix
    gb: Matrix
    chosen: Matrix
    log_weight: Vector


class Workspace(NamedTuple):
    """Work arrays of a draw."""

    left: Point
    right: Point
    start: Point
    trees: Subtrees
    r: Vector
    v: Vector
    scratch: Vector
    blas: Blas


def make_workspace(layout: Layout, max_treedepth: int) -> Workspace:
    rows = max_treedepth + 2
    d, skew = layout.size, int(np.sum(layout.p**2))
    largest = max([scratch_size(n, p) for n, p in zip(layout.n, layout.p, strict=True)], default=0)
    vectors = [np.zeros((rows, d)) for _ in range(7)]
    trees = Subtrees(
        chord=vectors[0],
        r_first=vectors[1],
        v_first=vectors[2],
        r_last=vectors[3],
        v_last=vectors[4],
        q=vectors[5],
        ga=np.zeros((rows, skew)),
        gb=vectors[6],
        chosen=np.zeros((rows, 3)),
        log_weight=np.zeros(rows),
    )
    scratch = np.zeros(max(largest, d, 1))
    blas = make_blas(2 * int(layout.p.max(initial=1)))
    left, right, start = (make_point(layout) for _ in range(3))
    return Workspace(left, right, start, trees, np.zeros(d), np.zeros(d), scratch, blas)


@inner
def log_add(x, y):
    high, low = max(x, y), min(x, y)
    if low == -np.inf:
        return high
    return high + np.log1p(np.exp(low - high))


@inner
def turning(v, u, chord):
    return not (dot(v, chord) > 0.0 and dot(u, chord) > 0.0)


@inner
def turning_longer(v, u, chord, r, s):
    """``turning`` for a chord extended by the step between the momenta ``r`` and ``s``."""
    along_v = dot(v, chord) + 0.5 * (dot(v, r) + dot(v, s))
    along_u = dot(u, chord) + 0.5 * (dot(u, r) + dot(u, s))
    return not (along_v > 0.0 and along_u > 0.0)


@inner
def join_chords(chord, r, s, other):
    """Add to ``chord`` the step between the momenta ``r`` and ``s``, and the chord that follows."""
    for k in range(chord.size):
        chord[k] += 0.5 * (r[k] + s[k]) + other[k]


@inner
def store_leaf(trees, row, point, r, v, log_weight, energy, index):
    for k in range(r.size):
        trees.chord[row, k] = 0.0
    copy_into(r, trees.r_first[row])
    copy_into(v, trees.v_first[row])
    copy_into(r, trees.r_last[row])
    copy_into(v, trees.v_last[row])
    copy_into(point.q, trees.q[row])
    copy_into(point.ga, trees.ga[row])
    copy_into(point.gb, trees.gb[row])
    trees.chosen[row, 0] = point.value[0]
    trees.chosen[row, 1] = energy
    trees.chosen[row, 2] = index
    trees.log_weight[row] = log_weight


@inner
def take_proposal(trees, source, target):
    copy_into(trees.q[source], trees.q[target])
    copy_into(trees.ga[source], trees.ga[target])
    copy_into(trees.gb[source], trees.gb[target])
    copy_into(trees.chosen[source], trees.chosen[target])


@inner
def merge(source, trees, left, right):
    """Join subtree ``right`` to ``left``, which precedes it; return whether the joined subtree turns."""
    near, next_ = trees.r_last[left], trees.r_first[right]
    turns = turning_longer(trees.v_first[left], trees.v_first[right], trees.chord[left], near, next_)
    turns = turns or turning_longer(trees.v_last[left], trees.v_last[right], trees.chord[right], near, next_)
    join_chords(trees.chord[left], near, next_, trees.chord[right])
    turns = turns or turning(trees.v_first[left], trees.v_last[right], trees.chord[left])
    total = log_add(trees.log_weight[left], trees.log_weight[right])
    if np.log(uniform(source)) < trees.log_weight[right] - total:
        take_proposal(trees, right, left)
    trees.log_weight[left] = total
    copy_into(trees.r_last[right], trees.r_last[left])
    copy_into(trees.v_last[right], trees.v_last[left])
    return turns


@inner
def extend(density, extra, source, scheme, layout, metric, work, point, eps, depth, energy, index, stats):
    """Integrate ``point`` over ``2**depth`` steps of size ``eps``; row 1 gets the summary of this subtree.

    Returns 0 if the subtree is complete, 1 if it turned, 2 if it diverged.
    """
    trees = work.trees
    top = 0
    direction = 1 if eps > 0 else -1
    for leaf in range(1 << depth):
        step(density, extra, scheme, layout, work.blas, metric, point, eps, work.scratch)
        new_energy = velocity_into(layout, work.blas, metric, point, work.r, work.v, work.scratch) - point.value[0]
        error = new_energy - energy
        stats.tree_size += 1
        if not np.isfinite(error) or error > MAX_ENERGY_ERROR:
            stats.max_energy_error = error
            return 2
        if abs(error) > abs(stats.max_energy_error):
            stats.max_energy_error = error
        stats.mean_tree_accept += min(1.0, np.exp(-error))
        index += direction
        top += 1
        store_leaf(trees, top, point, work.r, work.v, -error, new_energy, index)
        finished = leaf + 1
        while finished % 2 == 0:
            top -= 1
            if merge(source, trees, top, top + 1):
                return 1
            finished //= 2
    return 0


@inner
def join_tree(source, trees, forward):
    """Join the new subtree (row 1) to the trajectory (row 0) on the given side; return whether the trajectory turns.

    A proposal from the new subtree is preferred (biased progressive sampling).
    """
    if forward:
        far, near_r, near_v = trees.v_first[0], trees.r_last[0], trees.v_last[0]
    else:
        far, near_r, near_v = trees.v_last[0], trees.r_first[0], trees.v_first[0]
    turns = turning_longer(far, trees.v_first[1], trees.chord[0], near_r, trees.r_first[1])
    turns = turns or turning_longer(near_v, trees.v_last[1], trees.chord[1], near_r, trees.r_first[1])
    join_chords(trees.chord[0], near_r, trees.r_first[1], trees.chord[1])
    turns = turns or turning(far, trees.v_last[1], trees.chord[0])
    if np.log(uniform(source)) < trees.log_weight[1] - trees.log_weight[0]:
        take_proposal(trees, 1, 0)
    trees.log_weight[0] = log_add(trees.log_weight[0], trees.log_weight[1])
    copy_into(trees.r_last[1], near_r)
    copy_into(trees.v_last[1], near_v)
    return turns


@inner
def no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, max_treedepth, stats):
    """One multinomial no-U-turn draw: ``state`` moves to the new point."""
    trees = work.trees
    energy = velocity_into(layout, work.blas, metric, state, work.r, work.v, work.scratch) - state.value[0]
    copy_point(state, work.left)
    copy_point(state, work.right)
    store_leaf(trees, np.int64(0), state, work.r, work.v, 0.0, energy, np.int64(0))
    n_left, n_right, depth = np.int64(0), np.int64(0), np.int64(0)
    while depth < max_treedepth:
        forward = uniform(source) < 0.5
        point = work.right if forward else work.left
        start = n_right if forward else -n_left
        signed = eps if forward else -eps
        outcome = extend(
            density, extra, source, scheme, layout, metric, work, point, signed, depth, energy, start, stats
        )
        depth += 1
        if outcome == 2:
            stats.diverging = True
        if outcome > 0:
            break
        if forward:
            n_right += 1 << (depth - 1)
        else:
            n_left += 1 << (depth - 1)
        if join_tree(source, trees, forward):
            break
    else:
        stats.reached_max_treedepth = True
    stats.depth = depth
    stats.mean_tree_accept /= max(1.0, stats.tree_size)
    copy_into(trees.q[0], state.q)
    copy_into(trees.ga[0], state.ga)
    copy_into(trees.gb[0], state.gb)
    state.value[0] = trees.chosen[0, 0]
    stats.energy = trees.chosen[0, 1]
    stats.energy_error = trees.chosen[0, 1] - energy
    stats.index_in_trajectory = np.int64(trees.chosen[0, 2])


@inner
def static(density, extra, source, scheme, layout, metric, work, state, eps, n_steps, stats):
    """One draw with a trajectory of ``n_steps`` steps and an accept step."""
    energy = kinetic_energy(layout, metric, state, work.scratch) - state.value[0]
    point = work.right
    copy_point(state, point)
    new_energy = energy
    for _ in range(n_steps):
        step(density, extra, scheme, layout, work.blas, metric, point, eps, work.scratch)
        new_energy = kinetic_energy(layout, metric, point, work.scratch) - point.value[0]
        stats.tree_size += 1
        error = new_energy - energy
        if not np.isfinite(error) or error > MAX_ENERGY_ERROR:
            stats.diverging = True
            stats.max_energy_error = error
            break
        if abs(error) > abs(stats.max_energy_error):
            stats.max_energy_error = error
    error = new_energy - energy
    stats.energy = energy
    if not stats.diverging:
        stats.mean_tree_accept = min(1.0, np.exp(-error))
        if np.log(uniform(source)) < -error:
            copy_position(point, state)
            stats.energy = new_energy
            stats.energy_error = error
            stats.index_in_trajectory = n_steps
