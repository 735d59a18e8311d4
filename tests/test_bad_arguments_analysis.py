"""Bad values for every argument of the analysis, the pictures, the building blocks and the geometry: one table.

The rule: a ValueError or TypeError of ours that names the argument. At most one in a hundred may miss it.
"""

import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_stiefel as pst
from pymc_stiefel import geometry

matplotlib.use("Agg")
rng = np.random.default_rng(0)
X = geometry.polar(rng.normal(size=(2, 8, 5, 2)))
SPACE = (("chain", "draw", "f", "k"), geometry.polar(rng.normal(size=(2, 8, 3, 2))))
DATA = xr.Dataset(
    {
        "U": (("chain", "draw", "f", "k"), X),
        "s": (("chain", "draw", "k"), rng.gamma(2, size=(2, 8, 2))),
        "noise": (("chain", "draw"), rng.gamma(2, size=(2, 8))),
    }
)
POINT, TANGENT = X[0, 0], geometry.tangent_project(X[0, 0], rng.normal(size=(5, 2)))
HALF = pm.HalfNormal.dist(1.0)
NAN, INF = np.nan, np.inf
MASKED = np.ma.masked_invalid([[1.0, NAN], [0.0, 1.0]])


def changed(array, value):
    array = np.array(array, dtype=complex if isinstance(value, complex) else float)
    array.flat[0] = value
    return array


OBJECTS = [object(), {"a": 1}, 1j, b"bytes"]
BAD = {
    "string": [None, 3, 2.5, ["U"], "", *OBJECTS],
    "optional string": [3, 2.5, ["U", "s"], True, np.eye(2), *OBJECTS],
    "name in data": ["V", "u ", 3, True, ["U", "s"], ["U", 3], np.eye(2), *OBJECTS],
    "names": ["V", 3, 2.5, ["U", "V"], ["U", 3], np.eye(2), *OBJECTS],
    "choice": ["magic", "", "Sign", 3, True, ["sign"], np.eye(2), *OBJECTS],
    "choice or distribution": ["magic", 3, NAN, pm.Normal.dist(), np.eye(2), *OBJECTS],
    "distribution": ["magic", 3, NAN, pm.Normal.dist(), np.eye(2), *OBJECTS],
    "flag": [None, 0, 1, "yes", [True], np.eye(2), *OBJECTS],
    "optional flag": [0, 1, "yes", [True], np.eye(2), *OBJECTS],
    "count": [0, -1, 2.0, 2.5, NAN, INF, "3", None, True, [3], np.eye(2), MASKED, *OBJECTS],
    "sizes": [0, -1, 2.0, NAN, "3", [2, 0], [2.5], [[1]], ["a"], np.eye(2), MASKED, *OBJECTS],
    "shape": [0, 3, (4,), (4, 0), (4, -2), (4.0, 3), "43", (4, NAN), None, np.eye(2), *OBJECTS],
    "positive": [0.0, -1, NAN, INF, -INF, "1", None, [1.0, -1.0], np.array([1.0, NAN]), MASKED, *OBJECTS],
    "time": [NAN, INF, "1", None, [1.0, 2.0], np.eye(2), MASKED, *OBJECTS],
    "probability": [0, 1, -0.1, 1.5, NAN, INF, "a", None, [0.5], np.eye(2), MASKED, *OBJECTS],
    "dims": ["f", 3, ("a",), ("f", 3), ("f", "unknown"), ("f", "k", "x", "y"), np.eye(2), *OBJECTS],
    "dim": [3, 2.5, ["k"], ("a", "b"), True, "f", np.eye(2), *OBJECTS],
    "draws": [
        None, 3, "U", [], [1, 2], np.eye(3), np.empty((2, 0, 3, 2)), changed(X, NAN), changed(X, INF), changed(X, 1j),
        2 * X, np.swapaxes(X, -1, -2), X.astype(str), np.ma.masked_less(X, -0.5), xr.DataArray(X[0]), *OBJECTS,
    ],
    "matrix": [
        None, 3, "mean ", [1, 2], np.eye(4, 2), np.eye(7, 2), changed(X[0, 0], NAN), changed(X[0, 0], INF),
        changed(X[0, 0], 1j), np.empty((0, 2)), np.ones((2, 2, 2, 2)), [[1, 2], [3]], MASKED, *OBJECTS,
    ],
    "orthonormal": [np.ones((5, 2)), 2 * POINT, POINT.T, POINT[:, 0]],
    "any matrix": [
        None, 3, "a", [1, 2], [[1, 2], [3]], np.empty((0, 2)), changed(POINT, NAN), changed(POINT, 1j), MASKED,
    ],
    "gradient": [None, 3, "a", [1, 2], np.eye(4, 2), changed(POINT, 1j), *OBJECTS],
    "tangent": [POINT, POINT.T, changed(TANGENT, NAN)],
    "c": [None, 3, [1.0], [1.0, -1.0], [1.0, NAN], ["a", "b"], np.eye(2), *OBJECTS],
    "w": [None, 3, [1.0, 1.0], -np.eye(2), np.array([[1.0, 2.0], [1.0, 1.0]]), np.full((2, 2), NAN), "a", *OBJECTS],
    "rng": [None, 3, "a", np.random, *OBJECTS],
    "companions": ["s", 3, ["s"], {"s": "turn"}, {"s": 3}, {"s": None}, {"s": ("permute", "x")}, {"t": "permute"},
                   {3: "permute"}, {"noise": "permute"}, np.eye(2), 1j],
    "view": [None, 3, (1, 2, 3), (NAN, 0), ("a", "b"), (1j, 0), np.eye(2), *OBJECTS],
    "axes": [3, "ax", [1, 2], np.eye(2), *OBJECTS],
    "kinds": ["magic", "", 3, True, [], ["raw", "magic"], np.eye(2), *OBJECTS],
}  # fmt: skip
BAD["names of dims"] = [3, 2.5, "unknown", ("k", "unknown"), ("k", 3), np.eye(2), *OBJECTS]
BAD["matrix to"] = [*BAD["matrix"], 2 * POINT, "magic"]
BAD["optional matrix"] = [value for value in BAD["matrix"] if value is not None]
BAD["X"] = [*BAD["any matrix"], *BAD["orthonormal"], *OBJECTS]
BAD["r"] = [*BAD["any matrix"], *BAD["tangent"], *OBJECTS]
BAD["Z"] = [*BAD["any matrix"], *OBJECTS]
BAD["square"] = [*BAD["Z"], np.ones((3, 2))]

READ = {"var_names": "name in data", "group": "string"}
MATRIX = READ | {"data": "draws"}
VECTORS = MATRIX | {"vectors": "flag"}
PICTURE = MATRIX | {"ax": "axes"}
TABLE = [
    # function, good arguments, kind of each argument
    (pst.align, {"data": DATA, "var_names": "U"},
     VECTORS | {"method": "choice", "reference": "optional matrix", "companions": "companions",
                "order_by": "name in data", "orthonormal": "optional flag"}),
    (pst.mean, {"data": DATA, "var_names": "U"}, VECTORS | {"kind": "choice"}),
    (pst.dispersion, {"data": DATA, "var_names": "U"}, VECTORS | {"kind": "choice"}),
    (pst.principal_angles, {"data": DATA, "var_names": "U"}, VECTORS | {"to": "matrix to"}),
    (pst.orthogonality_error, {"data": DATA, "var_names": "U"}, READ | {"vectors": "flag"}),
    (pst.summary, {"data": DATA, "var_names": "U"},
     VECTORS | {"kind": "kinds", "method": "choice", "var_names": "names"}),
    (pst.invariants, {"data": DATA, "var_names": "U"}, VECTORS | {"kind": "choice", "method": "choice"}),
    (pst.plot_columns, {"data": DATA, "var_names": "U"}, PICTURE | {"method": "choice", "prob": "probability"}),
    (pst.plot_loadings, {"data": DATA, "var_names": "U"}, PICTURE | {"method": "choice", "prob": "probability"}),
    (pst.plot_subspace, {"data": DATA, "var_names": "U"}, PICTURE | {"to": "matrix to"}),
    (pst.plot_sphere, {"data": xr.Dataset({"U": SPACE}), "var_names": "U"},
     PICTURE | {"method": "choice", "view": "view", "max_draws": "count"}),
    (pst.plot_alignment, {"data": DATA, "var_names": "U"}, PICTURE | {"method": "choice", "max_draws": "count"}),
    (pst.plot_invariants, {"data": DATA, "var_names": "U"},
     PICTURE | {"kind": "choice", "method": "choice", "max_rows": "count"}),
    (pst.low_rank, {"name": "W", "shape": (5, 4), "rank": 2},
     {"name": "string", "shape": "shape", "rank": "count", "singular_values": "choice or distribution",
      "sigma": "positive", "dims": "dims", "rank_dim": "dim"}),
    (pst.low_rank_factors, {"name": "W", "shape": (5, 4), "rank": 2},
     {"name": "string", "shape": "shape", "rank": "count", "singular_values": "choice or distribution",
      "sigma": "positive", "dims": "dims", "rank_dim": "dim"}),
    (pst.eigen_spd, {"name": "S", "n": 4},
     {"name": "string", "n": "count", "eigenvalues": "choice or distribution", "scale": "positive", "size": "sizes",
      "dims": "dims", "eigen_dim": "dim"}),
    (pst.orthogonal_columns, {"name": "X", "n": 5, "p": 2},
     {"name": "string", "n": "count", "p": "count", "scales": "distribution", "ordered": "flag", "size": "sizes",
      "dims": "dims"}),
    (pst.orthogonal_dense, {"name": "W", "n_in": 5, "n_out": 2},
     {"name": "string", "n_in": "count", "n_out": "count", "gain": "positive", "size": "sizes", "dims": "dims"}),
    (pst.orthogonal_conv, {"name": "K", "out_channels": 3, "in_channels": 2, "kernel_size": 2},
     {"name": "string", "out_channels": "count", "in_channels": "count", "kernel_size": "sizes", "gain": "positive",
      "size": "sizes", "dims": "dims"}),
    (pst.ordered_iid, {"name": "x", "rank": 2, "base": HALF},
     {"name": "string", "rank": "count", "base": "distribution", "dims": "names of dims"}),
    (geometry.manifold_dimension, {"n": 5, "p": 2}, {"n": "count", "p": "count"}),
    (geometry.orthogonality_error, {"X": POINT}, {"X": "Z"}),
    (geometry.tangent_project, {"X": POINT, "G": TANGENT}, {"X": "X", "G": "gradient"}),
    (geometry.split_tangent, {"X": POINT, "r": TANGENT}, {"X": "X", "r": "r"}),
    (geometry.angular_momentum, {"X": POINT, "r": TANGENT}, {"X": "X", "r": "r"}),
    (geometry.metric, {"kind": "canonical", "p": 2}, {"kind": "choice", "p": "count"}),
    (geometry.velocity, {"X": POINT, "r": TANGENT, "c": np.ones(2), "w": np.ones((2, 2))},
     {"X": "X", "r": "r", "c": "c", "w": "w"}),
    (geometry.kinetic_energy, {"X": POINT, "r": TANGENT, "c": np.ones(2), "w": np.ones((2, 2))},
     {"X": "X", "r": "r", "c": "c", "w": "w"}),
    (geometry.draw_momentum, {"X": POINT, "c": np.ones(2), "w": np.ones((2, 2)), "rng": rng},
     {"X": "X", "c": "c", "w": "w", "rng": "rng"}),
    (geometry.cayley_drift, {"X": POINT, "r": TANGENT, "t": 0.1}, {"X": "X", "r": "r", "t": "time"}),
    (geometry.geodesic_drift, {"X": POINT, "r": TANGENT, "t": 0.1}, {"X": "X", "r": "r", "t": "time"}),
    (geometry.splitting_drift, {"X": POINT, "r": TANGENT, "t": 0.1, "c": np.ones(2), "w": np.ones((2, 2))},
     {"X": "X", "r": "r", "t": "time", "c": "c", "w": "w"}),
    (geometry.polar, {"Z": POINT}, {"Z": "Z"}),
    (geometry.polar_pullback, {"Z": POINT, "G": POINT}, {"Z": "Z", "G": "gradient"}),
    (geometry.rotation, {"Z": np.eye(3)}, {"Z": "square"}),
    (geometry.rotation_pullback, {"Z": np.eye(3), "G": np.eye(3)}, {"Z": "square", "G": "gradient"}),
]  # fmt: skip


def outcome(function, arguments, name):
    """What is wrong with the answer to a bad value, or None if it is an error as it should be."""
    try:
        with pm.Model(coords={"f": range(5), "k": range(2)}):
            function(**arguments)
    except (ValueError, TypeError) as error:
        raised = error
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "no error"
    finally:
        plt.close("all")
    return None if re.search(rf"\b{name}\b", str(raised)) else f"does not name it: {type(raised).__name__}: {raised}"


def test_good_arguments_are_good():
    """The control of the table: without the bad value, nothing is wrong."""
    for function, good, _ in TABLE:
        assert outcome(function, good, "nothing") == "no error", function.__name__


def test_every_bad_value_is_named():
    tried, missed = 0, []
    for function, good, kinds in TABLE:
        for name, kind in kinds.items():
            for value in BAD[kind]:
                arguments = good | {name: value}
                if name == "data":
                    arguments.pop("var_names", None)
                problem = outcome(function, arguments, name)
                tried += 1
                if problem is not None:
                    missed.append(f"{function.__name__}({name}={value!r:.60}): {problem:.160}")
    assert tried > 2000
    assert len(missed) <= tried / 100, f"{len(missed)} of {tried}:\n" + "\n".join(missed)


@pytest.mark.parametrize("masked", [MASKED, np.ma.masked_greater(np.eye(2), 0.5)])
def test_masked_parameters_of_distributions_are_refused(masked):
    with pm.Model(), pytest.raises(ValueError, match="F must not have masked entries"):
        pst.MatrixLangevin("X", F=masked)
