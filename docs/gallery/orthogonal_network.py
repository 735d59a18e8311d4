# %% [markdown]
# # A small Bayesian network with an orthogonal layer
#
# In a dense layer the size of the weights and the size of the inputs cannot be told apart, which makes posteriors of
# networks hard to sample. An orthogonal layer only rotates its inputs. The scale is then a single number, the gain,
# which can have a prior. You get class probabilities that have been averaged over the posterior: they are less certain
# about images of a kind that the network has not seen. Needs `pip install scikit-learn`, for the images.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from sklearn.datasets import load_digits

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Images of the digits 3, 5 and 8, reduced to their first twelve principal components. The network learns from 120 of
# them and is tested on the other four hundred. Nines are set aside: the network never sees one in training.

# %%
rng = np.random.default_rng(8)
images, digit = load_digits(return_X_y=True)
classes = np.array([3, 5, 8])
known = np.flatnonzero(np.isin(digit, classes))
train, test = np.split(rng.permutation(known), [120])
centre = images[train].mean(0)
components = np.linalg.svd(images[train] - centre, full_matrices=False)[2][:12]
x = (images - centre) @ components.T
x /= x[train].std()
label = np.searchsorted(classes, digit)

# %% [markdown]
# ## Model
# Twelve inputs, six hidden units with orthonormal weights, three outputs. `orthogonal_dense` makes the weights.

# %%
inputs, hidden, outputs = 12, 6, 3
with pm.Model() as model:
    W = pst.orthogonal_dense("W", inputs, hidden)
    gain = pm.LogNormal("gain", 0, 0.5)
    bias = pm.Normal("bias", 0, 1, shape=hidden)
    head = pm.Normal("head", 0, 1.5, shape=(hidden, outputs))
    logits = pm.math.tanh(gain * x[train] @ W + bias) @ head
    pm.Categorical("label", logit_p=logits, observed=label[train])
    idata = pm.sample(chains=4, random_seed=1, progressbar=False, compute_convergence_checks=False)

# %% [markdown]
# ## Diagnosis
# Hidden units may be exchanged or change their sign, together with their bias and output weights. `pst.check` finds
# that out. Different solutions that fit almost as well are common in networks. What counts is whether chains agree on
# *predictions*, so we look at these too.

# %%
warnings = pst.check(idata, model)


def predict(x):
    """Class probabilities of each draw: chain, draw, image, class."""
    W, gain, bias, head = (idata["posterior"][name].values for name in ("W", "gain", "bias", "head"))
    logits = np.tanh(gain[..., None, None] * (x @ W) + bias[..., None, :]) @ head
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


by_chain = predict(x[test]).mean(1)
print("largest difference of a class probability between two chains:", np.ptp(by_chain, axis=0).max().round(2))

# %% [markdown]
# ## Answer

# %%
probability = by_chain.mean(0)
right = probability.argmax(-1) == label[test]
confidence = probability.max(-1)
nines = predict(x[digit == 9]).mean((0, 1)).max(-1)
print(f"accuracy {right.mean():.3f}, mean confidence {confidence.mean():.3f}, and {nines.mean():.3f} on nines")

# %%
figure, (left, reliability) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", dpi=90)
bins = np.linspace(1 / 3, 1, 15)
left.hist(confidence, bins, density=True, alpha=0.6, color="C0", label="3, 5 or 8, new images")
left.hist(nines, bins, density=True, alpha=0.6, color="C1", label="9, never seen")
left.set(xlabel="largest class probability", ylabel="density")
left.legend()
groups = np.array_split(np.argsort(confidence), 6)
mean, share = np.transpose([(confidence[group].mean(), right[group].mean()) for group in groups])
error = np.sqrt(share * (1 - share) / len(groups[-1]))
reliability.errorbar(mean, share, 2 * error, fmt="o", color="C0")
reliability.axline((1, 1), slope=1, color="black", ls="--", lw=1)
_ = reliability.set(xlabel="mean confidence", ylabel="share of right answers, ± 2 standard errors")

# %%
# Catches draws from the prior (right for a third of the images), a chain that is stuck in one overconfident solution
# (more confidence than right answers), and weights that have left the manifold.
score = -np.log(np.take_along_axis(probability, label[test][:, None], -1)).mean()
assert right.mean() > 0.9 and score < 0.35, "the test images are not recognised"
assert abs(confidence.mean() - right.mean()) < 0.1, "confidence does not match accuracy"
assert nines.mean() < confidence.mean() - 0.05, "as sure about nines as about digits it knows"
assert pst.orthogonality_error(idata, "W_Q").max() < 1e-8

# %% [markdown]
# ## When to use this
# Use it for small networks on small data, where honest probabilities matter more than the last per cent of accuracy.
# Orthogonal layers also keep gradients from growing or vanishing in deep networks. With more than some thousand rows
# full gradients are slow; use minibatches with `OrthogonalSGHMC`, or `pst.jax.osghmc` within a network library. If a
# linear model predicts as well, it is the better model: its posterior has one mode.
