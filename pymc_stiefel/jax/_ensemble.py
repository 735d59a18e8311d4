"""Predictions of an ensemble of parameters, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pymc_stiefel import _checks

__all__ = ["Ensemble", "ensemble"]


@dataclass(frozen=True)
class Ensemble:
    """Predictions of an ensemble of classifiers.

    Attributes
    ----------
    probabilities : array (row, class)
        Mean over the members.
    accuracy, log_score, calibration_error : float
        Scores of the mean: fraction of correct classes, mean log probability of the correct class, and mean absolute
        difference between confidence and accuracy over bins of confidence, weighted by their number of rows.
    member_accuracy, member_log_score : array (member,)
        Scores of each member.
    confidence, hits, rows : array (bin,)
        Mean confidence, accuracy and number of rows of each bin; NaN in empty bins.

    Examples
    --------
    >>> import numpy as np, pymc_stiefel as pst
    >>> scores = pst.jax.ensemble(lambda params, x: x * params, [1.0, 2.0], np.eye(3), np.arange(3))
    >>> scores.accuracy, scores.probabilities.shape, scores.member_accuracy.shape
    (1.0, (3, 3), (2,))
    """

    probabilities: np.ndarray
    accuracy: float
    log_score: float
    calibration_error: float
    member_accuracy: np.ndarray
    member_log_score: np.ndarray
    confidence: np.ndarray
    hits: np.ndarray
    rows: np.ndarray

    def plot_reliability(self, ax: Any = None) -> Any:
        """Accuracy against confidence; the diagonal is perfect calibration. Returns the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(4, 4))
        full = self.rows > 0
        ax.plot([0, 1], [0, 1], color="0.7", linestyle="--", zorder=0)
        ax.plot(self.confidence[full], self.hits[full], marker="o")
        ax.set(xlabel="Confidence", ylabel="Accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_title(f"Calibration error {self.calibration_error:.3f}")
        return ax


def ensemble(
    predict: Callable[[Any, Any], Any],
    members: Sequence[Any],
    inputs: Any,
    labels: Any,
    *,
    bins: int = 15,
    batch_size: int = 1000,
) -> Ensemble:
    """Average the predictions of several sets of parameters, and score the result.

    Parameters
    ----------
    predict : callable
        ``predict(params, inputs)`` returns logits or log probabilities (row, class).
    members : sequence of pytrees
        Parameters.
    inputs : array (row, ...)
    labels : array of int (row,)
        The correct classes.
    bins : int
        Number of bins of confidence, of equal width.
    batch_size : int
        Number of rows predicted at once.

    Returns
    -------
    Ensemble

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_stiefel as pst
    >>> x, y = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
    >>> result = pst.jax.ensemble(lambda scale, x: scale * x, [2.0, 4.0], x, y)
    >>> result.accuracy
    0.75
    """
    _checks.whole("bins", bins)
    _checks.whole("batch_size", batch_size)
    if not callable(predict):
        raise TypeError(f"predict must be a function of params and inputs, got {_checks.shown(predict)}")
    if np.ndim(inputs) == 0:
        raise ValueError(f"inputs must have rows, got {_checks.shown(inputs)}")
    labels = _checks.numbers("labels", labels)
    if labels.dtype.kind not in "iub":
        raise TypeError(f"labels must be integers, got {_checks.shown(labels)}")
    if not isinstance(members, Sequence) or len(members) == 0:
        raise ValueError("members is empty, or no sequence: store parameters while sampling, as every fifty steps")
    if labels.shape != (len(inputs),):
        raise ValueError(f"labels must have shape ({len(inputs)},), one for each row of inputs, got {labels.shape}")
    evaluate = jax.jit(lambda params, rows: jax.nn.log_softmax(predict(params, rows), axis=-1))
    total: Any = 0.0
    accuracy, log_score = [], []
    for params in members:
        parts = [evaluate(params, inputs[k : k + batch_size]) for k in range(0, len(inputs), batch_size)]
        logs = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
        accuracy.append(np.mean(logs.argmax(axis=1) == labels))
        log_score.append(logs[np.arange(len(labels)), labels].mean())
        total = total + np.exp(logs)
    mean = total / len(members)
    sure, right = mean.max(axis=1), mean.argmax(axis=1) == labels
    place = np.minimum((sure * bins).astype(int), bins - 1)
    rows = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(place, sure, bins) / rows
        hits = np.bincount(place, right, bins) / rows
    error = float(np.nansum(rows * np.abs(confidence - hits)) / len(labels))
    score = float(np.log(np.maximum(mean[np.arange(len(labels)), labels], 1e-300)).mean())
    return Ensemble(
        mean, float(right.mean()), score, error, np.array(accuracy), np.array(log_score), confidence, hits, rows
    )
