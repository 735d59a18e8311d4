"""Bayesian principal components of stock returns: an orthogonal matrix sampled jointly with its scales.

Run ``python examples/quickstart.py``; it prints a summary and saves ``quickstart.png``. The data are monthly prices
of seven companies that Matplotlib ships as sample data.
"""

# %%
from __future__ import annotations

import argparse

import matplotlib
import numpy as np
import pandas as pd
import pymc as pm
from matplotlib import cbook

import pymc_stiefel as pst


# %%
def monthly_returns() -> pd.DataFrame:
    """Standardised monthly log returns since 2004, when all of them were listed."""
    prices = pd.read_csv(cbook.get_sample_data("Stocks.csv", asfileobj=False), comment="#", index_col="Date")
    prices = prices[["AAPL", "ADBE", "AMZN", "GOOGL", "IBM", "MSFT", "XRX"]].dropna()
    returns = np.log(prices).diff().dropna()
    return (returns - returns.mean()) / returns.std()


# %%
def build_model(returns: pd.DataFrame, p: int = 2) -> pm.Model:
    """Probabilistic PCA: covariance U diag(scale^2) U' + noise^2 I with an orthonormal U."""
    n = returns.shape[1]
    with pm.Model(coords={"stock": list(returns.columns), "component": np.arange(p)}) as model:
        U = pst.StiefelUniform("U", n=n, p=p, dims=("stock", "component"))
        scale = pm.HalfNormal("scale", 2, dims="component")
        noise = pm.HalfNormal("noise", 1)
        pst.LowRankMvNormal("returns", 0, cov_factor=U * scale, cov_diag=noise**2, observed=returns.to_numpy())
    return model


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer draws, for a test")
    parser.add_argument("--output", default="quickstart.png", help="where to save the picture")
    options = parser.parse_args()
    draws = 300 if options.quick else 1000
    model = build_model(monthly_returns())
    with model:
        # PyMC's checks look at raw entries of U, whose signs and order differ between chains; pst.check aligns them
        idata = pm.sample(
            draws, tune=draws, chains=4, cores=2, random_seed=1, progressbar=False, compute_convergence_checks=False
        )

    pst.check(idata, model)

    # Signs and order of the columns are not identified: align them, the scales along with them, largest first.
    aligned = pst.align(idata, "U", order_by="scale")
    print(pst.summary(idata, "U", kind="angles").round(3))
    share = aligned["scale"] ** 2 / ((aligned["scale"] ** 2).sum("component"))
    print("scales:", aligned["scale"].mean(("chain", "draw")).values.round(2))
    print("share of the common variance:", share.mean(("chain", "draw")).values.round(2))
    print("divergences:", int(idata["sample_stats"]["diverging"].sum()))
    matplotlib.use("Agg")
    figure = pst.plot_columns(aligned["U"], method=None)
    figure.savefig(options.output, dpi=150, bbox_inches="tight")
    print(f"loadings with 90 % intervals: {options.output}")


if __name__ == "__main__":
    main()
