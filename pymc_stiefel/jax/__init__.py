"""JAX: sampling of PyMC models with BlackJAX, and optax transformations for orthonormal weights of networks.

Needs ``pip install "pymc-stiefel[jax]"``. ``import pymc_stiefel`` does not import JAX; the first use of this module
does. The transformations need optax alone; the first use of ``sample`` imports BlackJAX and the JAX backend of
PyTensor, which switches JAX to double precision.
"""

from typing import TYPE_CHECKING, Any

from pymc_stiefel.jax._ensemble import Ensemble, ensemble
from pymc_stiefel.jax._transformations import (
    for_kernels,
    momentum,
    orthonormal_like,
    osghmc,
    sghmc,
    to_matrix,
)
from pymc_stiefel.steps._schedules import CyclicalSchedule

if TYPE_CHECKING:
    from pymc_stiefel.jax._sample import Sampler, sample

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


def __getattr__(name: str) -> Any:
    """Load ``sample`` and ``Sampler`` on first use, because they switch JAX to double precision."""
    if name in ("Sampler", "sample"):
        try:
            from pymc_stiefel.jax import _sample
        except ModuleNotFoundError as error:
            if error.name != "blackjax":
                raise
            message = f"pymc_stiefel.jax.{name} needs blackjax: pip install 'pymc-stiefel[jax]'"
            raise ModuleNotFoundError(message, name="blackjax") from error
        return getattr(_sample, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
