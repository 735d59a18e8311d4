"""Elementary functions of a compiled density, written so that the compiler can evaluate several at once.

Numba calls the C library for every exponential, which takes most of the time of a likelihood with many terms. The
functions here have neither branches nor calls. Their errors are a few units in the last place
(``tests/compile/rewrites``). Polynomials are Chebyshev approximations, computed in 60 digits by ``mpmath.chebyfit`` and
rounded.
"""

from __future__ import annotations

import numba
import numpy as np
import pytensor.scalar.math as scalar_math
from numba import types
from pytensor import config
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.link.numba.dispatch.scalar import numba_funcify_Composite
from pytensor.scalar import basic as scalar
from pytensor.tensor.elemwise import Elemwise

from pymc_stiefel.engine.jit.caching import source_key
from pymc_stiefel.engine.jit.memory import bits

NAME = "pymc_stiefel_functions"
_VERSION = int(source_key(__file__)[:8], 16)
"""Version of the functions below; part of the key under which PyTensor caches compiled code."""

FEW = 16
"""Up to this many numbers the C library is as fast."""

_inlined = numba.njit(
    forceinline=True, fastmath=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)

_ROUND = 1.5 * 2.0**52
"""Added to a number below 2^51 it leaves the nearest integer in the last bits."""

_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # the first ends in 21 zeros

# (exp(x) - 1 - x) / x^2 for |x| < 0.347, from the highest power down
_EXP = (
    *(2.091477283224809e-09, 2.510533724466521e-08, 2.755727343657049e-07, 2.755725511097889e-06),
    *(2.480158732571076e-05, 0.00019841269875048905, 0.0013888888888883703, 0.00833333333332607),
    *(0.04166666666666667, 0.1666666666666667, 0.5),
)
# (2 atanh(s) / s - 2) / s^2 in powers of s^2, for s^2 < 0.0295
_LOG = (
    *(0.1308723619665962, 0.13268714792348096, 0.15386241881938595, 0.18181795600060793),
    *(0.22222222392089008, 0.28571428570801954, 0.4000000000000088, 0.6666666666666666),
)
# (1 + 2 x) exp(x^2) erfc(x) for x >= 0, in powers of (x - 3.5) / (x + 3.5)
_ERFC = (
    *(-1.2155186967957756e-09, 5.811094619015422e-11, 1.3911592311296799e-08, 6.778448793564802e-10),
    *(-9.711971328975727e-08, -8.641744973204816e-09, 6.025096057081062e-07, -4.3051702801470573e-08),
    *(-3.814933907984698e-06, 2.3272968965569266e-06, 2.4260839884956625e-05, -4.2781721628905614e-05),
    *(-0.00012151232760165049, 0.0005643842605299897, -0.00030226790250868746, -0.004215019878405747),
    *(0.019099330945601945, -0.0488233258310565, 0.08798315382467885, -0.11508959816001958),
    *(0.09751909515326224, -0.010555596332221952, -0.14000918013761943, 1.2423492448711544),
)


_integer, _float = bits(types.int64, types.float64), bits(types.float64, types.int64)


def _polynomial(coefficients):
    """Compiled Horner scheme, written out."""
    text = f"{coefficients[0]!r}"
    for coefficient in coefficients[1:]:
        text = f"({text}) * x + {coefficient!r}"
    return _inlined(eval(f"lambda x: {text}"))


_exp_polynomial, _log_polynomial, _erfc_polynomial = map(_polynomial, (_EXP, _LOG, _ERFC))


@_inlined
def _power_of_two(rounded):
    """2^k for an integer k between -1022 and 1023, given as ``k + _ROUND``."""
    return _float((_integer(rounded) + 1023) << 52)


@_inlined
def exp(x):
    """``exp(k ln 2 + r)`` with a polynomial in r; 2^k in two factors, which reach the ends of the range."""
    x = 710.0 if x > 710.0 else x
    x = -750.0 if x < -750.0 else x
    k = (x * _LOG2E + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    value = 1.0 + (r + r * r * _exp_polynomial(r))
    half = 0.5 * k + _ROUND
    return value * _power_of_two(half) * _power_of_two((k - (half - _ROUND)) + _ROUND)


@_inlined
def log(x):
    """``log(2^k (1 + f))`` with 1 + f between sqrt(1/2) and sqrt(2), as in FDLIBM."""
    tiny = x < 2.2250738585072014e-308
    bits = _integer(x * 2.0**54 if tiny else x) + 0x00095F6200000000
    k = _float((bits >> 52) | 0x4330000000000000) - (2.0**52 + (1077.0 if tiny else 1023.0))
    f = _float((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E00000000) - 1.0
    s, half_square = f / (2.0 + f), 0.5 * f * f
    square = s * s
    value = k * _LN2_HIGH - ((half_square - (s * (half_square + square * _log_polynomial(square)) + k * _LN2_LOW)) - f)
    value = value if x > 0.0 else np.nan
    value = value if x != 0.0 else -np.inf
    return value if x != np.inf else np.inf


@_inlined
def log1p(x):
    """``log(u)`` for u = 1 + x, with a correction for what u has lost."""
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    return log(u) + (lost if abs(lost) < 1.0 else 0.0)


@_inlined
def sigmoid(x):
    """``1 / (1 + exp(-x))``"""
    return 1.0 / (1.0 + exp(-x))


@_inlined
def softplus(x):
    """``log(1 + exp(x))``"""
    return (x if x > 0.0 else 0.0) + log1p(exp(-abs(x)))


@_inlined
def erfc(x):
    """By a scaled function of |x|, which is smooth to infinity; the square of |x| is formed in two parts."""
    a = abs(x)
    a = 30.0 if a > 30.0 else a
    scaled = _erfc_polynomial((a - 3.5) / (a + 3.5)) / (1.0 + 2.0 * a)
    short = _float(_integer(a) & -0x8000000)
    rest = (a - short) * (a + short)
    value = exp(-short * short)
    value = (value - value * (rest * (1.0 - rest * (0.5 - rest / 6.0)))) * scaled
    return value if x >= 0.0 else 2.0 - value


# ---------------------------------------------------------------- in PyTensor's graphs


class Function(scalar.UnaryScalarOp):
    """One of these functions, in the place of PyTensor's ``original`` in finished graphs: no gradient."""

    __props__ = ("name",)

    def __init__(self, name: str, original: scalar.ScalarOp) -> None:
        super().__init__(scalar.same_out, name)
        self.original = original

    def impl(self, x):
        return self.original.impl(x)

    def c_code(self, *arguments):
        """PyTensor joins loops only of functions that have C code, whatever backend it compiles for."""
        return self.original.c_code(*arguments)


_KNOWN = {
    scalar.Exp: exp,
    scalar.Log: log,
    scalar.Log1p: log1p,
    scalar_math.Sigmoid: sigmoid,
    scalar_math.Softplus: softplus,
    scalar_math.Erfc: erfc,
}


class Joined(scalar.Composite):
    """PyTensor's function of a joined loop, for one that has the above in it: large, but to be inlined all the same."""


@node_rewriter([Elemwise])
def _replace_function(fgraph, node):
    """In loops over many numbers."""
    if config.numba__fastmath or type(node.op.scalar_op) not in _KNOWN:  # relaxed rules would undo them
        return None
    original, (output,) = node.op.scalar_op, node.outputs
    if any(variable.dtype != "float64" for variable in (*node.inputs, output)):
        return None
    if None not in output.type.shape and np.prod(output.type.shape, dtype=int) < FEW:
        return None
    return Elemwise(Function(type(original).__name__, original))(*node.inputs, return_list=True)


@node_rewriter([Elemwise])
def _replace_composite(fgraph, node):
    composite = node.op.scalar_op
    if type(composite) is not scalar.Composite:
        return None
    if not any(isinstance(inner.op, Function) for inner in composite.fgraph.apply_nodes):
        return None
    return Elemwise(Joined(composite.inputs, composite.outputs))(*node.inputs, return_list=True)


# after simplifications and before loops are joined, and after that
optdb.register(f"{NAME}_single", in2out(_replace_function), NAME, position=48)
optdb.register(f"{NAME}_joined", in2out(_replace_composite), NAME, position=49.1)


@register_funcify_and_cache_key(Function)
def _funcify_function(op, node=None, **kwargs):
    return _KNOWN[type(op.original)], f"{NAME}_{op.name}_{_VERSION}"


@register_funcify_and_cache_key(Joined)
def _funcify_joined(op, node=None, **kwargs):
    _, key = numba_funcify_Composite(op, node, **kwargs)
    with config.change_flags(numba__cache=False):  # else every function within would be wrapped, to be cached by itself
        function, _ = numba_funcify_Composite(op, node, **kwargs)
    function.targetoptions["forceinline"] = True
    return function, None if key is None else f"{NAME}_{_VERSION}_{key}"
