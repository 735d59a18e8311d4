"""A mixture of sixteen matrix normals in QR coordinates: does a sampler find all modes, and with the right weights?

The paper's first experiment. M = QR has the density sum_i N(M | M_i, sigma^2 I) / 16 with sigma = 0.3, where the
entries of M_i are 1 or 2; Q is orthonormal and R upper triangular with a positive diagonal. Four samplers draw (Q, R);
the expectations are known exactly. Run ``python examples/qr_mixture.py``.
"""

# %%
from __future__ import annotations

import itertools

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from recording import finish, options_of, row
from scipy.integrate import quad_vec
from scipy.ndimage import gaussian_filter
from scipy.stats import norm

import pymc_stiefel as pst

SIGMA = 0.3
CORNERS = np.array(list(itertools.product([1.0, 2.0], repeat=4))).reshape(16, 2, 2)


def modes(n: int) -> np.ndarray:
    """Sixteen n x 2 matrices of ones and twos: all of them for n = 2, those with a last row of ones for n = 3."""
    return np.concatenate([CORNERS, np.ones((16, n - 2, 2))], axis=1)


# %% The model. The factors of a matrix M with density f have the density f(QR) R_11^(n-1) R_22^(n-2) with respect to
# Haar x Lebesgue. Without this Jacobian, which the paper does not mention, QR would not have the density f.
def build_model(n: int) -> pm.Model:
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=n, p=2)
        diagonal = pm.HalfFlat("diagonal", shape=2, initval=np.ones(2))
        upper = pm.Flat("upper", initval=0.0)
        R = pt.stack([pt.stack([diagonal[0], upper]), pt.stack([pt.zeros(()), diagonal[1]])])
        M = pm.Deterministic("M", Q @ R)
        pm.Potential("mixture", pt.logsumexp(-0.5 * pt.sum((M - modes(n)) ** 2, axis=(1, 2)) / SIGMA**2))
        pm.Potential("jacobian", pt.sum(np.array([n - 1, n - 2]) * pt.log(diagonal)))
    return model


# %% The samplers. O(2) has two components, determinant +1 and -1, that no continuous path connects. The samplers on the
# manifold cross by reflecting a column now and then; for n = 3 this is not needed, but is a shortcut between modes.
# PyMC's HamiltonianMC sees the model through Q = Z (Z'Z)^(-1/2) with a Gaussian Z, which is the paper's baseline.
# Trajectories of the paper's three methods have length 2. HMC gets a step size of 0.1: its trajectories jump where
# det Z = 0, so a part of them is rejected however small the step, and an adapted step would shrink without end.
SAMPLERS = {
    "HMC": lambda: pm.HamiltonianMC(path_length=2.0, step_scale=0.1 * value_size() ** 0.25, adapt_step_size=False),
    "gHMC": lambda: pst.GeodesicHMC(path_length=2.0, reflect=True),
    "oHMC": lambda: pst.OrthogonalHMC(path_length=2.0, reflect=True),
    "StiefelNUTS": lambda: pst.StiefelNUTS(reflect=True),
}
PAPER = {"HMC": ("20.3 / 63.8", 13.9), "gHMC": ("50.2 / 80.4", 21.2), "oHMC": ("103.8 / 139.7", 14.7)}


def value_size() -> int:
    """Number of unconstrained values of the model; PyMC divides ``step_scale`` by its fourth root."""
    return sum(value.size for value in pm.modelcontext(None).initial_point().values())


def run(model: pm.Model, sampler: str, draws: int, seed: int):
    """Draws of one chain after as many of tuning, and processor seconds for all of them.

    Processor time does not depend on what else the machine is doing. It is measured over the draws that are kept,
    which leaves out compilation.
    """
    with model:
        idata = pm.sample(
            draws,
            tune=draws,
            chains=1,
            cores=1,
            step=SAMPLERS[sampler](),
            random_seed=seed,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    return idata["posterior"], 2 * float(idata["sample_stats"]["process_time_diff"].sum())


# %% What is known. For n = 2 the entries of M are independent, each 1 or 2 plus noise: every mode has weight 1/16 and
# the law of Q on O(2) is one integral. For n = 3 the first two rows are as before and the third is 1 plus noise.
def law_of_q(angle: np.ndarray) -> np.ndarray:
    """Density of (angle of the first column, determinant +1 or -1) on O(2), shape (2, len(angle))."""
    along = np.stack([np.cos(angle), np.sin(angle)])
    across = np.stack([-np.sin(angle), np.cos(angle)])
    corners = np.array(list(itertools.product([1.0, 2.0], repeat=2)))

    def first_column(length):  # its density at distance `length` from the origin, in polar coordinates
        gaps = length * along.T[:, None] - corners
        return length * np.exp(-0.5 * np.sum(gaps**2, axis=2) / SIGMA**2).mean(axis=1) / (2 * np.pi * SIGMA**2)

    radial = quad_vec(first_column, 0.0, 6.0)[0]
    positive = norm.cdf(corners @ across / SIGMA).mean(axis=0)  # the second column lies to the left of the first
    return radial * np.stack([positive, 1 - positive])


def quantities(posterior, n: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Numbers of every draw whose means are known, and those means."""
    Q, M = posterior["Q"].values[0], posterior["M"].values[0]
    nearest = np.argmin(np.sum((M[:, None] - modes(n)) ** 2, axis=(2, 3)), axis=1)
    found = {f"mode {k}": (nearest == k).astype(float) for k in range(16)}
    exact = dict.fromkeys(found, 1 / 16)
    for i, j in itertools.product(range(n), range(2)):
        mean, variance = (1.5, 0.25 + SIGMA**2) if i < 2 else (1.0, SIGMA**2)
        found |= {f"M[{i},{j}]": M[:, i, j], f"M[{i},{j}]^2": M[:, i, j] ** 2}
        exact |= {f"M[{i},{j}]": mean, f"M[{i},{j}]^2": mean**2 + variance}
    if n == 2:
        grid = np.linspace(-np.pi, np.pi, 2000, endpoint=False)
        law = law_of_q(grid) * (grid[1] - grid[0])
        rotation = np.linalg.det(Q) > 0
        for name, part, which in (("det +1", rotation, 0), ("det -1", ~rotation, 1)):
            found |= {name: part.astype(float), f"Q[0,0], {name}": Q[:, 0, 0] * part}
            exact |= {name: law[which].sum(), f"Q[0,0], {name}": law[which] @ np.cos(grid)}
    return found, exact


def z_scores(found: dict[str, np.ndarray], exact: dict[str, float]) -> dict[str, float]:
    """z-scores of the means. Shares have a known variance; an estimate would be too small for rarely visited modes."""
    data = az.convert_to_dataset({name: values[None] for name, values in found.items()})
    error, size = az.mcse(data, method="mean"), az.ess(data, method="mean")
    scores = {}
    for name, values in found.items():
        share = exact[name] if set(np.unique(values)) <= {0.0, 1.0} else 0.0
        known = np.sqrt(share * (1 - share) / float(size[name]))
        scores[name] = (values.mean() - exact[name]) / max(float(error[name]), known, 1e-12)
    return scores


def coordinates(posterior) -> np.ndarray:
    """Entries of Q and of R, shape (draw, k)."""
    parts = [posterior[name].values[0] for name in ("Q", "diagonal", "upper")]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def effective_sizes(posterior) -> np.ndarray:
    x = coordinates(posterior)[None]
    return az.ess(az.convert_to_dataset({"x": x}), method="bulk")["x"].values


# %%
def picture(draws: int = 10_000, seed: int = 1, posterior=None):
    """Draws of (Q, R) for n = 2 over the density of direct draws, and the law of Q on the two circles of O(2).

    Without ``posterior``, oHMC draws it again from the seed.
    """
    import matplotlib.pyplot as plt

    if posterior is None:
        posterior, _ = run(build_model(2), "oHMC", draws, seed)
    rng = np.random.default_rng(seed)
    direct = CORNERS[rng.integers(16, size=400_000)] + SIGMA * rng.standard_normal((400_000, 2, 2))
    length = np.linalg.norm(direct[:, :, 0], axis=1)
    true_angle = np.arctan2(direct[:, 1, 0], direct[:, 0, 0])
    true_upper = np.sum(direct[:, :, 0] * direct[:, :, 1], axis=1) / length
    Q = posterior["Q"].values[0]
    angle, upper = np.arctan2(Q[:, 1, 0], Q[:, 0, 0]), posterior["upper"].values[0]
    diagonal, M = posterior["diagonal"].values[0], posterior["M"].values[0]
    pairs = [
        ("angle of Q", "entry (1, 2) of R", angle, upper, true_angle, true_upper),
        ("entry (1, 1) of R", "entry (1, 2) of R", diagonal[:, 0], upper, length, true_upper),
        ("entry (1, 1) of QR", "entry (2, 2) of QR", M[:, 0, 0], M[:, 1, 1], direct[:, 0, 0], direct[:, 1, 1]),
    ]
    figure, axes = plt.subplots(2, 2, figsize=(8, 6.4), layout="constrained")
    for axis, (x_name, y_name, x, y, true_x, true_y) in zip(axes.flat, pairs, strict=False):
        density, x_edges, y_edges = np.histogram2d(true_x, true_y, bins=80, density=True)
        density = gaussian_filter(density, 1.5)
        centres = [(edges[1:] + edges[:-1]) / 2 for edges in (x_edges, y_edges)]
        levels = np.max(density) * np.array([0.03, 0.1, 0.25, 0.5, 0.75])
        axis.contour(*centres, density.T, levels=levels, colors="C0", linewidths=0.8)
        axis.plot(x[::10], y[::10], ".", color="C1", markersize=2, alpha=0.6)
        axis.set(xlabel=x_name, ylabel=y_name)
        axis.set(xlim=np.quantile(true_x, [1e-4, 1 - 1e-4]), ylim=np.quantile(true_y, [1e-4, 1 - 1e-4]))
    axis, grid, bins = axes[1, 1], np.linspace(-0.1, 1.67, 400), np.linspace(-0.1, 1.67, 60)
    for sign, law, colour in zip((1, -1), law_of_q(grid), ("C3", "C4"), strict=True):
        kept = angle[np.sign(np.linalg.det(Q)) == sign]
        weights = np.full(len(kept), 1 / (len(Q) * (bins[1] - bins[0])))
        axis.hist(kept, bins, weights=weights, color=colour, alpha=0.35, label=f"draws, det Q = {sign:+d}")
        axis.plot(grid, law, color=colour, label="quadrature")
    axis.set(xlabel="angle of Q", ylabel="density", ylim=(0, 1.25))
    axis.legend(fontsize=8, loc="upper center", ncols=2)
    return figure


REMARKS = [
    "Draws are compared with exact values: the shares of the sixteen modes (1/16 each), the first two moments of"
    " M, and for n = 2 the distribution of Q on the two circles of O(2), by quadrature. The lower right panel shows the"
    " latter; the other panels show every tenth draw of oHMC over contours of direct draws. The note in the row"
    " *modes covered* is the largest |z| of all these comparisons.",
    "There are three differences from the paper. The density includes the Jacobian R_11^(n-1) R_22^(n-2) of the QR"
    " factorisation, which the paper's formula omits. R has a positive diagonal. Columns of Q are reflected now and"
    " then; otherwise a chain on O(2) would keep its determinant and never visit half of the distribution. For n = 3"
    " there are 64 matrices of ones and twos. The paper does not say which sixteen it uses; we use those whose last row"
    " is (1, 1). The paper's table does not say to which n it belongs.",
    "The paper gives neither the step size nor the length of its trajectories. Its effective sample sizes and ours"
    " (rank-normalised bulk ESS of the entries of Q and R) are therefore not for the same settings. On O(2) the order"
    " is the paper's: HMC on the expansion, gHMC, oHMC. On St(3, 2), which is connected, HMC has as many effective"
    " draws as gHMC and oHMC, but each costs more. gHMC uses the same step size adaptation as oHMC, and its matrix"
    " exponentials did not fail in any of our runs. PyMC's HamiltonianMC is not compiled as a whole, so its time says"
    " little about the method; see the page on benchmarks for timings.",
]


def main() -> None:
    options = options_of(__doc__, "qr_mixture.png").parse_args()
    matplotlib.use("Agg")
    draws = 4000 if options.quick else 10_000
    rows, shown = [], None
    for n in (2,) if options.quick else (2, 3):
        model = build_model(n)
        for sampler in SAMPLERS:
            if options.quick and sampler == "HMC":  # a minute on its own
                continue
            posterior, seconds = run(model, sampler, draws, options.seed)
            found, exact = quantities(posterior, n)
            sizes, scores = effective_sizes(posterior), z_scores(found, exact)
            worst = max(scores, key=lambda name: abs(scores[name]))
            covered = sum(found[f"mode {k}"].any() for k in range(16))
            ess, paper_seconds = PAPER.get(sampler, ("", "")) if n == 2 else ("", "")
            label = f"{n} x 2, {sampler}"
            rows += [
                row(f"{label}: modes covered", f"{covered} of 16", "all", f"|z| <= {abs(scores[worst]):.1f} ({worst})"),
                row(f"{label}: min / median ESS", f"{sizes.min():.0f} / {np.median(sizes):.0f}", ess),
                row(f"{label}: processor seconds", f"{seconds:.1f}", paper_seconds),
            ]
            if n == 2 and sampler == "oHMC":
                shown = posterior
    finish(
        options,
        picture(draws, options.seed, shown),
        title="1. Mixture of sixteen modes in QR coordinates",
        data=f"none; one chain of {draws} draws after {draws} of tuning",
        rows=rows,
        remarks=REMARKS,
    )


if __name__ == "__main__":
    main()
