"""What the variables have in common: recognising them, starting values, and checks at declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.distributions.distribution import Continuous, _support_point
from pymc.distributions.shape_utils import convert_dims, convert_shape
from pymc.distributions.transforms import _default_transform
from pymc.model import modelcontext
from pymc.pytensorf import convert_observed_data
from pymc.util import UNSET
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions import transforms
from pymc_stiefel.ops._polar import StiefelRV


@dataclass(frozen=True)
class StiefelBlock:
    """What a sampler needs to know about an orthonormal variable.

    Attributes
    ----------
    n, p : int
        Size of one matrix; ``p = 1`` for vectors.
    batch_shape : tuple of int
        Leading dimensions, independent matrices.
    vector : bool
        The variable has shape ``(*batch_shape, n)`` rather than ``(*batch_shape, n, 1)``.
    special : bool
        Square with determinant +1.
    """

    n: int
    p: int
    batch_shape: tuple[int, ...]
    vector: bool
    special: bool


def stiefel_block(rv: Any) -> StiefelBlock | None:
    """Dimensions of a random variable on the Stiefel manifold, None if ``rv`` is anything else."""
    if rv.owner is None or not isinstance(rv.owner.op, StiefelRV):
        return None
    op, shape = rv.owner.op, rv.type.shape
    if None in shape:
        shape = tuple(int(length) for length in rv.shape.eval())
    if op.vector:
        return StiefelBlock(shape[-1], 1, tuple(shape[:-1]), vector=True, special=op.special)
    return StiefelBlock(shape[-2], shape[-1], tuple(shape[:-2]), vector=False, special=op.special)


@_default_transform.register(StiefelRV)
def _expansion(op: StiefelRV, rv: TensorVariable) -> transforms.ManifoldExpansion:
    if op.vector:
        return transforms.sphere
    return transforms.rotation if op.special else transforms.polar


@_support_point.register(StiefelRV)
def _prior_draw(op: StiefelRV, rv: TensorVariable, *inputs: Variable) -> TensorVariable:
    # PyMC seeds the generators of the initial point, so this is a different, reproducible start for each chain
    return rv


class StiefelDistribution(Continuous):
    """Checks of data, starting values and shapes at declaration, before anything enters the model."""

    def __new__(
        cls,
        name,
        *args,
        dims=None,
        initval=None,
        observed=None,
        transform=UNSET,
        default_transform=UNSET,
        **kwargs,
    ):
        block = _probe(cls.dist(*args, **kwargs))
        core = (block.n,) if block.vector else (block.n, block.p)
        if dims is not None:
            _check_dims(name, convert_dims(dims), core)
        if observed is not None:
            observed = _check_observed(name, observed, block, core)
        if initval is not None and not isinstance(initval, str | Variable):
            initval = _check_initval(name, initval, block, core)
        if isinstance(transform, transforms.ManifoldExpansion | transforms.HouseholderTransform):
            # PyMC would chain it behind the default, and both go to unconstrained space
            transform, default_transform = UNSET, transform
        if isinstance(default_transform, transforms.HouseholderTransform):
            default_transform = _chart(name, default_transform, block)
        return super().__new__(
            cls,
            name,
            *args,
            dims=dims,
            initval=initval,
            observed=observed,
            transform=transform,
            default_transform=default_transform,
            **kwargs,
        )

    @classmethod
    def create(cls, dist_params: Sequence[Any], *, shape=None, **kwargs) -> TensorVariable:
        """PyMC's ``dist``, with the support dimensions of ``shape`` checked."""
        rv = super().dist(dist_params, shape=shape, **kwargs)
        if shape is not None:
            ndim = cls.rv_op.ndim_supp
            given = convert_shape(shape)
            if len(given) < ndim:
                raise ValueError(f"shape must end in the {ndim} dimensions of one variable, got {given}")
            numbers = [int(s) if isinstance(s, int | np.integer) else None for s in given[-ndim:]]
            check.core_shape(f"shape {given}", numbers, rv.type.shape[-ndim:])
        return rv


def _probe(rv: TensorVariable) -> StiefelBlock:
    block = stiefel_block(rv)
    assert block is not None
    return block


def _check_dims(name: str, dims: tuple[str | None, ...], core: tuple[int, ...]) -> None:
    if len(dims) < len(core):
        raise ValueError(f"dims {dims} of {name} are too few: one variable has shape {core}")
    lengths = modelcontext(None).dim_lengths
    for dim, expected in zip(dims[-len(core) :], core, strict=True):
        if dim in lengths and (length := int(lengths[dim].eval())) != expected:
            raise ValueError(
                f"dim {dim!r} of {name} has length {length} in the model's coords, but the variable has shape {core}; "
                "batch dims come first"
            )


def _check_observed(name: str, observed: Any, block: StiefelBlock, core: tuple[int, ...]) -> Any:
    data = convert_observed_data(observed)
    if isinstance(data, np.ma.MaskedArray) and data.mask.any():
        raise ValueError(
            f"observed data of {name} have missing values; the entries of a matrix cannot be imputed one by one. "
            "Leave out the matrices concerned, or declare them as free variables"
        )
    if isinstance(data, Variable):
        data = data.get_value() if hasattr(data, "get_value") else getattr(data, "data", None)
    if data is not None:
        _check_values(f"observed data of {name}", np.asarray(data), block, core)
    return observed


def _check_initval(name: str, initval: Any, block: StiefelBlock, core: tuple[int, ...]) -> np.ndarray:
    return _check_values(f"initval of {name}", np.asarray(initval), block, core)


def _check_values(what: str, values: np.ndarray, block: StiefelBlock, core: tuple[int, ...]) -> np.ndarray:
    """Values on the manifold, projected if they are off by rounding; the measured error otherwise."""
    if np.iscomplexobj(values):
        raise TypeError(f"{what} must be real, got dtype {values.dtype}")
    values = values.astype("float64")
    if values.ndim < len(core):
        raise ValueError(f"{what} must have shape (..., {', '.join(map(str, core))}), got {values.shape}")
    check.core_shape(f"shape {values.shape} of {what}", values.shape[-len(core) :], core)
    if block.vector:
        return ops.project_numpy(values[..., None], special=False, what=what)[..., 0]
    return ops.project_numpy(values, special=block.special, what=what)


def _chart(name: str, transform: transforms.HouseholderTransform, block: StiefelBlock):
    if block.n == block.p and not block.special:
        raise ValueError(
            f"the Householder transform reaches matrices of determinant +1 only, half of {name}'s support; "
            "use SpecialOrthogonal, or leave the default transform"
        )
    return transform.for_shape(block.n, block.p, block.vector)


def trace(F: TensorVariable, X: TensorVariable) -> TensorVariable:
    """``tr(F'X)``, batch shaped."""
    return (F * X).sum(axis=(-2, -1))
