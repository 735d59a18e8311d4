r"""Log density of a normal law with covariance :math:`WW' + \mathrm{diag}(d)`, row by row and in sum.

Every formula goes through the conditional law of the scores ``z`` of a row, which is normal with precision
:math:`M = I + W_o'\,\mathrm{diag}(d_o)^{-1} W_o` and mean :math:`M^{-1} W_o'\,\mathrm{diag}(d_o)^{-1} (y_o - \mu_o)`,
where ``o`` are the entries of the row that are observed. ``M`` is p x p and its eigenvalues are at least one.

The sum over rows needs the data only through sums and, if there are many rows, through their cross products. Its
gradient is that of the complete-data likelihood with the scores replaced by their conditional moments (Fisher's
identity), so value and gradient share one product with the data. A rewrite replaces ``rows.sum()``, which the model's
log density contains, by this sum, for all samplers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.rewriting.basic import register_canonicalize
from pytensor.tensor.variable import TensorConstant

from pymc_stiefel.distributions._low_rank_data import Complete, Patterns, Scattered, make_parts
from pymc_stiefel.ops._polar import Differentiable

__all__ = ["orthogonal_rows", "rows", "times", "transposed"]

LOG_2PI = float(np.log(2 * np.pi))


# ---------------------------------------------------------------- graphs


def _whitener(M):
    """Inverse of the Cholesky factor of positive-definite matrices ``(..., p, p)``, and their log determinants.

    Where an entry of ``d`` is small, ``M`` is ill-conditioned. A quadratic form in its inverse then loses all digits;
    a sum of squares after multiplication by this factor loses only half of them.
    """
    p = M.type.shape[-1]
    if p == 1:
        return 1 / pt.sqrt(M), pt.log(M[..., 0, 0])
    L = pt.linalg.cholesky(M)
    identity = pt.eye(p if p is not None else M.shape[-1], dtype=M.dtype)
    identity = identity if M.ndim == 2 else pt.broadcast_to(identity, M.shape)
    log_det = 2 * pt.log(_diagonal(L)).sum(axis=-1)
    return pt.linalg.solve_triangular(L, identity, lower=True, b_ndim=2), log_det


def _diagonal(M):
    return pt.diagonal(M, axis1=-2, axis2=-1)


def _where_accurate(value, terms, count):
    """``value``, or -inf where it is a difference of terms so large that their rounding errors would show.

    Without this, a sampler finds points where the error is a large positive number, with noise of about 1e-7 of the
    loadings.
    """
    return pt.switch(np.finfo(value.dtype).eps * terms < 1 + 1e-6 * count, value, -np.inf)


def transposed(x: Any) -> Any:
    return x.T if x.ndim == 2 else pt.swapaxes(x, -1, -2)


def times(vector: Any, matrix: Any) -> Any:
    """``vector @ matrix`` for stacks of either; one matrix for all vectors is one product."""
    return vector @ matrix if matrix.ndim == 2 else (vector[..., None, :] @ matrix)[..., 0, :]


def _eye(x):
    p = x.type.shape[-1]
    return pt.eye(p if p is not None else x.shape[-1], dtype=x.dtype)


def _positive(d):
    """``d`` where it is positive, one elsewhere, where the density is replaced by -inf."""
    return pt.switch(d > 0, d, 1.0)


def _core(x, ndim: int):
    """``x`` without batch dimensions of length one, None if it has others."""
    batch = x.ndim - ndim
    if not all(x.type.broadcastable[:batch]):
        return None
    return x.squeeze(tuple(range(batch))) if batch else x


def _by_pattern(weights, W, V):
    """``W' diag(o) V`` for every row ``o`` of ``weights``, one product in all."""
    n, p = V.shape[0], V.shape[1]
    flat = (W[:, :, None] * V[:, None, :]).reshape((n, p * p))
    M = (weights @ flat).reshape((weights.shape[0], p, p))
    return pt.specify_shape(M, (None, V.type.shape[1], V.type.shape[1]))


def rows(value: Any, mu: Any, W: Any, d: Any) -> Any:
    """Log density of each row; entries of a constant ``value`` that are NaN are integrated out."""
    given = value, mu, W, d
    one_W, one_d, ok = _core(W, 2), _core(d, 1), pt.all(d > 0, axis=-1)
    d = _positive(d if one_d is None else one_d)
    W = W if one_W is None else one_W
    V = W / d[..., None]
    missing = np.isnan(value.data) if isinstance(value, Constant) else np.zeros((), bool)
    seen: Any = 1.0
    if missing.any():
        seen = pt.constant((~missing).astype(W.dtype))
        residual = seen * (pt.constant(np.where(missing, 0.0, value.data)) - mu)
        if V.ndim == 2:
            patterns = Patterns(value.data.reshape(-1, value.data.shape[-1]))
            M = _eye(W) + _by_pattern(pt.constant(patterns.observed.astype(W.dtype)), W, V)
            whitener, log_det = _whitener(M)
            of_row = patterns.of_row.reshape(value.data.shape[:-1])
            M, whitener, log_det = M[of_row], whitener[of_row], log_det[of_row]
        else:
            M = _eye(W) + transposed(W) @ (seen[..., None] * V)
            whitener, log_det = _whitener(M)
        log_d, count = (seen * pt.log(d)).sum(axis=-1), (~missing).sum(axis=-1)
    else:
        residual = value - mu
        M = _eye(W) + transposed(W) @ V
        whitener, log_det = _whitener(M)
        log_d, count = pt.log(d).sum(axis=-1), d.shape[-1]
    z = times(times(times(residual, V), transposed(whitener)), whitener)
    lost = (_diagonal(M) * _diagonal(whitener) ** 2).max(axis=-1)  # digits that the pivots of Cholesky's factor lose
    eps = np.finfo(W.dtype).eps
    ok = ok & (eps * lost < eps ** (1 / 3))  # as in _where_accurate
    # a sum of squares, where Woodbury's identity would be a difference
    misfit = ((seen * (residual - times(z, transposed(W)))) ** 2 / d).sum(axis=-1) + (z**2).sum(axis=-1)
    density = pt.switch(ok, -0.5 * (count * LOG_2PI + log_d + log_det + misfit), -np.inf)
    return _marked(density, *given)


def orthogonal_rows(value: Any, mu: Any, W: Any, d: Any) -> Any:
    """The same for a factor with orthogonal columns and a scalar ``d``: ``M`` is diagonal."""
    if isinstance(value, Constant) and np.isnan(value.data).any():  # what is left of the columns is not orthogonal
        return rows(value, mu, W, d[..., None] * pt.ones(W.shape[-2], dtype=W.dtype))
    given, n = (value, mu, W, d), W.shape[-2]
    lengths, safe = (W**2).sum(axis=-2), _positive(d)
    W = W if _core(W, 2) is None else _core(W, 2)
    residual = value - mu
    z = times(residual, W) / (safe[..., None] + lengths)
    misfit = ((residual - times(z, transposed(W))) ** 2).sum(axis=-1) / safe + (z**2).sum(axis=-1)
    log_det = n * pt.log(safe) + pt.log1p(lengths / safe[..., None]).sum(axis=-1)
    density = pt.switch(d > 0, -0.5 * (n * LOG_2PI + log_det + misfit), -np.inf)
    return _marked(density, *given)


# ---------------------------------------------------------------- sums over rows: value and gradient
#
# The factor comes transposed, (p, n): loops over its entries are then long, and matrices of this package are stored so.


def _sum_complete(mu, Wt, d, part: Complete):
    """Rows with the same observed entries."""
    mean, squares, _ = part.arrays
    N, m, Vt = part.rows, mean - mu, Wt / d
    M = _eye(Wt.T) + Vt @ Wt.T
    whitener, log_det = _whitener(M)
    Tt = whitener @ Vt
    u, Qt = Tt @ m, Tt * d
    product = _product(part, Tt) + N * u[:, None] * m
    squares = squares + N * m**2
    total = (squares / d).sum()
    misfit = total - (product * Tt).sum()
    value = -0.5 * (N * (d.shape[0] * LOG_2PI + pt.log(d).sum() + log_det) + misfit)
    fitted = (product @ Tt.T) @ Qt + N * Qt
    by_mu, by_Q, by_d = _gradient(Qt, d, N, N * (m - u @ Qt), squares, product, fitted)
    return _where_accurate(value, total + N * _diagonal(M).sum(), N * d.shape[0]), (by_mu, whitener.T @ by_Q, by_d)


def _product(part: Complete, Vt):
    """``Vt`` times the cross products about the mean."""
    data = part.arrays[-1]
    return Vt @ data if part.crossed else (data @ Vt.T).T @ data


def _sum_scattered(mu, Wt, d, part: Scattered):
    """Rows of many patterns: one product for all their precisions, one for all their scores."""
    centre, entries, observed, of_row, counts, sums, squares = part.arrays
    W = Wt.T
    m, V, n_patterns, p = mu - centre, W / d[:, None], len(part.rows), W.shape[1]
    M = _eye(W) + _by_pattern(observed, W, V)
    whitener, log_det = _whitener(M)
    inverse = transposed(whitener) @ whitener
    T = entries @ V - (observed @ (m[:, None] * V))[of_row]
    T = (whitener[of_row] * T[:, None, :]).sum(axis=-1)
    z = (whitener[of_row] * T[:, :, None]).sum(axis=1)
    squares = squares - 2 * m * sums + counts * m**2
    total = (squares / d).sum()
    misfit = total - (T**2).sum()
    value = -0.5 * ((counts * (LOG_2PI + pt.log(d))).sum() + (part.rows * log_det).sum() + misfit)

    def over_rows(x):
        """Sums over the rows of each pattern."""
        if part.order is not None:
            return x[part.order]
        return pt.inc_subtensor(pt.zeros((n_patterns, x.shape[1]), dtype=x.dtype)[of_row], x)

    outer = over_rows((z[:, :, None] * z[:, None, :]).reshape((z.shape[0], p * p)))
    second = outer + part.rows[:, None] * inverse.reshape((n_patterns, p * p))
    first = over_rows(z).T @ observed  # (p, n): sums of scores over the rows where a feature is seen
    moments = (second.T @ observed).reshape((p, p, W.shape[0]))
    fitted = (moments * Wt).sum(axis=1)
    with_scores = z.T @ entries - m * first
    residuals = sums - counts * m - (Wt * first).sum(axis=0)
    terms = total + (part.rows * _diagonal(M).sum(axis=-1)).sum()
    return _where_accurate(value, terms, counts.sum()), _gradient(
        Wt, d, counts, residuals, squares, with_scores, fitted
    )


def _gradient(Wt, d, counts, residuals, squares, with_scores, fitted):
    """In mu, W' and d, from sums over observed entries of ``E(r - Wz)``, ``r^2``, ``E z r'`` and ``E zz' W'``."""
    left = squares + ((fitted - 2 * with_scores) * Wt).sum(axis=0)
    return residuals / d, (with_scores - fitted) / d, 0.5 * (left / d - counts) / d


def _sum_orthogonal(mu, Wt, d, part: Complete):
    """A factor with orthogonal columns, and scalar ``d``: no factorisation is needed."""
    mean, squares, _ = part.arrays
    N, m, p, n = part.rows, mean - mu, Wt.shape[0], Wt.shape[1]
    total, u = d + (Wt**2).sum(axis=1), Wt @ m
    product = _product(part, Wt) + N * u[:, None] * m
    share = (Wt * product).sum(axis=1) / total
    terms = squares.sum() + N * (m**2).sum()
    misfit = (terms - share.sum()) / d
    value = -0.5 * (N * (n * LOG_2PI + (n - p) * pt.log(d) + pt.log(total).sum()) + misfit)
    by_mu = (N / d) * (m - (u / total) @ Wt)
    by_W = product * (1 / (d * total))[:, None] - Wt * ((N + share / d) / total)[:, None]
    by_d = 0.5 * ((misfit - (share / total).sum() - N * (n - p)) / d - (N / total).sum())
    return _where_accurate(value, (terms + N * total.sum()) / d, N * n), (by_mu, by_W, by_d)


# ---------------------------------------------------------------- in PyTensor's graphs


class _Identity(Differentiable):
    """The first input, with others that rewrites and derivatives ask for; removed when a function is compiled."""

    __props__: tuple[str, ...] | None = ()

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [inputs[0].type()])

    def infer_shape(self, *args):
        return [args[-1][0]]

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0]

    view_map = {0: [0]}  # noqa: RUF012 (as PyTensor declares it)


class Rows(_Identity):
    """Log densities of rows. Other inputs: value, three parameters, and the arrays of ``parts`` of constant data."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def connection_pattern(self, node):
        return [[True]] + [[False]] * (len(node.inputs) - 1)

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0]] + [DisconnectedType()() for _ in inputs[1:]]


def _marked(density, value, *params):
    """Log densities of rows in the form that ``sum_of_rows`` knows."""
    parts: list[Any] = []
    if isinstance(value, TensorConstant) and value.ndim > 1:
        if not hasattr(value.tag, "low_rank_parts"):
            value.tag.low_rank_parts = make_parts(value.data.reshape(-1, value.data.shape[-1]))
        parts = value.tag.low_rank_parts
    # the arrays are inputs from the start, because a rewrite cannot add any
    return Rows(parts)(density, value, *params, *(array for part in parts for array in part.arrays))


class WithGradient(_Identity):
    """A scalar with its gradient: inputs are the value, ``k`` variables, and the gradients in them."""

    def connection_pattern(self, node):
        k = len(node.inputs) // 2
        return [[False]] + [[True]] * k + [[False]] * k

    def pullback(self, inputs, outputs, cotangents):
        k = len(inputs) // 2
        known = [cotangents[0] * gradient for gradient in inputs[1 + k :]]
        return [DisconnectedType()(), *known, *(DisconnectedType()() for _ in range(k))]


@register_canonicalize
@node_rewriter([Sum])
def sum_of_rows(fgraph, node):
    """The sum by sufficient statistics, if neither mean nor covariance differ by row and the data are fixed."""
    (x,), axes = node.inputs, node.op.axis
    x, scale = _without_scale(x)
    if x.owner is None or not isinstance(x.owner.op, Rows) or (axes is not None and len(axes) < x.ndim):
        return None
    _, value, mu, W, d, *arrays = x.owner.inputs
    cores = _core(mu, 1), _core(W, 2), d if d.ndim == 0 else _core(d, 1)
    if any(core is None for core in cores) or value.ndim < 2 or not _is_data(value):
        return None
    mu, W, d = cores
    parts = [_with_gradient((mu, _turned(W), _positive(d)), part) for part in _bound(x.owner.op.parts, arrays, value)]
    return [(scale * pt.switch(pt.all(d > 0), pt.sum(parts), -np.inf)).astype(node.outputs[0].dtype)]


def _turned(W):
    """``W'``, of transposed factors if it is a product: PyTensor would not do this where ``W`` is used elsewhere."""
    if W.owner is not None and isinstance(W.owner.op, Elemwise):
        return W.owner.op(*(factor.T for factor in W.owner.inputs))
    return W.T


def _without_scale(x):
    """Rows and a scalar that they are multiplied with, as ``total_size`` does."""
    if x.owner is None or not isinstance(x.owner.op, Elemwise) or not isinstance(x.owner.op.scalar_op, Mul):
        return x, 1.0
    rows = [factor for factor in x.owner.inputs if not all(factor.type.broadcastable)]
    scalars = [factor.squeeze() for factor in x.owner.inputs if all(factor.type.broadcastable)]
    return (rows[0], pt.prod(scalars)) if len(rows) == 1 else (x, 1.0)


def _bound(parts, arrays, value) -> list[Any]:
    """Parts with the arrays of a node, which may have been replaced since; one part for exchangeable data."""
    if parts:
        rest = iter(arrays)
        return [replace(part, arrays=tuple(next(rest) for _ in part.arrays)) for part in parts]
    table = value if value.ndim == 2 else value.reshape((-1, value.shape[-1]))
    mean = table.mean(axis=0)
    centred = table - mean
    count = table.shape[0].astype(table.dtype)
    return [Complete(None, count, False, (mean, (centred**2).sum(axis=0), centred))]


def _with_gradient(params, part):
    columns = getattr(part, "columns", None)
    params = params if columns is None else tuple(param[..., columns] for param in params)
    scattered = isinstance(part, Scattered)
    formula: Any = _sum_scattered if scattered else _sum_orthogonal if params[-1].ndim == 0 else _sum_complete
    value, gradient = formula(*params, part)
    return WithGradient()(value, *params, *gradient)


def _is_data(value) -> bool:
    """Whether a value is made of constants and shared data only, so that its gradient is never needed."""
    leaves = [variable for variable in ancestors([value]) if variable.owner is None]
    return all(isinstance(leaf, Constant | SharedVariable) for leaf in leaves)


@node_rewriter([Rows, WithGradient])
def _remove(fgraph, node):
    return [node.inputs[0]]


# after canonicalisation, which the sums above belong to
optdb.register("pymc_stiefel_low_rank", in2out(_remove), "fast_run", "fast_compile", position=1.3)
