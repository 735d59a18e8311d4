r"""Ordered scales are reparameterised to remove a funnel.

PyMC's ``ordered`` transform, after ``log``, has the coordinates :math:`v_k = \log(\log x_k - \log x_{k-1})`. If the
smallest of several scales is close to zero, its gap to the next one is large, and the density in the coordinate of the
gap is steeper by the square of the gap. This is a funnel: its neck needs a smaller step size than the rest. The
coordinates :math:`w_k` with :math:`e^{v_k} = \log(1 + e^{w_k})` are those of ``ordered`` for narrow gaps, and the gaps
themselves for wide ones.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, Ordered
from pymc.logprob.transforms import LogTransform
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace


def has_log_gaps(model: pm.Model, value: Variable) -> bool:
    """Whether a value variable stands for logarithms of gaps between logarithms."""
    transform = model.rvs_to_transforms.get(model.values_to_rvs[value])
    if not isinstance(transform, Chain) or len(transform.transform_list) < 2:
        return False
    *_, inner, outer = transform.transform_list
    return isinstance(inner, LogTransform) and isinstance(outer, Ordered) and not outer.positive


def in_widths(logp: Variable, value: Variable) -> tuple[Variable, Variable]:
    """A density of log gaps as one of the coordinates above, and these."""
    width = value.type(f"{value.name}_width")
    gap = pt.softplus(width[..., 1:])
    density: Variable = graph_replace(logp, {value: pt.concatenate([width[..., :1], pt.log(gap)], axis=-1)})
    return density - pt.sum(pt.softplus(-width[..., 1:])) - pt.sum(pt.log(gap)), width


def to_widths(value: np.ndarray) -> np.ndarray:
    gap = np.exp(value[..., 1:])
    return np.concatenate([value[..., :1], gap + np.log(-np.expm1(-gap))], axis=-1)


def from_widths(width: np.ndarray) -> np.ndarray:
    return np.concatenate([width[..., :1], np.log(np.logaddexp(0.0, width[..., 1:]))], axis=-1)
