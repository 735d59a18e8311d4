# %% [markdown]
# # Many chains on Dask
#
# A cluster has hundreds of cores, and each can run chains of your model. `pst.sample_chains` sends the chains of any
# PyMC model to Dask as tasks. Each task writes its draws to a store on disk; if the run dies, the same call continues
# where it stopped. Chain 17 has the same draws wherever it ran. Needs `pip install "pymc-stiefel[cluster]"`. We use a
# cluster of two workers within this process, and 40 chains; for a thousand change one number.

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from distributed import Client, LocalCluster

import pymc_stiefel as pst

# %% [markdown]
# ## Data and model
# Orthonormal matrices that scatter around a common one: how concentrated are they? The data are thirty matrices from
# the matrix Langevin law, which is what the model assumes.

# %%
rng = np.random.default_rng(3)
M_true, kappa_true = pst.draws.haar(5, 2, rng=rng), np.array([12.0, 5.0])
data = pst.draws.matrix_langevin(M_true * kappa_true, size=30, rng=rng)

with pm.Model() as model:
    M = pst.StiefelUniform("M", n=5, p=2)
    kappa = pm.HalfNormal("kappa", 20, shape=2)
    pst.MatrixLangevin("X", M=M, kappa=kappa, observed=data)

# %% [markdown]
# ## Sampling
# On a real cluster replace `LocalCluster` by `dask_jobqueue.SLURMCluster`, `dask_kubernetes.KubeCluster` or the address
# of a scheduler, and the folder by one that all workers see, or an `s3://` address. Use processes there, one thread
# each. In a notebook on one machine `processes=False` avoids starting them.

# %%
chains, groups = 40, 4
starts = [{"M": matrix} for matrix in pst.draws.haar(5, 2, size=groups, rng=rng)]
call = {
    "draws": 100, "tune": 200, "chains": chains, "random_seed": 1, "model": model, "quiet": True,
    "initvals": [start for start in starts for _ in range(chains // groups)],
    "store": f"{tempfile.mkdtemp()}/draws.zarr",
}  # fmt: skip
local = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
with local as cluster, Client(cluster) as client:
    idata = pst.sample_chains(**call, executor=client.get_executor())
    again = pst.sample_chains(**call, executor=client.get_executor())  # all chains are in the store: nothing is run
print(dict(idata["posterior"].sizes))

# %% [markdown]
# ## Diagnosis
# The result is lazy: draws are read from the store when you use them. The chains are too short for R-hat, which needs a
# precise mean of every chain. They start in four groups of ten, ten chains from each point, and nested R-hat compares
# the groups. It should be close to 1. `pst.check` does the rest; its warning about R-hat refers to single chains.

# %%
warnings = pst.check(idata, model)
table = pst.summary(idata, "M", kind="raw", superchains=groups)
kappa = idata["posterior"]["kappa"].values
kappa_nested = pst.nested_rhat(kappa, superchains=groups)
print(f"largest nested R-hat: M {table['r_hat_nested'].max():.3f}, kappa {kappa_nested.max():.3f}")

# %% [markdown]
# ## Answer
# The two concentrations, from all 4000 draws and from each chain.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", dpi=90)
for k, axis in enumerate(axes):
    axis.hist(kappa[..., k].ravel(), 40, density=True, color="C0", alpha=0.5, label="all draws")
    axis.plot(kappa[..., k].mean(1), np.zeros(chains), "|", ms=15, color="black", label="means of the chains")
    axis.axvline(kappa_true[k], color="C1", ls="--", label="truth")
    axis.set(xlabel=f"concentration of column {k + 1}", ylabel="density")
axes[0].legend(fontsize=8)

# %%
# Catches chains that were mixed up or lost on their way through the store, and chains that remember their start. Given
# kappa, the law of M is known (matrix Langevin) and can be drawn from exactly: both ways must give the same means and
# standard deviations.
M = idata["posterior"]["M"].values
some = rng.choice(kappa.reshape(-1, 2), 400)
exact = np.array([pst.draws.matrix_langevin(data.sum(0) * each, rng=rng) for each in some])
difference = (M.mean((0, 1)) - exact.mean(0)) / M.std((0, 1))
widths = np.median(M.std((0, 1)) / exact.std(0))
print(f"largest difference from exact draws {abs(difference).max():.2f} sd, median ratio of the sd {widths:.2f}")
assert np.array_equal(again["posterior"]["M"].values, M), "the store does not return what was drawn"
assert table["r_hat_nested"].max() < 1.1 and kappa_nested.max() < 1.1, "groups of chains disagree"
assert abs(difference).max() < 0.25, "the means of M are not those of its exact law"
assert 0.87 < widths < 1.15, "the standard deviations of M are not those of its exact law"
assert np.all(abs(kappa.mean((0, 1)) - kappa_true) < 3 * kappa.std((0, 1)))

# %% [markdown]
# ## When to use this
# Use it when one machine is not enough: simulation studies, posteriors with modes that only many starts find, models
# whose chains take hours. The store lets a run survive a lost worker, a wall time, or your laptop. For four chains
# `pm.sample` is simpler. For small models on one machine `pst.jax.sample` runs hundreds of chains in one process. Each
# worker compiles the model once, which takes some seconds: chains should be longer than that. The guide on clusters has
# Slurm, Ray and MPI.
