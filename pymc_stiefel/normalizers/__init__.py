r"""Normalising constants of the matrix Langevin and Bingham laws: values and derivatives, in compiled code.

All constants are expectations over normalised Haar measure on St(n, p), so that the uniform law has logarithm 0.
docs/normalizers.md lists the methods and their measured errors.
"""

from pymc_stiefel.normalizers._functions import BINGHAM_COLUMNS
from pymc_stiefel.normalizers._public import (
    log_bingham,
    log_bingham_vector,
    log_hyp0f1,
    log_hyp0f1_batch,
    log_hyp0f1_vector,
)

__all__ = [
    "BINGHAM_COLUMNS",
    "log_bingham",
    "log_bingham_vector",
    "log_hyp0f1",
    "log_hyp0f1_batch",
    "log_hyp0f1_vector",
]
