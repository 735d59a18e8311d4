"""Public functions for the normalising constants: they check arguments and call the compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import ArrayLike, NDArray

from pymc_stiefel import _checks as check
from pymc_stiefel.normalizers import _bessel, _bingham, _functions
from pymc_stiefel.normalizers._functions import BINGHAM_COLUMNS

Vector = NDArray[np.float64]


def _rows(n: float, p: int) -> float:
    rows = check.scalar("n", n, least=1.0)
    if rows < p:
        raise ValueError(f"n must be at least the number of singular values, got n={rows:g} and {p} of them")
    return rows


def log_hyp0f1_vector(n: float, kappa: float) -> tuple[float, float]:
    r"""Value and derivative of :math:`\log {}_0F_1(n/2; \kappa^2/4)`, the von Mises-Fisher normaliser.

    Parameters
    ----------
    n : float
        Dimension, at least 1 (it need not be an integer).
    kappa : float
        Concentration, >= 0.

    Returns
    -------
    value, derivative : float
        Relative error below 1e-13 for n to 1e4 and kappa to 1e6; constant cost.

    Notes
    -----
    The power series is used if its largest term comes early. Otherwise Debye's uniform expansion is used at an order of
    at least 25, followed by downward recurrence in the order, which is stable for I.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel.normalizers import log_hyp0f1_vector
    >>> bool(np.isclose(log_hyp0f1_vector(3.0, 2.0)[0], np.log(np.sinh(2) / 2)))
    True
    """
    n, kappa = check.scalar("n", n, least=1.0), check.scalar("kappa", kappa, least=0.0)
    result: tuple[float, float] = _bessel.log_hyp0f1_vector(n, kappa)
    return result


def log_hyp0f1(n: float, s: ArrayLike) -> tuple[float, Vector]:
    r"""Matrix Langevin normaliser :math:`\log {}_0F_1(n/2; F'F/4) = \log E_\mathrm{Haar}\,\mathrm{etr}(F'X)`.

    Parameters
    ----------
    n : int or float
        Rows, n >= p.
    s : float64[p]
        Singular values of F in any order. Signs do not matter: the value is even and the derivative odd in each.

    Returns
    -------
    value : float
    grad : float64[p]
        Derivative in s, which is the diagonal of E[X] in the basis of F's singular vectors.

    Notes
    -----
    p = 1 uses Bessel functions, p = 2 Muirhead's series of these, and p = 3, 4, 5 a recurrence in 2^p symmetric
    unknowns (microseconds; for p <= 4 the relative error is below 1e-8 for s to 50). If a singular value exceeds
    ``exact_limit``, and for p >= 6, a second-order saddlepoint approximation is used; docs/normalizers.md has its
    measured error. For p <= 5 value and derivative are continuous, for p >= 6 the value is analytic.

    References
    ----------
    Muirhead (1982), doi:10.1002/9780470316559; Butler & Wood (2003), J. Comput. Appl.
    Math. 155, 359-382.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel.normalizers import log_hyp0f1
    >>> value, grad = log_hyp0f1(3, np.array([2.0]))  # the sphere: sinh(kappa) / kappa
    >>> np.allclose(value, np.log(np.sinh(2) / 2)), np.allclose(grad, 1 / np.tanh(2) - 1 / 2)
    (True, True)
    """
    s = check.reals("s", s, 1)
    if not s.size:
        raise ValueError(f"s must have at least one singular value, got shape {s.shape}")
    result: tuple[float, Vector] = _functions.log_hyp0f1(_rows(n, len(s)), s)
    return result


def log_hyp0f1_batch(n: float, s: ArrayLike) -> tuple[Vector, Vector]:
    """:func:`log_hyp0f1` for every vector ``s[..., :]``.

    Parameters
    ----------
    n : int
        Rows, n >= p.
    s : array (..., p)
        Singular values.

    Returns
    -------
    value : array (...)
    grad : array (..., p)

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel.normalizers import log_hyp0f1_batch
    >>> value, grad = log_hyp0f1_batch(5, [[0.0, 0.0], [3.0, 1.0]])
    >>> value.shape, grad.shape, float(value[0])
    ((2,), (2, 2), 0.0)
    """
    s = check.reals("s", s)
    if s.ndim < 1 or not s.shape[-1]:
        raise ValueError(f"s must have singular values along its last axis, got shape {s.shape}")
    rows = _rows(n, s.shape[-1])
    value, grad = np.empty(s.shape[:-1]), np.empty(s.shape)
    for index in np.ndindex(value.shape):
        value[index], grad[index] = _functions.log_hyp0f1(rows, s[index])
    return value, grad


def log_bingham_vector(a: ArrayLike) -> tuple[float, Vector]:
    r"""``log E exp(sum a_i x_i^2)`` for x uniform on the unit sphere of R^n, and its derivative in a.

    Parameters
    ----------
    a : float64[n]
        Eigenvalues of the Bingham matrix, in any order, equal or spread.

    Returns
    -------
    value : float
    grad : float64[n]
        ``E[x_i^2]`` under the Bingham law with parameter a: positive, with sum one.

    Notes
    -----
    Trapezoidal rule with one to three hundred nodes. One evaluation takes about 10 n microseconds.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel.normalizers import log_bingham_vector
    >>> value, grad = log_bingham_vector(np.array([2.0, 2.0, 2.0]))
    >>> round(float(value), 9), grad.round(9)
    (2.0, array([0.33333333, 0.33333333, 0.33333333]))
    """
    a = check.reals("a", a, 1)
    if not a.size:
        raise ValueError(f"a must have at least one eigenvalue, got shape {a.shape}")
    result: tuple[float, Vector] = _bingham.log_bingham_vector(a)
    return result


def log_bingham(n: int, a: ArrayLike, b: ArrayLike) -> tuple[float, Vector]:
    r"""Matrix Bingham normaliser :math:`\log E_\mathrm{Haar}\,\mathrm{etr}(BX'AX)` on St(n, p) for B a multiple of I.

    Parameters
    ----------
    n : int
        Rows.
    a : float64[n]
        Eigenvalues of A, in any order.
    b : float64[p]
        Eigenvalues of B; all must be equal (always so for p = 1).

    Returns
    -------
    value : float
        :math:`\log {}_1F_1(p/2; n/2; bA)`, exact to about 1e-12 (1e-8 at the largest p).
    grad : float64[n]
        Derivative in a.

    Raises
    ------
    ValueError
        For unequal b with 1 < p, or min(p, n - p) > 10: no normaliser is implemented for these.

    Examples
    --------
    >>> from pymc_stiefel.normalizers import log_bingham
    >>> value, grad = log_bingham(4, [3.0, 1.0, 0.0, 0.0], [1.0, 1.0])
    >>> round(float(grad.sum()), 9)  # the trace of E[XX'] is p
    2.0
    """
    n, a, b = check.whole("n", n), check.reals("a", a, 1), np.atleast_1d(check.reals("b", b))
    p = len(b)
    if a.shape != (n,):
        raise ValueError(f"a must have n = {n} eigenvalues, got a of shape {a.shape}")
    if b.ndim != 1 or not n >= p >= 1:
        raise ValueError(f"b must have between 1 and n = {n} eigenvalues, got b of shape {b.shape}")
    if np.ptp(b) > 1e-12 * np.abs(b).max():
        raise ValueError(
            f"the matrix Bingham normaliser is available only for B a multiple of the identity, got eigenvalues {b}; "
            "keep A and B constant, or use a multiple of the identity"
        )
    if min(p, n - p) > BINGHAM_COLUMNS:
        raise ValueError(
            f"the matrix Bingham normaliser is available for min(p, n - p) <= {BINGHAM_COLUMNS}, got n={n}, p={p}; "
            "keep A constant, so that it is not needed"
        )
    value, grad = _bingham.log_bingham_frame(p, b[0] * a)
    return float(value), b[0] * grad


def _use_compiled(public: Any, compiled: Any) -> None:
    """Let compiled code that calls a public function use the compiled one, without argument checks."""
    overload(public)(lambda n, parameter: lambda n, parameter: compiled(n, parameter))


_use_compiled(log_hyp0f1, _functions.log_hyp0f1)
_use_compiled(log_hyp0f1_vector, _bessel.log_hyp0f1_vector)
