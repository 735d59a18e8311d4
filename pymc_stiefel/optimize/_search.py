"""Optima on the manifold: of the whole density, or by stochastic gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.initial_point import make_initial_point_fn
from pymc.model import modelcontext
from pymc.util import get_value_vars_from_user_vars
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine import lbfgs as _lbfgs
from pymc_stiefel.engine.blocks import FLIPPED, Metric
from pymc_stiefel.engine.stochastic import EULER, STATISTICS, StochasticSampler
from pymc_stiefel.steps._base import check_values
from pymc_stiefel.steps._sghmc import checked_settings, variable_masses

__all__ = ["Optimum", "find_MAP", "minimize_stochastic"]


class Optimum(dict):
    """Names and values of the variables at an optimum: a dict that ``initvals`` of ``pm.sample`` takes.

    Attributes
    ----------
    logp : float
        Log density there, without Jacobians; for :func:`minimize_stochastic` its mean over the last epoch.
    gradient_norm : float
        Norm of the Riemannian gradient; nan for :func:`minimize_stochastic`.
    history : ndarray
        The loss, minus the log density, for each iteration or epoch.
    n_evaluations : int
        Gradients used.
    converged : bool

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=5)
    ...     best = pst.find_MAP(progressbar=False, random_seed=1)
    >>> list(best), best.converged, bool(best.gradient_norm < 1e-8)
    (['x'], True, True)
    """

    logp: float
    gradient_norm: float
    history: np.ndarray
    n_evaluations: int
    converged: bool

    def _describe(self, **facts) -> Optimum:
        for name, fact in facts.items():
            setattr(self, name, fact)
        return self


def find_MAP(
    model: pm.Model | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    vars=None,
    gtol: float = 1e-8,
    max_iterations: int = 2000,
    progressbar: bool = True,
    random_seed: int | None = None,
    compile_kwargs: dict | None = None,
) -> Optimum:
    r"""Maximum of the posterior density, with orthonormal variables on their manifolds.

    Riemannian L-BFGS with polar retraction, until the norm of the Riemannian gradient
    :math:`P_X(\nabla) = \nabla - X\,\mathrm{sym}(X'\nabla)` is below ``gtol``. As in ``pm.find_MAP`` the Jacobians of
    transforms are left out, so that the optimum is that of the density of the variables themselves. Square matrices
    are optimised on both components of O(n). An iteration costs one or two gradients and O(n p^2).

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model in context.
    start : dict, optional
        Values of variables to start from; orthonormal ones start at a random matrix otherwise.
    vars : list of variables, optional
        Those to optimise (default: all continuous ones); the others stay at ``start``.
    gtol : float, default 1e-8
    max_iterations : int, default 2000
    progressbar : bool, default True
    random_seed : int, optional
        Of the random start.
    compile_kwargs : dict, optional

    Returns
    -------
    Optimum
        A dict of constrained values, usable as ``initvals``, with ``logp``, ``gradient_norm``, ``history``.

    References
    ----------
    Absil, Mahony & Sepulchre (2008), Optimization algorithms on matrix manifolds, doi:10.1515/9781400830244.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     X = pst.MatrixLangevin("X", F=np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    ...     best = pst.find_MAP(progressbar=False)
    >>> np.allclose(best["X"], np.eye(3, 2))
    True
    """
    _positive(gtol=gtol, max_iterations=max_iterations)
    model = modelcontext(model)
    density, point = _compiled(model, vars, start, random_seed, compile_kwargs)
    if len(density.batches.rows):
        raise ValueError("find_MAP needs the whole data, but this model has pm.Minibatch: use minimize_stochastic")
    flat = _checked_start(density, point)

    def objective(q):
        value, gradient = density(q)
        return -value, -gradient

    with _progress("MAP", None, progressbar) as update:

        def run(q):
            return _lbfgs.minimize(
                objective,
                q,
                density.layout,
                gtol=gtol,
                max_iterations=max_iterations,
                report=lambda k, loss, norm: update(f"logp {-loss:.6g}, gradient {norm:.2g}"),
            )

        best = _over_components(objective, density, run(flat), run)
    if not best.converged:
        warnings.warn(
            f"find_MAP stopped after {best.iterations} iterations at a Riemannian gradient of norm "
            f"{best.gradient_norm:.2g}, above gtol={gtol:.2g}.",
            UserWarning,
            stacklevel=2,
        )
    return _reader(model, density, point)(best.q)._describe(
        logp=-best.value,
        gradient_norm=best.gradient_norm,
        history=np.array(best.history),
        n_evaluations=best.evaluations,
        converged=best.converged,
    )


def _over_components(objective, density: ModelDensity, best: _lbfgs.Result, run) -> _lbfgs.Result:
    """No path joins the two components of O(n): try the other one, from the best flip of a column."""
    layout = density.layout
    for m in [m for policy, first, count, *_ in layout.flips if policy == FLIPPED for m in range(first, first + count)]:
        flipped = []
        for k in range(layout.p[m]):
            q = best.q.copy()
            first = layout.offset[m] + k * layout.n[m]
            q[first : first + layout.n[m]] *= -1.0
            flipped.append((objective(q)[0], q))
        other = run(min(flipped, key=lambda pair: pair[0])[1])
        evaluations = best.evaluations + other.evaluations + len(flipped)
        best = other if other.value < best.value - 1e-12 * abs(best.value) else best
        best.evaluations = evaluations
    return best


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
    vars=None,
    callback: Callable[[int, float, dict[str, np.ndarray]], Any] | None = None,
    progressbar: bool = True,
    random_seed: int | None = None,
    compile_kwargs: dict | None = None,
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
        Largest :math:`\epsilon`. By default such that kicks of the first steps turn no matrix by more than about 0.1.
    friction : float, default 0.1
    schedule : {"cosine", "constant"} or callable
        What multiplies the step size, as a function of the progress from 0 to 1.
    steps_per_epoch : int, optional
        Default: as many batches as the data have; 100 where there are no minibatches.
    scales : dict, optional
        As for :class:`OrthogonalSGHMC`.
    callback : callable, optional
        Called after every epoch with its number from 1, its mean loss and the values of the variables, as for a
        learning curve or to save what has been reached.
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
    _positive(epochs=epochs, **({} if steps_per_epoch is None else {"steps_per_epoch": steps_per_epoch}))
    factor = _schedule(schedule)
    model = modelcontext(model)
    density, point = _compiled(model, vars, start, random_seed, compile_kwargs)
    metric = variable_masses(model, density, scales or {})
    rng = np.random.default_rng(random_seed)
    flat = _checked_start(density, point, rng)
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
    values_at = _reader(model, density, point)
    history: list[float] = []
    mean_logp = STATISTICS.index("mean_logp")
    with _progress("epochs", epochs, progressbar) as update:
        while len(history) < epochs and not sampler.chain.stopped:
            total = 0.0
            for _ in range(pieces):
                flat = sampler.draw(flat)
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


# ---------------------------------------------------------------- parts


def _positive(**given) -> None:
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {name}={value}")


def _schedule(schedule) -> Callable[[float], float]:
    if callable(schedule):
        return schedule
    known: dict[str, Callable[[float], float]] = {
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
        "constant": lambda progress: 1.0,
    }
    if schedule not in known:
        raise ValueError(f"schedule must be 'cosine', 'constant' or a function, got schedule={schedule!r}")
    return known[schedule]


def _compiled(model, vars, start, random_seed, compile_kwargs) -> tuple[ModelDensity, dict[str, np.ndarray]]:
    """The density without Jacobians, and the point to start from."""
    values = model.continuous_value_vars if vars is None else get_value_vars_from_user_vars(vars, model)
    check_values(model, values, "the optimiser", needs_manifold=False)
    make_point = make_initial_point_fn(model=model, overrides=None if start is None else dict(start))
    point = make_point(random_seed)
    density = ModelDensity(model, values, point, minibatches=True, jacobian=False, compile_kwargs=compile_kwargs)
    return density, point


def _checked_start(density: ModelDensity, point, rng: np.random.Generator | None = None) -> np.ndarray:
    flat = density.on_manifold(density.pack(point))
    if rng is not None:
        density.draw_batches(rng)
    value, gradient = density(flat)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise ValueError(
            f"the log density is {value} at the start, its gradient "
            f"{'finite' if np.all(np.isfinite(gradient)) else 'not finite'}: give another `start`"
        )
    return flat


def _descent(
    density: ModelDensity, metric: Metric, step_size: float | Callable, friction: float, n_steps: int, rng
) -> StochasticSampler:
    """The sampler with its noise off."""
    settings = checked_settings(
        step_size=step_size, friction=friction, noise_estimate=0.0, n_steps=n_steps, scheme=EULER, noise=False
    )
    return StochasticSampler(density.layout, density.address, settings, metric, rng, density.extra, density.batches)


def _first_step_size(
    density: ModelDensity, metric: Metric, flat: np.ndarray, friction: float, rng: np.random.Generator
) -> float:
    """A step whose kick changes no velocity by more than about 0.1 steps' worth of scale.

    Not at the start alone, which may be flat: steps are tried, and shortened until a hundred of them neither raise the
    loss nor lead to where they are too long. Those taken are shorter by a third: there are more of them.
    """
    step_size, losses = _gentle_step_size(density, metric, flat, rng)
    highest = np.mean(losses) + np.std(losses)
    mean_logp = STATISTICS.index("mean_logp")
    for _ in range(10):
        trial, reached = _descent(density, metric, step_size, friction, 20, rng), flat
        for _ in range(5):
            reached = trial.draw(reached)
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


def _reader(model: pm.Model, density: ModelDensity, point) -> Callable[[np.ndarray], Optimum]:
    """A function that gives the constrained values of all free variables at a flat vector."""
    names = {rv.name: model.rvs_to_values[rv].name for rv in model.free_RVs}
    on_manifold = {model.values_to_rvs[slot.value].name for slot in density.slots if slot.block is not None}
    outputs = [
        variable
        for variable in model.unobserved_value_vars
        if variable.name in names and variable.name not in on_manifold
    ]
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")  # to be called a few times
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=mode, on_unused_input="ignore")

    def read(flat: np.ndarray) -> Optimum:
        values = density.unpack(flat[None], point)[0]
        found = {name: values[value] for name, value in names.items()}
        if outputs:
            found.update(zip((variable.name for variable in outputs), function(values), strict=True))
        return Optimum(found)

    return read


class _progress:
    """A progress bar as a context that gives a function of one text; silent where it is not wanted."""

    def __init__(self, name: str, total: int | None, wanted: bool):
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[text]}"), disable=not wanted)
        self.task = self.bar.add_task(name, total=total, text="")

    def __enter__(self) -> Callable[[str], None]:
        self.bar.start()
        return lambda text: self.bar.update(self.task, advance=1, text=text)

    def __exit__(self, *_) -> None:
        self.bar.stop()
