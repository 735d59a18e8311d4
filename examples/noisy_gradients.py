"""Gradients with noise: stochastic-gradient sampling of a QR factorisation against direct draws.

The paper's second experiment. M = QR is normal about one matrix with sigma = 1, and the gradient of every step carries
normal noise of standard deviation 0.1. A sampler that mistakes this noise for the gradient of the density would
collapse to the mode or drift away. OrthogonalSGHMC moves Q on its manifold. Plain SGHMC, the paper's baseline, moves Z
with Q = Z (Z'Z)^(-1/2). OrthogonalHMC has exact gradients. Run ``python examples/noisy_gradients.py``.
"""

# %%
from __future__ import annotations

import warnings

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from recording import finish, options_of, row
from scipy.ndimage import gaussian_filter

import pymc_stiefel as pst

SIGMA, NOISE = 1.0, 0.1
MEAN = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
NAMES = [*(f"Q{i}{j}" for i in (1, 2, 3) for j in (1, 2)), "R11", "R22", "R12"]


# %% The noise of the gradients enters as rows of random numbers, of which pm.Minibatch hands out a fresh one for each
# gradient: a linear term with random coefficients has these as its gradient.
def build_model(noise: bool, expanded: bool = False, seed: int = 1) -> pm.Model:
    """The model; ``expanded`` writes Q as the polar factor of an unconstrained Gaussian Z."""
    n, p = MEAN.shape
    with pm.Model() as model:
        if expanded:
            free = pm.Normal("Z", shape=(n, p), initval=MEAN / np.linalg.norm(MEAN, axis=0))
            Q = pm.Deterministic("Q", pst.transforms.polar.backward(free))
        else:
            free = Q = pst.StiefelUniform("Q", n=n, p=p)
        diagonal = pm.HalfFlat("diagonal", shape=p, initval=np.ones(p))
        upper = pm.Flat("upper", initval=0.0)
        R = pt.stack([pt.stack([diagonal[0], upper]), pt.stack([pt.zeros(()), diagonal[1]])])
        pm.Potential("normal", -0.5 * pt.sum((Q @ R - MEAN) ** 2) / SIGMA**2)
        pm.Potential("jacobian", pt.sum(pt.log(diagonal) * (n - 1 - np.arange(p))))
        if noise:
            table = NOISE * np.random.default_rng(seed).standard_normal((100_000, n * p + p + 1))
            coefficients = pm.Minibatch(table, batch_size=1)[0]
            values = pt.concatenate([free.ravel(), pt.log(diagonal), upper[None]])
            pm.Potential("noise", coefficients @ values)
    return model


# %%
STEP = {"step_size": 0.2, "friction": 0.1, "n_steps": 5}


def sampler_of(name: str):
    """The step of a sampler; called within its model."""
    if name == "oHMC":
        return pst.OrthogonalHMC()
    if name == "oSGHMC":
        return pst.OrthogonalSGHMC(**STEP)
    with warnings.catch_warnings():  # a model without orthonormal variables is what is meant here
        warnings.filterwarnings("ignore", message="OrthogonalSGHMC was given no orthonormal variable")
        return pst.OrthogonalSGHMC(**STEP, scales={"Z": len(MEAN) ** -0.5})  # the mass that Q has


MODELS = {
    "oHMC": {"noise": False},
    "oSGHMC": {"noise": True},
    "SGHMC": {"noise": True, "expanded": True},
}
PAPER = {"oSGHMC": "71.7 / 81.2", "SGHMC": "3.0 / 6.1"}


def run(name: str, draws: int, seed: int) -> np.ndarray:
    """Entries of Q and R, shape (draw, 9), one chain."""
    with build_model(**MODELS[name], seed=seed):
        posterior = pm.sample(
            draws,
            tune=draws // 3,
            chains=1,
            cores=1,
            step=sampler_of(name),
            random_seed=seed,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )["posterior"]
    parts = [posterior[part].values[0] for part in ("Q", "diagonal", "upper")]
    return np.concatenate([part.reshape(draws, -1) for part in parts], axis=1)


def direct_draws(size: int, rng: np.random.Generator) -> np.ndarray:
    """QR factors of normal matrices, in the order of ``run``."""
    M = MEAN + SIGMA * rng.standard_normal((size, *MEAN.shape))
    Q, R = np.linalg.qr(M)
    sign = np.sign(np.diagonal(R, axis1=1, axis2=2))
    Q, R = Q * sign[:, None], R * sign[..., None]
    return np.column_stack([Q.reshape(size, -1), R[:, 0, 0], R[:, 1, 1], R[:, 0, 1]])


# %% Shares of the draws below quantiles of the direct draws: a collapsed chain has none in the tails.
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def compare(draws: np.ndarray, direct: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(direct, LEVELS, axis=0)
    below = (draws[None] < quantiles[:, None]).astype(float)  # (level, draw, coordinate)
    gap = below.mean(axis=1) - LEVELS[:, None]
    error = az.mcse(az.convert_to_dataset({"x": below.transpose(1, 0, 2)[None]}), method="mean")["x"].values
    sizes = az.ess(az.convert_to_dataset({"x": draws[None]}), method="bulk")["x"].values
    spread = draws.std(axis=0) / direct.std(axis=0)
    return {
        "gap": np.abs(gap).max(),
        "z": np.abs(gap / np.maximum(error, 1e-12)).max(),
        "min_ess": sizes.min(),
        "median_ess": np.median(sizes),
        "narrowest": spread.min(),
        "widest": spread.max(),
    }


# %%
def words(name: str) -> str:
    """Label of an axis."""
    return f"entry ({name[1]}, {name[2]}) of {name[0]}"


def plot(found: dict[str, np.ndarray], direct: np.ndarray):
    import matplotlib.pyplot as plt

    styles = {"oHMC": ("C1", "-"), "oSGHMC": ("C2", "--"), "SGHMC": ("C3", ":")}
    pairs = [("Q11", "R12"), ("Q11", "Q22"), ("R11", "R22")]
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
    for axis, names in zip(axes[0], pairs, strict=True):
        x, y = (NAMES.index(name) for name in names)
        density, x_edges, y_edges = np.histogram2d(direct[:, x], direct[:, y], bins=60, density=True)
        density = gaussian_filter(density, 1.5)
        centres = [(edges[1:] + edges[:-1]) / 2 for edges in (x_edges, y_edges)]
        levels = density.max() * np.array([0.03, 0.1, 0.3, 0.6])
        axis.contour(*centres, density.T, levels=levels, colors="C0", linewidths=0.8, zorder=3)
        for name in ("oHMC", "oSGHMC"):
            thin = max(1, len(found[name]) // 1500)
            axis.plot(*found[name][::thin, [x, y]].T, ".", color=styles[name][0], markersize=2, alpha=0.5, label=name)
        axis.set(xlabel=words(names[0]), ylabel=words(names[1]))
    axes[0, 0].legend(markerscale=4, fontsize=8)
    for axis, name in zip(axes[1], ("Q11", "R12", "R22"), strict=True):
        k = NAMES.index(name)
        bins = np.linspace(*np.quantile(direct[:, k], [0.001, 0.999]), 50)
        axis.hist(direct[:, k], bins, density=True, color="C0", alpha=0.3, label="direct draws")
        for sampler, draws in found.items():
            colour, style = styles[sampler]
            axis.hist(draws[:, k], bins, density=True, histtype="step", color=colour, ls=style, lw=1.3, label=sampler)
        axis.set(xlabel=words(name), ylabel="density", yticks=[])
    axes[1, 0].legend(fontsize=8)
    return figure


REMARKS = [
    "The draws do not collapse: their spread is that of direct draws, and their quantiles agree. The matrices are"
    " 3 x 2, because a sampler without an accept step cannot change the determinant of a square matrix. The paper does"
    " not give their mean (here [[1, 2], [2, 1], [1, 1]]) nor its step size, friction and steps per draw (STEP in the"
    " script).",
    "We do not find the paper's poor result for SGHMC on Z: with the same masses and steps it has about as many"
    " effective draws as oSGHMC. But its draws are biased, presumably because a step turns the polar factor of Z far"
    " where Z is small.",
]


def main() -> None:
    options = options_of(__doc__, "noisy_gradients.png").parse_args()
    matplotlib.use("Agg")
    draws = 6000 if options.quick else 30_000
    direct = direct_draws(400_000, np.random.default_rng(options.seed))
    found, rows = {}, []
    for name in ("oHMC", "oSGHMC") if options.quick else MODELS:
        found[name] = run(name, draws, options.seed)
        fit = compare(found[name], direct)
        rows += [
            row(f"{name}: min / median ESS", f"{fit['min_ess']:.0f} / {fit['median_ess']:.0f}", PAPER.get(name, "")),
            row(
                f"{name}: spread by that of direct draws",
                f"{fit['narrowest']:.3f} to {fit['widest']:.3f}",
                "no collapse" if name == "oSGHMC" else "",
                "smallest and largest ratio of standard deviations over the nine coordinates",
            ),
            row(
                f"{name}: largest gap of cumulative shares",
                f"{fit['gap']:.4f}",
                "",
                f"at five quantiles of nine coordinates; |z| <= {fit['z']:.1f}",
            ),
        ]
    finish(
        options,
        plot(found, direct),
        title="2. One mode, noisy gradients",
        data=f"none; one chain of {draws} draws after {draws // 3} of tuning",
        rows=rows,
        remarks=REMARKS,
    )


if __name__ == "__main__":
    main()
