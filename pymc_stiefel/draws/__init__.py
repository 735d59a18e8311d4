r"""Random draws on St(n, p). Every function takes a NumPy generator and returns ``(*size, n, p)``.

``size`` is the leading shape of independent draws from one law; ``None`` and ``()`` mean a single matrix.

References
----------
Hoff (2009), doi:10.1198/jcgs.2009.07177; Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468;
Wood (1994), doi:10.1080/03610919408813161.
"""

from pymc_stiefel.draws._laws import (
    angular_central_gaussian,
    haar,
    matrix_bingham,
    matrix_bingham_langevin,
    matrix_fisher,
    matrix_langevin,
    von_mises_fisher,
)

__all__ = [
    "angular_central_gaussian",
    "haar",
    "matrix_bingham",
    "matrix_bingham_langevin",
    "matrix_fisher",
    "matrix_langevin",
    "von_mises_fisher",
]
