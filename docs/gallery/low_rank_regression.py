# %% [markdown]
# # Low-rank regression and canonical correlations
#
# Many responses depend on many predictors through a few combinations of them. The coefficient matrix has low rank; you
# get its entries, the combinations and the canonical correlations, each with intervals.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Twelve predictors, ten responses, 60 rows, and two combinations through which the predictors act on the responses.
# Least squares would estimate 120 coefficients; a matrix of rank two has 40 free numbers.

# %%
N, m, n, rank = 60, 12, 10, 2


def simulate(seed):
    """Predictors, responses and true coefficients."""
    rng = np.random.default_rng(seed)
    U, V = pst.draws.haar(m, rank, rng=rng), pst.draws.haar(n, rank, rng=rng)
    B = U * [2.0, 1.2] @ V.T
    X = rng.normal(size=(N, m))
    return X, X @ B + rng.normal(size=(N, n)), B


X, Y, B_true = simulate(seed=2)

# %% [markdown]
# ## Model
#
# `low_rank` makes $B = U\,\mathrm{diag}(s)\,V'$ with orthonormal $U$ and $V$ and a prior that prefers no direction. The
# size of the coefficients and the noise are learnt.

# %%
with pm.Model(coords={"predictor": range(m), "response": range(n), "pair": [1, 2]}) as model:
    predictors, responses = pm.Data("predictors", X), pm.Data("responses", Y)
    size = pm.HalfNormal("size", 1)
    B = pst.low_rank("B", (m, n), rank, sigma=size, dims=("predictor", "response"), rank_dim="pair")
    noise = pm.HalfNormal("noise", 2, dims="response")
    pm.Normal("Y", predictors @ B, noise, observed=responses)

# %% [markdown]
# ## Sampling and diagnosis
#
# Columns of $U$ and $V$ may change sign together; `pst.check` detects this. An empty list means that no check failed.

# %%
with model:
    idata = pm.sample(2000, chains=4, random_seed=1, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer
#
# Canonical correlations say how closely a combination of the predictors goes with one of the responses. They follow
# from $B$ and the noise in each draw: the squares are the eigenvalues of $(S + D)^{-1} S$, with $S$ the covariance of
# the explained part and $D$ that of the noise.


# %%
def canonical_correlations(B, noise):
    """Largest ``rank`` of them, for predictors with the covariance of X."""
    half = np.linalg.cholesky(np.cov(X.T)).T @ B / noise[..., None, :]
    squares = np.linalg.svd(half, compute_uv=False)[..., :rank] ** 2
    return np.sqrt(squares / (1 + squares))


posterior = idata["posterior"]
canonical = canonical_correlations(posterior["B"].values, posterior["noise"].values)
truth = canonical_correlations(B_true, np.ones(n))
whiten = [np.linalg.svd(table - table.mean(0), full_matrices=False)[0] for table in (X, Y)]
sample = np.linalg.svd(whiten[0].T @ whiten[1], compute_uv=False)
print("canonical correlations, posterior mean:", canonical.mean((0, 1)).round(2))
print("                                 truth:", truth.round(2))
print("                      of the sample:   ", sample.round(2))

# %% [markdown]
# The sample has ten canonical correlations, eight of which are noise. The coefficients are more accurate than those of
# least squares:

# %%
B_mean = posterior["B"].mean(("chain", "draw")).values
B_ols = np.linalg.lstsq(X, Y, rcond=None)[0]
error, error_ols = (np.sqrt(np.mean((found - B_true) ** 2)) for found in (B_mean, B_ols))
print(f"root mean square error of a coefficient: {error:.3f}, least squares: {error_ols:.3f}")

# %% [markdown]
# ## Picture

# %%
low, high = posterior["B"].quantile([0.05, 0.95], dim=("chain", "draw")).values
figure, (left_ax, right_ax) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
left_ax.axline((0, 0), slope=1, color="0.7", linewidth=1)
left_ax.vlines(B_true.ravel(), low.ravel(), high.ravel(), color="C0", alpha=0.5, label="90% interval")
left_ax.plot(B_true.ravel(), B_ols.ravel(), ".", color="C1", markersize=4, label="least squares")
left_ax.set(xlabel="true coefficient", ylabel="estimated coefficient")
left_ax.legend()
place = np.arange(1, n + 1)
right_ax.plot(place, sample, "o", color="C1", label="of the sample")
bounds = np.quantile(canonical, [0.05, 0.95], axis=(0, 1))
right_ax.vlines(place[:rank], *bounds, color="C0", linewidth=4, label="90% interval")
right_ax.plot(place[:rank], truth, "k_", markersize=14, label="truth")
right_ax.set(xlabel="pair", ylabel="canonical correlation", ylim=(0, 1), xticks=place)
right_ax.legend()

# %% [markdown]
# ## Is it calibrated?
#
# One data set may be lucky. `pst.sample` compiles the model once and takes new data in seconds, so we repeat with seven
# more.


# %%
def coverage(posterior, truth):
    """Share of the true coefficients that lie in their 90% interval."""
    low, high = posterior["B"].quantile([0.05, 0.95], dim=("chain", "draw")).values
    return ((low <= truth) & (truth <= high)).mean()


covered = [coverage(posterior, B_true)]
for seed in range(3, 10):
    new_X, new_Y, new_B = simulate(seed)
    with model:
        pm.set_data({"predictors": new_X, "responses": new_Y})
        again = pst.sample(400, tune=300, chains=2, random_seed=1, quiet=True, compute_convergence_checks=False)
    covered.append(coverage(again["posterior"], new_B))
print("coverage of 90% intervals:", np.round(covered, 2), " mean:", np.mean(covered).round(2))

# %%
# Intervals of a sampler that explores too little or too much cover too few or too many of the 8 x 120 true
# coefficients.
assert 0.84 < np.mean(covered) < 0.96
assert error < 0.75 * error_ols
z = (canonical.mean((0, 1)) - truth) / canonical.std((0, 1))
assert (abs(z) < 3).all(), z

# %% [markdown]
# ## When to use this
#
# Use it where several responses share their causes: yields of related processes, expressions of genes, returns of
# assets. With one response there is no rank to reduce. If the responses have correlated noise, give it a factor model
# of its own (`LowRankMvNormal` with mean `predictors @ B`). For matrices too large to be formed use `low_rank_factors`;
# to choose the rank compare marginal likelihoods, see [How many components?](how_many_components).
