# %% [markdown]
# # Probabilistic PCA with missing entries
#
# Principal components of a table a quarter of whose entries are missing, with intervals for the
# components and for every missing entry. No row is dropped and nothing is filled in beforehand.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Twelve sensors on a line record 150 times. Two patterns explain most of what they see: a common
# level and a gradient. One reading in four is lost.

# %%
rng = np.random.default_rng(7)
sensors = [f"sensor {k + 1}" for k in range(12)]
place = np.linspace(-1, 1, 12)
patterns = np.stack([np.ones(12), place], axis=1)
patterns /= np.linalg.norm(patterns, axis=0)
lengths, noise_sd = np.array([3.0, 2.0]), 0.5
complete = rng.normal(size=(150, 2)) * lengths @ patterns.T + noise_sd * rng.normal(size=(150, 12))
lost = rng.uniform(size=complete.shape) < 0.25
table = np.where(lost, np.nan, complete)
print(f"{lost.sum()} of {lost.size} readings are lost; {(~lost.any(axis=1)).sum()} of 150 rows are complete")

# %% [markdown]
# ## Model
#
# Rows are normal with covariance $U\,\mathrm{diag}(d^2)\,U' + \sigma^2 I$, where $U$ has orthonormal
# columns. Scores and missing entries are integrated out by `LowRankMvNormal`, so that only $U$, $d$
# and $\sigma$ are sampled.

# %%
with pm.Model(coords={"sensor": sensors, "component": [1, 2]}) as model:
    U = pst.StiefelUniform("U", n=12, p=2, dims=("sensor", "component"))
    d = pst.ordered_iid("d", 2, pm.HalfNormal.dist(5), dims="component")
    sigma = pm.HalfNormal("sigma", 2)
    pst.LowRankMvNormal("y", 0, cov_factor=U * d, cov_diag=sigma**2, observed=table)

# %% [markdown]
# ## Sampling and diagnosis
#
# The density does not depend on the sign of a column of $U$, so R-hat of raw entries means nothing.
# `pst.check` finds this out and looks at aligned draws. An empty list means that no check failed.

# %%
with model:
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer
#
# Components with their signs aligned, and 90% intervals for the lost readings.

# %%
aligned = pst.align(idata, "U", method="sign")
posterior = idata["posterior"]
print("lengths:", posterior["d"].mean(("chain", "draw")).values.round(2), " true:", lengths)
print(f"noise: {float(posterior['sigma'].mean()):.2f}  true: {noise_sd}")
filled = pst.impute(idata, model=model, random_seed=1)
low, high = filled.quantile([0.05, 0.95], dim=("chain", "draw")).values
inside = ((low <= complete[lost]) & (complete[lost] <= high)).mean()
print(f"{inside:.0%} of the lost readings lie in their 90% interval")

# %% [markdown]
# ## Picture

# %%
draws = aligned.stack(sample=("chain", "draw")).transpose("component", "sample", "sensor").values
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for k, ax in enumerate(axes):
    true = patterns[:, k] * np.sign(patterns[:, k] @ draws[k].mean(axis=0))
    ax.fill_between(range(1, 13), *np.quantile(draws[k], [0.05, 0.95], axis=0), alpha=0.35, label="90% interval")
    ax.plot(range(1, 13), true, "k.--", linewidth=1, label="truth")
    ax.set(xlabel="sensor number", ylabel="loading" if k == 0 else None, title=f"component {k + 1}")
axes[0].legend(loc="lower right")

# %%
# A sampler that is too sure of itself leaves the truth outside its draws; one that is not sure enough
# is wider than large-sample theory for the noise, from the readings that the scores leave over. If
# missing entries were integrated out wrongly, their intervals would not cover 90%.
spread = pst.principal_angles(idata, "U").values.max(axis=-1)
centre = pst.mean(idata, "U", kind="subspace").values
off = pst.principal_angles(centre[None, None], to=patterns).values.max()
assert off < 2.5 * np.median(spread), (off, np.median(spread))
assert 0.85 < inside < 0.94
for name, true in {"d": lengths, "sigma": noise_sd}.items():
    z = (posterior[name].mean(("chain", "draw")) - true) / posterior[name].std(("chain", "draw"))
    assert (abs(z) < 3).all()
theory = noise_sd / np.sqrt(2 * ((~lost).sum() - 2 * len(table)))
assert 0.7 < float(posterior["sigma"].std()) / theory < 1.5

# %% [markdown]
# ## When to use this
#
# Use it where features have one unit and one noise level, and where the entries are missing for
# reasons that do not depend on their values. If units differ, give each feature a noise of its own,
# which makes it a factor model. If entries are missing *because* of their values, such as readings
# above a limit, model that; leaving them out is then biased. With a complete table and tens of
# thousands of rows classical PCA gives the same components, and the intervals are too narrow to
# matter.
