"""Factor analysis of a wide table: 2000 features, 100 rows, five factors.

The table resembles gene expression data and is simulated, so that the answer is known. Every feature has its own noise
variance, and each factor loads on a few hundred features. The covariance has four million entries and is never formed:
a gradient costs two products of the table with the loadings. Half of the features of some new rows are then predicted
from the other half.
Run ``python examples/many_features.py``.
"""

# %%
from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pymc as pm
from recording import finish, options_of, row

import pymc_stiefel as pst

ROWS, NEW, FEATURES, RANK = 100, 20, 2000, 5
REMARKS = [
    "In rows that were not used for fitting, half of the features are predicted from the other half. 90 % intervals "
    "should cover 90 % of them.",
    "With few rows the subspace is not well determined; the angles show how far the posterior is from the truth.",
]


# %%
def simulate(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """A table, new rows and the loadings."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(FEATURES, RANK)) * (rng.uniform(size=(FEATURES, RANK)) < 0.2) * np.linspace(1.5, 0.7, RANK)
    noise, mean = rng.uniform(0.5, 1.5, FEATURES), rng.normal(size=FEATURES)
    y = mean + rng.normal(size=(ROWS + NEW, RANK)) @ W.T + noise * rng.normal(size=(ROWS + NEW, FEATURES))
    table = pd.DataFrame(y, columns=[f"gene {k}" for k in range(FEATURES)])
    return table[:ROWS], table[ROWS:], W


def main() -> None:
    options = options_of(__doc__, "many_features.png").parse_args()
    matplotlib.use("Agg")
    table, new, truth = simulate(options.seed)
    draws = 150 if options.quick else 1000
    # %% The model, and its posterior.
    with pst.factor_model(table, rank=RANK, noise="feature") as model:
        idata = pm.sample(
            draws,
            tune=2 * draws,
            chains=2,
            cores=1,
            random_seed=options.seed,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    posterior = idata["posterior"]
    # %% Prediction of one half of the features from the other.
    predicted = pst.condition(idata, new.iloc[:, ::2], model=model, random_seed=options.seed)
    low, high = np.quantile(predicted.values, [0.05, 0.95], axis=(0, 1))
    held_out = new.iloc[:, 1::2].to_numpy()
    inside = ((low <= held_out) & (held_out <= high)).mean()
    error = predicted.values.mean(axis=(0, 1)) - held_out
    explained = 1 - error.var() / (held_out - table.to_numpy().mean(axis=0)[1::2]).var()
    # %% Scores, aligned with the loadings.
    joint = pst.factor_scores(idata, model=model, random_seed=options.seed).to_dataset()
    joint["W"] = posterior["W"]
    aligned = pst.align(joint, "W", method="varimax", companions={"scores": "rotate"})
    mean = aligned["W"].values.mean(axis=(0, 1))
    angles = np.degrees(
        np.arccos(np.clip(np.linalg.svd(pst.geometry.polar(mean).T @ pst.geometry.polar(truth))[1], 0, 1))
    )
    rows = [
        row("features, rows, factors", f"{FEATURES}, {ROWS}, {RANK}"),
        row("held-out entries in their 90 % interval", f"{inside:.3f}", note=f"of {held_out.size}"),
        row("share of their variance that is predicted", f"{explained:.2f}"),
        row("principal angles to the true loadings (degrees)", " / ".join(f"{a:.0f}" for a in angles)),
        row("divergences", int(idata["sample_stats"]["diverging"].sum())),
    ]
    finish(
        options,
        pst.plot_scores(aligned, loadings="W", max_features=8),
        title="Factor analysis of 2000 features",
        data=f"simulated, {ROWS} x {FEATURES}",
        rows=rows,
        remarks=REMARKS,
    )


if __name__ == "__main__":
    main()
