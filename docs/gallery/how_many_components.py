# %% [markdown]
# # How many components?
#
# The posterior probability of each number of components of a factor model, by sequential Monte Carlo
# on the manifold. A scree plot leaves the choice to your judgement; this gives probabilities.

# %%
import numpy as np
import pymc as pm
from scipy.special import logsumexp
from scipy.stats import chi, halfnorm

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Answers of 120 persons to ten questions, behind which there are three traits. The third is weak.

# %%
rng = np.random.default_rng(2)
N, n = 120, 10
U = pst.draws.haar(n, 3, rng=rng)
table = rng.normal(size=(N, 3)) * [3.0, 2.0, 1.2] @ U.T + rng.normal(size=(N, n))
eigenvalues = np.linalg.eigvalsh(np.cov(table.T))[::-1]
print("eigenvalues of the covariance matrix:", eigenvalues.round(2))

# %% [markdown]
# By eye there are two large eigenvalues, and a third that may or may not stand out.
#
# ## Models
#
# One for each rank. `scale_prior="normal"` means independent standard normal loadings: under this
# prior the length of a component stays away from zero. With a prior that allows vanishing components,
# four components with one near zero would be nearly the same model as three.

# %%
models = {
    rank: pst.factor_model(
        table, rank=rank, mean=False, scale=1.0, scale_prior="normal", noise_prior=pm.HalfNormal.dist(2)
    )
    for rank in range(1, 6)
}

# %% [markdown]
# ## Sampling
#
# `compare_ranks` moves a population of particles from the prior to the posterior of each model and
# estimates the marginal likelihood on the way. The error comes from the spread between independent
# runs.

# %%
found = pst.compare_ranks(models, 300, chains=4, random_seed=1, progressbar=False)
found.round(3)

# %% [markdown]
# ## Answer and diagnosis
#
# Sample the most probable model as usual and check the chains; an empty list means that no check
# failed.

# %%
best = int(found["probability"].idxmax())
print(f"most probable number of components: {best}, with probability {found['probability'][best]:.3f}")
with models[best]:
    idata = pm.sample(chains=4, random_seed=1, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %%
lengths = idata["posterior"]["W_d"]
print("lengths of the components:", lengths.mean(("chain", "draw")).values.round(2), "truth: [3, 2, 1.2]")

# %% [markdown]
# ## Picture

# %%
pst.plot_ranks(found)

# %% [markdown]
# ## Is the estimate right?
#
# For one component the marginal likelihood can be computed: the integral over the direction is the
# normalising constant of a Bingham law, and two integrals remain, over the length and the noise.


# %%
def exact_log_marginal(table, size=150):
    """Rank 1: a sum over a grid of lengths and noise levels."""
    squares = np.linalg.eigvalsh(table.T @ table)
    d, sigma = np.linspace(1.5, 6, size), np.linspace(1.0, 2.2, size)
    prior = chi(n).logpdf(d)[:, None] + halfnorm(scale=2).logpdf(sigma)
    small, large = sigma**2, d[:, None] ** 2 + sigma**2
    gain = 0.5 * (1 / small - 1 / large)
    direction = np.vectorize(lambda g: pst.normalizers.log_bingham_vector(g * squares)[0])(gain)
    log_det = (n - 1) * np.log(small) + np.log(large)
    likelihood = -0.5 * (N * (n * np.log(2 * np.pi) + log_det) + squares.sum() / small) + direction
    return logsumexp(prior + likelihood) + np.log((d[1] - d[0]) * (sigma[1] - sigma[0]))


exact = exact_log_marginal(table)
print(f"log marginal likelihood of rank 1: {found.loc[1, 'log_marginal']:.2f}, exact {exact:.2f}")

# %%
# Particles that do not follow the tempered posterior, or weights that are wrong, miss the exact
# value; chains with a wrong target miss the true lengths, or the standard deviation that a length d
# has in a large sample, (d^2 + noise^2) / (d sqrt(2 N)).
assert abs(found.loc[1, "log_marginal"] - exact) < 1
assert best == 3
assert found["probability"][3] > 0.8
z = (lengths.mean(("chain", "draw")) - [3.0, 2.0, 1.2]) / lengths.std(("chain", "draw"))
assert (abs(z) < 3).all()
noise = idata["posterior"]["noise"].mean()
sd = (lengths**2 + noise**2).mean(("chain", "draw")) / (lengths.mean(("chain", "draw")) * np.sqrt(2 * N))
widths = (lengths.std(("chain", "draw")) / sd).values
print("standard deviations of the lengths, as a multiple of the expected ones:", widths.round(2))
assert 0.8 < widths.mean() < 1.25

# %% [markdown]
# ## When to use this
#
# Use it if the number of components is itself the question, or where several numbers should be
# averaged over. The answer depends on the prior: very wide loadings favour few components whatever
# the data say, so standardise the data and choose a prior that you would defend. For prediction only,
# leave-one-out cross-validation (`az.loo`) answers another question, how well new rows are predicted.
# With tens of components and thousands of features sequential Monte Carlo is slow; then fix a
# generous rank and let the prior shrink the lengths.
