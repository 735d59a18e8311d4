r"""Building blocks: low-rank and positive-definite matrices, orthogonal columns, layers of networks.

Each function works inside a ``pm.Model``, registers its parts as ``{name}_U``, ``{name}_s``, ... and the matrix itself
as a deterministic ``name``, and returns the latter. A batch of independent matrices has leading dimensions: those of
``shape`` for :func:`low_rank`, ``size`` elsewhere, or just more ``dims`` than one matrix has. Parts are aligned
afterwards as in

    pst.align(idata, "W_U", companions={"W_V": "rotate"}, order_by="W_s")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel.builders._spectra import check_positive, ordered_iid, wishart_spectrum
from pymc_stiefel.distributions import SpecialOrthogonal, StiefelUniform

__all__ = [
    "LowRank",
    "eigen_spd",
    "low_rank",
    "low_rank_factors",
    "orthogonal_columns",
    "orthogonal_conv",
    "orthogonal_dense",
]


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
    *batch_shape, m, n = shape
    if not 1 <= rank <= min(m, n):
        raise ValueError(f"need 1 <= rank <= min(m, n), got rank = {rank} with shape {(m, n)}")
    batch, (row, column) = _dims(name, dims, (m, n), ("row", "column"), batch_shape or None)
    _, (inner,) = _dims(name, None if rank_dim is None else [rank_dim], [rank], ["rank"])
    U = StiefelUniform(f"{name}_U", n=m, p=rank, dims=(*batch, row, inner))
    V = StiefelUniform(f"{name}_V", n=n, p=rank, dims=(*batch, column, inner))
    if isinstance(singular_values, str):
        if singular_values != "gaussian":
            raise ValueError(f"singular_values must be 'gaussian' or a distribution, got {singular_values!r}")
        s = wishart_spectrum(f"{name}_s", rank, m + n - rank, scale=sigma, kind="gaussian", dims=(*batch, inner))
    else:
        s = ordered_iid(f"{name}_s", rank, singular_values, dims=(*batch, inner))
    return LowRank(U, s, V)


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
    Muirhead (1982), Theorem 3.2.18, doi:10.1002/9780470316559.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     S = pst.eigen_spd("S", 3, eigenvalues="inverse_wishart")
    >>> pm.draw(S, random_seed=1).shape
    (3, 3)
    """
    batch, (row, column) = _dims(name, dims, (n, n), ("row", "column"), size)
    _, (inner,) = _dims(name, None if eigen_dim is None else [eigen_dim], [n], ["eigen"])
    # a rotation is enough, since the sign of a column cancels; and unlike O(n) its group is connected
    Q = SpecialOrthogonal(f"{name}_Q", n=n, dims=(*batch, row, inner))
    if isinstance(eigenvalues, str):
        if eigenvalues not in ("wishart", "inverse_wishart"):
            raise ValueError(f"eigenvalues must be 'wishart', 'inverse_wishart' or a distribution, got {eigenvalues!r}")
        nu = n + 2 if nu is None else nu
        l = wishart_spectrum(f"{name}_l", n, nu, scale=scale, kind=eigenvalues, dims=(*batch, inner))
    else:
        l = ordered_iid(f"{name}_l", n, eigenvalues, dims=(*batch, inner))
    return pm.Deterministic(name, _scaled(Q, l) @ pt.swapaxes(Q, -1, -2), dims=(*batch, row, column))


def orthogonal_columns(
    name: str,
    n: int,
    p: int,
    *,
    scales: TensorVariable,
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
    scales : distribution
        Law of the lengths: a positive scalar such as ``pm.HalfNormal.dist(1)``, or of a shape that broadcasts against
        ``(*size, p)`` (``(*size, 1)`` if ``ordered``).
    ordered : bool
        Whether the lengths come in descending order.
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
    ...     X = pst.orthogonal_columns("X", 5, 2, scales=pm.HalfNormal.dist(1))
    >>> pm.draw(X, random_seed=1).shape
    (5, 2)
    """
    batch, (row, column) = _dims(name, dims, (n, p), ("row", "column"), size)
    Q = StiefelUniform(f"{name}_Q", n=n, p=p, dims=(*batch, row, column))
    if ordered:
        d = ordered_iid(f"{name}_d", p, scales, dims=(*batch, column))
    else:
        check_positive(scales)
        model = pm.modelcontext(None)
        sized = change_dist_size(scales, tuple(model.dim_lengths[dim] for dim in (*batch, column)))
        d = model.register_rv(sized, f"{name}_d", dims=(*batch, column))
    return pm.Deterministic(name, _scaled(Q, d), dims=(*batch, row, column))


def orthogonal_dense(
    name: str,
    n_in: int,
    n_out: int,
    *,
    gain: Any = 1.0,
    size: int | Sequence[int] | None = None,
    dims: Sequence[str] | None = None,
) -> TensorVariable:
    r"""Weights of a dense layer ``x @ W``, with orthonormal columns or, if ``n_out > n_in``, rows.

    Both are multiplied by ``gain``. Lengths are kept where they can be: :math:`|xW| = g|x|` if ``n_out >= n_in``.

    Parameters
    ----------
    name : str
        Name of ``W``; its uniform part is ``{name}_Q``, of shape (max, min).
    n_in, n_out : int
        Inputs and outputs of the layer.
    gain : float or variable
        :math:`g`, the length of the columns or rows.
    size : int or sequence of int, optional
        Shape of a batch of independent matrices.
    dims : sequence of str, optional
        Dims of ``W``; default ``{name}_in`` and ``{name}_out``, with ``{name}_batch_0``, ... in front.

    Returns
    -------
    TensorVariable
        ``W``, shape ``(*size, n_in, n_out)``.

    References
    ----------
    Saxe, McClelland & Ganguli (2014), doi:10.48550/arXiv.1312.6120.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     W = pst.orthogonal_dense("W", 8, 3)
    >>> pm.draw(W, random_seed=1).shape
    (8, 3)
    """
    batch, (first, second) = _dims(name, dims, (n_in, n_out), ("in", "out"), size)
    if n_in >= n_out:
        W: TensorVariable = StiefelUniform(f"{name}_Q", n=n_in, p=n_out, dims=(*batch, first, second))
    else:
        W = pt.swapaxes(StiefelUniform(f"{name}_Q", n=n_out, p=n_in, dims=(*batch, second, first)), -1, -2)
    return pm.Deterministic(name, gain * W, dims=(*batch, first, second))


def orthogonal_conv(
    name: str,
    out_channels: int,
    in_channels: int,
    kernel_size: int | Sequence[int],
    *,
    gain: Any = 1.0,
    size: int | Sequence[int] | None = None,
    dims: Sequence[str] | None = None,
) -> TensorVariable:
    """Convolution kernel, orthogonal as the matrix ``out x (in * width * height)``.

    Filters are orthonormal if there are at most ``in * width * height`` of them, otherwise the columns of that matrix
    are. Both are multiplied by ``gain``.

    Parameters
    ----------
    name : str
        Name of the kernel; its uniform part is ``{name}_Q``, of shape (max, min), dims those of the output channels
        and ``{name}_fan_in``.
    out_channels, in_channels : int
        Number of filters and of channels that each of them reads.
    kernel_size : int or sequence of int
        One number is a square kernel.
    gain : float or variable
        Length of the filters.
    size : int or sequence of int, optional
        Shape of a batch of independent matrices.
    dims : sequence of str, optional
        Dims of the kernel; default ``{name}_out``, ``{name}_in``, ``{name}_kernel_0``, ..., with
        ``{name}_batch_0``, ... in front.

    Returns
    -------
    TensorVariable
        Shape ``(*size, out_channels, in_channels, *kernel_size)``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     K = pst.orthogonal_conv("K", 4, 3, 2)
    >>> pm.draw(K, random_seed=1).shape
    (4, 3, 2, 2)
    """
    window = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    fan_in = in_channels * math.prod(window)
    suffixes = ("out", "in", *(f"kernel_{i}" for i in range(len(window))))
    batch, (out, *others) = _dims(name, dims, (out_channels, in_channels, *window), suffixes, size)
    _, (inner,) = _dims(name, None, [fan_in], ["fan_in"])
    if out_channels <= fan_in:
        kernel = pt.swapaxes(StiefelUniform(f"{name}_Q", n=fan_in, p=out_channels, dims=(*batch, inner, out)), -1, -2)
    else:
        kernel = StiefelUniform(f"{name}_Q", n=out_channels, p=fan_in, dims=(*batch, out, inner))
    shape = (*(kernel.shape[i] for i in range(len(batch))), out_channels, in_channels, *window)
    return pm.Deterministic(name, gain * kernel.reshape(shape), dims=(*batch, out, *others))


def _scaled(X: TensorVariable, d: TensorVariable) -> TensorVariable:
    """``X diag(d)``, matrices and vectors in the last dimensions."""
    return X * (d if d.ndim == 1 else d[..., None, :])


def _dims(
    name: str,
    dims: Sequence[str] | None,
    sizes: Sequence[int],
    suffixes: Sequence[str],
    size: int | Sequence[int] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Dims of the batch and of one matrix: the user's, or new ones, since parts that share a dimension shall say so."""
    model = pm.modelcontext(None)
    batch_shape = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    if dims is None:
        dims = [*(f"{name}_batch_{i}" for i in range(len(batch_shape))), *(f"{name}_{suffix}" for suffix in suffixes)]
        for dim, length in zip(dims, (*batch_shape, *sizes), strict=True):
            model.add_coord(dim, range(length))
    n_batch = len(dims) - len(sizes)
    if isinstance(dims, str) or n_batch < 0 or (size is not None and n_batch != len(batch_shape)):
        wanted = f"{len(batch_shape) + len(sizes)} names" + ("" if size is not None else ", those of a batch in front")
        raise ValueError(f"dims of {name!r} must be {wanted}, got {dims!r}")
    for dim, length in zip(dims, batch_shape, strict=False):
        if dim in model.dim_lengths and int(model.dim_lengths[dim].eval()) != length:
            raise ValueError(
                f"{name!r} has {length} along {dim!r}, which has length {int(model.dim_lengths[dim].eval())}"
            )
    return tuple(dims[:n_batch]), tuple(dims[n_batch:])
