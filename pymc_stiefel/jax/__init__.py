"""JAX: models sampled by BlackJAX on its devices, and orthonormal weights of networks by optax.

Needs ``pip install "pymc-stiefel[jax]"``. ``import pymc_stiefel`` does not import JAX; the first use of this module
does.
"""

from pymc_stiefel.jax._ensemble import Ensemble, ensemble
from pymc_stiefel.jax._sample import Sampler, sample
from pymc_stiefel.jax._transformations import (
    for_kernels,
    momentum,
    orthonormal_like,
    osghmc,
    sghmc,
    to_matrix,
)
from pymc_stiefel.steps._schedules import CyclicalSchedule

__all__ = [
    "CyclicalSchedule",
    "Ensemble",
    "Sampler",
    "ensemble",
    "for_kernels",
    "momentum",
    "orthonormal_like",
    "osghmc",
    "sample",
    "sghmc",
    "to_matrix",
]
