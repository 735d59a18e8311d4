"""A network of low-rank layers: singular value decomposition against a bottleneck, and how fast each learns.

The sixth experiment of the paper: 784-784-784-10 units with layers of rank 100, 10 and 10, on the first 50 000 training
images of MNIST, tested on the other 10 000: ``python examples/low_rank_mlp.py --data mnist``. ``--pool`` takes images
of 14 x 14 pixels, 196 units and ranks 50 and 10; without ``--data`` it is the digits of scikit-learn, 64 units and
ranks 20 and 10. ``--state FOLDER`` saves each of the two networks when it is done, and goes on from there.
"""

# %%
from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from images import DATA_HELP, Images, load_images, pooled, scores, softmax
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from recording import finish, options_of, row

import pymc_stiefel as pst

PARTS = {"svd": ("U", "s", "V"), "bottleneck": ("A", "B")}
SCALES = dict.fromkeys(("W1_s", "W2_s", "W1_A", "W1_B", "W2_A", "W2_B", "W3", "b1", "b2", "b3"), 0.1)


# %%
def layer(name: str, size: int, rank: int, parametrisation: str) -> list:
    """Factors of a square matrix of low rank: U diag(s) V' with orthonormal U and V, or a product A B'."""
    if parametrisation == "svd":
        U, s, V = pst.low_rank_factors(name, (size, size), rank, singular_values=pm.HalfNormal.dist(3))
        return [U, s, V]
    spread = size**-0.5
    return [pm.Normal(f"{name}_A", sigma=spread, shape=(size, rank)), pm.Normal(f"{name}_B", shape=(size, rank))]


def build_model(images: Images, ranks: tuple[int, int], parametrisation: str) -> pm.Model:
    """Two low-rank layers and a full one, rectifiers between them."""
    n_images, size = images.x_train.shape
    with pm.Model() as model:
        x, y = pm.Minibatch(images.x_train, images.y_train, batch_size=256)
        layers = [layer(f"W{k + 1}", size, rank, parametrisation) for k, rank in enumerate(ranks)]
        layers.append([pm.Normal("W3", shape=(size, 10))])
        biases = [pm.Normal("b1", shape=size), pm.Normal("b2", shape=size), pm.Normal("b3", shape=10)]
        logits = network(x.astype("float64"), layers, biases, pt.maximum)
        pm.Categorical("y", logit_p=logits, observed=y, total_size=n_images)
    return model


def network(x, layers, biases, maximum=np.maximum):
    """Products from left to right: the low-rank matrices are never formed."""
    for factors, b in zip(layers[:-1], biases[:-1], strict=True):
        first, *middle, last = factors
        x = x @ first
        x = maximum((x * middle[0] if middle else x) @ last.T + b, 0.0)
    return x @ layers[-1][0] + biases[-1]


def judge(point, parametrisation: str, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of the network at a point of the model."""
    layers = [[point[f"{name}_{part}"] for part in PARTS[parametrisation]] for name in ("W1", "W2")]
    return scores(softmax(network(x, [*layers, [point["W3"]]], [point[f"b{k}"] for k in (1, 2, 3)])), y)


# %%
def learn(images: Images, ranks: tuple[int, int], parametrisation: str, epochs: int, seed: int) -> dict[str, list]:
    """Loss and accuracies after every epoch."""
    curves: dict[str, list] = {f"{part} {what}": [] for part in ("training", "test") for what in ("loss", "accuracy")}

    def look(epoch, loss, point):
        for part, x, y in (("training", images.x_train, images.y_train), ("test", images.x_test, images.y_test)):
            found = judge(point, parametrisation, x[:10_000], y[:10_000])
            curves[f"{part} loss"].append(-found["log_score"])
            curves[f"{part} accuracy"].append(found["accuracy"])
        print(f"{parametrisation}, epoch {epoch}: test accuracy {100 * found['accuracy']:.2f} %", flush=True)

    rng = np.random.default_rng(seed)
    with build_model(images, ranks, parametrisation) as model:
        start = None
        if parametrisation == "bottleneck":  # at zero, the mode of its prior, a product has no gradient
            start = {rv.name: pm.draw(rv, random_seed=rng) for rv in model.free_RVs if rv.name[-2:] in ("_A", "_B")}
        scales = {name: scale for name, scale in SCALES.items() if name in model}
        pst.minimize_stochastic(
            epochs=epochs, scales=scales, start=start, random_seed=seed, callback=look, progressbar=False
        )
    return curves


def remembered(path: Path | None, work) -> dict[str, list]:
    """What ``work`` finds, or has found before and saved."""
    if path is not None and path.exists():
        return json.loads(path.read_text())
    found = work()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def picture(found: dict[str, dict]) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for color, (name, curves) in zip(("C0", "C1"), found.items(), strict=True):
            for part, style in (("training", ":"), ("test", "-")):
                values = curves[f"{part} {what}"]
                axes.plot(np.arange(1, len(values) + 1), values, style, color=color, label=f"{name}, {part}")
        axes.set(xlabel="epochs", ylabel=what)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    return figure


# %%
REMARKS = [
    "Momentum SGD on the manifold with a cosine schedule and the step size that `minimize_stochastic` chooses, batches "
    "of 256, biases, rectifiers, normal priors on what is free. Training scores are those of the first 10 000 images.",
    "As in the paper the SVD learns faster, here from the third epoch on, and ends ahead, on training and test images; "
    "the bottleneck falls less far behind. The two have step sizes of their own, and other choices may change that.",
]


def main() -> None:
    parser = options_of(__doc__, "low_rank_mlp.png", data=DATA_HELP)
    parser.add_argument("--pool", action="store_true", help="images of a quarter of the size, and a smaller network")
    parser.add_argument("--state", type=Path, help="folder where finished networks are saved, and taken from")
    options = parser.parse_args()
    images, ranks, epochs = load_images(options.data), (100, 10), 20
    if options.data is None:
        ranks, epochs = (20, 10), 200
    else:
        x, y = images.x_train, images.y_train
        name = "MNIST, first 50 000 training images + the other 10 000"
        images = Images(name, x[:50_000], y[:50_000], x[50_000:], y[50_000:])
        if options.pool:
            images, ranks = pooled(images), (50, 10)
    epochs = epochs // 4 if options.quick else epochs
    found = {
        name: remembered(
            options.state and options.state / f"{name}-{options.seed}.json",
            partial(learn, images, ranks, name, epochs, options.seed),
        )
        for name in PARTS
    }
    paper = {"svd": ("99.90 %", "98.25 %"), "bottleneck": ("98.01 %", "97.53 %")} if options.data else {}
    smaller = "Not the paper's size: pooled images and 196-196-196-10 units of ranks 50 and 10, for a shorter run."
    remarks = [smaller, *REMARKS] if options.pool else REMARKS
    rows = []
    for name, curves in found.items():
        for part, published in zip(("training", "test"), paper.get(name, ("", "")), strict=True):
            rows.append(row(f"{part} accuracy, {name}", f"{100 * curves[f'{part} accuracy'][-1]:.2f} %", published))
    finish(options, picture(found), title="6. Low-rank network", data=images.name, rows=rows, remarks=remarks)


if __name__ == "__main__":
    main()
