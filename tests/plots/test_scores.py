"""Biplots: ellipses, loadings, labels."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import pymc_stiefel as pst
from tests.analysis.test_factor_scores import parameter_draws


def test_biplot():
    r = np.random.default_rng(12)
    draws = parameter_draws(2, 200, 4, 2, r)
    cov = np.array([[1.0, 0.8], [0.8, 1.0]])
    scores = r.multivariate_normal([1.0, 2.0], cov, size=(2, 200, 3))
    draws["scores"] = (("chain", "draw", "row", "factor"), scores)
    figure = pst.plot_scores(draws, loadings="W", colors=["x", "y", "x"], prob=0.9)
    (axis,) = figure.axes
    ellipses, *_ = [c for c in axis.collections if type(c).__name__ == "EllipseCollection"]
    # long axis along the diagonal: half of it is sqrt(1.8 * 4.605)
    assert np.degrees(ellipses._angles) % 180 == pytest.approx(45, abs=8)
    assert ellipses._widths == pytest.approx(np.sqrt(1.8 * 4.605), rel=0.15)
    assert {text.get_text() for text in axis.texts} >= set("0123")
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["x", "y"]
    with pytest.raises(ValueError, match="one entry for each of the 3 rows"):
        pst.plot_scores(draws, colors=[1, 2])
    with pytest.raises(ValueError, match="factors"):
        pst.plot_scores(draws, factors=(0, 2))
    plt.close("all")


def test_labels_of_a_biplot_do_not_touch():
    """Loadings that nearly coincide, with long names; all labels lie within the axes."""
    r = np.random.default_rng(13)
    tips = np.array([[1.0, 0.2], [1.0, 0.21], [0.98, 0.22], [0.5, 0.2], [-1.0, 0.0], [-1.0, 0.01]])
    draws = xr.Dataset(
        {
            "scores": (("chain", "draw", "row", "factor"), r.normal(size=(1, 50, 5, 2))),
            "W": (("chain", "draw", "feature", "factor"), tips + 0.01 * r.normal(size=(1, 50, 6, 2))),
        },
        coords={"feature": [f"a rather long name {k}" for k in range(6)]},
    )
    figure = pst.plot_scores(draws, loadings="W")
    (axis,) = figure.axes
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts if text.get_text()]
    frame = axis.get_window_extent()
    assert len(boxes) == 6 and all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(boxes[i].overlaps(boxes[j]) for i in range(6) for j in range(i))
    plt.close("all")
