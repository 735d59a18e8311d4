"""Starting points of chains by a thorough search, and detection of chains far below the best known mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.compile._density import model_density
from pymc_stiefel.engine import lbfgs
from pymc_stiefel.engine.adaptation.search import ITERATIONS, TOLERANCE
from pymc_stiefel.engine.blocks import NEVER, Layout
from pymc_stiefel.optimize._common import Optimum, positive, reader

__all__ = ["TrappedChain", "initial_points", "trapped"]

LONG = 150
"""Iterations of L-BFGS on all variables."""

SWEEPS = 8
"""Rounds of sign changes and L-BFGS at most."""

APART = 10.0
"""An optimum that is lower by this many nats counts as another, worse one."""


def initial_points(
    model: pm.Model | None = None,
    chains: int = 4,
    *,
    tries: int = 8,
    agree: int = 3,
    keep: str = "matrices",
    random_seed: int | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> list[Optimum]:
    """Starting points of chains by a thorough search, for models whose chains end up in different modes.

    A search begins at a random start of the model. It runs L-BFGS over the orthonormal matrices with all other
    variables fixed, then over all variables, and alternates with sign flips of columns (in single matrices and along
    batches) that increase the density. Each chain gets the best of up to ``tries`` searches of its own, fewer if
    ``agree`` of them end at the same best point. If the best point of all chains is higher by more than 10 nats, the
    chain gets that one. The height of a mode is not its probability: if modes differ little in height, sample from
    several starts.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model in context.
    chains : int, default 4
        Number of starts.
    tries, agree : int
        Searches for each chain at most, and how many of them have to agree to end earlier.
    keep : {"matrices", "all"}
        Which values to take from the optimum. With "matrices" all other variables keep the model's start, because the
        optimum of scales is often far from their typical values.
    random_seed : int, optional
    compile_kwargs : dict, optional

    Returns
    -------
    list of Optimum
        For ``initvals`` of ``pm.sample``. ``logp`` is the sampler's log density at the optimum, with Jacobians;
        ``history`` has those of all searches for this chain, ``n_evaluations`` the gradients they took.

    See Also
    --------
    find_MAP : one optimum, to high precision.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     x = pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=50)
    ...     starts = pst.initial_points(chains=2, random_seed=1)
    ...     idata = pm.sample(20, tune=20, chains=2, cores=1, initvals=starts, progressbar=False)
    >>> bool(starts[0]["x"][2] > 0.99), len(starts)
    (True, 2)
    """
    positive(chains=chains, tries=tries, agree=agree)
    _checks.choice("keep", keep, ("matrices", "all"))
    _checks.seed("random_seed", random_seed)
    _checks.mapping("compile_kwargs", compile_kwargs)
    search = _Searcher(model_of(model), compile_kwargs)
    found = [_best_of(search, rng, tries, agree) for rng in np.random.default_rng(random_seed).spawn(chains)]
    top = max(found, key=lambda one: one["logp"])
    starts = []
    for own in found:
        best = own if own["logp"] > top["logp"] - APART else top
        flat, matrices = best["flat"], search.density.layout.stiefel
        if keep == "matrices":
            mixed = np.concatenate([flat[:matrices], best["start"][matrices:]])
            flat = mixed if np.isfinite(search.density(mixed)[0]) else flat
        starts.append(
            search.read(flat)._describe(
                logp=best["logp"],
                gradient_norm=best["gradient_norm"],
                history=np.array(own["logps"]),
                n_evaluations=own["evaluations"],
                converged=True,
            )
        )
    return starts


def _best_of(search: _Searcher, rng: np.random.Generator, tries: int, agree: int) -> dict[str, Any]:
    best: dict[str, Any] = {"logp": -np.inf}
    logps: list[float] = []
    before = search.evaluations
    while len(logps) < tries and sum(logp > best["logp"] - 1.0 for logp in logps) < agree:
        start = search.start(rng)
        result = search.run(start, rng)
        logps.append(-result.value)
        if -result.value > best["logp"]:
            best = {
                "flat": result.q,
                "start": start,
                "logp": -result.value,
                "gradient_norm": result.gradient_norm,
            }
    return best | {"logps": logps, "evaluations": search.evaluations - before}


class TrappedChain(NamedTuple):
    """A chain that ended far below the best known mode.

    Attributes
    ----------
    chain : int
    below : float
        Nats by which the optimum nearest to its last draw is below the best known one.
    apart : float
        Nats by which its mean log density is below that of the best chain.

    Examples
    --------
    >>> from pymc_stiefel.optimize import TrappedChain
    >>> TrappedChain(chain=2, below=120.0, apart=118.5).below
    120.0
    """

    chain: int
    below: float
    apart: float


def trapped(
    model: pm.Model,
    idata: Any,
    *,
    starts: Sequence[Optimum] = (),
    nats: float = APART,
    factor: float = 2.0,
    compile_kwargs: dict[str, Any] | None = None,
) -> list[TrappedChain]:
    """Chains far below the best known mode. R-hat cannot show this if all chains agree on a worse mode.

    L-BFGS climbs from the last draw of every chain, and optima are compared with optima: a chain is reported if its
    optimum is more than ``nats`` below the best, or its mean log density more than ``max(nats, factor sd)`` below that
    of another chain, where sd is that of a single draw. (A mean against an optimum would raise false alarms for
    densities with funnels.)

    Parameters
    ----------
    model : pymc.Model
        The model that was sampled.
    idata : InferenceData or DataTree
        With ``posterior``, all free variables in it, and the statistic ``lp``.
    starts : sequence of Optimum
        Points from :func:`initial_points`, as further known optima.
    nats, factor : float
        When to report.
    compile_kwargs : dict, optional

    Returns
    -------
    list of TrappedChain
        Empty if nothing is suspicious.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> from pymc_stiefel.optimize import trapped
    >>> with pm.Model() as model:
    ...     x = pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=50)
    ...     idata = pm.sample(50, tune=50, chains=2, cores=1, progressbar=False, random_seed=1)
    >>> trapped(model, idata)
    []
    """
    search = _Searcher(model, compile_kwargs)
    posterior, optima = idata["posterior"], []
    missing = [rv.name for rv in model.free_RVs if rv.name not in posterior]
    if missing:
        raise ValueError(f"idata has no draws of {', '.join(missing)}: all free variables of the model are needed")
    means, sd = None, 0.0
    if "lp" in idata["sample_stats"]:
        lp = idata["sample_stats"]["lp"].values
        means, sd = lp.mean(axis=1), float(np.sqrt(lp.var(axis=1).mean()))
    for chain in range(posterior.sizes["chain"]):
        last = {rv.name: posterior[rv.name].values[chain, -1] for rv in model.free_RVs}
        point = make_initial_point_fn(model=model, overrides=last)(0)
        flat = search.density.on_manifold(search.density.pack(point))
        optima.append(-search.climb(flat, LONG).value)
    known = max([*(start.logp for start in starts), *optima])
    below = known - np.array(optima)
    apart = np.zeros(len(optima)) if means is None else means.max() - means
    limit = max(nats, factor * sd)
    return [
        TrappedChain(chain, float(below[chain]), float(apart[chain]))
        for chain in np.flatnonzero((below > nats) | (apart > limit)).tolist()
    ]


class _Searcher:
    """The sampler's density of a model, and optimisation of it."""

    def __init__(self, model: pm.Model, compile_kwargs: dict[str, Any] | None = None):
        self.make_point = make_initial_point_fn(model=model)
        point = self.make_point(0)
        values = model.continuous_value_vars
        self.density = model_density(model, values, point, compile_kwargs=compile_kwargs)
        self.read: Callable[[np.ndarray], Optimum] = reader(model, self.density, point)
        self.moves, self.evaluations = _sign_moves(self.density.layout), 0

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """A random start of the model."""
        for _ in range(20):
            flat = self.density.on_manifold(self.density.pack(self.make_point(int(rng.integers(2**30)))))
            value, gradient = self.density(flat)
            if np.isfinite(value) and np.all(np.isfinite(gradient)):
                return flat
        raise ValueError("the model has no start with a finite log density in 20: give `initval` to its variables")

    def climb(self, q: np.ndarray, iterations: int, matrices_only: bool = False) -> lbfgs.Result:
        def loss(q: np.ndarray) -> tuple[float, np.ndarray]:
            self.evaluations += 1
            value, gradient = self.density(q)
            if matrices_only:
                gradient[self.density.layout.stiefel :] = 0.0
            return -value, -gradient

        return lbfgs.minimize(loss, q, self.density.layout, gtol=TOLERANCE, max_iterations=iterations)

    def run(self, q: np.ndarray, rng: np.random.Generator) -> lbfgs.Result:
        """Optimise matrices first, because scales would adapt to a random matrix; then all variables, and signs."""
        result = self.climb(self.climb(q, ITERATIONS, matrices_only=True).q, LONG)
        for _ in range(SWEEPS if self.moves else 0):
            flat, value = self._sweep(result.q, result.value, rng)
            if value > result.value - 1e-3:
                break
            result = self.climb(flat, LONG)
        return result

    def _sweep(self, q: np.ndarray, value: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Try every sign change in random order and keep those that increase the density; repeat until none does."""
        q, before = q.copy(), np.inf
        while value < before - 1e-6:
            before = value
            for k in rng.permutation(len(self.moves)):
                place = self.moves[k]
                q[place] *= -1.0
                self.evaluations += 1
                new = -self.density(q)[0]
                if new < value - 1e-6:
                    value = new
                else:
                    q[place] *= -1.0
        return q, value


def _sign_moves(layout: Layout) -> list[np.ndarray]:
    """Places in a flat vector that a change of sign flips, for every kind that the layout allows."""
    moves = []
    for policy, first, count, stride, length in layout.flips.tolist():
        if policy == NEVER:
            continue
        n = int(layout.n[first])
        for place in range(count):
            along = place // stride % length
            matrices = first + place + stride * np.arange(length - along)
            for column in range(int(layout.p[first])):
                starts = layout.offset[matrices] + column * n
                if length == 1 or len(matrices) > 1:  # a run of one is a change of one matrix
                    moves.append((starts[:, None] + np.arange(n)).ravel())
    return moves
