r"""Random draws on St(n, p). Every function takes the NumPy generator and returns ``(*size, n, p)``.

``size`` is the leading shape of independent draws from one law; ``None`` and ``()`` mean a single matrix.

References
----------
Hoff (2009), doi:10.1198/jcgs.2009.07177; Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468;
Wood (1994), doi:10.1080/03610919408813161.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_stiefel.draws._gibbs import bingham_langevin_sweeps, langevin_sweeps
from pymc_stiefel.draws._rejection import bingham_width, fisher_bingham_vector, langevin_columns, vmf_deficits
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector
from pymc_stiefel.normalizers._functions import log_hyp0f1

__all__ = [
    "angular_central_gaussian",
    "haar",
    "matrix_bingham",
    "matrix_bingham_langevin",
    "matrix_langevin",
    "von_mises_fisher",
]

Matrix = NDArray[np.float64]
Size = int | tuple[int, ...] | None

GIBBS_SWEEPS = 40
"""Sweeps from an approximate draw to the returned one, where rejection is hopeless."""
PROPOSALS = 200
"""Proposals for each matrix Bingham draw, after which Gibbs sweeps take over."""
SMALLEST_RATE = 2e-4
"""Acceptance rate below which rejection gives way to Gibbs sweeps."""


def haar(n: int, p: int, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Uniform orthonormal matrices: the Q of a Gaussian's QR with the diagonal of R made positive; n p^2 operations.

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
    _check_dimensions(n, p)
    return _positive_qr(rng.standard_normal((*_shape(size), n, p)))


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
    Sigma = _symmetric("Sigma", Sigma)
    n = len(Sigma)
    _check_dimensions(n, p)
    try:
        factor = np.linalg.cholesky(Sigma)
    except np.linalg.LinAlgError:
        smallest = float(np.linalg.eigvalsh(Sigma)[0])
        raise ValueError(
            f"Sigma must be positive definite; smallest eigenvalue {smallest:.3g}. Add a multiple of the identity."
        ) from None
    Z = factor @ rng.standard_normal((*_shape(size), n, p))
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    return U @ Vt


def von_mises_fisher(mu: ArrayLike, kappa: float, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Unit vectors with density proportional to :math:`\exp(\kappa\mu'x)`.

    Exact, by Wood's rejection for the cosine (acceptance at least 0.65 for any n and kappa) and a uniform direction
    across; no rotation matrix, so ``mu = -e_1`` is nothing special. n operations a draw.

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
    mu = _finite("mu", mu)
    kappa = float(kappa)
    norm = float(np.linalg.norm(mu))
    if mu.ndim != 1 or norm == 0.0:
        raise ValueError(f"mu must be a nonzero vector, got shape {mu.shape} and norm {norm:.3g}")
    if not (0.0 <= kappa < math.inf):
        raise ValueError(f"kappa must be finite and >= 0, got {kappa}; turn mu round for a negative concentration")
    mu = mu / norm
    shape, n = _shape(size), len(mu)
    if n == 1:
        return mu * np.where(rng.random(shape) * (1 + math.exp(-2 * kappa)) < 1, 1.0, -1.0)[..., None]
    deficit = np.empty(math.prod(shape))
    vmf_deficits(float(n), kappa, deficit, rng)
    deficit = deficit.reshape(*shape, 1)
    z = rng.standard_normal((*shape, n))
    for _ in range(2):
        z -= (z @ mu)[..., None] * mu
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    x = (1 - deficit) * mu + np.sqrt(deficit * (2 - deficit)) * z
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def matrix_langevin(F: ArrayLike, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Draws from the matrix Langevin (von Mises-Fisher) law, density proportional to :math:`\mathrm{etr}(F'X)`.

    Exact by Hoff's rejection in the basis of F's singular vectors while its acceptance rate
    :math:`{}_0F_1(n/2; F'F/4) / \prod_j {}_0F_1((n-j+1)/2; s_j^2/4)` is above ``SMALLEST_RATE``: always for p <= 7, and
    for larger p at moderate concentration (at high concentration the rate tends to :math:`2^{-p(p-1)/4}`
    for equal singular values). Otherwise, and only then, the draw is the end of ``GIBBS_SWEEPS`` Gibbs sweeps (column
    pairs and single columns, each exactly from its conditional) that start from Hoff's proposal: approximate
    in principle; see docs/normalizers.md for how fast the sweeps forget their start.

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
    F = _finite("F", F)
    if F.ndim != 2:
        raise ValueError(f"F must be a matrix, got shape {F.shape}; use size for several draws")
    n, p = F.shape
    _check_dimensions(n, p)
    shape = _shape(size)
    count = math.prod(shape)
    if p == 1:
        norm = float(np.linalg.norm(F))
        mu = F[:, 0] if norm > 0 else np.eye(n)[0]
        return von_mises_fisher(mu, norm, size=shape, rng=rng)[..., None]
    U, s, Vt = np.linalg.svd(F, full_matrices=False)
    by_rejection = _log_langevin_rate(n, s) > math.log(SMALLEST_RATE)
    top = (
        np.stack([langevin_columns(n, s, rng, by_rejection) for _ in range(count)])
        if count
        else np.empty((0, p + min(n - p, p), p))
    )
    X = U @ top[:, :p]
    if n > p:  # the remaining rows, turned by a Haar matrix and laid across the complement of U
        X = X + _frames_across(U, min(n - p, p), count, rng) @ top[:, p:]
    X = X @ Vt
    if not by_rejection:
        columns = np.asfortranarray(F)  # the sweeps walk along columns
        for k in range(count):
            chain = np.asfortranarray(X[k])
            langevin_sweeps(chain, columns, GIBBS_SWEEPS, rng)
            X[k] = chain
    return X.reshape(*shape, n, p)


def _frames_across(U: Matrix, columns: int, count: int, rng: np.random.Generator) -> Matrix:
    """Uniform orthonormal frames in the complement of U: Gaussians, projected and orthonormalised twice."""
    Z = rng.standard_normal((count, len(U), columns))
    for _ in range(2):
        Z = _positive_qr(Z - U @ (U.T @ Z))
    return Z


def _positive_qr(Z: Matrix) -> Matrix:
    Q, R = np.linalg.qr(Z)
    return Q * np.where(np.einsum("...ii->...i", R) < 0, -1.0, 1.0)[..., None, :]


def _log_langevin_rate(n: int, s: Matrix) -> float:
    """Log acceptance rate of Hoff's proposal: a ratio of normalisers."""
    bound = sum(log_hyp0f1_vector(float(n - j), s[j])[0] for j in range(len(s)))
    return float(log_hyp0f1(n, s)[0] - bound)


def matrix_bingham(A: ArrayLike, B: ArrayLike | None, p: int, *, size: Size = None, rng: np.random.Generator) -> Matrix:
    r"""Draws from the matrix Bingham law, density proportional to :math:`\mathrm{etr}(B X'AX)`; ``B=None`` is identity.

    Exact by the angular-central-Gaussian rejection of Kent, Ganeiber & Mardia for p = 1 and for B a multiple
    of the identity, until a budget of proposals is spent (many concentrated columns). For other B, and for draws the
    budget did not reach, it is the end of ``GIBBS_SWEEPS`` Gibbs sweeps with exact conditionals (approximate
    in principle), as in :func:`matrix_bingham_langevin`.

    Parameters
    ----------
    A : (n, n)
        Symmetric.
    B : (p, p), (p,) or None
        Symmetric, or the diagonal of a diagonal matrix; None is the identity.
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
    Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import draws
    >>> X = draws.matrix_bingham(np.diag([100.0, 0.0, 0.0]), None, 1, size=10, rng=np.random.default_rng(1))
    >>> bool(abs(X[:, 0, 0]).min() > 0.9)
    True
    """
    A = _symmetric("A", A)
    n = len(A)
    _check_dimensions(n, p)
    B = np.eye(p) if B is None else _coupling(B, p)
    shape = _shape(size)
    b = np.linalg.eigvalsh(B)
    if np.ptp(b) > 1e-14 * np.abs(b).max():
        return matrix_bingham_langevin(A, B, np.zeros((n, p)), size=size, rng=rng)
    values, vectors = np.linalg.eigh(b[0] * A)
    spread = values[-1] - values
    count = math.prod(shape)
    X = vectors @ _bingham_frames(spread, p, count, rng)
    if len(X) < count:  # accepted draws are exact whatever their number, so the rest may come from elsewhere
        X = np.concatenate([X, matrix_bingham_langevin(A, B, np.zeros((n, p)), size=count - len(X), rng=rng)])
    return X.reshape(*shape, n, p)


def _bingham_frames(spread: Matrix, p: int, count: int, rng: np.random.Generator) -> Matrix:
    """Up to ``count`` frames with density etr(-X' diag(spread) X), by rejection from an angular central Gaussian."""
    n = len(spread)
    b = bingham_width(spread)
    omega = 1 + 2 * spread / b
    offset = p * (0.5 * (n - b) + 0.5 * n * math.log(b / n))
    found: list[Matrix] = []
    missing, batch = count, max(16, count)
    proposals = np.inf if p == 1 else PROPOSALS * (10 + count)
    while missing > 0 and proposals > 0:
        proposals -= batch
        Z = rng.standard_normal((batch, n, p)) / np.sqrt(omega)[:, None]
        U, _, Vt = np.linalg.svd(Z, full_matrices=False)
        X = U @ Vt
        energy = np.einsum("kij,i,kij->k", X, spread, X)
        log_det = np.linalg.slogdet(np.einsum("kij,i,kil->kjl", X, omega, X))[1]
        keep = np.log1p(-rng.random(batch)) <= offset - energy + 0.5 * n * log_det
        found.append(X[keep][:missing])
        missing -= len(found[-1])
    return np.concatenate(found) if found else np.empty((0, n, p))


def matrix_bingham_langevin(
    A: ArrayLike, B: ArrayLike | None, F: ArrayLike, *, size: Size = None, rng: np.random.Generator
) -> Matrix:
    r"""Draws from the matrix Bingham-Langevin law, density proportional to :math:`\mathrm{etr}(F'X + B X'AX)`.

    p = 1: exact, by rejection from an angular central Gaussian envelope. p > 1: the end of ``GIBBS_SWEEPS`` Gibbs
    sweeps (Hoff 2009) with exact conditionals for single columns and for pairs, started from a matrix Langevin draw
    (from the mode if F = 0): approximate in principle, and doubtful where F and A pull to distant modes. A sweep costs
    about p n^3 operations.

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
    A = _symmetric("A", A)
    F = _finite("F", F)
    if F.ndim != 2 or len(F) != len(A):
        raise ValueError(f"F must be a matrix with the {len(A)} rows of A, got shape {F.shape}")
    n, p = F.shape
    _check_dimensions(n, p)
    B = np.eye(p) if B is None else _coupling(B, p)
    shape = _shape(size)
    count = math.prod(shape)
    if p == 1:
        x = np.empty((count, n))
        for k in range(count):
            fisher_bingham_vector(F[:, 0].copy(), B[0, 0] * A, x[k], rng)
        return x.reshape(*shape, n, 1)
    b, turn = np.linalg.eigh(B)
    F = np.ascontiguousarray(F @ turn)
    X = matrix_langevin(F, size=count, rng=rng) if F.any() else np.tile(_bingham_mode(A, b), (count, 1, 1))
    for k in range(count):
        bingham_langevin_sweeps(X[k], A, b, F, GIBBS_SWEEPS, rng)
    return (X @ turn.T).reshape(*shape, n, p)


def _bingham_mode(A: Matrix, b: Matrix) -> Matrix:
    """The maximum of sum b_j x_j'Ax_j for ascending b: last eigenvectors of A for positive b, first for negative."""
    vectors = np.linalg.eigh(A)[1]
    negative = int(np.sum(b < 0))
    rising = vectors[:, len(A) - (len(b) - negative) :]
    return np.hstack([vectors[:, :negative], rising])


# ---------------------------------------------------------------- arguments


def _shape(size: Size) -> tuple[int, ...]:
    if size is None:
        return ()
    return (int(size),) if np.ndim(size) == 0 else tuple(int(k) for k in size)  # type: ignore[arg-type, union-attr]


def _check_dimensions(n: int, p: int) -> None:
    if not n >= p >= 1:
        raise ValueError(f"need n >= p >= 1, got n={n}, p={p}")


def _finite(name: str, value: ArrayLike) -> Matrix:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be real, got dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has NaN or infinite entries")
    return np.array(array, dtype=np.float64)


def _symmetric(name: str, value: ArrayLike) -> Matrix:
    array = _finite(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {array.shape}")
    error = float(np.abs(array - array.T).max())
    if error > 1e-8 * max(1.0, float(np.abs(array).max())):
        raise ValueError(f"{name} must be symmetric; max |{name} - {name}'| = {error:.3g}. Use ({name} + {name}') / 2.")
    return (array + array.T) / 2


def _coupling(B: ArrayLike, p: int) -> Matrix:
    """B as a matrix; its eigenvalues given as a vector are understood as a diagonal."""
    B = np.asarray(B)
    B = _symmetric("B", np.diag(B) if B.ndim == 1 else B)
    if len(B) != p:
        raise ValueError(f"B must be {p} x {p} to match p, got shape {B.shape}")
    return B
