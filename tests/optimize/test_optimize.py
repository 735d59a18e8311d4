"""Optima on the manifold: problems with known solutions, use as a start, momentum SGD, bad input."""

import inspect

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel import optimize
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine import lbfgs as _lbfgs
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.optimize import _stochastic
from tests.models import ppca, ppca_data

RNG = np.random.default_rng(5)
STARTS = range(20)


def langevin_problem(n, p):
    F = RNG.standard_normal((n, p)) * 5

    def objective(q):
        return -float(np.sum(F.T.ravel() * q)), -F.T.ravel().copy()

    return objective, -np.linalg.svd(F, compute_uv=False).sum()


def procrustes_problem(n, p):
    """``|A X - B|^2 / 2`` on O(p) or with orthonormal columns: known where B = A X for some X."""
    A, X = RNG.standard_normal((30, n)), pst.geometry.polar(RNG.standard_normal((n, p)))
    B = A @ X

    def objective(q):
        residual = A @ q.reshape(p, n).T - B
        return 0.5 * np.sum(residual**2), (A.T @ residual).T.ravel()

    return objective, 0.0


def pca_problem(n, p):
    """``-tr(N X'SX) / 2`` with distinct weights: the leading eigenvectors in order."""
    S = np.cov(RNG.standard_normal((200, n)) * np.linspace(1, 4, n), rowvar=False)
    weights = np.arange(p, 0, -1.0)

    def objective(q):
        X = q.reshape(p, n)
        product = weights[:, None] * (X @ S)
        return -0.5 * float(np.sum(product * X)), -product.ravel()

    return objective, -0.5 * float(np.sort(np.linalg.eigvalsh(S))[::-1][:p] @ weights)


@pytest.mark.parametrize("problem", [langevin_problem, procrustes_problem, pca_problem])
@pytest.mark.parametrize("n,p", [(5, 1), (8, 3), (40, 5)])
def test_known_optima_from_twenty_starts(problem, n, p):
    objective, best = problem(n, p)
    for seed in STARTS:
        start = pst.geometry.polar(np.random.default_rng(seed).standard_normal((n, p))).T.ravel()
        found = _lbfgs.minimize(objective, start, make_layout([(n, p)], 0), gtol=1e-8, max_iterations=1000)
        assert found.converged and found.gradient_norm <= 1e-8
        assert pst.geometry.orthogonality_error(found.q.reshape(p, n).T) < 1e-13
        if problem is not procrustes_problem or n == p:  # the unbalanced Procrustes problem has local minima
            assert found.value == pytest.approx(best, abs=1e-9 * max(1, abs(best)))


def test_both_components_of_square_matrices():
    """Procrustes on O(4) through the model, from starts with either determinant."""
    rng = np.random.default_rng(3)
    A, X = rng.standard_normal((30, 4)), pst.geometry.polar(rng.standard_normal((4, 4)))
    with pm.Model():
        Q = pst.StiefelUniform("Q", n=4, p=4)
        pm.Normal("y", A @ Q, 0.5, observed=A @ X)
        for sign in (1.0, -1.0):
            start = pst.geometry.polar(rng.standard_normal((4, 4)))
            start[:, 0] *= sign * np.sign(np.linalg.det(start))
            best = pst.find_MAP(start={"Q": start}, progressbar=False)
            assert best.gradient_norm <= 1e-8
            np.testing.assert_allclose(best["Q"], X, atol=1e-8)


@pytest.fixture(scope="module")
def joint_model():
    return ppca(ppca_data())


def log_posterior(Y, U, scale, noise):
    """PPCA with HalfNormal priors on both kinds of scale, by the dense covariance and up to a constant."""
    covariance = (U * scale**2) @ U.T + noise**2 * np.eye(len(U))
    _, log_det = np.linalg.slogdet(covariance)
    fit = -0.5 * (len(Y) * log_det + np.trace(np.linalg.solve(covariance, Y.T @ Y)))
    return fit - 0.5 * np.sum((scale / 5) ** 2) - 0.5 * (noise / 2) ** 2


def test_joint_model(joint_model):
    Y = ppca_data()
    found = [pst.find_MAP(model=joint_model, progressbar=False, seed=seed) for seed in range(2)]
    leading = np.linalg.eigh(Y.T @ Y)[1][:, -2:]
    for best in found:
        assert set(best) == {"U", "scale", "noise"} and best.converged and best.gradient_norm <= 1e-8
        np.testing.assert_allclose(best["U"] @ best["U"].T, leading @ leading.T, atol=1e-7)
        assert best.logp == pytest.approx(found[0].logp, rel=1e-10)
        assert np.all(np.diff(best.history) < 1e-8 * abs(best.logp))
    U, scale, noise = best["U"], best["scale"], best["noise"]
    top = log_posterior(Y, U, scale, noise)
    for factor in (0.999, 1.001):
        assert log_posterior(Y, U, scale * np.array([factor, 1.0]), noise) < top
        assert log_posterior(Y, U, scale * np.array([1.0, factor]), noise) < top
        assert log_posterior(Y, U, scale, noise * factor) < top


def test_result_starts_a_sampler(joint_model):
    best = pst.find_MAP(model=joint_model, progressbar=False)
    with joint_model:
        idata = pm.sample(
            2,
            tune=0,
            chains=2,
            cores=1,
            initvals=best,
            step=pst.OrthogonalHMC(step_size=1e-6, n_steps=1, adapt_metric=False),
            progressbar=False,
            compute_convergence_checks=False,
        )
    for name in best:
        np.testing.assert_allclose(idata["posterior"][name].values[1, 0], best[name], atol=1e-3)


def test_some_variables_stay(joint_model):
    best = pst.find_MAP(model=joint_model, vars=[joint_model["U"]], start={"noise": 3.0}, progressbar=False)
    assert best["noise"] == pytest.approx(3.0)
    assert best.converged


def regression_model(batch_size):
    """Orthogonal regression y = x W + noise with a learnt noise scale."""
    rng = np.random.default_rng(2)
    W = pst.geometry.polar(rng.standard_normal((8, 3)))
    x = rng.standard_normal((2000, 8))
    y = x @ W + 0.3 * rng.standard_normal((2000, 3))
    with pm.Model() as model:
        x_rows, y_rows = pm.Minibatch(x, y, batch_size=batch_size) if batch_size else (x, y)
        weights = pst.StiefelUniform("W", n=8, p=3)
        noise = pm.HalfNormal("noise", 1)
        pm.Normal("y", pt.dot(x_rows, weights), noise, observed=y_rows, total_size=(2000, None))
    return model, W


def test_stochastic_optimum_is_near_the_exact_one():
    whole, W = regression_model(None)
    exact = pst.find_MAP(model=whole, progressbar=False)
    model, _ = regression_model(100)
    found = pst.minimize_stochastic(model, epochs=30, progressbar=False, random_seed=1)
    assert found.converged and found.history.shape == (30,)
    assert found.history[-1] < found.history[0]
    np.testing.assert_allclose(found["W"], exact["W"], atol=0.01)
    assert found["noise"] == pytest.approx(float(exact["noise"]), abs=0.02)
    assert np.abs(found["W"] - W).max() < 0.05
    again = pst.minimize_stochastic(model, epochs=30, progressbar=False, random_seed=1)
    np.testing.assert_array_equal(found["W"], again["W"])
    assert pst.geometry.orthogonality_error(found["W"]) < 1e-12
    with model:
        step = pst.OrthogonalSGHMC(step_size=0.003, n_steps=2)
        idata = pm.sample(
            2, tune=0, chains=1, initvals=found, step=step, progressbar=False, compute_convergence_checks=False
        )
    np.testing.assert_allclose(idata["posterior"]["W"].values[0, 0], found["W"], atol=0.1)


def test_callback_sees_every_epoch(joint_model):
    seen = []
    found = pst.minimize_stochastic(
        joint_model, epochs=3, callback=lambda *what: seen.append(what), progressbar=False, random_seed=1
    )
    assert [epoch for epoch, _, _ in seen] == [1, 2, 3]
    np.testing.assert_array_equal([loss for _, loss, _ in seen], found.history)
    for name, value in seen[-1][2].items():
        np.testing.assert_array_equal(value, found[name])
    assert not np.array_equal(seen[0][2]["U"], found["U"])


def test_gradient_without_jacobian():
    with pm.Model() as model:
        pst.UnitVector("u", n=3)
        pm.Gamma("g", 3.0, 2.0)
    best = pst.find_MAP(model=model, progressbar=False)
    assert best["g"] == pytest.approx(1.0)  # the mode of the density of g itself, (a - 1) / b
    density = ModelDensity(model, model.value_vars, model.initial_point(), jacobian=False)
    point = {name: np.asarray(value) for name, value in model.initial_point().items()}
    np.testing.assert_allclose(density.unpack(density.pack(point)[None], point)[0]["g_log__"], point["g_log__"])


def test_progress_bar_is_shown(capsys):
    with pm.Model() as model:
        pm.Potential("pull", 3 * pst.UnitVector("u", n=3)[0])
    pst.find_MAP(model=model, seed=1)
    pst.minimize_stochastic(model, epochs=2)
    assert "epochs" in capsys.readouterr().out


def test_own_step_size_holds_beyond_a_flat_start(monkeypatch):
    """A hill whose top is all but flat; the control takes its step size from the gradient there."""
    with pm.Model() as model:
        pm.Potential("hill", 1e4 * pst.UnitVector("u", n=3)[0] ** 2)
    options = {"start": {"u": np.array([1e-6, 1.0, 0.0])}, "epochs": 5, "progressbar": False, "random_seed": 1}
    assert abs(pst.minimize_stochastic(model, **options)["u"][0]) > 0.999
    at_start = _stochastic._gentle_step_size
    monkeypatch.setattr(_stochastic, "_first_step_size", lambda d, m, flat, friction, rng: at_start(d, m, flat, rng)[0])
    with pytest.warns(UserWarning, match="diverged"):
        pst.minimize_stochastic(model, **options)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
        ({"step_size": -1.0}, "step_size must be above 0, got -1.0"),
        ({"friction": 2.0}, "friction must lie between 0 and 1, got friction=2.0"),
        ({"schedule": "linear"}, "schedule must be 'cosine', 'constant' or a function, got schedule='linear'"),
    ],
)
def test_bad_settings(arguments, message):
    with pm.Model() as model:
        pm.Potential("pull", 3 * pst.UnitVector("u", n=3)[0])
    with pytest.raises(ValueError, match=message):
        pst.minimize_stochastic(model, progressbar=False, **arguments)


def test_bad_problems(joint_model):
    model, _ = regression_model(50)
    with pytest.raises(ValueError, match=r"find_MAP needs the whole data.*minimize_stochastic"):
        pst.find_MAP(model=model, progressbar=False)
    with pm.Model() as model:
        u = pst.UnitVector("u", n=3)
        pm.Potential("wall", pt.switch(u[0] > 2, 0.0, -np.inf))
    with pytest.raises(ValueError, match="log density is -inf at the start"):
        pst.find_MAP(model=model, progressbar=False)
    model = joint_model
    with pytest.warns(UserWarning, match="stopped after . iterations and . evaluations"):
        pst.find_MAP(model=model, maxeval=5, progressbar=False)
    with pytest.warns(UserWarning, match="diverged in epoch"):
        found = pst.minimize_stochastic(model, step_size=5.0, progressbar=False)
    assert not found.converged and np.all(np.isfinite(found["U"]))


def test_arguments_are_those_of_pymc_in_its_order():
    ours, theirs = (list(inspect.signature(function).parameters.values()) for function in (pst.find_MAP, pm.find_MAP))
    by_place = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    if by_place == ["method"]:  # since PyMC 6.4 all others are given by name
        by_name = {p.name for p in theirs if p.kind is p.KEYWORD_ONLY}
        assert {"initvals", "random_seed", "vars", "progressbar", "model", "compile_kwargs"} <= by_name
    else:
        assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD] == by_place
    assert {"seed"} <= {p.name for p in ours if p.kind is p.KEYWORD_ONLY}


def test_names_of_newer_pymc():
    with pm.Model() as model:
        pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=5)
    start = {"x": np.array([0.6, 0.8, 0.0])}
    for old, new in (({"seed": 3}, {"random_seed": 3}), ({"start": start}, {"initvals": start})):
        one, other = (pst.find_MAP(model=model, progressbar=False, **given) for given in (old, new))
        np.testing.assert_array_equal(one.history, other.history)
        with pytest.raises(TypeError, match="two names of one argument"):
            pst.find_MAP(model=model, progressbar=False, **old, **new)


def test_old_arguments_still_work_with_a_warning():
    with pm.Model() as model:
        pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=5)
    new = pst.find_MAP(progressbar=False, seed=3, model=model)
    with pytest.warns(FutureWarning, match="`model` by name"):
        old = pst.find_MAP(model, progressbar=False, seed=3)
    np.testing.assert_array_equal(old["x"], new["x"])
    np.testing.assert_array_equal(old.history, new.history)
    with pytest.warns(FutureWarning, match="maxeval"), pytest.warns(UserWarning, match="stopped after 1 iterations"):
        pst.find_MAP(model=model, max_iterations=1, progressbar=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tol'"):
        pst.find_MAP(model=model, tol=1)
    with pytest.raises(ValueError, match=r"method must be one of L-BFGS.*'powell'"):
        pst.find_MAP(model=model, method="powell")


def test_transformed_values_and_the_optimisers_record(joint_model):
    best, record = pst.find_MAP(None, None, "L-BFGS-B", True, True, False, model=joint_model)
    assert record.evaluations == best.n_evaluations
    np.testing.assert_allclose(np.exp(best["scale_log__"]), best["scale"])
    np.testing.assert_array_equal(best["U_polar__"], best["U"])


# ---------------------------------------------------------------- starts of chains


def two_modes():
    """Three vectors that like to agree, each near either pole: signs that differ are traps, and scales follow them."""
    with pm.Model() as model:
        x = pst.UnitVector("x", n=4, shape=(3, 4))
        s = pm.HalfNormal("s", 1.0)
        pm.Potential("poles", 40 * pt.sum(x[:, 0] ** 2) + 15 * pt.sum(x[1:, 0] * x[:-1, 0]) + 5 * x[0, 0] - s)
    return model


def test_initial_points_are_at_the_best_mode():
    model = two_modes()
    starts = pst.initial_points(model, 3, random_seed=1)
    assert len(starts) == 3
    for start in starts:
        np.testing.assert_allclose(start["x"][:, 0], 1.0, atol=1e-3)
        assert start.logp == pytest.approx(max(start.history), abs=1.0)
        assert 3 <= len(start.history) <= 8 and start.n_evaluations > 10
    climbed = pst.initial_points(model, 1, random_seed=1, keep="all")[0]
    assert climbed["s"] != starts[0]["s"]
    with model:
        idata = pm.sample(
            20, tune=20, chains=3, cores=1, initvals=starts, progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert np.all(idata["posterior"]["x"].values[..., 0] > 0.5)


def test_trapped_chains_are_found():
    """Of draws made by hand: two chains at the best mode, one beyond a wall of signs."""
    model, rng = two_modes(), np.random.default_rng(0)
    x = np.zeros((3, 10, 3, 4))
    x[..., 0] = 1.0
    x[2, :, 2, 0] = -1.0
    x += 0.05 * rng.standard_normal(x.shape)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    lp = np.where(np.arange(3) == 2, 120.0, 150.0)[:, None] + rng.standard_normal((3, 10))
    posterior = {"x": x, "s": np.full((3, 10), 0.5)}
    both = {"posterior": az.convert_to_dataset(posterior), "sample_stats": az.convert_to_dataset({"lp": lp})}
    found = optimize.trapped(model, both)
    assert [one.chain for one in found] == [2]
    assert found[0].below == pytest.approx(30.0, abs=1.0)
    assert found[0].apart == pytest.approx(30.0, abs=2.0)
    assert optimize.trapped(model, {name: part.isel(chain=[0, 1]) for name, part in both.items()}) == []
    known = [pst.Optimum()._describe(logp=1000.0)]
    assert len(optimize.trapped(model, both, starts=known)) == 3
    with pytest.raises(ValueError, match="no draws of s"):
        optimize.trapped(model, {"posterior": both["posterior"].drop_vars("s"), "sample_stats": both["sample_stats"]})


def test_bad_starts_are_refused():
    with pytest.raises(ValueError, match="chains must be at least 1, got 0"):
        pst.initial_points(two_modes(), 0)
    with pytest.raises(ValueError, match="keep must be one of matrices, all, got 'some'"):
        pst.initial_points(two_modes(), keep="some")
