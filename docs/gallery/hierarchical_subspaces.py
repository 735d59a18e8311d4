# %% [markdown]
# # Twenty groups with similar components
#
# Each of twenty groups has principal components of its own, but too few rows to find them. The
# groups' components are drawn around a common mean with a concentration that is learnt: the data
# decide how much groups borrow from each other.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Twenty subjects, twelve rows each, eight features. The two components of a subject are an
# $8 \times 2$ matrix from a matrix Langevin law around the mean of the population.

# %%
rng = np.random.default_rng(5)
groups, rows, n, p = 20, 12, 8, 2
M_true = pst.draws.haar(n, p, rng=rng)
kappa_true, lengths = 40.0, np.array([3.0, 1.5])
U_true = pst.draws.matrix_langevin(kappa_true * M_true, size=groups, rng=rng)
scores = rng.normal(size=(groups, rows, p)) * lengths
y = scores @ U_true.transpose(0, 2, 1) + rng.normal(size=(groups, rows, n))

# %% [markdown]
# ## Model
#
# The normalising constant of the matrix Langevin law is part of its density, so the concentration
# `kappa` may be a random variable. `kappa` near 0 means unrelated groups, a large one means one set
# of components for all.

# %%
coords = {"subject": range(groups), "feature": range(n), "component": [1, 2]}
with pm.Model(coords=coords) as model:
    M = pst.StiefelUniform("M", n=n, p=p, dims=("feature", "component"))
    kappa = pm.Gamma("kappa", 2, 0.02)
    U = pst.MatrixLangevin("U", M=M, kappa=kappa, dims=("subject", "feature", "component"))
    d = pst.ordered_iid("d", p, pm.HalfNormal.dist(5), dims="component")
    noise = pm.HalfNormal("noise", 2)
    pst.LowRankMvNormal("y", 0, cov_factor=(U * d)[:, None], cov_diag=noise**2, observed=y)

# %% [markdown]
# ## Sampling and diagnosis
#
# Twenty-one orthonormal matrices, the scales, the noise and the concentration are sampled in one
# step. A column of `M` and the same column of all groups may change sign together; `pst.check` finds
# that out. An empty list means that no check failed.

# %%
with model:
    idata = pm.sample(chains=4, random_seed=1, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer

# %%
posterior = idata["posterior"]
low, high = posterior["kappa"].quantile([0.05, 0.95], dim=("chain", "draw")).values
print(f"concentration: {float(posterior['kappa'].mean()):.0f}, truth {kappa_true:.0f}")
print(f"its 90% interval: {low:.0f} to {high:.0f}")


def angle(found, truth):
    """Largest principal angle between two subspaces, degrees."""
    return np.degrees(pst.principal_angles(found[None, None], to=truth).values.max())


together = pst.mean(idata, "U", kind="subspace").values
alone = [np.linalg.svd(table, full_matrices=False)[2][:p].T for table in y]
pooled = np.linalg.svd(y.reshape(-1, n), full_matrices=False)[2][:p].T
errors = {
    "each group alone": [angle(alone[g], U_true[g]) for g in range(groups)],
    "all rows pooled": [angle(pooled, U_true[g]) for g in range(groups)],
    "hierarchical": [angle(together[g], U_true[g]) for g in range(groups)],
}
for name, values in errors.items():
    print(f"{name}: mean error of a group's plane {np.mean(values):.0f} degrees")

# %% [markdown]
# ## Picture

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for place, values in enumerate(errors.values()):
    left.plot(values, place + rng.uniform(-0.15, 0.15, groups), "o", markersize=5, alpha=0.7)
    left.plot(np.mean(values), place, "k|", markersize=26)
left.set(yticks=range(3), yticklabels=errors, xlabel="error of a group's plane (degrees); bar: mean", ylim=(-0.5, 2.5))
right.hist(posterior["kappa"].values.ravel(), bins=40, density=True, color="C2", alpha=0.7)
right.axvline(kappa_true, color="k", linestyle="--", label="truth")
right.set(xlabel="concentration of the groups about their mean", ylabel="posterior density")
right.legend()

# %%
# A wrong normalising constant would shift the concentration; a sampler that does not move the groups
# jointly with their mean gives spreads that do not fit the errors.
average = {name: np.mean(values) for name, values in errors.items()}
assert average["hierarchical"] < 0.9 * min(average["each group alone"], average["all rows pooled"])
log_kappa = np.log(posterior["kappa"].values)
assert abs(log_kappa.mean() - np.log(kappa_true)) < 2.5 * log_kappa.std()
draws = posterior["U"].values.reshape(-1, groups, n, p)
expected = [np.median(pst.principal_angles(draws[None, :, g], to=together[g]).values[..., -1]) for g in range(groups)]
ratio = np.radians(average["hierarchical"]) / np.mean(expected)
print(f"mean error over mean posterior spread: {ratio:.2f}")
assert 0.7 < ratio < 1.4

# %% [markdown]
# ## When to use this
#
# Use it for repeated measurements of related units: subjects in a study, years of a series, sites of
# a network. It pays off where a group alone has too few rows. With one concentration for each column
# (`kappa` of shape 2) columns may differ in how much groups agree on them. If groups come in
# clusters, one mean is not enough: use a mixture. If only the planes matter and not their columns,
# take `MatrixAngularCentralGaussian`, a law of subspaces.
