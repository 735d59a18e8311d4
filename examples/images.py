"""Images for the network examples."""

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
    """Split off the last ``1 / share`` of the training images as a validation set, on which settings are chosen."""
    keep = len(images.x_train) - len(images.x_train) // share
    cut = images._replace(x_train=images.x_train[:keep], y_train=images.y_train[:keep])
    return cut, (images.x_train[keep:], images.y_train[keep:])


def _read(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
