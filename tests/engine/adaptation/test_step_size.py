"""The step size reaches the target acceptance rate, and is searched for again only where masses change much."""

import numpy as np
import pytest

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation.step_size import SOUGHT, StepSize, make_averaging, restart
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests import kernels


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_acceptance_comes_to_its_target(target):
    F, *_, density = kernels.problem(12, 3, np.random.default_rng(3), size=200.0)
    _, stats, _ = kernels.run_chain(
        density, make_layout([(12, 3)], 0), geo.polar(F).T.ravel(), 1000, np.random.default_rng(1), tune=600,
        drift="cayley", target_accept=target,
    )  # fmt: skip
    assert abs(stats["mean_tree_accept"].mean() - target) < 0.05


def test_step_size_is_sought_only_where_masses_jump():
    settings = Settings("splitting")
    *_, density = kernels.problem(6, 3, np.random.default_rng(0))
    sampler = Sampler(make_layout([(6, 3)], 0), density.address, settings, np.random.default_rng(0))
    sampler.draw(np.eye(6, 3).T.ravel())
    adapter = next(one for one in sampler.chain.adapters if isinstance(one, StepSize))
    spent = []
    for change in (0.1, 2.0):
        sampler.chain.mass_change, sampler.chain.spent = change, 0
        adapter.update(sampler)
        spent.append(sampler.chain.spent)
    assert spent[0] == 0 < spent[1]
    assert sampler.draw(None) is not None and sampler.stats["gradients"] > spent[1]  # and the draw reports them


def test_restart():
    values = make_averaging(0.8, 1.4)
    restart(values, 3.0)
    np.testing.assert_allclose(values, [0.8, np.log(1.4), np.log(1.4), SOUGHT])
