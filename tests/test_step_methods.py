"""The step methods under ``pm.sample``: choice, seeds, statistics, neighbours, errors, and the posterior itself."""

from weakref import WeakKeyDictionary

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pymc.step_methods import STEP_METHODS
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_stiefel as pst
from pymc_stiefel.compile import _cache
from pymc_stiefel.compile import _density as density_module
from pymc_stiefel.engine.adaptation.search import Search
from pymc_stiefel.engine.blocks import FLIPPED, NEVER
from pymc_stiefel.steps import _hmc as step_methods
from tests.models import ppca, ppca_data

QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def model():
    return ppca(ppca_data())


def draw(model, draws=50, tune=50, chains=1, cores=1, seed=3, **kwargs):
    with model:
        return pm.sample(draws, tune=tune, chains=chains, cores=cores, random_seed=seed, **(QUIET | kwargs))


def invariants(idata):
    """Rotation- and order-invariant summaries of a PPCA posterior, (chain, draw, quantity)."""
    posterior = idata["posterior"]
    U, scale = posterior["U"].values, posterior["scale"].values
    weighted = np.einsum("cdik,cdk,cdjk->cdij", U, scale**2, U)
    upper = np.triu_indices(U.shape[2])
    return np.concatenate([weighted[..., upper[0], upper[1]], posterior["noise"].values[..., None]], axis=-1)


def z_scores(first, second):
    def mean_and_error(x):
        dataset = az.convert_to_dataset({"x": x})
        return x.mean(axis=(0, 1)), az.mcse(dataset, method="mean")["x"].values

    (mean1, error1), (mean2, error2) = mean_and_error(first), mean_and_error(second)
    return (mean1 - mean2) / np.hypot(error1, error2)


# ---------------------------------------------------------------- choice of the step


def test_registered_once():
    assert sum(method is pst.StiefelNUTS for method in STEP_METHODS) == 1


def chosen(model):
    from pymc.sampling.mcmc import assign_step_methods

    _, steps = assign_step_methods(model)
    return {step.__name__: sorted(var.name for var in variables) for step, variables in steps.items()}


def test_takes_all_continuous_variables_jointly(model):
    assert chosen(model) == {"StiefelNUTS": ["U_polar__", "noise_log__", "scale_log__"]}


def test_leaves_other_models_and_discrete_variables_alone():
    with pm.Model() as plain:
        pm.Normal("x")
    assert chosen(plain) == {"NUTS": ["x"]}
    with pm.Model() as mixed:
        pst.StiefelUniform("Q", n=4, p=2)
        pm.Normal("x")
        pm.Bernoulli("flag", 0.3)
    assert chosen(mixed) == {"StiefelNUTS": ["Q_polar__", "x"], "BinaryGibbsMetropolis": ["flag"]}


def test_chart_counts_as_euclidean():
    with pm.Model() as chart:
        pst.StiefelUniform("Q", n=4, p=2, transform=pst.transforms.householder)
    assert set(chosen(chart)) == {"NUTS"}


def test_works_outside_of_a_context_and_after_conditioning(model):
    idata = pm.sample(20, tune=20, chains=1, cores=1, random_seed=1, model=model, **QUIET)
    assert "orthogonality_error" in idata["sample_stats"]
    fixed = pm.do(model, {"noise": 1.0})
    idata = pm.sample(20, tune=20, chains=1, cores=1, random_seed=1, model=fixed, **QUIET)
    assert "orthogonality_error" in idata["sample_stats"]


def test_options_reach_the_step(model):
    careful = draw(model, target_accept=0.999, draws=200, tune=200)
    shallow = draw(model, nuts={"max_treedepth": 1}, draws=200, tune=200)
    size = [float(i["sample_stats"]["step_size"].values[0, -1]) for i in (careful, shallow)]
    assert size[0] < size[1]
    assert shallow["sample_stats"]["n_steps"].max() == 1 < careful["sample_stats"]["n_steps"].max()


@pytest.mark.integration
def test_other_samplers_stay_usable(model):
    assert (
        "orthogonality_error"
        not in draw(model, draws=5, tune=5, step=pm.NUTS(model=model), nuts_sampler="pymc")["sample_stats"]
    )
    pytest.importorskip("nutpie")
    idata = draw(model, draws=20, tune=60, nuts_sampler="nutpie")
    assert np.all(pst.orthogonality_error(idata, "U") < 1e-10)


# ---------------------------------------------------------------- draws and statistics


def test_statistics(model):
    idata = draw(model, chains=2)
    stats = idata["sample_stats"]
    for name in ("energy", "diverging", "tree_depth", "n_steps", "acceptance_rate", "lp", "step_size_bar"):
        assert stats[name].shape == (2, 50)
    assert stats["orthogonality_error"].values.max() < 1e-12
    assert np.all(np.isfinite(az.bfmi(idata)["energy"] if hasattr(az.bfmi(idata), "data_vars") else az.bfmi(idata)))
    # energy and lp are those of the accepted state: lp + energy is the kinetic energy, positive
    assert np.all(stats["energy"].values + stats["lp"].values > 0)
    assert list(idata["posterior"]["U"].dims) == ["chain", "draw", "feature", "factor"]


def test_model_logp_is_the_density_of_the_draw(model):
    idata = draw(model, draws=10)
    point = idata["posterior"].isel(chain=0, draw=-1)
    values = {
        "U_polar__": point["U"].values,
        "scale_log__": np.log(point["scale"].values),
        "noise_log__": np.log(point["noise"].values),
    }
    whole = model.compile_logp()(values)
    expansion = -0.5 * 2 - 0.5 * 12 * np.log(2 * np.pi)  # the Gaussian factor of the polar expansion, |U|^2 = 2
    assert float(idata["sample_stats"]["lp"].values[0, -1]) == pytest.approx(float(whole) - expansion)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_same_seed_same_draws_in_every_process(model, start):
    alone = draw(model, draws=30, chains=2)
    together = draw(model, draws=30, chains=2, cores=2, mp_ctx=start)
    np.testing.assert_array_equal(alone["posterior"]["U"].values, together["posterior"]["U"].values)
    assert not np.array_equal(alone["posterior"]["U"].values[0, 0], alone["posterior"]["U"].values[1, 0])


@pytest.mark.parametrize("step", [pst.StiefelNUTS, pst.OrthogonalHMC, pst.GeodesicHMC])
def test_same_posterior_as_nuts_on_the_expansion(model, step, expansion_draws):
    with model:
        method = step()
    idata = draw(model, 1000, 500, chains=2, step=method, seed=11)
    z = z_scores(invariants(idata), expansion_draws)
    assert np.abs(z).max() < 4
    assert idata["sample_stats"]["diverging"].values.sum() == 0


@pytest.fixture(scope="module")
def expansion_draws(model):
    with model:
        step = pm.NUTS()
    return invariants(draw(model, 1000, 500, chains=2, step=step, seed=12, nuts_sampler="pymc"))


def test_wrong_posterior_is_told_apart(expansion_draws):
    """The control: the same check on data with a tenth more noise."""
    other = ppca(1.1 * ppca_data())
    z = z_scores(invariants(draw(other, 1000, 500, chains=2, seed=11)), expansion_draws)
    assert np.abs(z).max() > 6


def test_fixed_length(model):
    with model:
        idata = draw(model, step=pst.OrthogonalHMC(n_steps=7, jitter=0))
        assert np.all(idata["sample_stats"]["n_steps"] == 7)
        idata = draw(model, step=pst.GeodesicHMC(path_length=1.0, step_size=0.1, jitter=0))
        assert np.all(idata["sample_stats"]["n_steps"] == 10)
        np.testing.assert_allclose(idata["sample_stats"]["step_size"], 0.1)


def test_smallest_manifolds():
    """O(1) is two points, between which only reflections lead; long enough for tuning to try a fixed length."""
    with pm.Model():
        pst.StiefelUniform("sign", n=1, p=1)
        idata = pm.sample(400, tune=300, chains=1, random_seed=1, **QUIET)
    draws = idata["posterior"]["sign"].values.ravel()
    assert set(draws) == {-1.0, 1.0}
    assert abs(draws.mean()) < 0.3
    assert not idata["sample_stats"]["diverging"].any()


def test_orthogonal_group_and_rotations():
    with pm.Model() as both:
        pst.StiefelUniform("Q", n=3, p=3)
        pst.SpecialOrthogonal("R", n=3)
        pst.UnitVector("u", n=4)
        pst.StiefelUniform("batch", n=4, p=2, shape=(3, 4, 2))
    posterior = draw(both, 300, 100)["posterior"]
    assert 0.3 < np.mean(np.linalg.det(posterior["Q"].values) > 0) < 0.7
    np.testing.assert_allclose(np.linalg.det(posterior["R"].values), 1.0)
    np.testing.assert_allclose(np.linalg.norm(posterior["u"].values, axis=-1), 1.0)
    assert posterior["batch"].shape == (1, 300, 3, 4, 2)
    # entries of Haar matrices: X_ij^2 has mean 1/n
    for name, n in (("Q", 3), ("R", 3), ("u", 4), ("batch", 4)):
        np.testing.assert_allclose(np.mean(posterior[name].values[:, ::2] ** 2), 1 / n, rtol=0.15)
    assert draw(both, 20, 20, step=pst.StiefelNUTS(model=both, reflect=False))["sample_stats"]["reflected"].sum() == 0


# ---------------------------------------------------------------- neighbours


def test_goes_on_from_the_point_it_is_given(model):
    """The point of the last draw is not read again; an equal one gives the same draws, another one is obeyed."""
    with model:
        ones, copied = pst.StiefelNUTS(rng=1), pst.StiefelNUTS(rng=1)
        slow = pst.StiefelNUTS(rng=1, step_size=1e-9, n_steps=1, adapt_metric=False)
        slow.tune = False  # no search
    start, elsewhere = model.initial_point(1), model.initial_point(2)
    one = two = start
    for _ in range(5):
        one, _ = ones.step(one)
        two, _ = copied.step({name: value.copy() for name, value in two.items()})
    for name in start:
        np.testing.assert_array_equal(one[name], two[name])
    for point in (start, elsewhere, start):
        reached, _ = slow.step(point)
        for name in start:
            np.testing.assert_allclose(reached[name], point[name], atol=1e-6)
    assert np.abs(start["U_polar__"] - elsewhere["U_polar__"]).max() > 0.1


def test_discrete_neighbour():
    """A mixture of two directions with its label: the label's step and ours see each other's values."""
    with pm.Model() as mixture:
        u = pst.UnitVector("u", n=3)
        label = pm.Bernoulli("label", 0.3)
        pm.Potential("pull", 8.0 * pt.switch(label, u[0], -u[1]))
    posterior = draw(mixture, 2000, 500)["posterior"]
    label, u = posterior["label"].values.ravel(), posterior["u"].values.reshape(-1, 3)
    assert abs(label.mean() - 0.3) < 0.1
    exact = 1 / np.tanh(8.0) - 1 / 8.0
    assert abs(u[label == 1, 0].mean() - exact) < 0.03
    assert abs(u[label == 0, 1].mean() + exact) < 0.03


def test_new_data_need_no_new_step(model):
    with model:
        step = pst.StiefelNUTS()
        before = draw(model, 200, 200, step=step)["posterior"]["noise"].mean()
        old = model["gram"].get_value()
        pm.set_data({"gram": 9 * old})
        after = draw(model, 200, 200, step=step)["posterior"]["noise"].mean()
        pm.set_data({"gram": old})
    assert 2.5 < float(after) / float(before) < 3.5


def test_censored_and_potential():
    with pm.Model() as censored:
        u = pst.UnitVector("u", n=3)
        pm.Censored("y", pm.Normal.dist(3 * u[0], 1), lower=None, upper=2.0, observed=np.array([2.0, 2.0, 1.5]))
    assert np.isfinite(draw(censored)["posterior"]["u"].values).all()


class Squared(Op):
    """A function with a gradient that numba does not know."""

    def make_node(self, x):
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 2

    def pullback(self, inputs, outputs, cotangents):
        return [2 * inputs[0] * cotangents[0]]

    L_op = pullback


def test_function_unknown_to_numba_runs_with_a_warning():
    with pm.Model() as odd:
        u = pst.UnitVector("u", n=3)
        pm.Potential("pull", -10 * Squared()(u[:1]).sum())
        with pytest.warns(UserWarning):
            step = pst.StiefelNUTS()
    assert abs(draw(odd, 300, 200, step=step)["posterior"]["u"].values[..., 0]).mean() < 0.3


@pytest.fixture
def slow_step(model, monkeypatch):
    """A step on a density that numba refuses to link."""

    def fail(self):
        raise NotImplementedError("a function that numba does not know")

    monkeypatch.setattr(density_module.ModelDensity, "_link", fail)
    monkeypatch.setattr(_cache, "_results", WeakKeyDictionary())  # where the model has been compiled already
    with model, pytest.warns(UserWarning, match="goes through Python"):
        return pst.StiefelNUTS()


def test_new_data_are_seen_on_the_slow_path_too(model, slow_step):
    """The gradient of the last draw, and draws made ahead, are void then."""
    point, old = model.initial_point(0), model["gram"].get_value()
    point, [stats] = slow_step.step(point)
    assert stats["gradients"] > 2 * stats["tree_size"] + 10  # the search, and for a step size
    slow_step.tune = False
    for gram, evaluations in [(old, 1), (9 * old, 1), (old, 1)]:
        with model:
            pm.set_data({"gram": gram})
        for more in (evaluations, 0):
            point, [stats] = slow_step.step(point)
            assert stats["gradients"] == 2 * stats["tree_size"] + more


def test_slow_path_gives_the_same_draws(model, slow_step, monkeypatch):
    slow = draw(model, step=slow_step)
    monkeypatch.undo()
    with model:
        fast = draw(model, step=pst.StiefelNUTS())
    np.testing.assert_allclose(slow["posterior"]["U"].values[:, :5], fast["posterior"]["U"].values[:, :5], atol=1e-6)


def test_interrupt_keeps_the_draws(model):
    def stop(trace, draw):
        if draw.draw_idx == 79:
            raise KeyboardInterrupt

    idata = draw(model, draws=100, callback=stop, discard_tuned_samples=True)
    assert 25 <= idata["posterior"].sizes["draw"] <= 31


def test_state_saves_and_restores(model):
    with model:
        step = pst.StiefelNUTS(rng=5)
    point = model.initial_point(3)
    for _ in range(60):
        point, _ = step.step(point)
    saved = step.sampling_state
    first = [step.step(point)[0]["U_polar__"]]
    step.sampling_state = saved
    again = [step.step(point)[0]["U_polar__"]]
    np.testing.assert_array_equal(first, again)


@pytest.fixture
def bingham():
    """A model whose trajectories are short, and of one length after tuning."""
    with pm.Model() as model:
        shape = pm.Data("shape", np.diag([3.0, 2.0, 0.0, 0.0, 0.0]))
        X = pst.StiefelUniform("X", n=5, p=2)
        pm.Potential("density", pt.sum(X * (shape @ X)))
    return model


def chain_of(model, length, seed=5):
    """A chain by hand, tuned for 300 draws, with the numbers of draws made in one go."""
    with model:
        step = pst.StiefelNUTS(rng=seed)
    step.tune = True
    step.setup_chain(np.random.default_rng(seed), 300, length - 300)
    point, draws, counts = model.initial_point(3), [], []
    for k in range(length):
        step.tune = k < 300
        point, _ = step.step(point)
        draws.append(point["X_polar__"])
        counts.append(len(step.ahead.stats))
    return step, point, np.array(draws), counts


def test_draws_ahead_are_those_made_one_by_one(bingham, monkeypatch):
    *_, ahead, counts = chain_of(bingham, 600)
    assert max(counts[:300]) > 1 and max(counts[300:]) > 1
    monkeypatch.setattr(step_methods, "MOST_AHEAD", 1)
    *_, one_by_one, counts = chain_of(bingham, 600)
    assert max(counts) == 1
    np.testing.assert_array_equal(ahead, one_by_one)


def test_a_chain_resumes_among_draws_made_ahead(bingham, monkeypatch):
    monkeypatch.setattr(step_methods, "PATIENCE", 1.0)
    step, point, *_ = chain_of(bingham, 410)
    assert not step.ahead.is_over
    saved, last = step.sampling_state, {name: value.copy() for name, value in point.items()}

    def go_on(point):
        draws = []
        for _ in range(60):
            point, _ = step.step(point)
            draws.append(point["X_polar__"])
        return draws

    first = go_on(point)
    step.sampling_state = saved
    np.testing.assert_array_equal(first, go_on(last))


def test_draws_made_ahead_are_void_when_data_change(bingham, monkeypatch):
    monkeypatch.setattr(step_methods, "PATIENCE", 1.0)
    step, point, *_ = chain_of(bingham, 410)
    assert not step.ahead.is_over
    with bingham:
        pm.set_data({"shape": np.diag([0.0, 0.0, 0.0, 0.0, 4.0])})
    for _ in range(5):
        point, (stats,) = step.step(point)
        np.testing.assert_allclose(stats["model_logp"], 4.0 * np.sum(point["X_polar__"][4] ** 2))


def test_single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as single:
            pst.StiefelUniform("Q", n=4, p=2)
            pm.Normal("x")
        posterior = draw(single)["posterior"]
    assert posterior["Q"].dtype == np.float32
    assert pst.orthogonality_error(posterior["Q"]).max() < 1e-5


def poles(weight):
    """A unit vector near one of two poles, as often as ``weight`` near the first."""
    with pm.Model() as model:
        x = pst.UnitVector("x", n=5)
        pm.Potential("poles", pt.logaddexp(np.log(weight) + 40 * x[0], np.log1p(-weight) - 40 * x[0]))
    return model


def test_signs_are_flipped_where_that_joins_modes():
    idata = draw(poles(0.7), draws=2000, tune=400, chains=2)
    assert 0.3 < idata["sample_stats"]["reflected"].mean() < 0.9  # 2 * 0.3 is to be expected
    np.testing.assert_allclose((idata["posterior"]["x"][..., 0] > 0).mean(), 0.7, atol=0.06)
    model = poles(0.7)
    stuck = draw(model, draws=200, tune=400, step=pst.StiefelNUTS(model=model, reflect=False))
    assert (stuck["posterior"]["x"][..., 0] > 0).values.mean() in (0.0, 1.0)


@pytest.mark.parametrize("weight", [0.5, 1 - 1e-9], ids=["symmetric", "one-sided"])
def test_signs_stay_where_nothing_is_gained(weight):
    idata = draw(poles(weight), draws=100, tune=300)
    assert not idata["sample_stats"]["reflected"].values.any()


def test_flips_that_are_needed_say_nothing_of_others():
    """Beside a matrix of O(n), whose columns are flipped anyway, a vector that needs no flips has none."""
    with poles(0.5) as model:
        pst.StiefelUniform("Q", n=2, p=2)
        step = pst.StiefelNUTS()
    draw(model, draws=20, tune=500, step=step)
    assert step.chain.flips.kinds[:, 0].tolist() == [NEVER, FLIPPED]


def test_rotations_stay_rotations():
    with pm.Model() as model:
        R = pst.SpecialOrthogonal("R", n=3)
        pm.Potential("trace", pt.trace(R))
    idata = draw(model, draws=100, tune=300)
    assert not idata["sample_stats"]["reflected"].values.any()
    np.testing.assert_allclose(np.linalg.det(idata["posterior"]["R"]), 1.0)


@pytest.mark.parametrize("mp_ctx,cores", [(None, 1), ("fork", 2), ("spawn", 2)])
def test_search_is_skipped_where_a_start_is_given(mp_ctx, cores, model):
    """By ``initvals`` of an orthonormal variable; others do not count. The first draw tells by its gradients."""
    options = {"draws": 5, "tune": 5, "chains": 2, "cores": cores, "discard_tuned_samples": False}
    gradients = []
    for initvals in (None, {"noise": 1.0}, {"U": np.eye(6, 2)}, [{"U": np.eye(6, 2)}] * 2):
        with model:
            step = pst.StiefelNUTS()
        idata = draw(model, step=step, initvals=initvals, mp_ctx=mp_ctx, **options)
        gradients.append(idata["warmup_sample_stats"]["gradients"].values[:, 0].min())
    assert min(gradients[:2]) > max(gradients[2:]) + 10


def test_search_is_skipped_where_the_model_has_a_start():
    with pm.Model():
        pst.VonMisesFisher("x", mu=[0.0, 0.0, 1.0], kappa=50, initval=np.array([0.0, 0.6, 0.8]))
        step = pst.StiefelNUTS()
    assert step._start_given
    step.step({"x_sphere__": np.array([0.0, 0.6, 0.8])})
    assert not any(isinstance(adapter, Search) for adapter in step.chain.adapters)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"step_size": -0.1}, "step_size must be above 0, got -0.1"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_steps": 2.5}, "n_steps must be an integer .*got 2.5"),
        ({"n_steps": 3, "path_length": 1.0}, "cannot be given together"),
        ({"path_length": 0.0}, "path_length must be above 0"),
        ({"target_accept": 1.2}, "target_accept.*1.2"),
        ({"max_treedepth": 0}, "max_treedepth"),
        ({"jitter": 1.0}, "jitter"),
        ({"adapt_step_size": False}, "step_size"),
    ],
)
def test_bad_settings(model, arguments, message):
    with model, pytest.raises((TypeError, ValueError), match=message):
        pst.OrthogonalHMC(**arguments)


def test_variables_that_cannot_be_sampled(model):
    with pm.Model() as other:
        x = pm.Normal("x")
        flag = pm.Bernoulli("flag", 0.5)
    with model, pytest.raises(ValueError, match="x"):
        pst.StiefelNUTS([x])
    with other, pytest.raises(ValueError, match="flag"):
        pst.StiefelNUTS([flag])
    with other, pytest.warns(UserWarning, match="no orthonormal variable"):
        step = pst.OrthogonalHMC([x])
    assert draw(other, 20, 20, step=step)["posterior"]["x"].shape == (1, 20)


def test_starts_outside_the_support():
    with pm.Model() as impossible:
        u = pst.UnitVector("u", n=3)
        pm.Potential("wall", pt.switch(u[0] > 2, 0.0, -np.inf))
    with pytest.raises(SamplingError, match=r"-inf at the start.*wall.*u_sphere__ = \["):
        draw(impossible)
    with pm.Model() as steep:
        u = pst.UnitVector("u", n=3, initval=np.array([0.0, 0.0, 1.0]))
        x = pm.Normal("x", initval=0.0)
        pm.Potential("root", pt.sqrt(pt.abs(x)) * u[0])
    with pytest.raises(SamplingError, match=r"gradient .* not finite in x"):
        draw(steep)


@pytest.mark.parametrize("strength", [1e16, 1e100, 1e300])
def test_laws_narrower_than_floating_point_numbers(strength):
    """Their draws were NaN, or adaptation met the logarithm of zero."""
    with pm.Model():
        pst.MatrixLangevin("X", F=strength * np.eye(5, 2))
        with pytest.raises(SamplingError, match=r"X_polar__ change in their last digit \(float64\).*too narrow"):
            pm.sample(10, tune=10, chains=1, cores=1, progressbar=False, random_seed=1)


def test_a_law_as_narrow_as_can_be():
    with pm.Model():
        pst.MatrixLangevin("X", F=1e12 * np.eye(5, 2))
        idata = pm.sample(200, tune=200, chains=1, cores=1, progressbar=False, random_seed=1)
    below = idata["posterior"]["X"].values[..., 2:, :]  # normal, with variance 1e-12
    assert 0.8 < below.std() * 1e6 < 1.25
    assert idata["sample_stats"]["diverging"].sum() == 0


def test_minibatch_is_refused():
    data = np.random.default_rng(0).standard_normal((100, 3))
    with pm.Model():
        batch = pm.Minibatch(data, batch_size=10)
        u = pst.UnitVector("u", n=3)
        pm.Normal("y", u, 1.0, observed=batch, total_size=data.shape)
        with pytest.raises(ValueError, match="accept step would be wrong"):
            pst.OrthogonalHMC()
