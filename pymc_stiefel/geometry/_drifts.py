"""The three drifts: flows of the kinetic energy, or reversible approximations of them."""

from __future__ import annotations

import numpy as np
import scipy

from pymc_stiefel.geometry._checked import Matrix, _checked
from pymc_stiefel.geometry._tangent import _split


@_checked()
def cayley_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    r"""Cayley retraction with vector transport, canonical metric (the paper's oHMC).

    ``X`` and ``r`` are rotated by :math:`(I - hW)^{-1}(I + hW)` with ``W`` the angular momentum and :math:`h = t/2`.
    In the basis ``[X, B]`` this takes one p x p solve:

    .. math:: Y = (X + hB)(I - 2hA + h^2 B'B)^{-1}, \quad X \leftarrow 2Y - X, \quad B \leftarrow B - 2hYB'B,

    and ``A`` does not change. The cost is O(n p^2).

    Parameters
    ----------
    X, r, t
        As in the notation of this module.

    Returns
    -------
    X, r : array (n, p)
        Matrix and momentum after time ``t``.

    References
    ----------
    Yanush & Kropotov (2019), arXiv:1901.08045; Wen & Yin (2013), doi:10.1007/s10107-012-0584-1.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> r = geometry.tangent_project(X, rng.normal(size=(5, 2)))
    >>> moved = geometry.cayley_drift(X, r, 0.5)
    >>> np.allclose(geometry.cayley_drift(*moved, -0.5), (X, r))
    True
    """
    A, B = _split(X, r)
    h, S = t / 2, B.T @ B
    Y = np.linalg.solve((np.eye(len(A)) - 2 * h * A + h**2 * S).T, (X + h * B).T).T
    X_new = 2 * Y - X
    return X_new, X_new @ A + B - 2 * h * Y @ S


@_checked()
def geodesic_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    r"""Geodesic flow of the embedded metric (Byrne & Girolami's geodesic Monte Carlo).

    .. math:: [X\; r] \leftarrow [X\; r]\, \exp\!\left(t \begin{bmatrix} A & -S \\ I & A \end{bmatrix}\right)
              \begin{bmatrix} e^{-tA} & 0 \\ 0 & e^{-tA} \end{bmatrix}, \qquad A = X'r,\; S = r'r

    Parameters
    ----------
    X, r, t
        As in the notation of this module.

    Returns
    -------
    X, r : array (n, p)
        Matrix and momentum after time ``t``.

    References
    ----------
    Byrne & Girolami (2013), doi:10.1111/sjos.12036; Edelman, Arias & Smith (1998), doi:10.1137/S0895479895290954.

    Examples
    --------
    A unit vector moves along a great circle.

    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> X, r = np.array([[1.0], [0.0], [0.0]]), np.array([[0.0], [1.0], [0.0]])
    >>> np.allclose(geometry.geodesic_drift(X, r, np.pi / 2)[0].ravel(), [0, 1, 0])
    True
    """
    p = X.shape[1]
    A, S = X.T @ r, r.T @ r
    flow = scipy.linalg.expm(t * np.block([[A, -S], [np.eye(p), A]]))
    back = scipy.linalg.expm(-t * A)
    moved = np.hstack([X, r]) @ flow
    return moved[:, :p] @ back, moved[:, p:] @ back


@_checked()
def splitting_drift(X: Matrix, r: Matrix, t: float, c: Matrix, w: Matrix) -> tuple[Matrix, Matrix]:
    """Symmetric composition of the exact flows of single pairs and single columns, for any metric.

    The columns and then the pairs move for time ``t/2``, followed by the same in reverse order. The flow of a column
    term moves that column along a great circle; the flow of a pair term rotates two columns into each other. The cost
    is O(n p^2), without a linear solve or an exponential. The result differs from the flow of ``K`` by O(t^3).

    Parameters
    ----------
    X, r, t, c, w
        As in the notation of this module.

    Returns
    -------
    X, r : array (n, p)
        Matrix and momentum after time ``t``.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> c, w = geometry.metric("embedded", 2)
    >>> r = geometry.draw_momentum(X, c, w, rng)
    >>> errors = [
    ...     abs(geometry.splitting_drift(X, r, t, c, w)[0] - geometry.geodesic_drift(X, r, t)[0]).max()
    ...     for t in (0.1, 0.05)
    ... ]
    >>> round(np.log2(errors[0] / errors[1]))
    3
    """
    p = X.shape[1]
    A, B = _split(X, r)
    X = X.copy()
    columns = list(range(p)) if X.shape[0] > p else []
    pairs = [(i, j) for i in range(p) for j in range(i + 1, p)]
    for k in columns:
        _column_flow(X, A, B, k, c[k] * t / 2)
    for i, j in [*pairs, *reversed(pairs)]:
        _pair_flow(X, A, B, i, j, w[i, j] * t / 2)
    for k in reversed(columns):
        _column_flow(X, A, B, k, c[k] * t / 2)
    return X, X @ A + B


def _column_flow(X: Matrix, A: Matrix, B: Matrix, k: int, t: float) -> None:
    """Flow of ``|B e_k|^2 / 2`` for time ``t``, in place: column k moves along a great circle."""
    speed = np.linalg.norm(B[:, k])
    if speed == 0.0:
        return
    cos, sin = np.cos(t * speed), np.sin(t * speed)
    x, b = X[:, k].copy(), B[:, k] / speed
    X[:, k] = cos * x + sin * b
    for i in range(X.shape[1]):
        if i != k:
            a = cos * A[k, i] + 0.5 * sin * (b @ B[:, i])
            B[:, i] += 2 * A[k, i] * x - 2 * a * X[:, k]
            A[k, i], A[i, k] = a, -a
    B[:, k] = speed * (cos * b - sin * x)


def _pair_flow(X: Matrix, A: Matrix, B: Matrix, i: int, j: int, t: float) -> None:
    """Flow of ``A_ij^2 / 2`` (twice, by symmetry), in place: columns i and j rotate into each other."""
    phi = t * A[i, j]
    rotation_ij = np.array([[np.cos(phi), np.sin(phi)], [-np.sin(phi), np.cos(phi)]])
    pair = [i, j]
    X[:, pair] = X[:, pair] @ rotation_ij
    B[:, pair] = B[:, pair] @ rotation_ij
    A[:, pair] = A[:, pair] @ rotation_ij
    A[pair, :] = rotation_ij.T @ A[pair, :]
