# %% [markdown]
# # Where is it and how is it turned? Pose from landmarks
#
# Rotation and position of a rigid body from a few landmarks and an inertial sensor, with their joint uncertainty. The
# posterior shows about which axis the rotation is least certain; a single best rotation does not.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.spatial.transform import Rotation

import pymc_stiefel as pst

# %% [markdown]
# ## Data
#
# Six landmarks near a line along a boom are measured with an error of 5 cm. They say little about the roll of the boom.
# An inertial sensor measures the whole rotation, to about ten degrees.

# %%
rng = np.random.default_rng(8)
x = rng.normal(size=(6, 3)) * 0.03  # on the body, metres
x[:, 0] = np.linspace(-1, 1, 6)
R_true, t_true, sigma = Rotation.random(random_state=3).as_matrix(), np.array([2.0, -1.0, 0.5]), 0.05
y = x @ R_true.T + t_true + sigma * rng.normal(size=x.shape)
kappa = 20.0  # of the inertial sensor
R_sensor = pst.draws.matrix_fisher(kappa * R_true, rng=rng)

# %% [markdown]
# ## Model
#
# `SpecialOrthogonal` would be a uniform prior. Here the sensor gives the prior: a matrix Fisher law around its reading.

# %%
with pm.Model(coords={"seen": list("xyz"), "body": list("xyz")}) as model:
    R = pst.MatrixFisher("R", M=R_sensor, kappa=kappa, dims=("seen", "body"))
    t = pm.Normal("t", 0, 5, dims="seen")
    pm.Normal("y", x @ R.T + t, sigma, observed=y)

# %% [markdown]
# ## Sampling and diagnosis
#
# Everything is identified here, also the signs and the order. An empty list means that no check failed.

# %%
with model:
    idata = pm.sample(chains=4, random_seed=1, compute_convergence_checks=False)
    warnings = pst.check(idata)
warnings

# %% [markdown]
# ## Answer
#
# Errors as rotation vectors in the coordinates of the body: roll about the boom, then the two angles across it.


# %%
def turned(R, reference):
    """Rotation vector from ``reference`` to each R, in degrees: roll, pitch, yaw for small angles."""
    return Rotation.from_matrix((reference.T @ R).reshape(-1, 3, 3)).as_rotvec(degrees=True)


draws = idata["posterior"]["R"].values
centre = pst.mean(idata, "R", kind="frechet").values
spread = turned(draws, centre).std(axis=0)
print("posterior standard deviation of roll, pitch, yaw:", spread.round(1), "degrees")
print("truth minus mean:", turned(R_true, centre)[0].round(1))
position = idata["posterior"]["t"]
print("position:", position.mean(("chain", "draw")).values.round(3), "metres")
print("      +-:", position.std(("chain", "draw")).values.round(3))

# %% [markdown]
# ## Picture
#
# The sensor alone, the landmarks alone and both together, as errors from the truth. The landmarks fix pitch and leave
# roll to the sensor. The first two clouds are exact draws; their laws are matrix Fisher laws, too.

# %%
centred_x, centred_y = x - x.mean(axis=0), y - y.mean(axis=0)
landmarks = centred_y.T @ centred_x / sigma**2
clouds = {
    "sensor": pst.draws.matrix_fisher(kappa * R_sensor, size=1500, rng=rng),
    "landmarks": pst.draws.matrix_fisher(landmarks, size=1500, rng=rng),
    "both": draws.reshape(-1, 3, 3)[::3],
}
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for (name, cloud), color, marker in zip(clouds.items(), ["C1", "C0", "k"], "s^o", strict=True):
    roll, pitch, _ = turned(cloud, R_true).T
    ax.plot(pitch, roll, marker, color=color, markersize=2.5, alpha=0.35, label=name, markeredgewidth=0)
ax.plot(0, 0, "+", color="C3", markersize=18, markeredgewidth=3, label="truth")
ax.set(xlabel="pitch (degrees)", ylabel="roll about the boom (degrees)", xlim=(-40, 40), ylim=(-90, 90))
for handle in ax.legend().legend_handles[:3]:
    handle.set(markersize=7, alpha=1)

# %%
# The posterior of R is known exactly once t is integrated out: a matrix Fisher law, from which we draw without Markov
# chains. A sampler with the wrong target or the wrong measure on the rotations differs in mean or in spread.
weight = 1 / (sigma**2 / len(x) + 5**2)
F = kappa * R_sensor + landmarks + weight * np.outer(y.mean(axis=0), x.mean(axis=0))
exact = pst.draws.matrix_fisher(F, size=20_000, rng=rng)
vectors, exact_vectors = turned(draws, centre), turned(exact, centre)
z = (vectors.mean(axis=0) - exact_vectors.mean(axis=0)) / exact_vectors.std(axis=0)
ratio = vectors.std(axis=0) / exact_vectors.std(axis=0)
print("difference of means in standard deviations:", z.round(3), " ratio of standard deviations:", ratio.round(3))
assert (abs(z) < 0.25).all()
assert (abs(ratio - 1) < 0.25).all()

# %% [markdown]
# ## When to use this
#
# Use it for poses of cameras, limbs, molecules and robots, and wherever a rotation is one unknown among others: noise,
# correspondences, several bodies. If only the rotation is unknown and all noise is normal with known variance, the
# exact matrix Fisher law of the last cell is all you need. For the orientation of many similar bodies put
# `MatrixFisher` around a common rotation and learn `kappa`. Reflections are excluded: if they are possible, use
# `StiefelUniform` with $n = p$.
