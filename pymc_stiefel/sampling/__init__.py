"""pm.sample for models that one manifold step can sample: chains in threads of one process."""

from pymc_stiefel.sampling._sample import StiefelSampler, sample

__all__ = ["StiefelSampler", "sample"]
