"""Base classes of the variables: how samplers recognise them, starting values, and checks at declaration."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous, _support_point
from pymc.distributions.shape_utils import convert_dims, convert_shape, shape_from_dims
from pymc.distributions.transforms import _default_transform
from pymc.logprob.utils import CheckParameterValue
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
    subspace : bool
        Only the span of the columns counts.
    """

    n: int
    p: int
    batch_shape: tuple[int, ...]
    vector: bool
    special: bool
    subspace: bool = False


def stiefel_block(rv: Any) -> StiefelBlock | None:
    """Dimensions of a random variable on the Stiefel manifold, None if ``rv`` is anything else."""
    if rv.owner is None or not isinstance(rv.owner.op, StiefelRV):
        return None
    op, shape = rv.owner.op, rv.type.shape
    if None in shape:
        shape = tuple(int(length) for length in rv.shape.eval())
    if op.vector:
        return StiefelBlock(shape[-1], 1, tuple(shape[:-1]), vector=True, special=op.special)
    return StiefelBlock(shape[-2], shape[-1], tuple(shape[:-2]), False, op.special, op.subspace)


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

    lengths: tuple[str, ...] = ()
    """Arguments of ``dist`` that are lengths of the last dimensions and may follow from a shape."""

    def __new__(
        cls,
        name: str,
        *args: Any,
        dims: Any = None,
        initval: Any = None,
        observed: Any = None,
        transform: Any = UNSET,
        default_transform: Any = UNSET,
        **kwargs: Any,
    ) -> Any:
        if kwargs.get("size") is None and kwargs.get("shape") is None:
            if dims is not None:
                if len(convert_dims(dims)) < cls.rv_op.ndim_supp:
                    raise ValueError(f"dims {dims} of {name} are too few: one variable has {cls.rv_op.ndim_supp}")
                kwargs["shape"] = shape_from_dims(convert_dims(dims), modelcontext(None))
            elif observed is not None:
                kwargs["shape"] = tuple(convert_observed_data(observed).shape)
            elif initval is not None and not isinstance(initval, str | Variable) and cls._lacks_lengths(args, kwargs):
                kwargs["shape"] = check.numbers("initval", initval).shape
        rv = cls.dist(*args, **kwargs)
        block = stiefel_block(rv)
        assert block is not None
        core = (block.n,) if block.vector else (block.n, block.p)
        if dims is not None:
            _check_dims(name, convert_dims(dims), core)
        if observed is not None:
            cls.check_data(name, _check_observed(name, observed, block, core), block)
        if initval is not None and not isinstance(initval, str | Variable):
            initval = _check_values(f"initval of {name}", initval, block, core, whole=True)
        if isinstance(transform, transforms.ManifoldExpansion | transforms.HouseholderTransform):
            # PyMC would chain it behind the default, and both go to unconstrained space
            transform, default_transform = UNSET, transform
        if isinstance(default_transform, transforms.HouseholderTransform):
            default_transform = _chart(name, default_transform, block)
        return Continuous.__new__(
            _Built(rv),  # PyMC calls only its ``dist``
            name,
            dims=dims,
            initval=initval,
            observed=observed,
            transform=transform,
            default_transform=default_transform,
            **{key: kwargs[key] for key in ("rng", "total_size") if key in kwargs},
        )

    @classmethod
    def _lacks_lengths(cls, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        given = inspect.signature(cls.dist).bind_partial(*args, **kwargs).arguments
        return any(given.get(name) is None for name in cls.lengths)

    @classmethod
    def check_data(cls, name: str, data: np.ndarray | None, block: StiefelBlock) -> None:
        """Checks of observed data that are special to a law; none by default."""

    @classmethod
    def support(cls, shape: Any, *given: Any) -> list[int]:
        """The lengths named in ``cls.lengths``, as given or from the end of ``shape``."""
        found = []
        ends = None if shape is None else _checked_shape(shape)
        for place, (name, value) in enumerate(zip(cls.lengths, given, strict=True)):
            offset = place - len(cls.lengths)
            if value is None and ends is not None and len(ends) >= cls.rv_op.ndim_supp:
                value, name = ends[offset], f"{name} (from shape={ends})"
            if value is None or value is Ellipsis:
                raise TypeError(
                    f"{cls.__name__} needs {name}, got {name}=None; give {name}, or a shape, dims or an initval "
                    "from which it follows"
                )
            found.append(check.integer(name, value))
        return found

    @classmethod
    def create(
        cls, dist_params: Sequence[Any], *, shape: Any = None, total_size: Any = None, **kwargs: Any
    ) -> TensorVariable:
        """PyMC's ``dist``, with the support dimensions of ``shape`` checked."""
        unknown = set(kwargs) - {"size", "rng", "name", "dtype", "return_next_rng"}
        if unknown:
            raise TypeError(f"{cls.__name__} got unknown arguments {sorted(unknown)}")
        rv = super().dist(dist_params, shape=shape, **kwargs)
        if shape is not None:
            ndim = cls.rv_op.ndim_supp
            given = _checked_shape(shape)
            if len(given) < ndim:
                raise ValueError(f"shape must end in the {ndim} dimensions of one variable, got shape {given}")
            numbers = [int(s) if isinstance(s, int | np.integer) else None for s in given[-ndim:]]
            check.core_shape(f"shape {given}", numbers, rv.type.shape[-ndim:])
        return rv


def _checked_shape(shape: Any) -> tuple[Any, ...]:
    """``shape`` as a tuple. Lengths that are not symbolic must be integers."""
    for length in (lengths := tuple(convert_shape(shape))):
        if not (isinstance(length, Variable) or length is Ellipsis):
            check.integer("shape", length, least=0)
    return lengths


class _Built:
    """A finished variable in place of the class that would create it."""

    def __init__(self, rv: TensorVariable) -> None:
        self.rv = rv

    def dist(self, **kwargs: Any) -> TensorVariable:
        return self.rv


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


def _check_observed(name: str, observed: Any, block: StiefelBlock, core: tuple[int, ...]) -> np.ndarray | None:
    """The data, if they are known."""
    data = convert_observed_data(observed)
    if isinstance(data, np.ma.MaskedArray) and data.mask.any():
        raise ValueError(
            f"observed data of {name} have missing values; the entries of a matrix cannot be imputed one by one. "
            "Leave out the matrices concerned, or declare them as free variables"
        )
    if isinstance(data, Variable):
        data = data.get_value() if hasattr(data, "get_value") else getattr(data, "data", None)
    return None if data is None else _check_values(f"observed data of {name}", data, block, core)


def _check_values(
    what: str, values: Any, block: StiefelBlock, core: tuple[int, ...], whole: bool = False
) -> np.ndarray:
    """Values on the manifold, projected if they are off by rounding errors; otherwise raises an error."""
    values = check.numbers(what, values)
    if values.ndim < len(core):
        raise ValueError(f"{what} must have shape (..., {', '.join(map(str, core))}), got {values.shape}")
    check.core_shape(f"shape {values.shape} of {what}", values.shape[-len(core) :], core)
    if whole and values.shape != (*block.batch_shape, *core):
        raise ValueError(f"{what} must have the variable's shape {(*block.batch_shape, *core)}, got {values.shape}")
    if block.vector:
        return ops.project_numpy(values[..., None], special=False, what=what)[..., 0]
    return ops.project_numpy(values, special=block.special, what=what)


def _chart(
    name: str, transform: transforms.HouseholderTransform, block: StiefelBlock
) -> transforms.HouseholderTransform:
    if block.n == block.p and not block.special:
        raise ValueError(
            f"the Householder transform reaches matrices of determinant +1 only, half of {name}'s support; "
            "use SpecialOrthogonal, or leave the default transform"
        )
    return transform.for_shape(block.n, block.p, block.vector)


def checked_direction(
    name: str, direction: TensorVariable, *, vector: bool = False, special: bool = False
) -> TensorVariable:
    """A mean direction. Constants are checked now, graphs when evaluated. Variables of this package need no check."""
    check.orthonormal(name, direction, vector=vector)
    numbers = check.known(direction)
    if special and numbers is not None and (np.linalg.det(numbers) < 0).any():
        raise ValueError(f"{name} must have determinant +1, got -1; flip the sign of one column")
    op = getattr(direction.owner, "op", None)
    if numbers is not None or (isinstance(op, StiefelRV) and (op.special or not special)):
        return direction
    ok = pt.all(ops.on_manifold(direction, vector=vector, special=special))
    return CheckParameterValue(f"{name} must be {'a rotation' if special else 'orthonormal'}")(direction, ok)


def linear_parameters(law: str, args: Sequence[Any], F: Any, M: Any, kappa: Any) -> tuple[Any, Any, Any]:
    """``F`` alone or ``M`` and ``kappa``, from the arguments (F) or (M, kappa) and their keywords."""
    if len(args) > 2 or (args and (F is not None or M is not None)) or (len(args) == 2 and kappa is not None):
        raise ValueError(f"{law} got too many of F, M and kappa; give either F, or M and kappa")
    if len(args) == 2 or (args and kappa is not None):
        M, kappa = args[0], args[1] if len(args) == 2 else kappa
    elif args:
        F = args[0]
    if F is not None and (M is not None or kappa is not None):
        drop = " and ".join(name for name, value in (("M", M), ("kappa", kappa)) if value is not None)
        raise ValueError(f"{law} got F together with {drop}; drop {drop}, or give M and kappa without F")
    if F is None and (M is None or kappa is None):
        missing = "either F, or M and kappa" if M is None and kappa is None else "M" if M is None else "kappa"
        raise ValueError(f"{law} needs {missing}, got F={F!r} and kappa={kappa!r}"[:200])
    return F, M, kappa


def constant_integer(parameter: Any) -> int:
    """An integer parameter: PyTensor may have given it batch dimensions of length one."""
    return int(np.asarray(parameter).flat[0])


def symbolic_integer(parameter: Any) -> Any:
    """The same, in a graph."""
    return parameter[(0,) * parameter.type.ndim]


def trace(F: TensorVariable, X: TensorVariable) -> TensorVariable:
    """``tr(F'X)``, batch shaped."""
    return (F * X).sum(axis=(-2, -1))
