"""Draws on the host: chunks, the text of the progress bar, R-hat."""

from __future__ import annotations

import numpy as np
import pytest
from pymc.stats import rhat as reference

pytest.importorskip("jax")
pytest.importorskip("blackjax")

from pymc_stiefel.jax._results import Store, rhat


@pytest.fixture
def chunks():
    """Two chunks (draw, chain, ...) of five draws of three chains; the last draw is surplus."""
    rng = np.random.default_rng(1)
    numbers = [rng.normal(size=(5, 3)) for _ in range(2)]
    stats = [{"lp": x, "n_steps": np.full((5, 3), 4 + 2 * k), "diverging": x > 1} for k, x in enumerate(numbers)]
    return numbers, stats


def test_chunks_become_chains_and_the_text_of_the_progress_bar(chunks):
    numbers, stats = chunks
    store = Store(["x"], 9, 3, step_size=0.25, length=1.5)
    for k in range(2):
        store.add(5 * k, [numbers[k]], stats[k])
    expected = np.concatenate(numbers)[:9].T
    np.testing.assert_array_equal(store.posterior["x"], expected)
    np.testing.assert_array_equal(store.stats["lp"], expected)
    assert store.describe() == (
        f"step 0.25, length 1.5, {(5 * 4 + 4 * 6) / 9:.1f} gradients, {(expected > 1).sum()} divergences, "
        f"R-hat {rhat(expected):.3f}"
    )


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_rhat_is_the_split_rhat_of_arviz(shift):
    values = np.random.default_rng(2).normal(size=(4, 100)) + shift * np.arange(4)[:, None]
    assert rhat(values) == pytest.approx(float(reference(values, method="split")), rel=1e-10)
