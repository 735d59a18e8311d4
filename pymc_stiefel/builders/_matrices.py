r"""Building blocks: low-rank and positive-definite matrices, matrices with orthogonal columns.

Each function works inside a ``pm.Model``, registers its parts as ``{name}_U``, ``{name}_s``, ... and the matrix itself
as a deterministic ``name``, and returns the latter. A batch of independent matrices has leading dimensions: those of
``shape`` for :func:`low_rank`, ``size`` elsewhere, or just more ``dims`` than one matrix has. Parts are aligned
afterwards as in

    pst.align(idata, "W_U", companions={"W_V": "rotate"}, order_by="W_s")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel._checks import choice, flag
from pymc_stiefel.builders._dims import dims_of, inner_dim, positive
from pymc_stiefel.builders._spectra import column_lengths, ordered_iid, wishart_spectrum
from pymc_stiefel.distributions import SpecialOrthogonal, StiefelUniform

__all__ = ["LowRank", "eigen_spd", "low_rank", "low_rank_factors", "orthogonal_columns"]


def low_rank(
    name: str,
    shape: Sequence[int],
    rank: int,
    *,
    singular_values: str | TensorVariable = "gaussian",
    sigma: Any = 1.0,
    dims: Sequence[str] | None = None,
    rank_dim: str | None = None,
) -> TensorVariable:
    r"""An m x n matrix of rank ``r``, :math:`W = U\,\mathrm{diag}(s)\,V'`.

    ``U`` (m, r) and ``V`` (n, r) are uniform on their Stiefel manifolds, ``s`` is positive and descending.

    Parameters
    ----------
    name : str
        Name of ``W``; the parts are ``{name}_U``, ``{name}_s`` and ``{name}_V``.
    shape : sequence of int
        ``(m, n)``, or ``(*batch, m, n)`` for a batch.
    rank : int
        ``r <= min(m, n)``.
    singular_values : "gaussian" or a positive distribution
        - ``"gaussian"``: ``W`` has density :math:`\propto \exp(-|W|^2 / 2\sigma^2)` with respect to the Riemannian
          volume of the matrices of rank ``r``. For ``r = min(m, n)`` its entries are independent
          :math:`N(0, \sigma^2)`. In general

          .. math:: p(s) \propto \prod_i s_i^{m + n - 2r} e^{-s_i^2/2\sigma^2} \prod_{i<j} (s_i^2 - s_j^2),

          which is the law of the singular values of an (m + n - r) x r Gaussian matrix, and
          :math:`E|W|^2 = \sigma^2 r (m + n - r)`, the dimension of the manifold times :math:`\sigma^2`.
        - a distribution such as ``pm.HalfNormal.dist(2)``: independent draws of it, put in order. In a batch it may
          have shape ``(*batch, 1)``, as ``pm.HalfNormal.dist(tau[:, None])`` has.
    sigma : float or variable
        Scale of the ``"gaussian"`` law; it may be a random variable, and have the shape of the batch.
    dims : sequence of str, optional
        Dims of ``W``; default ``{name}_row`` and ``{name}_column``, with ``{name}_batch_0``, ... in front.
    rank_dim : str, optional
        Dim of ``s`` and of the columns of ``U`` and ``V``; default ``{name}_rank``.

    Returns
    -------
    TensorVariable
        ``W``, shape ``(*batch, m, n)``.

    References
    ----------
    Muirhead (1982), doi:10.1002/9780470316559, for the Jacobian of the singular value decomposition.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     W = pst.low_rank("W", (5, 4), rank=2)
    >>> pm.draw(W, random_seed=1).shape
    (5, 4)
    """
    parts = low_rank_factors(
        name, shape, rank, singular_values=singular_values, sigma=sigma, dims=dims, rank_dim=rank_dim
    )
    known = pm.modelcontext(None).named_vars_to_dims
    *outer, _ = known[f"{name}_U"]
    return pm.Deterministic(name, parts.matrix(), dims=(*outer, known[f"{name}_V"][-2]))


class LowRank(NamedTuple):
    r"""The parts of :math:`W = U\,\mathrm{diag}(s)\,V'`, as :func:`low_rank_factors` gives them.

    Parameters
    ----------
    U, s, V : TensorVariable
        Orthonormal (m, r), ordered (r,) and orthonormal (n, r), each with the batch dimensions in front.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     W = pst.low_rank_factors("W", (4, 3), rank=2).matrix()
    >>> pm.draw(W, random_seed=1).shape
    (4, 3)
    """

    U: TensorVariable
    s: TensorVariable
    V: TensorVariable

    def matrix(self) -> TensorVariable:
        """The product, shape ``(*batch, m, n)``."""
        return _scaled(self.U, self.s) @ pt.swapaxes(self.V, -1, -2)


def low_rank_factors(
    name: str,
    shape: Sequence[int],
    rank: int,
    *,
    singular_values: str | TensorVariable = "gaussian",
    sigma: Any = 1.0,
    dims: Sequence[str] | None = None,
    rank_dim: str | None = None,
) -> LowRank:
    r"""The parts of :func:`low_rank` without the product, for matrices too large to be formed or stored.

    An entry is ``(U[i] * s * V[j]).sum(-1)``, a layer ``(x @ U * s) @ V.T``.

    Parameters
    ----------
    name, shape, rank, singular_values, sigma, dims, rank_dim
        As for :func:`low_rank`.

    Returns
    -------
    LowRank
        ``U`` (m, r), ``s`` (r,) and ``V`` (n, r), registered as ``{name}_U``, ``{name}_s`` and ``{name}_V``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     U, s, V = pst.low_rank_factors("W", (5000, 4000), rank=2, singular_values=pm.HalfNormal.dist(100))
    >>> pm.draw(s, random_seed=1).shape
    (2,)
    """
    *batch_shape, m, n = _matrix_shape(shape)
    rank = check.integer("rank", rank)
    if rank > min(m, n):
        raise ValueError(f"rank must be at most min(m, n), got rank = {rank} with shape {(m, n)}")
    batch, (row, column) = dims_of(name, dims, (m, n), ("row", "column"), batch_shape or None)
    inner = inner_dim(name, "rank_dim", rank_dim, rank, "rank")
    U = StiefelUniform(f"{name}_U", n=m, p=rank, dims=(*batch, row, inner))
    V = StiefelUniform(f"{name}_V", n=n, p=rank, dims=(*batch, column, inner))
    if isinstance(singular_values, str):
        choice("singular_values", singular_values, ("gaussian",))
        scale = positive("sigma", sigma, batch)
        s = wishart_spectrum(f"{name}_s", rank, m + n - rank, scale=scale, kind="gaussian", dims=(*batch, inner))
    else:
        s = ordered_iid(f"{name}_s", rank, singular_values, dims=(*batch, inner), argument="singular_values")
    return LowRank(U, s, V)


def _matrix_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int) or len(sizes := check.integers("shape", shape)) < 2:
        raise ValueError(f"shape must be (m, n) or (*batch, m, n), got {shape!r}")
    return sizes


def eigen_spd(
    name: str,
    n: int,
    *,
    eigenvalues: str | TensorVariable = "wishart",
    nu: Any = None,
    scale: Any = 1.0,
    size: int | Sequence[int] | None = None,
    dims: Sequence[str] | None = None,
    eigen_dim: str | None = None,
) -> TensorVariable:
    r"""A positive-definite n x n matrix, :math:`S = Q\,\mathrm{diag}(l)\,Q'`.

    ``Q`` is a uniform rotation, ``l`` is positive and descending.

    Parameters
    ----------
    name : str
        Name of ``S``; the parts are ``{name}_Q`` and ``{name}_l``.
    n : int
        Size.
    eigenvalues : {"wishart", "inverse_wishart"} or a positive distribution
        ``"wishart"``: ``S`` has the law :math:`W_n(\nu, c I)`; ``"inverse_wishart"``: :math:`W^{-1}_n(\nu, c I)`; both
        include the Jacobian :math:`\prod_{i<j} (l_i - l_j)`. A distribution such as ``pm.Gamma.dist(2, 1)``, a scalar
        or of shape ``(*size, 1)``: independent draws of it, put in order.
    nu : float, optional
        Degrees of freedom, ``nu > n - 1``; default ``n + 2``, for which the inverse Wishart has mean ``scale * I``.
    scale : float or variable
        The number ``c``, or one for each matrix of a batch. A scale matrix other than a multiple of the identity ties
        ``Q`` to ``l``: use ``L S L'``.
    size : int or sequence of int, optional
        Shape of a batch of independent matrices.
    dims : sequence of str, optional
        Dims of ``S``, default ``{name}_row`` and ``{name}_column``, with ``{name}_batch_0``, ... in front; that of the
        rows is also that of the rows of ``Q``.
    eigen_dim : str, optional
        Dim of ``l`` and of the columns of ``Q``; default ``{name}_eigen``.

    Returns
    -------
    TensorVariable
        ``S``, shape ``(*size, n, n)``.

    References
    ----------
    Muirhead (1982), Theorem 3.2.17, doi:10.1002/9780470316559.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     S = pst.eigen_spd("S", 3, eigenvalues="inverse_wishart")
    >>> pm.draw(S, random_seed=1).shape
    (3, 3)
    """
    n = check.integer("n", n)
    batch, (row, column) = dims_of(name, dims, (n, n), ("row", "column"), size)
    inner = inner_dim(name, "eigen_dim", eigen_dim, n, "eigen")
    # a rotation is enough, since the sign of a column cancels; and unlike O(n) its group is connected
    Q = SpecialOrthogonal(f"{name}_Q", n=n, dims=(*batch, row, inner))
    if isinstance(eigenvalues, str):
        choice("eigenvalues", eigenvalues, ("wishart", "inverse_wishart"))
        nu, scale = positive("nu", n + 2 if nu is None else nu, batch), positive("scale", scale, batch)
        l = wishart_spectrum(f"{name}_l", n, nu, scale=scale, kind=eigenvalues, dims=(*batch, inner))
    else:
        l = ordered_iid(f"{name}_l", n, eigenvalues, dims=(*batch, inner), argument="eigenvalues")
    return pm.Deterministic(name, _scaled(Q, l) @ pt.swapaxes(Q, -1, -2), dims=(*batch, row, column))


def orthogonal_columns(
    name: str,
    n: int,
    p: int,
    *,
    scales: TensorVariable | None = None,
    prior: str | None = None,
    sigma: Any = 1.0,
    ordered: bool = False,
    size: int | Sequence[int] | None = None,
    dims: Sequence[str] | None = None,
) -> TensorVariable:
    r"""An n x p matrix with orthogonal columns of free length, :math:`X = Q\,\mathrm{diag}(d)`.

    ``Q`` is uniform on St(n, p), the lengths ``d`` are independent and positive.

    Parameters
    ----------
    name : str
        Name of ``X``; the parts are ``{name}_Q`` and ``{name}_d``.
    n, p : int
        Rows and columns, ``n >= p``.
    scales : distribution, optional
        Law of the lengths: a positive scalar such as the default, ``pm.HalfNormal.dist(1)``, or of a shape that
        broadcasts against ``(*size, p)`` (``(*size, 1)`` if ``ordered``).
    prior : "normal", optional
        Instead of ``scales``: the law that gives :math:`XX'` the law of :math:`ZZ'` with independent
        :math:`N(0, \sigma^2)` entries of ``Z``. The lengths are the singular values of ``Z``, in descending order. A
        model that depends on :math:`XX'` only, as factor models do, is the same as with ``Z``, without its rotations.
    sigma : float or variable
        :math:`\sigma` of ``prior="normal"``; it may have the shape of the batch.
    ordered : bool
        Whether the lengths come in descending order; those of ``prior="normal"`` always do.
    size : int or sequence of int, optional
        Shape of a batch of independent matrices.
    dims : sequence of str, optional
        Dims of ``X``; default ``{name}_row`` and ``{name}_column``, with ``{name}_batch_0``, ... in front.

    Returns
    -------
    TensorVariable
        ``X``, shape ``(*size, n, p)``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     X = pst.orthogonal_columns("X", 5, 2)
    >>> pm.draw(X, random_seed=1).shape
    (5, 2)
    """
    n, p = check.dimensions(n, p)
    flag("ordered", ordered)
    batch, (row, column) = dims_of(name, dims, (n, p), ("row", "column"), size)
    Q = StiefelUniform(f"{name}_Q", n=n, p=p, dims=(*batch, row, column))
    d = column_lengths(f"{name}_d", n, p, scales, prior, sigma, ordered, (*batch, column))
    return pm.Deterministic(name, _scaled(Q, d), dims=(*batch, row, column))


def _scaled(X: TensorVariable, d: TensorVariable) -> TensorVariable:
    """``X diag(d)``, matrices and vectors in the last dimensions."""
    return X * (d if d.ndim == 1 else d[..., None, :])
