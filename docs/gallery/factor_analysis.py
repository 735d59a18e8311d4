# %% [markdown]
# # Factor analysis with missing cells
#
# Loadings of a table with intervals, in varimax rotation, although one cell in ten is empty. The
# rotation that a factor model leaves open is resolved draw by draw, so the intervals are those of the
# loadings you read.

# %%
import numpy as np
import pymc as pm
from sklearn.datasets import load_wine
from sklearn.decomposition import FactorAnalysis

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Thirteen chemical measurements of 178 wines, each standardised. We remove one cell in ten, so that
# the answer for these cells is known.

# %%
wine = load_wine(as_frame=True)
complete = wine.data.rename(columns={"od280/od315_of_diluted_wines": "od280/od315"})
complete = (complete - complete.mean()) / complete.std(ddof=0)
empty = np.random.default_rng(24).uniform(size=complete.shape) < 0.1
table = complete.mask(empty)
print(f"{empty.sum()} cells are empty; {empty.any(axis=1).sum()} of {len(table)} wines have an empty cell")

# %% [markdown]
# ## Model
#
# $y = \mu + Wz + e$ with three factors $z$ and a noise variance for each feature. `factor_model`
# takes the labels from the DataFrame, integrates scores and empty cells out, and returns an ordinary
# `pm.Model`. The columns of $W$ are orthogonal, which leaves no rotation to be sampled. The log-normal
# prior keeps the noise of a feature away from zero, where chains move slowly (Heywood cases).

# %%
model = pst.factor_model(table, rank=3, noise="feature", noise_prior=pm.LogNormal.dist(-0.5, 0.5))
print(model.str_repr())

# %% [markdown]
# ## Sampling and diagnosis
#
# `pst.check` finds out by itself that the signs of columns are not identified, and computes R-hat and
# effective sample sizes from aligned draws. An empty list means that no check failed.

# %%
with model:
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer
#
# Orthogonal columns are convenient for sampling, simple structure for interpretation. Varimax rotates
# each draw, then signs and order are matched between draws. The scores of the wines rotate along.

# %%
posterior = pst.factor_scores(idata, model=model, random_seed=1).to_dataset()
posterior["W"] = idata["posterior"]["W"]
aligned = pst.align(posterior, "W", method="varimax", companions={"scores": "rotate"})
loadings = pst.summary(aligned["W"], kind="aligned", method="varimax")
loadings[["mean", "q5", "q95", "ess_bulk", "r_hat"]].round(2).head(9)

# %% [markdown]
# The empty cells have intervals, too.

# %%
filled = pst.impute(idata, model=model, random_seed=1)
low, high = filled.quantile([0.05, 0.95], dim=("chain", "draw")).values
removed = complete.to_numpy()[empty]
inside = ((low <= removed) & (removed <= high)).mean()
print(f"{inside:.0%} of the removed values lie in their 90% interval")

# %% [markdown]
# ## Picture
#
# Median, 50% and 90% interval of each loading. Coloured loadings have a known sign.

# %%
pst.plot_columns(aligned["W"], method=None)

# %%
# Maximum likelihood on the complete table, with the same rotation, is an independent answer: a
# sampler that mixes signs, columns or rotations is far from it. Means of standardised features are
# known to about 1 / sqrt(rows); a sampler that is too narrow or too wide differs.
classical = FactorAnalysis(n_components=3, rotation="varimax", tol=1e-6, max_iter=5000).fit(complete).components_.T
mean, sd = aligned["W"].mean(("chain", "draw")), aligned["W"].std(("chain", "draw"))
matched = pst.align(classical[None, None], method="permutation", reference=mean.values, orthonormal=False)
z = (mean.values - matched.values[0, 0]) / sd.values
print(f"root mean square of the 39 differences, in posterior standard deviations: {np.sqrt((z**2).mean()):.2f}")
assert np.sqrt((z**2).mean()) < 1
width = idata["posterior"]["mu"].std(("chain", "draw")).mean() * np.sqrt(len(table))
assert 0.85 < width < 1.25
assert 0.84 < inside < 0.95
assert loadings["r_hat"].max() < 1.1

# %% [markdown]
# ## When to use this
#
# Use it for tables of correlated measurements in different units, some of them empty, where you want
# to say which loadings are known and which are not. Varimax needs loadings that differ in size; if
# two factors load alike on everything, their rotation is not identified by any criterion, and the
# intervals show it. Report the covariance $WW'$ then, which needs no rotation. To choose the number
# of factors see [How many components?](how_many_components).
