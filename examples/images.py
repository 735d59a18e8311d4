"""Images of digits for the network examples, and scores of their predictions."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

DATA_HELP = "folder with the four gzipped files of MNIST; scikit-learn's 8 x 8 digits otherwise"


class Images(NamedTuple):
    """Images as rows of numbers from 0 to 1, and the digits they show."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load_images(folder: Path | None) -> Images:
    """MNIST from a folder, or scikit-learn's digits, of which the last 397 (of other writers) are the test set."""
    if folder is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x, y = x.astype("float32") / 16, y.astype("int32")
        return Images("digits of scikit-learn, 1400 + 397 images", x[:1400], y[:1400], x[1400:], y[1400:])
    parts = []
    for part in ("train", "t10k"):
        pixels = _read(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784)
        parts += [pixels.astype("float32") / 255, _read(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")]
    return Images("MNIST, 60 000 + 10 000 images", *parts)


def with_validation(images: Images, share: int = 6) -> tuple[Images, tuple[np.ndarray, np.ndarray]]:
    """Split off the last sixth of the training images as a validation set, on which settings are chosen."""
    keep = len(images.x_train) - len(images.x_train) // share
    cut = images._replace(x_train=images.x_train[:keep], y_train=images.y_train[:keep])
    return cut, (images.x_train[keep:], images.y_train[keep:])


def pooled(images: Images, side: int = 28) -> Images:
    """Means of 2 x 2 pixels: images of a quarter of the size."""

    def pool(x):
        return x.reshape(-1, side // 2, 2, side // 2, 2).mean(axis=(2, 4)).reshape(len(x), -1)

    name = f"{images.name}, pooled to {side // 2} x {side // 2} pixels"
    return images._replace(name=name, x_train=pool(images.x_train), x_test=pool(images.x_test))


def _read(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def scores(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> dict[str, float]:
    """Accuracy, expected calibration error and mean log score of predicted probabilities (images x classes).

    The calibration error is the mean difference of confidence and accuracy over images in bins of equal confidence.
    """
    right = probabilities.argmax(axis=1) == labels
    confidence = probabilities.max(axis=1)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(np.sum(confidence[which == k] - right[which == k])) for k in range(bins)]
    truth = probabilities[np.arange(len(labels)), labels]
    return {
        "accuracy": float(right.mean()),
        "calibration_error": float(np.sum(gaps) / len(labels)),
        "log_score": float(np.mean(np.log(np.maximum(truth, 1e-300)))),
    }
