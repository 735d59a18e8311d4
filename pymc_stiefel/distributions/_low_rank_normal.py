"""Normal law with covariance "low rank plus diagonal": the likelihood of factor analysis and probabilistic PCA."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import Normal
from pymc.distributions.distribution import Continuous, SymbolicRandomVariable
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
from pymc.logprob.abstract import _logprob
from pymc.model import modelcontext
from pymc.pytensorf import constant_fold, convert_observed_data, normalize_rng_param
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Mul
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel.distributions import _low_rank_density as density
from pymc_stiefel.ops._polar import StiefelRV

__all__ = ["LowRankMvNormal", "LowRankMvNormalRV"]


class LowRankMvNormalRV(SymbolicRandomVariable):
    """Draws ``mu + W z + sqrt(d) e`` with standard normal ``z`` and ``e``."""

    name = "LowRankMvNormal"
    extended_signature = "[rng],[size],(n),(n,p),(n)->[rng],(n)"
    _print_name = ("LowRankMvNormal", "\\operatorname{LowRankMvNormal}")

    @classmethod
    def rv_op(cls, mu: Any, cov_factor: Any, cov_diag: Any, *, size: Any = None, rng: Any = None) -> TensorVariable:
        params = [pt.as_tensor(param) for param in (mu, cov_factor, cov_diag)]
        mu, W, d = params
        rng, size = normalize_rng_param(rng), normalize_size_param(size)
        batch = implicit_size_from_params(*params, ndims_params=cls.ndims_params) if rv_size_is_none(size) else size
        n, p = W.shape[-2], W.shape[-1]
        normals = Normal.dist(size=[*(batch[i] for i in range(batch.type.shape[0])), n + p], rng=rng)
        next_rng = normals.owner.outputs[0]
        scale = pt.sqrt(d if cls.ndims_params[-1] else d[..., None])
        draws = mu + density.times(normals[..., n:], density.transposed(W)) + scale * normals[..., :n]
        return cls(inputs=[rng, size, *params], outputs=[next_rng, draws])(rng, size, *params)


class OrthogonalFactorRV(LowRankMvNormalRV):
    """The same for a factor whose columns are known to be orthogonal, and a scalar in ``cov_diag``."""

    extended_signature = "[rng],[size],(n),(n,p),()->[rng],(n)"


def _make_rv(*params: Any, orthogonal: bool = False, **kwargs: Any) -> TensorVariable:
    return (OrthogonalFactorRV if orthogonal else LowRankMvNormalRV).rv_op(*params, **kwargs)


class LowRankMvNormal(Continuous):
    r"""Normal vectors with covariance :math:`WW' + \mathrm{diag}(d)`.

    The law of :math:`y = \mu + Wz + \sqrt{d}\,e` with standard normal scores ``z`` (p,) and noise ``e`` (n,):
    probabilistic PCA if ``d`` is a scalar, factor analysis if it has an entry for each feature. A row costs O(n p)
    rather than O(n²). If mean and covariance are the same for all rows, the log density of the model and its gradient
    need only the sums and cross products of the rows.

    Missing entries of the data (NaN in an array or a DataFrame, masked entries) are integrated out exactly.
    :func:`~pymc_stiefel.factor_scores` and :func:`~pymc_stiefel.impute` draw scores and missing entries afterwards.

    Parameters
    ----------
    name : str
        Name of the variable.
    mu : tensor_like
        Mean, a scalar or of shape ``(..., n)``.
    cov_factor : tensor_like
        ``W``, shape ``(..., n, p)``. If its columns are orthogonal by construction (a
        :class:`~pymc_stiefel.StiefelUniform` or other matrix of this package, with or without scales as in
        :func:`~pymc_stiefel.orthogonal_columns`) and ``cov_diag`` is a scalar, no Cholesky factor is needed.
    cov_diag : tensor_like
        ``d``, positive: a scalar, or of shape ``(..., n)``; ``(..., 1)`` for a batch of scalars.
    observed : array, DataFrame, masked array or pm.Data, optional
        Rows ``(..., n)``. ``pm.Data`` may be replaced by ``pm.set_data``, but must not have missing entries.

    Notes
    -----
    ``pm.logp`` and the log likelihood are per row. NaN stands for a missing entry in data and other constants; a row
    without an observed entry has log density 0. If ``cov_diag`` is not positive the log density is minus infinity.

    References
    ----------
    Tipping & Bishop (1999), doi:10.1111/1467-9868.00196; Rubin & Thayer (1982), doi:10.1007/BF02293851.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> y = np.array([[1.0, 2.0, np.nan], [0.0, 1.0, 1.0]])
    >>> with pm.Model():
    ...     W = pst.StiefelUniform("W", n=3, p=1)
    ...     rows = pst.LowRankMvNormal("y", mu=0.0, cov_factor=W, cov_diag=0.5, observed=y)
    >>> pm.draw(rows, random_seed=1).shape
    (2, 3)
    """

    rv_type = LowRankMvNormalRV
    rv_op = staticmethod(_make_rv)

    def __new__(cls, name: str, *args: Any, observed: Any = None, dims: Any = None, **kwargs: Any) -> Any:
        if observed is not None:
            observed = _check_observed(name, observed, dims)
        return super().__new__(cls, name, *args, observed=observed, dims=dims, **kwargs)

    @classmethod
    def dist(cls, mu: Any, cov_factor: Any, cov_diag: Any, **kwargs: Any) -> TensorVariable:
        """The distribution outside a model."""
        mu, W, d = (
            check.array(name, param, ndim)
            for name, param, ndim in (("mu", mu, 0), ("cov_factor", cov_factor, 2), ("cov_diag", cov_diag, 0))
        )
        n = _check_shapes(mu, W, d, kwargs.get("shape"))
        if mu.ndim == 0 or mu.type.broadcastable[-1]:
            mu = pt.zeros(n, dtype=mu.dtype) + mu
        scalar = d.ndim == 0 or bool(d.type.broadcastable[-1])
        orthogonal = scalar and _has_orthogonal_columns(W)
        if orthogonal:
            d = d if d.ndim == 0 else d[..., 0]
        elif scalar:
            d = d * pt.ones(n, dtype=d.dtype)
        return super().dist([mu, W, d], orthogonal=orthogonal, **kwargs)

    def support_point(rv: Any, size: Any, mu: Any, cov_factor: Any, cov_diag: Any) -> TensorVariable:
        """The mean."""
        return pt.broadcast_to(mu, rv.shape)


@_logprob.register(LowRankMvNormalRV)
def _log_density(op: LowRankMvNormalRV, values: Any, *inputs: Any, **kwargs: Any) -> TensorVariable:
    return density.rows(*values, *inputs[2:])


@_logprob.register(OrthogonalFactorRV)
def _orthogonal_log_density(op: OrthogonalFactorRV, values: Any, *inputs: Any, **kwargs: Any) -> TensorVariable:
    return density.orthogonal_rows(*values, *inputs[2:])


def _has_orthogonal_columns(W: TensorVariable) -> bool:
    """Whether ``W`` is a matrix of this package, or one whose columns are scaled."""
    while W.owner is not None and isinstance(W.owner.op, ViewOp):  # a Deterministic
        (W,) = W.owner.inputs
    if W.owner is None:
        return False
    if isinstance(W.owner.op, StiefelRV):
        return not W.owner.op.vector
    if not isinstance(W.owner.op, Elemwise) or not isinstance(W.owner.op.scalar_op, Mul):
        return False
    matrices = [factor for factor in W.owner.inputs if not factor.type.broadcastable[-2]]
    return len(matrices) == 1 and matrices[0].ndim == W.ndim and _has_orthogonal_columns(matrices[0])


# ---------------------------------------------------------------- checks


def _length(x: TensorVariable, axis: int) -> int | None:
    """Length along an axis if it is known at declaration."""
    return x.type.shape[axis] if x.type.shape[axis] is not None else _number(x.shape[axis])


def _number(length: Any) -> int | None:
    """A length if it is known at declaration."""
    if isinstance(length, Variable):
        (length,) = constant_fold([length], raise_not_constant=False)
    return int(length) if isinstance(length, int | np.integer | np.ndarray) else None


def _check_shapes(mu: TensorVariable, W: TensorVariable, d: TensorVariable, shape: Any) -> Any:
    """The number of features, on which all parameters and the shape must agree."""
    n = _length(W, -2)
    lengths = [_length(x, -1) for x in (mu, d) if x.ndim]
    given = None if shape is None or isinstance(shape, Variable) else tuple(map(_number, np.atleast_1d(shape)))
    if given:
        lengths.append(given[-1])
    if n is not None and any(length not in (None, 1, n) for length in lengths):
        shapes = [tuple(_length(x, axis) for axis in range(x.ndim)) for x in (mu, W, d)]
        data = "" if given is None else f", and the variable or its data {given}"
        raise ValueError(
            f"shapes do not fit: mu is {shapes[0]}, cov_factor {shapes[1]}, cov_diag {shapes[2]}{data}; need (..., n), "
            "(..., n, p) and (..., n) with the same number of features n, or scalars for mu and cov_diag"
        )
    return W.shape[-2] if n is None else n


def _check_observed(name: str, observed: Any, dims: Any) -> Variable:
    """Data as a variable, NaN where they are missing: PyMC would make free variables of masked entries."""
    features = getattr(observed, "columns", None)
    data = convert_observed_data(observed)
    if isinstance(data, Variable) and not isinstance(data, Constant):
        if hasattr(data, "get_value"):  # pm.Data has refused NaN itself
            _refuse_infinite(name, np.asarray(data.get_value(borrow=True)))
        return data
    values = np.ma.filled(np.ma.asarray(data.data if isinstance(data, Constant) else data).astype("float64"), np.nan)
    _refuse_infinite(name, values)
    if values.ndim > 1 and np.isnan(values).any():
        empty = np.flatnonzero(np.isnan(values).all(axis=tuple(range(values.ndim - 1))))
        if len(empty):
            labels = features if features is not None else _labels(dims)
            names = [str(labels[k]) if labels is not None else str(k) for k in empty]
            warnings.warn(
                f"nothing is observed of column {', '.join(names)} of {name!r}: only the prior informs it",
                UserWarning,
                stacklevel=3,
            )
    return pt.constant(values.astype(pytensor.config.floatX))


def _labels(dims: Any) -> Any:
    """Labels of the last dim in the model's coords."""
    if dims is None or isinstance(dims, str):
        return None
    return modelcontext(None).coords.get(dims[-1])


def _refuse_infinite(name: str, values: NDArray) -> None:
    infinite = np.argwhere(np.isinf(values))
    if len(infinite):
        where = tuple(int(i) for i in infinite[0])
        raise ValueError(f"observed data of {name!r} are infinite at {where}; write NaN for missing entries")
