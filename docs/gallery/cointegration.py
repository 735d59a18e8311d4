# %% [markdown]
# # Series that wander together: cointegration
#
# Prices, rates and incomes wander without a fixed level, but some combinations of them stay close to an equilibrium.
# These combinations form a subspace, the cointegration space. You get the space with its uncertainty, the equilibrium
# errors over time, and how fast each series is pulled back. You also see what a badly parameterised version of the same
# model looks like to a sampler, and how to repair it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Four series of 300 observations with two equilibrium relations, in an error correction model:
# $\Delta y_t = \alpha \beta' y_{t-1} + \varepsilon_t$. Each series has its own unit, as in economics.

# %%
rng = np.random.default_rng(6)
n, rank, T = 4, 2, 300
beta_true = pst.draws.haar(n, rank, rng=rng)
alpha_true = -0.3 * beta_true + 0.05 * rng.normal(size=(n, rank))
y = np.zeros((T + 1, n))
for s in range(T):
    y[s + 1] = y[s] + alpha_true @ beta_true.T @ y[s] + 0.5 * rng.normal(size=n)
units = np.array([10.0, 3.0, 1.0, 0.3])
y, beta_true = y * units, pst.geometry.polar(beta_true / units[:, None])  # the same in other units
level, change = y[:-1], np.diff(y, axis=0)

# %% [markdown]
# ## Model
# The plain model has an orthonormal $\beta$ and normal coefficients $\alpha$. It is hard to sample, for two reasons.
# The levels of the series differ in size, so some directions of $\beta$ are known a hundred times better than others.
# And it is a funnel: $\beta$ is held in a narrow region where $\alpha$ is large, and is free where $\alpha$ is small.
# No step size fits both.
#
# The repair: write the product as $\alpha (RZ)'$ with $R = (Y'Y/T)^{-1/2}$ and an orthonormal $Z$. The levels $YR$ are
# uncorrelated with variance one, so all directions of $Z$ have the same scale. The cointegration space is that of $RZ$.
# A uniform prior on $Z$ differs from a uniform prior on $\beta$: it does not depend on the units of the series.

# %%
values, vectors = np.linalg.eigh(level.T @ level / T)
R = vectors / np.sqrt(values) @ vectors.T


def error_correction(level):
    with pm.Model(coords={"series": range(n), "relation": range(rank)}) as model:
        Z = pst.StiefelUniform("Z", n=n, p=rank, dims=("series", "relation"))
        alpha = pm.Normal("alpha", 0, 3, dims=("series", "relation"))
        noise = pm.HalfNormal("noise", 5, dims="series")
        pm.Normal("change", level @ Z @ alpha.T, noise, observed=change)
    return model


plain, whitened = error_correction(level), error_correction(level @ R)

# %% [markdown]
# ## Sampling and diagnosis
# Sample both. The plain version needs many gradients per draw and yields few effective draws; longer runs also have
# divergences or large values of R-hat. Effective sizes are those of the projector onto the cointegration space.

# %%
result, space = {}, {}
for name, model, root in (("plain", plain, np.eye(n)), ("whitened", whitened, R)):
    with model:
        idata = pm.sample(500, tune=500, chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)
    result[name], space[name] = idata, pst.geometry.polar(root @ idata["posterior"]["Z"].values)
    gradients = idata["sample_stats"]["gradients"].values
    ess = pst.summary(space[name])["ess_bulk"].min()
    per_1000 = 1000 * ess / gradients.sum()
    print(f"{name}: {gradients.mean():.0f} gradients a draw, {per_1000:.0f} effective draws per 1000 gradients")
warnings = pst.check(result["whitened"], whitened)

# %% [markdown]
# ## Answer
# Only the space is identified, so we rotate all bases to agree with each other before we draw the equilibrium errors
# $Y R Z$. The common trends have gone; what is left returns to zero.

# %%
Z = pst.align(result["whitened"], "Z", method="rotation").values
errors = (level @ R @ Z).reshape(-1, T, rank)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", dpi=90)
for k, style in enumerate(("-", "--", "-.", ":")):
    axes[0].plot(level[:, k] / units[k], style, color="black", lw=1, label=f"series {k + 1}")
axes[0].set(xlabel="time", ylabel="level, in units of each series")
axes[0].legend(fontsize=8)
for k, colour in enumerate(("C0", "C1")):
    low, high = np.quantile(errors[..., k], [0.05, 0.95], axis=0)
    label = f"relation {k + 1}" + ", shifted down" * k
    axes[1].fill_between(range(T), low - 5 * k, high - 5 * k, color=colour, lw=0.8, label=label)
axes[1].set(xlabel="time", ylabel="equilibrium error, 90 % band")
axes[1].legend(fontsize=8)

# %%
# Catches a chain that is stuck, draws from the prior (two of them are 1.3 apart), and a wrong map from Z to the space:
# the true space and the maximum likelihood estimate (Johansen's) must be as far from the draws as the draws are apart.
q, r = np.linalg.qr(level)
johansen = np.linalg.solve(r, np.linalg.svd(q.T @ np.linalg.qr(change)[0])[0][:, :rank])  # canonical correlations
draws = result["whitened"]["posterior"]["Z"].values
apart = float(pst.principal_angles(draws, to="draws").max("angle").median())
for name, known in (("truth", beta_true), ("estimate", johansen)):
    angle = float(pst.principal_angles(draws, to=np.linalg.qr(np.linalg.solve(R, known))[0]).max("angle").median())
    print(f"median angle of draws to the {name} {angle:.3f}, of two draws {apart:.3f}")
    assert angle < 2 * apart < 1.4, f"the {name} is not where the posterior says"

# %% [markdown]
# ## When to use this
# Use it for a handful of series that drift but seem tied to each other, when you need the uncertainty of the long-run
# relations or a prior on them. Choose the number of relations by comparing marginal likelihoods, as in the notebook on
# the number of components. For a quick answer with long series Johansen's test is enough. Do not use it for stationary
# series: ordinary regression is right for them. The advice on scale is general. If an orthonormal matrix multiplies
# regressors of very different size, whiten the regressors first.
