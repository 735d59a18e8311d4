"""Optima by stochastic gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine import lbfgs as _lbfgs
from pymc_stiefel.engine.blocks import Metric
from pymc_stiefel.engine.stochastic import StochasticSampler
from pymc_stiefel.engine.stochastic_kernels import EULER, STATISTICS
from pymc_stiefel.optimize._common import Optimum, checked_start, compiled, positive, progress, reader
from pymc_stiefel.steps._sghmc import checked_settings, variable_masses


def minimize_stochastic(
    model: pm.Model | None = None,
    *,
    epochs: int = 20,
    step_size: float | None = None,
    friction: float = 0.1,
    schedule: str | Callable[[float], float] = "cosine",
    steps_per_epoch: int | None = None,
    scales: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    vars: Any = None,
    callback: Callable[[int, float, dict[str, np.ndarray]], Any] | None = None,
    progressbar: bool = True,
    random_seed: int | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Optimum:
    r"""Momentum SGD on the manifold: :class:`OrthogonalSGHMC` with its noise off.

    A step drifts by the Cayley map and then sets
    :math:`r \leftarrow (1 - \alpha) r + \epsilon P_X(\hat\nabla)`: SGD with momentum ``1 - friction`` and learning rate
    :math:`\epsilon^2\,\mathrm{scale}^2 / n` for n x p matrices, :math:`\epsilon^2\,\mathrm{scale}^2` for numbers.
    Jacobians of transforms are left out, as in :func:`find_MAP`.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model in context; with ``pm.Minibatch``, or with its whole data.
    epochs : int, default 20
    step_size : float, optional
        Largest :math:`\epsilon`. Default: chosen such that the first steps turn no matrix by more than about 0.1
        radians.
    friction : float, default 0.1
    schedule : {"cosine", "constant"} or callable
        Factor of the step size, as a function of the progress from 0 to 1.
    steps_per_epoch : int, optional
        Default: as many batches as the data have; 100 where there are no minibatches.
    scales : dict, optional
        As for :class:`OrthogonalSGHMC`.
    callback : callable, optional
        Called after every epoch with its number from 1, its mean loss and the values of the variables, for instance to
        draw a learning curve or to save a checkpoint.
    start, vars, progressbar, random_seed, compile_kwargs
        As for :func:`find_MAP`; ``random_seed`` also draws the batches.

    Returns
    -------
    Optimum
        A dict of constrained values, usable as ``initvals``. ``history`` has the mean loss of every epoch.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> data = np.random.default_rng(0).normal([1.0, 0.0, 0.0], 1.0, size=(1000, 3))
    >>> with pm.Model():
    ...     u = pst.UnitVector("u", n=3)
    ...     rows = pm.Minibatch(data, batch_size=50)
    ...     y = pm.Normal("y", u, 1.0, observed=rows, total_size=(1000, None))
    ...     best = pst.minimize_stochastic(progressbar=False, random_seed=1)
    >>> bool(best["u"][0] > 0.99)
    True
    """
    positive(epochs=epochs, **({} if steps_per_epoch is None else {"steps_per_epoch": steps_per_epoch}))
    for name, value in {"scales": scales, "start": start, "compile_kwargs": compile_kwargs}.items():
        _checks.mapping(name, value)
    _checks.seed("random_seed", random_seed)
    _checks.function("callback", callback)
    _checks.flag("progressbar", progressbar)
    _checks.real("friction", friction, 0)
    if step_size is not None:
        _checks.real("step_size", step_size, 0)
    factor = _schedule(schedule)
    model = model_of(model)
    density, point = compiled(model, vars, start, random_seed, compile_kwargs)
    metric = variable_masses(model, density, scales or {})
    rng = np.random.default_rng(random_seed)
    flat = checked_start(density, point, rng)
    if step_size is None:
        step_size = _first_step_size(density, metric, flat, friction, rng)
    if steps_per_epoch is None:
        bounds = density.batches.bounds
        steps_per_epoch = max((math.ceil(upper / (last - first)) for first, last, upper in bounds), default=100)
    # An epoch is cut in pieces, so that the schedule is smooth.
    pieces = min(steps_per_epoch, 20)
    n_steps = math.ceil(steps_per_epoch / pieces)
    sampler = _descent(
        density, metric, lambda piece: step_size * factor(piece / (pieces * epochs)), friction, n_steps, rng
    )
    values_at = reader(model, density, point)
    history: list[float] = []
    mean_logp = STATISTICS.index("mean_logp")
    with progress("epochs", epochs, progressbar) as update:
        while len(history) < epochs and not sampler.chain.stopped:
            total = 0.0
            for _ in range(pieces):
                flat = sampler.draw(flat)
                density.raise_error()
                total -= sampler.stats[mean_logp] / pieces
                if sampler.chain.stopped:
                    break
            history.append(total)
            update(f"loss {total:.6g}")
            if callback is not None:
                callback(len(history), total, values_at(flat))
    if sampler.chain.stopped:
        warnings.warn(
            f"minimize_stochastic diverged in epoch {len(history)} of {epochs} with step_size={step_size:.3g}; the "
            "last good point is returned. Use a smaller step_size or scales.",
            UserWarning,
            stacklevel=2,
        )
    return values_at(flat)._describe(
        logp=-history[-1],
        gradient_norm=math.nan,
        history=np.array(history),
        n_evaluations=pieces * n_steps * len(history),
        converged=not sampler.chain.stopped,
    )


def _schedule(schedule: str | Callable[[float], float]) -> Callable[[float], float]:
    if callable(schedule):
        return schedule
    known: dict[str, Callable[[float], float]] = {
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
        "constant": lambda progress: 1.0,
    }
    if not isinstance(schedule, str) or schedule not in known:
        raise ValueError(f"schedule must be 'cosine', 'constant' or a function, got schedule={schedule!r}")
    return known[schedule]


def _descent(
    density: ModelDensity,
    metric: Metric,
    step_size: float | Callable[[int], float],
    friction: float,
    n_steps: int,
    rng: np.random.Generator,
) -> StochasticSampler:
    """The sampler with its noise off."""
    settings = checked_settings(
        step_size=step_size, friction=friction, noise_estimate=0.0, n_steps=n_steps, scheme=EULER, temperature=0.0
    )
    return StochasticSampler(density.layout, density.address, settings, metric, rng, density.extra, density.batches)


def _first_step_size(
    density: ModelDensity, metric: Metric, flat: np.ndarray, friction: float, rng: np.random.Generator
) -> float:
    """A step whose kick changes no velocity by more than about 0.1 times the scale per step.

    The density may be flat at the start. So the step is shortened until a hundred steps neither increase the loss nor
    reach points where it is too long. The result is a third shorter, for safety in longer runs.
    """
    step_size, losses = _gentle_step_size(density, metric, flat, rng)
    highest = np.mean(losses) + np.std(losses)
    mean_logp = STATISTICS.index("mean_logp")
    for _ in range(10):
        trial, reached = _descent(density, metric, step_size, friction, 20, rng), flat
        for _ in range(5):
            reached = trial.draw(reached)
            density.raise_error()
            if trial.chain.stopped or -trial.stats[mean_logp] > highest:
                shorter = 0.5 * step_size
                break
        else:
            shorter, _ = _gentle_step_size(density, metric, reached, rng)
        if shorter > 0.8 * step_size:
            break
        step_size = shorter
    return step_size / 1.5


def _gentle_step_size(
    density: ModelDensity, metric: Metric, flat: np.ndarray, rng: np.random.Generator
) -> tuple[float, list[float]]:
    """The same, by the gradients of a few batches at one place; with their losses."""
    squares, losses = np.zeros(density.layout.size), []
    for _ in range(8):
        density.draw_batches(rng)
        value, gradient = density(flat)
        losses.append(-value)
        squares += _lbfgs.Manifold(density.layout).project(flat, gradient) ** 2 / 8
    layout = density.layout
    pulls = [1e-12]
    for m in range(len(layout.n)):
        n, p, first = int(layout.n[m]), int(layout.p[m]), int(layout.offset[m])
        columns = np.sqrt(squares[first : first + n * p].reshape(p, n).sum(axis=1))
        pulls.append(float(metric.c[layout.column[m]] * columns.max()))
    pulls += list(np.sqrt(metric.variance * squares[layout.stiefel :]))
    return math.sqrt(0.1 / max(pulls)), losses
