"""pst.sample: the draws of pm.sample, from threads; what is passed on, and what is compiled."""

import gc
import inspect
import logging
import weakref

import numba.core.event
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_stiefel as pst
from pymc_stiefel.compile._density import model_density
from pymc_stiefel.engine.adaptation import settling
from pymc_stiefel.sampling import _sample, _threads
from tests.cluster.test_sample_chains import Inline, assert_same, compound_model, groups
from tests.sampling.runs import SETTINGS, SILENT, by_pymc, by_us, make_model

# ------------------------------------------------------------ the same draws


def test_draws_are_those_of_pymc(model, reference):
    result = by_us(model)
    assert type(result) is type(reference)
    assert_same(result, reference)
    for name, group in groups(reference).items():
        assert set(group.attrs) == set(groups(result)[name].attrs)
        assert list(group.coords) == list(groups(result)[name].coords)


OPTIONS = {
    "tuning draws and warnings": {"discard_tuned_samples": False, "nuts": {"step_size": 3.0, "max_treedepth": 2}},
    "no tuning": {"tune": 0, "chains": 2},
    "options": {"target_accept": 0.95, "var_names": ["loadings"], "chains": 2},
    "starts": {"initvals": {"Q": np.eye(8, 2)}, "chains": 2},
    "transformed": {"idata_kwargs": {"include_transformed": True}, "chains": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(model, options):
    expected, result = (sample(model, keep_warning_stat=True, **options) for sample in (by_pymc, by_us))
    for name in [name for name, group in groups(expected).items() if "warning" in group]:
        one, other = (list(map(repr, groups(each)[name]["warning"].values.ravel())) for each in (expected, result))
        assert one == other
    assert_same(by_us(model, **options), by_pymc(model, **options))
    if "nuts" in options:  # there is something to compare
        assert groups(result)["sample_stats"]["diverging"].any()
        assert groups(result)["warmup_sample_stats"]["diverging"].any()


def test_given_step(model):
    with model:
        step = pst.OrthogonalHMC(n_steps=3)
    assert_same(by_us(model, step=step, chains=2), by_pymc(model, step=step, chains=2))


def test_starts_of_other_callers(model):
    options = {"initvals": {"Q": np.eye(8, 2)}, "chains": 2}
    result = pst.sample_chains(model=model, executor=Inline(), **(SETTINGS | SILENT | options))
    assert_same(result, by_pymc(model, **options))


def test_threads_do_not_share_memory(model):
    """Many short batches, so that threads take turns often; once with as many threads as chains."""
    expected = by_us(model, cores=1, chains=6)
    for cores in [2, 3, 6] * 4:
        assert_same(by_us(model, cores=cores, chains=6), expected)


def test_row_coordinates(monkeypatch):
    """Neither threads nor the length of batches change a bit where coordinates are learnt from batches of draws."""
    precision = np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)])
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=12, p=2)
        pm.Potential("density", 10 * X[0, 0] - 0.5 * (precision[:, None] * X**2).sum())
    options = {"tune": 400, "chains": 3}
    expected = by_pymc(model, **options)
    for seconds in (0.0, 3e-4, 0.05):
        monkeypatch.setattr(_threads, "BATCH_SECONDS", seconds)
        assert_same(by_us(model, **options), expected)


def test_generators_and_numpy_arguments(model, reference):
    result = by_us(model, random_seed=np.random.default_rng(7), draws=np.int64(60))
    assert_same(result, reference)


# ------------------------------------------------------------ length of tuning


def test_tuning_is_as_long_as_it_takes(model, monkeypatch):
    short = by_us(model, tune=None, chains=2)
    assert groups(short)["posterior"].attrs["tuning_steps"] == _sample.FIRST_TUNE
    assert_same(short, by_pymc(model, tune=_sample.FIRST_TUNE, chains=2))
    monkeypatch.setattr(settling, "LARGEST", 0.0)  # nothing is ever settled
    monkeypatch.setattr(_sample, "MOST_TUNE", 500)
    long = by_us(model, tune=None, chains=2)
    assert groups(long)["posterior"].attrs["tuning_steps"] == 500
    assert_same(long, by_pymc(model, tune=500, chains=2))


# ------------------------------------------------------------ what is handed to pm.sample


class Twice(Op):
    """Python code, as a user may write it."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(2.0 * inputs[0])

    def pullback(self, inputs, outputs, cotangents):
        return [2.0 * cotangents[0]]

    L_op = pullback


def with_python():
    with pm.Model() as model:
        u = pst.UnitVector("u", n=3)
        pm.Potential("p", Twice()(u[0]))
    return model


@pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
@pytest.mark.parametrize("make, reason", [(compound_model, "StiefelNUTS, .*"), (with_python, "runs Python code")])
def test_models_for_pymc(make, reason, caplog):
    options = {"chains": 2, "draws": 20, "tune": 20, "random_seed": np.random.default_rng(3)}
    model = make()
    with caplog.at_level(logging.DEBUG, logger="pymc.stiefel"):
        result = by_us(model, **options, cores=1)
    assert any(record.getMessage().startswith("The model is passed to pm.sample: ") for record in caplog.records)
    assert_same(result, by_pymc(model, **(options | {"random_seed": np.random.default_rng(3)})))


def test_traces_of_other_kinds_are_for_pymc(model, monkeypatch):
    handed = {}
    monkeypatch.setattr(pm, "sample", lambda draws, **options: handed.update(options))
    by_us(model, nuts_sampler="nutpie", target_accept=0.9)
    assert handed["nuts_sampler"] == "nutpie"
    assert handed["target_accept"] == 0.9
    assert handed["tune"] == SETTINGS["tune"]


def test_arguments_are_those_of_pymc():
    theirs, ours = (list(inspect.signature(function).parameters) for function in (pm.sample, pst.sample))
    assert [name for name in ours if name in theirs] == theirs
    assert set(ours) - set(theirs) <= {"backend"}  # PyMC 6
    run_level = "model draws tune chains cores initvals random_seed progressbar quiet discard_tuned_samples"
    run_level += " keep_warning_stat var_names idata_kwargs compute_convergence_checks compile_kwargs"
    method = inspect.signature(pst.StiefelSampler.sample_from_init)
    assert list(method.parameters)[1:] == run_level.split()  # of PyMC's pull request 8358


def test_checks_look_at_what_is_identified(model, caplog):
    with caplog.at_level(logging.INFO, logger="pymc.stats.convergence"):
        by_us(model, draws=120, quiet=False, compute_convergence_checks=True)
    assert any("Q is identified up to" in record.getMessage() for record in caplog.records)


# ------------------------------------------------------------ compiled once


class Count(numba.core.event.Listener):
    """Counts compilations of numba and of PyTensor."""

    def __init__(self, monkeypatch):
        self.numba = self.pytensor = 0
        names = ["pytensor.compile.maker", "pytensor.compile.function.types"]  # PyTensor 3, PyTensor 2
        makers = [module.FunctionMaker for name in names if (module := _imported(name))]
        right = makers[0].__init__

        def init(maker, *args, **options):
            self.pytensor += 1
            right(maker, *args, **options)

        monkeypatch.setattr(makers[0], "__init__", init)

    def on_start(self, event):
        self.numba += 1

    def on_end(self, event):
        pass


def _imported(name):
    try:
        return __import__(name, fromlist=["FunctionMaker"])
    except ImportError:
        return None


def test_new_data_need_no_compilation(monkeypatch):
    model = make_model()
    count = Count(monkeypatch)
    options = {"compute_convergence_checks": True, "quiet": False}
    with numba.core.event.install_listener("numba:compile", count):
        first = by_us(model, **options)
        assert count.pytensor >= 3
        count.numba = count.pytensor = 0
        with model:
            pm.set_data({"data": np.random.default_rng(2).normal(size=(40, 8))})
        second = by_us(model, **options)
    assert (count.numba, count.pytensor) == (0, 0)
    assert not np.array_equal(groups(first)["posterior"]["Q"].values, groups(second)["posterior"]["Q"].values)
    assert_same(second, by_pymc(model))


def test_what_is_kept_follows_the_model():
    with pm.Model() as model:
        u = pst.UnitVector("u", n=3)
        values, start = model.value_vars, model.initial_point(1)
        one, other = (model_density(model, values, start) for _ in range(2))
        assert one._c_function is other._c_function
        assert one.extra is not other.extra
        pm.Potential("more", u[0])
        third = model_density(model, values, start)
    flat = third.on_manifold(third.pack(start))
    assert third(flat)[0] == pytest.approx(one(flat)[0] + flat[0])


def test_models_are_freed():
    with pm.Model() as model:
        pst.UnitVector("u", n=3)
    by_us(model, compute_convergence_checks=True, quiet=False, draws=100)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
