"""What an error message advises is cut out of the message and run."""

import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import pymc_stiefel as pst
from pymc_stiefel import geometry

matplotlib.use("Agg")
rng = np.random.default_rng(0)
X = geometry.polar(rng.normal(size=(2, 20, 6, 2)))
BATCH = xr.DataArray(
    geometry.polar(rng.normal(size=(2, 20, 15, 2, 5, 2))), dims=("chain", "draw", "group", "side", "f", "k"), name="U"
)
VECTORS = BATCH.isel(group=slice(3), side=0, k=0, f=slice(3), drop=True).rename(group="unit", f="axis")
VECTORS = VECTORS / np.sqrt((VECTORS**2).sum("axis"))
SQUARE = geometry.polar(rng.normal(size=(2, 20, 3, 3)))
PLOTS = (pst.plot_columns, pst.plot_loadings, pst.plot_alignment, pst.plot_subspace, pst.plot_invariants)
ALL = (pst.align, pst.mean, pst.dispersion, pst.summary, pst.invariants, pst.principal_angles, *PLOTS)
WITH_VECTORS = (pst.align, pst.mean, pst.dispersion, pst.summary, pst.invariants, pst.principal_angles)

SELECTION = r"\.isel\((?:[^()]|\([^()]*\))*\)"
CASES = [
    # the function, what it refuses, a pattern of the remedy in the message, how the remedy is used
    *((f, BATCH, SELECTION, lambda f, data, text: f(eval(f"data{text}"))) for f in PLOTS),
    *((f, VECTORS, SELECTION, lambda f, data, text: f(eval(f"data{text}"))) for f in (*PLOTS[:3], pst.plot_sphere)),
    *((f, VECTORS, r"vectors=True", lambda f, data, text: eval(f"f(data, {text})")) for f in WITH_VECTORS),
    (pst.align, 2 * X, r"orthonormal=False", lambda f, data, text: eval(f"f(data, {text})")),
    *(
        (f, 2 * X, r"align\(data, orthonormal=False\)", lambda f, data, text: f(eval(f"pst.{text}")))
        for f in (pst.plot_columns, pst.plot_loadings, pst.plot_alignment)
    ),
    (pst.summary, 2 * X, r"summary\(.*'aligned'\)", lambda f, data, text: eval(text, vars(pst) | {"data": data})),
    *((f, X[0], r"X\[None\]", lambda f, data, text: f(eval(text, {"X": data}))) for f in ALL),
    (pst.mean, xr.DataArray(X[0], dims=("draw", "f", "k")), r"expand_dims\(chain=\[0\]\)",
     lambda f, data, text: f(eval(f"data.{text}"))),
    (lambda data, kind="angles": pst.summary(data, kind=kind), SQUARE, r"kind='aligned'",
     lambda f, data, text: eval(f"f(data, {text})")),
    (pst.plot_subspace, X, r"principal_angles\(\.\.\., to='chains'\)",
     lambda f, data, text: eval("pst." + text.replace("...", "data"))),
    (pst.plot_sphere, X, r"plot_alignment", lambda f, data, text: getattr(pst, text)(data)),
    (lambda data: geometry.split_tangent(np.eye(6, 2), data), X[0, 0], r"tangent_project\(X, r\)",
     lambda f, data, text: f(eval(f"geometry.{text}", {"geometry": geometry, "X": np.eye(6, 2), "r": data}))),
]  # fmt: skip


@pytest.mark.parametrize("function, data, pattern, remedy", CASES)
@pytest.mark.filterwarnings("error")
def test_what_a_message_advises_works(function, data, pattern, remedy):
    arguments = {"to": "chains"} if "chains" in pattern else {}
    with pytest.raises(ValueError) as error:
        function(data, **arguments)
    found = re.findall(pattern, str(error.value))
    assert found, str(error.value)
    for text in found:
        assert remedy(function, data, text) is not None
    plt.close("all")


def test_a_renamed_argument_says_so():
    with pytest.warns(FutureWarning, match="var= of mean is now var_names="):
        pst.mean(xr.Dataset({"U": (("chain", "draw", "f", "k"), X)}), var="U")
