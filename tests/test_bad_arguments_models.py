"""Bad values for the arguments of what reads a model: steps, optimisation, factor models, checks, SMC, clusters.

The rule and the kinds of bad values are those of ``test_bad_arguments_analysis``.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_stiefel as pst
from tests.test_bad_arguments_analysis import BAD, DATA, INF, MASKED, NAN, OBJECTS, outcome

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(12, 4))
ROWS[3, 1] = NAN
NEW = ROWS[:2].copy()
NEW[:, 0] = NAN
FACTORS = pst.factor_model(ROWS, 2)
with pm.Model(coords={"axis": range(3)}) as DIRECTIONS:
    pst.UnitVector("u", n=3, dims="axis")


def trace(model, chains=2, draws=4):
    """Draws from the prior, as a posterior."""
    names = [rv.name for rv in model.free_RVs] + [d.name for d in model.deterministics]
    values = pm.draw([model[name] for name in names], chains * draws, random_seed=1)
    fields = {
        name: (("chain", "draw", *model.named_vars_to_dims.get(name, ())), v.reshape(chains, draws, *v.shape[1:]))
        for name, v in zip(names, values, strict=True)
    }
    stats = xr.Dataset({"energy": (("chain", "draw"), RNG.normal(size=(chains, draws)))})
    return xr.DataTree.from_dict({"posterior": xr.Dataset(fields), "sample_stats": stats})


POSTERIOR, DRAWN = trace(FACTORS), trace(DIRECTIONS)
LOADINGS = {"mu": np.zeros(4), "cov_factor": np.eye(4, 2), "cov_diag": 1.0}
SCORES = xr.Dataset({"scores": (("chain", "draw", "row", "factor"), RNG.normal(size=(2, 4, 12, 2)))})
RANKS = pd.DataFrame({"log_marginal": [1.0, 2.0], "error": [0.1, 0.1], "probability": [0.2, 0.8]}, index=[1, 2])

HALF = pm.HalfNormal.dist(1.0)
KINDS = BAD | {
    "model": [3, 2.5, "m", [1], np.eye(2), *OBJECTS],
    "trace": [None, 3, "U", [], np.eye(3), *OBJECTS],
    "table": [None, 3, "a", [1, 2], [["a", "b"]], np.ones((2, 2, 2)), np.array([[1j, 2]]), *OBJECTS],
    "quantities": [None, 3, "U", [], np.eye(3), DATA, DATA["s"].values[:, :3], DATA["s"] * 1j, *OBJECTS],
    "given": [None, "a", [["a"] * 4], np.ones((2, 3)), np.ones((2, 2, 4)), 1j * np.ones((2, 4)), *OBJECTS],
    "number": [NAN, INF, "1", None, np.eye(2), [1.0, NAN], MASKED, *OBJECTS],
    "seed": ["a", 2.5, -1, NAN, np.eye(2), *OBJECTS],
    "optional count": [0, -1, 2.0, 2.5, NAN, INF, "3", True, [3], np.eye(2), MASKED, *OBJECTS],
    "optional whole": [-1, 2.0, 2.5, NAN, INF, "3", True, [3], np.eye(2), MASKED, *OBJECTS],
    "whole": [-1, 2.0, 2.5, NAN, INF, "3", None, True, [3], np.eye(2), MASKED, *OBJECTS],
    "optional positive": [0.0, -1, NAN, INF, -INF, "1", [1.0, -1.0], np.array([1.0, NAN]), MASKED, *OBJECTS],
    "positive number": [0.0, -1, NAN, INF, -INF, "1", None, [1.0], np.eye(2), MASKED, *OBJECTS],
    "fraction": [-0.1, 1.5, NAN, INF, "a", None, [0.5], np.eye(2), MASKED, *OBJECTS],
    "mapping": [3, 2.5, "u", [1], True, np.eye(2), object(), 1j, b"bytes", {"no_such": 1.0}, {3: 1.0}],
    "settings": [3, 2.5, "u", [1], True, np.eye(2), object(), 1j, b"bytes"],
    "degrees": [0, -1, NAN, INF, "5", 1.0, [5.0, NAN], MASKED, *OBJECTS],
    "superchains": [None, 0, -1, 2.5, NAN, "2", 3, [1], [0, 0, 1], np.eye(2), *OBJECTS],
    "pair": [None, 3, "01", (0,), (0, 5), (0, 1, 2), (0.5, 1), (-3, 0), np.eye(2), *OBJECTS],
    "optional distribution": ["magic", 3, NAN, pm.Normal.dist(), np.eye(2), *OBJECTS],
    "models": [None, 3, "a", [1], {}, {1: 3}, {1: "model"}, np.eye(2), *OBJECTS[:1], *OBJECTS[2:]],
    "ranks": [None, 3, "a", [1], np.eye(2), pd.DataFrame({"a": [1]}), RANKS.iloc[:0], *OBJECTS],
    "location": [NAN, "a", [1, 2], np.eye(2), MASKED, *OBJECTS],
    "loadings": [3, "no_such", [1], np.eye(5), *OBJECTS],
    "colors": [3.5, "green", [1, 2], np.eye(2), *OBJECTS],
    "vars": [3, 2.5, "u", ["u"], [3], np.eye(2), *OBJECTS],
    "point": [3, "u", [1], np.eye(2), object(), 1j, {"no_such": 1.0}, {"u_sphere__": np.ones((2, 3))}],
    "flag or None": [0, 1, "yes", [True], np.eye(2), *OBJECTS],
    "temperature": [-1, NAN, INF, "a", None, [1.0], np.eye(2), *OBJECTS],
    "function": [3, "a", [1], np.eye(2), *OBJECTS],
    "var_names": [3, "u", ["no_such"], [3], np.eye(2), *OBJECTS],
    "starts": [3, "a", [1], [{}, {}], np.eye(2), {"no_such": 1.0}, *OBJECTS],
    "progressbar": [3, 2.5, None, [True], np.eye(2), *OBJECTS],
    "var": [3, 2.5, "no_such", ["y"], True, np.eye(2), *OBJECTS],
}  # fmt: skip
LATER = {"model": "model", "var": "var", "kind": "choice", "group": "string", "data": "trace", "random_seed": "seed"}
STEP = {
    "step_size": "optional positive", "n_steps": "optional count", "path_length": "optional positive",
    "jitter": "fraction", "target_accept": "probability", "max_treedepth": "count", "adapt_step_size": "optional flag",
    "adapt_metric": "flag", "adapt_rows": "flag", "reflect": "optional flag",
    "compile_kwargs": "settings", "vars": "vars", "model": "model", "blocked": "flag or None", "rng": "seed",
    "initial_point": "point",
}  # fmt: skip
TABLE = [
    (pst.LowRankMvNormal.dist, LOADINGS, {"mu": "number", "cov_factor": "any matrix", "cov_diag": "number"}),
    (pst.factor_model, {"data": ROWS, "rank": 2},
     {"data": "table", "rank": "count", "noise": "choice", "mean": "flag", "scale_prior": "optional distribution",
      "noise_prior": "optional distribution", "scale": "optional positive", "name": "string",
      "location": "location"}),
    (pst.factor_scores, {"data": POSTERIOR, "model": FACTORS}, LATER),
    (pst.impute, {"data": POSTERIOR, "model": FACTORS}, LATER),
    (pst.condition, {"data": POSTERIOR, "given": NEW, "model": FACTORS}, LATER | {"given": "given"}),
    (pst.check, {"idata": DRAWN, "model": DIRECTIONS, "search": False},
     {"idata": "trace", "model": "model", "target_accept": "probability", "search": "flag"}),
    (pst.plot_energy, {"data": DRAWN}, {"data": "trace", "group": "string", "ax": "axes"}),
    (pst.plot_scores, {"data": SCORES},
     {"data": "trace", "var": "var", "factors": "pair", "prob": "probability", "max_features": "count",
      "group": "string", "ax": "axes", "loadings": "loadings", "colors": "colors"}),
    (pst.plot_ranks, {"table": RANKS}, {"table": "ranks"}),
    (pst.nested_rhat, {"quantities": DATA["s"], "superchains": [0, 1]},
     {"quantities": "quantities", "superchains": "superchains"}),
    (pst.eigen_spd, {"name": "S", "n": 4}, {"nu": "degrees"}),
    (pst.orthogonal_columns, {"name": "X", "n": 5, "p": 2, "prior": "normal"},
     {"prior": "choice", "sigma": "positive"}),
    (pst.PolynomialDecay, {"initial": 0.1},
     {"initial": "positive number", "power": "positive number", "after": "positive number"}),
    (pst.CyclicalSchedule, {"largest": 0.1, "length": 10},
     {"largest": "positive number", "length": "count", "exploration": "fraction", "temperature_after": "temperature"}),
    (pst.StiefelSampler, {},
     {"callback": "function", "blas_cores": "optional count", "return_inferencedata": "flag"}),
    (pst.transforms.HouseholderTransform, {"n": 4, "p": 2},
     {"n": "optional count", "p": "optional count", "vector": "flag"}),
]  # fmt: skip
COMPILED = [  # good arguments compile something: what is tried has to be refused before
    (pst.StiefelNUTS, {"model": DIRECTIONS}, STEP),
    (pst.OrthogonalHMC, {"model": DIRECTIONS}, STEP),
    (pst.GeodesicHMC, {"model": DIRECTIONS}, STEP),
    (pst.OrthogonalSGHMC, {"model": DIRECTIONS, "step_size": 0.1},
     {"step_size": "positive number", "friction": "fraction", "noise_estimate": "fraction", "n_steps": "count",
      "scheme": "choice", "resample": "flag", "scales": "mapping", "compile_kwargs": "settings", "vars": "vars",
      "model": "model", "blocked": "flag or None", "rng": "seed", "initial_point": "point",
      "temperature": "temperature"}),
    (pst.ManifoldSMC, {"model": DIRECTIONS},
     {"draws": "count", "threshold": "probability", "correlation_threshold": "probability", "max_moves": "count",
      "target_accept": "probability", "max_treedepth": "count", "model": "model", "start": "mapping",
      "random_seed": "seed", "compile_kwargs": "settings"}),
    (pst.find_MAP, {"model": DIRECTIONS, "progressbar": False},
     {"start": "mapping", "method": "choice", "return_raw": "flag", "include_transformed": "flag", "maxeval": "count",
      "gtol": "positive number", "seed": "seed", "model": "model", "vars": "vars", "progressbar": "progressbar",
      "compile_kwargs": "settings"}),
    (pst.initial_points, {"model": DIRECTIONS},
     {"model": "model", "chains": "count", "tries": "count", "agree": "count", "keep": "choice",
      "random_seed": "seed", "compile_kwargs": "settings"}),
    (pst.minimize_stochastic, {"model": DIRECTIONS, "progressbar": False},
     {"model": "model", "epochs": "count", "step_size": "optional positive", "friction": "fraction",
      "schedule": "choice", "steps_per_epoch": "optional count", "scales": "mapping", "start": "mapping",
      "random_seed": "seed", "vars": "vars", "callback": "function", "progressbar": "progressbar",
      "compile_kwargs": "settings"}),
    (pst.sample, {"model": DIRECTIONS, "draws": 2, "chains": 1, "cores": 1},
     {"draws": "count", "tune": "optional whole", "chains": "optional count", "cores": "optional count",
      "random_seed": "seed", "progressbar": "progressbar", "quiet": "flag", "var_names": "var_names",
      "initvals": "starts", "discard_tuned_samples": "flag", "compute_convergence_checks": "flag",
      "keep_warning_stat": "flag", "return_inferencedata": "flag", "idata_kwargs": "settings",
      "callback": "function", "blas_cores": "optional count", "model": "model", "compile_kwargs": "settings"}),
    (pst.sample_chains, {"model": DIRECTIONS, "draws": 2, "chains": 1},
     {"draws": "count", "tune": "optional whole", "chains": "count", "random_seed": "seed", "model": "model",
      "retries": "whole", "quiet": "flag", "discard_tuned_samples": "flag", "compute_convergence_checks": "flag",
      "keep_warning_stat": "flag", "var_names": "var_names", "initvals": "starts", "callback": "function",
      "idata_kwargs": "settings", "compile_kwargs": "settings"}),
    (pst.compare_ranks, {"models": {1: DIRECTIONS}, "draws": 50},
     {"models": "models", "draws": "count", "chains": "count", "random_seed": "seed"}),
    (pst.log_marginal_likelihood, {"idata": DRAWN}, {"idata": "trace"}),
]  # fmt: skip


def test_good_arguments_are_good():
    for function, good, _ in TABLE:
        assert outcome(function, good, "nothing") == "no error", function


@pytest.mark.parametrize("part", [TABLE, COMPILED], ids=["cheap", "compiled"])
def test_every_bad_value_is_named(part):
    tried, missed = 0, []
    for function, good, kinds in part:
        for name, kind in kinds.items():
            for value in KINDS[kind]:
                problem = outcome(function, good | {name: value}, name)
                tried += 1
                if problem is not None:
                    missed.append(f"{function.__qualname__}({name}={value!r:.60}): {problem:.160}")
    assert tried > 400
    assert len(missed) <= tried / 100, f"{len(missed)} of {tried}:\n" + "\n".join(missed)
