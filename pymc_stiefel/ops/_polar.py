r"""PyTensor operations: the polar factor and the manifold guard; the base of the random variables.

Each has its own derivative, because PyTensor's gradients of ``svd`` and ``eigh`` are wrong at equal singular
values, and all singular values of an orthonormal matrix are equal. The Ops are defined for one matrix and batched by
``Blockwise``. The numba and JAX versions are in ``_numba`` and ``_jax``, which are loaded with their backend.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import geometry
from pymc_stiefel._compat import Differentiable
from pymc_stiefel.ops._curvature import polar_curvature

__all__ = [
    "MANIFOLD_TOLERANCE",
    "Differentiable",
    "ManifoldGuard",
    "StiefelRV",
    "as_float",
    "guard",
    "manifold_tolerance",
    "on_manifold",
    "polar",
    "project_checked",
    "rotation",
    "without_manifold_check",
]

MANIFOLD_TOLERANCE = 1e-6
"""Largest entry of ``|X'X - I|`` that still counts as orthonormal (in double precision)."""

ALREADY_ORTHONORMAL = 1e-12
"""Below this error the polar factor returns its argument, so sampled values are projected only once."""


def manifold_tolerance(dtype: str) -> float:
    """The tolerance of the manifold check for a floating type: 1e-6, wider in single precision."""
    return max(MANIFOLD_TOLERANCE, 100 * float(np.finfo(dtype).eps))


def as_float(Z: Any) -> Any:
    """A tensor in single or double precision."""
    Z = pt.as_tensor_variable(Z)
    return Z if Z.dtype in ("float32", "float64") else Z.astype("float64")


# ---------------------------------------------------------------- polar factor


class _MatrixOp(Differentiable):
    """From matrices of one shape to a matrix of that shape; ``special`` for rotations."""

    __props__ = ("special",)

    def __init__(self, special: bool = False):
        self.special = special

    def make_node(self, *matrices):
        inputs = [as_float(X) for X in matrices]
        return Apply(self, inputs, [inputs[0].type()])

    def infer_shape(self, *args):
        return [args[-1][0]]


class Polar(_MatrixOp):
    """Nearest orthonormal matrix, or nearest rotation if ``special``; NaN where the argument is not finite."""

    gufunc_signature = "(n,p)->(n,p)"

    def perform(self, node, inputs, outputs):
        (Z,) = inputs
        outputs[0][0] = polar_numpy(Z, self.special)

    def pullback(self, inputs, outputs, cotangents):
        return [PolarPullback(self.special)(inputs[0], cotangents[0])]


class PolarPullback(_MatrixOp):
    """Gradient in ``Z`` of a function of the polar factor, given its gradient there."""

    gufunc_signature = "(n,p),(n,p)->(n,p)"

    def perform(self, node, inputs, outputs):
        Z, G = (np.asarray(x, dtype=np.float64) for x in inputs)
        if not np.isfinite(Z).all():
            result = np.full_like(Z, np.nan)
        elif self.special:
            result = geometry.rotation_pullback(Z, G)
        else:
            result = geometry.polar_pullback(Z, G)
        outputs[0][0] = result.astype(node.outputs[0].dtype)

    def pullback(self, inputs, outputs, cotangents):
        Z, G = inputs  # the map from G is symmetric, because the polar factor is the gradient of the nuclear norm
        return [PolarCurvature(self.special)(Z, G, cotangents[0]), self(Z, cotangents[0])]


class PolarCurvature(_MatrixOp):
    """Derivative of ``PolarPullback`` in ``Z``, in the direction of its last input."""

    gufunc_signature = "(n,p),(n,p),(n,p)->(n,p)"

    def perform(self, node, inputs, outputs):
        Z, G, C = (np.ascontiguousarray(x, dtype=np.float64) for x in inputs)
        finite = all(np.isfinite(x).all() for x in (Z, G, C))
        result = polar_curvature(Z, G, C, int(self.special)) if finite else np.full_like(Z, np.nan)
        outputs[0][0] = result.astype(node.outputs[0].dtype)


def polar_numpy(Z: NDArray[Any], special: bool) -> NDArray[Any]:
    """``geometry.polar`` or ``geometry.rotation`` of one matrix, or the matrix itself if it is orthonormal already."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.dot(Z.T, Z).ravel()  # PyMC evaluates this for every draw, nearly always orthonormal already
    error[:: Z.shape[1] + 1] -= 1.0
    if np.dot(error, error) < ALREADY_ORTHONORMAL**2 and not (special and np.linalg.det(Z) < 0):
        return Z.copy()
    if not np.isfinite(Z).all():
        return np.full_like(Z, np.nan)
    X = geometry.rotation(Z) if special else geometry.polar(Z)
    return X.astype(Z.dtype)


def polar(Z: Any) -> Any:
    """Symbolic ``geometry.polar``: the nearest orthonormal matrix, batch dimensions first."""
    return Blockwise(Polar(special=False))(Z)


def rotation(Z: Any) -> Any:
    """Symbolic ``geometry.rotation``: the nearest matrix of determinant +1, batch dimensions first."""
    return Blockwise(Polar(special=True))(Z)


# ---------------------------------------------------------------- checks


class CheckedProjection(_MatrixOp):
    """The polar factor of a matrix that must already be close to the manifold; anything else is an error."""

    gufunc_signature = "(n,p)->(n,p)"

    def perform(self, node, inputs, outputs):
        (X,) = inputs
        outputs[0][0] = project_numpy(X, special=self.special, what="initial value")

    def do_constant_folding(self, fgraph, node):
        return False  # PyTensor would print the traceback of its rewrite before the error itself


class _CheckedBatch(Blockwise):
    """``CheckedProjection`` of a batch, which is not constant-folded either."""

    def do_constant_folding(self, fgraph, node):
        return False


def project_numpy(X: NDArray[Any], *, special: bool, what: str) -> NDArray[Any]:
    """Project matrices (last two dimensions) that are off by rounding errors only; raise an error for all others."""
    tolerance = manifold_tolerance(str(X.dtype))
    if not np.isfinite(X).all():
        raise ValueError(f"{what} has NaN or infinite entries; give an orthonormal matrix")
    error = float(np.max(geometry.orthogonality_error(X), initial=0.0))
    if error > tolerance:
        raise ValueError(
            f"{what} is not orthonormal: max|X'X - I| = {error:.3g}, allowed {tolerance:.0e}; "
            "project it first, for instance with pymc_stiefel.geometry.polar"
        )
    if special and np.any(np.linalg.det(X) < 0):
        raise ValueError(f"{what} has determinant -1, a rotation has +1; flip the sign of one column")
    if error < ALREADY_ORTHONORMAL:
        return X
    return (geometry.rotation(X) if special else geometry.polar(X)).astype(X.dtype)


def project_checked(X: Any, special: bool = False) -> Any:
    """Symbolic projection of nearly orthonormal matrices, which raises on anything else."""
    return _CheckedBatch(CheckedProjection(special))(X)


def on_manifold(X: Any, *, vector: bool = False, special: bool = False) -> Any:
    """Whether ``X`` is orthonormal up to the tolerance (and of determinant +1 if ``special``), batch shaped."""
    tolerance = manifold_tolerance(X.dtype)
    if vector:
        return pt.abs((X**2).sum(axis=-1) - 1) < tolerance
    gram = X.mT @ X
    ok = pt.abs(gram - pt.eye(X.shape[-1])).max(axis=(-2, -1)) < tolerance
    if not special:
        return ok
    # the identity in place of what is off the manifold, NaN in particular
    determinant: Any = pt.linalg.det(pt.switch(ok[..., None, None], X, pt.eye(X.shape[-1])))
    return pt.and_(ok, determinant > 0)


class ManifoldGuard(Differentiable, OpFromGraph):
    """``switch(on_manifold(X), logp, -inf)``, which ``without_manifold_check`` can find and take out.

    The gradient is that of ``logp``: the guard is a statement about the support, not part of the density.
    """

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0], inputs[1].zeros_like()]


def guard(logp: TensorVariable, X: TensorVariable, *, vector: bool = False, special: bool = False) -> TensorVariable:
    """``logp`` where ``X`` is on the manifold, minus infinity elsewhere."""
    logp = pt.as_tensor_variable(logp, dtype=X.dtype) if not isinstance(logp, Variable) else logp
    # types without static shapes, so that the Op survives replacements of its inputs
    inner_logp = pt.tensor("logp", dtype=logp.dtype, shape=(None,) * logp.ndim)
    inner_X = pt.tensor("X", dtype=X.dtype, shape=(None,) * X.ndim)
    inside = pt.switch(on_manifold(inner_X, vector=vector, special=special), inner_logp, -np.inf)
    inside = inside.astype(logp.dtype)
    result: Any = ManifoldGuard([inner_logp, inner_X], [inside], inline=True, name="ManifoldGuard")(logp, X)
    return result


def without_manifold_check(graphs):
    """The same graph, or list of graphs, with every manifold check replaced by the density it guards.

    For samplers that keep their values orthonormal themselves. The argument is not changed.
    """
    single = isinstance(graphs, Variable)
    outputs = [graphs] if single else list(graphs)
    guards = [v for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, ManifoldGuard)]
    stripped = clone_replace(outputs, {v: v.owner.inputs[0] for v in guards}) if guards else outputs
    return stripped[0] if single else stripped


# ---------------------------------------------------------------- random variables


class StiefelRV(RandomVariable):
    """Base of the random variable Ops on the Stiefel manifold; samplers recognise these variables by this class."""

    dtype = "floatX"
    vector = False
    special = False
    subspace = False  # only the span of the columns counts


# ---------------------------------------------------------------- backends


class _RegisterAfterImport(importlib.abc.MetaPathFinder):
    """Load our dispatch module right after PyTensor's own for that backend, and not before.

    Importing JAX is slow and makes every later ``fork`` warn, so it must not happen only because JAX is installed.
    """

    def __init__(self, trigger: str, module: str):
        self.trigger, self.module = trigger, module

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.trigger:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def run_and_register(module):
            run_module(module)
            importlib.import_module(self.module)

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _register_backend(trigger: str, module: str) -> None:
    if trigger in sys.modules:
        importlib.import_module(module)
    else:
        sys.meta_path.insert(0, _RegisterAfterImport(trigger, module))


_register_backend("pytensor.link.numba.dispatch", "pymc_stiefel.ops._numba")
_register_backend("pytensor.link.jax.dispatch", "pymc_stiefel.ops._jax")
