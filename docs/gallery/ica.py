# %% [markdown]
# # Unmixing signals: independent component analysis
#
# Several microphones record several speakers at once, and every channel is a mixture of all of them. Independent
# component analysis takes the mixture apart, using only that the sources are independent and heavy-tailed. Programs
# such as FastICA return one answer. Here you get the posterior: each recovered source with its error, and whether it
# was found at all.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Four sources with Laplace's distribution, mixed by a random matrix. After whitening, the channels are uncorrelated and
# have variance one. What is left to find is an orthogonal matrix.

# %%
rng = np.random.default_rng(3)
n, samples = 4, 500
source_true = rng.laplace(size=(samples, n)) / np.sqrt(2)  # variance one
mixed = source_true @ rng.normal(size=(n, n))
values, vectors = np.linalg.eigh(np.cov(mixed.T))
white = (mixed - mixed.mean(0)) @ vectors / np.sqrt(values)

# %% [markdown]
# ## Model
# Row $t$ of the whitened data is $x_t = W s_t$ with an orthogonal $W$, so $s_t = W' x_t$. The sources are independent
# Laplace variables, each with its own scale. An orthogonal $W$ changes no volume, so the likelihood of the data is that
# of the sources. Signs and order of the sources are arbitrary: the posterior has 192 equal modes, and any of them will
# do. `SpecialOrthogonal` stands for rotations, orthogonal matrices with determinant one.

# %%
with pm.Model(coords={"channel": range(n), "source": range(n)}) as model:
    W = pst.SpecialOrthogonal("W", n=n, dims=("channel", "source"))
    scale = pm.HalfNormal("scale", 1, dims="source")
    pm.Potential("sources", pm.logp(pm.Laplace.dist(0, scale), white @ W).sum())
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis
# Chains end in different copies of the same mode: sources in another order, or with other signs. `pst.check` finds this
# out from the model, and compares aligned draws.

# %%
warnings = pst.check(idata, model)

# %% [markdown]
# ## Answer
# `align` gives all draws the same order and signs, and moves the scales along. Without `reference` it aligns to the
# mean of the draws. Here we align to the true unmixing matrix, so that source 1 is the true source 1.

# %%
W_true = pst.geometry.polar(white.T @ source_true)
aligned = pst.align(idata, "W", reference=W_true, companions={"scale": "permute"})
source = white @ aligned["W"].values  # chain, draw, sample, source
mean, sd = source.mean((0, 1)), source.std((0, 1))
for k in range(n):
    print(f"source {k + 1}: correlation with the truth {np.corrcoef(mean[:, k], source_true[:, k])[0, 1]:.3f}")

# %%
figure, axes = plt.subplots(n, 1, figsize=(9, 6), sharex=True, layout="constrained", dpi=90)
for k, axis in enumerate(axes):
    low, high = (mean - 2 * sd)[:80, k], (mean + 2 * sd)[:80, k]
    axis.fill_between(range(80), low, high, color="C1", alpha=0.6, lw=0, label="recovered, ± 2 sd")
    axis.plot(source_true[:80, k], color="C0", lw=1, label="true")
    axis.set_ylabel(f"source {k + 1}")
axes[0].legend(ncols=2, loc="upper right", fontsize=8)
_ = axes[-1].set_xlabel("sample")

# %%
# Catches chains that are stuck between the modes or did not leave the prior (z is far from one in size, or the sources
# are not found), and an alignment that mixes up copies (the spread is then that of a uniform rotation).
z = ((aligned["W"].mean(("chain", "draw")) - W_true) / aligned["W"].std(("chain", "draw"))).values
assert 0.4 < np.sqrt(np.mean(z**2)) < 1.8, "the true matrix is not where the posterior says"
assert sd.max() / source.std() < 0.5 and np.corrcoef(mean.T, source_true.T)[:n, n:].diagonal().min() > 0.97
assert np.all(abs(aligned["scale"].mean(("chain", "draw")) - 0.5**0.5) < 0.15)

# %% [markdown]
# ## When to use this
# Use it when signals add up linearly, are independent, and at most one of them is close to normal: sound, EEG channels,
# shocks in economics. The posterior shows what FastICA cannot: if two sources are both close to normal, the matrix
# turns freely in their plane, and exactly these two get wide intervals. For sources with light tails replace the
# Laplace distribution by another one. Do not use it if the sources are correlated, or if there are fewer channels than
# sources. Whitening treats the covariance as known; that is harmless with hundreds of samples, but not with thirty.
