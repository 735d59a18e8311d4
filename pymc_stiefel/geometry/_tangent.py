"""Tangent matrices, metrics and momenta."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.geometry._checked import Matrix, _batch, _checked


@_checked()
def manifold_dimension(n: int, p: int) -> int:
    """Dimension of St(n, p), ``n p - p (p + 1) / 2``.

    Parameters
    ----------
    n, p : int
        Rows and columns, ``n >= p >= 1``.

    Examples
    --------
    >>> from pymc_stiefel import geometry
    >>> geometry.manifold_dimension(3, 1), geometry.manifold_dimension(3, 3)
    (2, 3)
    """
    if n < p:
        raise ValueError(f"n must be at least p, got n = {n} and p = {p}")
    return n * p - p * (p + 1) // 2


@_checked(X=_batch)
def orthogonality_error(X: Matrix) -> Matrix:
    """Largest entry of ``|X'X - I|``.

    Parameters
    ----------
    X : array (..., n, p)

    Returns
    -------
    array (...)

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> float(geometry.orthogonality_error(2 * np.eye(3, 2)))
    3.0
    """
    gram = np.swapaxes(X, -1, -2) @ X
    error: Matrix = np.abs(gram - np.eye(X.shape[-1])).max(axis=(-2, -1))
    return error


@_checked()
def tangent_project(X: Matrix, G: Matrix) -> Matrix:
    """Orthogonal projection ``G - X sym(X'G)`` of ``G`` on the tangent space at ``X``.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    G : array (n, p)
        Any matrix, for example a gradient.

    Returns
    -------
    array (n, p)
        The tangent matrix ``r`` nearest to ``G``; ``X'r`` is skew.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> r = geometry.tangent_project(X, rng.normal(size=(5, 2)))
    >>> np.allclose(X.T @ r, -r.T @ X)
    True
    """
    XtG = X.T @ G
    return G - X @ (XtG + XtG.T) / 2


@_checked()
def split_tangent(X: Matrix, r: Matrix) -> tuple[Matrix, Matrix]:
    """The two parts ``(A, B)`` of a tangent matrix ``r = X A + B``.

    Parameters
    ----------
    X, r
        As in the notation of this module.

    Returns
    -------
    A : array (p, p)
        Skew: rotation of the columns within their span.
    B : array (n, p)
        ``X'B = 0``: motion out of the span. Zero for ``n = p``.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> r = geometry.tangent_project(X, rng.normal(size=(5, 2)))
    >>> A, B = geometry.split_tangent(X, r)
    >>> np.allclose(A, -A.T), np.allclose(X.T @ B, 0), np.allclose(X @ A + B, r)
    (True, True, True)
    """
    return _split(X, r)


def _split(X: Matrix, r: Matrix) -> tuple[Matrix, Matrix]:
    Xtr = X.T @ r
    return (Xtr - Xtr.T) / 2, r - X @ Xtr if X.shape[0] > X.shape[1] else np.zeros_like(r)


@_checked()
def angular_momentum(X: Matrix, r: Matrix) -> Matrix:
    """``W = r X' - X r'``, which is conserved by every left-invariant drift.

    Parameters
    ----------
    X, r
        As in the notation of this module.

    Returns
    -------
    array (n, n)
        Skew.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> c, w = geometry.metric("canonical", 2)
    >>> r = geometry.draw_momentum(X, c, w, rng)
    >>> before, after = geometry.angular_momentum(X, r), geometry.angular_momentum(*geometry.cayley_drift(X, r, 0.5))
    >>> np.allclose(before, after)
    True
    """
    return r @ X.T - X @ r.T


@_checked()
def metric(kind: str, p: int) -> tuple[Matrix, Matrix]:
    """Masses ``(c, w)`` of the canonical or the embedded metric.

    Parameters
    ----------
    kind : {"canonical", "embedded"}
        ``c = 1, w = 2`` or ``c = 1, w = 1``.
    p : int
        Number of columns.

    Returns
    -------
    c : array (p,)
    w : array (p, p)

    References
    ----------
    Edelman, Arias & Smith (1998), doi:10.1137/S0895479895290954.

    Examples
    --------
    >>> from pymc_stiefel import geometry
    >>> geometry.metric("canonical", 2)
    (array([1., 1.]), array([[2., 2.],
           [2., 2.]]))
    """
    return np.ones(p), np.full((p, p), 2.0 if kind == "canonical" else 1.0)


@_checked()
def velocity(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> Matrix:
    """Velocity ``X (w * A) + B diag(c)`` of the momentum ``r = X A + B``.

    Parameters
    ----------
    X, r, c, w
        As in the notation of this module.

    Returns
    -------
    array (n, p)
        Tangent at ``X``.

    Examples
    --------
    In the embedded metric momentum and velocity are the same matrix.

    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> r = geometry.tangent_project(X, rng.normal(size=(5, 2)))
    >>> np.allclose(geometry.velocity(X, r, *geometry.metric("embedded", 2)), r)
    True
    """
    A, B = _split(X, r)
    return X @ (w * A) + B * c


@_checked()
def kinetic_energy(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> float:
    r"""Half the pairing of momentum and velocity.

    .. math:: K(r) = \tfrac12\sum_k c_k |B e_k|^2 + \tfrac12\sum_{ij} w_{ij} A_{ij}^2, \qquad r = XA + B

    Parameters
    ----------
    X, r, c, w
        As in the notation of this module.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> c, w = geometry.metric("canonical", 2)
    >>> r = geometry.draw_momentum(X, c, w, rng)
    >>> V = geometry.velocity(X, r, c, w)
    >>> bool(np.isclose(geometry.kinetic_energy(X, r, c, w), np.sum(r * V) / 2))
    True
    """
    A, B = _split(X, r)
    return 0.5 * float(np.sum(c * np.sum(B**2, axis=0)) + np.sum(w * A**2))


@_checked()
def draw_momentum(X: Matrix, c: Matrix, w: Matrix, rng: np.random.Generator) -> Matrix:
    r"""Draw a momentum from the density ``exp(-K)``.

    :math:`A_{ij} \sim N(0, 1/2w_{ij})` for i < j, and :math:`B e_k \sim N(0, 1/c_k)` in the complement of ``X``. Then
    ``2 K`` is chi-squared distributed, with the dimension of the manifold as degrees of freedom.

    Parameters
    ----------
    X, c, w
        As in the notation of this module.
    rng : numpy.random.Generator

    Returns
    -------
    array (n, p)
        Tangent at ``X``.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> c, w = geometry.metric("canonical", 2)
    >>> K = [geometry.kinetic_energy(X, geometry.draw_momentum(X, c, w, rng), c, w) for _ in range(4000)]
    >>> bool(abs(2 * np.mean(K) - geometry.manifold_dimension(5, 2)) < 0.3)
    True
    """
    n, p = X.shape
    upper = np.triu(rng.standard_normal((p, p)) / np.sqrt(2 * w), 1)
    noise = rng.standard_normal((n, p)) / np.sqrt(c)
    return X @ (upper - upper.T) + noise - X @ (X.T @ noise)
