"""Posterior probabilities of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_ranks"]


def plot_ranks(table: pd.DataFrame) -> Figure:
    """Log marginal likelihoods of models, relative to the best, beside their posterior probabilities.

    Parameters
    ----------
    table : pandas.DataFrame
        As :func:`~pymc_stiefel.compare_ranks` returns it.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import pandas as pd
    >>> import pymc_stiefel as pst
    >>> table = pd.DataFrame(
    ...     {"log_marginal": [-40.0, -31.0, -33.0], "error": [0.2, 0.3, 0.4], "probability": [0.0, 0.88, 0.12]},
    ...     index=pd.Index([1, 2, 3], name="rank"),
    ... )
    >>> len(pst.plot_ranks(table).axes)
    2
    """
    import matplotlib.pyplot as plt

    wanted = ["log_marginal", "error", "probability"]
    missing = [name for name in wanted if name not in getattr(table, "columns", ())]
    if missing or not len(table):
        raise ValueError(f"table lacks rows or {missing or wanted}; make it with pymc_stiefel.compare_ranks")
    places, labels = np.arange(len(table)), [str(rank) for rank in table.index]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    relative = table["log_marginal"] - table["log_marginal"].max()
    left.errorbar(places, relative, yerr=2 * table["error"].fillna(0.0), fmt="o", capsize=3, color="#0072B2")
    left.set_ylabel("log marginal likelihood\nrelative to the best")
    right.bar(places, table["probability"], width=0.7, color="#0072B2")
    right.set_ylabel("posterior probability")
    right.set_ylim(0, 1)
    for axis in (left, right):
        axis.set_xticks(places, labels)
        axis.set_xlabel(table.index.name or "model")
        axis.spines[["top", "right"]].set_visible(False)
    plt.close(figure)
    return figure
