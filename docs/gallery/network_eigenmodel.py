# %% [markdown]
# # Who is linked to whom: the eigenmodel of a network
#
# You have a table of zeros and ones that says which nodes are linked. The eigenmodel (Hoff, 2009) places every node in
# a plane. Along some directions of the plane similar nodes attract each other, along others they avoid each other. You
# get the positions with their uncertainty, the probability of each link, and the probability of each pattern of
# attraction and avoidance. In larger networks the last is hard to get from chains, since each pattern is a separate
# mode; sequential Monte Carlo computes it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit, logsumexp

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# We simulate 25 nodes with one direction of attraction and one of avoidance. A tenth of the pairs is set aside.

# %%
rng = np.random.default_rng(5)
n, rank = 25, 2
U_true = pst.draws.haar(n, rank, rng=rng)
strength_true = -0.5 + (U_true * [1.6 * n, -1.2 * n]) @ U_true.T
i, j = np.tril_indices(n, -1)
link = (rng.random(i.size) < expit(strength_true[i, j])).astype(int)
seen = rng.random(i.size) < 0.9

# %% [markdown]
# ## Model
# The log odds of a link are $c + (U \mathrm{diag}(l) U')_{ij}$. The columns of $U$ are orthonormal, with a uniform
# prior, `StiefelUniform`. Column $k$ attracts if $l_k > 0$ and repels if $l_k < 0$. The argument `positive` fixes how
# many of the $l_k$ are positive; without it both signs are possible.


# %%
def eigenmodel(positive=None):
    with pm.Model(coords={"node": range(n), "direction": range(rank)}) as model:
        U = pst.StiefelUniform("U", n=n, p=rank, dims=("node", "direction"))
        if positive is None:
            l = pm.Normal("l", 0, n, dims="direction")
        else:
            size = pm.HalfNormal("size", n, dims="direction")
            l = pm.Deterministic("l", np.where(np.arange(rank) < positive, 1, -1) * size, dims="direction")
        c = pm.Normal("c", 0, 2)
        strength = pm.Deterministic("strength", c + ((U * l) @ U.T)[i, j])
        pm.Bernoulli("link", logit_p=strength[seen], observed=link[seen])
    return model


# %% [markdown]
# ## Sampling and diagnosis
# `pst.check` finds that signs and order of the columns are not identified, and checks the quantities that are.

# %%
model = eigenmodel()
with model:
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)
warnings = pst.check(idata, model)

# %% [markdown]
# ## How probable is each pattern?
# Sequential Monte Carlo computes the marginal likelihood of the model with given signs. A pattern with one sign of each
# kind stands for two of the four sign vectors. In this small network chains also pass from one pattern to another, so
# that the share of draws is a second estimate, by another method. In large networks they do not.

# %%
log_weight, error = [], []
for positive in (2, 1, 0):
    with eigenmodel(positive):
        smc = pm.sample_smc(
            200, kernel=pst.ManifoldSMC, chains=3, cores=1, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    evidence = pst.log_marginal_likelihood(smc)
    log_weight.append(evidence.value + np.log([1, 2, 1][positive] / 4))
    error.append(evidence.error)
probability = np.exp(log_weight - logsumexp(log_weight))
n_positive = (idata["posterior"]["l"] > 0).sum("direction").values
share = np.array([np.mean(n_positive == positive) for positive in (2, 1, 0)])
for k, name in enumerate(("attract, attract", "attract, avoid", "avoid, avoid")):
    print(f"{name:17} probability {probability[k]:.2f}, error of its log {error[k]:.2f}, share of draws {share[k]:.2f}")

# %% [markdown]
# ## Answer
# The nodes in the plane of the two directions, and predicted against actual links.

# %%
aligned = pst.align(idata, "U", order_by="l")
place = aligned["U"].mean(("chain", "draw")).values
spread = aligned["U"].std(("chain", "draw")).values
strength = idata["posterior"]["strength"]
forecast = expit(strength).mean(("chain", "draw")).values
figure, (plane, scores) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained", dpi=90)
for a, b in zip(i[link == 1], j[link == 1], strict=True):
    plane.plot(*place[[a, b]].T, color="0.8", lw=0.5, zorder=0)
plane.errorbar(*place.T, spread[:, 1], spread[:, 0], fmt="o", ms=4, color="C0", ecolor="C0", elinewidth=0.5)
plane.set(xlabel="position along the direction of attraction", ylabel="position along the direction of avoidance")
for value, label, colour in ((0, "no link", "C1"), (1, "link", "C0")):
    scores.hist(forecast[~seen & (link == value)], np.linspace(0, 1, 11), alpha=0.6, label=label, color=colour)
scores.set(xlabel="predicted probability of a link", ylabel="pairs that were set aside")
scores.legend()

# %%
# Catches draws that have not left the prior or are stuck (log odds, links that were set aside), and a sampler that
# gives a mode the wrong weight: two methods must agree on the probabilities of the patterns.
z = ((strength.mean(("chain", "draw")) - strength_true[i, j]) / strength.std(("chain", "draw"))).values
log_score = np.log(np.where(link == 1, forecast, 1 - forecast)[~seen]).mean()
density = link[seen].mean()
log_score_of_density = np.log(np.where(link == 1, density, 1 - density)[~seen]).mean()
assert 0.5 < np.sqrt(np.mean(z**2)) < 1.6, "the true log odds are not where the posterior says"
assert log_score > log_score_of_density + 0.03, "links that were set aside are not predicted"
assert abs(share - probability).max() < 0.3, "chains and sequential Monte Carlo disagree"

# %% [markdown]
# ## When to use this
# Use it for a symmetric relation (friends, interactions, trade) where nodes differ in ways that you have not measured.
# It covers groups whose members are linked as well as roles whose members avoid each other; distance models cover only
# the first. It has one vector of parameters for each node: with thousands of nodes, or very few links, start with a
# block model. If the pattern of signs does not matter to you, skip sequential Monte Carlo and read the predicted links
# only.
