"""Bad arguments of the public functions: an error of ours that names the argument and shows the value.

One table of bad values, tried at every argument of every function in ``CALLS``. A call may also succeed, if the value
is a good one there (1.5 is a concentration, though not a number of rows). Other areas add to ``CALLS``.
"""

import re

import numpy as np
import pymc as pm
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws, normalizers

RNG = np.random.default_rng(0)
F, A, UNIT = np.eye(3, 2), np.diag([2.0, 1.0, 0.0]), np.array([0.0, 0.6, 0.8])

MASKED = np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)
BAD = {
    "None": None,
    "text": "three",
    "a truth value": True,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "zero": 0,
    "a fraction": 1.5,
    "complex": 1j,
    "a complex matrix": 1j * np.eye(3),
    "NaN in a matrix": np.full((3, 2), np.nan),
    "a matrix lying down": np.ones((2, 3)),
    "a matrix that is not symmetric": np.triu(np.ones((3, 3))),
    "an empty array": np.empty(0),
    "an empty matrix": np.empty((0, 0)),
    "three dimensions": np.ones((2, 2, 2)),
    "masked": MASKED,
    "objects": np.array([None, "x"], dtype=object),
    "a ragged list": [[1.0, 2.0], [3.0]],
    "a dictionary": {"a": 1},
    "a function": len,
    "a huge integer": 10**400,
}

# function -> good arguments by name, and those among them that may be left out
CALLS = {
    draws.haar: {"n": 3, "p": 2, "size": 2, "rng": RNG},
    draws.angular_central_gaussian: {"Sigma": np.eye(3), "p": 2, "size": 2, "rng": RNG},
    draws.von_mises_fisher: {"mu": UNIT, "kappa": 2.0, "size": 2, "rng": RNG},
    draws.matrix_langevin: {"F": F, "size": 2, "rng": RNG},
    draws.matrix_fisher: {"F": np.eye(3), "size": 2, "rng": RNG},
    draws.matrix_bingham: {"A": A, "B": [2.0, 1.0], "p": 2, "size": 2, "rng": RNG},
    draws.matrix_bingham_langevin: {"A": A, "B": [2.0, 1.0], "F": F, "size": 2, "rng": RNG},
    normalizers.log_hyp0f1: {"n": 3, "s": [1.0, 2.0]},
    normalizers.log_hyp0f1_batch: {"n": 3, "s": [[1.0, 2.0]]},
    normalizers.log_hyp0f1_vector: {"n": 3, "kappa": 2.0},
    normalizers.log_bingham: {"n": 3, "a": [1.0, 2.0, 3.0], "b": [1.0, 1.0]},
    normalizers.log_bingham_vector: {"a": [1.0, 2.0, 3.0]},
    pst.StiefelUniform.dist: {"n": 3, "p": 2, "shape": (3, 2)},
    pst.SpecialOrthogonal.dist: {"n": 3, "shape": (3, 3)},
    pst.UnitVector.dist: {"n": 3, "shape": 3},
    pst.Grassmann.dist: {"n": 3, "p": 2, "Sigma": np.eye(3)},
    pst.MatrixLangevin.dist: {"M": F, "kappa": 2.0},
    pst.MatrixFisher.dist: {"M": np.eye(3), "kappa": 2.0},
    pst.VonMisesFisher.dist: {"mu": UNIT, "kappa": 2.0},
    pst.MatrixBingham.dist: {"A": A, "B": [2.0, 1.0], "p": 2},
    pst.MatrixBinghamLangevin.dist: {"A": A, "B": [2.0, 1.0], "F": F},
    pst.MatrixAngularCentralGaussian.dist: {"Sigma": np.eye(3), "p": 2},
}
OPTIONAL = {"size", "B", "kappa", "shape", "Sigma"}  # None is good, or said to be missing by the other name


def complaint(function, good, name, value):
    """What is wrong with the reaction to ``value``, None if nothing is."""
    try:
        function(**{**good, name: value})
    except (TypeError, ValueError) as error:
        message = str(error)
        if type(error) not in (TypeError, ValueError) or not re.search(rf"\b{name}\b", message):
            return f"{type(error).__name__}: {message[:120]}"
        return None
    except Exception as error:  # anything else is what the test is about
        return f"{type(error).__name__}: {str(error)[:120]}"
    suspicious = ("text", "NaN", "infinity", "complex", "a complex matrix", "NaN in a matrix", "masked", "objects")
    return "accepted" if next(k for k, v in BAD.items() if v is value) in suspicious else None


@pytest.mark.parametrize("function", CALLS, ids=lambda f: f.__qualname__)
def test_bad_values_are_named(function):
    good = CALLS[function]
    found = {
        (name, label): reaction
        for name in good
        for label, value in BAD.items()
        if not (value is None and name in OPTIONAL) and (reaction := complaint(function, good, name, value))
    }
    assert not found


def test_rules_can_fail():
    """The control: a function without checks, and one whose error names nothing, are found."""

    def silent(x):
        return x

    def vague(x):
        raise ValueError("bad input")

    for function in (silent, vague):
        assert complaint(function, {"x": 1.0}, "x", BAD["NaN"])


@pytest.mark.parametrize(
    ("initval", "words"),
    [
        (np.tile(np.eye(4, 2), (3, 1, 1)), r"variable's shape \(4, 2\), got \(3, 4, 2\)"),
        (np.full((4, 2), np.nan), "initval of X must be finite, got nan"),
        ("nonsense", "nonsense"),
    ],
)
def test_initval(initval, words):
    with pm.Model() as model, pytest.raises((ValueError, NotImplementedError), match=words):
        pst.StiefelUniform("X", n=4, p=2, initval=initval)
        model.initial_point()
