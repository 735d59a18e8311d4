r"""Sampling and optimising orthonormal weights as optax gradient transformations.

Gradients are those of a loss that is minus the log density, summed over the data: for a minibatch, multiply the mean
loss by the number of rows of the whole data. One step is a kick, half a drift, an exact Ornstein-Uhlenbeck step and
half a drift, the symmetric scheme of :class:`pymc_stiefel.OrthogonalSGHMC`. It needs one gradient, as in optax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pymc_stiefel import _checks
from pymc_stiefel.jax._manifolds import cayley, complement, nearest, skew, transpose

__all__ = ["for_kernels", "momentum", "orthonormal_like", "osghmc", "sghmc", "to_matrix"]

Schedule = float | Callable[[Any], Any]


class SGHMCState(NamedTuple):
    """Momentum, random key and number of steps. All are arrays, so a checkpoint is a list of arrays."""

    momentum: Any
    key: Any
    count: Any


def _check(step_size: Schedule, friction: float, temperature: Schedule, noise_estimate: float) -> None:
    if not (callable(step_size) or isinstance(step_size, jax.Array)):  # arrays may be traced
        _checks.real("step_size", step_size, 0)
    _checks.real("friction", friction, 0, 1)
    _checks.real("noise_estimate", noise_estimate)
    if not 0 <= noise_estimate <= friction:
        raise ValueError(f"noise_estimate must lie between 0 and friction={friction}, got {noise_estimate}")
    if not (callable(temperature) or isinstance(temperature, jax.Array)):
        _checks.scalar("temperature", temperature, 0)


def _check_seed(seed: Any) -> None:
    if not isinstance(seed, int | np.integer | jax.Array):
        raise TypeError(f"seed must be an integer, got {_checks.shown(seed)}")


def _at(value: Schedule, count: Any) -> Any:
    return value(count) if callable(value) else value


def _transformation(
    init_leaf: Callable[..., Any],
    step_leaf: Callable[..., Any],
    step_size: Schedule,
    friction: float,
    temperature: Schedule,
    noise_estimate: float,
    seed: Any,
) -> optax.GradientTransformationExtraArgs:
    """The common part: schedules, random keys, and the loop over the leaves of a tree."""
    _check(step_size, friction, temperature, noise_estimate)
    _check_seed(seed)
    keep = 1.0 - friction
    share = max(1.0 - keep**2 - 2.0 * noise_estimate, 0.0)  # fraction of the variance that noise adds

    def init(params: Any) -> Any:
        momenta = jax.tree_util.tree_map_with_path(init_leaf, params)
        return SGHMCState(momenta, jax.random.PRNGKey(seed), jnp.zeros((), jnp.int32))

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("this transformation moves on a manifold: call update(grads, state, params)")
        eps = _at(step_size, state.count)
        cold = not callable(temperature) and temperature == 0
        noise = None if cold else jnp.sqrt(_at(temperature, state.count) * share)
        tree: Any
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.fold_in(state.key, state.count), max(len(leaves), 1))
        moved = [
            step_leaf(x, r, g, jnp.asarray(eps, x.dtype), keep, None if noise is None else noise.astype(x.dtype), key)
            for x, r, g, key in zip(
                leaves, tree.flatten_up_to(state.momentum), tree.flatten_up_to(grads), keys, strict=False
            )
        ]
        updates, momenta = (tree.unflatten([pair[i] for pair in moved]) for i in (0, 1))
        return updates, SGHMCState(momenta, state.key, state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def _matrix_momentum(path: Any, X: Any) -> tuple[jax.Array, jax.Array]:
    if X.ndim < 2 or X.shape[-2] < X.shape[-1]:
        raise ValueError(
            f"params{jax.tree_util.keystr(path)} has shape {X.shape}: an orthonormal matrix needs at least as many "
            "rows as columns. Wrap the transformation in pst.jax.for_kernels, or leave this leaf to pst.jax.sghmc by "
            "optax.partition"
        )
    return jnp.zeros(X.shape[:-2] + (X.shape[-1],) * 2, X.dtype), jnp.zeros_like(X)


def _matrix_step(
    X: Any, momentum: Any, G: Any, eps: Any, keep: float, noise: Any, key: Any
) -> tuple[Any, tuple[Any, Any]]:
    A, B = momentum
    n, p = X.shape[-2:]
    c = jnp.full((*X.shape[:-2], p), 1.0 / n, X.dtype)  # in a unit of time a uniform matrix turns by about a radian
    A, B = A - eps * skew(transpose(X) @ G), complement(X, B - eps * G)
    if noise is None:  # without noise, one drift of the same total length
        Y, A, B = cayley(X, A, B, 0.5 * (1.0 + keep) * eps, c, None)
        return nearest(Y) - X, (keep * A, keep * B)
    Y, A, B = cayley(X, A, B, 0.5 * eps, c, None)
    Z = jax.random.normal(key, X.shape, X.dtype)
    M = transpose(Y) @ Z
    A = keep * A + noise * math.sqrt(n / 2) * skew(M)
    B = keep * B + noise * math.sqrt(n) * (Z - Y @ M if n > p else 0.0)
    Y, A, B = cayley(Y, A, B, 0.5 * eps, c, None)
    return nearest(Y) - X, (A, B)


def _free_step(x: Any, r: Any, g: Any, eps: Any, keep: float, noise: Any, key: Any) -> tuple[Any, Any]:
    r = r - eps * g
    half = 0.5 * eps * r
    r = keep * r
    if noise is not None:
        r = r + noise * jax.random.normal(key, x.shape, x.dtype)
    return half + 0.5 * eps * r, r


def osghmc(
    step_size: Schedule,
    friction: float = 0.1,
    temperature: Schedule = 1.0,
    noise_estimate: float = 0.0,
    seed: Any = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Stochastic-gradient HMC of orthonormal matrices (the paper's oSGHMC) as an optax transformation.

    Parameters
    ----------
    step_size : float or schedule
        Time step :math:`\epsilon`; a step turns an n x p matrix by about that many radians. In terms of momentum SGD,
        the learning rate is :math:`\epsilon^2 / n`.
    friction : float
        Fraction of the momentum that a step loses, between 0 and 1; ``1 - friction`` is the momentum of SGD.
    temperature : float or schedule
        The sampled density is the posterior to the power 1 / temperature. Zero is momentum SGD.
    noise_estimate : float
        Contribution of the gradients' own noise, from 0 to ``friction``; less noise is added by this amount. For
        gradients of variance V it is :math:`\epsilon^2 V / 2n`.
    seed : int
        Seed of the noise. Chains under ``vmap`` need different seeds:
        ``jax.vmap(lambda p, s: osghmc(0.1, seed=s).init(p))``.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        For leaves of shape (..., n, p) with n >= p and orthonormal columns; see :func:`for_kernels` for other shapes
        and ``optax.partition`` for networks that have ordinary parameters too.

    References
    ----------
    Yanush & Kropotov (2019), arXiv:1901.08045.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, optax
    >>> import pymc_stiefel as pst
    >>> F = jnp.eye(4, 2)
    >>> loss = lambda params: -3.0 * jnp.sum(F * params["X"])
    >>> params = pst.jax.orthonormal_like({"X": jnp.zeros((4, 2))}, seed=1)
    >>> transformation = pst.jax.osghmc(step_size=0.3)
    >>> state = transformation.init(params)
    >>> updates, state = transformation.update(jax.grad(loss)(params), state, params)
    >>> params = optax.apply_updates(params, updates)
    >>> bool(jnp.abs(params["X"].T @ params["X"] - jnp.eye(2)).max() < 1e-6)
    True
    """
    return _transformation(_matrix_momentum, _matrix_step, step_size, friction, temperature, noise_estimate, seed)


def sghmc(
    step_size: Schedule,
    friction: float = 0.1,
    temperature: Schedule = 1.0,
    noise_estimate: float = 0.0,
    seed: Any = 1,
) -> optax.GradientTransformationExtraArgs:
    r"""The same scheme for ordinary parameters.

    Parameters
    ----------
    step_size : float or schedule
        Time step, at most about the standard deviation of the posterior. The learning rate of SGD is its square.
    friction, temperature, noise_estimate, seed
        As for :func:`osghmc`; the noise estimate is :math:`\epsilon^2 V / 2`.

    Returns
    -------
    optax.GradientTransformationExtraArgs

    Examples
    --------
    A network with an orthonormal matrix and a bias:

    >>> import jax.numpy as jnp, optax
    >>> import pymc_stiefel as pst
    >>> params = {"X": jnp.eye(4, 2), "bias": jnp.zeros(2)}
    >>> kinds = {"X": "stiefel", "bias": "free"}
    >>> parts = {"stiefel": pst.jax.osghmc(0.1), "free": pst.jax.sghmc(0.05)}
    >>> state = optax.partition(parts, kinds).init(params)
    """
    return _transformation(
        lambda path, x: jnp.zeros_like(x), _free_step, step_size, friction, temperature, noise_estimate, seed
    )


def momentum(step_size: Schedule, friction: float = 0.1) -> optax.GradientTransformationExtraArgs:
    """Momentum SGD of orthonormal matrices: :func:`osghmc` at temperature zero.

    Parameters
    ----------
    step_size : float or schedule
        As for :func:`osghmc`.
    friction : float
        One minus the momentum coefficient.

    Returns
    -------
    optax.GradientTransformationExtraArgs

    Examples
    --------
    >>> import jax, jax.numpy as jnp, optax
    >>> import pymc_stiefel as pst
    >>> A = jnp.diag(jnp.array([3.0, 2.0, 1.0, 0.5]))
    >>> X, transformation = pst.jax.orthonormal_like(jnp.zeros((4, 2)), seed=1), pst.jax.momentum(0.3)
    >>> state = transformation.init(X)
    >>> for _ in range(300):
    ...     grads = jax.grad(lambda X: -jnp.trace(X.T @ A @ X))(X)
    ...     updates, state = transformation.update(grads, state, X)
    ...     X = optax.apply_updates(X, updates)
    >>> round(float(jnp.trace(X.T @ A @ X)), 3)  # the two largest eigenvalues
    5.0
    """
    return osghmc(step_size, friction, temperature=0.0)


# ---------------------------------------------------------------- kernels


def to_matrix(kernel: Any) -> Any:
    """A kernel (..., i, o) as a matrix with at least as many rows as columns: (rest, o), or its transpose.

    Parameters
    ----------
    kernel : array with two or more dimensions
        Dense (i, o) or convolutional (h, w, i, o), as in Flax and in Equinox's transposed weights.

    Returns
    -------
    array (n, p), n >= p

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import pymc_stiefel as pst
    >>> pst.jax.to_matrix(jnp.zeros((3, 3, 16, 32))).shape, pst.jax.to_matrix(jnp.zeros((10, 300))).shape
    ((144, 32), (300, 10))
    """
    if getattr(kernel, "ndim", 0) < 2:
        raise ValueError(f"a kernel must have two or more dimensions, got {_checks.shown(kernel)}; use pst.jax.sghmc")
    matrix = kernel.reshape(-1, kernel.shape[-1])
    return matrix if matrix.shape[0] >= matrix.shape[1] else transpose(matrix)


def _from_matrix(matrix: Any, like: Any) -> Any:
    wide = int(np.prod(like.shape[:-1])) < like.shape[-1]
    return (transpose(matrix) if wide else matrix).reshape(like.shape)


def for_kernels(transformation: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Apply a transformation of matrices to kernels of any shape, reshaped by :func:`to_matrix`.

    Parameters
    ----------
    transformation : optax.GradientTransformation
        Such as ``osghmc(0.1)``.

    Returns
    -------
    optax.GradientTransformationExtraArgs

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import pymc_stiefel as pst
    >>> kernel = pst.jax.orthonormal_like(jnp.zeros((3, 3, 4, 8)), seed=1)
    >>> transformation = pst.jax.for_kernels(pst.jax.osghmc(0.1))
    >>> updates, state = transformation.update(jnp.ones_like(kernel), transformation.init(kernel), kernel)
    >>> updates.shape
    (3, 3, 4, 8)
    """
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        raise TypeError(f"transformation must be one of optax's, got {_checks.shown(transformation)}")
    inner = optax.with_extra_args_support(transformation)

    def init(params: Any) -> Any:
        return inner.init(jax.tree.map(to_matrix, params))

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        matrices = None if params is None else jax.tree.map(to_matrix, params)
        updates, state = inner.update(jax.tree.map(to_matrix, grads), state, matrices, **extra)
        return jax.tree.map(_from_matrix, updates, grads), state

    return optax.GradientTransformationExtraArgs(init, update)


def orthonormal_like(params: Any, seed: Any = 0) -> Any:
    """Uniform orthonormal matrices in the shapes of a tree of kernels.

    Parameters
    ----------
    params : pytree of arrays
        Each with two or more dimensions, reshaped by :func:`to_matrix`.
    seed : int

    Returns
    -------
    pytree
        Of the same shapes and types.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import pymc_stiefel as pst
    >>> kernel = pst.jax.orthonormal_like(jnp.zeros((2, 2, 3, 5)), seed=1)
    >>> matrix = pst.jax.to_matrix(kernel)
    >>> bool(jnp.abs(matrix.T @ matrix - jnp.eye(5)).max() < 1e-6)
    True
    """
    _check_seed(seed)
    tree: Any
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.PRNGKey(seed), max(len(leaves), 1))

    def draw(key: Any, kernel: Any) -> Any:
        n, p = to_matrix(kernel).shape
        Q, R = jnp.linalg.qr(jax.random.normal(key, (n, p), kernel.dtype))
        return _from_matrix(Q * jnp.where(jnp.diagonal(R) < 0, -1.0, 1.0).astype(kernel.dtype), kernel)

    return tree.unflatten([draw(key, kernel) for key, kernel in zip(keys, leaves, strict=False)])
