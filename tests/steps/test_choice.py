"""Which variables the step methods take, and which steps PyMC chooses beside them."""

import json
import subprocess
import sys

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence

import pymc_stiefel as pst
from tests import ROOT
from tests.steps.chains import QUIET, draw


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


PLAIN = """
import hashlib, json, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, pymc as pm, pytensor
if sys.argv[1] == "with":
    import pymc_stiefel
warnings.resetwarnings()
warnings.simplefilter("always")
data = np.random.default_rng(0).normal(size=(20, 2))

def hierarchy():
    scale = pm.HalfNormal("scale", 1)
    mu = pm.Normal("mu", 0, scale, shape=2)
    pm.Normal("y", mu, 1, observed=data)

def mixture():
    p = pm.Dirichlet("p", np.ones(3))
    z = pm.Categorical("z", p, shape=4)
    flag = pm.Bernoulli("flag", 0.5)
    pm.Poisson("count", 3)
    pm.Normal("y", pm.math.stack([z[0], flag]), 1, observed=data)

def gradient_free():
    x = pm.Normal("x", shape=2)
    pm.Normal("y", x, 1, observed=data)
    return pm.DEMetropolisZ()

pytensor.config.numba__fastmath = False  # with it fresh code differs from the same code in the cache
report, default = {}, pytensor.config.mode
for build in (hierarchy, mixture, gradient_free):
    pytensor.config.mode = default if build is hierarchy else "FAST_COMPILE"  # to save time
    for context in (True, False):
        with warnings.catch_warnings(record=True) as caught, pm.Model() as model:
            step = build()
        options = dict(chains=1, cores=1, tune=40, random_seed=3, progressbar=False, step=step)
        options |= dict(return_inferencedata=False, compute_convergence_checks=False)
        with warnings.catch_warnings(record=True) as more:
            if context:
                with model:
                    trace = pm.sample(30, **options)
            else:
                trace = pm.sample(30, model=model, **options)
        provided, chosen = pm.sampling.mcmc.assign_step_methods(model)
        digest = hashlib.sha256(b"".join(np.asarray(trace[name]).tobytes() for name in sorted(trace.varnames)))
        report[f"{build.__name__} {context}"] = [
            sorted(f"{kind.__name__}: {[v.name for v in values]}" for kind, values in chosen.items()),
            digest.hexdigest(),
            sorted(str(w.message) for w in (*caught, *more)),
        ]
print(json.dumps(report))
"""


def test_plain_models_are_sampled_as_without_this_package(tmp_path):
    reports = []
    for word in ("without", "with"):
        command = [sys.executable, "-c", PLAIN, word]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
        reports.append(json.loads(run.stdout.splitlines()[-1]))
    without, imported = reports
    assert len(imported) == 6
    for name, found in imported.items():
        assert found == without[name]


def test_where_the_model_is_not_found_pymc_chooses(monkeypatch):
    """As in a version of PyMC with other names inside."""
    with pm.Model() as model:
        x = pm.Normal("x")
    with pm.Model() as ours:
        u = pst.UnitVector("u", n=3)
    assert pst.StiefelNUTS._competence(x, True) == pst.StiefelNUTS._competence(u, True) == [Competence.INCOMPATIBLE]
    monkeypatch.setattr("pymc_stiefel._compat.MCMC", "another name")
    for each in (model, ours):
        _, steps = pm.sampling.mcmc.assign_step_methods(each)
        assert list(steps) == [pm.NUTS]


def test_the_rest_of_a_model_gets_its_step_without_a_warning(recwarn):
    with pm.Model() as model:
        U = pst.StiefelUniform("U", n=4, p=2)
        V = pst.UnitVector("V", n=3)
        scale = pm.HalfNormal("scale", 1)
        pm.Normal("y", scale * U[:, 0] + V[0], 1, observed=np.ones(4))
        step = pst.StiefelNUTS(vars=[U])
        both = pst.StiefelNUTS(vars=[U, V])
    _, steps = pm.sampling.mcmc.assign_step_methods(model, step)
    assert {kind.__name__: [value.name for value in values] for kind, values in steps.items()} == {
        "StiefelNUTS": ["V_sphere__", "scale_log__"]
    }
    _, steps = pm.sampling.mcmc.assign_step_methods(model, both)
    assert list(steps) == [pm.NUTS]
    idata = draw(model, 5, 5, step=both)
    assert idata["posterior"]["scale"].shape == (1, 5)
    assert not [warning for warning in recwarn if "no orthonormal variable" in str(warning.message)]
