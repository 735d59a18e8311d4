"""Maximum a posteriori on the manifold."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine import lbfgs as _lbfgs
from pymc_stiefel.engine.blocks import FLIPPED
from pymc_stiefel.optimize._common import checked_start, compiled, positive, progress, reader


def find_MAP(
    start: Mapping[str, Any] | None = None,
    vars: Any = None,
    method: str = "L-BFGS",
    return_raw: bool = False,
    include_transformed: bool = False,
    progressbar: bool = True,
    progressbar_theme: Any = None,
    maxeval: int = 5000,
    model: pm.Model | None = None,
    *,
    seed: int | None = None,
    gtol: float = 1e-8,
    compile_kwargs: dict[str, Any] | None = None,
    **others: Any,
) -> Any:
    r"""Maximum of the posterior density, with orthonormal variables on their manifolds.

    Riemannian L-BFGS with polar retraction, until the norm of the Riemannian gradient
    :math:`P_X(\nabla) = \nabla - X\,\mathrm{sym}(X'\nabla)` is below ``gtol``. As in ``pm.find_MAP`` the Jacobians of
    transforms are left out, so that the optimum is that of the density of the variables themselves. Square matrices
    are optimised on both components of O(n). An iteration costs one or two gradients and O(n p^2).

    Parameters
    ----------
    start : dict, optional
        Values of variables to start from; orthonormal ones start at a random matrix otherwise.
    vars : list of variables, optional
        Those to optimise (default: all continuous ones); the others stay at ``start``.
    method : {"L-BFGS"}
        The only method. The argument keeps the order of those of ``pm.find_MAP``.
    return_raw : bool, default False
        Whether to return the record of the optimiser as well.
    include_transformed : bool, default False
        Whether the result includes values of transformed variables; ``initvals`` does not take these.
    progressbar : bool, default True
    progressbar_theme : rich.theme.Theme, optional
    maxeval : int, default 5000
        Evaluations of the gradient after which to stop.
    model : pymc.Model, optional
        Default: the model in context.
    seed : int, optional
        Of the random start.
    gtol : float, default 1e-8
    compile_kwargs : dict, optional
    **others
        ``initvals`` and ``random_seed``, the names of ``start`` and ``seed`` since PyMC 6.4; ``max_iterations`` (now
        ``maxeval``), for one more version.

    Returns
    -------
    Optimum
        A dict of constrained values, usable as ``initvals``, with ``logp``, ``gradient_norm``, ``history``. With
        ``return_raw`` a pair of it and the optimiser's record.

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
    start, model, seed, max_iterations = _renamed(start, model, seed, others)
    positive(maxeval=maxeval, **({} if np.isposinf(max_iterations) else {"max_iterations": max_iterations}))
    _checks.real("gtol", gtol, 0)
    _checks.choice("method", method, ("L-BFGS", "L-BFGS-B"))  # the only method on the manifold
    _checks.mapping("start", start)
    _checks.seed("seed", seed)
    _checks.flag("return_raw", return_raw)
    _checks.flag("progressbar", progressbar)
    _checks.mapping("compile_kwargs", compile_kwargs)
    _checks.flag("include_transformed", include_transformed)
    model = model_of(model)
    density, point = compiled(model, vars, start, seed, compile_kwargs)
    if len(density.batches.rows):
        raise ValueError("find_MAP needs the whole data, but this model has pm.Minibatch: use minimize_stochastic")
    flat = checked_start(density, point)

    def objective(q: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = density(q)
        return -value, -gradient

    with progress("MAP", None, progressbar, progressbar_theme) as update:

        def run(q: np.ndarray) -> _lbfgs.Result:
            return _lbfgs.minimize(
                objective,
                q,
                density.layout,
                gtol=gtol,
                max_evaluations=maxeval,
                max_iterations=max_iterations,
                report=lambda k, loss, norm: update(f"logp {-loss:.6g}, gradient {norm:.2g}"),
            )

        best = _over_components(objective, density, run(flat), run)
    if not best.converged:
        warnings.warn(
            f"find_MAP stopped after {best.iterations} iterations and {best.evaluations} evaluations at a Riemannian "
            f"gradient of norm {best.gradient_norm:.2g}, above gtol={gtol:.2g}.",
            UserWarning,
            stacklevel=2,
        )
    optimum = reader(model, density, point, include_transformed)(best.q)._describe(
        logp=-best.value,
        gradient_norm=best.gradient_norm,
        history=np.array(best.history),
        n_evaluations=best.evaluations,
        converged=best.converged,
    )
    return (optimum, best) if return_raw else optimum


def _renamed(start: Any, model: Any, seed: Any, others: dict[str, Any]) -> tuple[Any, Any, Any, float]:
    """Rename arguments: names of PyMC 6.4 are accepted silently, those of version 0.1 with a warning."""
    if isinstance(start, pm.Model):
        _warn("find_MAP takes `model` by name: `start` comes first, as in pm.find_MAP")
        start, model = None, start
    for new, old, value in (("initvals", "start", start), ("random_seed", "seed", seed)):
        if new in others and value is not None:
            raise TypeError(f"find_MAP got {old} and {new}, which are two names of one argument: drop {old}")
    start, seed = others.pop("initvals", start), others.pop("random_seed", seed)
    max_iterations = float("inf")
    if "max_iterations" in others:
        _warn("find_MAP: instead of `max_iterations` give `maxeval`, as to pm.find_MAP")
        max_iterations = others.pop("max_iterations")
    if others:
        raise TypeError(f"find_MAP got an unexpected keyword argument {next(iter(others))!r}")
    return start, model, seed, max_iterations


def _warn(message: str) -> None:
    warnings.warn(f"{message}. The old form will be an error in version 0.3.", FutureWarning, stacklevel=4)


def _over_components(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    density: ModelDensity,
    best: _lbfgs.Result,
    run: Callable[[np.ndarray], _lbfgs.Result],
) -> _lbfgs.Result:
    """The two components of O(n) are not connected: try the other one, from the best flip of a column."""
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
