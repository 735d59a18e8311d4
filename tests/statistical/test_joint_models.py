"""Rungs 7 and 8: calibration of a joint model, Geweke's test through pm.sample, one posterior by several samplers."""

import itertools

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel.compile._density import ModelDensity
from pymc_stiefel.engine.integrator import LEAPFROG, TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests.statistical import ppca
from tests.statistical.ladder import score_of_pvalue, z_scores

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore")]

ROWS = 15
RANKS = 64  # ranks 0 .. 63 from 63 thinned draws
BINS = 16
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "return_inferencedata": False}


# ---------------------------------------------------------------- simulation-based calibration


def calibration_model(normalised):
    with pm.Model() as model:
        ppca.declare(pm.Data("S", np.eye(ppca.N)), ROWS, normalised=normalised)
    return model


def unpack(density, flat):
    """Parameters by name from flat draws of the engine."""
    parts = {slot.value.name: flat[:, slot.start : slot.start + slot.size] for slot in density.slots}
    U = parts["U_polar__"].reshape(-1, ppca.P, ppca.N).swapaxes(1, 2)
    kappa, noise = np.exp(parts["kappa_log__"][:, 0]), np.exp(parts["noise_log__"][:, 0])
    return {"U": U, "kappa": kappa, "scale": np.exp(parts["scale_log__"]), "noise": noise}


def posterior_ranks(model, density, drift, replication, thin=6):
    """Rank of each statistic of a prior draw among its posterior draws given data simulated from it."""
    rng = np.random.default_rng([11, replication])
    truth = ppca.draw_prior(rng)
    y = ppca.draw_data(truth["U"], truth["scale"], truth["noise"], ROWS, rng)
    pm.set_data({"S": y.T @ y}, model=model)
    density.refresh()
    settings = Settings(drift=drift, stages=TWO_STAGE if drift == "splitting" else LEAPFROG)
    sampler = Sampler(density.layout, density.address, settings, rng, density.extra)
    q = np.concatenate([np.eye(ppca.N, ppca.P).T.ravel(), np.zeros(density.layout.size - density.layout.stiefel)])
    kept = np.empty((RANKS - 1, q.size))
    for k in range(-240, thin * (RANKS - 1)):
        sampler.chain.tune = k < -30
        q = sampler.draw(q).copy()
        if k >= 0 and k % thin == 0:
            kept[k // thin] = q
    values = ppca.statistics(**unpack(density, kept))
    true_values = ppca.statistics(**{name: np.asarray(value)[None] for name, value in truth.items()})
    return np.sum(values < true_values, axis=0)


def calibration_scores(drift, replications, normalised=True):
    """|z| of the chi-square test of uniform ranks, one for each statistic."""
    model = calibration_model(normalised)
    with model:
        density = ModelDensity(model, model.continuous_value_vars, model.initial_point())
    ranks = np.array([posterior_ranks(model, density, drift, k) for k in range(replications)])
    counts = [np.bincount(column * BINS // RANKS, minlength=BINS) for column in ranks.T]
    return np.array([score_of_pvalue(stats.chisquare(count).pvalue) for count in counts])


@pytest.mark.parametrize("drift", ["splitting", "cayley", "geodesic"])
def test_simulation_based_calibration(drift, book, full):
    if not full and drift != "splitting":
        pytest.skip("in the full ladder")
    replications = 240 if full and drift == "splitting" else 200
    scores = calibration_scores(drift, replications)
    book.check(7, f"{drift}, no-U-turn, adaptive", f"calibration of PPCA, {replications} replications", scores)


def test_calibration_catches_a_missing_normaliser(book):
    scores = calibration_scores("splitting", 100, normalised=False)
    book.caught(7, "concentration learnt without the normaliser", "calibration of PPCA, 100 replications", scores)


# ---------------------------------------------------------------- Geweke's joint distribution test

STEPS = {"StiefelNUTS": pst.StiefelNUTS, "OrthogonalHMC": pst.OrthogonalHMC, "GeodesicHMC": pst.GeodesicHMC}
GEWEKE_ROWS = 3


def geweke_scores(make_step, draws, normalised=True):
    """Alternate parameters given data (the step) and data given parameters, in one call of pm.sample.

    The data are a variable of the model with a step of their own, so the parameters must follow their prior.
    """
    with pm.Model():
        y = pm.Flat("y", shape=(GEWEKE_ROWS, ppca.N), initval=np.ones((GEWEKE_ROWS, ppca.N)))
        parameters = ppca.declare(y.T @ y, GEWEKE_ROWS, normalised=normalised)
        steps = [make_step(list(parameters)), ppca.ForwardData([y], rows=GEWEKE_ROWS)]
        trace = pm.sample(draws, tune=1000, chains=1, step=steps, random_seed=12, **QUIET)
    values = ppca.statistics(*(trace.get_values(name) for name in ("U", "kappa", "scale", "noise")))
    data = np.log((trace.get_values("y") ** 2).mean(axis=(1, 2)))
    rng = np.random.default_rng(13)
    prior = [ppca.draw_prior(rng) for _ in range(20_000)]
    stacked = {name: np.array([one[name] for one in prior]) for name in prior[0]}
    simulated = np.array(
        [np.log(np.mean(ppca.draw_data(rows=GEWEKE_ROWS, rng=rng, **_data_part(one)) ** 2)) for one in prior]
    )
    reference = np.column_stack([ppca.statistics(**stacked), simulated])
    error = reference.std(axis=0) / np.sqrt(len(reference))
    return z_scores(np.column_stack([values, data]), reference.mean(axis=0), error)


def _data_part(parameters):
    return {name: parameters[name] for name in ("U", "scale", "noise")}


@pytest.mark.parametrize("name", STEPS)
def test_geweke(name, book, full):
    if not full and name != "StiefelNUTS":
        pytest.skip("in the full ladder")
    scores = geweke_scores(STEPS[name], 10_000 if full else 4000)
    book.check(7, f"{name} in pm.sample", "Geweke's joint test of PPCA", scores)


def test_geweke_catches_a_missing_normaliser(book):
    scores = geweke_scores(pst.StiefelNUTS, 4000, normalised=False)
    book.caught(7, "concentration learnt without the normaliser", "Geweke's joint test of PPCA", scores)


# ---------------------------------------------------------------- one posterior, several samplers


def test_same_posterior_several_ways(book, full):
    """All pairs of samplers, all invariants."""
    rng = np.random.default_rng(14)
    truth = ppca.draw_prior(rng)
    y = ppca.draw_data(truth["U"], truth["scale"], truth["noise"], 40, rng)
    with pm.Model():
        ppca.declare(y.T @ y, 40)
        makers = STEPS | {"pm.NUTS, polar expansion": pm.NUTS}
        means, errors = {}, {}
        for name, maker in makers.items():
            trace = pm.sample(
                4000 if full else 1500, tune=1000, chains=1, step=maker(target_accept=0.9), random_seed=15, **QUIET
            )
            values = ppca.statistics(*(trace.get_values(name) for name in ("U", "kappa", "scale", "noise")))
            batches = values[len(values) % 50 :].reshape(50, -1, values.shape[1]).mean(axis=1)
            means[name], errors[name] = batches.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(50)
    for one, two in itertools.combinations(makers, 2):
        z = (means[one] - means[two]) / np.hypot(errors[one], errors[two])
        book.check(8, f"{one} against {two}", "posterior of PPCA", z)
