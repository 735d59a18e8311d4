r"""The geometry of orthonormal matrices: formulas in plain NumPy.

Notation, used in the whole package
-----------------------------------
``St(n, p)``
    matrices ``X`` of shape ``(n, p)`` with :math:`X'X = I_p`, :math:`n \ge p \ge 1`.
``r``
    momentum, a tangent matrix :math:`r = XA + B` with ``A`` skew (p x p) and :math:`X'B = 0`,
    paired with velocities by the trace, :math:`\langle r, V\rangle = \mathrm{tr}(r'V)`.
``c, w``
    the metric, :math:`K(r) = \tfrac12\sum_k c_k |B e_k|^2 + \tfrac12\sum_{ij} w_{ij} A_{ij}^2`;
    canonical: ``c = 1, w = 2``; embedded: ``c = 1, w = 1``.
``t``
    the time of a drift, that is the flow of ``K`` alone.

The functions work on one matrix and are written to be read; the compiled kernels in
``pymc_stiefel.engine`` are tested against them.

References
----------
Edelman, Arias & Smith (1998), doi:10.1137/S0895479895290954.
Byrne & Girolami (2013), doi:10.1111/sjos.12036.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from pymc_stiefel import _checks as check

__all__ = [
    "angular_momentum",
    "cayley_drift",
    "draw_momentum",
    "geodesic_drift",
    "kinetic_energy",
    "manifold_dimension",
    "metric",
    "orthogonality_error",
    "polar",
    "polar_pullback",
    "rotation",
    "rotation_pullback",
    "split_tangent",
    "splitting_drift",
    "tangent_project",
    "velocity",
]

Matrix = NDArray[np.float64]
P, R = ParamSpec("P"), TypeVar("R")
TOLERANCE = 1e-6  # of matrices said to be orthonormal or tangent


# ---------------------------------------------------------------- arguments, checked by their names


def _orthonormal(name: str, X: Any, others: dict[str, Any]) -> Matrix:
    X = check.matrix(name, X)
    n, p = X.shape
    error = np.abs(X.T @ X - np.eye(p)).max()
    if n < p or error > TOLERANCE:
        raise ValueError(f"{name} must have orthonormal columns, got shape {X.shape} with |X'X - I| up to {error:.2g}")
    return X


def _tangent(name: str, r: Any, others: dict[str, Any]) -> Matrix:
    X, r = others["X"], check.matrix(name, r, like=("X", others["X"]))
    error = np.abs(X.T @ r + r.T @ X).max()
    if error > TOLERANCE * max(1.0, np.abs(r).max()):
        raise ValueError(
            f"{name} must be tangent at X, got |X'r + r'X| up to {error:.2g}; use tangent_project(X, {name})"
        )
    return r


def _masses(name: str, masses: Any, others: dict[str, Any]) -> Matrix:
    p = others["X"].shape[1]
    shape, masses = (p,) if name == "c" else (p, p), check.numbers(name, masses)
    if masses.shape != shape or not (masses > 0).all() or not np.array_equal(masses, masses.T):
        raise ValueError(
            f"{name} must be positive{', symmetric' * (name == 'w')} of shape {shape}, got {masses.tolist()}"
        )
    return masses


def _generator(name: str, rng: Any, others: dict[str, Any]) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{name} must be a numpy.random.Generator as of np.random.default_rng(1), got {rng!r}")
    return rng


def _batch(name: str, Z: Any, others: dict[str, Any]) -> Matrix:
    return check.matrix(name, Z, batch=True)


def _square(name: str, Z: Any, others: dict[str, Any]) -> Matrix:
    Z = check.matrix(name, Z, batch=True)
    if Z.shape[-2] != Z.shape[-1]:
        raise ValueError(f"{name} must be square, got shape {Z.shape}")
    return Z


def _gradient(name: str, G: Any, others: dict[str, Any]) -> Matrix:
    beside = next(iter(others))  # X or Z; entries that are not finite give a result that is not
    G = np.asarray(G)
    if G.dtype.kind not in "fiub" or G.shape != others[beside].shape or isinstance(G, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must be real numbers of the shape {others[beside].shape} of {beside}, got {check.shown(G)}"
        )
    return G


RULES: dict[str, Callable[[str, Any, dict[str, Any]], Any]] = {
    "X": _orthonormal,
    "r": _tangent,
    "G": _gradient,
    "Z": _batch,
    "c": _masses,
    "w": _masses,
    "rng": _generator,
    "t": lambda name, t, others: check.real(name, t),
    "n": lambda name, n, others: check.whole(name, n),
    "p": lambda name, p, others: check.whole(name, p),
    "kind": lambda name, kind, others: check.choice(name, kind, ("canonical", "embedded")),
}


def _checked(function: Callable[P, R] | None = None, **special: Any) -> Any:
    """Check every argument by the rule of its name; the notation is the same in all functions."""
    if function is None:
        return functools.partial(_checked, **special)
    signature, rules = inspect.signature(function), RULES | special

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        checked: dict[str, Any] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            checked[name] = rules[name](name, value, checked)
        return function(**checked)  # type: ignore[call-arg]

    return call


# ---------------------------------------------------------------- matrices


@_checked
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
    return np.abs(gram - np.eye(X.shape[-1])).max(axis=(-2, -1))


# ---------------------------------------------------------------- tangent space


@_checked
def tangent_project(X: Matrix, G: Matrix) -> Matrix:
    """Orthogonal projection ``G - X sym(X'G)`` of ``G`` on the tangent space at ``X``.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    G : array (n, p)
        Any matrix, as a rule a gradient.

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


@_checked
def split_tangent(X: Matrix, r: Matrix) -> tuple[Matrix, Matrix]:
    """The two parts ``(A, B)`` of a tangent matrix ``r = X A + B``.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.

    Returns
    -------
    A : array (p, p)
        Skew: how the columns turn into each other.
    B : array (n, p)
        ``X'B = 0``: how they leave the space they span. Zero for ``n = p``.

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


@_checked
def angular_momentum(X: Matrix, r: Matrix) -> Matrix:
    """``W = r X' - X r'``, which every left-invariant drift conserves.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.

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


# ---------------------------------------------------------------- metric


@_checked
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


@_checked
def velocity(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> Matrix:
    """Velocity ``X (w * A) + B diag(c)`` that belongs to the momentum ``r = X A + B``.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.
    c : array (p,)
        Masses of the columns, as from :func:`metric`; any positive numbers.
    w : array (p, p)
        Masses of the pairs, symmetric and positive.

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


@_checked
def kinetic_energy(X: Matrix, r: Matrix, c: Matrix, w: Matrix) -> float:
    r"""Half the pairing of momentum and velocity.

    .. math:: K(r) = \tfrac12\sum_k c_k |B e_k|^2 + \tfrac12\sum_{ij} w_{ij} A_{ij}^2, \qquad r = XA + B

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.
    c : array (p,)
        Masses of the columns, as from :func:`metric`; any positive numbers.
    w : array (p, p)
        Masses of the pairs, symmetric and positive.

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


@_checked
def draw_momentum(X: Matrix, c: Matrix, w: Matrix, rng: np.random.Generator) -> Matrix:
    r"""A momentum from the law ``exp(-K)``.

    :math:`A_{ij} \sim N(0, 1/2w_{ij})` for i < j, and :math:`B e_k \sim N(0, 1/c_k)` in the complement of ``X``. Then
    ``2 K`` is chi-squared, with the dimension of the manifold as degrees of freedom.

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    c : array (p,)
        Masses of the columns, as from :func:`metric`; any positive numbers.
    w : array (p, p)
        Masses of the pairs, symmetric and positive.
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


# ---------------------------------------------------------------- drifts


@_checked
def cayley_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    r"""Cayley retraction with vector transport, canonical metric (the paper's oHMC).

    ``X`` and ``r`` are rotated by :math:`(I - hW)^{-1}(I + hW)` with ``W`` the angular momentum and :math:`h = t/2`.
    In the basis ``[X, B]`` this takes one p x p solve:

    .. math:: Y = (X + hB)(I - 2hA + h^2 B'B)^{-1}, \quad X \leftarrow 2Y - X, \quad B \leftarrow B - 2hYB'B,

    and ``A`` stays. Cost O(n p^2).

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.
    t : float
        Time; any number, negative ones go back.

    Returns
    -------
    X, r : array (n, p)
        The matrix that was reached, and the momentum there.

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


@_checked
def geodesic_drift(X: Matrix, r: Matrix, t: float) -> tuple[Matrix, Matrix]:
    r"""Geodesic flow of the embedded metric (Byrne & Girolami's geodesic Monte Carlo).

    .. math:: [X\; r] \leftarrow [X\; r]\, \exp\!\left(t \begin{bmatrix} A & -S \\ I & A \end{bmatrix}\right)
              \begin{bmatrix} e^{-tA} & 0 \\ 0 & e^{-tA} \end{bmatrix}, \qquad A = X'r,\; S = r'r

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.
    t : float
        Time; any number, negative ones go back.

    Returns
    -------
    X, r : array (n, p)
        The matrix that was reached, and the momentum there.

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


@_checked
def splitting_drift(X: Matrix, r: Matrix, t: float, c: Matrix, w: Matrix) -> tuple[Matrix, Matrix]:
    """Symmetric composition of the exact flows of single pairs and single columns, for any metric.

    Columns, then pairs, each by ``t/2``; then the same in reverse order. The flow of a column term moves that column
    along a great circle, the flow of a pair term turns two columns into each other. Cost O(n p^2), without a linear
    solve or an exponential; it differs from the flow of ``K`` itself by O(t^3).

    Parameters
    ----------
    X : array (n, p)
        Orthonormal.
    r : array (n, p)
        Tangent at ``X``.
    t : float
        Time; any number, negative ones go back.
    c : array (p,)
        Masses of the columns, as from :func:`metric`; any positive numbers.
    w : array (p, p)
        Masses of the pairs, symmetric and positive.

    Returns
    -------
    X, r : array (n, p)
        The matrix that was reached, and the momentum there.

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


# ---------------------------------------------------------------- projections on the manifold


@_checked
def polar(Z: Matrix) -> Matrix:
    """The nearest orthonormal matrix, ``Z (Z'Z)^{-1/2}``.

    Parameters
    ----------
    Z : array (..., n, p)
        Of full rank.

    Returns
    -------
    array (..., n, p)

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> geometry.polar(np.diag([2.0, 3.0]))
    array([[1., 0.],
           [0., 1.]])
    """
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    return U @ Vt


@_checked
def polar_pullback(Z: Matrix, G: Matrix) -> Matrix:
    r"""Gradient in ``Z`` of a function of ``polar(Z)`` whose gradient there is ``G``.

    With :math:`Z = X H` and :math:`H = V s V'` it is
    :math:`2 X V (V'\mathrm{skew}(X'G)V \oslash (s_i + s_j)) V' + (I - XX') G H^{-1}`,
    finite wherever ``Z`` has full rank: equal singular values do no harm.

    Parameters
    ----------
    Z : array (..., n, p)
        Of full rank.
    G : array (..., n, p)
        Gradient of the function at ``polar(Z)``.

    Returns
    -------
    array (..., n, p)

    Examples
    --------
    At an orthonormal matrix it is the projection on the tangent space.

    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> rng = np.random.default_rng(1)
    >>> X = geometry.polar(rng.normal(size=(5, 2)))
    >>> G = rng.normal(size=(5, 2))
    >>> np.allclose(geometry.polar_pullback(X, G), geometry.tangent_project(X, G))
    True
    """
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    return _signed_polar_pullback(U, s, Vt, G)


@_checked(Z=_square)
def rotation(Z: Matrix) -> Matrix:
    """The nearest rotation, a matrix of determinant +1.

    Unlike :func:`polar` it is continuous where ``det Z`` changes its sign.

    Parameters
    ----------
    Z : array (..., n, n)

    Returns
    -------
    array (..., n, n)

    References
    ----------
    Kabsch (1976), doi:10.1107/S0567739476001873.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> geometry.rotation(np.diag([3.0, 2.0, -1.0]))
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """
    U, _, Vt = _signed_svd(Z)
    return U @ Vt


@_checked(Z=_square)
def rotation_pullback(Z: Matrix, G: Matrix) -> Matrix:
    """Gradient in ``Z`` of a function of ``rotation(Z)`` whose gradient there is ``G``.

    Parameters
    ----------
    Z : array (..., n, n)
    G : array (..., n, n)
        Gradient of the function at ``rotation(Z)``.

    Returns
    -------
    array (..., n, n)

    Examples
    --------
    At a rotation it is the projection on the tangent space.

    >>> import numpy as np
    >>> from pymc_stiefel import geometry
    >>> G = np.arange(9.0).reshape(3, 3)
    >>> np.allclose(geometry.rotation_pullback(np.eye(3), G), (G - G.T) / 2)
    True
    """
    return _signed_polar_pullback(*_signed_svd(Z), G)


def _signed_svd(Z: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Singular value decomposition with ``det(U V') = +1``; the last singular value carries the sign."""
    U, s, Vt = np.linalg.svd(Z)
    sign = np.sign(np.linalg.det(U @ Vt))
    U[..., :, -1] *= sign[..., None]
    s[..., -1] *= sign
    return U, s, Vt


def _signed_polar_pullback(U: Matrix, s: Matrix, Vt: Matrix, G: Matrix) -> Matrix:
    XV, V = U, np.swapaxes(Vt, -1, -2)
    GV = G @ V
    XtG = np.swapaxes(XV, -1, -2) @ GV
    skew = XtG - np.swapaxes(XtG, -1, -2)
    along = skew / (s[..., :, None] + s[..., None, :]) if s.shape[-1] > 1 else np.zeros_like(skew)
    across = GV - XV @ XtG if U.shape[-2] > U.shape[-1] else np.zeros_like(GV)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (XV @ along + (across / s[..., None, :] if U.shape[-2] > U.shape[-1] else across)) @ Vt
