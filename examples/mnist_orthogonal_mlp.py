"""A network with orthogonal layers on MNIST: optimised, then sampled at a temperature; one network and an ensemble.

The third experiment of the paper, in JAX: 784-300-300-10, all layers but the last orthogonal. ``python
examples/mnist_orthogonal_mlp.py --data mnist --runs 5`` optimises five networks by momentum SGD on the manifold, and
samples the posterior around each by stochastic-gradient HMC. Without ``--data`` it trains a 64-32-32-10 network on the
digits of scikit-learn. The temperature is chosen on a validation set, the last sixth of the training images; the test
set is used only after that. Needs ``pip install "pymc-stiefel[jax]"``.
"""

# %%
from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from images import DATA_HELP, Images, load_images, with_validation
from matplotlib.figure import Figure
from recording import finish, options_of, row
from training import Chain, cosine, cross_entropy, load, orthogonality_error, pass_of, save, squares, transformation_of

import pymc_stiefel as pst

BATCH = 256
GAIN = 2**0.5  # a rectifier loses half of what passes
TEMPERATURES = (0.01, 0.05, 0.2, 1.0)  # while sampling
SEGMENTS = 15  # of a cycle; the last three end with a network for the ensemble


class Settings(NamedTuple):
    hidden: int
    epochs: int  # of optimisation
    learning_step: float  # largest step size of the optimisation
    sampling_step: float  # largest step size of the sampler
    spacing: int  # steps from one network of the ensemble to the next
    cycles: int


# %%
def start(n_pixels: int, hidden: int, seed: int) -> dict:
    shapes = [jnp.zeros((n_pixels, hidden), jnp.float32), jnp.zeros((hidden, hidden), jnp.float32)]
    return {
        "orthogonal": pst.jax.orthonormal_like(shapes, seed),
        "last": jnp.zeros((hidden, 10), jnp.float32),
        "biases": [jnp.zeros(size, jnp.float32) for size in (hidden, hidden, 10)],
    }


def network(params: dict, x):
    """Logits."""
    for W, b in zip(params["orthogonal"], params["biases"][:-1], strict=True):
        x = jax.nn.relu(GAIN * (x @ W) + b)
    return x @ params["last"] + params["biases"][-1]


def loss_of(n_images: int):
    """Minus the log posterior divided by the number of images; free parameters have standard normal priors."""

    def loss(params, x, y):
        return cross_entropy(network(params, x), y) + squares([params["last"], params["biases"]]) / n_images

    return loss


# %%
def optimise(images: Images, settings: Settings, seed: int) -> dict:
    """Momentum SGD on the manifold: the sampler at temperature zero."""
    params = start(images.x_train.shape[1], settings.hidden, seed)
    steps = settings.epochs * (len(images.x_train) // BATCH)
    transformation = transformation_of(params, cosine(settings.learning_step, steps), temperature=0.0)
    epoch = pass_of(loss_of(len(images.x_train)), transformation, BATCH)
    chain = Chain(params, transformation.init(params), jax.random.PRNGKey(seed))
    for k in range(settings.epochs):
        chain, value = epoch(chain, images.x_train, images.y_train)
        print(f"seed {seed}: epoch {k + 1} of {settings.epochs}, loss {value:.4f}", flush=True)
    return chain.params


def sample(images: Images, params: dict, settings: Settings, temperature: float, seed: int) -> list[dict]:
    """Networks of a chain that starts from an optimum; each cycle of the schedule moves away and samples elsewhere."""
    length = SEGMENTS * settings.spacing
    schedule = pst.jax.CyclicalSchedule(settings.sampling_step, length, temperature_after=temperature)
    params = jax.tree.map(jnp.array, params)  # a copy, because a pass reuses the memory of its arguments
    transformation = transformation_of(params, schedule, temperature=schedule.temperature, seed=seed)
    some_steps = pass_of(loss_of(len(images.x_train)), transformation, BATCH)
    chain = Chain(params, transformation.init(params), jax.random.PRNGKey(1000 + seed))
    members = []
    for k in range(settings.cycles * SEGMENTS):
        chain, _ = some_steps(chain, images.x_train, images.y_train, settings.spacing)
        if schedule.is_sampling(k * settings.spacing):
            members.append(jax.tree.map(np.asarray, chain.params))
    return members


def scores(members: list[dict], x, y) -> dict[str, float]:
    found = pst.jax.ensemble(network, members, x, y)
    return {
        "accuracy": found.accuracy,
        "log score": found.log_score,
        "calibration error": found.calibration_error,
        "accuracy of a draw": float(found.member_accuracy.mean()),
        "log score of a draw": float(found.member_log_score.mean()),
    }


def run(images: Images, validation: tuple, settings: Settings, seed: int, temperatures: list, state: Path) -> dict:
    """Scores of the optimum (temperature 0) and of ensembles, on the validation and the test set; kept in a file."""
    path = state / f"{seed}.json"
    found = json.loads(path.read_text()) if path.exists() else {"seconds": 0.0, "error": 0.0}
    for temperature in [0.0, *temperatures]:
        if str(temperature) in found:
            continue
        begin = time.perf_counter()
        optimum = state / f"{seed}.npz"
        if temperature == 0:
            save(optimum, optimise(images, settings, seed))
        params = load(optimum, start(images.x_train.shape[1], settings.hidden, seed))
        members = sample(images, params, settings, temperature, seed) if temperature else [params]
        test = (images.x_test, images.y_test)
        found[str(temperature)] = {"validation": scores(members, *validation), "test": scores(members, *test)}
        found["error"] = max(found["error"], orthogonality_error([member["orthogonal"] for member in members]))
        found["seconds"] += time.perf_counter() - begin
        path.write_text(json.dumps(found, indent=1))
        print(f"seed {seed}, temperature {temperature}: {found[str(temperature)]['validation']}", flush=True)
    return found


def best_temperature(found: dict) -> float:
    """By the log score on the validation set."""
    return max(TEMPERATURES, key=lambda temperature: found[str(temperature)]["validation"]["log score"])


# %%
def table(runs: list[dict], best: float, mnist: bool) -> list[dict]:
    """Means over runs, with their standard deviation where there are several."""
    paper = {"single, accuracy": "97.34 +- 0.08 %", "ensemble, accuracy": "97.87 +- 0.08 %"} if mnist else {}

    def of(temperature, name):
        return np.array([run[str(temperature)]["test"][name] for run in runs])

    def entry(values, name):
        scale, digits, unit = (1, 4, "") if "log" in name else (100, 2, " %")
        spread = f" +- {scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
        return f"{scale * values.mean():.{digits}f}{spread}{unit}"

    rows = [row("temperature", best, note="chosen on the validation set, with seed 1")]
    for name in ("accuracy", "log score", "calibration error"):
        for who, temperature in (("single", 0.0), ("ensemble", best)):
            rows.append(row(f"{who}, {name}", entry(of(temperature, name), name), paper.get(f"{who}, {name}", "")))
        gain = of(best, name) - of(0.0, name)
        better = f"better in {int((gain > 0).sum())} of {len(runs)} runs" if "error" not in name else ""
        rows.append(row(f"ensemble minus single, {name}", entry(gain, name), note=better))
    for name in ("accuracy of a draw", "log score of a draw"):
        rows.append(row(name, entry(of(best, name), name)))
    error = max(run["error"] for run in runs)
    return [*rows, row("orthogonality error", f"{error:.1e}", note="largest entry of |W'W - I|, single precision")]


def picture(found: dict) -> Figure:
    """Scores of ensembles against the temperature, beside those of the network they start from."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("accuracy", "log score"), strict=True):
        for part, color in (("validation", "C0"), ("test", "C1")):
            for what, style in ((name, "o-"), (f"{name} of a draw", ".:")):
                values = [found[str(temperature)][part][what] for temperature in TEMPERATURES]
                axes.plot(TEMPERATURES, values, style, color=color)
            axes.axhline(found["0.0"][part][name], color=color, ls="--", lw=1)
        axes.set(xscale="log", xlabel="temperature", ylabel=name)
    words = [f"{who}, {part}" for part in ("validation", "test") for who in ("ensemble", "one draw", "single network")]
    figure.legend(panels[0].get_lines(), words, loc="outside upper center", ncols=3, frameon=False)
    return figure


# %%
REMARKS = [
    "The network is 784-300-300-10 with rectifiers and biases, in single precision. The first two layers are "
    "orthogonal; the other parameters have standard normal priors. *Single* is the network after eight epochs of "
    "momentum SGD on the manifold; the chain starts there. The chain runs four cycles of 390 steps (two epochs) in "
    "batches of 256. The first four fifths of a cycle take large steps without noise and move to another part of the "
    "posterior. The last fifth samples at the temperature in the table and adds three networks to the ensemble. "
    "*A draw* is one of these twelve networks.",
    "All networks are trained on the first 50 000 training images. Step sizes, epochs, cycles and the temperature were "
    "chosen on the other 10 000, the temperature by its log score. The test set was used only for the numbers of the "
    "table and for the curve, which shows the first seed.",
]


def main() -> None:
    parser = options_of(__doc__, "mnist_orthogonal_mlp.png", data=DATA_HELP)
    parser.add_argument("--runs", type=int, default=1, help="independent runs, with seeds from --seed on")
    parser.add_argument("--state", type=Path, help="folder where runs are saved, and continued from")
    options = parser.parse_args()
    settings = Settings(hidden=300, epochs=8, learning_step=0.03, sampling_step=0.025, spacing=26, cycles=4)
    if options.data is None:
        settings = Settings(hidden=32, epochs=60, learning_step=0.06, sampling_step=0.05, spacing=4, cycles=4)
    elif options.quick:
        settings = settings._replace(epochs=2, spacing=3, cycles=2)
    images, validation = with_validation(load_images(options.data))
    seeds = list(range(options.seed, options.seed + options.runs))
    with tempfile.TemporaryDirectory() as folder:
        state = options.state or Path(folder)
        state.mkdir(parents=True, exist_ok=True)
        first = run(images, validation, settings, seeds[0], list(TEMPERATURES), state)
        best = best_temperature(first)
        runs = [first, *(run(images, validation, settings, seed, [best], state) for seed in seeds[1:])]
    drawn = {"found": first}
    finish(
        options,
        picture(**drawn),
        title="3. Orthogonal network on MNIST",
        data=images.name,
        seeds=seeds,
        seconds=sum(found["seconds"] for found in runs),
        rows=table(runs, best, mnist=options.data is not None),
        remarks=REMARKS,
        drawn=drawn,
    )


if __name__ == "__main__":
    main()
