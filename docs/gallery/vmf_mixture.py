# %% [markdown]
# # Clusters of directions on the sphere
#
# Directions come in clusters over a uniform background. A mixture of von Mises-Fisher laws gives the
# centre and the concentration of each cluster, their shares and the cluster of every direction, with
# intervals.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# 400 directions, such as poles of fractures in rock: three clusters, each with a concentration of its
# own, and a fifth of them in no cluster.

# %%
rng = np.random.default_rng(11)
centres = np.array([[1.0, 0.3, 0.4], [-0.3, 1.0, 0.5], [-0.4, -0.5, 0.9]])
centres /= np.linalg.norm(centres, axis=1, keepdims=True)
kappa_true, shares_true = np.array([80.0, 30.0, 12.0]), np.array([0.2, 0.3, 0.3, 0.2])  # the last: background
cluster = rng.choice(4, size=400, p=shares_true)
laws = [*(kappa_true[:, None] * centres), np.zeros(3)]
x = np.stack([pst.draws.matrix_langevin(laws[k][:, None], rng=rng)[:, 0] for k in cluster])

# %% [markdown]
# ## Model
#
# `UnitVector` and `VonMisesFisher` work with `pm.Mixture`. Labels of clusters could be exchanged, so
# the concentrations are put in order. The background is a cluster of concentration 0.

# %%
with pm.Model(coords={"cluster": [1, 2, 3], "axis": list("xyz")}) as model:
    mu = pst.UnitVector("mu", n=3, dims=("cluster", "axis"))
    kappa = pst.ordered_iid("kappa", 3, pm.LogNormal.dist(3, 1), dims="cluster")
    shares = pm.Dirichlet("shares", np.ones(4))
    clusters = [pst.VonMisesFisher.dist(mu[k], kappa[k]) for k in range(3)]
    background = pst.VonMisesFisher.dist(np.array([0.0, 0.0, 1.0]), 0.0)
    pm.Mixture("x", w=shares, comp_dists=[*clusters, background], observed=x)

# %% [markdown]
# ## Sampling and diagnosis
#
# Mixtures have poor modes, in which two components share one cluster. `initial_points` searches from
# many draws of the prior, so that all chains start in the best mode that it finds. An empty list of
# `pst.check` means that no check failed.

# %%
with model:
    starts = pst.initial_points(model, chains=4, random_seed=1)
    idata = pm.sample(500, tune=500, chains=4, initvals=starts, random_seed=1, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer

# %%
posterior = idata["posterior"]
print("concentrations:", posterior["kappa"].mean(("chain", "draw")).values.round(0), " truth:", kappa_true)
print("shares:        ", posterior["shares"].mean(("chain", "draw")).values.round(2), " truth:", shares_true)
middle = pst.mean(idata, "mu", vectors=True).values
radius = np.degrees(np.arccos(np.clip((posterior["mu"].values * middle).sum(-1), -1, 1)))
print("90% of the draws of a centre lie within", np.quantile(radius, 0.9, axis=(0, 1)).round(1), "degrees")

# %% [markdown]
# The cluster of each direction follows from the densities, averaged over the draws.


# %%
def membership(mu, kappa, shares):
    """Probabilities of the three clusters and the background, for each direction (second last axis)."""
    log_sinh_ratio = kappa + np.log1p(-np.exp(-2 * kappa)) - np.log(2 * kappa)  # normalising constant for n = 3
    density = np.exp(kappa[..., None, :] * (x @ np.swapaxes(mu, -1, -2)) - log_sinh_ratio[..., None, :])
    weighted = shares[..., None, :] * np.concatenate([density, np.ones_like(density[..., :1])], axis=-1)
    return weighted / weighted.sum(axis=-1, keepdims=True)


draws = [posterior[name].values for name in ("mu", "kappa", "shares")]
probability = membership(*draws).mean(axis=(0, 1))
best_possible = membership(centres, kappa_true, shares_true)
right = (probability.argmax(axis=-1) == cluster).mean()
right_possible = (best_possible.argmax(axis=-1) == cluster).mean()
print(f"{right:.1%} in their true cluster; with the true parameters it would be {right_possible:.1%}")

# %% [markdown]
# ## Picture
#
# Directions as longitude and latitude, in an equal-area projection. Black: draws of the three
# centres.

# %%
figure = plt.figure(figsize=(7.5, 3.8), layout="constrained")
ax = figure.add_subplot(projection="mollweide")
longitude, latitude = np.arctan2(x[:, 1], x[:, 0]), np.arcsin(x[:, 2])
styles = [("C0", "o"), ("C1", "s"), ("C2", "^"), ("0.6", ".")]
for k, (color, marker) in enumerate(styles):
    these = probability.argmax(axis=-1) == k
    label = f"cluster {k + 1}" if k < 3 else "background"
    ax.plot(longitude[these], latitude[these], marker, color=color, markersize=4, alpha=0.7, label=label)
some = posterior["mu"].values[:, ::10].reshape(-1, 3)
ax.plot(np.arctan2(some[:, 1], some[:, 0]), np.arcsin(some[:, 2]), "k.", markersize=1.5)
ax.set(xlabel="longitude", xticklabels=[], ylabel="latitude")
ax.grid(alpha=0.4)
ax.legend(loc="upper right", bbox_to_anchor=(1.2, 1.05), markerscale=1.5)

# %%
# A chain that swaps labels or is stuck in a poor mode misses concentrations, shares and centres by
# many standard deviations, and a wrong normalising constant shifts the concentrations. A sampler that
# is too wide has shares that are less certain than nearly known counts allow.
for name, truth in {"kappa": kappa_true, "shares": shares_true}.items():
    z = (posterior[name].mean(("chain", "draw")) - truth) / posterior[name].std(("chain", "draw"))
    assert (abs(z) < 3).all(), (name, z.values)
counted = np.sqrt(shares_true * (1 - shares_true) / len(x))
wider = posterior["shares"].std(("chain", "draw")).values / counted
assert ((wider > 0.75) & (wider < 1.6)).all(), wider
missed = np.degrees(np.arccos((middle * centres).sum(-1)))
assert (missed < 2 * np.quantile(radius, 0.9, axis=(0, 1))).all(), missed
assert right > right_possible - 0.03

# %% [markdown]
# ## When to use this
#
# Use it for directions in space (fractures, magnetisation, stars) and for unit vectors of higher
# dimension such as normalised embeddings of texts. A von Mises-Fisher cluster is round; clusters that
# are long in one direction need a Bingham law (`MatrixBingham` with one column), which also describes
# axes, whose two ends are not distinguished. The number of clusters is fixed here; compare models by
# `pst.compare_ranks`, which takes any models. If modes share the probability, sample by sequential
# Monte Carlo, `pm.sample_smc` with `kernel=pst.ManifoldSMC`.
