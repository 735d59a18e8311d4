"""The public functions: they check arguments and call the samplers of whole batches."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel.draws import _batches

__all__ = [
    "angular_central_gaussian",
    "haar",
    "matrix_bingham",
    "matrix_bingham_langevin",
    "matrix_fisher",
    "matrix_langevin",
    "von_mises_fisher",
]

Matrix = NDArray[np.float64]
Size = int | tuple[int, ...] | None


def haar(n: int, p: int, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Uniform orthonormal matrices: Q of the QR decomposition of a Gaussian, with positive diagonal of R. O(n p^2).

    Parameters
    ----------
    n, p : int
        Rows and columns, ``n >= p >= 1``.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, p)

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> draws.haar(5, 2, size=3, rng=np.random.default_rng(1)).shape
    (3, 5, 2)
    """
    n, p = check.dimensions(n, p)
    return _batches.haar(n, p, check.sizes(size), check.generator(rng))


def angular_central_gaussian(Sigma: ArrayLike, p: int, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Matrix angular central Gaussian: the polar factor :math:`Z(Z'Z)^{-1/2}` of ``Z`` with columns N(0, Sigma).

    Exact; density :math:`|\Sigma|^{-p/2} |X'\Sigma^{-1}X|^{-n/2}`.

    Parameters
    ----------
    Sigma : (n, n)
        Positive definite.
    p : int
        Number of columns.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, p)

    References
    ----------
    Chikuse (1990), doi:10.1016/0047-259X(90)90050-R.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> draws.angular_central_gaussian(np.diag([9.0, 4.0, 1.0]), 2, rng=np.random.default_rng(1)).shape
    (3, 2)
    """
    Sigma, p = check.symmetric("Sigma", Sigma), check.whole("p", p)
    check.dimensions(len(Sigma), p)
    shape, rng = check.sizes(size), check.generator(rng)
    smallest = float(np.linalg.eigvalsh(Sigma)[0])
    if smallest <= 0:
        raise ValueError(
            f"Sigma must be positive definite; smallest eigenvalue {smallest:.3g}. Add a multiple of the identity."
        )
    X = _batches.angular_central_gaussian(Sigma[None], p, math.prod(shape), rng)
    return X.reshape(*shape, len(Sigma), p)


def von_mises_fisher(mu: ArrayLike, kappa: float, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Unit vectors with density proportional to :math:`\exp(\kappa\mu'x)`.

    Exact, by Wood's rejection sampler for the cosine (acceptance at least 0.65 for any n and kappa) and a uniform
    direction orthogonal to ``mu``. There is no rotation matrix, so ``mu = -e_1`` is not a special case. A draw is O(n).

    Parameters
    ----------
    mu : (n,)
        Mean direction; it need not have norm one.
    kappa : float
        Concentration, not negative.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n)

    References
    ----------
    Wood (1994), doi:10.1080/03610919408813161.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> x = draws.von_mises_fisher([0.0, 0.0, 1.0], 50.0, size=1000, rng=np.random.default_rng(1))
    >>> bool(abs(x[:, 2].mean() - 0.98) < 0.002)  # coth(kappa) - 1 / kappa
    True
    """
    mu = check.reals("mu", mu, 1)
    largest = float(np.abs(mu).max(initial=0.0))  # norms must not overflow
    if largest == 0.0:
        raise ValueError(f"mu must be a nonzero vector, got shape {mu.shape} and largest entry 0")
    mu = mu / largest
    mu = mu / np.linalg.norm(mu)
    try:
        kappa = check.scalar("kappa", kappa, least=0.0)
    except ValueError as error:
        raise ValueError(f"{error}; reverse mu for a negative concentration") from None
    shape, rng = check.sizes(size), check.generator(rng)
    x = _batches.von_mises_fisher(mu[None], np.array([kappa]), math.prod(shape), rng)
    return x.reshape(*shape, len(mu))


def matrix_langevin(F: ArrayLike, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Draws from the matrix Langevin (von Mises-Fisher) law, density proportional to :math:`\mathrm{etr}(F'X)`.

    Exact by Hoff's rejection sampler in the basis of F's singular vectors if its acceptance rate
    :math:`{}_0F_1(n/2; F'F/4) / \prod_j {}_0F_1((n-j+1)/2; s_j^2/4)` is above ``SMALLEST_RATE``. This is always so
    for p <= 7, and for larger p at moderate concentration (at high concentration and with equal singular values the
    rate tends to :math:`2^{-p(p-1)/4}`). Otherwise the draw is approximate: it is the result of ``GIBBS_SWEEPS`` Gibbs
    sweeps from Hoff's proposal, with exact conditionals of pairs of columns and of single columns. docs/normalizers.md
    shows how fast the sweeps forget their start.

    Parameters
    ----------
    F : (n, p)
        The mode is its polar factor, the singular values are the concentrations.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, p)

    References
    ----------
    Hoff (2009), doi:10.1198/jcgs.2009.07177.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> X = draws.matrix_langevin(100 * np.eye(4, 2), size=10, rng=np.random.default_rng(1))
    >>> bool(X[:, 0, 0].min() > 0.9)
    True
    """
    F = _parameter(F)
    shape, rng = check.sizes(size), check.generator(rng)
    return _batches.matrix_langevin(F[None], math.prod(shape), rng).reshape(*shape, *F.shape)


def matrix_fisher(F: ArrayLike, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Rotations from the matrix Fisher law on SO(n), density proportional to :math:`\mathrm{etr}(F'X)`.

    Exact for n = 2 (a von Mises angle) and n = 3 (a Bingham law of quaternions). For n >= 4, if the orthogonal matrix
    nearest to F is a rotation, draws of :func:`matrix_langevin` with determinant +1 are kept. Otherwise the draw is
    approximate, the result of ``GIBBS_SWEEPS`` Gibbs sweeps of plane rotations.

    Parameters
    ----------
    F : (n, n)
        The mode is the rotation nearest to F.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, n)

    References
    ----------
    Downs (1972), doi:10.1093/biomet/59.3.665; Prentice (1986), J. R. Statist. Soc. B 48, 214-222.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> X = draws.matrix_fisher(100 * np.eye(3), size=10, rng=np.random.default_rng(1))
    >>> bool(np.allclose(np.linalg.det(X), 1))
    True
    """
    F = _parameter(F)
    if F.shape[0] != F.shape[1]:
        raise ValueError(f"F must be a square matrix, got shape {F.shape}; matrix_langevin takes n x p")
    shape, rng = check.sizes(size), check.generator(rng)
    return _batches.matrix_fisher(F[None], math.prod(shape), rng).reshape(*shape, *F.shape)


def matrix_bingham(
    A: ArrayLike,
    B: ArrayLike | None = None,
    p: int | None = None,
    *,
    size: Size = None,
    rng: np.random.Generator,
) -> Matrix:
    r"""Draws from the matrix Bingham law, density proportional to :math:`\mathrm{etr}(B X'AX)`; ``B=None`` is identity.

    Exact for p = 1 and for B a multiple of the identity, by rejection from an angular central Gaussian (Kent, Ganeiber
    & Mardia), unless a limit on the number of proposals is reached (many concentrated columns). In that case, and for
    other B, the draw is approximate: it is the result of ``COLUMN_SWEEPS`` Gibbs sweeps as in
    :func:`matrix_bingham_langevin`. For nearly square matrices, n < 2p - 1, ``ROTATION_SWEEPS`` sweeps from the mode
    rotate all pairs of rows and columns by angles from their exact conditionals, in O(n^2 p) operations.

    Parameters
    ----------
    A : (n, n)
        Symmetric.
    B : (p, p), (p,) or None
        Symmetric, or the diagonal of a diagonal matrix; None is the identity.
    p : int, optional
        Number of columns; it follows from ``B`` if that is given.
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, p)

    References
    ----------
    Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> X = draws.matrix_bingham(np.diag([100.0, 0.0, 0.0]), p=1, size=10, rng=np.random.default_rng(1))
    >>> bool(abs(X[:, 0, 0]).min() > 0.9)
    True
    """
    A = check.symmetric("A", A)
    if B is None and p is None:
        raise ValueError("matrix_bingham needs B (p x p) or the number of columns p, got B=None and p=None")
    B = _coupling(B, p)
    check.dimensions(len(A), len(B))
    shape, rng = check.sizes(size), check.generator(rng)
    X = _batches.matrix_bingham(A[None], B[None], math.prod(shape), rng)
    return X.reshape(*shape, len(A), len(B))


def matrix_bingham_langevin(
    A: ArrayLike, B: ArrayLike | None, F: ArrayLike, *, size: Size = None, rng: np.random.Generator
) -> Matrix:
    r"""Draws from the matrix Bingham-Langevin law, density proportional to :math:`\mathrm{etr}(F'X + B X'AX)`.

    Exact for p = 1, by rejection from an angular central Gaussian. For p > 1 the draw is approximate: it is the result
    of ``COLUMN_SWEEPS`` Gibbs sweeps (Hoff 2009) with exact conditionals of single columns and of pairs (if F = 0, it
    is that of :func:`matrix_bingham`). The columns of the start are drawn one after the other, each in the complement
    of those before it. Do not rely on it if F and A favour distant modes. A sweep costs O(n p^3) operations, or
    O(n^3 p) for nearly square matrices, n < 2p - 1.

    Parameters
    ----------
    A : (n, n)
        Symmetric.
    B : (p, p), (p,) or None
        Symmetric, or the diagonal of a diagonal matrix; None is the identity.
    F : (n, p)
    size : int or tuple of int, optional
        Leading shape of independent draws; None is a single matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array (\*size, n, p)

    References
    ----------
    Hoff (2009), doi:10.1198/jcgs.2009.07177.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> rng = np.random.default_rng(1)
    >>> draws.matrix_bingham_langevin(np.diag([3.0, 2.0, 1.0]), [2.0, 1.0], np.eye(3, 2), size=2, rng=rng).shape
    (2, 3, 2)
    """
    A = check.symmetric("A", A)
    F = _parameter(F)
    if len(F) != len(A):
        raise ValueError(f"F must be a matrix with the {len(A)} rows of A, got shape {F.shape}")
    B = _coupling(B, F.shape[1], "the columns of F")
    shape, rng = check.sizes(size), check.generator(rng)
    X = _batches.matrix_bingham_langevin(A[None], B[None], F[None], math.prod(shape), rng)
    return X.reshape(*shape, *F.shape)


# ---------------------------------------------------------------- arguments


def _parameter(F: ArrayLike) -> Matrix:
    """F as a matrix with n >= p >= 1."""
    F = check.reals("F", F)
    if F.ndim != 2 or not F.shape[0] >= F.shape[1] >= 1:
        raise ValueError(f"F must be a matrix with at least as many rows as columns, got shape {F.shape}")
    return F


def _coupling(B: ArrayLike | None, p: int | None, like: str = "p") -> Matrix:
    """B as a matrix; a vector is its diagonal and None the identity."""
    p = None if p is None else check.whole("p", p)
    if B is None:
        assert p is not None
        return np.eye(p)
    numbers = check.reals("B", B)
    B = check.symmetric("B", np.diag(numbers) if numbers.ndim == 1 else numbers)
    if p is not None and len(B) != p:
        raise ValueError(f"B must be {p} x {p} to match {like}, got shape {B.shape}")
    return B
