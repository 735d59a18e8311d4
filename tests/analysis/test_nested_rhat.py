"""Nested R-hat: both ways to compute it against the formula, and what it is for."""

import importlib.util
import sys

import numpy as np
import pytest

import pymc_stiefel as pst

WAYS = ["own"] + ["arviz"] * (importlib.util.find_spec("arviz_stats") is not None)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "own":
        monkeypatch.setitem(sys.modules, "arviz_stats.base", None)  # as if it were not installed


def stuck_and_mixed(rng, groups=4, size=16, draws=20):
    """Two quantities: the first has a mean of its own in each group."""
    x = rng.normal(size=(groups * size, draws, 2))
    x[..., 0] += np.repeat(np.arange(groups), size)[:, None]
    return x


def by_hand(x, groups):
    """The formula in plain loops, on the normal scores of ranks."""
    from scipy.stats import norm, rankdata

    half = x.shape[1] // 2
    x = np.concatenate([x[:, :half], x[:, -half:]])
    groups = [*groups, *groups]
    results = []
    for y in (x, abs(x - np.median(x))):
        z = norm.ppf((rankdata(y).reshape(y.shape) - 0.375) / (y.size + 0.25))
        means, inner = [], []
        for k in sorted(set(groups)):
            chains = [z[i] for i in range(len(z)) if groups[i] == k]
            chain_means = [c.mean() for c in chains]
            means.append(np.mean(chain_means))
            inner.append(np.mean([c.var(ddof=1) for c in chains]) + np.var(chain_means, ddof=1))
        results.append(np.sqrt(1 + np.var(means, ddof=1) / np.mean(inner)))
    return max(results)


def test_formula(way):
    x = stuck_and_mixed(np.random.default_rng(1))
    order = np.random.default_rng(2).permutation(64)
    groups = np.repeat([7, 3, 5, 9], 16)[order]
    result = pst.nested_rhat(x[order], groups)
    np.testing.assert_allclose(result, [by_hand(x[order][..., i], groups.tolist()) for i in range(2)], rtol=1e-12)


def test_many_short_chains_pass_unless_groups_differ(way):
    x = stuck_and_mixed(np.random.default_rng(1), size=64, draws=6)
    stuck, mixed = pst.nested_rhat(x, 4)
    assert stuck > 1.3 and mixed < 1.01


def test_names_of_quantities(way):
    draws = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 10, 3, 1)))[0]
    quantities = pst.invariants(draws, kind="angles")
    assert pst.nested_rhat(quantities, 2).index.tolist() == ["angle[0]"]


def test_summary_has_it_beside_the_usual_one():
    """Four groups of 64 chains that keep means of their own. Groups agree about one matrix, not about the other."""
    rng = np.random.default_rng(3)
    mixed, stuck = rng.normal(size=(2, 256, 6, 3, 1)) + rng.normal(size=(2, 256, 1, 3, 1))
    stuck += 2 * np.repeat(rng.normal(size=(4, 3, 1)), 64, axis=0)[:, None]
    draws = {"mixed": np.linalg.qr(mixed)[0], "stuck": np.linalg.qr(stuck)[0]}
    tables = {name: pst.summary(x, superchains=4) for name, x in draws.items()}
    assert tables["mixed"].columns[-2:].tolist() == ["r_hat", "r_hat_nested"]
    assert tables["mixed"].r_hat.min() > 1.05 > 1.02 > tables["mixed"].r_hat_nested.max()
    assert tables["stuck"].r_hat_nested.max() > 1.1
    expected = pst.nested_rhat(pst.invariants(draws["stuck"]), 4)
    np.testing.assert_array_equal(tables["stuck"].r_hat_nested, expected)
    shuffled = rng.permutation(256)
    groups = np.repeat(np.arange(4), 64)[shuffled]
    table = pst.summary(draws["stuck"][shuffled], superchains=groups)
    np.testing.assert_allclose(table.r_hat_nested, expected, rtol=1e-12)
    assert "r_hat_nested" not in pst.summary(draws["mixed"])
    with pytest.raises(ValueError, match="divide the 256 chains, got 3"):
        pst.summary(draws["mixed"], superchains=3)


@pytest.mark.parametrize(
    "superchains, message",
    [
        (3, "divide the 8 chains, got 3"),
        (1, "at least 2"),
        ([0, 1], "one entry for each of the 8 chains, got 2"),
        ([0] * 5 + [1] * 3, r"equal size, got sizes \[5, 3\]"),
    ],
)
def test_bad_groups(superchains, message):
    with pytest.raises(ValueError, match=message):
        pst.nested_rhat(np.zeros((8, 10, 1)), superchains)


def test_bad_draws():
    with pytest.raises(ValueError, match="at least 4 draws"):
        pst.nested_rhat(np.zeros((8, 3, 1)), 2)
    with pytest.raises(ValueError, match=r"dims \(chain, draw, quantity\)"):
        pst.nested_rhat(np.zeros((8, 10)), 2)
