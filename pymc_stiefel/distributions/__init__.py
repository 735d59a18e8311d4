r"""Random orthonormal matrices as PyMC variables.

All densities are with respect to normalised Haar measure on St(n, p), so the uniform variable has log density zero.
Every variable takes PyMC's usual arguments (``shape``, ``size``, ``dims``, ``initval``, ``observed``, ``total_size``,
``transform``); leading batch dimensions are independent matrices. Chains start from seeded prior draws. Values off the
manifold (``max|X'X - I| > 1e-6``) have log density minus infinity.

References
----------
Chikuse (2003), Statistics on Special Manifolds, doi:10.1007/978-0-387-21540-2.
"""

from pymc_stiefel.distributions import transforms
from pymc_stiefel.distributions._angular_gaussian import MatrixAngularCentralGaussian
from pymc_stiefel.distributions._base import StiefelBlock, stiefel_block
from pymc_stiefel.distributions._bingham import MatrixBingham, MatrixBinghamLangevin
from pymc_stiefel.distributions._fisher import MatrixFisher
from pymc_stiefel.distributions._grassmann import Grassmann
from pymc_stiefel.distributions._langevin import MatrixLangevin, VonMisesFisher
from pymc_stiefel.distributions._low_rank_normal import LowRankMvNormal
from pymc_stiefel.distributions._uniform import SpecialOrthogonal, StiefelUniform, UnitVector

__all__ = [
    "Grassmann",
    "LowRankMvNormal",
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamLangevin",
    "MatrixFisher",
    "MatrixLangevin",
    "SpecialOrthogonal",
    "StiefelBlock",
    "StiefelUniform",
    "UnitVector",
    "VonMisesFisher",
    "stiefel_block",
    "transforms",
]
