# %% [markdown]
# # Principal components of curves
#
# You have measured forty curves, each at half of the time points only, with noise: growth of children, temperatures
# over a day. Functional principal component analysis finds the few shapes that the curves are made of. The shapes are
# smooth, and the prior says so. You get every shape with a band, the curves with their gaps filled, and the share of
# each shape.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Forty curves on a grid of thirty points, made of two shapes. Half of the values are missing.

# %%
rng = np.random.default_rng(22)
points, rank, curves = 30, 2, 40
t = np.linspace(0, 1, points)
shape_true = np.linalg.qr(np.c_[np.sin(2 * np.pi * t), np.cos(2 * np.pi * t)])[0]
signal = rng.normal(size=(curves, rank)) * [4.0, 2.0] @ shape_true.T
y = signal + 0.3 * rng.normal(size=signal.shape)
seen = rng.random(y.shape) < 0.5
table = np.where(seen, y, np.nan)

# %% [markdown]
# ## Model
# Each curve is a sum of orthonormal shapes with normal scores. `MatrixAngularCentralGaussian` is the law of an
# orthonormal matrix that is made from normal vectors with covariance `K`. With the kernel of a Gaussian process as `K`
# the shapes are smooth a priori. `ordered_iid` keeps the scales in descending order, so that the first shape is the
# largest. `LowRankMvNormal` integrates over scores and missing values. Do not sample the scores: a shape could then
# turn only together with all forty of them, and chains would be slow.

# %%
K = np.exp(-0.5 * (t[:, None] - t) ** 2 / 0.15**2) + 1e-4 * np.eye(points)
with pm.Model(coords={"time": t, "shape": range(rank)}) as model:
    X = pst.MatrixAngularCentralGaussian("X", K, rank, dims=("time", "shape"))
    scale = pst.ordered_iid("scale", rank, pm.HalfNormal.dist(5), dims="shape")
    noise = pm.HalfNormal("noise", 1)
    pst.LowRankMvNormal("y", 0, cov_factor=X * scale, cov_diag=noise**2, observed=table)
    idata = pm.sample(500, tune=500, chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis
# A smooth prior is badly scaled: rough directions are narrow, smooth ones are wide. The sampler learns these scales
# during tuning. Only the signs of the shapes are not identified.

# %%
warnings = pst.check(idata, model)
print(len(warnings), "warnings; gradients a draw:", int(idata["sample_stats"]["gradients"].median()))

# %% [markdown]
# ## Answer
# Shapes with their signs aligned, and values for the gaps by `pst.impute`.

# %%
shapes = pst.align(idata, "X", method="sign", reference=shape_true)
filled = np.concatenate(pst.impute(idata, model=model, random_seed=1).values)  # draws x gaps
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", dpi=90)
for k, axis in enumerate(axes[:2]):
    low, middle, high = np.quantile(shapes.values[..., k].reshape(-1, points), [0.05, 0.5, 0.95], axis=0)
    axis.fill_between(t, low, high, color="C0", alpha=0.3, lw=0, label="90 % band")
    axis.plot(t, middle, color="C0", label="posterior median")
    axis.plot(t, shape_true[:, k], "--", color="black", label="truth")
    axis.set(xlabel="time", ylabel=f"shape {k + 1}")
axes[0].legend(fontsize=8)
chosen = 2
gaps = np.nonzero(~seen)[0] == chosen
low, high = np.quantile(filled[:, gaps], [0.05, 0.95], axis=0)
axes[2].vlines(t[~seen[chosen]], low, high, color="C0", alpha=0.6, lw=3, label="filled, 90 % interval")
axes[2].plot(t[seen[chosen]], y[chosen, seen[chosen]], "o", color="C1", label="measured")
axes[2].plot(t[~seen[chosen]], y[chosen, ~seen[chosen]], "x", color="black", label="not shown to the model")
axes[2].set(xlabel="time", ylabel="value of one curve")
axes[2].legend(fontsize=8, loc="upper center")

# %%
# Catches a chain that crawls along the stiff prior or sits at a wrong shape, and draws from the prior: errors of the
# missing values must be as large as the posterior says, and small beside the values themselves.
error = filled.mean(0) - y[~seen]
z = error / filled.std(0)
angle = pst.principal_angles(idata, "X", to=shape_true).max("angle").mean()
apart = pst.principal_angles(idata, "X", to="draws").max("angle").mean()
assert 0.85 < np.sqrt(np.mean(z**2)) < 1.15, "errors do not match the posterior"
assert np.std(error) < 0.6 * np.std(y) and angle < 2 * apart < 0.8, "the shapes are wrong"

# %% [markdown]
# ## When to use this
# Use it for curves, spectra or images on a common grid, measured with gaps or noise. With complete, precise data the
# singular value decomposition gives the same shapes, and only the bands are new. The kernel decides how smooth shapes
# are: take its length from what you know, or give it a prior (`Sigma` may be random). If the curves are shifted in time
# against each other, register them first; no sum of a few shapes describes a shift.
