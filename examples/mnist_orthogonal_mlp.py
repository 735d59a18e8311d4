"""A network with orthogonal layers on MNIST: optimised, then sampled with minibatches; one network and an ensemble.

The third experiment of the paper: 784-300-300-10, all layers but the last orthogonal. ``python
examples/mnist_orthogonal_mlp.py --data mnist`` optimises for 50 epochs, then makes 25 000 steps of stochastic-gradient
HMC. ``--pool`` takes images of 14 x 14 pixels and 196-100-100-10 units, a twentieth of the work; without ``--data`` it
is 64-32-32-10 and the digits that scikit-learn ships. ``--state FOLDER`` saves what is done after every 10 epochs and
5000 steps: the same command continues from there.
"""

# %%
from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from images import DATA_HELP, Images, load_images, pooled, scores, softmax
from matplotlib.figure import Figure
from recording import finish, options_of, row

import pymc_stiefel as pst

REMARKS = [
    "784-300-300-10 with rectifiers and biases, the first two layers orthogonal, standard normal priors on the rest; "
    "50 epochs of momentum SGD on the manifold, then 25 000 steps of which 5000 are discarded, every 1000th network "
    "in the ensemble. *One draw* is the mean over the networks of the ensemble.",
    "Our optimum is better than the paper's single network, and than the ensemble. The ensemble gains over one "
    "draw what it gains in the paper; but the draws are less accurate than the mode of the posterior, and still "
    "move away from it at the end of the run: 25 000 steps do not reach equilibrium.",
]
BATCH = 256
STATISTICS = ("temperature", "orthogonality_error")
SCALES = dict.fromkeys(("W3", "b1", "b2", "b3"), 0.1)  # they vary less than a matrix turns


# %%
def build_model(images: Images, hidden: int) -> pm.Model:
    """Two orthogonal layers, a free one, rectifiers between them, standard normal priors on what is free."""
    n_images, n_pixels = images.x_train.shape
    with pm.Model() as model:
        x, y = pm.Minibatch(images.x_train, images.y_train, batch_size=BATCH)
        weights = [pst.orthogonal_dense("W1", n_pixels, hidden), pst.orthogonal_dense("W2", hidden, hidden)]
        weights.append(pm.Normal("W3", shape=(hidden, 10)))
        biases = [pm.Normal(f"b{k}", shape=size) for k, size in [(1, hidden), (2, hidden), (3, 10)]]
        logits = network(x.astype("float64"), weights, biases, pt.maximum)
        pm.Categorical("y", logit_p=logits, observed=y, total_size=n_images)
    return model


def network(x, weights, biases, maximum=np.maximum):
    for W, b in zip(weights[:-1], biases[:-1], strict=True):
        x = maximum(x @ W + b, 0.0)
    return x @ weights[-1] + biases[-1]


def probabilities(chain, k: int, x: np.ndarray) -> np.ndarray:
    """Predictions of the k-th network of a chain."""
    weights, biases = ([chain[name][k] for name in names] for names in (("W1_Q", "W2_Q", "W3"), ("b1", "b2", "b3")))
    return softmax(network(x, weights, biases))


# %%
class Settings(NamedTuple):
    hidden: int
    epochs: int  # of optimisation
    draws: int  # networks kept, burn-in included
    n_steps: int  # from one to the next
    learning_step: float  # largest step size of the optimisation
    step_size: float  # of the sampler


def run(images: Images, seed: int, settings: Settings, state: Path | None) -> dict[str, np.ndarray]:
    """The optimum and every ``n_steps``-th network of the chain, stacked; temperatures, errors, seconds it took."""
    chain = {"epochs": np.zeros(1, dtype=int), "seconds": np.zeros(())}
    if state and state.exists():
        chain = dict(np.load(state))
    start, before = time.perf_counter(), chain["seconds"]
    with build_model(images, settings.hidden) as model:
        names = [rv.name for rv in model.free_RVs]

        def last():
            return {name: chain[name][-1] for name in names} if "W3" in chain else None

        while (done := int(chain["epochs"][-1])) < settings.epochs:
            chain = {name: np.asarray(value)[None] for name, value in optimise(done, last(), seed, settings).items()}
            chain |= {name: np.zeros(0) for name in STATISTICS} | {"seconds": before + time.perf_counter() - start}
            save(state, chain)
        step = pst.OrthogonalSGHMC(step_size=settings.step_size, n_steps=settings.n_steps, scales=SCALES)
        while (done := len(chain["W3"])) <= settings.draws:
            idata = pm.sample(
                min(5, settings.draws + 1 - done), tune=0, chains=1, step=step, initvals=last(),
                random_seed=1000 * seed + done, blas_cores=1, compute_convergence_checks=False, progressbar=False,
            )  # fmt: skip
            drawn = {**idata["posterior"].data_vars, **idata["sample_stats"].data_vars}
            drawn = {name: drawn[name].values[0] for name in [*names, *STATISTICS]}
            chain |= {name: np.concatenate([chain[name], new]) for name, new in drawn.items()}
            chain["seconds"] = before + time.perf_counter() - start
            save(state, chain)
            print(f"seed {seed}: {len(chain['W3']) - 1} of {settings.draws} draws", flush=True)
    return chain


def optimise(done: int, start, seed: int, settings: Settings) -> dict:
    """Ten epochs more, of a cosine schedule that spans them all."""
    epochs = min(10, settings.epochs - done)
    found = pst.minimize_stochastic(
        epochs=epochs, step_size=settings.learning_step, start=start, scales=SCALES, random_seed=1000 * seed + done,
        schedule=lambda progress: 0.5 + 0.5 * np.cos(np.pi * (done + progress * epochs) / settings.epochs),
    )  # fmt: skip
    print(f"seed {seed}: {done + epochs} of {settings.epochs} epochs, loss {found.history[-1]:.0f}", flush=True)
    return {**found, "epochs": done + epochs}


def save(state: Path | None, chain: dict[str, np.ndarray]) -> None:
    if state is not None:
        state.parent.mkdir(parents=True, exist_ok=True)
        np.savez(state, **chain)


# %%
def judge(chain: dict[str, np.ndarray], images: Images, burn: int) -> dict[str, np.ndarray]:
    """Accuracy, calibration error and log score of the optimum, of single draws and of growing ensembles of them."""
    predictions = [probabilities(chain, k, images.x_test) for k in [0, *range(burn + 1, len(chain["W3"]))]]
    optimum, draws = predictions[0], np.array(predictions[1:])
    growing = np.cumsum(draws, axis=0) / np.arange(1, len(draws) + 1)[:, None, None]
    found = {"optimum": [optimum], "one draw": draws, "ensemble": growing}
    return {
        f"{name}, {who}": np.array([scores(p, images.y_test)[name] for p in group])
        for who, group in found.items()
        for name in ("accuracy", "calibration_error", "log_score")
    }


def table(judged: list[dict], chains: list[dict], burn: int, mnist: bool) -> list[dict]:
    """Means over runs, with their standard deviation where there are several."""
    paper = {
        "accuracy, optimum": "97.26 %", "accuracy, one draw": "97.34 +- 0.08 %", "accuracy, ensemble": "97.87 +- 0.08 %"
    } if mnist else {}  # fmt: skip
    rows = []
    for name in judged[0]:
        values = np.array([run[name][-1] if "ensemble" in name else run[name].mean() for run in judged])
        scale, unit = (1, "") if "log" in name else (100, " %")
        digits = 2 if unit else 4
        spread = f" +- {scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
        ours = f"{scale * values.mean():.{digits}f}{spread}{unit}"
        rows.append(row(name.replace("_", " "), ours, paper.get(name, "")))
    temperature = np.mean([chain["temperature"][burn:].mean() for chain in chains])
    error = max(chain["orthogonality_error"].max() for chain in chains)
    rows.append(row("kinetic temperature", f"{temperature:.3f}", note="1 if all is well"))
    rows.append(row("orthogonality error", f"{error:.1e}", note="largest entry of |W'W - I|"))
    return rows


def picture(judged: list[dict]) -> Figure:
    """Scores of ensembles as networks are added, beside those of the optimum and of single draws."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("accuracy", "log_score"), strict=True):
        for k, run in enumerate(judged):
            count = np.arange(1, len(run[f"{name}, ensemble"]) + 1)
            axes.plot(count, run[f"{name}, ensemble"], color="C0", label="ensemble" if k == 0 else None)
            axes.plot(count, run[f"{name}, one draw"], ".", color="C1", label="one draw" if k == 0 else None)
            axes.axhline(run[f"{name}, optimum"][0], color="grey", ls="--", label="optimum" if k == 0 else None)
        axes.set(xlabel="networks", ylabel=f"{name.replace('_', ' ')} on the test set")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


# %%
def main() -> None:
    parser = options_of(__doc__, "mnist_orthogonal_mlp.png", data=DATA_HELP)
    parser.add_argument("--runs", type=int, default=1, help="independent runs, with seeds from --seed on")
    parser.add_argument("--pool", action="store_true", help="images of a quarter of the size, and a smaller network")
    parser.add_argument("--state", type=Path, help="folder where runs are saved, and continued from")
    options = parser.parse_args()
    images = load_images(options.data)
    settings = Settings(hidden=300, epochs=50, draws=25, n_steps=1000, learning_step=0.03, step_size=0.003)
    if options.data is None:
        settings = settings._replace(hidden=32, epochs=200, learning_step=0.08, step_size=0.02)
    elif options.pool:
        images, settings = pooled(images), settings._replace(hidden=100)
    if options.quick:
        settings = settings._replace(epochs=settings.epochs // 2, n_steps=settings.n_steps // 5)
    burn = settings.draws // 5
    seeds = list(range(options.seed, options.seed + options.runs))
    chains = [run(images, seed, settings, options.state and options.state / f"{seed}.npz") for seed in seeds]
    judged = [judge(chain, images, burn) for chain in chains]
    finish(
        options,
        picture(judged),
        title="3. Orthogonal network on MNIST",
        data=images.name,
        seeds=seeds,
        seconds=sum(float(chain["seconds"]) for chain in chains),
        rows=table(judged, chains, burn, mnist=options.data is not None),
        remarks=REMARKS,
    )


if __name__ == "__main__":
    main()
