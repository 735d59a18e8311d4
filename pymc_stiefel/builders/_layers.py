"""Building blocks: layers of networks with orthogonal weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel.builders._dims import dims_of, inner_dim, positive
from pymc_stiefel.distributions import StiefelUniform

__all__ = ["orthogonal_conv", "orthogonal_dense"]


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

    Both are multiplied by ``gain``. Lengths are preserved, :math:`|xW| = g|x|`, if ``n_out >= n_in``.

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
    n_in, n_out = check.integer("n_in", n_in), check.integer("n_out", n_out)
    gain = positive("gain", gain)
    batch, (first, second) = dims_of(name, dims, (n_in, n_out), ("in", "out"), size)
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
    out_channels, in_channels = check.integer("out_channels", out_channels), check.integer("in_channels", in_channels)
    gain, window = positive("gain", gain), check.integers("kernel_size", kernel_size)
    window = window * 2 if np.ndim(kernel_size) == 0 else window
    fan_in = in_channels * math.prod(window)
    suffixes = ("out", "in", *(f"kernel_{i}" for i in range(len(window))))
    batch, (out, *others) = dims_of(name, dims, (out_channels, in_channels, *window), suffixes, size)
    inner = inner_dim(name, "", None, fan_in, "fan_in")
    if out_channels <= fan_in:
        kernel = pt.swapaxes(StiefelUniform(f"{name}_Q", n=fan_in, p=out_channels, dims=(*batch, inner, out)), -1, -2)
    else:
        kernel = StiefelUniform(f"{name}_Q", n=out_channels, p=fan_in, dims=(*batch, out, inner))
    shape = (*(kernel.shape[i] for i in range(len(batch))), out_channels, in_channels, *window)
    return pm.Deterministic(name, gain * kernel.reshape(shape), dims=(*batch, out, *others))
