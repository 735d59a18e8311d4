# %% [markdown]
# # Many short chains on JAX
#
# A graphics card runs thousands of chains in the time of one. Then nobody needs long chains: 256 chains of 50 draws are
# 12,800 draws. `pst.jax.sample` runs the chains of your PyMC model in lockstep, tunes them together, and checks
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
# together. So no chain waits for another, and 200 tuning draws are enough. With `superchains=8` the chains start from eight
# points, 32 chains from each.

# %%
with model:
    idata = pst.jax.sample(
        draws=50, tune=200, chains=256, superchains=8, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip

# %% [markdown]
# ## Diagnosis
# R-hat compares chains with each other, and needs chains long enough for a precise mean of each. Nested R-hat compares
# the eight groups: if they have forgotten their starting points, they agree. It should be below about 1.01.
# Projectors do not depend on the signs of the columns, which are not identified.

# %%
quantities = pst.invariants(idata, "U", kind="projector")
nested = pst.nested_rhat(quantities, superchains=8)
print(f"nested R-hat: projector {nested.max():.4f}, log density {idata['posterior'].attrs['nested_r_hat_lp']:.4f}")
print("steps a draw:", float(idata["sample_stats"]["n_steps"].mean().round(1)))
print("divergences:", int(idata["sample_stats"]["diverging"].sum()))
pooled = quantities.values.reshape(8, -1, quantities.shape[-1])
warnings = pst.check(idata, model, search=False)

# %% [markdown]
# ## Answer
# Each of the 256 chains gives its own estimate from 50 draws. Their mean is the answer, and their spread shows how little
# a single short chain knows.

# %%
share = (idata["posterior"]["scale"] ** 2).isel(component=0) / (idata["posterior"]["scale"] ** 2).sum("component")
noise = idata["posterior"]["noise"]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", dpi=90)
bins = np.linspace(*np.quantile(noise, [0.001, 0.999]), 30)
left.hist(noise.values.ravel(), bins, density=True, color="tab:blue", alpha=0.5, label="all draws")
left.hist(noise.mean("draw").values, bins, density=True, histtype="step", color="black", label="means of the chains")
left.axvline(noise_true, color="tab:orange", ls="--", label="truth")
left.set(xlabel="standard deviation of the noise", ylabel="density")
left.legend(fontsize=8)
trace = noise.values.reshape(8, 32, -1).mean(1)
right.plot(trace.T, lw=1)
right.set(xlabel="draw", ylabel="mean of the noise over 32 chains")
