"""A step beside other steps: the points it is given, new data, draws made ahead, slow paths, starts."""

from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_stiefel as pst
from pymc_stiefel.compile import _cache
from pymc_stiefel.compile import _density as density_module
from pymc_stiefel.engine.adaptation.search import Search
from pymc_stiefel.steps import _hmc as step_methods
from tests.steps.chains import draw

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
