"""Each picture has the artists it promises, from every container, and closes nothing it did not open."""

import re

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel import geometry
from pymc_stiefel.plots import _diagnostic as diagnostic_plots
from pymc_stiefel.plots import _figures
from tests import ROOT

matplotlib.use("Agg")
DOCS = ROOT / "docs"


def make_draws(n, p, *, names=None, size=(2, 60), seed=0):
    rng = np.random.default_rng(seed)
    X = geometry.polar(geometry.polar(rng.normal(size=(n, p))) + 0.1 * rng.normal(size=(*size, n, p)))
    X = X * rng.choice([-1, 1], (*size, 1, p))
    coords = {"factor": [f"f{k}" for k in range(p)]} | ({"feature": names} if names else {})
    return xr.DataArray(X, dims=("chain", "draw", "feature", "factor"), coords=coords, name="U")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def drawn(figure):
    """Draw, so that layout problems (which warn) are errors here."""
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize("n", [6, 60])
def test_columns_have_points_and_intervals(n):
    draws = make_draws(n, 3, names=[f"city {i}" for i in range(n)])
    figure = drawn(pst.plot_columns(draws))
    assert len(figure.axes) == 3
    for axis in figure.axes:
        points = axis.collections[-1].get_offsets()
        assert len(points) == n and len(axis.collections[0].get_segments()) == n
    if n == 6:
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(draws.feature.values)
        assert figure.axes[2].get_title() == "f2"
    else:
        named = [text.get_text() for axis in figure.axes for text in axis.texts]
        assert 3 <= len(named) <= 15 and set(named) <= set(draws.feature.values)


@pytest.mark.parametrize("n", [6, 270])
def test_loadings_show_median_and_sd(n):
    draws = make_draws(n, 2)
    figure = drawn(pst.plot_loadings(draws))
    images = [image.get_array() for axis in figure.axes for image in axis.images]
    assert [image.shape for image in images] == [(n, 2) if n == 6 else (2, n)] * 3  # unknown, known, sd
    unknown, known, sd = images if n == 6 else [image.T for image in images]
    aligned = pst.align(draws).values
    low, median, high = np.quantile(aligned, (0.05, 0.5, 0.95), axis=(0, 1))
    clear = (low > 0) | (high < 0)
    assert clear.any() and not clear.all()
    np.testing.assert_allclose(known.filled(np.nan), np.where(clear, median, np.nan))
    np.testing.assert_allclose(unknown.filled(np.nan), np.where(clear, np.nan, np.abs(median)))
    np.testing.assert_allclose(sd, aligned.std(axis=(0, 1)))


def test_long_names_of_columns_are_slanted():
    draws = make_draws(6, 2)
    for names, angle in ((["a", "b"], 0), (["a long name", "another"], 40)):
        figure = drawn(pst.plot_loadings(draws.assign_coords(factor=names)))
        label = figure.axes[0].get_xticklabels()[0]
        assert (label.get_text(), label.get_rotation()) == (names[0], angle)


def test_uniform_angles_are_those_of_uniform_draws():
    """The reference of the subspace picture, drawn without the rows that do not matter, against whole matrices."""
    for n, p, q in ((9, 2, 2), (5, 3, 3), (7, 2, 3), (6, 1, 1)):
        X = geometry.polar(np.random.default_rng(5).normal(size=(1, 4000, n, p)))
        direct = pst.principal_angles(X, to=np.eye(n, q)).values[0]
        short = diagnostic_plots._uniform_angles(n, p, q, 4000)
        for k in range(min(p, q)):
            assert stats.ks_2samp(short[:, k], direct[:, k]).pvalue > 1e-4
        wrong = diagnostic_plots._uniform_angles(n + 2, p, q, 4000)
        assert stats.ks_2samp(wrong[:, -1], direct[:, -1]).pvalue < 1e-4  # control: another dimension is seen


@pytest.mark.parametrize(("p", "shown"), [(1, 1), (3, 3), (6, 3)])
def test_subspace_has_a_density_for_each_angle(p, shown):
    figure = drawn(pst.plot_subspace(make_draws(8, p)))
    (axis,) = figure.axes
    assert len(axis.collections) == shown
    assert len(axis.lines) == shown * (2 + 2) + 1  # pooled, two chains, uniform; and the legend's entry
    grid, density = axis.lines[0].get_data()
    assert abs(np.trapezoid(density, grid) - 1) < 0.01


def test_sphere_and_circle():
    for n, p in ((2, 1), (3, 1), (3, 2)):
        figure = drawn(pst.plot_sphere(make_draws(n, p)))
        sizes = [len(c.get_offsets()) for c in figure.axes[0].collections]
        assert sum(sizes) == 120 * p
    vectors = make_draws(3, 1).isel(factor=0, drop=True)
    drawn(pst.plot_sphere(vectors, method="sign"))
    with pytest.raises(ValueError, match="n = 8"):
        pst.plot_sphere(make_draws(8, 2))
    with pytest.raises(ValueError, match="each row along 'factor' is a unit vector"):
        pst.plot_sphere(
            make_draws(3, 1).isel(factor=0, drop=True).expand_dims(batch=3, axis=2).rename(feature="factor")
        )


@pytest.mark.parametrize(("p", "method"), [(1, "sign"), (3, "permutation"), (3, "rotation"), (3, "varimax")])
def test_alignment_gathers_the_draws(p, method):
    figure = drawn(pst.plot_alignment(make_draws(8, p), method=method))
    before, after = figure.axes
    first = [np.asarray(axis.collections[0].get_offsets())[:, 0] for axis in (before, after)]
    assert len(first[0]) == 120
    if method != "varimax":
        assert first[0].std() > 3 * first[1].std() and first[1].min() > 0.5


def test_invariants_put_the_worst_first():
    draws = make_draws(8, 3)
    figure = drawn(pst.plot_invariants(draws))
    assert len(figure.axes) == 6
    assert all(len(axis.lines) == 2 for axis in figure.axes[::2])
    spoilt = draws.copy()
    spoilt.values[0] = geometry.polar(spoilt.values[0] + 0.3)
    figure = drawn(pst.plot_invariants(spoilt, kind="projector", max_rows=1))
    table = pst.summary(spoilt)
    assert figure.axes[0].get_title(loc="left") == table["r_hat"].idxmax()
    assert len(drawn(pst.plot_invariants(make_draws(3, 3), max_rows=2)).axes) == 4


def test_rank_shares_are_flat_when_chains_agree():
    values = np.random.default_rng(1).normal(size=(4, 5000))
    assert np.abs(_figures.rank_shares(values, 10) - 1).max() < 0.15
    values[0] += 1
    assert np.abs(_figures.rank_shares(values, 10) - 1).max() > 0.5  # control


def test_energy_is_that_of_arviz():
    rng = np.random.default_rng(2)
    stats = xr.Dataset({"energy": (("chain", "draw"), rng.normal(size=(2, 500)))})
    figure = drawn(pst.plot_energy(stats))
    lines = figure.axes[-1].lines
    assert len(lines) >= 2
    shown = {to_hex(line.get_color()).upper() for line in lines if len(line.get_xdata())}  # not ArviZ's labels
    assert shown and shown <= set(_figures.PALETTE)
    assert figure.axes[-1].get_xlabel().startswith("energy")
    with pytest.raises(KeyError, match="no 'energy'"):
        pst.plot_energy(xr.Dataset({"depth": 1}))


def test_the_users_axes_are_used():
    draws = make_draws(6, 2)
    figure, axes = plt.subplots(1, 2)
    assert pst.plot_columns(draws, ax=axes) is figure and axes[0].collections
    figure, axis = plt.subplots()
    assert pst.plot_subspace(draws, ax=axis) is figure and axis.lines
    with pytest.raises(ValueError, match="2 panels, got 1 axes"):
        pst.plot_columns(draws, ax=axis)


def test_containers_and_bad_input():
    draws = make_draws(6, 2)
    dataset = draws.to_dataset()
    container = (
        az.InferenceData(posterior=dataset)
        if az.__version__.startswith("0.")
        else xr.DataTree.from_dict({"/posterior": dataset})
    )
    for call in (pst.plot_columns, pst.plot_loadings, pst.plot_subspace, pst.plot_alignment, pst.plot_invariants):
        drawn(call(container, "U"))
        drawn(call(draws.values))
    for call in (pst.plot_columns, pst.plot_loadings, pst.plot_subspace, pst.plot_alignment, pst.plot_invariants):
        figure = drawn(call(draws.expand_dims(batch=["a", "b"], axis=2)))
        assert [place.get_suptitle() for place in figure.subfigs] == ["batch a", "batch b"]
        assert len(figure.axes) == 2 * len(call(draws).axes)
    with pytest.raises(ValueError, match="whole space"):
        pst.plot_subspace(make_draws(3, 3))


def test_the_page_of_analysis_runs():
    """Its code in one piece, with draws in the place of the posterior it speaks about; its pictures exist."""
    page = (DOCS / "analysis.md").read_text()
    rng = np.random.default_rng(6)
    stocks = ["AAPL", "ADBE", "AMZN", "GOOGL", "IBM", "MSFT", "XRX"]
    U = make_draws(7, 2, names=stocks, size=(2, 60)).rename(feature="stock", factor="component")
    scale = xr.DataArray(rng.gamma(9, size=(2, 60, 2)), dims=("chain", "draw", "component"))
    energy = xr.DataArray(rng.normal(size=(2, 60)), dims=("chain", "draw"))
    groups = {"posterior": xr.Dataset({"U": U, "scale": scale}), "sample_stats": xr.Dataset({"energy": energy})}
    old = az.__version__.startswith("0.")
    idata = az.InferenceData(**groups) if old else xr.DataTree.from_dict(groups)
    namespace = {"idata": idata}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "analysis.md", "exec"), namespace)
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(pictures) == 9 and all((DOCS / picture).exists() for picture in pictures)
    assert {name for name in pst.__all__ if name.startswith("plot_")} <= set(re.findall(r"pst\.(plot_\w+)", page))


def test_numbers_along_the_rows_are_an_axis():
    """Times, evenly spaced or not, are where the points are; names stand below each of sixty features."""
    times = np.array([1990.0, 1991.0, 1992.5, 2000.0, 2010.0, 2011.0])
    figure = drawn(pst.plot_columns(make_draws(6, 2).assign_coords(feature=times)))
    np.testing.assert_allclose(figure.axes[0].collections[-1].get_offsets()[:, 0], times)
    assert figure.axes[-1].get_xlabel() == "feature"
    names = [f"feature {i}" for i in range(60)]
    for call in (pst.plot_columns, pst.plot_loadings):
        shown = [drawn(call(make_draws(60, 2, names=names))).axes[k].get_xticklabels() for k in (0, 1)]
        assert names in [[label.get_text() for label in labels] for labels in shown]


def test_many_columns_share_a_colour():
    figure = drawn(pst.plot_alignment(make_draws(60, 40)))
    legend = figure.axes[1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["f0", "f1", "38 others"]
    box, page = legend.get_window_extent(), figure.bbox
    assert box.y0 > page.y0 and box.y1 < page.y1 and box.x1 <= page.x1
    assert len(figure.axes[0].collections) <= 6


def test_angles_are_in_degrees():
    draws = make_draws(8, 2)
    figure = drawn(pst.plot_invariants(draws, max_rows=2))
    assert all(axis.get_title(loc="left").endswith("(degrees)") for axis in figure.axes[::2])
    highest = max(line.get_ydata().max() for axis in figure.axes[::2] for line in axis.lines)
    np.testing.assert_allclose(highest, np.degrees(pst.principal_angles(draws).values.max()))
