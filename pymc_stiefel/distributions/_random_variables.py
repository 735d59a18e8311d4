"""The random variable Ops: signatures and draws. Their densities are in :mod:`pymc_stiefel.distributions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_stiefel import draws
from pymc_stiefel.ops._polar import StiefelRV


def _integer(value: Any) -> int:
    """An integer parameter: PyTensor may have given it batch dimensions of length one."""
    return int(np.asarray(value).flat[0])


def _symbolic_integer(parameter):
    return parameter[(0,) * parameter.type.ndim]


def _batched(
    draw: Callable[..., NDArray], parameters: Sequence[NDArray], core_ndims: Sequence[int], size: tuple[int, ...] | None
) -> NDArray:
    """Draw with ``draw(*core_parameters, size)``, once for each set of parameters in the batch."""
    parameters = [np.asarray(x) for x in parameters]
    batches = [x.shape[: x.ndim - k] for x, k in zip(parameters, core_ndims, strict=True)]
    batch = np.broadcast_shapes(*batches) if size is None else tuple(int(s) for s in size)
    cores = [x.shape[x.ndim - k :] for x, k in zip(parameters, core_ndims, strict=True)]
    if all(math.prod(b) == 1 for b in batches):
        return draw(*(x.reshape(c) for x, c in zip(parameters, cores, strict=True)), batch)
    full = [np.broadcast_to(x, (*batch, *c)).reshape(-1, *c) for x, c in zip(parameters, cores, strict=True)]
    results = [draw(*row, ()) for row in zip(*full, strict=True)]
    return np.stack(results).reshape(*batch, *results[0].shape)


class StiefelUniformRV(StiefelRV):
    name = "StiefelUniform"
    signature = "(),()->(n,p)"
    _print_name = ("StiefelUniform", r"\operatorname{StiefelUniform}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return [_symbolic_integer(d) for d in dist_params]

    @classmethod
    def rng_fn(cls, rng, n, p, size):
        return draws.haar(_integer(n), _integer(p), size=size, rng=rng)


class SpecialOrthogonalRV(StiefelRV):
    name = "SpecialOrthogonal"
    signature = "()->(n,p)"
    special = True
    _print_name = ("SpecialOrthogonal", r"\operatorname{SO}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return [_symbolic_integer(dist_params[0])] * 2

    @classmethod
    def rng_fn(cls, rng, n, size):
        X = draws.haar(_integer(n), _integer(n), size=size, rng=rng)
        X[..., :, -1] *= np.sign(np.linalg.det(X))[..., None]
        return X


class UnitVectorRV(StiefelRV):
    name = "UnitVector"
    signature = "()->(n)"
    vector = True
    _print_name = ("UnitVector", r"\operatorname{UnitVector}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return [_symbolic_integer(dist_params[0])]

    @classmethod
    def rng_fn(cls, rng, n, size):
        return draws.haar(_integer(n), 1, size=size, rng=rng)[..., 0]


class MatrixLangevinRV(StiefelRV):
    name = "MatrixLangevin"
    signature = "(n,p)->(n,p)"
    _print_name = ("MatrixLangevin", r"\operatorname{MatrixLangevin}")

    @classmethod
    def rng_fn(cls, rng, F, size):
        return _batched(lambda F, size: draws.matrix_langevin(F, size=size, rng=rng), [F], [2], size)


class ScaledMatrixLangevinRV(StiefelRV):
    """Matrix Langevin in its mean direction ``M`` and concentrations ``kappa``, which are the singular values of F."""

    name = "MatrixLangevin"
    signature = "(n,p),(p)->(n,p)"
    _print_name = ("MatrixLangevin", r"\operatorname{MatrixLangevin}")

    @classmethod
    def rng_fn(cls, rng, M, kappa, size):
        def draw(M, kappa, size):
            return draws.matrix_langevin(M * kappa, size=size, rng=rng)

        return _batched(draw, [M, kappa], [2, 1], size)


class VonMisesFisherRV(StiefelRV):
    name = "VonMisesFisher"
    signature = "(n),()->(n)"
    vector = True
    _print_name = ("VonMisesFisher", r"\operatorname{VonMisesFisher}")

    @classmethod
    def rng_fn(cls, rng, mu, kappa, size):
        def draw(mu, kappa, size):
            return draws.von_mises_fisher(mu, float(kappa), size=size, rng=rng)

        return _batched(draw, [mu, kappa], [1, 0], size)


class MatrixBinghamRV(StiefelRV):
    name = "MatrixBingham"
    signature = "(n,n),(p,p)->(n,p)"
    _print_name = ("MatrixBingham", r"\operatorname{MatrixBingham}")

    @classmethod
    def rng_fn(cls, rng, A, B, size):
        def draw(A, B, size):
            return draws.matrix_bingham(A, B, len(B), size=size, rng=rng)

        return _batched(draw, [A, B], [2, 2], size)


class SubspaceBinghamRV(StiefelRV):
    """Matrix Bingham with ``B`` the identity: it depends on the span of the columns only."""

    name = "MatrixBingham"
    signature = "(n,n),()->(n,p)"
    _print_name = ("MatrixBingham", r"\operatorname{MatrixBingham}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        A, p = dist_params
        return [A.shape[-1] if param_shapes is None else param_shapes[0][-1], _symbolic_integer(p)]

    @classmethod
    def rng_fn(cls, rng, A, p, size):
        p = _integer(p)

        def draw(A, size):
            return draws.matrix_bingham((A + A.T) / 2, None, p, size=size, rng=rng)

        return _batched(draw, [A], [2], size)


class MatrixBinghamLangevinRV(StiefelRV):
    name = "MatrixBinghamLangevin"
    signature = "(n,n),(p,p),(n,p)->(n,p)"
    _print_name = ("MatrixBinghamLangevin", r"\operatorname{MatrixBinghamLangevin}")

    @classmethod
    def rng_fn(cls, rng, A, B, F, size):
        def draw(A, B, F, size):
            return draws.matrix_bingham_langevin(A, B, F, size=size, rng=rng)

        return _batched(draw, [A, B, F], [2, 2, 2], size)


class MatrixAngularCentralGaussianRV(StiefelRV):
    name = "MatrixAngularCentralGaussian"
    signature = "(n,n),()->(n,p)"
    _print_name = ("MatrixAngularCentralGaussian", r"\operatorname{MACG}")

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        Sigma, p = dist_params
        return [Sigma.shape[-1] if param_shapes is None else param_shapes[0][-1], _symbolic_integer(p)]

    @classmethod
    def rng_fn(cls, rng, Sigma, p, size):
        p = _integer(p)

        def draw(Sigma, size):
            return draws.angular_central_gaussian(Sigma, p, size=size, rng=rng)

        return _batched(draw, [Sigma], [2], size)
