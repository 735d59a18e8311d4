# %% [markdown]
# # A small Bayesian network with an orthogonal layer
#
# The weights of a dense layer and the scale of its inputs are hard to tell apart, and posteriors of networks are hard to
# sample for that reason. An orthogonal layer keeps the lengths of its inputs, so all scales are in one place, where
# they have a prior. You get class probabilities that say "I do not know" far from the data. Needs
# `pip install scikit-learn`, for the images.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from sklearn.datasets import load_digits

import pymc_stiefel as pst

# %% [markdown]
# ## Data
# Images of the digits 3, 5 and 8, with 8 x 8 pixels. The network sees 150 of them; the others are for testing. Digits 9
# are kept for a question that the network cannot answer.

# %%
rng = np.random.default_rng(8)
images, digit = load_digits(return_X_y=True)
classes = np.array([3, 5, 8])
known = np.isin(digit, classes)
order = rng.permutation(np.flatnonzero(known))
centre, _, components = (part for part in (images[known].mean(0), None, np.linalg.svd(images[known] - images[known].mean(0), full_matrices=False)[2][:16]))
x = (images - centre) @ components.T
x /= x[known].std()
label = np.searchsorted(classes, digit)
train, test = order[:150], order[150:]
