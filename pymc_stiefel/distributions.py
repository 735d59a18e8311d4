r"""Random orthonormal matrices as PyMC variables."""
from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import _default_transform
from pymc.util import UNSET
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import ops, transforms
from pymc_stiefel.ops import StiefelRV, without_manifold_check


@dataclass(frozen=True)
class StiefelBlock:
    """What a sampler needs to know about an orthonormal variable."""

    n: int
    p: int
    batch_shape: tuple[int, ...]
    vector: bool
    special: bool


def _first(d):
    return d[(0,) * d.ndim]


def _int(v):
    return int(np.asarray(v).flat[0])


def _haar_numpy(n, p, size, rng):
    Z = rng.standard_normal((*(size or ()), n, p))
    Q, R = np.linalg.qr(Z)
    return Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :]


class StiefelUniformRV(StiefelRV):
    name = "stiefel_uniform"
    signature = "(),()->(n,p)"
    _print_name = ("StiefelUniform", r"\operatorname{StiefelUniform}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return [_first(d) for d in dist_params]

    @classmethod
    def rng_fn(cls, rng, n, p, size):
        return _haar_numpy(_int(n), _int(p), size, rng)


@_default_transform.register(StiefelRV)
def _stiefel_default_transform(op, rv):
    if op.vector:
        return transforms.sphere
    return transforms.rotation if op.special else transforms.polar


def stiefel_block(rv: Variable) -> StiefelBlock | None:
    """Dimensions of a Stiefel variable, or None if ``rv`` is something else."""
    if rv.owner is None or not isinstance(rv.owner.op, StiefelRV):
        return None
    op = rv.owner.op
    shape = rv.type.shape
    if None in shape:
        shape = tuple(int(s) for s in rv.shape.eval())
    core = 1 if op.vector else 2
    n, p = (shape[-1], 1) if op.vector else shape[-2:]
    return StiefelBlock(n, p, tuple(shape[:-core]), op.vector, op.special)


class StiefelUniform(Continuous):
    rv_type = StiefelUniformRV
    rv_op = StiefelUniformRV()

    @classmethod
    def dist(cls, n, p, **kwargs):
        n, p = (pt.constant(operator.index(v), dtype="int64") for v in (n, p))
        return super().dist([n, p], **kwargs)

    def support_point(rv, size, n, p):
        return rv

    def logp(value, n, p):
        return ops.guard(pt.zeros(value.shape[:-2], dtype=value.dtype), value)
