r"""Ordered positive vectors: singular values and eigenvalues as PyMC variables.

Values come in descending order, :math:`x_1 > x_2 > \dots > x_r > 0`. Each law here has a density *and* a
random generator, so prior and posterior sampling agree. With a potential on free variables they would not.
Unconstrained samplers see the logarithms of the gaps, see :class:`Descending`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size, rv_size_is_none
from pymc.distributions.transforms import _default_transform
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel._arguments import integer
from pymc_stiefel._checks import shown, string
from pymc_stiefel.builders._dims import known_dims, positive

__all__ = ["Descending", "check_positive", "column_lengths", "ordered_iid", "wishart_spectrum"]

POWERS = {"wishart": 1.0, "inverse_wishart": -1.0, "gaussian": 0.5}


class Descending(Transform):
    r"""Logarithms of the gaps, :math:`y_i = \log(x_i - x_{i+1})` with :math:`x_{r+1} = 0`; shape ``(..., r)``.

    Gaps are used instead of the logarithms of ``x``, because the likelihood of a low-rank model is close to Gaussian in
    ``x`` where it is informative, and the densities below contain differences of neighbours as factors.
    """

    name = "descending"
    ndim_supp = 1

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def forward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Log gaps of a descending positive vector."""
        return pt.log(_gaps(value))

    def backward(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Cumulative sums of the gaps, from the last to the first."""
        # a sum over a triangle: PyTensor 3.3 miscompiles slices of length one of a reversed vector, and takes ten
        # seconds to compile a product of matrices
        return (pt.exp(value)[..., None] * np.tri(self.rank, dtype=value.dtype)).sum(axis=-2)

    def log_jac_det(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Sum of the log gaps; the cumulative sum preserves volume."""
        return value.sum(axis=-1)


def wishart_spectrum(
    name: str, rank: int, nu: Any, *, scale: Any = 1.0, kind: str = "wishart", dims: Any = None
) -> TensorVariable:
    r"""Eigenvalues :math:`\lambda` of a Wishart matrix, :math:`W_r(\nu, I)`, or powers of them.

    The variable is :math:`x = c\,\lambda^a` with ``scale`` :math:`c` and

    - ``"wishart"`` (:math:`a = 1`): eigenvalues of :math:`W_r(\nu, c I)`;
    - ``"inverse_wishart"`` (:math:`a = -1`): eigenvalues of :math:`W^{-1}_r(\nu, c I)`;
    - ``"gaussian"`` (:math:`a = 1/2`): singular values of a :math:`\nu \times r` matrix of :math:`N(0, c^2)` entries.

    In descending order the density of :math:`\lambda` is

    .. math:: \frac{\pi^{r^2/2}}{2^{r\nu/2}\,\Gamma_r(\nu/2)\,\Gamma_r(r/2)}
              \prod_i \lambda_i^{(\nu - r - 1)/2} e^{-\lambda_i/2} \prod_{i<j} (\lambda_i - \lambda_j).

    Draws are exact, by Bartlett's decomposition; ``nu > r - 1`` need not be an integer.

    References
    ----------
    Muirhead (1982), Aspects of Multivariate Statistical Theory, section 3.2, doi:10.1002/9780470316559.
    """
    power = POWERS[kind]
    nu = pt.as_tensor_variable(nu)
    degrees = nu[..., None] - np.arange(rank)  # of the chi-squared diagonal; the first is nu
    if isinstance(nu, Constant) and np.min(nu.data) <= rank - 1:
        raise ValueError(f"need nu > rank - 1, got nu = {nu.data} with rank = {rank}")

    def dist(degrees: TensorVariable, scale: TensorVariable, size: Any) -> TensorVariable:
        batch = degrees[..., 0] * scale  # parameters of a batch: each matrix has its own draw
        shape = [batch.shape[i] for i in range(batch.ndim)] if rv_size_is_none(size) else list(size)
        normals = pm.Normal.dist(size=(*shape, rank, rank))
        lengths = pt.sqrt(pm.ChiSquared.dist(degrees, size=(*shape, rank)))
        bartlett = pt.tril(normals, -1) + lengths[..., None] * np.eye(rank)
        return _sorted(scale[..., None] * pt.linalg.svd(bartlett, compute_uv=False) ** (2 * power), rank)

    def logp(value: TensorVariable, degrees: TensorVariable, scale: TensorVariable) -> TensorVariable:
        eigenvalues = (value / scale[..., None]) ** (1 / power)
        own = np.arange(rank, 0, -1) / 2
        constant = rank / 2 * np.log(np.pi) - (pt.gammaln(degrees / 2) + pt.gammaln(own)).sum(axis=-1)
        constant -= rank * degrees[..., 0] / 2 * np.log(2)
        i, j = np.triu_indices(rank, 1)
        density = ((degrees[..., :1] - rank - 1) / 2 * pt.log(eigenvalues) - eigenvalues / 2).sum(axis=-1)
        density += pt.log(pt.abs(eigenvalues[..., i] - eigenvalues[..., j])).sum(axis=-1)
        volume = pt.log(eigenvalues / value).sum(axis=-1) - rank * np.log(abs(power))
        return _on_descending(value, constant + density + volume)

    return pm.CustomDist(
        name,
        degrees,
        scale,
        dist=dist,
        logp=logp,
        support_point=lambda rv, size, *params: rv,
        signature="(r),()->(r)",
        class_name="WishartSpectrum",
        default_transform=Descending(rank),
        dims=dims,
    )


def ordered_iid(
    name: str, rank: int, base: TensorVariable, *, dims: Any = None, argument: str = "base"
) -> TensorVariable:
    r"""Independent draws of a positive distribution in descending order.

    The density is :math:`r! \prod_i f(x_i)` on :math:`x_1 > \dots > x_r`; draws are sorted.

    Parameters
    ----------
    name : str
        Name of the variable.
    rank : int
        Number of values, ``r``.
    base : distribution
        A positive distribution from ``.dist()``: a scalar, or of shape ``(*batch, 1)``, one for each vector of a batch.
    dims : str or sequence of str, optional
        Dims of the variable; the last is that of the values.
    argument : str
        Name of ``base`` in error messages.

    Returns
    -------
    TensorVariable
        Shape ``(*batch, rank)``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> with pm.Model():
    ...     scale = pst.ordered_iid("scale", 3, pm.HalfNormal.dist(2.0))
    >>> bool(np.all(np.diff(pm.draw(scale, random_seed=1)) < 0))
    True
    """
    string("name", name)
    rank = integer("rank", rank)
    known_dims(name, dims)
    op = check_positive(base, argument)
    if base.ndim and not base.type.broadcastable[-1]:
        raise ValueError(
            f"{argument}: ordered values of {name!r} share one law: need a scalar distribution, or shape (*batch, 1) "
            f"as of pm.HalfNormal.dist(tau[:, None]), got shape {base.type.shape}"
        )
    free = [param for param in op.dist_params(base.owner) if not isinstance(param, Constant)]

    def rebuilt(params: Any, size: Any = None) -> Any:
        rv = base if size is None else change_dist_size(base, size)
        return graph_replace([rv], dict(zip(free, params, strict=True)), strict=False)[0]

    def dist(places: TensorVariable, *params: Any) -> TensorVariable:
        *inner, size = params
        batch = [base.shape[i] for i in range(base.ndim - 1)] if rv_size_is_none(size) else list(size)
        return _sorted(rebuilt(inner, (*batch, rank)), rank)

    def logp(value: TensorVariable, places: TensorVariable, *params: Any) -> TensorVariable:
        return _on_descending(
            value, pm.logp(rebuilt(params), value).sum(axis=-1) + np.log(np.arange(1, rank + 1)).sum()
        )

    return pm.CustomDist(
        name,
        np.arange(rank),
        *free,
        dist=dist,
        logp=logp,
        support_point=lambda rv, size, *params: rv,
        signature=",".join(["(r)", *("(o)" if param.ndim else "()" for param in free)]) + "->(r)",
        class_name="OrderedIID",
        default_transform=Descending(rank),
        dims=dims,
    )


def column_lengths(
    name: str, n: int, p: int, scales: Any, prior: str | None, sigma: Any, ordered: bool, dims: tuple[str, ...]
) -> TensorVariable:
    """Lengths of orthogonal columns by one of the laws of :func:`orthogonal_columns`."""
    if not (prior is None or (isinstance(prior, str) and prior == "normal")) or (
        scales is not None and prior is not None
    ):
        raise ValueError(
            f"give scales=, a distribution such as pm.HalfNormal.dist(1), or prior='normal', not both; got scales = "
            f"{shown(scales)}, prior = {shown(prior)}"
        )
    if prior is not None:
        return wishart_spectrum(name, p, n, scale=positive("sigma", sigma, dims[:-1]), kind="gaussian", dims=dims)
    scales = pm.HalfNormal.dist(1.0) if scales is None else scales
    if ordered:
        return ordered_iid(name, p, scales, dims=dims, argument="scales")
    check_positive(scales, "scales")
    model = pm.modelcontext(None)
    sized = change_dist_size(scales, tuple(model.dim_lengths[dim] for dim in dims))
    return model.register_rv(sized, name, dims=dims)


def check_positive(base: Any, argument: str = "base") -> Any:
    """The op of a positive distribution, or an error that says what ``base`` is instead."""
    op = getattr(getattr(base, "owner", None), "op", None)
    if not hasattr(op, "dist_params"):
        raise TypeError(f"{argument}: need a distribution such as pm.HalfNormal.dist(1), got {shown(base)}")
    if _default_transform(op, base) is None:
        raise ValueError(
            f"{argument}: need a positive distribution such as pm.HalfNormal.dist(1), got {op}, which has no bounds"
        )
    return op


def _sorted(x: TensorVariable, rank: int) -> TensorVariable:
    # the singular value decomposition loses the static shape, which samplers use
    return pt.specify_shape(-pt.sort(-x, axis=-1), (*[None] * (x.ndim - 1), rank))


def _gaps(value: TensorVariable) -> TensorVariable:
    return pt.concatenate([value[..., :-1] - value[..., 1:], value[..., -1:]], axis=-1)


def _on_descending(value: TensorVariable, density: TensorVariable) -> TensorVariable:
    return pt.switch(_gaps(value).min(axis=-1) > 0, density, -np.inf)
