# %% [markdown]
# # Factors whose loadings drift
#
# Two factors drive the returns of your assets, but which assets load on which factor changes slowly. A model with fixed
# loadings blurs the years, a separate model for each year has too few data. A random walk of orthonormal matrices lies
# in between and learns from the data how fast the loadings drift. You get the loadings of every year with their
# uncertainty.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Eight years, twelve returns a year of six assets. The loadings of a year are those of the year before plus a small
# random change, made orthonormal again.

# %%
rng = np.random.default_rng(15)
years, rows, n, rank = 8, 12, 6, 2
kappa_true, scale_true, noise_true = 100.0, np.array([3.0, 1.5]), 0.5
U_true = [pst.draws.haar(n, rank, rng=rng)]
while len(U_true) < years:
    U_true.append(pst.draws.matrix_langevin(kappa_true * U_true[-1], rng=rng))
U_true = np.array(U_true)
factors = scale_true * rng.normal(size=(years, rows, rank))
y = factors @ U_true.swapaxes(-1, -2) + noise_true * rng.normal(size=(years, rows, n))

# %% [markdown]
# ## Model
# Given the year before, the loadings have a matrix Langevin law: its mode is last year's matrix, and `kappa` says how
# close they stay. The first matrix is uniform. `U` is a batch of eight matrices, one for each year, and the walk is a
# term that compares each of them with the one before. The normalising constant of the law, which depends on `kappa`, is
# part of `pm.logp`: therefore `kappa` can be learnt.
#
# The covariance of a row is $U\,\mathrm{diag}(s^2)\,U' + \sigma^2 I$. As in the notebook on covariance regression the
# likelihood needs no inverse: variance $s_k^2 + \sigma^2$ along column $k$, and $\sigma^2$ elsewhere.

# %%
with pm.Model(coords={"year": range(2018, 2018 + years), "asset": list("ABCDEF"), "factor": range(rank)}) as model:
    kappa = pm.HalfNormal("kappa", 200)
    U = pst.StiefelUniform("U", n=n, p=rank, dims=("year", "asset", "factor"))
    pm.Potential("walk", pm.logp(pst.MatrixLangevin.dist(M=U[:-1], kappa=kappa), U[1:]).sum())
    scale = pst.ordered_iid("scale", rank, pm.HalfNormal.dist(3), dims="factor")
    noise = pm.HalfNormal("noise", 1)
    variance = scale**2 + noise**2
    within = ((y @ U) ** 2).sum((0, 1))
    outside = (y**2).sum() - within.sum()
    log_likelihood = -0.5 * (years * rows * pt.log(variance) + within / variance).sum()
    log_likelihood += -years * rows * (n - rank) * pt.log(noise) - 0.5 * outside / noise**2
    pm.Potential("y", log_likelihood)
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis
# This model has a typical failure. A chain may have a column with one sign in the first years and the other sign in the
# later ones. The jump between two years has a very low density under the walk, so `kappa` is then far too small. The
# sampler proposes to flip a column in all later years at once, which removes such jumps. If `pst.check` reports trapped
# chains, start from `pst.initial_points`.

# %%
warnings = pst.check(idata, model)

# %% [markdown]
# ## Answer
# A column may be flipped in all years at once. We compare the first year with the truth to fix the sign, and carry it
# through the years.

# %%
U = idata["posterior"]["U"].values
jumps = ((U[:, :, 1:] * U[:, :, :-1]).sum(-2) < 0).mean()
sign = np.sign((U * U_true).sum((-3, -2), keepdims=True))
U = np.concatenate(U * sign)  # one axis for all draws
kappa = idata["posterior"]["kappa"]
print(f"kappa {float(kappa.mean()):.0f} ± {float(kappa.std()):.0f}, truth {kappa_true:.0f}; jumps of sign: {jumps:.3f}")

# %%
figure, axes = plt.subplots(rank, 3, figsize=(10, 5), sharex=True, sharey=True, layout="constrained", dpi=90)
time = np.arange(2018, 2018 + years)
for k in range(rank):
    for asset, axis in enumerate(axes[k]):
        low, middle, high = np.quantile(U[:, :, asset, k], [0.05, 0.5, 0.95], axis=0)
        axis.fill_between(time, low, high, color="C0", alpha=0.3, lw=0, label="90 % interval")
        axis.plot(time, middle, color="C0", label="posterior median")
        axis.plot(time, U_true[:, asset, k], "--", color="black", label="truth")
        axis.set_title(f"asset {'ABC'[asset]}, factor {k + 1}")
    axes[k, 0].set_ylabel("loading")
for axis in axes[-1]:
    axis.set_xlabel("year")
axes[0, 0].legend(fontsize=8)

# %%
# Catches chains with a jump of sign between two years (kappa is then too small), draws from the prior, and a missing
# normalising constant (kappa would run to the end of its prior): loadings and kappa must be where the truth is.
z = (U.mean(0) - U_true) / U.std(0)
assert jumps < 0.01, "a column changes its sign between two years"
assert 0.5 < np.sqrt(np.mean(z**2)) < 1.6, "the true loadings are not where the posterior says"
assert abs(kappa.mean() - kappa_true) < 3 * kappa.std() and kappa.mean() < 250 and U.std(0).mean() < 0.2

# %% [markdown]
# ## When to use this
# Use it for a short panel of periods with few rows each, in which the directions of variation move slowly: portfolios,
# sensors that age, vocabulary over decades. Scales may change too: give them a random walk of logarithms. If there are
# many periods and many rows in each, a filter for linear Gaussian models is faster. If the loadings do not drift,
# `kappa` runs into its prior; then use one matrix for all years. For groups without an order, use a common centre in
# place of the walk, as in the notebook on hierarchical subspaces.
