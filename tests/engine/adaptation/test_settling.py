"""Masses and coordinates that do not fit when tuning ends are reported."""

import numpy as np
import pytest

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests import kernels


def final_change(density, layout, start, tune, spoil=None, **settings):
    """``mass_change`` of the first draw after tuning."""
    sampler = Sampler(layout, density.address, Settings(**settings), np.random.default_rng(5))
    sampler.chain.tune = tune > 0
    sampler.draw(start)
    while sampler.chain.draws < tune:
        sampler.draw(None)
    if spoil is not None:
        spoil(sampler.chain)
    sampler.chain.tune = False
    sampler.draws(3)
    return sampler.statistics["mass_change"][-1]


@pytest.mark.parametrize("drift", ["splitting", "cayley", "geodesic"])
def test_masses_that_do_not_fit_when_tuning_ends_are_reported(drift):
    F, *_, density = kernels.problem(6, 2, np.random.default_rng(3), size=200.0)
    problem = density, make_layout([(6, 2)], 0), geo.polar(F).T.ravel()

    def narrower(chain):
        chain.metric.c[:] *= np.exp(3.0)

    assert final_change(*problem, 200, drift=drift) < 0.3
    assert 2.7 < final_change(*problem, 200, narrower, drift=drift) < 3.3
    assert final_change(*problem, 49, drift=drift) == np.inf  # too short to tell
    assert final_change(*problem, 200, lambda chain: chain.forget(), drift=drift) == np.inf
    assert np.isnan(final_change(*problem, 0, drift=drift))
    assert np.isnan(final_change(*problem, 200, drift=drift, adapt_metric=False))


def test_row_coordinates_that_were_not_learnt_are_reported():
    n, W = 12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)])
    problem = kernels.row_target(n, W), make_layout([(n, 1)], 0), np.eye(n)[0]
    settings = {"drift": "splitting", "stages": TWO_STAGE, "adapt_rows": True}

    def unlearnt(chain):
        chain.coordinates.factors.clear()

    assert final_change(*problem, 400, **settings) < 1.4
    assert final_change(*problem, 400, unlearnt, **settings) > 5.0
    assert final_change(*problem, 400, **settings | {"adapt_rows": False}) < 1.4  # forbidden, so nothing is missing
