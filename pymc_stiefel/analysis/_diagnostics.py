"""Mean, quantiles, ESS and R-hat of many scalar quantities at once.

ArviZ computes the same numbers in a Python loop over quantities, which takes seconds for the entries of one large
matrix. Here each step is an array operation over a block of quantities; the tests hold both to the same values.

References
----------
Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), doi:10.1214/20-BA1221.
"""

from __future__ import annotations

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["diagnostics"]

Array = NDArray[np.float64]
TAILS = (0.05, 0.95)
BLOCK_SIZE = 50_000  # draws times quantities in one block: the working arrays then stay in the cache
CONSTANT = np.finfo(float).resolution


def diagnostics(values: Array) -> dict[str, Array]:
    """Columns of a summary table; ``values`` has shape (chain, draw, quantity), each column (quantity,).

    Constant quantities have no R-hat (NaN), nor has a single chain.
    """
    n_chains, n_draws, n_quantities = values.shape
    width = max(1, BLOCK_SIZE // (n_chains * n_draws))
    blocks = [
        _block(np.ascontiguousarray(np.moveaxis(values[..., start : start + width], -1, 0), dtype=float))
        for start in range(0, n_quantities, width)
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _block(x: Array) -> dict[str, Array]:
    """``x`` has shape (quantity, chain, draw)."""
    pooled = x.reshape(len(x), -1)
    sd = pooled.std(axis=1, ddof=1)
    split = _split_chains(x)
    ranked, folded, ascending = _normal_scores(split)
    if ascending.shape != pooled.shape:  # the split has dropped a draw
        ascending = np.sort(pooled, axis=1)
    low, high = _quantiles(ascending)
    tails = [_ess(_split_chains((x <= cut[:, None, None]).astype(float))) for cut in (low, high)]
    r_hat = np.maximum(_rhat(ranked), _rhat(folded)) if x.shape[1] > 1 else np.full(len(x), np.nan)
    return {
        "mean": pooled.mean(axis=1),
        "sd": sd,
        "q5": low,
        "q95": high,
        "mcse_mean": sd / np.sqrt(_ess(split)),
        "ess_bulk": _ess(ranked),
        "ess_tail": np.minimum(*tails),
        "r_hat": r_hat,
    }


def _split_chains(x: Array) -> Array:
    """Halves of the chains as chains, without the middle draw if their number is odd."""
    half = x.shape[-1] // 2
    return np.concatenate([x[..., :half], x[..., -half:]], axis=1)


def _quantiles(ascending: Array) -> tuple[Array, ...]:
    """Linear interpolation between order statistics, as ``np.quantile`` does."""
    places = np.array(TAILS) * (ascending.shape[1] - 1)
    below = places.astype(int)
    return tuple(
        ascending[:, i] + share * (ascending[:, min(i + 1, ascending.shape[1] - 1)] - ascending[:, i])
        for i, share in zip(below, places - below, strict=True)
    )


def _normal_scores(x: Array) -> tuple[Array, Array, Array]:
    """Normal scores of the pooled ranks of ``x`` and of the distances from the median; the pooled values in order."""
    pooled = x.reshape(len(x), -1)
    size = pooled.shape[1]
    scores = ndtri((np.arange(2, 2 * size + 1) / 2 - 3 / 8) / (size + 1 / 4))  # for ranks 1, 1.5, 2, ...
    order = pooled.argsort(axis=1)
    ascending = np.take_along_axis(pooled, order, axis=1)
    ranked, folded = np.empty_like(pooled), np.empty_like(pooled)
    np.put_along_axis(ranked, order, scores[_doubled_ranks(ascending)], axis=1)
    middle = (ascending[:, (size - 1) // 2] + ascending[:, size // 2]) / 2
    distance = np.abs(ascending - middle[:, None])
    # one falling and one rising run, which a merge sort joins in a single pass
    again = distance.argsort(axis=1, kind="stable")
    order = np.take_along_axis(order, again, axis=1)
    np.put_along_axis(folded, order, scores[_doubled_ranks(np.take_along_axis(distance, again, axis=1))], axis=1)
    return ranked.reshape(x.shape), folded.reshape(x.shape), ascending


def _doubled_ranks(ascending: Array) -> NDArray[np.int64]:
    """Twice the average rank of each entry, less two, so that it is an index: 0 for the first, 1 for a shared first."""
    n_rows, size = ascending.shape
    place = np.broadcast_to(np.arange(size), (n_rows, size))
    differs = ascending[:, 1:] != ascending[:, :-1]
    if differs.all():
        return 2 * place
    edge = np.ones((n_rows, 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, differs]), place, 0), axis=1)
    last = np.minimum.accumulate(np.where(np.hstack([differs, edge]), place, size)[:, ::-1], axis=1)[:, ::-1]
    return first + last


def _rhat(x: Array) -> Array:
    n = x.shape[-1]
    between, within = x.mean(axis=-1).var(axis=-1, ddof=1), x.var(axis=-1, ddof=1).mean(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt((n - 1) / n + between / within)


def _ess(x: Array) -> Array:
    """Effective sample size by Geyer's initial monotone sequence, as ArviZ has it; ``x`` is (quantity, chain, draw)."""
    n_chains, n = x.shape[1:]
    size, length = n_chains * n, scipy.fft.next_fast_len(2 * n, real=True)
    x = x - x[:, :1, :1]  # so that a constant has no rounding error either
    means = x.mean(axis=-1)
    x -= means[..., None]
    spectrum = scipy.fft.rfft(x, n=length, axis=-1)
    # the mean over chains commutes with the transform, so one inverse serves them all
    power = np.einsum("qcf,qcf->qf", spectrum.real, spectrum.real)
    power += np.einsum("qcf,qcf->qf", spectrum.imag, spectrum.imag)
    covariance = scipy.fft.irfft(power, n=length, axis=-1)[:, :n] / size
    within = covariance[:, :1] * n / (n - 1)
    total = covariance[:, :1] + (means.var(axis=-1, ddof=1)[:, None] if n_chains > 1 else 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1 - (within - covariance) / total
    rho[:, 0] = 1.0
    pairs = rho[:, : n - n % 2].reshape(len(x), -1, 2).sum(axis=-1)
    limit = max(0, (n - 3) // 2)  # a pair that reaches the end of the chain is not used
    negative = pairs[:, :limit] <= 0
    kept = np.where(negative.any(axis=1), negative.argmax(axis=1), limit) if limit else np.zeros(len(x), int)
    falling = np.minimum.accumulate(pairs, axis=1)
    inside = np.arange(pairs.shape[1]) < kept[:, None]
    at = np.arange(len(x))
    even, sum_there = rho[at, 2 * kept], pairs[at, kept]
    tau = -1 + 2 * np.where(inside, falling, 0.0).sum(axis=1) + np.where((even > 0) | (sum_there >= 0), even, 0.0)
    ess = size / np.maximum(tau, 1 / np.log10(size))
    return np.where(total[:, 0] < CONSTANT**2, float(size), ess)
