"""Scores of the compiled engine on one target: ``python -m tests.statistical.engine_check TARGET DRAWS``.

A process of its own, so that it can be run on a copy of the package with a mistake in it.
"""

import sys

import numpy as np

from pymc_stiefel.engine.blocks import FLIPPED, NEVER, make_layout
from pymc_stiefel.engine.coordinates import RowCoordinates
from pymc_stiefel.engine.manifolds import GRASSMANN
from pymc_stiefel.engine.sampler import Sampler, Settings
from pymc_stiefel.normalizers import log_bingham_vector, log_hyp0f1
from tests.kernels import bingham_langevin_density
from tests.statistical.ladder import z_scores

FIXED = {"stages": 2, "adapt_step_size": False, "adapt_metric": False}


def draw(density, layout, start, draws, coordinates=None, **settings):
    sampler = Sampler(layout, density.address, Settings(**(FIXED | settings)), np.random.default_rng(1))
    sampler.chain.tune = False
    if coordinates:
        sampler.set_coordinates(RowCoordinates(layout, coordinates))
    sampler.move_to(start)
    return np.concatenate([sampler.draws(1000).copy() for _ in range(draws // 1000)])


def langevin(draws):
    s = np.array([6.0, 4.0, 2.0])
    density = bingham_langevin_density(np.eye(4, 3) * s, np.zeros((4, 4)), np.zeros(3))
    q = draw(
        density, make_layout([(4, 3)], 0, [NEVER]), np.eye(4, 3).T.ravel(), draws, drift="splitting", step_size=2.0
    )
    diagonal = q.reshape(-1, 3, 4)[:, range(3), range(3)]
    return z_scores(diagonal, log_hyp0f1(4, s)[1])


def flips(draws):
    s = np.array([1.0, 0.7, 0.4])
    density = bingham_langevin_density(np.diag(s), np.zeros((3, 3)), np.zeros(3))
    q = draw(density, make_layout([(3, 3)], 0, [FLIPPED]), np.eye(3).ravel(), draws, drift="cayley", step_size=1.0)
    return z_scores(q.reshape(-1, 3, 3)[:, range(3), range(3)], log_hyp0f1(3, s)[1])


def rows(draws):
    """A uniform matrix in coordinates that stretch one direction: it stays uniform."""
    density = bingham_langevin_density(np.zeros((5, 2)), np.zeros((5, 5)), np.zeros(2))
    stretched = {0: (np.eye(5)[:1].copy(), np.array([2.0]))}
    layout = make_layout([(5, 2)], 0, [NEVER])
    q = draw(density, layout, np.eye(5, 2).T.ravel(), draws, stretched, drift="splitting", step_size=0.6)
    return z_scores((q.reshape(-1, 2, 5) ** 2).sum(axis=1)[:, :2], 2 / 5)


def subspace(draws):
    a = np.array([6.0, 3.0, 0.0])
    density = bingham_langevin_density(np.zeros((3, 1)), np.diag(a), np.ones(1))
    layout = make_layout([(3, 1)], 0, [NEVER], [GRASSMANN])
    q = draw(density, layout, np.eye(3, 1).ravel(), draws, drift="cayley", step_size=1.0)
    return z_scores(q**2, log_bingham_vector(a)[1])


if __name__ == "__main__":
    print(*np.atleast_1d(globals()[sys.argv[1]](int(sys.argv[2]))))
