# %% [markdown]
# # Which directions matter: a Gaussian process on an active subspace
#
# A slow computer model has six inputs. Its output depends on one or two unknown combinations of them. A Gaussian
# process on all six inputs needs far more runs than you have. Put the Gaussian process on an unknown plane instead: you
# get the plane, a surface over it that you can look at, and better predictions.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Sixty runs, and two hundred more to test with. The true function depends on a plane of the six inputs.

# %%
rng = np.random.default_rng(2)
n, runs = 6, 60
plane_true = pst.draws.haar(n, 2, rng=rng)
x = rng.uniform(-1.7, 1.7, (runs + 200, n))
first, second = (x @ plane_true).T
f = np.sin(1.5 * first) + 0.5 * second**2
y = f + 0.1 * rng.normal(size=len(f))
x_train, y_train, x_test, f_test = x[:runs], y[:runs], x[runs:], f[runs:]

# %% [markdown]
# ## Model
# The kernel depends on $|U'x - U'x'|$, the distance within the plane. A rotation of $U$ in the plane changes nothing,
# so the variable is a *subspace*: `pst.Grassmann`. The sampler then moves the plane, and ignores rotations within it.


# %%
def squared_distance(a, b):
    return (a**2).sum(-1)[:, None] + (b**2).sum(-1) - 2 * a @ b.T


with pm.Model(coords={"input": range(n), "direction": range(2)}) as model:
    U = pst.Grassmann("U", n=n, p=2, dims=("input", "direction"))
    length = pm.LogNormal("length", 0.5, 0.5)
    height = pm.LogNormal("height", 0, 0.5)
    noise = pm.LogNormal("noise", -2, 0.5)
    level = pm.Normal("level", 0, 1)
    z = x_train @ U
    K = height**2 * pt.exp(-0.5 * squared_distance(z, z) / length**2) + (noise**2 + 1e-8) * pt.eye(runs)
    pm.MvNormal("y", level + pt.zeros(runs), cov=K, observed=y_train)
    idata = pm.sample(500, tune=500, chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis

# %%
warnings = pst.check(idata, model)
print("gradients a draw:", float(idata["sample_stats"]["gradients"].mean().round(1)))

# %% [markdown]
# ## Answer
# The diagonal of the projector $UU'$ says how much of each input lies in the plane: 0 for an input that does not
# matter, 1 for one that lies in the plane. Predictions average the Gaussian process over draws of the plane and of the
# scales.

# %%
print(pst.summary(idata, "U").filter(regex=r"\[(\d), \1\]", axis=0)[["mean", "sd"]].round(2).to_string())
names = ("U", "length", "height", "noise", "level")
draws = {name: np.concatenate(idata["posterior"][name].values) for name in names}
predicted = []
for draw in rng.choice(len(draws["U"]), 100, replace=False):
    now = {name: draws[name][draw] for name in names}
    z, z_new = x_train @ now["U"], x_test @ now["U"]
    K = now["height"] ** 2 * np.exp(-0.5 * squared_distance(z, z) / now["length"] ** 2)
    k_new = now["height"] ** 2 * np.exp(-0.5 * squared_distance(z_new, z) / now["length"] ** 2)
    solved = np.linalg.solve(K + (now["noise"] ** 2 + 1e-8) * np.eye(runs), np.c_[y_train - now["level"], k_new.T])
    variance = now["height"] ** 2 - (k_new.T * solved[:, 1:]).sum(0)
    predicted.append(now["level"] + k_new @ solved[:, 0] + np.sqrt(variance.clip(0)) * rng.normal(size=len(x_test)))
predicted = np.array(predicted)
mean, spread = predicted.mean(0), predicted.std(0)

# %%
basis = pst.mean(idata, "U", kind="subspace").values
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", dpi=90)
dots = left.scatter(*(x_train @ basis).T, c=y_train, cmap="viridis", s=40)
figure.colorbar(dots, ax=left, label="output of the run")
left.set(xlabel="first direction of the mean plane", ylabel="second direction of the mean plane")
right.errorbar(f_test, mean, 2 * spread, fmt=".", color="C0", elinewidth=0.5)
right.axline((0, 0), slope=1, color="black", ls="--", lw=1)
_ = right.set(xlabel="true value of a new run", ylabel="predicted value, ± 2 sd")

# %%
# Catches chains that found another plane, draws from the prior, and a plane that is too certain: new runs are predicted
# well, with errors of the predicted size, and the true plane is as far from the draws as they are from each other.
z = (mean - f_test) / spread
to_truth = pst.principal_angles(idata, "U", to=plane_true).max("angle").mean()
apart = pst.principal_angles(idata, "U", to="draws").max("angle").mean()
assert np.std(mean - f_test) < 0.25 * np.std(f_test), "new runs are not predicted"
assert 0.6 < np.sqrt(np.mean(z**2)) < 1.6, "errors do not match their intervals"
assert 0.2 < to_truth / apart < 2, "the true plane is not where the posterior says"

# %% [markdown]
# ## When to use this
# Use it for expensive functions of five to fifty inputs that vary along a few combinations. Try one dimension first,
# then two, and compare predictions of runs that you have set aside. Use a kernel with one length for all directions of
# the plane, as here: then only the plane matters, `Grassmann` applies, and sampling is cheap. With a length for each
# direction, use `StiefelUniform`. If each input acts by itself, a kernel with one length for each input (automatic
# relevance determination) is simpler. With few runs the posterior may have several modes, which `pst.check` reports;
# `pst.initial_points` then finds better starts.
