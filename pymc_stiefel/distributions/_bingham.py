"""The matrix Bingham family on St(n, p)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import constant_fold
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import _arguments as check
from pymc_stiefel import ops
from pymc_stiefel.distributions._base import StiefelDistribution, constant_integer, symbolic_integer, trace
from pymc_stiefel.draws import _batches
from pymc_stiefel.normalizers._functions import BINGHAM_COLUMNS
from pymc_stiefel.ops._normalizers import log_bingham_matrix
from pymc_stiefel.ops._polar import StiefelRV


class MatrixBinghamRV(StiefelRV):
    name = "MatrixBingham"
    signature = "(n,n),(p,p)->(n,p)"
    _print_name = ("MatrixBingham", r"\operatorname{MatrixBingham}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, A: Any, B: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.matrix_bingham, [A, B], [2, 2], size, rng)


class MatrixBingham(StiefelDistribution):
    r"""Matrix Bingham distribution on St(n, p).

    .. math:: f(X) = \mathrm{etr}(B X'AX) \,/\, E_\mathrm{Haar}\,\mathrm{etr}(B X'AX)

    Symmetric under sign changes of the columns. For ``B`` a multiple of the identity, and so always for p = 1, it is
    a distribution of subspaces whose normaliser :math:`{}_1F_1(p/2; n/2; A)` is exact and differentiable for
    min(p, n - p) <= 10: then ``A`` may be random. For any other ``B`` the normaliser has no tractable form; the
    parameters must be numbers, and the log density is that of the numerator. It differs by a constant, on which
    posteriors do not depend.

    Parameters
    ----------
    A : tensor_like (..., n, n)
        Symmetric. Adding a multiple of the identity does not change the law. To learn a scale, multiply ``A`` by it.
    B : array_like (..., p, p), (p,) or None
        Symmetric, or the diagonal of a diagonal matrix; None is the identity.
    p : int, optional
        Number of columns, needed if it does not follow from ``B``, ``dims``, ``shape`` or ``initval``.

    References
    ----------
    Khatri & Mardia (1977), doi:10.1111/j.2517-6161.1977.tb01610.x. Kent, Ganeiber & Mardia (2018),
    doi:10.1080/10618600.2017.1390468. Hoff (2009), doi:10.1198/jcgs.2009.07177.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> X = pm.draw(pst.MatrixBingham.dist(A=np.diag([50.0, 0, 0]), p=1), random_seed=1)
    >>> bool(abs(X[0, 0]) > 0.9)
    True
    """

    rv_type = MatrixBinghamRV
    rv_op = MatrixBinghamRV()
    lengths = ("p",)

    @classmethod
    def dist(cls, A: Any, B: Any = None, p: Any = None, *, shape: Any = None, **kwargs: Any) -> TensorVariable:
        if B is None and p is None and shape is None:
            raise ValueError("MatrixBingham needs B (p x p) or the number of columns p, got B=None and p=None")
        if B is None:
            (p,) = cls.support(shape, p)
        kwargs["shape"] = shape
        A, B = check.array("A", A, 2), _coupling(B, p)
        check.symmetric("A", A)
        n, p = A.type.shape[-1], B.shape[-1]
        if n is None:
            raise ValueError("A must have a known shape; use pytensor.tensor.specify_shape(A, (n, n))")
        check.dimensions(n, p)
        scale = B[..., 0, 0]
        if np.array_equal(B, scale[..., None, None] * np.eye(p)) and min(p, n - p) <= BINGHAM_COLUMNS:
            return _SubspaceBingham.dist(A if B.ndim == 2 and scale == 1 else A * scale[..., None, None], p, **kwargs)
        return cls.create([_constant("A", A), pt.constant(B)], **kwargs)

    def logp(value: Any, A: TensorVariable, B: TensorVariable) -> TensorVariable:
        return ops.guard(trace(value, A @ value @ B), value)


class SubspaceBinghamRV(StiefelRV):
    """Matrix Bingham with ``B`` the identity: it depends on the span of the columns only."""

    name = "MatrixBingham"
    signature = "(n,n),()->(n,p)"
    _print_name = ("MatrixBingham", r"\operatorname{MatrixBingham}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> list[Any]:
        A, p = dist_params
        return [A.shape[-1] if param_shapes is None else param_shapes[0][-1], symbolic_integer(p)]

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, A: Any, p: Any, size: Any) -> np.ndarray:
        def draw(A: Any, count: Any, rng: np.random.Generator) -> np.ndarray:
            B = np.broadcast_to(np.eye(constant_integer(p)), (len(A), constant_integer(p), constant_integer(p)))
            return _batches.matrix_bingham((A + np.swapaxes(A, -1, -2)) / 2, B, count, rng)

        return _batches.broadcast(draw, [A], [2], size, rng)


class _SubspaceBingham(StiefelDistribution):
    rv_type = SubspaceBinghamRV
    rv_op = SubspaceBinghamRV()

    @classmethod
    def dist(cls, A: Any, p: Any, **kwargs: Any) -> TensorVariable:
        return cls.create([A, pt.constant(p, dtype="int64")], **kwargs)

    def logp(value: Any, A: TensorVariable, p: TensorVariable) -> TensorVariable:
        (columns,) = constant_fold([p])
        return ops.guard(trace(value, A @ value) - log_bingham_matrix(A, int(np.asarray(columns).flat[0])), value)


class MatrixBinghamLangevinRV(StiefelRV):
    name = "MatrixBinghamLangevin"
    signature = "(n,n),(p,p),(n,p)->(n,p)"
    _print_name = ("MatrixBinghamLangevin", r"\operatorname{MatrixBinghamLangevin}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, A: Any, B: Any, F: Any, size: Any) -> np.ndarray:
        return _batches.broadcast(_batches.matrix_bingham_langevin, [A, B, F], [2, 2, 2], size, rng)


class MatrixBinghamLangevin(StiefelDistribution):
    r"""Matrix Bingham-Langevin distribution on St(n, p), with constant parameters.

    .. math:: f(X) \propto \mathrm{etr}(F'X + B X'AX)

    The log density is that of the numerator: the normaliser has no tractable form, and as long as the parameters are
    numbers it is a constant, on which posteriors do not depend. With random parameters it would matter, so they raise
    an error.

    Parameters
    ----------
    A : array_like (..., n, n)
        Symmetric.
    B : array_like (..., p, p), (p,) or None
        Symmetric, or the diagonal of a diagonal matrix; None is the identity.
    F : array_like (..., n, p)

    References
    ----------
    Hoff (2009), doi:10.1198/jcgs.2009.07177.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_stiefel as pst
    >>> X = pst.MatrixBinghamLangevin.dist(A=np.diag([3.0, 2, 1]), B=[2.0, 1.0], F=np.eye(3, 2))
    >>> pm.draw(X, random_seed=1).shape
    (3, 2)
    """

    rv_type = MatrixBinghamLangevinRV
    rv_op = MatrixBinghamLangevinRV()

    @classmethod
    def dist(cls, A: Any, B: Any, F: Any, **kwargs: Any) -> TensorVariable:
        A, F = _constant("A", check.array("A", A, 2)), _constant("F", check.array("F", F, 2))
        check.tall("F", F)
        check.symmetric("A", A)
        check.same_length("A's side", A.type.shape[-1], "the number of rows of F", F.type.shape[-2])
        return cls.create([A, pt.constant(_coupling(B, F.type.shape[-1], "the number of columns of F")), F], **kwargs)

    def logp(value: Any, A: TensorVariable, B: TensorVariable, F: TensorVariable) -> TensorVariable:
        return ops.guard(trace(F, value) + trace(value, A @ value @ B), value)


def _constant(name: str, tensor: Any) -> Any:
    if check.known(tensor) is None:
        raise ValueError(
            f"{name} must be an array of numbers here, got the symbolic {tensor}: the normaliser depends on it and is "
            "not available, so a posterior that learns it would be wrong. MatrixLangevin, "
            "MatrixAngularCentralGaussian and MatrixBingham with B a multiple of the identity take random parameters"
        )
    return tensor


def _coupling(B: Any, p: Any, like: str = "p") -> NDArray[Any]:
    """``B`` as an array of symmetric matrices (..., p, p)."""
    if B is None:
        return np.eye(check.integer("p", p))
    tensor = _constant("B", check.array("B", B, 1))
    if tensor.type.ndim == 1:
        tensor = pt.constant(np.diag(tensor.data))
    check.symmetric("B", tensor)
    if p is not None:
        check.same_length("B's side", tensor.type.shape[-1], like, check.integer("p", p))
    return tensor.data
