"""sample_chains: bad arguments, objects that cannot be pickled, packages that are missing."""

import inspect
import subprocess
import sys
import threading

import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_stiefel as pst
from pymc_stiefel.cluster import _checks
from tests.cluster.test_sample_chains import SETTINGS, normal_model, sample


@pytest.fixture(scope="module")
def model():
    return normal_model()


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"chains": 0}, ValueError, "chains must be at least 1, got 0"),
        ({"draws": 2.5}, TypeError, "draws must be an integer .*, got 2.5"),
        ({"executor": object()}, TypeError, "executor must have a method submit"),
        ({"cores": 2}, TypeError, "does not take cores=2: the engine says how many"),
        ({"nuts_sampler": "nutpie"}, ValueError, "nuts_sampler must be 'pymc', got 'nutpie'"),
        ({"var_names": ["mu", "nu"]}, ValueError, r"var_names has \['nu'\]"),
        ({"initvals": [{}]}, ValueError, "initval"),
        ({"step": pm.DEMetropolis}, SamplingError, "DEMetropolis makes chains that learn from each other"),
    ],
)
def test_bad_arguments(model, options, error, message):
    with pytest.raises(error, match=message):
        sample(model, **options)


def test_arguments_of_pm_sample_are_taken_or_refused_with_a_reason():
    taken = {*inspect.signature(pst.sample_chains).parameters, "nuts_sampler", "backend", "kwargs"}
    assert inspect.signature(pm.sample).parameters.keys() <= taken | _checks.REFUSED.keys()


def test_object_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    class Locked(Op):
        def __init__(self):
            self.guard = {"inner": lock}

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            raise NotImplementedError

    with normal_model() as model, pytest.raises(TypeError, match=r"callback -> lock cannot be pickled.*_thread\.lock"):
        sample(model, callback=lambda trace, draw: lock)
    model.notes = ["fine", lock]
    with pytest.raises(TypeError, match=r"model.notes\[1\] cannot be pickled"):
        sample(model)
    graph = 2 * Locked()(pt.scalar("x"))
    with pytest.raises(TypeError, match=r"\['y'\] -> Locked.*\.owner\.op\.guard\['inner'\] cannot be pickled"):
        _checks.pickled({"y": graph})


def test_missing_package_names_the_extra(model, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"needs zarr.*pymc-stiefel\[cluster\]"):
        sample(model, store=tmp_path / "a")
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ImportError, match=r"needs joblib.*pymc-stiefel\[cluster\]"):
        pst.sample_chains(model=model, **SETTINGS)


def test_import_is_light():
    code = (
        "import sys, numba, arviz, pymc, scipy.optimize, rich.progress, pandas, matplotlib.pyplot\n"
        "before = set(sys.modules); import pymc_stiefel\n"
        "print(sorted({'joblib', 'dask', 'distributed', 'zarr', 'ray'} & (set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_import_does_not_load_what_only_sampling_needs():
    code = (
        "import sys, pymc\n"
        "before = set(sys.modules); import pymc_stiefel\n"
        "print(sorted({'pytensor.link.numba.dispatch', 'scipy.linalg', 'scipy.special'} & (set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
