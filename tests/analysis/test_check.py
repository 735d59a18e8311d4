"""Convergence checks see what they should and nothing else: draws of known laws, whole and spoilt."""

import logging

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.stats.convergence import WarningType

import pymc_stiefel as pst
from pymc_stiefel import draws as exact
from pymc_stiefel import geometry
from pymc_stiefel.analysis import _check
from tests.matrices import rotations, signed_permutations

CHAINS, DRAWS = 4, 400


def trace(stats=None, **variables):
    """A trace as ``pm.sample`` gives it, of draws (chain, draw, ...)."""
    dataset = xr.Dataset(
        {name: (("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 2))), v) for name, v in variables.items()},
        coords={"chain": np.arange(CHAINS), "draw": np.arange(DRAWS)},
    )
    groups = {"posterior": dataset}
    if stats is not None:
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), v) for name, v in stats.items()}, dataset.coords)
    return az.InferenceData(**groups) if az.__version__.startswith("0.") else xr.DataTree.from_dict(groups)


def langevin(rng, n, p, strength=200.0):
    mode = geometry.polar(rng.normal(size=(n, p)))
    return mode, exact.matrix_langevin(strength * mode, size=(CHAINS, DRAWS), rng=rng)


def messages(caplog, call):
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="pymc.stats.convergence"):
        found = call()
    assert {warning.message for warning in found} <= set(caplog.messages)  # each is logged
    return found, [text for text in caplog.messages if text not in {warning.message for warning in found}]


def identified(model, orthonormal, draws, *spoilt):
    """The line about invariances, and the warnings about R-hat and ESS for each set of draws; one compilation."""
    orbits = _check.Tested(model, draws).orbits()
    return [str(orbit) for orbit in orbits], *(_check._identified(one, orbits, orthonormal) for one in (draws, *spoilt))


def of_each_chain(group):
    """One element of a group for each chain, as chains that never leave their copy of a mode have it."""
    return np.repeat(group, DRAWS, axis=1)


def test_what_is_identified_has_its_own_R_hat(caplog):
    rng = np.random.default_rng(1)
    mode, X = langevin(rng, 5, 2)
    with pm.Model() as model:
        pst.MatrixLangevin("X", F=200 * mode)
    found, notes = messages(caplog, lambda: pst.check(trace(X=X), model))
    assert found == [] and notes == []
    X[1] = X[1] * [1, -1]  # here signs matter: a chain with another one is in another place
    found, notes = messages(caplog, lambda: pst.check(trace(X=X), model, search=False))
    assert [w.kind for w in found] == [WarningType.CONVERGENCE] * 2 and notes == []
    assert found[0].message.startswith("The rhat statistic is larger than 1.01") and found[0].level == "info"
    assert "of X" in found[0].message and found[1].level == "error"


GROUPS = {
    "column signs": lambda rng: of_each_chain(np.eye(2) * rng.choice([-1.0, 1.0], (CHAINS, 1, 1, 2))),
    "signs and order of its columns": lambda rng: of_each_chain(signed_permutations(rng, (CHAINS, 1), 2)),
    "rotations of its columns": lambda rng: of_each_chain(rotations(rng, (CHAINS, 1), 2)),
}


@pytest.mark.parametrize("group", GROUPS)
def test_invariances_are_found_with_their_companions(group):
    """Chains in copies of one mode are well; a chain whose companions have not moved with it is not."""
    rng = np.random.default_rng(2)
    _, X = langevin(rng, 6, 2)
    scores = np.array([[2.0, 1.0]] * 3) + 0.1 * rng.normal(size=(CHAINS, DRAWS, 3, 2))
    scales = np.array([3.0, 1.5]) * np.exp(0.05 * rng.normal(size=(CHAINS, DRAWS, 2)))
    with pm.Model() as model:
        U = pst.StiefelUniform("U", n=6, p=2)
        z = pm.Normal("z", 0, 1, shape=(3, 2))
        s = pm.HalfNormal("s", 3, shape=2)
        pm.Normal("other", 0, 1, shape=2)  # has as many entries as there are columns, but does not go with them
        if group == "column signs":
            pm.Potential("labels", pt.log(s[0]))  # the scales are not exchangeable
        weights = 1.0 if group == "rotations of its columns" else s
        pm.Normal("y", (z * weights) @ U.T, 1.0, observed=np.ones((3, 6)))
    R = GROUPS[group](rng)
    moved = {
        "U": X @ R,
        "z": scores @ R,
        "s": scales if group == "rotations of its columns" else (scales[..., None, :] @ np.abs(R))[..., 0, :],
        "other": rng.normal(size=(CHAINS, DRAWS, 2)),
    }
    notes, found, control = identified(model, {"U"}, moved, moved | {"z": scores})
    companions = "z, s" if group == "signs and order of its columns" else "z"
    assert notes == [f"U is identified up to {group} (together with {companions})"]
    assert found == [] and "of z" in control[0].message


def test_components_of_a_mixture_may_be_exchanged():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(10, 3))
    with pm.Model() as model:
        mu = pst.UnitVector("mu", n=3, shape=(2, 3))
        w = pm.Dirichlet("w", np.ones(2))
        pm.Potential("mixture", pm.math.logsumexp(pt.log(w) + 5.0 * (data @ mu.T), axis=1).sum())
    x = np.stack(
        [exact.von_mises_fisher([0, 0, k], kappa=200.0, size=(CHAINS, DRAWS), rng=rng) for k in (1.0, -1.0)], 2
    )
    weights = rng.dirichlet([60, 30], size=(CHAINS, DRAWS))
    y, exchanged = x.copy(), weights.copy()
    y[1], exchanged[1] = x[1, :, ::-1], weights[1, :, ::-1]
    notes, found, control = identified(model, {"mu"}, {"mu": y, "w": exchanged}, {"mu": y, "w": weights})
    assert notes == ["mu is identified up to the order of its vectors (together with w)"]
    assert found == [] and "of w" in control[0].message


def test_hierarchies_move_in_common():
    """Signs of a population mean and of all its members: one group element for all of them."""
    rng = np.random.default_rng(4)
    mode, M = langevin(rng, 5, 2, 400.0)
    X = exact.matrix_langevin(400.0 * mode, size=(CHAINS, DRAWS, 3), rng=rng)
    with pm.Model() as model:
        M_variable = pst.StiefelUniform("M", n=5, p=2)
        members = pst.StiefelUniform("X", n=5, p=2, shape=(3, 5, 2))
        pm.Potential("near", 100.0 * pt.sum(members * M_variable * np.array([1.0, 2.0])))
    signs = of_each_chain(rng.choice([-1.0, 1.0], (CHAINS, 1, 1, 2)))
    moved = {"M": M * signs, "X": X * signs[:, :, None]}
    notes, found, control = identified(model, {"M", "X"}, moved, moved | {"X": X})
    assert notes == ["M is identified up to column signs (together with X)"]
    assert found == [] and control


def two_modes():
    """On the sphere, two directions of different height: 60 nats apart."""
    with pm.Model() as model:
        x = pst.UnitVector("x", n=3)
        pm.Potential("modes", pm.math.logaddexp(100.0 * x[2], 40.0 * x[0]))
    return model


def test_a_trapped_chain_is_named(caplog):
    rng = np.random.default_rng(5)
    x = exact.von_mises_fisher([0.0, 0.0, 1.0], kappa=100.0, size=(CHAINS, DRAWS), rng=rng)
    model = two_modes()
    assert pst.check(trace(x=x), model) == []
    x[2] = exact.von_mises_fisher([1.0, 0.0, 0.0], kappa=40.0, size=DRAWS, rng=rng)
    found, _ = messages(caplog, lambda: pst.check(trace(x=x), model))
    trapped = [warning for warning in found if "trapped" in warning.message]
    assert len(trapped) == 1 and trapped[0].level == "error"
    assert trapped[0].message.startswith("Chain 2 is trapped: the mode nearest to its last draw is 60 nats below")
    assert not [w for w in pst.check(trace(x=x), model, search=False) if "trapped" in w.message]


def test_chains_that_are_all_trapped_are_named(caplog):
    """No chain knows better: a search from new starts does."""
    x = exact.von_mises_fisher([1.0, 0.0, 0.0], kappa=40.0, size=(CHAINS, DRAWS), rng=np.random.default_rng(9))
    found, _ = messages(caplog, lambda: pst.check(trace(x=x), two_modes()))
    assert [warning.message[:18] for warning in found] == [f"Chain {c} is trapped" for c in range(CHAINS)]


def test_a_rare_mode_is_found_if_the_run_was_long():
    """Four traps of different heights, and a mode that one new start in thirty reaches."""
    with pm.Model() as model:
        x = pst.UnitVector("x", n=4)
        traps = [60.0 * x[k] + 15.0 * k for k in range(4)]
        pm.Potential("modes", pm.math.logsumexp(pm.math.stack([*traps, 1000.0 * x.sum() - 1600.0])))
    x = exact.von_mises_fisher([0.0, 0.0, 0.0, 1.0], kappa=60.0, size=(CHAINS, DRAWS), rng=np.random.default_rng(9))
    short, long = ({"gradients": np.full((CHAINS, DRAWS), each)} for each in (0, 100))
    assert not [warning for warning in pst.check(trace(short, x=x), model) if "trapped" in warning.message]
    assert len([warning for warning in pst.check(trace(long, x=x), model) if "trapped" in warning.message]) == CHAINS


def test_a_spike_that_holds_nothing_raises_no_alarm():
    """A mode 14 nats higher, but three thousand times narrower in both directions, has less mass."""
    rng = np.random.default_rng(10)
    with pm.Model() as model:
        x = pst.UnitVector("x", n=3)
        pm.Potential("modes", pm.math.logaddexp(40.0 * x[0], 4e8 * (x[2] - 1) + 54.0))
    x = exact.von_mises_fisher([1.0, 0.0, 0.0], kappa=40.0, size=(CHAINS, DRAWS), rng=rng)
    x[3] = [0.0, 0.0, 1.0]
    assert not [warning for warning in pst.check(trace(x=x), model) if "trapped" in warning.message]


def test_a_density_without_a_mode_raises_no_alarm():
    """The search goes on for ever in the neck of a funnel; how far it has come in each chain says nothing."""
    rng = np.random.default_rng(6)
    with pm.Model() as model:
        pst.UnitVector("x", n=3)
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("theta", 0, tau, shape=20)
    tau = np.abs(rng.normal(size=(CHAINS, DRAWS)))
    variables = {"x": geometry.polar(rng.normal(size=(CHAINS, DRAWS, 3, 1)))[..., 0], "tau": tau}
    variables["theta"] = tau[..., None] * rng.normal(size=(CHAINS, DRAWS, 20))
    assert pst.check(trace(**variables), model) == []


def test_statistics_are_checked(caplog):
    rng = np.random.default_rng(7)
    x = exact.von_mises_fisher([0.0, 0.0, 1.0], kappa=100.0, size=(CHAINS, DRAWS), rng=rng)
    model = two_modes()
    size = (CHAINS, DRAWS)
    good = {
        "energy": rng.normal(size=size),
        "lp": -rng.gamma(1.0, size=size),
        "acceptance_rate": rng.uniform(0.7, 1.0, size),
        "diverging": np.zeros(size, bool),
        "reached_max_treedepth": np.zeros(size, bool),
        "mass_change": np.tile([[0.1], [1.9], [np.nan], [0.0]], (1, DRAWS)),
    }
    assert pst.check(trace(good, x=x), model, search=False) == []
    bad = {name: values.copy() for name, values in good.items()}
    bad["energy"][1] = np.cumsum(rng.normal(size=DRAWS))
    bad["acceptance_rate"][1], bad["diverging"][1], bad["reached_max_treedepth"][1] = 0.3, True, True
    bad["lp"][1] -= 31
    bad["mass_change"][1], bad["mass_change"][3] = np.log(12.0), np.inf
    found, _ = messages(caplog, lambda: pst.check(trace(bad, x=x), model, search=False))
    expected = [
        (WarningType.DIVERGENCES, f"There were {DRAWS} divergences after tuning"),
        (WarningType.TREEDEPTH, "Chain 1 reached the maximum tree depth"),
        (WarningType.BAD_ENERGY, "Chain 1 has an E-BFMI of 0.0"),
        (WarningType.BAD_ACCEPTANCE, "The acceptance probability does not match the target. It is 0.3 in chain 1"),
        (
            WarningType.CONVERGENCE,
            "Masses were still changing when tuning ended in chain 1 (by a factor of 12), chain",
        ),
        (WarningType.CONVERGENCE, "The mean log density of chain 1 is 31 nats below that of chain"),
    ]
    for warning, (kind, text) in zip(found, expected, strict=True):
        assert warning.kind is kind and warning.message.startswith(text)
    with pytest.raises(ValueError, match="idata has none of the variables of the model"):
        pst.check(trace(y=x), model)
    with pytest.raises(ValueError, match=r"'x' has shape \(2,\), in the model it has shape \(3,\)"):
        pst.check(trace(x=x[..., :2]), model)


def test_tuning_that_was_too_short_is_reported():
    """Noise of its own for each feature: coordinates of the rows pay, and 70 draws are too few to learn 40 of them."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(150, 2)) @ rng.normal(size=(2, 40)) + rng.normal(size=(150, 40)) * rng.uniform(0.3, 1.5, 40)
    model = pst.factor_model(y, 2, noise="feature")

    def about_masses(sample, tune):
        with model:
            idata = sample(
                10, tune=tune, chains=4, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
            )
        warnings = _check._sampler_warnings(_check._statistics(idata), 0.8)
        return [warning.message for warning in warnings if "Masses" in warning.message]

    for sample in (pm.sample, pst.sample):
        (message,) = about_masses(sample, 70)
        assert all(f"chain {c} (by a factor of" in message for c in range(4)) and "Increase" in message
        assert (
            "too short to tell" in about_masses(sample, 50)[0]
        )  # 18 draws of 2 columns say nothing about 38 directions
        assert about_masses(sample, 400) == []


def test_short_runs_and_single_chains_say_so():
    model = two_modes()
    x = exact.von_mises_fisher([0.0, 0.0, 1.0], kappa=100.0, size=(1, 20), rng=np.random.default_rng(8))
    dataset = xr.Dataset({"x": (("chain", "draw", "i"), x)})
    found = pst.check(dataset, model)
    assert [warning.message.split(",")[0] for warning in found] == [
        "The number of samples is too small to check convergence reliably.",
        "Only one chain was sampled",
    ]
