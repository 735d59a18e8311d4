"""Models on JAX devices, sampled by BlackJAX: ``pip install "pymc-stiefel[jax]"``."""

from pymc_stiefel.jax._results import nested_rhat
from pymc_stiefel.jax._sample import Sampler, sample

__all__ = ["Sampler", "nested_rhat", "sample"]
