"""Milliseconds of a stochastic-gradient step beside the bare gradient, for an orthogonal network.

784 - 300 - 300 - 10, tanh, orthogonal blocks of 784 x 300 and 300 x 300, batches of 256 images::

    OPENBLAS_NUM_THREADS=1 python benchmarks/stochastic_cost.py
"""

from __future__ import annotations

import time
import warnings

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


def milliseconds(run, repeats: int) -> float:
    """The fastest of five rounds, for each of ``repeats`` calls."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        times.append((time.perf_counter() - start) / repeats * 1e3)
    return min(times)


def main(n_steps: int = 10) -> None:
    model = network()
    warnings.simplefilter("ignore")
    for scheme in ("symmetric", "euler"):
        step = pst.OrthogonalSGHMC(model=model, step_size=1e-4, n_steps=n_steps, scheme=scheme)
        density, sampler = step._density, step._sampler
        flat = density.on_manifold(density.pack(model.initial_point(1)))
        density.draw_batches(np.random.default_rng(1))
        bare = milliseconds(lambda flat=flat, density=density: density(flat), n_steps)
        whole = milliseconds(lambda flat=flat, sampler=sampler: sampler.draw(flat), 1) / n_steps
        print(f"{scheme:9s}  step {whole:6.1f} ms  bare gradient {bare:6.1f} ms  ratio {whole / bare:.2f}")


if __name__ == "__main__":
    main()
