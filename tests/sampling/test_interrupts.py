"""pst.sample: callbacks, progress, interrupts and errors."""

import threading
import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pymc_stiefel as pst
from pymc_stiefel.sampling import _sample, _threads
from tests.cluster.test_sample_chains import assert_same, groups
from tests.sampling.runs import by_us

# ------------------------------------------------------------ callback, progress, interrupts


def test_callback(model, reference):
    seen = []

    def callback(trace, draw):
        assert len(trace) == draw.draw_idx + 1
        np.testing.assert_allclose(trace.get_values("scale")[draw.draw_idx], np.exp(draw.point["scale_log__"]))
        seen.append((draw.chain, draw.draw_idx, draw.tuning, draw.stats[0]["tree_size"], draw.is_last))

    assert_same(by_us(model, callback=callback), reference)
    for chain in range(4):
        mine = [each[1:] for each in seen if each[0] == chain]
        assert [each[0] for each in mine] == list(range(130))
        assert [each[1] for each in mine] == [True] * 70 + [False] * 60
        assert [each[2] for each in mine][70:] == groups(reference)["sample_stats"]["n_steps"].values[chain].tolist()
        assert [each[3] for each in mine] == [False] * 129 + [True]


def test_callback_interrupts(model, reference):
    def callback(trace, draw):
        if draw.draw_idx == 99:
            raise KeyboardInterrupt

    result = by_us(model, callback=callback, chains=4, cores=1)
    assert groups(result)["posterior"].sizes["draw"] == 30
    chain = groups(result)["posterior"].chain.values[0]
    expected = groups(reference)["posterior"]["Q"].sel(chain=chain).values[:30]
    np.testing.assert_array_equal(groups(result)["posterior"]["Q"].values[0], expected)


def test_error_of_the_callback(model):
    def callback(trace, draw):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        by_us(model, callback=callback)


def test_interrupts_keep_draws(model, monkeypatch):
    def interrupt(self, runs, tune, length):
        if all(run.done > tune for run in runs):
            raise KeyboardInterrupt

    monkeypatch.setattr(_sample.Progress, "look_at", interrupt)
    monkeypatch.setattr(_threads, "REPORT_SECONDS", 0.001)
    result = by_us(model, draws=100_000, cores=4)
    kept = groups(result)["posterior"]["Q"]
    assert kept.sizes["chain"] >= 1
    assert 0 < kept.sizes["draw"] < 100_000
    expected = groups(by_us(model))["posterior"]["Q"]
    number, short = int(kept.chain[0]), min(kept.sizes["draw"], 60)
    np.testing.assert_array_equal(kept.values[0, :short], expected.sel(chain=number).values[:short])


def test_interrupt_while_tuning(model, monkeypatch):
    def interrupt(self, runs, tune, length):
        raise KeyboardInterrupt

    monkeypatch.setattr(_sample.Progress, "look_at", interrupt)
    monkeypatch.setattr(_threads, "REPORT_SECONDS", 0.001)
    with pytest.raises(KeyboardInterrupt, match="during tuning"):
        by_us(model, tune=100_000)


@pytest.mark.parametrize("kind", [True, "combined", "split"])
def test_progress_bar(model, monkeypatch, kind):
    advanced = {}

    class Spy(_sample.Progress):
        def __enter__(self):
            def update(task_id, advance, failing, stats, is_last):
                advanced[task_id] = advanced.get(task_id, (0, False))[0] + advance, is_last

            super().__enter__()
            self._backend.update = update
            return self

    monkeypatch.setattr(_sample, "Progress", Spy)
    by_us(model, progressbar=kind, quiet=False)
    assert advanced == ({0: (4 * 130, True)} if kind == "combined" else dict.fromkeys(range(4), (130, True)))


# ------------------------------------------------------------ errors


def fail_at(monkeypatch, number, draws):
    """One chain fails after so many draws; with one thread, those after it do not begin."""
    right = _threads.ChainRun.advance

    def advance(self, until, tune, stop):
        right(self, draws if self.number == number else until, tune, stop)
        if self.number == number:
            raise MemoryError("no room")

    monkeypatch.setattr(_threads.ChainRun, "advance", advance)


def test_a_chain_that_fails_first(model, monkeypatch):
    fail_at(monkeypatch, 0, 30)
    with pytest.raises(MemoryError, match="no room") as error:
        by_us(model, cores=1)
    assert error.value.__notes__ == ["This happened in chain 0, after 30 draws."]


def test_a_chain_that_fails_later(model, monkeypatch, reference):
    fail_at(monkeypatch, 2, 100)
    with pytest.warns(UserWarning, match=r"(?s)chain 2 failed.*no room"):
        result = groups(by_us(model, cores=1))["posterior"]["Q"]
    assert sorted(result.chain.values) == [0, 1]  # two whole chains hold more than three short ones
    for number, values in zip(result.chain.values, result.values, strict=True):
        np.testing.assert_array_equal(values, groups(reference)["posterior"]["Q"].sel(chain=number).values)


def test_a_limit_on_threads(model, monkeypatch):
    """An error at once: the chains in the threads that could be started do not run to their end before it."""
    start, started, made = threading.Thread.start, [], []

    def limited(self):
        started.append(self)
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        start(self)

    advance = _threads.ChainRun.advance
    monkeypatch.setattr(
        _threads.ChainRun, "advance", lambda self, *a: (time.sleep(0.5), advance(self, *a), made.append(self.done))
    )
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread: use fewer cores"):
        by_us(model)
    assert made and not any(made)


def test_start_without_density():
    with pm.Model() as model:
        u = pst.UnitVector("u", n=3)
        pm.Potential("p", pt.log(-(u[0] ** 2)))
    with pytest.raises(SamplingError, match=r"log density is nan.*terms that are not finite: p") as error:
        by_us(model)
    assert error.value.__notes__ == ["This is the start of chain 0."]


BAD = {
    "draws": (0, "draws must be at least 1"),
    "tune": (-1, "tune must be at least 0"),
    "chains": (1.5, "chains must be"),
    "cores": (0, "cores must be at least 1"),
    "random_seed": (-1, "random_seed must not be negative"),
    "blas_cores": (0, "blas_cores must be at least 1"),
    "var_names": (["R"], "var_names has .*R"),
    "callback": (3, "callback must be a function"),
    "initvals": ([{}], "initvals must be one dictionary"),
    "progressbar": ("many", "Invalid value for `progressbar`"),
    "nonsense": (1, "nonsense"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(model, name):
    value, message = BAD[name]
    options = {name: value} | ({"quiet": False} if name == "progressbar" else {})
    with pytest.raises((TypeError, ValueError), match=message):
        by_us(model, **options)
