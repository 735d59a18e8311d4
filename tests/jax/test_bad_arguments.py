"""Bad values for the arguments of ``pst.jax``: the rule and the kinds of values of ``test_bad_arguments_models``."""

import numpy as np
import pytest

import pymc_stiefel as pst
from tests.test_bad_arguments_analysis import OBJECTS, outcome
from tests.test_bad_arguments_models import DIRECTIONS, KINDS

jnp = pytest.importorskip("jax.numpy")
pytest.importorskip("blackjax")

SGHMC = {
    "step_size": "positive number", "friction": "probability", "temperature": "temperature",
    "noise_estimate": "fraction", "seed": "integer",
}  # fmt: skip
VALUES = KINDS | {
    "integer": ["a", 2.5, None, np.nan, np.eye(2), *OBJECTS],
    "groups": [0, -1, 2.5, "2", 2, [1], np.eye(2), *OBJECTS],
    "labels": [3, [1, 2], None, ["a", "b", "c"], [0.5, 1, 2], *OBJECTS],
    "members": [3, [], None, *OBJECTS[:3]],
    "inputs": [3, None, *OBJECTS[:3]],
}
TABLE = [
    (pst.jax.sample, {"model": DIRECTIONS, "draws": 2, "tune": 2, "chains": 3},
     {"draws": "count", "tune": "whole", "chains": "count", "algorithm": "choice", "drift": "choice",
      "target_accept": "probability", "chain_method": "choice", "superchains": "groups", "random_seed": "seed",
      "initvals": "starts", "var_names": "var_names", "progressbar": "progressbar", "idata_kwargs": "settings",
      "compute_convergence_checks": "flag", "model": "model"}),
    (pst.jax.osghmc, {"step_size": 0.1}, SGHMC),
    (pst.jax.sghmc, {"step_size": 0.1}, SGHMC),
    (pst.jax.momentum, {"step_size": 0.1}, {"step_size": "positive number", "friction": "probability"}),
    (pst.jax.orthonormal_like, {"params": jnp.ones((4, 2))}, {"seed": "integer"}),
    (pst.jax.for_kernels, {"transformation": pst.jax.osghmc(0.1)}, {"transformation": "function"}),
    (pst.jax.ensemble, {"predict": lambda scale, x: scale * x, "members": [1.0], "inputs": np.eye(3),
                        "labels": [0, 1, 2]},
     {"predict": "function", "members": "members", "inputs": "inputs", "labels": "labels", "bins": "count",
      "batch_size": "count"}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_every_bad_value_is_named():
    tried, missed = 0, []
    for function, good, kinds in TABLE:
        for name, kind in kinds.items():
            for value in VALUES[kind]:
                problem = outcome(function, good | {name: value}, name)
                tried += 1
                if problem is not None:
                    missed.append(f"{function.__name__}({name}={value!r:.60}): {problem:.160}")
    assert tried > 300
    assert len(missed) <= tried / 100, f"{len(missed)} of {tried}:\n" + "\n".join(missed)
