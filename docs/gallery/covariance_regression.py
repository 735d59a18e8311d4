# %% [markdown]
# # Covariance that changes with a covariate
#
# Ordinary regression says how the mean of your measurements depends on age, dose or temperature. Here the *covariance*
# does: variables move together more strongly at one end of the covariate than at the other. You get the directions in
# which the spread changes, how fast it changes along each of them, and the correlation of any two variables at any
# value of the covariate, all with their uncertainty.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Five variables, 300 rows, and a covariate `x` between -1 and 1. The first direction spreads as `x` grows, the second
# contracts.

# %%
rng = np.random.default_rng(4)
n, rank, rows = 5, 2, 300
U_true = pst.draws.haar(n, rank, rng=rng)
a_true, b_true, noise_true = np.array([1.5, 1.0]), np.array([1.2, -1.0]), 0.7
x = rng.uniform(-1, 1, rows)
sd = np.exp(0.5 * (a_true + x[:, None] * b_true))
y = (sd * rng.normal(size=(rows, rank))) @ U_true.T + noise_true * rng.normal(size=(rows, n))

# %% [markdown]
# ## Model
# $\Sigma(x) = U\,\mathrm{diag}(e^{a + b x})\,U' + \sigma^2 I$ with orthonormal columns in $U$. These are eigenvectors
# of $\Sigma(x)$ at every $x$: along column $k$ the variance is $e^{a_k + b_k x} + \sigma^2$, in all other directions it
# is $\sigma^2$. So the likelihood needs no matrix inverse: project the data on $U$, and use the norm of the rest.

# %%
with pm.Model(coords={"variable": list("ABCDE"), "direction": range(rank)}) as model:
    U = pst.StiefelUniform("U", n=n, p=rank, dims=("variable", "direction"))
    a = pm.Normal("a", 0, 2, dims="direction")
    b = pm.Normal("b", 0, 1, dims="direction")
    noise = pm.HalfNormal("noise", 1)
    variance = pt.exp(a + x[:, None] * b) + noise**2
    within = y @ U
    outside = (y**2).sum() - (within**2).sum()
    log_likelihood = -0.5 * (pt.log(variance) + within**2 / variance).sum()
    log_likelihood += -rows * (n - rank) * pt.log(noise) - 0.5 * outside / noise**2
    pm.Potential("y", log_likelihood)
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis
# The density does not depend on the signs and the order of the columns; `a` and `b` belong to the columns and change
# places with them.

# %%
warnings = pst.check(idata, model)

# %% [markdown]
# ## Answer
# Columns in the order of their slope `b`, and the correlation between two of the variables along `x`.

# %%
aligned = pst.align(idata, "U", companions={"a": "permute"}, order_by="b")
for name in ("a", "b"):
    mean, spread = aligned[name].mean(("chain", "draw")).values, aligned[name].std(("chain", "draw")).values
    print(f"{name}: {mean.round(2)} ± {spread.round(2)}")
grid = np.linspace(-1, 1, 41)


def covariance(U, a, b, noise, x):
    """Covariances, with the dims of the draws first and the grid of x behind them."""
    variance = np.exp(a[..., None, :] + x[:, None] * b[..., None, :])
    common = np.einsum("...ik,...xk,...jk->...xij", U, variance, U)
    return common + np.asarray(noise)[..., None, None, None] ** 2 * np.eye(n)


draws = idata["posterior"]
found = covariance(*(draws[name].values for name in ("U", "a", "b", "noise")), grid)
true = covariance(U_true, a_true, b_true, noise_true, grid)


def correlation(S, i, j):
    return S[..., i, j] / np.sqrt(S[..., i, i] * S[..., j, j])


# %%
strongest = true[-1] - np.diag(np.diag(true[-1]))
first, second = np.unravel_index(abs(strongest).argmax(), strongest.shape)
rho = correlation(found, first, second).reshape(-1, grid.size)
low, middle, high = np.quantile(rho, [0.05, 0.5, 0.95], axis=0)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", dpi=90)
left.fill_between(grid, low, high, color="C0", alpha=0.3, lw=0, label="90 % interval")
left.plot(grid, middle, color="C0", label="posterior median")
left.plot(grid, correlation(true, first, second), "--", color="black", label="truth")
left.set(xlabel="covariate", ylabel=f"correlation of {'ABCDE'[first]} and {'ABCDE'[second]}")
left.legend()
for k, colour in enumerate(("C0", "C1")):
    curve = np.exp(aligned["a"].values[..., k, None] + grid * aligned["b"].values[..., k, None]).reshape(-1, grid.size)
    band = np.quantile(curve, [0.05, 0.95], axis=0)
    right.fill_between(grid, *band, color=colour, alpha=0.4, lw=0, label=f"direction {k + 1}")
    right.plot(grid, np.exp(a_true[k] + grid * b_true[k]), "--", color="black")
right.set(xlabel="covariate", ylabel="variance along the direction", yscale="log")
right.legend()

# %%
# Catches draws from the prior, columns that were exchanged without their coefficients, and an interval of wrong width:
# the size of z must be about one for slopes, and for all covariances at both ends of the covariate.
z_slope = (aligned["b"].mean(("chain", "draw")).values - b_true) / aligned["b"].std(("chain", "draw")).values
ends = found[..., [0, -1], :, :]
z_ends = (ends.mean((0, 1)) - true[[0, -1]]) / ends.std((0, 1))
assert abs(z_slope).max() < 3, f"slopes are off by {z_slope} standard deviations"
assert 0.3 < np.sqrt(np.mean(z_ends**2)) < 2 and aligned["b"].std(("chain", "draw")).max() < 0.4

# %% [markdown]
# ## When to use this
# Use it when spread and correlation are the question: volatility by regime, variability of traits by age, noise of
# sensors by temperature. The directions are the same at every `x` and their variances change; if the directions
# themselves turn, use a random walk of matrices (see the dynamic factor model). If only the variances of single
# variables change, and correlations do not, model each standard deviation on its own and leave out the matrix. With
# fewer than about ten rows per entry of `U`, put a tighter prior on `b`.
