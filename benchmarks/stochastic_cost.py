"""Milliseconds of a stochastic-gradient step beside the bare gradient, for an orthogonal network.

784 - 300 - 300 - 10, tanh, orthogonal blocks of 784 x 300 and 300 x 300, batches of 256 images::

    OPENBLAS_NUM_THREADS=1 python benchmarks/stochastic_cost.py

The table goes to ``stochastic_cost.json`` beside this file.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst


def network(images: int = 4096, batch_size: int = 256) -> pm.Model:
    rng = np.random.default_rng(0)
    pixels, labels = rng.standard_normal((images, 784)), rng.integers(10, size=images).astype("int32")
    with pm.Model() as model:
        x, y = pm.Minibatch(pixels, labels, batch_size=batch_size)
        first = pst.StiefelUniform("first", n=784, p=300)
        second = pst.StiefelUniform("second", n=300, p=300)
        last = pm.Normal("last", 0, 1, shape=(300, 10))
        scale = pm.HalfNormal("scale", 1, shape=2)
        hidden = pt.tanh(scale[1] * (pt.tanh(scale[0] * (x @ first)) @ second))
        pm.Categorical("y", logit_p=hidden @ last, observed=y, total_size=images)
    return model


def milliseconds(run) -> float:
    """Of the processor, for one call."""
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


def measure(scheme: str, rounds: int = 100) -> dict:
    """Medians over many rounds in which gradient and step take turns, so that a busy machine treats both alike."""
    model = network()
    step = pst.OrthogonalSGHMC(model=model, step_size=1e-4, scheme=scheme)
    density, sampler = step._density, step._sampler
    flat = density.on_manifold(density.pack(model.initial_point(1)))
    density.draw_batches(np.random.default_rng(1))
    flat = sampler.draw(flat)  # a view of the state: draws continue where the last one ended
    times = np.array(
        [[milliseconds(lambda: density(flat)), milliseconds(lambda: sampler.draw(flat))] for _ in range(rounds)]
    )
    gradient, whole = np.median(times, axis=0)
    return {"scheme": scheme, "gradient": gradient, "step": whole, "ratio": whole / gradient}


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    for scheme in ("symmetric", "euler"):
        rows.append(measure(scheme))
        row = rows[-1]
        print(f"{scheme:9s}  step {row['step']:6.1f} ms  gradient {row['gradient']:6.1f} ms  ratio {row['ratio']:.2f}")
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
