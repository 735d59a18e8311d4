"""Rungs 4 and 5: every kernel on targets with known expectations, with steps from safe to reckless."""

import zlib

import numpy as np
import pytest

from tests.statistical.ladder import z_scores
from tests.statistical.runs import RECKLESS, SAMPLERS, STEPS, TRAJECTORIES, run_target
from tests.statistical.targets import SHAPES, targets

pytestmark = pytest.mark.statistical


def combinations(place, full):
    """Three of the nine pairs of trajectory and step size, all different in both; one in the quick ladder.

    Neighbouring targets get different ones, so that every sampler meets every pair.
    """
    trajectories, steps = list(TRAJECTORIES), list(STEPS)
    chosen = [(trajectories[k], steps[(k + place) % 3]) for k in range(3)]
    return chosen if full else chosen[place // 3 % 3 :][:1]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_known_expectations(n, p, sampler, book, full):
    draws = 3000 if full else 1500
    for place, target in enumerate(targets(n, p)):
        scores = []
        for trajectory, step in combinations(place + SHAPES.index((n, p)), full):
            seed = zlib.crc32(f"{n} {p} {sampler} {target.name} {trajectory} {step}".encode())
            # short trajectories need more draws, long ones on large matrices cost more
            count = 2 * draws if trajectory != "no-U-turn" else draws // (1 if n * p < 60 else 2)
            run = run_target(target, sampler, trajectory, step, count, seed)
            values = target.statistics(target.matrices(run.draws))
            scores.append(z_scores(values, target.reference, target.error))
        rung = 4 if target.name == "uniform" else 5
        book.check(rung, sampler, target.name, np.concatenate(scores), f"on St({n}, {p})")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_reckless_steps_do_reject(sampler, book):
    """The rung above would prove little if nothing were ever rejected."""
    target, rejected = targets(7, 3)[2], {}
    for step in STEPS:
        stretch = RECKLESS.get(sampler, 1.0) if step == "reckless" else 1.0
        run = run_target(target, sampler, "jittered", step, 6000, 0, stretch)
        rejected[step] = 1 - run.accept
        values = target.statistics(target.matrices(run.draws))
        book.check(5, sampler, target.name, z_scores(values, target.reference, target.error), f"{step} steps")
    assert rejected["safe"] < 0.1 and rejected["reckless"] > 0.25, rejected
    shares = ", ".join(f"{step} {share:.0%}" for step, share in rejected.items())
    book.note(5, f"rejected on {target.name}, St(7, 3): {sampler}", shares)
