"""Polar factors, nearest rotations, and the derivatives of both."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.geometry._checked import Matrix, _checked, _square


@_checked()
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
    X: Matrix = U @ Vt
    return X


@_checked()
def polar_pullback(Z: Matrix, G: Matrix) -> Matrix:
    r"""Gradient in ``Z`` of a function of ``polar(Z)`` whose gradient there is ``G``.

    With :math:`Z = X H` and :math:`H = V s V'` it is
    :math:`2 X V (V'\mathrm{skew}(X'G)V \oslash (s_i + s_j)) V' + (I - XX') G H^{-1}`,
    which is finite if ``Z`` has full rank, even if singular values are equal.

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

    Unlike :func:`polar`, it is continuous where ``det Z`` changes its sign.

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
    """Singular value decomposition with ``det(U V') = +1``; the last singular value may be negative."""
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
