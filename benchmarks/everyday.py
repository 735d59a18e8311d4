"""More problems, of the kinds that users bring: for the time to an answer, see ``benchmarks.time_to_answer``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst
from benchmarks.problems import Problem, entries, ordered_scales, orthonormal, signs
from pymc_stiefel import ops


def factors(moments: np.ndarray, rows: int, p: int, spread: float, expansion: str) -> pm.Model:
    """Factor analysis from ``moments``, y'y, with noise of its own for each feature: log-normal with this spread."""
    n = len(moments)
    with pm.Model() as model:
        X = orthonormal("X", n, p, expansion)
        scale, noise = pm.HalfNormal("scale", 10, shape=p), pm.LogNormal("noise", 0, spread, shape=n)
        W = X * scale
        V = W / noise[:, None] ** 2
        L = pt.linalg.cholesky(pt.eye(p) + W.T @ V)
        A = pt.linalg.solve_triangular(L, V.T, lower=True)
        log_det = 2 * pt.log(noise).sum() + 2 * pt.log(pt.diagonal(L)).sum()
        quadratic = (np.diag(moments) / noise**2).sum() - ((A @ moments) * A).sum()
        pm.Potential("likelihood", -0.5 * (rows * log_det + quadratic))
    return model


def factor_analysis(n: int = 30, p: int = 3, rows: int = 200) -> Problem:
    """Factors with noise of its own for each feature; loadings are identified up to rotation."""
    rng = np.random.default_rng(5)
    truth = pst.geometry.polar(rng.normal(size=(n, p)))
    y = rng.normal(size=(rows, p)) * [6.0, 4.0, 2.5] @ truth.T + rng.normal(size=(rows, n)) * rng.uniform(0.3, 2, n)

    def quantities(draws):
        W = draws["X"] * draws["scale"][..., None, :]
        return np.concatenate([entries(W @ W.swapaxes(-1, -2), 40), draws["noise"]], axis=-1)

    return Problem(partial(factors, y.T @ y, rows, p, 1.0), quantities)


def rotation(rows: int = 50) -> Problem:
    """A rotation of R^3 from pairs of directions with noise."""
    rng = np.random.default_rng(6)
    truth = pst.geometry.polar(rng.normal(size=(3, 3)))
    truth *= np.sign(np.linalg.det(truth))
    x = rng.normal(size=(rows, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ truth.T + 0.2 * rng.normal(size=(rows, 3))

    def build(expansion):
        with pm.Model() as model:
            if expansion == "manifold":
                R = pst.SpecialOrthogonal("R", n=3)
            else:  # minus a matrix of determinant -1 is a rotation in three dimensions
                Q = orthonormal("Q", 3, 3, expansion)
                R = pm.Deterministic("R", Q * pt.sign(pt.dot(Q[:, 0], pt.stack(_cross(Q[:, 1], Q[:, 2])))))
            pm.Normal("y", x @ R.T, pm.HalfNormal("noise", 1), observed=y)
        return model

    return Problem(build, lambda draws: np.concatenate([entries(draws["R"], 9), draws["noise"][..., None]], axis=-1))


def _cross(a, b) -> list:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def hierarchy(groups: int = 20, n: int = 8, p: int = 2, kappa: float = 20.0) -> Problem:
    """Matrices of groups around a common one (Langevin, concentration known), each seen with noise."""
    rng = np.random.default_rng(7)
    common = pst.geometry.polar(rng.normal(size=(n, p)))
    each = np.stack([pst.geometry.polar(common + 0.2 * rng.normal(size=(n, p))) for _ in range(groups)])
    y = each + 0.15 * rng.normal(size=each.shape)

    def batch(expansion):
        if expansion == "manifold":
            return pst.StiefelUniform("U", n=n, p=p, shape=(groups, n, p))
        Z = pm.Normal("U_expanded", shape=(groups, n, p), initval="prior")
        if expansion == "polar":
            return pm.Deterministic("U", ops.polar(Z))
        Q, R = pt.linalg.qr(Z, mode="reduced")
        return pm.Deterministic("U", Q * pt.sign(pt.diagonal(R, axis1=-2, axis2=-1))[:, None, :])

    def build(expansion):
        with pm.Model() as model:
            M, U = orthonormal("M", n, p, expansion), batch(expansion)
            pm.Potential("prior", kappa * pt.sum(M * U))
            pm.Normal("y", U, pm.HalfNormal("noise", 1), observed=y)
        return model

    def quantities(draws):
        groups_first = draws["U"].reshape(*draws["U"].shape[:2], -1, p)
        parts = [entries(draws["M"], 16), entries(groups_first, 40), draws["noise"][..., None]]
        return np.concatenate(parts, axis=-1)

    return Problem(build, quantities)


def directions(components: int = 5, rows: int = 500, kappa: float = 30.0) -> Problem:
    """A mixture of von Mises-Fisher laws on the sphere, started at the components, so that labels stay."""
    rng = np.random.default_rng(8)
    means = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -0.8, 0.6], [0, 0.6, 0.8]], dtype=float)[:components]
    labels = rng.integers(components, size=rows)
    x = np.stack([pst.draws.von_mises_fisher(means[k], kappa, rng=rng) for k in labels])

    def vectors(expansion):
        if expansion == "manifold":
            return pst.UnitVector("mu", n=3, shape=(components, 3), initval=means)
        Z = pm.Normal("mu_expanded", shape=(components, 3), initval=np.sqrt(3) * means)
        return pm.Deterministic("mu", Z / pt.sqrt(pt.sum(Z**2, axis=-1, keepdims=True)))

    def build(expansion):
        with pm.Model() as model:
            mu, weight = vectors(expansion), pm.Dirichlet("weight", np.ones(components))
            concentration = pm.Gamma("kappa", 2, 0.05)
            log_norm = pt.log(concentration) - pt.log1p(-pt.exp(-2 * concentration)) - np.log(2 * np.pi)
            terms = pt.log(weight) + concentration * (pt.constant(x) @ mu.T - 1) + log_norm
            pm.Potential("likelihood", pt.logsumexp(terms, axis=1).sum())
        return model

    def quantities(draws):
        flat = draws["mu"].reshape(*draws["mu"].shape[:2], -1)
        return np.concatenate([flat, draws["weight"], draws["kappa"][..., None]], axis=-1)

    return Problem(build, quantities, jitter=False)


def functional_pca(n: int = 60, p: int = 2, rows: int = 40) -> Problem:
    """Curves on a grid, half of the points missing, a smooth prior: the polar factor of smooth Gaussian curves."""
    rng = np.random.default_rng(22)
    t = np.linspace(0, 1, n)
    K = np.exp(-0.5 * (t[:, None] - t) ** 2 / 0.1**2) + 1e-4 * np.eye(n)
    truth = np.linalg.qr(np.c_[np.sin(2 * np.pi * t), np.cos(2 * np.pi * t)])[0]
    y = rng.normal(size=(rows, p)) * [6.0, 3.0] @ truth.T + 0.3 * rng.normal(size=(rows, n))
    i, j = np.nonzero(rng.random(y.shape) >= 0.5)

    def build(expansion):
        if expansion == "qr":
            raise ValueError("the QR factor of smooth curves has another law")
        with pm.Model() as model:
            if expansion == "manifold":
                X = pst.MatrixAngularCentralGaussian("X", K, p)
            else:
                Z = pm.Normal("X_expanded", shape=(n, p), initval="prior")
                X = pm.Deterministic("X", ops.polar(np.linalg.cholesky(K) @ Z))
            scale, noise = pm.HalfNormal("scale", 10, shape=p), pm.HalfNormal("noise", 1)
            z = pm.Normal("z", 0, 1, shape=(rows, p))
            pm.Normal("y", ((z * scale) @ X.T)[i, j], noise, observed=y[i, j])
        return model

    def quantities(draws):
        W = draws["X"] * draws["scale"][..., None, :]
        z = draws["z"]
        curves = z[..., :3, :] @ W.swapaxes(-1, -2)
        return np.concatenate([entries(curves, 40), draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


def wide_ppca(n: int = 2000, rows: int = 200, scales: tuple[float, ...] = (12.0, 15.0, 20.0, 25.0, 32.0)) -> Problem:
    """More features than rows: the density goes through Y itself."""
    p, rng = len(scales), np.random.default_rng(9)
    truth = pst.geometry.polar(rng.standard_normal((n, p)))
    Y = rng.standard_normal((rows, p)) * np.array(scales) @ truth.T + rng.standard_normal((rows, n))

    def build(expansion):
        with pm.Model() as model:
            data = pm.Data("Y", Y)
            U, scale, noise = orthonormal("U", n, p, expansion), ordered_scales(p, 20), pm.HalfNormal("noise", 2)
            shrink = scale**2 / (scale**2 + noise**2)
            quadratic = (np.sum(Y**2) - pt.sum(shrink * pt.sum((data @ U) ** 2, axis=0))) / noise**2
            log_det = pt.sum(pt.log(scale**2 + noise**2)) + (n - p) * pt.log(noise**2)
            pm.Potential("likelihood", -0.5 * (rows * log_det + quadratic))
        return model

    def quantities(draws):
        aligned = draws["U"] * signs(draws["U"], truth)
        return np.concatenate([entries(aligned, 40), draws["scale"], draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities)


EVERYDAY: dict[str, Callable[[], Problem]] = {
    "factor analysis, 30 noises": factor_analysis,
    "rotation, 50 directions": rotation,
    "hierarchy of 20 matrices": hierarchy,
    "mixture of 5 directions": directions,
    "functional PCA": functional_pca,
    "ppca (2000, 5)": wide_ppca,
}
