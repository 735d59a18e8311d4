"""Many chains of a PyMC model on JAX devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from blackjax.mcmc import hmc
from pymc.initial_point import make_initial_point_fns_per_chain

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.analysis import nested_rhat
from pymc_stiefel.jax import _adaptation as adaptation
from pymc_stiefel.jax._algorithms import ALGORITHMS, flip, reflect, repaired
from pymc_stiefel.jax._density import JaxDensity, jittered, refuse_discrete
from pymc_stiefel.jax._integrator import draw_noise
from pymc_stiefel.jax._manifolds import choose_drift, orthogonality_error
from pymc_stiefel.jax._progress import progress
from pymc_stiefel.jax._results import Store, convergence_warnings, to_inference_data

__all__ = ["Sampler", "sample"]

_log = logging.getLogger("pymc.stiefel")  # a child of PyMC's logger, so that messages appear together with PyMC's

CHUNK_BYTES = 2**23
PROGRESS_STEPS = 10
STARTS_TRIED = 10
LEAST_FLIPS, MOST_FLIPS = 1e-3, 0.99
"""Sign flips are proposed after tuning if the fraction accepted in its second half was between these. A flip costs a
gradient, which is wasted if no flip is accepted; if all are accepted, signs are not identified."""


def sample(
    draws: int = 1000,
    *,
    tune: int = 500,
    chains: int = 64,
    algorithm: str = "chees",
    drift: str = "auto",
    target_accept: float = 0.8,
    random_seed: Any = None,
    initvals: Any = None,
    model: pm.Model | None = None,
    var_names: Sequence[str] | None = None,
    progressbar: bool = True,
    chain_method: str = "vectorized",
    idata_kwargs: dict[str, Any] | None = None,
    compute_convergence_checks: bool = True,
    superchains: int | None = None,
) -> Any:
    """Sample a model with many chains in lockstep, on JAX devices.

    Parameters
    ----------
    draws, tune : int
        Draws and tuning draws of each chain. All chains are tuned together, so a few hundred tuning draws are enough.
    chains : int
        Number of chains. ChEES needs about 16 for its tuning.
    algorithm : {"chees", "nuts"}
        ``"chees"``: trajectories of one tuned length for all chains. ``"nuts"``: BlackJAX's NUTS, in which all chains
        wait for the longest trajectory.
    drift : {"auto", "splitting", "cayley", "geodesic"}
        How matrices move, see the theory page. Only the splitting learns a mass for each column. ``"auto"`` uses the
        splitting for up to twelve columns and the Cayley map for more.
    target_accept : float
        Target acceptance rate of the step size adaptation.
    random_seed : int, sequence, Generator or None
        The same seed gives the same draws on the same devices.
    initvals : dict or sequence of dict, optional
        Starting values, as for ``pm.sample``, used without jitter.
    model : pymc.Model, optional
        Default: the model in context.
    var_names : sequence of str, optional
        Variables and deterministics to store. Default: all.
    progressbar : bool
        Show progress, step size, gradients per draw, divergences, and R-hat of the log density.
    chain_method : {"vectorized", "sharded"}
        ``"sharded"`` divides the chains among all devices.
    idata_kwargs : dict, optional
        ``log_likelihood=True``, and ``coords`` and ``dims`` beyond those of the model.
    compute_convergence_checks : bool
        Log warnings about divergences, R-hat, effective sample size and chains with a low acceptance rate.
    superchains : int, optional
        Number of different starting points; must divide ``chains``. Chains with the same starting point form a
        superchain, and nested R-hat is reported in the attributes. Default: every chain has its own starting point.

    Returns
    -------
    InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x)
        With posterior, sample_stats, observed_data and constant_data.

    Notes
    -----
    Numbers are float64 unless PyTensor's ``floatX`` or JAX itself is set to float32. Draws are copied from the device
    in chunks.

    References
    ----------
    Hoffman, Radul & Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte Carlo,
    AISTATS. Margossian et al. (2024), Nested R-hat, doi:10.1214/24-BA1453.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     X = pst.MatrixLangevin("X", F=3 * np.eye(4, 2))
    ...     idata = pst.jax.sample(20, tune=50, chains=16, random_seed=1, progressbar=False)
    >>> idata["posterior"]["X"].shape
    (16, 20, 4, 2)
    """
    sampler = Sampler(algorithm, drift, target_accept, chain_method, superchains)
    return sampler.sample_from_init(
        model_of(model),
        draws=draws,
        tune=tune,
        chains=chains,
        random_seed=random_seed,
        initvals=initvals,
        var_names=var_names,
        progressbar=progressbar,
        idata_kwargs=idata_kwargs,
        compute_convergence_checks=compute_convergence_checks,
    )


@dataclass
class Sampler:
    """The settings of :func:`sample` as an object, for ``pm.sample(sampler=...)`` of a future version of PyMC.

    Parameters
    ----------
    algorithm, drift, target_accept, chain_method, superchains
        As for :func:`sample`.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model() as model:
    ...     u = pst.UnitVector("u", n=3)
    >>> sampler = pst.jax.Sampler("nuts")
    >>> idata = sampler.sample_from_init(model, draws=10, tune=20, chains=4, random_seed=1, progressbar=False,
    ...                                  compute_convergence_checks=False)
    >>> idata["posterior"]["u"].shape
    (4, 10, 3)
    """

    algorithm: str = "chees"
    drift: str = "auto"
    target_accept: float = 0.8
    chain_method: str = "vectorized"
    superchains: int | None = None

    def __post_init__(self) -> None:
        _checks.choice("algorithm", self.algorithm, sorted(ALGORITHMS))
        choose_drift(self.drift, [])
        _checks.choice("chain_method", self.chain_method, ("vectorized", "sharded"))
        _checks.real("target_accept", self.target_accept, 0, 1)

    def sample_from_init(
        self,
        model: pm.Model,
        *,
        draws: int,
        tune: int,
        chains: int,
        random_seed: Any = None,
        initvals: Any = None,
        var_names: Sequence[str] | None = None,
        progressbar: bool = True,
        idata_kwargs: dict[str, Any] | None = None,
        compute_convergence_checks: bool = True,
    ) -> Any:
        """Sample a model; the arguments are those of :func:`sample`."""
        self._check(draws, tune, chains)
        _checks.flag("progressbar", progressbar)
        _checks.flag("compute_convergence_checks", compute_convergence_checks)
        _checks.mapping("idata_kwargs", idata_kwargs)
        rng = np.random.default_rng(_checks.seed("random_seed", random_seed))
        density, states = _starts(model, initvals, self.superchains or chains, rng)
        if self.superchains:
            members = chains // self.superchains
            states = jax.tree.map(lambda x: jnp.repeat(x, members, axis=0), states)
        if self.chain_method == "sharded":
            mesh = jax.sharding.Mesh(np.array(jax.devices()), ("chains",))
            spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("chains"))
            states = jax.device_put(states, spread)
        names, variables = density.variables(var_names)
        run = _Run(self, density, variables, chains)
        key = jax.random.key(int(rng.integers(2**31)))
        start = time.perf_counter()
        with progress(progressbar, tune + draws, chains) as report:
            states, tuned, masses = run.tune(states, jax.random.fold_in(key, 0), tune, report)
            tuning_time = time.perf_counter() - start
            store = run.draw(states, jax.random.fold_in(key, 1), draws, tuned, masses, names, report)
        attributes = {
            "sampling_time": time.perf_counter() - start,
            "tuning_time": tuning_time,
            "compile_time": run.compile_time,
            "tuning_steps": tune,
            "algorithm": self.algorithm,
            "drift": run.drift,
        }
        if self.superchains:
            attributes["superchains"] = self.superchains
            if draws >= 4:  # split R-hat needs at least this many
                lp = store.stats["lp"][..., None]
                attributes["nested_r_hat_lp"] = float(nested_rhat(lp, self.superchains).iloc[0])
        idata = to_inference_data(model, store, attributes, blackjax, idata_kwargs or {})
        if compute_convergence_checks:
            convergence_warnings(idata, store, model, self.target_accept)
        return idata

    def _check(self, draws: int, tune: int, chains: int) -> None:
        for name, value, least in (("draws", draws, 1), ("tune", tune, 0), ("chains", chains, 1)):
            _checks.whole(name, value, least)
        groups = self.superchains
        if groups is not None and (chains % _checks.whole("superchains", groups, 2) or chains == groups):
            raise ValueError(f"superchains={groups} must be at least 2 and a proper divisor of chains={chains}")
        if self.chain_method == "sharded" and chains % len(jax.devices()):
            raise ValueError(
                f"chain_method='sharded' divides chains among devices: chains={chains} must be a multiple of the "
                f"{len(jax.devices())} devices of JAX"
            )
        if self.algorithm == "chees" and chains < 8:
            _log.warning(
                "ChEES tunes its length by the spread of the chains, and chains=%d is too few: "
                "use 16 or more, or algorithm='nuts'.",
                chains,
            )


def _starts(model: pm.Model, initvals: Any, count: int, rng: np.random.Generator) -> tuple[JaxDensity, Any]:
    """The density, and starting states with finite density."""
    refuse_discrete(model)
    _checks.starts("initvals", initvals, count, [v.name for v in (*model.free_RVs, *model.value_vars)])
    functions = make_initial_point_fns_per_chain(
        model=model, overrides=initvals, jitter_rvs=jittered(model, initvals), chains=count
    )
    points = [function(int(rng.integers(2**30))) for function in functions]
    density = JaxDensity(model, points[0])
    evaluate = jax.jit(jax.vmap(jax.value_and_grad(density)))
    for _ in range(STARTS_TRIED):
        positions = density.pack(points)
        value, gradient = evaluate(positions)
        fine = np.isfinite(value)
        for part in jax.tree.leaves(gradient):
            fine &= np.isfinite(part).reshape(count, -1).all(axis=1)
        if fine.all():
            density.check_subspaces(positions, gradient)
            return density, hmc.HMCState(positions, value, gradient)
        for i in np.flatnonzero(~fine):
            points[i] = functions[i](int(rng.integers(2**30)))
    raise ValueError(
        f"the log density or its gradient is not finite at the start of {int((~fine).sum())} of {count} chains, after "
        f"{STARTS_TRIED} attempts; model.debug() shows where, initvals sets other starting values"
    )


class _Run:
    """The compiled programs of one call."""

    def __init__(self, sampler: Sampler, density: JaxDensity, variables: Callable, chains: int):
        blocks = [density.blocks[value] for value in density.matrices]
        self.drift = choose_drift(sampler.drift, [block.p for block in blocks if block is not None])
        self.density, self.variables, self.chains = density, variables, chains
        self.flips = bool(density.flipped)
        self.algorithm = ALGORITHMS[sampler.algorithm](density, self.drift, sampler.target_accept)
        self._tune_chunk: Any = jax.jit(self._tuning)
        self._draw_chunk = jax.jit(self._drawing)
        self.compile_time = 0.0

    def _compile(self, program, *arguments) -> None:
        """Compile a program before its first call, which then finds it in JAX's cache."""
        start = time.perf_counter()
        program.lower(*arguments).compile()
        self.compile_time += time.perf_counter() - start

    def _transition(self, key, states, number, tuned, masses, tune):
        """One draw of every chain: a trajectory, then sign flips. Also returns how many chains flipped a sign."""
        move_key, flip_key, noise_key = jax.random.split(key, 3)
        keys = jax.random.split(move_key, self.chains)
        noise = draw_noise(noise_key, states.position)
        new, move = self.algorithm.move(keys, noise, states, number, tuned, masses, tune)
        new = repaired(new)
        keys, flipped = jax.random.split(flip_key, self.chains), jnp.zeros(self.chains)
        if self.density.reflected:
            new = jax.vmap(lambda key, state: reflect(key, state, self.density, self.density.reflected))(keys, new)
        if self.flips:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 0)
            new, flipped = jax.vmap(lambda key, state: flip(key, state, self.density, self.density.flipped))(keys, new)
        return new, move, jnp.sum(flipped)

    def _first(self, states):
        """Initial state of tuning, with strong types, so that the program for its chunks is compiled only once."""
        example = jax.tree.map(lambda x: x[0], states.position)
        masses = adaptation.first_masses(example, self.drift, self.density.subspaces)
        carry = (states, self.algorithm.first(example.z.dtype), masses, adaptation.no_moments(example))
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, np.dtype(x.dtype)), carry)

    def _tuning(self, carry, key, numbers, ends):
        example = jax.tree.map(lambda x: x[0], carry[0].position)

        def step(carry, xs):
            states, tuning, masses, moments = carry
            number, end = xs
            tuned = self.algorithm.current(tuning)
            key_here = jax.random.fold_in(key, number)
            new, move, flipped = self._transition(key_here, states, number, tuned, masses, True)
            tuning = self.algorithm.update(tuning, states, move, masses)
            moments = adaptation.add_draws(moments, new.position, new.logdensity_grad)

            def renew(_):
                learnt = adaptation.learn_masses(example, moments, self.drift, self.density.subspaces)
                return self.algorithm.restart(tuning), learnt, adaptation.no_moments(example)

            tuning, masses, moments = jax.lax.cond(end, renew, lambda _: (tuning, masses, moments), None)
            return (new, tuning, masses, moments), (jnp.sum(move.diverging), flipped)

        return jax.lax.scan(step, carry, (numbers, ends))

    def tune(self, states, key, tune, report):
        carry = jax.jit(self._first)(states)
        last = max([end for end in adaptation.WINDOWS if end <= 0.8 * tune], default=0)
        chunk = -(-tune // PROGRESS_STEPS)
        accepted = 0.0
        for first in range(0, tune, max(chunk, 1)):
            numbers = np.arange(first, min(first + chunk, tune))
            ends = np.array([number + 1 in adaptation.WINDOWS and number + 1 <= last for number in numbers])
            if first == 0 or len(numbers) < chunk:
                self._compile(self._tune_chunk, carry, key, numbers, ends)
            carry, (diverging, flipped) = self._tune_chunk(carry, key, numbers, ends)
            accepted += float(np.sum(np.asarray(flipped)[numbers >= tune - tune // 2]))
            report(len(numbers), lambda carry=carry, count=diverging[-1]: self._tuning_text(carry, count))
        states, tuning, masses, _ = carry
        self._tune_chunk.clear_cache()  # tens of MB
        if tune > 1:
            self.flips = self.flips and LEAST_FLIPS < accepted / (self.chains * (tune // 2)) < MOST_FLIPS
        return states, jax.jit(self.algorithm.final)(tuning), masses

    def _tuning_text(self, carry, diverging) -> str:
        step_size, length = self.algorithm.current(carry[1])
        return f"tuning, step {step_size:.3g}, length {length:.3g}, {int(diverging)} chains diverge"

    def _drawing(self, states, key, numbers, tuned, masses):
        def step(states, number):
            states, move, _ = self._transition(jax.random.fold_in(key, number), states, number, tuned, masses, False)
            error = [jax.vmap(orthogonality_error)(X) for X in states.position.X]
            stats = {
                "lp": states.logdensity,
                "acceptance_rate": move.acceptance_rate.astype(np.float32),
                "diverging": move.diverging,
                "energy": move.energy,
                "n_steps": move.n_steps.astype(np.int16),
                "tree_depth": move.tree_depth.astype(np.int8),
            }
            if error:
                stats["orthogonality_error"] = jnp.max(jnp.stack(error), axis=0).astype(np.float32)
            return states, (jax.vmap(self.variables)(states.position), stats)

        return jax.lax.scan(step, states, numbers)

    def draw(self, states, key, draws, tuned, masses, names, report) -> Store:
        shapes = jax.eval_shape(jax.vmap(self.variables), states.position)
        size = sum(int(np.prod(s.shape)) * s.dtype.itemsize for s in shapes)
        largest = max(1, min(CHUNK_BYTES // max(size, 1), -(-draws // PROGRESS_STEPS)))
        count = -(-draws // largest)
        chunk = -(-draws // count)  # equal chunks, so that one program is compiled; surplus draws are dropped
        store = Store(names, draws, self.chains, float(tuned.step_size), float(tuned.length))
        for first in range(0, draws, chunk):
            numbers = np.arange(first, first + chunk)
            if first == 0:
                self._compile(self._draw_chunk, states, key, numbers, tuned, masses)
            states, (values, stats) = self._draw_chunk(states, key, numbers, tuned, masses)
            store.add(first, values, stats)
            done = min(chunk, draws - first)
            report(done, store.describe)
        return store
