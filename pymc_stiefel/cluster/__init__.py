"""Chains of a PyMC model as tasks of joblib, Dask, Ray, MPI or any executor."""

from pymc_stiefel.cluster._sample_chains import sample_chains

__all__ = ["sample_chains"]
