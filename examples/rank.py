"""How many components: the rank of a factor model by its marginal likelihood.

Chemical measurements of 178 wines (13 features, scikit-learn's copy of the UCI table). Sequential Monte Carlo with
gradient moves on the manifold gives the log marginal likelihood of a factor model for each rank, and with it the
posterior probability of the rank. The loadings have independent normal priors, so that ranks are compared fairly: a
prior under which a scale may vanish hides a small rank in a large one.
"""

# %%
from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import pandas as pd
from recording import finish, options_of, row
from sklearn.datasets import load_wine

import pymc_stiefel as pst


# %%
def standardised_wines() -> pd.DataFrame:
    table = load_wine(as_frame=True).data
    return (table - table.mean()) / table.std()


# %%
def main() -> None:
    options = options_of(__doc__, "rank.png").parse_args()
    table = standardised_wines()
    ranks = range(1, 4) if options.quick else range(1, 9)
    models = {
        rank: pst.factor_model(table, rank=rank, noise="feature", mean=False, scale_prior="normal") for rank in ranks
    }
    particles, chains = (100, 2) if options.quick else (1000, 4)
    found = pst.compare_ranks(models, particles, chains=chains, cores=1, random_seed=options.seed, progressbar=False)
    print(found.round(3))
    best = int(found["probability"].idxmax())
    rows = [row("most probable rank", best), row("its probability", f"{found['probability'][best]:.3f}")]
    rows += [
        row(f"log marginal likelihood, rank {rank}", f"{line.log_marginal:.1f} +- {line.error:.1f}")
        for rank, line in found.iterrows()
    ]
    finish(
        options,
        pst.plot_ranks(found),
        title="How many components",
        data="wine table of scikit-learn, 178 x 13, standardised",
        rows=rows,
        remarks=[f"{particles} particles, {chains} chains for each rank."],
    )


if __name__ == "__main__":
    main()
