"""The problems: a model in three forms, and what of its posterior is identified.

A model is written once. Its orthonormal matrices come from :func:`orthonormal`: variables of this package, or the QR or
polar factor of a Gaussian matrix, which needs no Jacobian because both factors of a Gaussian matrix are uniform.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, log, ordered
from scipy.optimize import minimize
from scipy.special import log_ndtr

import pymc_stiefel as pst
from pymc_stiefel import ops

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
Draws = dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A posterior to sample.

    ``build(expansion)`` makes the model; ``quantities`` maps draws, name -> (chain, draw, ...), to identified
    quantities (chain, draw, k); ``exact`` gives their means and the errors of these, where known. Without ``jitter``
    chains start where the model says. ``note`` adds a word on where the chains are. mici, being slow, makes only
    ``mici_draws``. ``patience`` multiplies the budget of seconds.
    """

    build: Callable[[str], pm.Model]
    quantities: Callable[[Draws], np.ndarray]
    draws: int = 1000
    exact: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    jitter: bool = True
    note: Callable[[Draws], str] | None = None
    mici_draws: int = 100
    patience: float = 1.0


def orthonormal(name: str, n: int, p: int, expansion: str, start: np.ndarray | None = None):
    """An orthonormal n x p matrix, uniform a priori."""
    if expansion == "manifold":
        return pst.StiefelUniform(name, n=n, p=p, initval=start)
    # Gaussian matrices have singular values near sqrt(n); equal ones would be a bad start for no reason
    wide = "prior" if start is None else start * np.sqrt(n) * np.linspace(0.9, 1.1, p)
    Z = pm.Normal(f"{name}_expanded", shape=(n, p), initval=wide)
    if expansion == "polar":  # with the derivative of this package: PyTensor's, through eigh, is slower
        return pm.Deterministic(name, ops.polar(Z))
    Q, R = pt.linalg.qr(Z, mode="reduced")
    return pm.Deterministic(name, Q * pt.sign(pt.diag(R)))


def entries(x: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` entries of the matrices (chain, draw, n, p), the same ones whoever asks."""
    flat = x.reshape(*x.shape[:2], -1)
    size = flat.shape[-1]
    return flat[..., np.sort(np.random.default_rng(0).permutation(size)[:most])]


def signs(x: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Sign of each column relative to the reference, (chain, draw, 1, p)."""
    return np.where(np.sum(x * reference, axis=-2, keepdims=True) < 0, -1.0, 1.0)


# ---------------------------------------------------------------- the uniform law


def uniform(n: int, p: int, draws: int = 1000, **options) -> Problem:
    """Haar: entries have mean 0 and mean square 1/n."""

    def build(expansion):
        with pm.Model() as model:
            orthonormal("X", n, p, expansion)
        return model

    def quantities(draws):
        chosen = entries(draws["X"], 20)
        return np.concatenate([chosen, chosen**2], axis=-1)

    def exact():
        half = min(20, n * p)
        return np.repeat([0.0, 1 / n], half), np.zeros(2 * half)

    return Problem(build, quantities, draws, exact, **options)


# ---------------------------------------------------------------- probabilistic PCA


def ppca(n: int, N: int, scales: tuple[float, ...], **options) -> Problem:
    """Y ~ N(0, U diag(scale^2) U' + noise^2 I) through Y'Y; scales ordered, signs aligned."""
    p = len(scales)
    rng = np.random.default_rng(1)
    truth = pst.geometry.polar(rng.standard_normal((n, p)))
    Y = rng.standard_normal((N, p)) * np.array(scales) @ truth.T + rng.standard_normal((N, n))
    gram = Y.T @ Y

    def build(expansion):
        with pm.Model() as model:
            U = orthonormal("U", n, p, expansion)
            scale = ordered_scales(p, 5)
            noise = pm.HalfNormal("noise", 2)
            shrink = scale**2 / (scale**2 + noise**2)
            quadratic = (np.trace(gram) - pt.sum(shrink * pt.sum(U * (pt.constant(gram) @ U), axis=0))) / noise**2
            log_det = pt.sum(pt.log(scale**2 + noise**2)) + (n - p) * pt.log(noise**2)
            pm.Potential("likelihood", -0.5 * (N * log_det + quadratic))
        return model

    def quantities(draws):
        aligned = draws["U"] * signs(draws["U"], truth)
        return np.concatenate([entries(aligned, 40), draws["scale"], draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities, **options)


def ordered_scales(p: int, spread: float):
    ascending = np.arange(1, p + 1.0)
    return pm.HalfNormal("scale", spread, shape=p, default_transform=Chain([log, ordered]), initval=ascending)


# ---------------------------------------------------------------- Langevin-Bingham


def langevin_bingham(n: int, p: int, low: float, high: float, **options) -> Problem:
    """etr(F'X + C X'BX) with columns of F of lengths from ``low`` to ``high``."""
    rng = np.random.default_rng(2)
    F = pst.geometry.polar(rng.standard_normal((n, p))) * np.geomspace(low, high, p)
    B, C = np.linspace(0, 1, n) * low, np.linspace(1, 0.5, p)

    def build(expansion):
        with pm.Model() as model:
            X = orthonormal("X", n, p, expansion)
            pm.Potential("density", pt.sum(F * X) + pt.sum(C * (B[:, None] * X**2)))
        return model

    def quantities(draws):
        X = draws["X"]
        trace = np.sum(F * X, axis=(-2, -1))[..., None]
        return np.concatenate([entries(X, 40), trace], axis=-1)

    return Problem(build, quantities, **options)


# ---------------------------------------------------------------- the eigenmodel of a network


def eigenmodel(path: Path = DATA, **options) -> Problem:
    """Hoff's probit model of the protein network, from its leading eigenvectors; several modes, so say which."""
    y = np.loadtxt(path / "eigenmodel" / "hoff.dat")
    n, p = len(y), 3
    rows, columns = np.tril_indices(n, -1)
    both, off_diagonal = 2.0 * y - 1.0, 1.0 - np.eye(n)
    sign = both[rows, columns]
    values, vectors = np.linalg.eigh(y - np.diag(np.diag(y)))
    U0 = vectors[:, np.argsort(-np.abs(values))[:p]]
    # the eigenvectors given, l and c are the coefficients of a probit regression
    design = np.column_stack([U0[rows] * U0[columns], np.ones(len(rows))])
    fit = minimize(lambda b: -log_ndtr(sign * (design @ b)).sum() + 0.5 * b[:p] @ b[:p] / n, [*np.zeros(p), -2.0])

    def build(expansion):
        with pm.Model() as model:
            U = orthonormal("U", n, p, expansion, U0)
            l = pm.Normal("l", 0, np.sqrt(n), shape=p, initval=fit.x[:p])
            c = pm.Normal("c", 0, 10, initval=fit.x[p])
            eta = c + (U * l) @ U.T  # all pairs twice: cheaper than to pick out one half
            pm.Potential("likelihood", 0.5 * pt.sum(off_diagonal * pt.log(0.5 * pt.erfc(-both * eta / np.sqrt(2)))))
        return model

    some = np.random.default_rng(0).choice(len(rows), 30, replace=False)

    def quantities(draws):
        U, l = draws["U"], draws["l"]
        chosen = np.einsum("...ik,...k,...ik->...i", U[..., rows[some], :], l, U[..., columns[some], :])
        return np.concatenate([chosen, np.sort(l, axis=-1), draws["c"][..., None]], axis=-1)

    def note(draws):
        patterns = sorted({"".join("+" if s > 0 else "-" for s in np.sort(l)[::-1]) for l in draws["l"].reshape(-1, p)})
        few = slice(None, None, 20)
        U, l, c = draws["U"][:, few], draws["l"][:, few], draws["c"][:, few]
        eta = c[..., None] + ((U * l[..., None, :]) @ U.swapaxes(-1, -2))[..., rows, columns]
        likelihood = log_ndtr(sign * eta).sum(-1).mean(1)
        return f"signs of l {' '.join(patterns)}, log likelihood {' '.join(f'{value:.0f}' for value in likelihood)}"

    return Problem(build, quantities, jitter=False, note=note, **options)


# ---------------------------------------------------------------- the paper's mixture

SIGMA = 0.3


def mixture_modes(n: int) -> np.ndarray:
    """Sixteen n x 2 matrices of ones and twos: all of them for n = 2, those with a last row of ones for n = 3."""
    corners = np.array(list(itertools.product([1.0, 2.0], repeat=4))).reshape(16, 2, 2)
    return np.concatenate([corners, np.ones((16, n - 2, 2))], axis=1)


def positive_qr(M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """QR with a positive diagonal of R."""
    Q, R = np.linalg.qr(M)
    sign = np.sign(np.diagonal(R, axis1=-2, axis2=-1))
    return Q * sign[..., None, :], R * sign[..., :, None]


def mixture(n: int, **options) -> Problem:
    """M = QR from sixteen matrix normals. (Q, R) has the density of M times prod R_ii^(n-i)."""
    modes = mixture_modes(n)
    Q0, R0 = positive_qr(modes[1])  # the first mode of all has no QR factors: its rank is 1

    def build(expansion):
        with pm.Model() as model:
            Q = orthonormal("Q", n, 2, expansion, Q0)
            diagonal = pm.HalfFlat("diagonal", shape=2, initval=np.diag(R0))
            upper = pm.Flat("upper", initval=R0[0, 1])
            M = pt.stack([Q[:, 0] * diagonal[0], Q[:, 0] * upper + Q[:, 1] * diagonal[1]], axis=1)
            pm.Potential("mixture", pt.logsumexp(-0.5 * pt.sum((M - modes) ** 2, axis=(1, 2)) / SIGMA**2))
            pm.Potential("jacobian", pt.sum(np.array([n - 1, n - 2]) * pt.log(diagonal)))
        return model

    def collect(Q, diagonal, upper):
        M = np.stack([Q[..., 0] * diagonal[..., :1], Q[..., 0] * upper + Q[..., 1] * diagonal[..., 1:]], axis=-1)
        parts = [Q.reshape(*Q.shape[:-2], -1), diagonal, upper, M.reshape(*M.shape[:-2], -1)]
        return np.concatenate(parts, axis=-1)

    def quantities(draws):
        return collect(draws["Q"], draws["diagonal"], draws["upper"][..., None])

    def exact():  # independent draws of M, factorised
        rng = np.random.default_rng(0)
        count = 400_000
        Q, R = positive_qr(modes[rng.integers(16, size=count)] + SIGMA * rng.standard_normal((count, n, 2)))
        x = collect(Q, np.diagonal(R, axis1=-2, axis2=-1), R[..., 0, 1:])
        return x.mean(0), x.std(0) / np.sqrt(count)

    return Problem(build, quantities, exact=exact, jitter=False, **options)


# ---------------------------------------------------------------- a low-rank matrix


def svd(m: int, n: int, scales: tuple[float, ...], **options) -> Problem:
    """Y = U diag(scale) V' + noise; scales ordered, signs aligned."""
    p = len(scales)
    rng = np.random.default_rng(3)
    left, right = (pst.geometry.polar(rng.standard_normal((k, p))) for k in (m, n))
    Y = (left * np.array(scales)) @ right.T + rng.standard_normal((m, n))

    def build(expansion):
        with pm.Model() as model:
            U, V = orthonormal("U", m, p, expansion), orthonormal("V", n, p, expansion)
            scale = ordered_scales(p, 20)
            noise = pm.HalfNormal("noise", 2)
            pm.Normal("y", (U * scale) @ V.T, noise, observed=Y)
        return model

    def quantities(draws):
        sign = signs(draws["U"], left)
        parts = [entries(draws[name] * sign, 20) for name in ("U", "V")]
        return np.concatenate([*parts, draws["scale"], draws["noise"][..., None]], axis=-1)

    return Problem(build, quantities, **options)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "uniform (10, 1)": partial(uniform, 10, 1),
    "uniform (100, 1)": partial(uniform, 100, 1),
    "uniform (10, 10)": partial(uniform, 10, 10, mici_draws=20),
    "uniform (30, 30)": partial(uniform, 30, 30, draws=500, mici_draws=20),
    "uniform (100, 10)": partial(uniform, 100, 10, draws=500),
    "ppca 30, [5, 3, 1.5]": partial(ppca, 30, 200, (1.5, 3.0, 5.0)),
    "ppca 30, [12, 4, 1.2]": partial(ppca, 30, 200, (1.2, 4.0, 12.0)),
    # its weakest scale makes rare, long excursions: in 1000 draws a chain sees one or none
    "ppca 100, [5, 3, 1.5]": partial(ppca, 100, 100, (1.5, 3.0, 5.0), draws=4000, patience=5.0),
    "langevin-bingham (10, 2), 2 to 5": partial(langevin_bingham, 10, 2, 2.0, 5.0),
    "langevin-bingham (20, 5), 10 to 100": partial(langevin_bingham, 20, 5, 10.0, 100.0),
    "langevin-bingham (50, 10), 50 to 1000": partial(langevin_bingham, 50, 10, 50.0, 1000.0, draws=500),
    "eigenmodel": partial(eigenmodel, draws=200, mici_draws=50, patience=4.0),
    "qr-mixture (2, 2)": partial(mixture, 2, draws=500),
    "qr-mixture (3, 2)": partial(mixture, 3, draws=500),
    "svd (40, 30), rank 3": partial(svd, 40, 30, (10.0, 20.0, 30.0)),
}
"""Name -> a function that makes the problem; data are simulated or read only when it is called."""
