"""A network's eigenmodel: which proteins interact, and the several answers that the posterior has.

Hoff (2009) models a symmetric 0/1 matrix by y_ij ~ Bernoulli(Phi(c + (U diag(l) U')_ij)) for i > j, with an orthonormal
n x 3 matrix U: nodes with similar rows of U are linked where l_k > 0, and avoid each other where l_k < 0. The posterior
has several modes, told apart by the signs of l. Chains start from eigenvectors of the matrix and at random; each is
named by the mode it ends in. Chains that never leave a mode cannot tell how probable the sign patterns are. Sequential
Monte Carlo can: it estimates the marginal likelihood of the model with given signs. Run
``python examples/eigenmodel.py --data hoff.dat`` with the interactions of 270 proteins of E. coli (Butland et al.
2005), or without data on a simulated network.
"""

# %%
from __future__ import annotations

import warnings
from math import comb

import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from recording import finish, options_of, row
from scipy.special import logsumexp
from scipy.stats import norm
from stein import stein_scores

import pymc_stiefel as pst

RANK = 3


# %%
def simulate(n: int, rng: np.random.Generator) -> np.ndarray:
    """A network with two directions along which nodes attract each other and one along which they avoid each other."""
    U = pst.draws.haar(n, RANK, rng=rng)
    strength = -1.0 + (U * np.array([1.2, 0.9, -0.9]) * n) @ U.T
    upper = np.triu(rng.random((n, n)) < norm.cdf(strength), 1)
    return (upper | upper.T).astype(float)


def read_network(path) -> np.ndarray:
    Y = np.loadtxt(path)
    np.fill_diagonal(Y, 0)  # it means nothing, and is all ones in the proteins' file
    return Y


# %%
def build_model(Y: np.ndarray, positive: int | None = None, reference: dict | None = None) -> pm.Model:
    """The model; with so many positive entries of l, in front, if ``positive`` is given.

    ``reference`` are draws of ``size``, the absolute values of l, and ``c``. Both variables then have laws fitted to
    these draws, and a potential puts their priors back: the posterior is the same, but tempering starts elsewhere.
    """
    n = len(Y)
    off_diagonal = 1.0 - np.eye(n)
    with pm.Model(coords={"node": np.arange(n), "component": np.arange(RANK)}) as model:
        U = pst.StiefelUniform("U", n=n, p=RANK, dims=("node", "component"))
        if positive is None:
            l = pm.Normal("l", 0, np.sqrt(n), dims="component")
            c = pm.Normal("c", 0, 10)
        else:
            signs = np.where(np.arange(RANK) < positive, 1.0, -1.0)
            if reference is None:
                size = pm.HalfNormal("size", np.sqrt(n), dims="component")
                c = pm.Normal("c", 0, 10)
            else:
                centre, spread = log_moments(reference["size"], signs)
                size = pm.LogNormal("size", centre, 2 * spread, dims="component")
                c = pm.Normal("c", reference["c"].mean(), 2 * reference["c"].std())
                prior = pm.logp(pm.HalfNormal.dist(np.sqrt(n)), size).sum() + pm.logp(pm.Normal.dist(0, 10), c)
                pm.Potential("prior", prior)
                pm.Potential("reference", -pm.logp(size, size).sum() - pm.logp(c, c))
            l = pm.Deterministic("l", signs * size, dims="component")
        # Every pair counts twice and is halved: four times as fast as picking the pairs out.
        # log Phi(z) by erfc holds for z > -37.
        strength = c + ((U * l) @ U.T) * off_diagonal
        log_probability = pt.log(0.5 * pt.erfc((1 - 2 * Y) * strength / np.sqrt(2)))
        pm.Potential("links", 0.5 * pt.sum(off_diagonal * log_probability))
    return model


def log_moments(sizes: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the logs; the same for all components with one sign, which may change places."""
    logs = np.log(sizes)
    centre, spread = np.empty(RANK), np.empty(RANK)
    for sign in set(signs):
        centre[signs == sign], spread[signs == sign] = logs[:, signs == sign].mean(), logs[:, signs == sign].std()
    return centre, spread


# %% As the likelihood is tempered in, l jumps from its prior (16, for the proteins) to its posterior (100),
# and U with it. Particles do not follow such a jump, and marginal likelihoods of different chains are 100 nats apart. A
# short chain tells where l and c end up. If tempering starts with l and c there, only U has to be found, and it is
# found gradually. The estimate is right for every reference; a good one makes its error small.
def sign_probabilities(Y: np.ndarray, particles: int, chains: int, cores: int, seed: int) -> dict[str, tuple]:
    """Log of the posterior probability of each sign pattern, with its standard error.

    A pattern with k signs + stands for ``binom(RANK, k)`` orders of the columns, of 2^RANK in all.
    """
    log_weight, error = [], []
    settings = {"random_seed": seed, "progressbar": False, "compute_convergence_checks": False}
    for positive in range(RANK, -1, -1):
        start = eigenvector_start(Y, positive)
        start["size"] = np.abs(start.pop("l"))
        with build_model(Y, positive):
            pilot = pm.sample(300, tune=300, chains=1, initvals=[start], quiet=True, **settings)["posterior"]
        reference = {name: pilot[name].values[0] for name in ("size", "c")}
        with build_model(Y, positive, reference), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*tempered together with the likelihood")  # that is meant
            idata = pm.sample_smc(particles, kernel=pst.ManifoldSMC, chains=chains, cores=cores, **settings)
        evidence = pst.log_marginal_likelihood(idata)
        log_weight.append(evidence.value + np.log(comb(RANK, positive) / 2**RANK))
        error.append(evidence.error)
    total = logsumexp(log_weight)
    patterns = ["+" * positive + "-" * (RANK - positive) for positive in range(RANK, -1, -1)]
    return {signs: (w - total, e) for signs, w, e in zip(patterns, log_weight, error, strict=True)}


# %% Starts: eigenvectors of the residual Y - mean, with 3, 2 or 1 of them from the upper end of the spectrum and the
# others from the lower end, one chain for each; and uniform matrices.
def eigenvector_start(Y: np.ndarray, positive: int) -> dict:
    n = len(Y)
    density = Y[np.tril_indices(n, -1)].mean()
    c = norm.ppf(density)
    residual = Y - density
    np.fill_diagonal(residual, 0)
    values, vectors = np.linalg.eigh(residual / norm.pdf(c))
    kept = [*range(n - positive, n), *range(RANK - positive)]
    return {"U": vectors[:, kept], "l": np.clip(values[kept], -n / 2, n / 2), "c": c}


def starting_points(Y: np.ndarray, random: int, rng: np.random.Generator) -> dict[str, dict]:
    n = len(Y)
    starts = {
        f"eigenvectors {'+' * positive}{'-' * (RANK - positive)}": eigenvector_start(Y, positive)
        for positive in range(RANK, 0, -1)
    }
    c = starts[f"eigenvectors {'+' * RANK}"]["c"]
    for k in range(random):
        starts[f"random {k + 1}"] = {
            "U": pst.draws.haar(n, RANK, rng=rng),
            "l": np.sqrt(n) * rng.standard_normal(RANK),
            "c": c,
        }
    return starts


# %%
def pattern(l: np.ndarray) -> str:
    """Signs of l in most draws of a chain, the positive first: ``++-``."""
    positive = round(float((l > 0).sum(axis=-1).mean()))
    return "+" * positive + "-" * (RANK - positive)


def modes_of(idata, names: list[str]) -> list[dict]:
    """Chains grouped by the sign pattern of l and, within a pattern, by log density; the densest mode first."""
    lp, l = idata["sample_stats"]["lp"].values, idata["posterior"]["l"].values
    modes: list[dict] = []
    for k in np.argsort(-lp.mean(axis=1)):
        here = pattern(l[k])
        for mode in modes:
            spread = np.hypot(lp[k].std(), lp[mode["chains"][0]].std())
            if mode["signs"] == here and abs(lp[k].mean() - lp[mode["chains"][0]].mean()) < 2 * spread:
                mode["chains"].append(k)
                break
        else:
            modes.append({"signs": here, "chains": [k]})
    for mode in modes:
        mode["lp"] = lp[mode["chains"]].mean()
        mode["sd"] = lp[mode["chains"]].std()
        mode["l"] = -np.sort(-l[mode["chains"]], axis=-1).mean(axis=(0, 1))
        mode["starts"] = [names[k] for k in mode["chains"]]
    return modes


# %%
def plot(idata, Y: np.ndarray, modes: list[dict], names: list[str]):
    """Log density of the chains; the network in the order of its embedding; nodes with their uncertainty."""
    import matplotlib.pyplot as plt

    figure, (trace, matrix, plane) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    for number, mode in enumerate(modes):
        for k in mode["chains"]:
            label = f"{mode['signs']}" if k == mode["chains"][0] else None
            trace.plot(idata["sample_stats"]["lp"].values[k], color=f"C{number % 7}", lw=0.7, label=label)
    trace.set(title="chains, by mode", xlabel="draw", ylabel="log density")
    trace.legend(fontsize=8, loc="lower left", ncols=3)
    best = idata["posterior"].isel(chain=modes[0]["chains"])
    aligned = pst.align(best, "U", companions={"l": "permute"})
    l = aligned["l"].mean(("chain", "draw")).values
    order = np.argsort(-l)
    U = aligned["U"].values[..., order].reshape(-1, len(Y), RANK) * np.abs(l[order]) ** 0.5
    mean, sd = U.mean(axis=0), U.std(axis=0)
    by_place = np.argsort(np.arctan2(mean[:, 1], mean[:, 0]))
    matrix.spy(Y[np.ix_(by_place, by_place)], markersize=150 / len(Y), color="black")
    matrix.set(title="links, by angle in the plane", xticks=[], yticks=[])
    for a, b in zip(*np.nonzero(np.triu(Y)), strict=True):
        plane.plot(*mean[[a, b], :2].T, color="grey", lw=0.2, alpha=0.5, zorder=0)
    error = {"fmt": "none", "elinewidth": 0.5, "alpha": 0.5, "ecolor": "C0"}
    plane.errorbar(mean[:, 0], mean[:, 1], sd[:, 1], sd[:, 0], **error)
    dots = plane.scatter(mean[:, 0], mean[:, 1], c=mean[:, 2], s=12, cmap="coolwarm", zorder=2)
    figure.colorbar(dots, ax=plane, label="third column")
    plane.set(title=f"nodes in the mode {modes[0]['signs']}, ± sd", xlabel="first column", ylabel="second column")
    return figure


REMARKS = [
    "Chains are named by the mode they end in: the signs of l, and the log density where one sign pattern has several."
    " The order and signs of the columns are not identified and do not count. The share of chains that end in a mode is"
    " not its probability. The probability of a sign pattern follows from its marginal likelihood, estimated by"
    " sequential Monte Carlo with the signs given; the error of its log is a standard error over chains of particles."
    " Priors are Hoff's: U uniform, l_k normal with variance n, c normal with standard deviation 10.",
]


def main() -> None:
    parser = options_of(__doc__, "eigenmodel.png", data="a symmetric 0/1 matrix as text; default: a simulated network")
    parser.add_argument("--random-starts", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--particles", type=int, default=60, help="of each run of sequential Monte Carlo")
    options = parser.parse_args()
    matplotlib.use("Agg")
    rng = np.random.default_rng(options.seed)
    Y = simulate(40, rng) if options.data is None else read_network(options.data)
    draws = 300
    starts = starting_points(Y, options.random_starts, rng)
    names, model = list(starts), build_model(Y)
    with model:
        idata = pm.sample(
            draws,
            tune=draws,
            chains=len(starts),
            cores=1 if options.quick else options.cores,
            initvals=list(starts.values()),
            random_seed=options.seed,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,  # chains are in different modes
            idata_kwargs={"include_transformed": True},
        )
    modes = modes_of(idata, names)
    best = modes[0]["chains"]
    scores = stein_scores(model, idata["posterior"].isel(chain=best), thin=2)
    rows = [
        row(
            f"mode {k + 1}: signs {mode['signs']}",
            f"log density {mode['lp']:.0f} ± {mode['sd']:.0f}, l = " + " / ".join(f"{v:.0f}" for v in mode["l"]),
            note=f"{len(mode['chains'])} of {len(names)} chains: {', '.join(mode['starts'])}",
        )
        for k, mode in enumerate(modes)
    ]
    particles, chains, cores = (50, 2, 1) if options.quick else (options.particles, 4, options.cores)
    probabilities = sign_probabilities(Y, particles, chains, cores, options.seed)
    rows += [
        row(f"log posterior probability of signs {signs}", f"{value:.1f} ± {error:.1f}")
        for signs, (value, error) in probabilities.items()
    ]
    steps = idata["sample_stats"]["n_steps"].values.mean()
    ess = pst.summary(idata["posterior"].isel(chain=best), "U", kind="angles")
    c = idata["posterior"]["c"].isel(chain=best)
    rows += [
        row("c in the densest mode", f"{float(c.mean()):.2f} ± {float(c.std()):.2f}"),
        row("ESS of the principal angles there", " / ".join(f"{v:.0f}" for v in ess["ess_bulk"])),
        row("leapfrogs a draw", f"{steps:.0f}"),
        row("divergences", int(idata["sample_stats"]["diverging"].sum())),
        row(
            "largest |z| of integrations by parts",
            f"{np.abs(scores).max():.2f}",
            note=f"{len(scores)} identities, variance of z {scores.var():.2f}: examples/stein.py",
        ),
    ]
    links = int(Y.sum() / 2)
    finish(
        options,
        plot(idata, Y, modes, names),
        title="Eigenmodel of a network",
        data=f"{'simulated' if options.data is None else options.data.name}, {len(Y)} nodes, {links} links; "
        f"{len(names)} chains of {draws} draws after {draws} of tuning",
        rows=rows,
        remarks=REMARKS,
    )


if __name__ == "__main__":
    main()
