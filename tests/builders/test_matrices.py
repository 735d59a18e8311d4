"""Building blocks: forward draws and densities are the same law, and that law is the one promised."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel import geometry
from pymc_stiefel.builders import _spectra as spectra

QUICK = {"mode": "FAST_COMPILE"}  # no compilation to machine code: these graphs run once
KINDS = ["wishart", "inverse_wishart", "gaussian"]


def prior(model, draws=3000, seed=1):
    idata = pm.sample_prior_predictive(draws, model=model, random_seed=seed, compile_kwargs=QUICK)
    return {str(name): idata["prior"][name].values[0] for name in idata["prior"].data_vars}, idata


def assert_same_law(a, b, level=1e-4):
    assert stats.ks_2samp(np.ravel(a), np.ravel(b)).pvalue > level


def direct_spectrum(kind, rank, nu, scale, size, rng):
    G = rng.normal(size=(size, nu, rank))
    if kind == "gaussian":
        return scale * np.linalg.svd(G, compute_uv=False)
    law = stats.wishart(nu, scale * np.eye(rank)) if kind == "wishart" else stats.invwishart(nu, scale * np.eye(rank))
    matrices = law.rvs(size, random_state=rng)
    return np.linalg.eigvalsh(np.reshape(matrices, (size, rank, rank)))[:, ::-1]


def spectrum(kind, rank, nu=6, scale=1.7):
    with pm.Model() as model:
        if kind == "iid":
            spectra.ordered_iid("x", rank, pm.Gamma.dist(3, 2))
        elif kind == "hierarchical":
            tau = pm.LogNormal("tau", 0.0, 0.3)
            spectra.ordered_iid("x", rank, pm.HalfNormal.dist(tau))
        else:
            spectra.wishart_spectrum("x", rank, nu, scale=scale, kind=kind)
    return model


# ---------------------------------------------------------------- spectra


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 3])
def test_spectrum_draws_are_those_of_the_matrix(kind, rank):
    x = prior(spectrum(kind, rank))[0]["x"]
    direct = direct_spectrum(kind, rank, 6, 1.7, 3000, np.random.default_rng(2))
    assert (np.diff(x, axis=1) < 0).all() and (x > 0).all()
    for k in range(rank):
        assert_same_law(x[:, k], direct[:, k])
    # control: other degrees of freedom are seen
    wrong = direct_spectrum(kind, rank, 7, 1.7, 3000, np.random.default_rng(3))
    assert stats.ks_2samp(x[:, 0], wrong[:, 0]).pvalue < 1e-4


@pytest.mark.parametrize("kind", [*KINDS, "iid"])
@pytest.mark.parametrize("rank", [1, 2])
def test_density_is_normalised(kind, rank):
    """By quadrature in the unconstrained space, which also checks the transform's Jacobian."""
    model = spectrum(kind, rank)
    (value,) = model.value_vars
    axis = np.linspace(-16, 7, 600)
    transform = model.rvs_to_transforms[model["x"]]
    y = pytensor.tensor.matrix(shape=(None, rank))
    log_density = pm.logp(model["x"], transform.backward(y)) + transform.log_jac_det(y)
    grid = np.stack(np.meshgrid(*[axis] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
    density = np.exp(pytensor.function([y], log_density, mode="FAST_COMPILE")(grid))
    assert value.type.shape == (rank,)
    assert abs(density.sum() * (axis[1] - axis[0]) ** rank - 1) < 2e-3


@pytest.mark.parametrize("kind", [*KINDS, "iid", "hierarchical"])
def test_draws_and_density_agree(kind):
    """Stein's identity for the dilation, E[sum x_i d_i log p] = -r, with the model's own draws and density."""
    model = spectrum(kind, 3, nu=9)
    draws = prior(model, 4000)[0]
    x = pytensor.tensor.matrix(shape=(None, 3))
    extra = [model["tau"]] if "tau" in model.named_vars else []
    gradient = pytensor.grad(pm.logp(model["x"], x).sum(), x)
    if extra:  # one prior draw at a time: the density depends on tau
        function = pytensor.function([x, *extra], gradient, mode="FAST_COMPILE")
        slopes = np.concatenate([function(draws["x"][i : i + 1], draws["tau"][i]) for i in range(1000)])
        values = draws["x"][:1000]
    else:
        slopes, values = pytensor.function([x], gradient, mode="FAST_COMPILE")(draws["x"]), draws["x"]
    pull = (values * slopes).sum(axis=1)
    assert abs(pull.mean() + 3) < 4 * pull.std() / np.sqrt(len(pull))
    # control: draws of another law do not satisfy it
    if not extra:
        other = pytensor.function([x], gradient, mode="FAST_COMPILE")(1.3 * values)
        pull = (1.3 * values * other).sum(axis=1)
        assert abs(pull.mean() + 3) > 4 * pull.std() / np.sqrt(len(pull))


def test_outside_the_order_the_density_is_zero():
    model = spectrum("gaussian", 3)
    x = pytensor.tensor.matrix(shape=(None, 3))
    values = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [3.0, 2.0, -1.0], [2.0, 2.0, 1.0]])
    logp = pytensor.function([x], pm.logp(model["x"], x), mode="FAST_COMPILE")(values)
    assert np.isfinite(logp[0]) and np.isneginf(logp[1:]).all()


def test_descending_transform_inverts():
    for rank in (1, 2, 4):
        transform = spectra.Descending(rank)
        y = pytensor.tensor.vector(shape=(rank,))
        x = transform.backward(y)
        # default mode: rewritten graphs have been wrong for reversed vectors of length two
        f = pytensor.function([y], [x, transform.forward(x), transform.log_jac_det(y)])
        at = np.random.default_rng(rank).normal(size=rank)
        values, back, log_jac = f(at)
        np.testing.assert_allclose(back, at, atol=1e-12)
        assert (np.diff(values) < 0).all() and values[-1] > 0
        step = 1e-6 * np.eye(rank)
        jacobian = np.stack([(f(at + e)[0] - f(at - e)[0]) / 2e-6 for e in step])
        assert np.isclose(np.linalg.slogdet(jacobian)[1], log_jac, atol=1e-6)


def test_bad_spectra_are_named():
    with pm.Model():
        with pytest.raises(ValueError, match="positive distribution"):
            spectra.ordered_iid("a", 2, pm.Normal.dist())
        with pytest.raises(ValueError, match=r"share one law.*got shape \(2,\)"):
            spectra.ordered_iid("b", 2, pm.HalfNormal.dist(size=2))
        with pytest.raises(TypeError, match="need a distribution"):
            spectra.ordered_iid("c", 2, 1.0)
        with pytest.raises(ValueError, match="nu > rank - 1"):
            spectra.wishart_spectrum("d", 4, 3)


# ---------------------------------------------------------------- matrices


def test_full_rank_is_the_gaussian_matrix():
    with pm.Model(coords={"i": range(4), "j": range(3), "k": range(3)}) as model:
        pst.low_rank("W", (4, 3), 3, sigma=1.5, dims=("i", "j"), rank_dim="k")
    draws, idata = prior(model)
    W = draws["W"]
    for entry in W.reshape(len(W), -1).T:
        assert stats.kstest(entry, stats.norm(0, 1.5).cdf).pvalue > 1e-4
    assert np.abs(np.corrcoef(W.reshape(len(W), -1).T) - np.eye(12)).max() < 5 / np.sqrt(len(W))
    # a statistic of fourth order: dependence that correlations cannot see
    assert_same_law(np.linalg.det(W[:, :3]), np.linalg.det(1.5 * np.random.default_rng(4).normal(size=(3000, 3, 3))))
    assert idata["prior"]["W"].dims[2:] == ("i", "j") and idata["prior"]["W_U"].dims[2:] == ("i", "k")
    assert idata["prior"]["W_V"].dims[2:] == ("j", "k") and idata["prior"]["W_s"].dims[2:] == ("k",)


def test_low_rank_has_the_rank_and_the_mean_square():
    with pm.Model(coords={"i": range(6), "j": range(5)}) as model:
        pst.low_rank("W", (6, 5), 2, dims=("i", "j"))
        pst.low_rank("Y", (4, 3), 2, singular_values=pm.HalfNormal.dist(2.0))
    draws, _ = prior(model)
    assert np.linalg.svd(draws["W"], compute_uv=False)[:, 2:].max() < 1e-12
    square = (draws["W"] ** 2).sum(axis=(1, 2))  # chi-squared with the dimension of the manifold
    assert stats.kstest(square, stats.chi2(2 * (6 + 5 - 2)).cdf).pvalue > 1e-4
    assert stats.kstest(draws["Y_s"].ravel(), stats.halfnorm(scale=2).cdf).pvalue > 1e-4
    np.testing.assert_allclose(np.linalg.svd(draws["Y"], compute_uv=False)[:, :2], draws["Y_s"], atol=1e-12)


def test_volume_of_rank_r_matrices():
    """The Jacobian behind the low-rank law, from the differential of (U, s, V) -> U diag(s) V' itself."""
    rng = np.random.default_rng(5)
    m, n, r = 6, 5, 3
    full_U, full_V = geometry.polar(rng.normal(size=(m, m))), geometry.polar(rng.normal(size=(n, n)))
    U, V = full_U[:, :r], full_V[:, :r]

    def log_volume(s):
        columns = [np.outer(U[:, i], V[:, i]) for i in range(r)]
        for full, other, left in ((full_U, V, True), (full_V, U, False)):
            size = len(full)
            for j in range(r):
                for i in range(j + 1, size):
                    motion = np.zeros((size, r))  # a unit-speed turn of basis vector j towards i
                    motion[:, j] = full[:, i]
                    if i < r:
                        motion[:, i] = -full[:, j]
                    columns.append((motion * s) @ other.T if left else (other * s) @ motion.T)
        J = np.stack([c.ravel() for c in columns], axis=1)
        assert J.shape[1] == r * (m + n - r)
        return np.linalg.slogdet(J.T @ J)[1] / 2

    def formula(s):
        i, j = np.triu_indices(r, 1)
        return (m + n - 2 * r) * np.log(s).sum() + np.log(s[i] ** 2 - s[j] ** 2).sum()

    a, b = np.array([3.0, 2.0, 0.5]), np.array([5.0, 1.0, 0.9])
    assert np.isclose(log_volume(a) - log_volume(b), formula(a) - formula(b))


@pytest.mark.parametrize("kind", ["wishart", "inverse_wishart"])
def test_eigen_spd_is_the_wishart_law(kind):
    with pm.Model(coords={"i": range(3), "j": range(3)}) as model:
        pst.eigen_spd("S", 3, eigenvalues=kind, nu=5.5, scale=0.7, dims=("i", "j"))
    draws, idata = prior(model)
    S = draws["S"]
    law = stats.wishart if kind == "wishart" else stats.invwishart
    direct = law(5.5, 0.7 * np.eye(3)).rvs(3000, random_state=6)
    for i, j in ((0, 0), (2, 2), (0, 1), (1, 2)):
        assert_same_law(S[:, i, j], direct[:, i, j])
    assert_same_law(np.linalg.slogdet(S)[1], np.linalg.slogdet(direct)[1])
    assert_same_law(S[:, 0, 0] * S[:, 1, 1] - S[:, 0, 1] ** 2, np.linalg.det(direct[:, :2, :2]))
    assert np.linalg.eigvalsh(S).min() > 0
    assert idata["prior"]["S"].dims[2:] == ("i", "j") and idata["prior"]["S_Q"].dims[2] == "i"


def test_orthogonal_columns_and_layers():
    with pm.Model(coords={"i": range(5), "k": range(2)}) as model:
        tau = pm.HalfNormal("tau")
        pst.orthogonal_columns("X", 5, 2, scales=pm.HalfNormal.dist(tau), dims=("i", "k"))
        pst.orthogonal_columns("Z", 5, 3, scales=pm.Gamma.dist(2, 1), ordered=True)
        pst.orthogonal_dense("tall", 6, 3, gain=2.0)
        pst.orthogonal_dense("wide", 3, 6)
        pst.orthogonal_conv("few", 4, 3, 2)
        pst.orthogonal_conv("many", 14, 3, (1, 2), gain=0.5)
    draws, idata = prior(model, 200)
    gram = {name: np.swapaxes(draws[name], 1, 2) @ draws[name] for name in ("X", "Z", "tall")}
    np.testing.assert_allclose(gram["X"], draws["X_d"][:, None, :] ** 2 * np.eye(2), atol=1e-10)
    assert (np.diff(draws["Z_d"], axis=1) < 0).all()
    np.testing.assert_allclose(gram["tall"], np.tile(4 * np.eye(3), (200, 1, 1)), atol=1e-10)
    np.testing.assert_allclose(
        draws["wide"] @ np.swapaxes(draws["wide"], 1, 2), np.tile(np.eye(3), (200, 1, 1)), atol=1e-10
    )
    few, many = draws["few"].reshape(200, 4, 12), draws["many"].reshape(200, 14, 6)
    assert draws["few"].shape == (200, 4, 3, 2, 2) and draws["many"].shape == (200, 14, 3, 1, 2)
    np.testing.assert_allclose(few @ np.swapaxes(few, 1, 2), np.tile(np.eye(4), (200, 1, 1)), atol=1e-10)
    np.testing.assert_allclose(np.swapaxes(many, 1, 2) @ many, np.tile(0.25 * np.eye(6), (200, 1, 1)), atol=1e-10)
    assert idata["prior"]["X_d"].dims[2:] == ("k",)


def test_lengths_have_a_default_law():
    with pm.Model() as model:
        pst.orthogonal_columns("X", 5, 2)
        pst.orthogonal_columns("Y", 5, 2, ordered=True, size=3)
    draws, _ = prior(model, 2000)
    for name in ("X_d", "Y_d"):
        assert stats.kstest(draws[name].ravel(), stats.halfnorm.cdf).pvalue > 1e-4
    assert (np.diff(draws["Y_d"], axis=-1) < 0).all()


def test_batches_are_independent_matrices():
    """Each matrix of a batch has the law of one, with a scale of its own where one is given."""
    sigma = np.array([0.5, 1.0, 2.0])
    with pm.Model(coords={"g": range(3), "i": range(4), "j": range(3)}) as model:
        pst.low_rank("W", (4, 3), 3, sigma=sigma, dims=("g", "i", "j"))
        pst.low_rank("Y", (2, 3, 5, 4), 2, singular_values=pm.HalfNormal.dist(2.0))
        pst.eigen_spd("S", 3, eigenvalues="inverse_wishart", nu=6, scale=sigma, size=3)
    draws, idata = prior(model, 2000)
    W, S = draws["W"], draws["S"]
    for g in range(3):
        for entry in W[:, g].reshape(len(W), -1).T:
            assert stats.kstest(entry, stats.norm(0, sigma[g]).cdf).pvalue > 1e-4
        direct = stats.invwishart(6, sigma[g] * np.eye(3)).rvs(2000, random_state=g)
        assert_same_law(np.linalg.slogdet(S[:, g])[1], np.linalg.slogdet(direct)[1])
        assert_same_law(S[:, g, 0, 1], direct[:, 0, 1])
    assert abs(np.corrcoef(W[:, 0, 0, 0], W[:, 1, 0, 0])[0, 1]) < 5 / np.sqrt(len(W))
    assert stats.kstest(draws["Y_s"].ravel(), stats.halfnorm(scale=2).cdf).pvalue > 1e-4
    prior_group = idata["prior"]
    assert prior_group["W_U"].dims[2:] == ("g", "i", "W_rank") and prior_group["W_s"].dims[2:] == ("g", "W_rank")
    assert prior_group["Y"].dims[2:] == ("Y_batch_0", "Y_batch_1", "Y_row", "Y_column")
    np.testing.assert_allclose(np.linalg.svd(draws["Y"], compute_uv=False)[..., :2], draws["Y_s"], atol=1e-12)
    parts = pst.align(idata, "W_U", group="prior", companions={"W_V": "rotate"}, order_by="W_s")
    rebuilt = (parts["W_U"].values * parts["W_s"].values[..., None, :]) @ np.swapaxes(parts["W_V"].values, -1, -2)
    np.testing.assert_allclose(rebuilt[0], W, atol=1e-10)


def test_densities_of_batches_are_sums():
    """The log density of a batch is the sum of those of its matrices, each with its own scale."""
    sigma, nu = np.array([0.5, 2.0]), np.array([5.0, 8.0])
    x = np.sort(np.random.default_rng(8).gamma(2, size=(2, 3)))[:, ::-1].copy()
    with pm.Model(coords={"g": range(2), "k": range(3)}):
        batch = [
            spectra.wishart_spectrum("a", 3, nu, scale=sigma, dims=("g", "k")),
            spectra.ordered_iid("b", 3, pm.Gamma.dist(3, 2), dims=("g", "k")),
        ]
        one = [
            [spectra.wishart_spectrum(f"a{g}", 3, nu[g], scale=sigma[g]) for g in range(2)],
            [spectra.ordered_iid(f"b{g}", 3, pm.Gamma.dist(3, 2)) for g in range(2)],
        ]
    for k in range(2):
        together = pm.logp(batch[k], x).eval(mode="FAST_COMPILE")
        apart = [pm.logp(one[k][g], x[g]).eval(mode="FAST_COMPILE") for g in range(2)]
        np.testing.assert_allclose(together, apart)


def test_each_matrix_of_a_batch_may_have_its_own_law():
    """Draws and densities with a scale for each group, itself random, against the group alone."""
    with pm.Model(coords={"g": range(3), "k": range(2)}) as model:
        tau = pm.LogNormal("tau", np.log([0.5, 1.0, 4.0]), 0.1, dims="g")
        x = spectra.ordered_iid("x", 2, pm.HalfNormal.dist(tau[:, None]), dims=("g", "k"))
        pst.orthogonal_columns("X", 5, 2, scales=pm.HalfNormal.dist(tau[:, None]), size=3)
        pst.orthogonal_columns("Y", 5, 2, scales=pm.HalfNormal.dist([1.0, 3.0]))
        one = spectra.ordered_iid("one", 2, pm.HalfNormal.dist(1.0))
    draws, _ = prior(model, 2000)
    for name in ("x", "X_d"):
        scaled = draws[name] / draws["tau"][..., None]
        for g in range(3):
            assert stats.kstest(scaled[:, g].ravel(), stats.halfnorm.cdf).pvalue > 1e-4
        # control: the scale of another group is seen
        assert stats.kstest((draws[name][:, 0] / draws["tau"][:, 1:2]).ravel(), stats.halfnorm.cdf).pvalue < 1e-4
    assert (np.diff(draws["x"], axis=-1) < 0).all()
    assert stats.kstest(draws["Y_d"][:, 1] / 3, stats.halfnorm.cdf).pvalue > 1e-4
    at, scale = np.array([[1.0, 0.5], [2.0, 0.1], [7.0, 3.0]]), np.array([0.5, 1.0, 4.0])
    together = pm.logp(x, at).eval({tau: scale}, mode="FAST_COMPILE")
    apart = [pm.logp(one, at[g] / scale[g]).eval(mode="FAST_COMPILE") - 2 * np.log(scale[g]) for g in range(3)]
    np.testing.assert_allclose(together, apart)


def test_batches_of_columns_and_layers():
    with pm.Model(coords={"g": range(3), "i": range(5), "k": range(2)}) as model:
        pst.orthogonal_columns("X", 5, 2, scales=pm.HalfNormal.dist(1.0), dims=("g", "i", "k"))
        pst.orthogonal_columns("Z", 5, 2, scales=pm.Gamma.dist(2, 1), ordered=True, size=3)
        pst.orthogonal_dense("wide", 2, 5, size=(3,))
        pst.orthogonal_conv("K", 4, 3, 2, gain=2.0, size=3)
    draws, idata = prior(model, 300)
    for name in ("X", "Z"):
        gram = np.swapaxes(draws[name], -1, -2) @ draws[name]
        np.testing.assert_allclose(gram, draws[f"{name}_d"][..., None, :] ** 2 * np.eye(2), atol=1e-10)
    assert stats.kstest(draws["X_d"].ravel(), stats.halfnorm().cdf).pvalue > 1e-4
    assert (np.diff(draws["Z_d"], axis=-1) < 0).all()
    identity = np.broadcast_to(np.eye(2), (300, 3, 2, 2))
    np.testing.assert_allclose(draws["wide"] @ np.swapaxes(draws["wide"], -1, -2), identity, atol=1e-10)
    filters = draws["K"].reshape(300, 3, 4, 12)
    np.testing.assert_allclose(
        filters @ np.swapaxes(filters, -1, -2), np.broadcast_to(4 * np.eye(4), (300, 3, 4, 4)), atol=1e-10
    )
    assert idata["prior"]["X_d"].dims[2:] == ("g", "k") and idata["prior"]["K_Q"].dims[2:] == (
        "K_batch_0",
        "K_fan_in",
        "K_out",
    )


def test_bad_arguments_are_named():
    with pm.Model():
        with pytest.raises(ValueError, match="rank = 4 with shape"):
            pst.low_rank("W", (5, 3), 4)
        with pytest.raises(ValueError, match="cauchy"):
            pst.low_rank("Y", (5, 3), 2, singular_values="cauchy")
        with pytest.raises(ValueError, match="'gauss'"):
            pst.eigen_spd("S", 3, eigenvalues="gauss")
        with pytest.raises(TypeError, match="2 names"):
            pst.orthogonal_dense("D", 4, 3, dims="i")
        with pytest.raises(ValueError, match=r"dims of 'E' must be 3 names, got \['i', 'j'\]"):
            pst.orthogonal_dense("E", 4, 3, size=2, dims=["i", "j"])
        with pytest.raises(TypeError, match="need a distribution"):
            pst.orthogonal_columns("X", 4, 3, scales=2.0)


def test_aligned_parts_rebuild_the_matrix():
    with pm.Model() as model:
        pst.low_rank("W", (6, 5), 2)
    _, idata = prior(model, 100)
    parts = pst.align(idata, "W_U", group="prior", companions={"W_s": "permute", "W_V": "rotate"})
    rebuilt = (parts["W_U"].values * parts["W_s"].values[..., None, :]) @ np.swapaxes(parts["W_V"].values, -1, -2)
    np.testing.assert_allclose(rebuilt, idata["prior"]["W"].values, atol=1e-10)


def test_lengths_of_data():
    """Integers may come from the shape of data, also one of several, as in the declaration of variables."""
    with pm.Model():
        data = pm.Data("data", np.zeros((7, 5)))
        n = data.shape[1]
        assert pst.low_rank("W", (n, 3), rank=2).type.shape == (5, 3)
        assert pst.orthogonal_conv("K", 4, 3, (2, n)).type.shape == (4, 3, 2, 5)
        assert pst.ordered_iid("x", n, pm.HalfNormal.dist()).type.shape == (5,)
        assert pst.orthogonal_dense("D", n, 2, size=data.shape[0]).eval().shape == (7, 5, 2)
        with pytest.raises(TypeError, match="shape must be an integer known at declaration"):
            pst.low_rank("V", (pm.Poisson("count", 3), 3), rank=2)
