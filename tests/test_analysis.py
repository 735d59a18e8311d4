"""Alignment undoes what the posterior cannot see; invariants never see it; bad input is named."""

import time
import warnings

import arviz as az
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import pymc_stiefel as pst
from pymc_stiefel import alignment, frechet, geometry, summaries

SHAPES = st.sampled_from([(3, 1), (4, 2), (6, 3), (4, 4), (12, 5), (9, 7)])
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=20, deadline=None, derandomize=True)


def signed_permutations(rng, size, p):
    return np.eye(p)[np.argsort(rng.random((*size, p)), axis=-1)] * rng.choice([-1.0, 1.0], (*size, 1, p))


def rotations(rng, size, p):
    return geometry.polar(rng.normal(size=(*size, p, p)))


def concentrated(rng, n, p, size=(2, 30), spread=0.02):
    M = geometry.polar(rng.normal(size=(n, p)))
    return M, geometry.polar(M + spread * rng.normal(size=(*size, n, p)))


def simple_structure(rng, n, p, size=(2, 30)):
    """Loadings where each row belongs to one column: what varimax looks for."""
    loadings = np.zeros((n, p))
    loadings[np.arange(n), np.arange(n) % p] = rng.uniform(1, 2, n)
    return loadings + 0.02 * rng.normal(size=(*size, n, p))


def as_idata(**arrays):
    variables = {
        name: xr.DataArray(a, dims=("chain", "draw", *dims), coords={"chain": [0, 1], "draw": np.arange(a.shape[1])})
        for name, (a, dims) in arrays.items()
    }
    dataset = xr.Dataset(variables)
    if az.__version__.startswith("0."):
        return az.InferenceData(posterior=dataset)
    return xr.DataTree.from_dict({"/posterior": dataset})


# ---------------------------------------------------------------- alignment


@quick
@given(SHAPES, SEEDS, st.sampled_from(["sign", "permutation", "rotation"]))
def test_alignment_undoes_the_group(shape, seed, method):
    rng = np.random.default_rng(seed)
    n, p = shape
    _, X = concentrated(rng, n, p)
    moves = {
        "sign": lambda: np.eye(p) * rng.choice([-1.0, 1.0], (2, 30, 1, p)),
        "permutation": lambda: signed_permutations(rng, (2, 30), p),
        "rotation": lambda: rotations(rng, (2, 30), p),
    }[method]()
    aligned, moved = pst.align(X, method=method).values, pst.align(X @ moves, method=method).values
    # the same draws up to one element of the group, common to all draws
    common = np.swapaxes(aligned, -1, -2) @ moved
    np.testing.assert_allclose(common, np.broadcast_to(common[0, 0], common.shape), atol=1e-4)
    assert moved.std(axis=(0, 1)).max() < 0.1
    again = pst.align(X @ moves, method=method, reference=aligned.mean(axis=(0, 1))).values
    np.testing.assert_allclose(
        again, pst.align(X, method=method, reference=aligned.mean(axis=(0, 1))).values, atol=1e-8
    )


@quick
@given(st.sampled_from([(12, 2), (15, 3), (20, 5)]), SEEDS)
def test_varimax_undoes_any_rotation_of_loadings(shape, seed):
    rng = np.random.default_rng(seed)
    L = simple_structure(rng, *shape)
    aligned = pst.align(L @ rotations(rng, (2, 30), shape[1]), method="varimax").values
    matched = np.abs(aligned.mean(axis=(0, 1)).T @ L.mean(axis=(0, 1)))
    assert aligned.std(axis=(0, 1)).max() < 0.2
    rows, columns = linear_sum_assignment(-matched)
    order = np.empty(shape[1], int)
    order[columns] = rows
    np.testing.assert_allclose(np.abs(aligned[..., order]), np.abs(L), atol=0.2)


def test_alignment_fails_when_the_group_is_too_small():
    """Control: signs and order cannot undo rotations, and unaligned draws are far from constant."""
    rng = np.random.default_rng(1)
    _, X = concentrated(rng, 8, 3)
    rotated = X @ rotations(rng, (2, 30), 3)
    assert rotated.std(axis=(0, 1)).max() > 0.2
    assert pst.align(rotated, method="permutation").values.std(axis=(0, 1)).max() > 0.15
    assert pst.align(rotated, method="rotation").values.std(axis=(0, 1)).max() < 0.05


@quick
@given(st.integers(1, 9), SEEDS)
def test_assignment_is_exact(p, seed):
    gains = np.random.default_rng(seed).normal(size=(20, p, p))
    rows = alignment._assign(gains)
    for gain, row in zip(gains, rows, strict=True):
        assert sorted(row) == list(range(p))
        assert np.isclose(gain[row, np.arange(p)].sum(), gain[linear_sum_assignment(-gain)].sum())


def test_varimax_maximises_its_criterion():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(5, 20, 3))

    def criterion(L):
        return (L**2).var(axis=-2).sum(axis=-1)

    best = criterion(X @ alignment.varimax(X))
    assert (best >= criterion(X) - 1e-12).all()
    turns = frechet.stiefel_exp(np.eye(3), 1e-3 * (lambda a: a - a.T)(rng.normal(size=(3, 3))))
    assert (best > criterion(X @ alignment.varimax(X) @ turns)).all()


def test_columns_that_need_no_alignment_stay_in_place():
    rng = np.random.default_rng(4)
    M, X = concentrated(rng, 10, 4)
    signs = np.sign(np.take_along_axis(M, np.abs(M).argmax(axis=0)[None], axis=0))
    for method in ("sign", "permutation"):
        np.testing.assert_allclose(pst.align(X, method=method).values, X * signs)
    # with a reference, its signs and order are kept instead
    np.testing.assert_allclose(pst.align(X, reference=-M).values, -X)


def test_batches_are_aligned_separately():
    rng = np.random.default_rng(5)
    X = np.stack([concentrated(rng, 6, 2)[1] for _ in range(3)], axis=2)
    moved = X @ signed_permutations(rng, (2, 30, 3), 2)
    aligned = pst.align(moved)
    assert aligned.dims == ("chain", "draw", "batch_0", "row", "column")
    assert aligned.std(("chain", "draw")).max() < 0.1
    for b in range(3):
        np.testing.assert_allclose(aligned[:, :, b], pst.align(moved[:, :, b]))


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


def test_vectors_are_matrices_with_one_column():
    rng = np.random.default_rng(6)
    _, X = concentrated(rng, 5, 1)
    flipped = (X * rng.choice([-1, 1], (2, 30, 1, 1)))[..., 0]
    aligned = pst.align(flipped, method="sign")
    assert aligned.dims == ("chain", "draw", "row") and aligned.std(("chain", "draw")).max() < 0.1
    assert pst.mean(aligned).shape == (5,)
    assert len(pst.summary(aligned, kind="aligned")) == 5


def test_companions_move_with_the_columns():
    rng = np.random.default_rng(7)
    _, U = concentrated(rng, 8, 3)
    scale = np.array([3.0, 2.0, 1.0]) + 0.01 * rng.normal(size=(2, 30, 3))
    scores = rng.normal(size=(2, 30, 5, 3))
    W = (U * scale[..., None, :]) @ np.swapaxes(scores, -1, -2)
    move = signed_permutations(rng, (2, 30), 3)
    idata = as_idata(
        U=(U @ move, ("feature", "factor")),
        scale=((scale[..., None, :] @ np.abs(move))[..., 0, :], ("scale_dim_0",)),
        scores=(scores @ move, ("unit", "factor")),
    )
    out = pst.align(idata, "U", companions={"scale": "permute", "scores": ("rotate", "factor")})
    assert isinstance(out, xr.Dataset) and out["scores"].dims == ("chain", "draw", "unit", "factor")
    assert out["scale"].std(("chain", "draw")).max() < 0.05
    rebuilt = (out["U"].values * out["scale"].values[..., None, :]) @ np.swapaxes(out["scores"].values, -1, -2)
    np.testing.assert_allclose(rebuilt, W, atol=1e-10)

    turned = as_idata(U=(U @ (R := rotations(rng, (2, 30), 3)), ("f", "k")), scores=(scores @ R, ("unit", "k")))
    out = pst.align(turned, "U", method="rotation", companions={"scores": "rotate"})
    np.testing.assert_allclose(
        out["U"].values @ np.swapaxes(out["scores"].values, -1, -2), U @ np.swapaxes(scores, -1, -2), atol=1e-10
    )
    with pytest.raises(TypeError, match="looked up by name"):
        pst.align(U, companions={"scores": "rotate"})
    with pytest.raises(ValueError, match="say which belongs"):
        pst.align(as_idata(U=(U, ("f", "k")), C=(U[..., :3, :], ("a", "b"))), "U", companions={"C": "rotate"})
    with pytest.raises(ValueError, match="mixes columns"):
        pst.align(turned, "U", method="rotation", companions={"scores": "permute"})


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


def test_frechet_mean_on_the_circle_is_the_mean_angle():
    angles = np.random.default_rng(8).normal(1.0, 0.3, size=(2, 100))
    X = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    found = pst.mean(X, kind="frechet").values
    assert np.isclose(np.arctan2(found[1], found[0]), angles.mean())
    assert np.isclose(pst.dispersion(X, kind="frechet"), angles.var())


@quick
@given(st.sampled_from([(5, 1), (6, 3), (5, 5), (5, 4), (20, 3)]), SEEDS)
def test_logarithm_inverts_the_geodesic(shape, seed):
    rng = np.random.default_rng(seed)
    X = geometry.polar(rng.normal(size=shape))
    T = geometry.tangent_project(X, rng.normal(size=shape))
    T *= 0.8 / np.sqrt((T**2).sum() - ((X.T @ T) ** 2).sum() / 2)  # canonical length 0.8
    np.testing.assert_allclose(frechet.stiefel_log(X, frechet.stiefel_exp(X, T)[None])[0], T, atol=1e-8)


def test_frechet_mean_leaves_no_gradient():
    """At any spread up to angles of half a right angle."""
    rng = np.random.default_rng(18)
    for shape, spread in (((40, 3), 0.02), ((40, 3), 0.2), ((6, 4), 0.2), ((5, 1), 0.5)):
        _, X = concentrated(rng, *shape, size=(2, 100), spread=spread)
        M, draws = pst.mean(X, kind="frechet").values, X.reshape(-1, *shape)
        tangents = frechet.stiefel_log(M, draws)
        assert np.abs(tangents.mean(axis=0)).max() < 1e-8
        lengths = (tangents**2).sum(axis=(1, 2)) - ((M.T @ tangents) ** 2).sum(axis=(1, 2)) / 2
        assert np.isclose(pst.dispersion(X, kind="frechet"), lengths.mean())


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


def test_opposite_points_have_no_frechet_mean():
    with pytest.raises(ValueError, match="too far apart"):
        frechet.stiefel_log(np.eye(2, 1), -np.eye(2, 1)[None])


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
