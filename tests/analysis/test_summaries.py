"""Means find the mode, invariants never see what the posterior cannot, summaries can be trusted; bad input is named."""

import time
import warnings

import arviz as az
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import pymc_stiefel as pst
from pymc_stiefel import geometry
from pymc_stiefel.analysis import _alignment as alignment
from pymc_stiefel.analysis import _summaries as summaries
from tests.matrices import (
    SEEDS,
    SHAPES,
    as_idata,
    concentrated,
    quick,
    rotations,
)

# ---------------------------------------------------------------- means, angles, dispersion


@quick
@given(SHAPES, SEEDS, st.sampled_from(["extrinsic", "frechet", "subspace"]))
def test_mean_of_concentrated_draws_is_the_mode(shape, seed, kind):
    rng = np.random.default_rng(seed)
    M, X = concentrated(rng, *shape, size=(2, 50), spread=0.03)
    found = pst.mean(X, kind=kind)
    assert pst.orthogonality_error(found.expand_dims(chain=[0], draw=[0])).max() < 1e-10
    if kind == "subspace":
        assert pst.principal_angles(X[:1, :1] * 0 + found.values, to=M).max() < 0.05
    else:
        np.testing.assert_allclose(found, M, atol=0.05)
    assert pst.dispersion(X, kind=kind) < 0.1


def test_thousands_of_large_draws_take_no_seconds():
    """Under a second on one core that has nothing else to do; a Python loop over draws would take tens of seconds."""
    rng = np.random.default_rng(19)
    X = concentrated(rng, 270, 3, size=(4, 1000))[1] * rng.choice([-1, 1], (4, 1000, 1, 3))
    aligned = pst.align(X)
    calls = [lambda method=method: pst.align(X, method=method) for method in alignment.METHODS]
    calls += [lambda kind=kind: pst.mean(aligned, kind=kind) for kind in ("extrinsic", "frechet", "subspace")]
    calls += [lambda kind=kind: pst.dispersion(aligned, kind=kind) for kind in ("extrinsic", "frechet", "subspace")]
    calls += [lambda to=to: pst.principal_angles(X, to=to) for to in ("mean", "draws", "chains")]
    calls += [lambda kind=kind: pst.summary(X, kind=kind) for kind in summaries.KINDS]
    for call in calls:
        start = time.process_time()
        call()
        assert time.process_time() - start < 4


def test_mean_of_uniform_draws_is_not_concentrated():
    """Control for the dispersion: uniform draws reach its largest value."""
    X = geometry.polar(np.random.default_rng(9).normal(size=(2, 2000, 6, 2)))
    assert abs(pst.dispersion(X, kind="subspace") - (1 - 2 / 6)) < 0.03
    assert pst.dispersion(X) > 0.95


@quick
@given(SHAPES, SEEDS)
def test_invariants_do_not_see_the_basis(shape, seed):
    rng = np.random.default_rng(seed)
    n, p = shape
    if n == p:
        return
    _, X = concentrated(rng, n, p, spread=0.2)
    Y = X @ rotations(rng, (2, 30), p)
    for to in ("mean", "draws", "chains", np.eye(n, 2)):
        np.testing.assert_allclose(pst.principal_angles(X, to=to), pst.principal_angles(Y, to=to), atol=1e-7)
    assert np.isclose(pst.dispersion(X, kind="subspace"), pst.dispersion(Y, kind="subspace"))
    for kind in ("projector", "angles"):
        a, b = pst.invariants(X, kind=kind), pst.invariants(Y, kind=kind)
        np.testing.assert_allclose(a, b, atol=1e-7)
    assert not np.allclose(pst.invariants(X, kind="raw"), pst.invariants(Y, kind="raw"))  # control


def test_principal_angles_are_exact_for_small_angles():
    for angle in (1e-12, 1e-8, 0.5, np.pi / 2):
        X = np.array([[np.cos(angle), 0], [0, 1], [np.sin(angle), 0]])
        found = pst.principal_angles(X[None, None], to=np.eye(3, 2)).values.ravel()
        np.testing.assert_allclose(found, [0, angle], rtol=1e-6, atol=1e-16)


def test_batches_are_analysed_separately():
    rng = np.random.default_rng(16)
    X = np.stack([concentrated(rng, 6, 2, spread=0.05 * (b + 1))[1] for b in range(3)], axis=2)
    for kind in ("extrinsic", "frechet", "subspace"):
        means, spreads = pst.mean(X, kind=kind), pst.dispersion(X, kind=kind)
        assert means.dims == ("batch_0", "row", "column") and spreads.dims == ("batch_0",)
        np.testing.assert_allclose(means[1], pst.mean(X[:, :, 1], kind=kind), atol=1e-6)
        np.testing.assert_allclose(spreads[1], pst.dispersion(X[:, :, 1], kind=kind), atol=1e-6)
    for to, shape in (("mean", (2, 30, 3, 2)), ("draws", (2, 30, 3, 2)), ("chains", (2, 2, 3, 2))):
        angles = pst.principal_angles(X, to=to)
        assert angles.shape == shape
        np.testing.assert_allclose(angles[:, :, 1], pst.principal_angles(X[:, :, 1], to=to), atol=1e-6)
    table = pst.summary(X, kind=("projector", "angles", "aligned"))
    assert len(table) == 3 * (21 + 2 + 12) and "projector[2, 0, 5]" in table.index
    assert pst.orthogonality_error(X).dims == ("chain", "draw", "batch_0")


def test_batches_of_unit_vectors():
    rng = np.random.default_rng(22)
    x = np.stack([concentrated(rng, 5, 1)[1][..., 0] for _ in range(4)], axis=2)  # (chain, draw, 4, 5)
    flipped = x * rng.choice([-1, 1], (2, 30, 4, 1))
    aligned = pst.align(flipped, method="sign", vectors=True)
    assert aligned.dims == ("chain", "draw", "batch_0", "row") and aligned.std(("chain", "draw")).max() < 0.1
    for b in range(4):
        np.testing.assert_allclose(aligned[:, :, b], pst.align(flipped[:, :, b], method="sign"))
        np.testing.assert_allclose(pst.mean(aligned, vectors=True)[b], pst.mean(aligned[:, :, b]))
    to = pst.mean(aligned, vectors=True)
    assert pst.principal_angles(flipped, vectors=True, to=to).shape == (2, 30, 4, 1)
    assert pst.principal_angles(flipped, vectors=True, to=to).max() < 0.3
    np.testing.assert_allclose(pst.align(flipped, reference=-to, vectors=True), -aligned)
    assert pst.dispersion(aligned, vectors=True).dims == ("batch_0",)
    table = pst.summary(flipped, vectors=True, kind=("projector", "angles", "aligned", "raw"))
    assert len(table) == 4 * (15 + 1 + 5 + 5) and {"projector[3, 0, 4]", "aligned[3, 4]"} <= set(table.index)
    assert pst.orthogonality_error(x, vectors=True).dims == ("chain", "draw", "batch_0")
    scores = rng.normal(size=(2, 30, 4, 7))
    signs = np.sign(flipped[..., :1] * x[..., :1])
    idata = as_idata(x=(flipped, ("group", "axis")), scores=(scores * signs, ("group", "unit")))
    out = pst.align(idata, "x", vectors=True, companions={"scores": "rotate"})
    np.testing.assert_allclose(
        out["x"].values[..., None] * out["scores"].values[..., None, :], x[..., None] * scores[..., None, :], atol=1e-12
    )
    with pytest.raises(ValueError, match="vectors=True if each row along 'column'"):
        pst.mean(x)
    with pytest.raises(ValueError, match=r"no unit length along 'row': .* up to 3"):
        pst.mean(2 * x, vectors=True)


# ---------------------------------------------------------------- summary


def test_summary_answers_a_bad_raw_rhat():
    rng = np.random.default_rng(10)
    _, X = concentrated(rng, 6, 2, size=(4, 200))
    X = X @ rotations(rng, (4, 1), 2)  # each chain sits in a basis of its own
    table = pst.summary(X, kind=("raw", "projector", "angles"))
    assert {"mean", "sd", "mcse_mean", "ess_bulk", "ess_tail", "r_hat"} <= set(table.columns)
    raw, good = table.index.str.startswith("raw"), ~table.index.str.startswith("raw")
    assert table.r_hat[raw].max() > 1.5
    assert table.r_hat[good].max() < 1.05 and table.ess_bulk[good].min() > 200
    assert len(table) == 12 + 21 + 2
    assert pst.summary(X, kind="aligned", method="rotation").r_hat.max() < 1.05


def test_summary_finds_the_worst_projector_entries_among_many():
    rng = np.random.default_rng(11)
    _, X = concentrated(rng, 40, 2, size=(4, 100), spread=0.1)
    X[0, :, [3, 17]] += 0.5  # one chain has another subspace, seen best in rows 3 and 17
    X = geometry.polar(X)
    table = pst.summary(X)
    assert len(table) == 40 + 20
    assert "projector[3, 17]" in table.index and table.r_hat["projector[3, 17]"] > 1.3
    halves = X.reshape(8, 50, 40, 2)
    P = halves @ np.swapaxes(halves, -1, -2)
    within, between = P.var(axis=1, ddof=1).mean(axis=0), P.mean(axis=1).var(axis=0, ddof=1)
    np.testing.assert_allclose(summaries._projector_rhat(X), np.sqrt(49 / 50 + between / within), rtol=1e-6)


def test_coords_name_the_rows():
    rng = np.random.default_rng(12)
    _, X = concentrated(rng, 3, 2)
    draws = xr.DataArray(
        X, dims=("chain", "draw", "city", "factor"), coords={"city": list("abc"), "factor": ["x", "y"]}, name="U"
    )
    assert "projector[a, b]" in pst.summary(draws).index
    assert "aligned[c, y]" in pst.summary(draws, kind="aligned").index
    assert list(pst.align(draws).coords["city"].values) == list("abc")
    assert pst.mean(draws).dims == ("city", "factor")


def test_square_matrices_have_no_subspace():
    X = concentrated(np.random.default_rng(13), 3, 3)[1]
    with pytest.raises(ValueError, match="whole space"):
        pst.summary(X, kind="projector")
    assert len(pst.summary(X)) == 9
    X[0, 0] *= np.array([1, 1, -1])
    with pytest.raises(ValueError, match="both determinants"):
        pst.mean(X, kind="frechet")


# ---------------------------------------------------------------- inputs


def test_all_containers_agree():
    X = concentrated(np.random.default_rng(14), 5, 2)[1]
    idata = as_idata(U=(X, ("feature", "factor")))
    dataset = xr.Dataset({"U": (("chain", "draw", "feature", "factor"), X)})
    results = [pst.align(X), pst.align(idata, "U"), pst.align(dataset), pst.align(dataset["U"])]
    results.append(pst.align(dataset["U"].transpose("feature", "factor", "draw", "chain").rename("V")))
    for other in results:
        np.testing.assert_array_equal(other, results[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = az.convert_to_dataset({"U": X})
    np.testing.assert_array_equal(pst.align(converted, "U"), results[0])


def test_single_precision_is_good_enough():
    X = concentrated(np.random.default_rng(17), 5, 2)[1]
    single = X.astype("float32")
    for call in (pst.align, pst.mean, lambda x: pst.mean(x, kind="frechet"), pst.principal_angles, pst.invariants):
        np.testing.assert_allclose(call(as_dataarray(single)), call(as_dataarray(X)), atol=1e-5)


def as_dataarray(X):
    return xr.DataArray(X, dims=("chain", "draw", "row", "column"))


def test_bad_input_is_named():
    X = concentrated(np.random.default_rng(15), 5, 2)[1]
    idata = as_idata(loadings=(X, ("f", "k")), noise=(X[..., 0, 0], ()))
    with pytest.raises(KeyError, match="did you mean 'loadings'"):
        pst.align(idata, "loading")
    with pytest.raises(KeyError, match="no group 'prior'; there are posterior"):
        pst.align(idata, "loadings", group="prior")
    with pytest.raises(ValueError, match="say which variable"):
        pst.mean(idata)
    with pytest.raises(ValueError, match="is a scalar"):
        pst.mean(idata, "noise")
    with pytest.raises(ValueError, match="lacks chain"):
        pst.mean(xr.DataArray(X[0], dims=("draw", "f", "k")))
    with pytest.raises(ValueError, match="shape"):
        pst.mean(X[0, 0])
    with pytest.raises(TypeError, match="got dict"):
        pst.mean({"a": 1})
    holes = X.copy()
    holes[1, 4:6] = np.nan
    with pytest.raises(ValueError, match=r"2 of 60 draws .* chain 1, draw 4; by chain: \[0, 2\]"):
        pst.align(holes)
    with pytest.raises(ValueError, match=r"not orthonormal .* up to 3"):
        pst.align(2 * X)
    assert np.isclose(pst.orthogonality_error(2 * X).max(), 3)
    assert pst.align(2 * X, orthonormal=False).shape == X.shape
    with pytest.raises(ValueError, match="transpose"):
        pst.mean(np.swapaxes(X, -1, -2))
    with pytest.raises(ValueError, match=r"chain dimension in front, as in X\[None\]"):
        pst.mean(X[0])
    for call in (
        lambda: pst.align(X, method="magic"),
        lambda: pst.mean(X, kind="magic"),
        lambda: pst.summary(X, kind="magic"),
        lambda: pst.principal_angles(X, to="magic"),
    ):
        with pytest.raises(ValueError, match="magic"):
            call()
    with pytest.raises(ValueError, match="reference"):
        pst.align(X, reference=np.eye(4, 2))
    with pytest.raises(ValueError, match="not orthonormal"):
        pst.principal_angles(X, to=np.ones((5, 1)))


def test_a_group_by_itself_is_read():
    """``idata["posterior"]`` is a Dataset with one ArviZ, a node of a DataTree with the other."""
    draws = np.tile(np.eye(3, 2), (2, 10, 1, 1))
    group = xr.Dataset({"U": (("chain", "draw", "row", "column"), draws)})
    for data in (group, xr.DataTree(group), xr.DataTree(group).isel(chain=[0])):
        np.testing.assert_allclose(pst.mean(data, "U"), np.eye(3, 2))
    with pytest.raises(KeyError, match="no group 'posterior'; there are none"):
        pst.mean(xr.DataTree(), "U")
