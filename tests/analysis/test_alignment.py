"""Alignment undoes what the posterior cannot see, and takes everything along that belongs to the columns."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import pymc_stiefel as pst
from pymc_stiefel.analysis import _alignment as alignment
from pymc_stiefel.analysis import _frechet as frechet
from tests.matrices import (
    SEEDS,
    SHAPES,
    as_idata,
    concentrated,
    quick,
    rotations,
    signed_permutations,
    simple_structure,
)


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


def test_scores_follow_loadings_to_simple_structure():
    rng = np.random.default_rng(23)
    L, scores, R = simple_structure(rng, 12, 3), rng.normal(size=(2, 30, 5, 3)), rotations(rng, (2, 30), 3)
    idata = as_idata(L=(L @ R, ("feature", "factor")), scores=(scores @ R, ("unit", "factor")))
    out = pst.align(idata, "L", method="varimax", companions={"scores": "rotate"})
    rebuilt = out["L"].values @ np.swapaxes(out["scores"].values, -1, -2)
    np.testing.assert_allclose(rebuilt, L @ np.swapaxes(scores, -1, -2), atol=1e-10)
    assert out["L"].std(("chain", "draw")).max() < 0.2


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
    # a matrix with two dimensions of columns, as a covariance of scores
    C = np.swapaxes(scores, -1, -2) @ scores
    out = pst.align(as_idata(U=(U @ move, ("f", "k")), C=(np.swapaxes(move, -1, -2) @ C @ move, ("k", "l"))), "U",
                    companions={"C": ("rotate", "k", "l")})  # fmt: skip
    np.testing.assert_allclose(
        out["U"].values @ out["C"].values @ np.swapaxes(out["U"].values, -1, -2),
        U @ C @ np.swapaxes(U, -1, -2),
        atol=1e-10,
    )
    with pytest.raises(TypeError, match="looked up by name"):
        pst.align(U, companions={"scores": "rotate"})
    with pytest.raises(ValueError, match="say which belongs"):
        pst.align(as_idata(U=(U, ("f", "k")), C=(U[..., :3, :], ("a", "b"))), "U", companions={"C": "rotate"})
    with pytest.raises(ValueError, match="mixes columns"):
        pst.align(turned, "U", method="rotation", companions={"scores": "permute"})


def test_columns_come_in_the_order_of_their_scales():
    rng = np.random.default_rng(20)
    _, U = concentrated(rng, 8, 3)
    scale = np.array([1.0, 3.0, 2.0]) + 0.01 * rng.normal(size=(2, 30, 3))
    move = signed_permutations(rng, (2, 30), 3)
    idata = as_idata(
        U=(U @ move, ("feature", "factor")),
        scale=((scale[..., None, :] @ np.abs(move))[..., 0, :], ("factor",)),
        noise=(rng.gamma(2, size=(2, 30, 5)), ("unit",)),
    )
    out = pst.align(idata, "U", order_by="scale")
    np.testing.assert_allclose(out["scale"].values, scale[..., [1, 2, 0]])
    np.testing.assert_allclose(np.abs(out["U"].values), np.abs(U[..., [1, 2, 0]]))
    assert out["U"].std(("chain", "draw")).max() < 0.1
    unordered = pst.align(idata, "U", companions={"scale": "permute"})["scale"].mean(("chain", "draw")).values
    assert not (np.diff(unordered) < 0).all()  # control: without it they are not in order
    with pytest.raises(ValueError, match="has 0 dimensions of length 3"):
        pst.align(idata, "U", order_by="noise")
    holes = pst.align(idata, "U", companions={"scale": "permute"})
    holes["scale"][0, 0, 1] = np.nan
    with pytest.raises(ValueError, match="order_by='scale' has draws that are not finite"):
        pst.align(holes, "U", order_by="scale")
    with pytest.raises(KeyError, match="did you mean 'scale'"):
        pst.align(idata, "U", order_by="scales")
    with pytest.raises(ValueError, match="choose one"):
        pst.align(idata, "U", order_by="scale", reference=U[0, 0])


def test_scales_with_more_dimensions_give_an_order():
    """Scales that change in time are averaged over time; the columns come in the order of the averages."""
    rng = np.random.default_rng(24)
    _, U = concentrated(rng, 8, 3)
    scale = np.array([1.0, 3.0, 2.0]) + 0.5 * np.sin(np.arange(5))[:, None] + 0.01 * rng.normal(size=(2, 30, 5, 3))
    move = signed_permutations(rng, (2, 30), 3)
    for dims in (("time", "factor"), ("scale_dim_0", "scale_dim_1")):
        idata = as_idata(U=(U @ move, ("feature", "factor")), scale=(scale @ np.abs(move), dims))
        out = pst.align(idata, "U", order_by="scale")
        np.testing.assert_allclose(out["scale"].values, scale[..., [1, 2, 0]])
        np.testing.assert_allclose(np.abs(out["U"].values), np.abs(U[..., [1, 2, 0]]))


def test_what_is_aligned_is_left_alone():
    """Signs and order that a reference has fixed survive summaries, pictures and another method."""
    rng = np.random.default_rng(25)
    M, X = concentrated(rng, 6, 3)
    top = M[np.abs(M).argmax(axis=0), np.arange(3)]
    reference = -(M * np.sign(top))[:, ::-1]  # the largest entries negative, the order reversed
    aligned = pst.align(X @ signed_permutations(rng, (2, 30), 3), reference=reference)
    assert aligned.attrs["aligned"] == "permutation"
    assert np.abs(aligned - reference).max() < 0.3 and np.abs(pst.align(aligned) - reference).max() > 0.5
    for method in ("permutation", "sign", "rotation"):
        table = pst.summary(aligned, kind="aligned", method=method)
        np.testing.assert_allclose(table["mean"].values, aligned.mean(("chain", "draw")).values.ravel())
    companions = aligned.to_dataset(name="U").assign(other=aligned.sum("row"))
    np.testing.assert_allclose(pst.summary(companions, "U", kind="aligned")["mean"], table["mean"])
    vectors = pst.align(X[..., 0], reference=-M[:, 0], method="sign")
    assert pst.summary(vectors, kind="aligned")["mean"].values @ M[:, 0] < -0.9


def test_companions_and_order_in_batches():
    """Batch dimensions are found by name, or by place where PyMC has made up names."""
    rng = np.random.default_rng(21)
    U = np.stack([concentrated(rng, 6, 3)[1] for _ in range(3)], axis=2)
    scale = np.array([[1.0, 3.0, 2.0], [3.0, 2.0, 1.0], [2.0, 1.0, 3.0]]) + 0.01 * rng.normal(size=(2, 30, 3, 3))
    move = signed_permutations(rng, (2, 30, 3), 3)
    moved = (scale[..., None, :] @ np.abs(move))[..., 0, :]
    for dims in (("group", "factor"), ("scale_dim_0", "scale_dim_1")):
        idata = as_idata(
            U=(U @ move, ("group", "feature", "factor")), scale=(moved, dims), one=(moved[:, :, 0, :2], ("k",))
        )
        out = pst.align(idata, "U", order_by="scale")
        assert out["scale"].dims[2:] == dims
        np.testing.assert_allclose(out["scale"].values, -np.sort(-scale, axis=-1))
        rebuilt = (out["U"].values * out["scale"].values[..., None, :]) @ np.swapaxes(out["U"].values, -1, -2)
        np.testing.assert_allclose(rebuilt, (U * scale[..., None, :]) @ np.swapaxes(U, -1, -2), atol=1e-10)
        with pytest.raises(ValueError, match="lacks the batch dimensions"):
            pst.align(idata, "U", companions={"one": "permute"})
