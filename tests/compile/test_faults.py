"""Faults in a model reach the user: errors of Ops, Ctrl-C, data that do not fit, indices out of range."""

import os
import signal
import subprocess
import sys

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_stiefel as pst
from pymc_stiefel.compile._density import ModelDensity
from tests import ROOT

QUIET = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False, "random_seed": 1}


class Faulty(Op):
    """The square of a number, until ``fault`` is called instead."""

    def __init__(self, fault, good=3000):
        self.fault, self.left = fault, good

    def make_node(self, x):
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        self.left -= 1
        if self.left < 0:
            self.fault()
        outputs[0][0] = inputs[0] ** 2

    def pullback(self, inputs, outputs, cotangents):
        return [2 * inputs[0] * cotangents[0]]

    L_op = pullback


def words():
    raise RuntimeError("the Op's own words")


def singular():
    raise np.linalg.LinAlgError("singular")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def sample_faulty(fault, good=3000, step=pst.StiefelNUTS, **options):
    with pm.Model():
        u = pst.UnitVector("u", n=3)
        pm.Potential("pull", -10 * Faulty(fault, good)(u[:1]).sum())
        with pytest.warns(UserWarning):  # object mode, or the slow path
            made = step(**options)
        return pm.sample(2000, tune=50, step=made, **QUIET)


@pytest.fixture(params=["compiled", "slow"])
def path(request, monkeypatch):
    if request.param == "slow":

        def fail(self):
            raise NotImplementedError("a function that numba does not know")

        monkeypatch.setattr(ModelDensity, "_link", fail)


def run_here(name, *arguments):
    """A test of this file in a process of its own: what is wrong may end the interpreter."""
    code = f"from tests.compile import test_faults as t; t.{name}(*{arguments!r})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]


def raises(slow):
    with pytest.MonkeyPatch.context() as patch:
        if slow:
            patch.setattr(ModelDensity, "_link", lambda self: words())
        for step, options in [(pst.StiefelNUTS, {}), (pst.OrthogonalSGHMC, {"step_size": 0.1, "n_steps": 5})]:
            with pytest.raises(RuntimeError, match="the Op's own words") as caught:
                sample_faulty(words, step=step, **options)
            assert "words" in [entry.name for entry in caught.traceback]


def keeps(slow):
    with pytest.MonkeyPatch.context() as patch:
        if slow:
            patch.setattr(ModelDensity, "_link", lambda self: words())
        idata = sample_faulty(interrupt)
    assert 10 < idata["posterior"].sizes["draw"] < 2000


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "slow"])
def test_an_op_raises_its_own_exception(slow):
    run_here("raises", slow)


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "slow"])
def test_an_interrupt_inside_an_op_keeps_the_draws(slow):
    run_here("keeps", slow)


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_a_failed_decomposition_is_a_divergence(path):
    """Also in the middle of a step of two stages, where only the gradient counts."""
    idata = sample_faulty(singular, good=1500)
    assert idata["sample_stats"]["diverging"].values[0, 1000:].all()


def test_optimisers_raise_too():
    with pm.Model(), pytest.warns(UserWarning):
        u = pst.UnitVector("u", n=3)
        pm.Potential("pull", -10 * Faulty(words, 3)(u[:1]).sum())
        with pytest.raises(RuntimeError, match="the Op's own words"):
            pst.find_MAP(progressbar=False, seed=1)
        with pytest.raises(RuntimeError, match="the Op's own words"):
            pst.minimize_stochastic(progressbar=False, random_seed=1)


# ---------------------------------------------------------------- minibatches


def regression(x, y, batch_size=5):
    with pm.Model() as model:
        x, y = pm.Data("x", x), pm.Data("y", y)
        rows, answers = pm.Minibatch(x, y, batch_size=batch_size)
        u = pst.UnitVector("u", n=3)
        pm.Normal("z", rows @ u, 1.0, observed=answers, total_size=100)
    return model


def test_minibatches_of_unequal_length_are_refused():
    model = regression(np.ones((10, 3)), np.ones(1000))
    with model:
        for make in (lambda: pst.OrthogonalSGHMC(step_size=0.01), lambda: pst.minimize_stochastic(progressbar=False)):
            with pytest.raises(ValueError, match=r"should be equal.*10, 1000 rows"):
                make()


def test_minibatches_of_unequal_length_after_set_data():
    """As rows of x were read, so were those of y: 999,999 of which do not exist."""
    model = regression(np.ones((10, 3)), np.ones(10))
    with model:
        step = pst.OrthogonalSGHMC(step_size=0.001)
        point, _ = step.step(model.initial_point(1))
        pm.set_data({"x": np.ones((10**6, 3)), "y": np.ones(1)})
        with pytest.raises(ValueError, match=r"should be equal.*1000000, 1 rows"):
            step.step(point)
        pm.set_data({"x": np.ones((20, 3)), "y": np.ones(20)})
        step.step(point)


def test_empty_minibatches_are_refused():
    with regression(np.ones((0, 3)), np.ones(0)), pytest.raises(ValueError, match="no rows to choose from"):
        pst.OrthogonalSGHMC(step_size=0.01)
    with regression(np.ones((9, 3)), np.ones(9), 0), pytest.raises(ValueError, match="batch_size=0"):
        pst.OrthogonalSGHMC(step_size=0.01)


# ---------------------------------------------------------------- data


def test_data_of_many_dimensions_are_compiled(recwarn):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 3, 1, 2, 2, 3))
    with pm.Model() as model:
        x = pm.Data("x", data)
        u = pst.UnitVector("u", n=3)
        pm.Potential("pull", (x * u).sum())
        step = pst.OrthogonalHMC(n_steps=2)
    assert not [warning for warning in recwarn if "goes through Python" in str(warning.message)]
    point, [stats] = step.step(model.initial_point(1))
    np.testing.assert_allclose(
        stats["model_logp"],
        (data * point["u_sphere__"]).sum() + model.compile_logp([model["u"]], jacobian=False)(point),
    )


def test_lengths_that_do_not_fit_in_mid_run():
    with pm.Model() as model:
        x, y = pm.Data("x", np.ones((7, 3))), pm.Data("y", np.ones(7))
        u = pst.UnitVector("u", n=3)
        pm.Normal("z", x @ u, 1.0, observed=y)
        step = pst.StiefelNUTS()
        point, _ = step.step(model.initial_point(1))
        pm.set_data({"x": np.ones((4, 3)), "y": np.ones(4)})
        point, _ = step.step(point)
        pm.set_data({"y": np.ones(5)})
        with pytest.raises(Exception, match=r"(?i)shape|broadcast|length|size") as caught:
            step.step(point)
        assert "do its data fit together" in "".join(caught.value.__notes__)


def test_indices_out_of_range():
    with pm.Model() as model:
        which = pm.Data("which", np.array([0, 3, 5]))
        U = pst.StiefelUniform("U", n=6, p=2)
        scale = pm.Normal("scale", shape=4)
        pm.Normal("y", U[which, 0] + scale[which % 4], 1.0, observed=np.zeros(3))
        step = pst.StiefelNUTS()
        point, _ = step.step(model.initial_point(1))
        for bad in ([0, 6, 1], [0, -7, 1]):
            pm.set_data({"which": np.array(bad)})
            with pytest.raises(IndexError, match=r"out of bounds.*(6|-7)"):
                step.step(point)
        pm.set_data({"which": np.array([0, -6, 1])})
        step.step(point)


def test_indices_out_of_range_at_the_start():
    with pm.Model():
        U = pst.StiefelUniform("U", n=6, p=2)
        pm.Potential("constant", U[np.array([1, 60_000_000])].sum())
        with pytest.raises(IndexError, match="60000000"):
            pst.StiefelNUTS()
    with pm.Model():
        which = pm.Data("which", np.array([0, 60_000_000]))
        U = pst.StiefelUniform("U", n=6, p=2)
        pm.Potential("data", U[which].sum())
        with pytest.raises(IndexError, match=r"indexes .* of shape"):
            pm.sample(2, tune=2, **QUIET)
        with pytest.raises(IndexError, match=r"indexes .* of shape"):
            pst.find_MAP(progressbar=False)
