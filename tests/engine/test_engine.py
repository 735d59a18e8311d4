"""The compiled engine: identities, structure of the flows, law of the momentum (rungs 1 to 3), and its draws."""

import re

import numba
import numpy as np
import pytest
from scipy import stats
from scipy.special import i0

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import LEAPFROG, TWO_STAGE
from pymc_stiefel.engine.jit import compiling
from pymc_stiefel.normalizers import log_hyp0f1
from tests import kernels

SHAPES = [(5, 1), (6, 3), (5, 5), (20, 3)]
each_drift = pytest.mark.parametrize("kind", kernels.DRIFTS)
each_step = pytest.mark.parametrize("stages", [LEAPFROG, TWO_STAGE], ids=["leapfrog", "two-stage"])
each_shape = pytest.mark.parametrize("n,p", SHAPES)


def start(kind, n, p, seed=0):
    rng = np.random.default_rng(seed)
    c, w = kernels.metric_of(kind, p, rng)
    X = geo.polar(rng.standard_normal((n, p)))
    return X, geo.draw_momentum(X, c, w, rng), c, w, rng


# ---------------------------------------------------------------- rung 1: identities


@each_drift
@pytest.mark.parametrize("n,p", [*SHAPES, (2, 2), (1, 1), (40, 20), (70, 30), (30, 30), (200, 8)])
def test_compiled_drifts_are_the_formulas(kind, n, p):
    """Also beyond the sizes at which BLAS and LAPACK take over."""
    X, r, c, w, _ = start(kind, n, p)
    for t in (0.3, -0.3, 1.0):
        expected = kernels.reference_drift(kind, X, r, t, c, w)
        np.testing.assert_allclose(kernels.drift(kind, X, r, t, c, w), expected, atol=1e-11)


@pytest.mark.parametrize("n,p", [(90, 60), (130, 25), (70, 70)])
@pytest.mark.parametrize("t", [1e-3, 0.7, 30.0])
def test_large_matrices_move_by_the_cayley_map(n, p, t):
    """Where the system is solved by its inverse, also for steps far beyond any that a sampler takes."""
    rng = np.random.default_rng(n)
    X = geo.polar(rng.standard_normal((n, p)))
    r = geo.tangent_project(X, rng.standard_normal((n, p)))
    X_new, r_new = kernels.drift("cayley", X, r, t, np.ones(p), np.full((p, p), 2.0))
    expected = geo.cayley_drift(X, r, t)
    np.testing.assert_allclose(X_new, expected[0], atol=1e-11)
    np.testing.assert_allclose(r_new, expected[1], atol=1e-9)
    assert geo.orthogonality_error(X_new) < 1e-12


@pytest.mark.parametrize("closeness", [1.0, 1e-3, 1e-8, 0.0])
def test_a_tall_matrix_moves_within_its_span(closeness):
    """Coefficients in a basis of the span of X and B, unless columns of B are nearly dependent."""
    n, p = 200, 10
    X, r, c, w, _ = start("splitting", n, p)
    A, B = geo.split_tangent(X, r)
    B[:, 7] = B[:, 2] + closeness * B[:, 7]
    expected = geo.splitting_drift(X, X @ A + B, 0.3, c, w)
    found = kernels.split_drift("splitting", X, A, B, 0.3, c, w)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@each_drift
@pytest.mark.parametrize("n,p", [*SHAPES, (200, 10)])
def test_ten_thousand_drifts_stay_on_the_manifold(kind, n, p):
    X, r, c, w, _ = start(kind, n, p)
    X_new, r_new = kernels.drift(kind, X, r, 0.3, c, w, count=10_000)
    assert geo.orthogonality_error(X_new) < (1e-12 if n > p else 5e-12)  # 1e-16 a drift: rounding, not growth
    assert np.abs(X_new.T @ r_new + r_new.T @ X_new).max() < 1e-11
    np.testing.assert_allclose(geo.angular_momentum(X_new, r_new), geo.angular_momentum(X, r), atol=1e-10)


@each_drift
def test_large_arguments_are_survived(kind):
    """The paper reports matrix exponentials that fail for large steps; ours may lose digits, not the manifold."""
    X, r, c, w, _ = start(kind, 6, 3)
    X_new, _ = kernels.drift(kind, X, 1e3 * r, 1.0, c, w)
    assert geo.orthogonality_error(X_new) < 1e-9
    A, B = geo.split_tangent(X, r)
    X_new, *_ = kernels.split_drift(kind, X, A, np.full_like(B, np.nan), 1.0, c, w)
    assert np.isnan(X_new).any()


@each_drift
def test_steep_density_does_not_amplify_rounding(kind):
    """Without keeping the momentum tangent, errors of X'X doubled with every leapfrog on targets like this."""
    X, _, c, w, rng = start(kind, 30, 3)
    F = 4e3 * geo.polar(rng.standard_normal((30, 3)))
    density = kernels.bingham_langevin_density(-F, np.zeros((30, 30)), np.zeros(3))
    X_new, *_ = kernels.steps(kind, density, geo.polar(F + rng.standard_normal(F.shape)), 0 * X, 0.01, c, w, 400)
    assert geo.orthogonality_error(X_new) < 1e-12


# ---------------------------------------------------------------- rung 2: structure of the flows


@each_drift
@each_shape
@each_step
@pytest.mark.parametrize("eps,count", [(0.05, 7), (0.8, 3)])  # large steps are chaotic and amplify rounding
def test_step_is_reversible(kind, n, p, eps, count, stages):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    X_new, r_new, _ = kernels.steps(kind, density, X, r, eps, c, w, count, stages)
    X_back, r_back, _ = kernels.steps(kind, density, X_new, -r_new, eps, c, w, count, stages)
    np.testing.assert_allclose(X_back, X, atol=1e-8)
    np.testing.assert_allclose(-r_back, r, atol=1e-7)


def tangent_basis(X):
    """Orthonormal basis of the tangent space, (d, n, p)."""
    n, p = X.shape
    ambient = np.eye(n * p).reshape(n * p, n, p)
    projected = np.array([geo.tangent_project(X, G) for G in ambient]).reshape(n * p, n * p)
    values, vectors = np.linalg.eigh(projected)
    return vectors[:, values > 0.5].T.reshape(-1, n, p)


def log_volume(flow, X, r, h=1e-5):
    """log |det| of the Jacobian of ``flow`` in canonical coordinates (u, Dphi(u)' r) of the tangent bundle.

    The charts are u -> polar(X + sum u_i T_i) at either end; du dp is the same measure for every chart.
    """
    basis = tangent_basis(X)
    X_end, _ = flow(X, r)
    basis_end = tangent_basis(X_end)

    def into(z):
        u, momentum = np.split(z, 2)
        Z = X + np.tensordot(u, basis, 1)
        at = geo.polar(Z)
        local = tangent_basis(at)
        pull = np.array([np.tensordot(basis, geo.polar_pullback(Z, S), 2) for S in local]).T
        return at, np.tensordot(np.linalg.solve(pull, momentum), local, 1)

    def out_of(X_new, r_new):
        # polar(X_end + B) = X_new with B tangent: B = X_new H - X_end, where X_end' X_new H has symmetric part I
        M = X_end.T @ X_new
        p = M.shape[0]
        equations = np.kron(M, np.eye(p)) + np.kron(np.eye(p), M)
        H = np.linalg.solve(equations, 2 * np.eye(p).ravel()).reshape(p, p)
        Z = X_new @ H
        u = np.tensordot(basis_end, Z - X_end, 2)
        return np.concatenate([u, np.tensordot(basis_end, geo.polar_pullback(Z, r_new), 2)])

    z = np.concatenate([np.zeros(len(basis)), np.tensordot(basis, r, 2)])
    columns = [(out_of(*flow(*into(z + h * e))) - out_of(*flow(*into(z - h * e)))) / (2 * h) for e in np.eye(z.size)]
    return np.linalg.slogdet(np.array(columns))[1]


@each_drift
@each_step
@pytest.mark.parametrize("n,p", [(5, 1), (6, 3), (4, 4)])
def test_step_preserves_volume(kind, n, p, stages):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    flow = lambda X, r: kernels.steps(kind, density, X, r, 0.3, c, w, 2, stages)[:2]  # noqa: E731
    assert abs(log_volume(flow, X, r)) < 1e-7


def test_qr_retraction_does_not_preserve_volume():
    """The control of the test above."""
    X, r, *_ = start("cayley", 6, 3)

    def flow(X, r):
        Q, R = np.linalg.qr(X + 0.5 * r)
        Q = Q * np.sign(np.diag(R))
        return Q, geo.tangent_project(Q, r)

    assert abs(log_volume(flow, X, r)) > 0.1


@each_drift
@each_shape
@each_step
def test_energy_has_no_trend(kind, n, p, stages):
    X, r, c, w, rng = start(kind, n, p)
    *_, density = kernels.problem(n, p, rng)
    *_, energies = kernels.steps(kind, density, X, r, 0.05, c, w, 20_000, stages)
    halves = energies.reshape(2, -1)
    assert np.ptp(energies) < 1.0
    assert abs(halves[0].mean() - halves[1].mean()) < 0.2 * np.ptp(energies)


@each_drift
def test_two_stages_err_less_at_the_same_number_of_gradients(kind):
    X, r, c, w, rng = start(kind, 20, 3)
    *_, density = kernels.problem(20, 3, rng)
    one, two = (
        kernels.steps(kind, density, X, r, 0.1 * stages, c, w, 600 // stages, stages)[2].std()
        for stages in (LEAPFROG, TWO_STAGE)
    )
    assert two < 0.7 * one


# ---------------------------------------------------------------- rung 3: law of the momentum


@each_drift
@each_shape
def test_momentum_law(kind, n, p):
    X, _, c, w, rng = start(kind, n, p)
    A, B = kernels.momenta(X, c, w, 4000, rng)
    assert np.abs(np.einsum("ni,knj->kij", X, B)).max() < 1e-12
    twice = np.sum(c * np.sum(B**2, axis=1), axis=1) + np.sum(w * A**2, axis=(1, 2))
    assert stats.kstest(twice, stats.chi2(geo.manifold_dimension(n, p)).cdf).pvalue > 1e-4


def test_projected_noise_is_the_wrong_law():
    """The control: Gaussian noise mapped by the paper's ``Z - X Z'X``, under the canonical energy."""
    X, _, _, _, rng = start("cayley", 6, 3)
    noise = rng.standard_normal((4000, 6, 3))
    r = noise - X @ np.swapaxes(noise, 1, 2) @ X
    twice = [2 * geo.kinetic_energy(X, one, *geo.metric("canonical", 3)) for one in r]
    assert stats.kstest(twice, stats.chi2(geo.manifold_dimension(6, 3)).cdf).pvalue < 1e-10


# ---------------------------------------------------------------- draws


@each_drift
@pytest.mark.parametrize("eps", [0.4, 1.2, 2.2])
def test_langevin_expectation(kind, eps):
    """tr(F'X) against the exact value, from a step that never rejects to one that rejects a third."""
    F = np.zeros((5, 2))
    F[0, 0], F[1, 1] = 4.0, 2.0
    exact = float(log_hyp0f1(5, np.array([4.0, 2.0]))[1] @ [4.0, 2.0])
    density = kernels.bingham_langevin_density(F, np.zeros((5, 5)), np.zeros(2))
    z = []
    for options in ({"n_steps": 4, "jitter": 0.5}, {}):
        draws, statistics, _ = kernels.run_chain(
            density,
            make_layout([(5, 2)], 0),
            np.eye(5, 2).T.ravel(),
            8000,
            np.random.default_rng(5),
            drift=kind,
            step_size=eps,
            adapt_step_size=False,
            adapt_metric=False,
            **options,
        )
        values = draws @ F.T.ravel()
        batches = values.reshape(40, -1).mean(axis=1)
        z.append((values.mean() - exact) / (batches.std(ddof=1) / np.sqrt(40)))
    assert np.abs(z).max() < 4
    accept = statistics["mean_tree_accept"].mean()
    assert accept > 0.9 if eps == 0.4 else accept < 0.95


def test_full_first_kick_is_caught():
    """The control: a first kick that is full instead of half, as in a published implementation."""
    F = np.zeros((5, 2))
    F[0, 0], F[1, 1] = 4.0, 2.0
    exact = float(log_hyp0f1(5, np.array([4.0, 2.0]))[1] @ [4.0, 2.0])
    rng = np.random.default_rng(5)
    X, values = np.eye(5, 2), []
    c, w = geo.metric("canonical", 2)
    eps = 0.3
    for _ in range(4000):
        r = geo.draw_momentum(X, c, w, rng)
        energy = geo.kinetic_energy(X, r, c, w) - np.sum(F * X)
        X_new, r_new = X, r
        for kick in (eps, eps):  # the first should be eps / 2
            X_new, r_new = geo.cayley_drift(X_new, r_new + kick * geo.tangent_project(X_new, F), eps)
        r_new = r_new + eps / 2 * geo.tangent_project(X_new, F)
        change = geo.kinetic_energy(X_new, r_new, c, w) - np.sum(F * X_new) - energy
        if np.log(rng.random()) < -change:
            X = X_new
        values.append(np.sum(F * X))
    batches = np.reshape(values, (40, -1)).mean(axis=1)
    assert abs(np.mean(values) - exact) / (batches.std(ddof=1) / np.sqrt(40)) > 6


def test_reflection_visits_both_components():
    """O(2) with a density that prefers one component: the share of det = +1 is known."""
    A, F = np.zeros((2, 2)), np.diag([1.0, 0.5])
    density = kernels.bingham_langevin_density(F, A, np.zeros(2))
    layout = make_layout([(2, 2)], 0, flips=[True])
    draws, *_ = kernels.run_chain(
        density, layout, np.eye(2).ravel(), 20_000, np.random.default_rng(0), tune=300, drift="cayley"
    )
    positive = np.linalg.det(draws.reshape(-1, 2, 2)) > 0
    exact = i0(1.5) / (i0(1.5) + i0(0.5))
    batches = positive.reshape(50, -1).mean(axis=1)
    assert abs(positive.mean() - exact) < 4 * batches.std(ddof=1) / np.sqrt(50)
    still, *_ = kernels.run_chain(
        density, make_layout([(2, 2)], 0), np.eye(2).ravel(), 500, np.random.default_rng(0), tune=100, drift="cayley"
    )
    assert np.all(np.linalg.det(still.reshape(-1, 2, 2)) > 0)  # without the move it never leaves its component


@pytest.mark.parametrize("mark", [compiling.part, compiling.inner, compiling.short])
def test_what_is_for_compiled_code_only_cannot_be_called_from_python(mark):
    """Such functions have no machine code of their own: the call would end in a segmentation fault."""

    @mark
    def twice(x):
        return 2.0 * x

    @numba.njit
    def outer(x):
        return twice(x) + 1.0

    assert outer(2.0) == 5.0
    calls = re.findall(r"call .*@(\S+?)\(", outer.inspect_llvm(outer.signatures[0]))
    assert not [name for name in calls if "twice" in name]  # it is optimised within its caller
    with pytest.raises(TypeError, match=r"twice is for compiled code only"):
        twice(2.0)
