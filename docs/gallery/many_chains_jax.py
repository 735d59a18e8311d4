# %% [markdown]
# # Many short chains on JAX
#
# A graphics card runs thousands of chains in the time of one. Long chains are then unnecessary: 256 chains of 100 draws
# are 25,600 draws. `pst.jax.sample` runs the chains of your PyMC model in lockstep, tunes them together, and checks
# them by nested R-hat, which is made for short chains. It works on a laptop's processor as well, as here. Needs
# `pip install "pymc-stiefel[jax]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Principal components of a hundred rows with five features.

# %%
rng = np.random.default_rng(7)
n, rank, rows = 5, 2, 100
U_true, scale_true, noise_true = pst.draws.haar(n, rank, rng=rng), np.array([3.0, 1.5]), 0.5
data = rng.normal(size=(rows, rank)) * scale_true @ U_true.T + noise_true * rng.normal(size=(rows, n))

# %% [markdown]
# ## Model
# The same model runs under `pm.sample` and under `pst.jax.sample`.

# %%
with pm.Model(coords={"feature": list("ABCDE"), "component": range(rank)}) as model:
    U = pst.StiefelUniform("U", n=n, p=rank, dims=("feature", "component"))
    scale = pst.ordered_iid("scale", rank, pm.HalfNormal.dist(5), dims="component")
    noise = pm.HalfNormal("noise", 2)
    pst.LowRankMvNormal("y", 0, cov_factor=U * scale, cov_diag=noise**2, observed=data)

# %% [markdown]
# ## Sampling
# ChEES, the default algorithm, gives all chains the same number of steps and learns that number from all of them
# together. So no chain waits for another, and 200 tuning draws are enough. With `superchains=8` the chains start from
# eight points, 32 chains from each.

# %%
with model:
    idata = pst.jax.sample(
        draws=100, tune=200, chains=256, superchains=8, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip

# %% [markdown]
# ## Diagnosis
# R-hat compares chains with each other, and needs chains long enough for a precise mean of each. Nested R-hat compares
# the eight groups: if they have forgotten their starting points, they agree. It should be below about 1.01. Projectors
# do not depend on the signs of the columns, which are not identified.

# %%
quantities = pst.invariants(idata, "U", kind="projector")
nested = pst.nested_rhat(quantities, superchains=8)
print(f"nested R-hat: projector {nested.max():.4f}, log density {idata['posterior'].attrs['nested_r_hat_lp']:.4f}")
print("steps a draw:", float(idata["sample_stats"]["n_steps"].mean().round(1)))
print("divergences:", int(idata["sample_stats"]["diverging"].sum()))
warnings = pst.check(idata, model)

# %% [markdown]
# ## Answer
# The means of single chains scatter far less than the draws: every chain of 100 draws has seen the whole posterior. On
# the right, no group shows a trend that would come from its starting point.

# %%
noise = idata["posterior"]["noise"]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", dpi=90)
bins = np.linspace(*np.quantile(noise, [0.001, 0.999]), 30)
left.hist(noise.values.ravel(), bins, density=True, color="C0", alpha=0.5, label="all draws")
left.hist(noise.mean("draw").values, bins, density=True, histtype="step", color="black", label="means of the chains")
left.axvline(noise_true, color="C1", ls="--", label="truth")
left.set(xlabel="standard deviation of the noise", ylabel="density")
left.legend(fontsize=8)
for trace in noise.values.reshape(8, 32, -1).mean(1):
    right.plot(trace, color="C0", lw=0.7, alpha=0.7)
right.axhline(float(noise.mean()), color="black", lw=1, label="mean of all draws")
right.set(xlabel="draw", ylabel="noise, mean of each group of 32 chains")
right.legend(fontsize=8)

# %%
# Catches chains that still remember their start (nested R-hat), a tuning that has gone wrong in lockstep, and any
# difference between the two implementations: the compiled sampler must give the same means and standard deviations.
with model:
    reference = pst.sample(1000, tune=500, chains=2, random_seed=2, progressbar=False, compute_convergence_checks=False)
values = {}
for name, found in (("jax", idata), ("compiled", reference)):
    parts = [pst.invariants(found, "U", kind="projector"), found["posterior"]["scale"], found["posterior"]["noise"]]
    values[name] = np.concatenate([np.reshape(part.values, (*part.shape[:2], -1)) for part in parts], axis=-1)
difference = (values["jax"].mean((0, 1)) - values["compiled"].mean((0, 1))) / values["compiled"].std((0, 1))
print("largest difference of a mean from the compiled sampler, in sd:", abs(difference).max().round(3))
widths = np.median(values["jax"].std((0, 1)) / values["compiled"].std((0, 1)))
print("ratio of the standard deviations, median:", widths.round(3))
assert nested.max() < 1.02, "groups of chains disagree"
assert abs(difference).max() < 0.3, "the means of JAX and the compiled sampler disagree"
assert 0.87 < widths < 1.15, "the standard deviations of JAX and the compiled sampler disagree"

# %% [markdown]
# ## When to use this
# Use it if you have a graphics card, or a small model and want hundreds of chains: for a simulation study, for precise
# means, or because single chains get stuck and you want to see how many. On a few cores, with a model that takes more
# than a millisecond a gradient, `pm.sample` gives more effective draws a second. Discrete variables and minibatches are
# not supported on JAX. Tuning is shared, so a chain in an unusual region uses masses that do not fit it: look at the
# acceptance rate of each chain.
