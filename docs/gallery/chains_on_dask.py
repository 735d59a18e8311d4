# %% [markdown]
# # A thousand chains on Dask
#
# A cluster has hundreds of cores, and each can run chains of your model. `pst.sample_chains` sends the chains of any
# PyMC model to Dask as tasks. Each task writes its draws to a store on disk; if the run dies, the same call goes on
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
# On a real cluster replace `LocalCluster` by `dask_jobqueue.SLURMCluster`, `dask_kubernetes.KubeCluster` or the
# address of a scheduler, and the folder by one that all workers see, or an `s3://` address. Use processes there, one
# thread each. In a notebook on one machine `processes=False` avoids starting them.

# %%
chains = 40
store = f"{tempfile.mkdtemp()}/draws.zarr"
with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
    call = dict(draws=100, tune=200, chains=chains, random_seed=1, model=model, store=store, quiet=True)
    idata = pst.sample_chains(**call, executor=client.get_executor())
    again = pst.sample_chains(**call, executor=client.get_executor())  # all chains are in the store: nothing is run
print("draws:", dict(idata["posterior"].sizes))

# %% [markdown]
# ## Diagnosis
# The result is lazy: nothing has been read yet. `compute` or `values` reads what you ask for.

# %%
warnings = pst.check(idata, model)
