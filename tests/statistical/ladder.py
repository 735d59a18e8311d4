"""Shared by all rungs: z-scores with their standard errors, the limit on them, and the record of a session."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

BATCHES = 50
FALSE_ALARM = 1e-5
"""Chance that one check of a right sampler, with all its comparisons, would fail for another seed. There are hundreds
of checks: a thousandth each would fail every third ladder."""


def z_scores(values, reference, reference_error=0.0, batches=BATCHES):
    """z-scores of the means of a chain's statistics.

    Parameters
    ----------
    values : (draws,) or (draws, k)
    reference, reference_error : scalar or (k,)
        The expectations and their standard errors, 0 where they are exact.

    Notes
    -----
    The error of a mean comes from batch means, which leave Student's t with ``batches - 1`` degrees of freedom; the
    score is turned into the normal one of the same probability. A statistic that is constant must be exactly right.
    """
    values = np.asarray(values, dtype=float)
    values = values.reshape(len(values), -1)
    usable = len(values) // batches * batches
    means = values[len(values) - usable :].reshape(batches, -1, values.shape[1]).mean(axis=1)
    variance = means.var(axis=0, ddof=1) / batches + np.square(reference_error)
    gap = means.mean(axis=0) - reference
    fixed = variance < 1e-24
    t = gap / np.sqrt(np.where(fixed, 1.0, variance))
    z = normal_score(t, batches - 1)
    return np.where(fixed, np.where(np.abs(gap) < 1e-9, 0.0, np.inf), z)


def normal_score(t, degrees):
    """The standard normal quantile that is as improbable as ``t`` is for Student's law."""
    tail = stats.t.logsf(np.abs(t), degrees)
    tail = np.maximum(tail, -700.0)  # beyond this a score is 37 and no matter
    return np.sign(t) * stats.norm.isf(np.exp(tail))


def score_of_pvalue(pvalue):
    """|z| of a two-sided test with this p-value."""
    return float(stats.norm.isf(max(pvalue, 1e-300) / 2))


def limit(count, alarm=FALSE_ALARM):
    """Largest |z| allowed among ``count`` comparisons: 4, or more where chance alone would exceed that."""
    return max(4.0, float(stats.norm.isf(alarm / (2 * max(count, 1)))))


def independent_z(draws, reference, reference_error=0.0):
    """z-scores of independent draws, ``(draws, k)``."""
    draws = np.asarray(draws, dtype=float).reshape(len(draws), -1)
    error = np.sqrt(draws.var(axis=0, ddof=1) / len(draws) + np.square(reference_error))
    return (draws.mean(axis=0) - reference) / error


@dataclass
class Book:
    """The scores of a session. ``check`` and ``caught`` note a score and assert in one go."""

    full: bool = True
    scores: dict = field(default_factory=lambda: defaultdict(list))
    controls: list = field(default_factory=list)
    facts: list = field(default_factory=list)

    def check(self, rung, sampler, target, z, where=""):
        """Keep the scores under their row of the table, then require them to be below the limit of their number."""
        z = np.ravel(z)
        assert z.size and np.all(np.isfinite(z)), f"{sampler}, {target} {where}: scores {z}"
        self.scores[rung, sampler, target].extend(z.tolist())
        worst = np.abs(z).max()
        assert worst < limit(z.size), f"{sampler}, {target} {where}: |z| = {worst:.2f} among {z.size}: {np.round(z, 1)}"

    def caught(self, rung, mutant, target, z):
        """Require that the check refuses the mutant, by a margin that no seed would bridge."""
        z = np.ravel(z)
        worst = float(np.abs(z).max())
        assert np.isfinite(worst), f"{mutant} on {target} did not move: {z}"
        self.controls.append((rung, mutant, target, z.size, worst))
        assert worst > limit(z.size) + 2, f"{mutant} on {target} was not caught: |z| = {worst:.2f} among {z.size}"

    def note(self, rung, subject, value):
        """Keep something that is no score (an error, a count) for the table."""
        self.facts.append((rung, subject, value))

    def all_scores(self):
        return np.concatenate([np.array(z) for z in self.scores.values()]) if self.scores else np.zeros(0)
