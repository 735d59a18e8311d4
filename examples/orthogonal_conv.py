"""A small convolutional network with orthogonal kernels: optimised, then sampled; one network and an ensemble.

The fourth experiment of the paper is an orthogonal VGG-16 on CIFAR-10, too large for two cores. This is a small
substitute with the same construction: every kernel, as a matrix of filters by their inputs, is orthogonal, and
only the last layer is free. ``python examples/orthogonal_conv.py`` takes the digits of scikit-learn, ``--data mnist``
the images of MNIST pooled to 14 x 14 pixels. A convolution is the product of patches with the kernel.

``--full --data cifar-10-batches-py`` is the paper's experiment: the thirteen convolutions of VGG-16 on CIFAR-10 (its
version for Python), 200 epochs, 24 000 steps. It would take about a week; we have not run it.
"""

# %%
from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from images import DATA_HELP, Images, load_images, pooled, scores, softmax
from matplotlib.figure import Figure
from recording import finish, options_of, row

import pymc_stiefel as pst

BATCH = 128
GAIN = 2**0.5  # a rectifier loses half of what passes


# %%
def load_cifar(folder: Path) -> Images:
    """CIFAR-10 as images of (channels, rows, columns), unrolled."""

    def read(name):
        with open(folder / name, "rb") as file:
            content = pickle.load(file, encoding="bytes")
        return content[b"data"].astype("float32") / 255, np.array(content[b"labels"], dtype="int32")

    parts = [read(f"data_batch_{k}") for k in range(1, 6)]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Images("CIFAR-10, 50 000 + 10 000 images", x, y, *read("test_batch"))


# %%
class Architecture(NamedTuple):
    """Channels of the convolutions, 0 for a pooling, and the (channels, side) of the images."""

    layers: tuple[int, ...]
    image: tuple[int, int]

    def shapes(self) -> list[tuple[int, int]]:
        """(filters, channels) of every kernel."""
        widths = [self.image[0], *(width for width in self.layers if width)]
        return list(zip(widths[1:], widths[:-1], strict=True))

    @property
    def features(self) -> int:
        """Number of inputs of the last layer."""
        return max(self.layers[-2:]) * (self.image[1] // 2 ** self.layers.count(0)) ** 2


VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def windows(channels: int, side: int) -> np.ndarray:
    """Indices of the 3 x 3 windows around all pixels, (channels, 9, side, side) unrolled.

    The index after the last pixel stands for the zeros around an image.
    """
    places = np.arange(channels * side**2).reshape(channels, side, side)
    places = np.pad(places, ((0, 0), (1, 1), (1, 1)), constant_values=channels * side**2)
    return np.stack([places[:, i : i + side, j : j + side] for i in range(3) for j in range(3)], axis=1).ravel()


def quarters(channels: int, side: int) -> np.ndarray:
    """Indices of the 2 x 2 pixels of a pooling, (4, channels, side / 2, side / 2) unrolled."""
    half = side // 2
    places = np.arange(channels * side**2).reshape(channels, side, side)[:, : 2 * half, : 2 * half]
    return places.reshape(channels, half, 2, half, 2).transpose(2, 4, 0, 1, 3).ravel()


def network(x, architecture: Architecture, kernels, biases, last, xp):
    """Logits for images (as rows); a kernel is a matrix of filters by 9 x channels, a convolution its product.

    Between the layers an image is a column, (channels, side, side) unrolled.
    """
    n_images = x.shape[0]
    channels, side = architecture.image
    layers = iter(zip(kernels, biases[:-1], strict=True))
    x = x.T
    for width in architecture.layers:
        if width:
            kernel, bias = next(layers)
            x = xp.concatenate([x, xp.zeros((1, n_images))])[windows(channels, side)]
            x = kernel @ x.reshape((9 * channels, side**2 * n_images)) + bias[:, None]
            x = xp.maximum(x, 0.0).reshape((width * side**2, n_images))
            channels = width
        else:
            x = x[quarters(channels, side)].reshape((4, channels * (side // 2) ** 2, n_images)).mean(axis=0)
            side //= 2
    return x.T @ last + biases[-1]


def build_model(images: Images, architecture: Architecture) -> pm.Model:
    n_images = len(images.x_train)
    with pm.Model() as model:
        x, y = pm.Minibatch(images.x_train, images.y_train, batch_size=BATCH)
        kernels, biases = [], []
        for k, (filters, channels) in enumerate(architecture.shapes()):
            kernel = pst.orthogonal_conv(f"K{k}", filters, channels, 3, gain=GAIN)
            kernels.append(kernel.reshape((filters, 9 * channels)))
            biases.append(pm.Normal(f"b{k}", shape=filters))
        last = pm.Normal("last", shape=(architecture.features, 10))
        biases.append(pm.Normal("b_last", shape=10))
        logits = network(x.astype("float64"), architecture, kernels, biases, last, pt)
        pm.Categorical("y", logit_p=logits, observed=y, total_size=n_images)
    return model


def probabilities(point, architecture: Architecture, x: np.ndarray) -> np.ndarray:
    """Predictions of one network."""
    kernels = []
    for k, (filters, _) in enumerate(architecture.shapes()):
        Q = point[f"K{k}_Q"]
        kernels.append(GAIN * (Q.T if Q.shape[1] == filters else Q))
    biases = [point[f"b{k}"] for k in range(len(kernels))] + [point["b_last"]]
    return softmax(network(x, architecture, kernels, biases, point["last"], np))


# %%
def run(images: Images, architecture: Architecture, seed: int, epochs: int, n_steps: int, step_size: float) -> dict:
    """Scores of the optimum, of single draws and of ensembles of one to ten of them."""
    with build_model(images, architecture) as model:
        scales = {rv.name: 0.1 for rv in model.free_RVs if not rv.name.startswith("K")}
        best = pst.minimize_stochastic(epochs=epochs, scales=scales, random_seed=seed, progressbar=False)
        step = pst.OrthogonalSGHMC(step_size=step_size, n_steps=n_steps, scales=scales)
        idata = pm.sample(
            10, tune=2, chains=1, step=step, initvals=best, random_seed=seed, blas_cores=1,
            compute_convergence_checks=False, progressbar=False,
        )  # fmt: skip
    draws = idata["posterior"].isel(chain=0)
    predictions = np.array([
        probabilities({name: draws[name].values[k] for name in best}, architecture, images.x_test) for k in range(10)
    ])  # fmt: skip
    growing = np.cumsum(predictions, axis=0) / np.arange(1, 11)[:, None, None]
    optimum = probabilities(best, architecture, images.x_test)
    groups = {"optimum": [optimum], "one draw": predictions, "ensemble": growing}
    found = {who: [scores(p, images.y_test) for p in group] for who, group in groups.items()}
    statistics = idata["sample_stats"]
    return found | {
        "temperature": float(statistics["temperature"].mean()),
        "orthogonality error": float(statistics["orthogonality_error"].max()),
    }


def picture(found: dict) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    styles = {"ensemble": ("-", "C0"), "one draw": (".", "C1"), "optimum": ("--", "grey")}
    for axes, name in zip(figure.subplots(1, 2), ("accuracy", "log_score"), strict=True):
        for who, (style, color) in styles.items():
            values = np.broadcast_to([score[name] for score in found[who]], 10)
            axes.plot(range(1, 11), values, style, color=color, label=who)
        axes.set(xlabel="networks", ylabel=f"{name.replace('_', ' ')} on the test set")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return figure


# %%
REMARKS = [
    "This is not the paper's network but a small substitute with the same construction: kernels are orthogonal as "
    "matrices of filters by inputs, and the last layer is free. It has two convolutions of 3 x 3, each followed by "
    "pooling. The paper's numbers are for VGG-16 on CIFAR-10. `--full` selects that network; we have not run it."
]


def main() -> None:
    parser = options_of(__doc__, "orthogonal_conv.png", data=DATA_HELP + "; with --full, a folder with CIFAR-10")
    parser.add_argument("--full", action="store_true", help="VGG-16 on CIFAR-10")
    options = parser.parse_args()
    if options.full:
        images, architecture, work = load_cifar(options.data), Architecture(VGG, (3, 32)), (200, 2000, 1e-3)
    elif options.data:
        images = pooled(load_images(options.data))
        architecture, work = Architecture((8, 0, 16, 0), (1, 14)), (10, 500, 0.01)
    else:
        images, architecture, work = load_images(None), Architecture((8, 0, 16, 0), (1, 8)), (200, 400, 0.03)
    epochs, n_steps, step_size = work
    if options.quick:
        epochs, n_steps = epochs // 2, n_steps // 2
    found = run(images, architecture, options.seed, epochs, n_steps, step_size)
    rows = []
    paper = {"optimum": "92.70 +- 0.05 % (VGG-16, CIFAR-10)", "ensemble": "92.85 +- 0.03 % (VGG-16, CIFAR-10)"}
    for name, unit in (("accuracy", 100), ("calibration_error", 100), ("log_score", 1)):
        for who in ("optimum", "one draw", "ensemble"):
            value = found[who][-1][name] if who == "ensemble" else np.mean([score[name] for score in found[who]])
            ours = f"{100 * value:.2f} %" if unit == 100 else f"{value:.4f}"
            rows.append(row(f"{name.replace('_', ' ')}, {who}", ours, paper.get(who, "") if name == "accuracy" else ""))
    rows.append(row("kinetic temperature", f"{found['temperature']:.3f}", note="1 if all is well"))
    rows.append(row("orthogonality error", f"{found['orthogonality error']:.1e}"))
    title = "4. Orthogonal convolutional network (a small stand-in for VGG-16)"
    finish(options, picture(found), title=title, data=images.name, rows=rows, remarks=REMARKS)


if __name__ == "__main__":
    main()
