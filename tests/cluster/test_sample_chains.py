"""Chains as tasks: the same draws as pm.sample, faults, resuming, and clear errors."""

import logging
import re
import shutil
import threading
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor

import joblib
import numba.core.event
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.exceptions import SamplingError

import pymc_stiefel as pst
from pymc_stiefel.cluster import _checks, _tasks
from pymc_stiefel.cluster._progress import ChainProgress

TIMES = ("perf_counter_diff", "perf_counter_start", "process_time_diff")
SETTINGS = {"draws": 25, "tune": 25, "chains": 4, "random_seed": 7}
SILENT = {"progressbar": False, "compute_convergence_checks": False}
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # PyMC's NUTS, early in tuning
    pytest.mark.filterwarnings("ignore:.*Function values may not be finite:RuntimeWarning"),
]


def normal_model(y=(1.0, 2.0, 4.0), scale=1.0):
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        mu = pm.Normal("mu", 0, scale, dims="group")
        pm.Normal("y", mu, 1.0, observed=np.array(y), dims="group")
    return model


def compound_model():
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=3, p=1)
        k = pm.Poisson("k", 3)
        z = pm.Normal("z", k * Q[0, 0])
        pm.Deterministic("twice", 2 * z)
        pm.Normal("y", z, observed=1.0)
    return model


def groups(idata):
    if isinstance(idata, xr.DataTree):
        return {name: node.to_dataset() for name, node in idata.children.items()}
    return {name: idata[name] for name in idata.groups()}


def assert_same(one, other, chains=slice(None)):
    """All groups, names, dims, dtypes, coordinates and values, except for the seconds that draws took."""
    one, other = groups(one), groups(other)
    assert set(one) == set(other)
    for name, dataset in one.items():
        assert set(dataset) == set(other[name])
        for key in [key for key in dataset.variables if key not in TIMES]:
            a, b = dataset[key], other[name][key]
            b = b.isel(chain=chains) if "chain" in b.dims else b
            assert (a.dims, a.dtype) == (b.dims, b.dtype), key
            np.testing.assert_array_equal(a.values, b.values, err_msg=f"{name}.{key}")


class Inline:
    """An executor that runs a task when it is submitted. ``lose`` says which submissions end with their worker."""

    def __init__(self, lose=lambda chain, place: False, interrupt_after=None):
        self.lose, self.interrupt_after, self.chains = lose, interrupt_after, []

    def submit(self, function, task):
        future = Future()
        if self.interrupt_after == len(self.chains):
            future.result = self._interrupt
            future.set_result(None)
            return future
        self.chains.append(task.number)
        if self.lose(task.number, len(self.chains) - 1):
            future.set_exception(BrokenExecutor("killed"))
        else:
            future.set_result(function(task))
        return future

    @staticmethod
    def _interrupt():
        raise KeyboardInterrupt


def pymc_sample(**options):
    with_defaults = SETTINGS | {"cores": 1, "nuts_sampler": "pymc", "quiet": True} | SILENT | options
    return pm.sample(**with_defaults)


@pytest.fixture(scope="module")
def model():
    return normal_model()


@pytest.fixture(scope="module")
def reference(model):
    with model:
        return pymc_sample()


def sample(model, executor=None, **options):
    return pst.sample_chains(model=model, executor=executor or Inline(), **(SETTINGS | SILENT | options))


# ------------------------------------------------------------ the same draws


def test_nuts_draws_are_those_of_pymc(model, reference):
    result = sample(model)
    assert type(result) is type(reference)
    assert_same(result, reference)


def test_order_and_threads_do_not_matter(model, reference):
    with ThreadPoolExecutor(2) as executor:
        assert_same(sample(model, executor), reference)
    with model, joblib.parallel_config("threading", n_jobs=2):
        assert_same(pst.sample_chains(**SETTINGS, **SILENT), reference)


def test_compound_steps_and_options():
    model = compound_model()
    options = {"var_names": ["Q", "twice"], "nuts": {"max_treedepth": 3}, "discard_tuned_samples": False}
    options |= {"initvals": [{"k": i} for i in range(4)]}
    with model:
        expected = pymc_sample(**options)
    assert_same(sample(model, **options), expected)
    assert groups(expected)["sample_stats"]["reached_max_treedepth"].any()


@pytest.mark.parametrize("as_factory", [False, True])
def test_given_steps(as_factory):
    with pm.Model() as model:
        pst.MatrixLangevin("X", F=5 * np.eye(3, 2))
        pm.Normal("z")
        expected = pymc_sample(step=pst.OrthogonalHMC(n_steps=3, step_size=0.3))

        def factory():
            return pst.OrthogonalHMC(n_steps=3, step_size=0.3)

        assert_same(sample(model, step=factory if as_factory else factory()), expected)


def test_step_without_a_record_of_its_state_is_made_anew():
    class Counting(pm.step_methods.arraystep.ArrayStepShared):
        """Forgets nothing between chains, and has no sampling state."""

        name = "counting"
        stats_dtypes_shapes = {}  # noqa: RUF012

        def __init__(self, vars, model):
            super().__init__(pm.util.get_value_vars_from_user_vars(vars, model), {})
            self.count = 0

        def astep(self, q):
            raise NotImplementedError

        def step(self, point):
            self.count += 1
            return {"x": np.array(float(self.count))}, []

        def stop_tuning(self):
            pass

    with pm.Model() as model:
        x = pm.Normal("x")
        step = Counting([x], model)
    result = sample(model, step=step, tune=0, draws=3)
    np.testing.assert_array_equal(result["posterior"]["x"], np.tile([1.0, 2.0, 3.0], (4, 1)))


# ------------------------------------------------------------ faults


def test_lost_tasks_are_run_again(model, reference, caplog):
    executor = Inline(lose=lambda chain, place: place in (1, 2, 5))
    with caplog.at_level(logging.WARNING, "pymc_stiefel"):
        assert_same(sample(model, executor), reference)
    assert executor.chains == [0, 1, 2, 3, 1, 2, 2]
    assert "a worker was lost (BrokenExecutor: killed); 2 chains are submitted again" in caplog.text


def test_chain_that_always_kills_its_worker(model, reference):
    executor = Inline(lose=lambda chain, place: chain == 2)
    with pytest.warns(UserWarning, match=r"1 of 4 chains are missing.*\n?.*chains \[2\] were lost"):
        result = sample(model, executor, retries=1)
    assert executor.chains.count(2) == 3  # the first round finished others
    assert result["posterior"].chain.values.tolist() == [0, 1, 3]
    assert_same(result, reference, chains=[0, 1, 3])


def test_all_lost(model):
    with pytest.raises(SamplingError, match=r"no chain was finished.*BrokenExecutor: killed"):
        sample(model, Inline(lose=lambda chain, place: True), retries=0)


def test_chain_that_raises_is_reported_and_others_are_kept(model, reference):
    def fail(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 30:
            raise FloatingPointError("the reactor is too hot")

    with pytest.warns(UserWarning, match=r"(?s)chain 1 failed:\nTraceback.*in fail.*the reactor is too hot"):
        result = sample(model, callback=fail)
    assert_same(result, reference, chains=[0, 2, 3])


def test_interrupt_returns_what_is_finished(model, reference):
    assert_same(sample(model, Inline(interrupt_after=2)), reference, chains=[0, 1])
    with pytest.raises(KeyboardInterrupt):
        sample(model, Inline(interrupt_after=0))


def test_worker_without_the_package_ends_the_run(model):
    class Bare(Inline):
        def submit(self, function, task):
            future = Future()
            future.set_exception(ModuleNotFoundError("No module named 'pymc_stiefel'"))
            return future

    with pytest.raises(RuntimeError, match=r"cannot load its task.*No module named 'pymc_stiefel'"):
        sample(model, Bare())


# ------------------------------------------------------------ store


def test_store_is_lazy_and_has_one_chunk_per_chain(model, reference, tmp_path):
    import zarr

    path = tmp_path / "draws.zarr"
    result = sample(model, store=path)
    assert result["posterior"]["mu"].chunks == ((1, 1, 1, 1), (25,), (3,))
    assert zarr.open_group(path)["posterior/mu"].chunks == (1, 25, 3)
    assert_same(result, reference)


def test_store_by_local_url(model, reference, tmp_path):
    assert_same(sample(model, store=f"file://{tmp_path}/draws.zarr"), reference)
    assert (tmp_path / "draws.zarr").is_dir()


def test_store_by_url_with_warmup(model, tmp_path):
    options = {"discard_tuned_samples": False, "tune": 10}
    with model:
        expected = pymc_sample(**options)
    options |= {"store": f"local://{tmp_path}/draws.zarr", "storage_options": {"auto_mkdir": True}}
    result = sample(model, **options)
    assert_same(result, expected)
    assert result["posterior"].attrs["tuning_steps"] == 10


def test_messages_are_small_with_a_store(model, tmp_path):
    sizes = []

    class Weighing(Inline):
        def submit(self, function, task):
            future = super().submit(function, task)
            sizes.append((len(_checks.pickled(task)), len(_checks.pickled(future.result()))))
            return future

    sample(model, Weighing(), store=tmp_path / "a", draws=1000)
    assert max(task for task, _ in sizes) < 3000
    assert max(message for _, message in sizes) < 500


def test_resume_runs_only_missing_chains(model, reference, tmp_path):
    first, second = Inline(interrupt_after=3), Inline()
    assert_same(sample(model, first, store=tmp_path / "a"), reference, chains=[0, 1, 2])
    assert_same(sample(model, second, store=tmp_path / "a"), reference)
    assert (first.chains, second.chains) == ([0, 1, 2], [3])


def test_another_store_at_the_same_place(model, reference, tmp_path):
    """Workers keep arrays open, but not those of an earlier call."""
    sample(model, store=tmp_path / "a", chains=2, draws=10)
    shutil.rmtree(tmp_path / "a")
    assert_same(sample(model, store=tmp_path / "a"), reference)


def test_resume_without_a_seed(model, tmp_path):
    partial = sample(model, Inline(interrupt_after=2), store=tmp_path / "a", random_seed=None)
    whole = sample(model, store=tmp_path / "a", random_seed=None)
    assert_same(partial, whole, chains=[0, 1])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"random_seed": 8}, "random_seed: 7 in the store, 8 now"),
        ({"draws": 30}, "draws: 25 in the store, 30 now"),
        ({"chains": 5}, "chains: 4 in the store, 5 now"),
        ({"model": normal_model(y=(1.0, 2.0, 5.0))}, r"data: observed_data\.y"),
        ({"model": normal_model(scale=2.0)}, "the density or the step: .* first draws"),
        ({"target_accept": 0.99, "nuts": {"early_max_treedepth": 1}}, "the density or the step: .* first draws"),
        ({"model": compound_model()}, "variables: Q missing in the store"),
    ],
)
def test_store_of_another_run_is_refused(model, tmp_path_factory, change, message):
    path = tmp_path_factory.getbasetemp() / "one.zarr"
    if not path.exists():
        sample(model, store=path)
    options = {"store": path} | change
    with pytest.raises(ValueError, match=message):
        sample(options.pop("model", model), **options)


def test_places_that_cannot_be_stores(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/draws.zarr' cannot be written"):
        sample(model, store=tmp_path / "file" / "draws.zarr")
    with pytest.raises(ValueError, match="exists and is not a zarr store"):
        sample(model, store=tmp_path / "file")
    xr.Dataset({"a": 1}).to_zarr(tmp_path / "other", consolidated=False)
    with pytest.raises(ValueError, match="was not written by sample_chains"):
        sample(model, store=tmp_path / "other")


# ------------------------------------------------------------ workers


def captured_tasks(model, **options):
    tasks = []

    class Catching(Inline):
        def submit(self, function, task):
            tasks.append(task)
            return super().submit(function, task)

    sample(model, Catching(), **options)
    return tasks


def test_second_task_does_not_compile(model):
    tasks, messages = captured_tasks(model), []

    def run():  # a thread of its own has nothing compiled
        for task in tasks[:2]:
            with numba.core.event.install_recorder("numba:compile") as compilations:
                messages.append((_tasks.run_chain(task), len(compilations.buffer)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (first, _), (second, compilations) = messages
    assert first.loading > 0 and second.loading == 0 and compilations == 0


def test_mixed_versions_are_refused(model, monkeypatch):
    here = _checks.versions()
    monkeypatch.setattr("pymc_stiefel.cluster._sample_chains.versions", lambda: here | {"numpy": "1.0"})
    with pytest.raises(RuntimeError, match=f"numpy 1.0 on the driver, {np.__version__} on the worker"):
        sample(model)


def test_progress_reports(caplog):
    with caplog.at_level(logging.INFO, "pymc_stiefel"), ChainProgress(4, 1, 50, shown=True) as progress:
        progress.begin -= 10.0
        progress.finished(divergences=2)
        progress.logged -= 60.0
        progress.finished(divergences=1)
    assert "3 of 4 chains, 10 draws/s, 3 divergences" in caplog.text


def test_progress_of_a_run(caplog):
    """Steps far too long for the prior diverge; the line counts them."""
    with caplog.at_level(logging.INFO, "pymc_stiefel"):
        result = sample(normal_model(scale=1e-6), tune=0, progressbar=True)
    divergences = int(result["sample_stats"]["diverging"].sum())
    assert divergences > 0
    assert re.search(rf"4 of 4 chains, [1-9]\d* draws/s, {divergences} divergences", caplog.text)


def test_progress_of_engines_that_return_all_at_the_end(model, monkeypatch):
    counts = []
    monkeypatch.setattr(joblib.parallel.ThreadingBackend, "supports_return_generator", False)
    monkeypatch.setattr(ChainProgress, "count", lambda self, done: counts.append(done))
    with model, joblib.parallel_config("threading", n_jobs=2):
        pst.sample_chains(**SETTINGS, **SILENT)
    assert {1, 2, 3, 4} <= set(counts[:-1])
