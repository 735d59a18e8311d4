"""Do the samplers agree? Only those that do have their speed compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import t as student

LEVEL = 1e-3  # chance that a right sampler is disqualified on a problem, if errors were known exactly


def pooled(records: Sequence[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the runs of one sampler, and its error: by ArviZ or by the spread between runs, the larger."""
    means, errors = (np.array([record[key] for record in records]) for key in ("means", "errors"))
    inside = np.sqrt(np.mean(errors**2, axis=0) / len(records))
    if len(records) < 3:
        return means.mean(0), inside
    return means.mean(0), np.maximum(inside, means.std(0, ddof=1) / np.sqrt(len(records)))


def threshold(comparisons: int, runs: int) -> float:
    """Largest |z| to expect.

    A run knows its error to about a fifth, as if from ten degrees of freedom: tails are those of a t law.
    """
    return float(student.ppf(1 - LEVEL / (2 * comparisons), 10 * runs))


def largest_r_hat(draws: int) -> float:
    """What converged chains stay below; in short ones R-hat is noisy."""
    return 1 + max(0.1, 20 / draws)


def deviations(
    results: Mapping[str, Sequence[dict]], exact: tuple[np.ndarray, np.ndarray] | None
) -> dict[str, tuple[float, float]]:
    """For each sampler its largest |z| against the exact answer or else the others, and the largest allowed."""
    means = {name: pooled(records) for name, records in results.items()}
    found = {}
    for name, (mean, error) in means.items():
        others = [value for other, value in means.items() if other != name]
        if exact is None and not others:
            continue
        reference, uncertainty = exact or _weighted(others)
        z = np.abs(mean - reference) / np.sqrt(error**2 + uncertainty**2 + 1e-300)
        found[name] = float(z.max()), threshold(z.size, len(results[name]))
    return found


def _weighted(values: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean weighted by precision, and its error."""
    weights = np.array([1 / (error**2 + 1e-300) for _, error in values])
    total = weights.sum(0)
    return np.sum(weights * np.array([mean for mean, _ in values]), axis=0) / total, 1 / np.sqrt(total)


def verdicts(
    results: Mapping[str, Sequence[dict]], exact: tuple[np.ndarray, np.ndarray] | None = None
) -> dict[str, dict]:
    """Sampler -> {"z": largest |z|, "disqualified": reason or ""}.

    Chains that disagree among themselves go first; then, one at a time, the sampler that is furthest from the others,
    until all agree. If only two are left and disagree nobody can say which is right, and both go.
    """
    found: dict[str, dict] = {}
    left = dict(results)
    for name, records in results.items():
        r_hat = float(np.median([record["r_hat"] for record in records]))
        if not r_hat <= largest_r_hat(records[0]["draws"]):
            found[name] = {"z": None, "disqualified": f"not converged, R-hat {r_hat:.2f}"}
            del left[name]
    while left:
        z = deviations(left, exact)
        excess = {name: value / allowed for name, (value, allowed) in z.items()}
        worst = max(excess, key=excess.__getitem__, default="")
        if not worst or excess[worst] <= 1:
            found |= {name: {"z": z[name][0] if name in z else None, "disqualified": ""} for name in left}
            break
        losers = list(left) if exact is None and len(left) == 2 else [worst]
        for name in losers:
            reason = f"means differ, |z| {z[name][0]:.1f} where {z[name][1]:.1f} is allowed"
            found[name] = {"z": z[name][0], "disqualified": reason}
            del left[name]
    return found
