"""From a PyMC model to the compiled log density that the engine calls.

The variables of a step become one flat vector in the engine's layout. Orthonormal variables enter with their
untransformed density, everything else as PyMC transforms it. The function that PyTensor's numba backend compiles is
wrapped as a C function; values that are not sampled by the step (data, variables of other steps) are handed over by
address, so that they may change between draws without anything being compiled again.
"""

from __future__ import annotations

import copyreg
import ctypes
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pymc.pytensorf import compile, rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_stiefel import geometry
from pymc_stiefel.compile._minibatches import INDEX_NAME, make_batches, with_own_indices
from pymc_stiefel.compile._ordered_log import from_widths, has_log_gaps, in_widths, to_widths
from pymc_stiefel.compile.rewrites import functions as _functions
from pymc_stiefel.compile.rewrites import products as _products
from pymc_stiefel.compile.rewrites import sums as _sums
from pymc_stiefel.compile.rewrites import symmetric as _symmetric
from pymc_stiefel.distributions._laws import StiefelBlock, stiefel_block, without_manifold_check
from pymc_stiefel.distributions.transforms import ManifoldExpansion
from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED, Layout, flip_kinds, make_layout
from pymc_stiefel.engine.compiling import DENSITY_SIGNATURE, array_at
from pymc_stiefel.engine.stochastic import no_batches

__all__ = ["ModelDensity", "manifold_block"]

_C_TYPE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def manifold_block(model: pm.Model, value: Variable) -> StiefelBlock | None:
    """The Stiefel block of a value variable, or None if it is to be treated as Euclidean.

    A variable with a chart as its transform (Householder) is Euclidean.
    """
    rv = model.values_to_rvs[value]
    transform = model.rvs_to_transforms.get(rv)
    if transform is None or isinstance(transform, ManifoldExpansion):
        return stiefel_block(rv)
    return None


STRICT = {"numba__fastmath": False}
"""With PyTensor's relaxed floating-point rules, code fresh from the compiler rounds differently from the same code read
from the cache, and a seed would give other draws in the next run, or in a spawned process."""


def numba_mode() -> Mode:
    """PyTensor's numba mode, with products, sums and elementary functions of our own."""
    return get_mode("NUMBA").including(_symmetric.NAME, _products.NAME, _sums.NAME, _functions.NAME)


@dataclass(frozen=True)
class _Slot:
    """Where a value variable sits in the flat vector of the engine."""

    value: TensorVariable
    shape: tuple[int, ...]
    block: StiefelBlock | None
    start: int
    widths: bool = False  # in the coordinates of _log_gaps

    @cached_property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @cached_property
    def stored(self) -> tuple[int, ...] | None:
        """Shape of the matrices as they are stored, by columns; None for other variables."""
        if self.block is None or self.block.vector:
            return None
        return (*self.shape[:-2], self.shape[-1], self.shape[-2])

    def unpack(self, flat):
        """The variable as an expression of the flat vector."""
        # cast first: the copy of a transposed matrix has no layout that numba knows, and products with it are slow
        part = flat[self.start : self.start + self.size].astype(self.value.dtype)
        return part.reshape(self.shape) if self.stored is None else part.reshape(self.stored).swapaxes(-1, -2)

    def pack(self, array):
        """A gradient, as an expression, in the layout of the flat vector."""
        return (array if self.stored is None else array.swapaxes(-1, -2)).ravel().astype("float64")

    def write(self, value: np.ndarray, flat: np.ndarray) -> None:
        """Put a value into its place in a flat vector."""
        value = np.reshape(value, self.shape)
        self.view(flat)[...] = to_widths(value) if self.widths else value

    def read(self, flat: np.ndarray) -> np.ndarray:
        """The values in each of several flat vectors, copied."""
        values = self.view(flat)
        return np.array(from_widths(values) if self.widths else values, self.value.dtype, order="C")

    def view(self, flat: np.ndarray) -> np.ndarray:
        """The place of the variable, in the variable's own shape, in one flat vector or in each of several."""
        part, several = flat[..., self.start : self.start + self.size], flat.shape[:-1]
        if self.stored is None:
            return part.reshape((*several, *self.shape))
        return part.reshape((*several, *self.stored)).swapaxes(-1, -2)


class ModelDensity:
    """Log density and gradient of a model, as an address for the engine.

    Parameters
    ----------
    model : pymc.Model
    values : sequence of value variables
        Those that are sampled. The others are held fixed at ``shared``.
    initial_point : dict
        Gives the shapes, and first values to ``shared``.
    reflect : bool or None
        Which matrices may have the sign of a column flipped: None for those of O(n), which need it.
    minibatches : bool
        Accept a density that reads ``pm.Minibatch``: its rows are those that ``batches.rows`` names, which whoever
        evaluates the density fills. Otherwise such a model is refused.
    jacobian : bool
        Whether the density of transformed variables includes the Jacobian of their transform.
    widths : bool
        Whether scales in order get coordinates in which necks are wider, see ``_ordered_log``.

    Attributes
    ----------
    layout : Layout
    shared : dict
        Name of a variable that is not sampled -> its shared variable.
    reads : bool
        Whether the density reads data or other variables, which may be replaced: see ``refresh``.
    batches : Batches
        Row numbers of the minibatches, empty without ``pm.Minibatch``.
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        initial_point: dict[str, np.ndarray],
        *,
        reflect: bool | None = None,
        minibatches: bool = False,
        jacobian: bool = True,
        widths: bool = False,
        compile_kwargs: dict | None = None,
    ):
        blocks = {value: manifold_block(model, value) for value in values}
        gaps = [value for value in values if widths and has_log_gaps(model, value)]
        self.slots = _make_slots(values, blocks, gaps, initial_point)
        self.layout = _make_layout(self.slots, reflect)
        self._by_name = {str(slot.value.name): slot for slot in self.slots}

        logp = _log_density(model, [value for value in values if blocks[value] is not None], jacobian)
        self.batches = no_batches()
        if minibatches:
            logp, indices, self._count_rows = with_own_indices(logp)
            self.batches = make_batches(indices)
        others = [value for value in model.value_vars if value not in blocks]
        self.shared = {
            value.name: pytensor.shared(initial_point[value.name], f"{value.name}_shared__") for value in others
        }
        _refuse_random(logp)
        flat = pt.vector("q", dtype="float64")
        symbols: dict[Variable, Variable] = {slot.value: slot.value for slot in self.slots}
        for value in gaps:
            logp, symbols[value] = in_widths(logp, value)
        gradients: Any = pytensor.grad(rewrite_pregrad(logp), list(symbols.values()), disconnected_inputs="ignore")
        packed = pt.join(0, *[slot.pack(g) for slot, g in zip(self.slots, gradients, strict=True)])
        givens = [(symbols[slot.value], slot.unpack(flat)) for slot in self.slots]
        givens += [(value, self.shared[value.name]) for value in others]
        self._graph = ([flat], [pt.cast(logp, "float64"), packed], givens)
        self._compile_kwargs = {k: v for k, v in (compile_kwargs or {}).items() if k != "mode"}
        with model:  # for the model's own wish about checks of bounds
            self._compile()

    # ------------------------------------------------------------ compilation

    def _compile(self) -> None:
        inputs, outputs, givens = self._graph
        try:
            with pytensor.config.change_flags(**STRICT):
                self._function = compile(inputs, outputs, givens=givens, mode=numba_mode(), **self._compile_kwargs)
            self._function.trust_input = True
            self._link()
        except Exception as error:  # whatever numba raises, the default backend decides
            warnings.warn(
                "numba cannot compile the gradient of this model, so every evaluation goes through Python, "
                f"which is slower ({type(error).__name__}: {str(error).strip().splitlines()[0]}).",
                UserWarning,
                stacklevel=2,
            )
            self._function = compile(inputs, outputs, givens=givens, mode=None, **self._compile_kwargs)
            self._function.trust_input = True
            self._link_python()
        self.reads = len(self._function.input_storage) > 1
        self.refresh()

    def _link(self) -> None:
        """Wrap the numba function as a C function."""
        containers = self._function.input_storage[1:]
        self._kinds = [(container.type.numpy_dtype, container.type.ndim) for container in containers]
        density = _c_density(self._function.vm.jit_fn, self.layout.size, self._kinds)
        with pytensor.config.change_flags(**STRICT):
            self._c_function: Any = numba.cfunc(DENSITY_SIGNATURE)(density)
        self.address: int = self._c_function.address

    def _link_python(self) -> None:
        """Wrap a Python function as a C function: the slow path."""
        size = self.layout.size
        self._kinds = []
        array = ctypes.c_double * size

        def density(q, gradient, extra):
            try:
                value, packed = self._function(np.array(array.from_address(q)))
            except Exception as error:
                # Nothing can be raised through compiled code: a failed evaluation is a divergence.
                self.last_error = error
                return np.nan
            np.ctypeslib.as_array(array.from_address(gradient))[:] = packed
            return float(value)

        self._c_function = _C_TYPE(density)
        self.address = ctypes.cast(self._c_function, ctypes.c_void_p).value or 0

    def refresh(self) -> bool:
        """Read data and other variables again; returns whether any has been replaced since the last time."""
        known = getattr(self, "_values", None)
        self._own_batches()
        values = [container.storage[0] for container in self._function.input_storage[1:]]
        if known is not None and all(new is old for new, old in zip(values, known, strict=True)):
            return False
        self._values = values
        self._held = [
            np.asarray(value, dtype=dtype, order="C") for value, (dtype, _) in zip(values, self._kinds, strict=False)
        ]
        numbers = [number for array in self._held for number in (array.ctypes.data, *array.shape)]
        self.extra = np.array(numbers or [0], dtype=np.int64)
        return True

    def _own_batches(self) -> None:
        """Let the function read its row numbers where the engine writes them, and count the rows of the data."""
        index, bounds = self.batches
        if len(bounds) == 0:
            return
        bounds[:, 2] = self._count_rows()
        for container in self._function.input_storage[1:]:
            if (container.name or "").startswith(INDEX_NAME):
                first, last = bounds[int(container.name[len(INDEX_NAME) :]), :2]
                if not np.may_share_memory(container.storage[0], index):
                    container.storage[0] = index[first:last]

    # ------------------------------------------------------------ points

    @property
    def names(self) -> list[str]:
        """Of the value variables that are sampled."""
        return list(self._by_name)

    def pack(self, point: dict[str, np.ndarray]) -> np.ndarray:
        """The flat vector of a point (names and values of value variables)."""
        flat = np.empty(self.layout.size)
        for name, slot in self._by_name.items():
            slot.write(point[name], flat)
        return flat

    def unpack(self, states: np.ndarray, point: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The points of flat vectors, one a row: ``point``, in its order, with new values of the variables here."""
        points = [point.copy() for _ in states]
        for name, slot in self._by_name.items():
            values = slot.read(states)
            rows = values if values.ndim > 1 else [values[k, ...] for k in range(len(values))]  # no bare numbers
            for new, value in zip(points, rows, strict=True):
                new[name] = value
        return points

    def on_manifold(self, flat: np.ndarray) -> np.ndarray:
        """Replace matrices that are not orthonormal by the nearest that are, in place."""
        layout = self.layout
        for n, p, start in zip(layout.n, layout.p, layout.offset, strict=True):
            part = flat[start : start + n * p].reshape(p, n)
            if geometry.orthogonality_error(part.T) > 1e-12:
                part[:] = geometry.polar(part.T).T
        return flat

    def draw_batches(self, rng: np.random.Generator) -> None:
        """Choose the rows of the next evaluation."""
        for first, last, upper in self.batches.bounds:
            self.batches.rows[first:last] = rng.integers(upper, size=last - first)

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Log density and gradient at ``flat``."""
        flat, gradient = np.array(flat, dtype=np.float64), np.empty(self.layout.size)
        value = _C_TYPE(self.address)(flat.ctypes.data, gradient.ctypes.data, self.extra.ctypes.data)
        return value, gradient

    def __getstate__(self) -> dict[str, Any]:
        """Compiled C functions do not travel to other processes; they are linked anew there."""
        dropped = ("_c_function", "address", "_graph", "_values", "_held", "extra")
        state = {key: value for key, value in self.__dict__.items() if key not in dropped}
        return state | {"_function": _Travelling(self._function)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if hasattr(self._function.vm, "jit_fn"):
            self._link()
        else:
            self._link_python()
        self.refresh()


class _Travelling:
    """A compiled function on its way to another process, where it is compiled by the same rules."""

    def __init__(self, function) -> None:
        self.function = function

    def __reduce__(self):
        return _arrive, copyreg.dispatch_table[type(self.function)](self.function)


def _arrive(make, arguments):
    with pytensor.config.change_flags(**STRICT):
        return make(*arguments)


def _make_slots(values, blocks, gaps, initial_point) -> list[_Slot]:
    """Orthonormal variables first, then the Euclidean ones."""
    slots, start = [], 0
    for value in sorted(values, key=lambda value: blocks[value] is None):
        shape = np.shape(initial_point[value.name])
        slots.append(_Slot(value, shape, blocks[value], start, value in gaps))
        start += slots[-1].size
    return slots


def _make_layout(slots: list[_Slot], reflect: bool | None) -> Layout:
    shapes: list[tuple[int, int]] = []
    flips: list = []
    for slot in slots:
        if slot.block is not None:
            block = slot.block
            count = int(np.prod(block.batch_shape, dtype=int))
            needed = block.n == block.p
            wanted = needed if reflect is None else reflect
            kept = NEVER if block.special or reflect is False else UNDECIDED
            policy = FLIPPED if wanted and not block.special else kept
            flips += flip_kinds(len(shapes), tuple(block.batch_shape), policy)
            shapes += [(block.n, block.p)] * count
    euclidean = sum(slot.size for slot in slots if slot.block is None)
    return make_layout(shapes, euclidean, flips)


def _log_density(model: pm.Model, on_manifold: list[Variable], jacobian: bool = True) -> Variable:
    """The model's log density with the transforms of ``on_manifold`` (and their Jacobian terms) left out."""
    untransformed = {model.values_to_rvs[value] for value in on_manifold}
    rvs_to_transforms = {
        rv: None if rv in untransformed else transform for rv, transform in model.rvs_to_transforms.items()
    }
    factors = transformed_conditional_logp(
        rvs=model.basic_RVs,
        rvs_to_values=model.rvs_to_values,
        rvs_to_transforms=rvs_to_transforms,
        jacobian=jacobian,
    )
    if model.potentials:
        factors = factors + replace_rvs_by_values(
            model.potentials, rvs_to_values=model.rvs_to_values, rvs_to_transforms=rvs_to_transforms
        )
    return without_manifold_check([pt.sum([pt.sum(factor) for factor in factors])])[0]


def _refuse_random(logp: Variable) -> None:
    """A density that is random itself (``pm.Minibatch``) has no exact accept step."""
    if any(isinstance(variable.type, RandomType) for variable in ancestors([logp])):
        raise ValueError(
            "the log density of this model is random (pm.Minibatch?): an accept step would be wrong. "
            "Use OrthogonalSGHMC, or put the whole data in the model."
        )


# ---------------------------------------------------------------- the C function


def _reader(dtype: np.dtype, ndim: int, place: int):
    """Compiled function ``extra -> array``: the array whose address and shape stand at ``place``."""
    kind = numba.from_dtype(dtype)
    if ndim == 0:
        return numba.njit(lambda extra: array_at(extra[place], (), kind))
    if ndim == 1:
        return numba.njit(lambda extra: array_at(extra[place], (extra[place + 1],), kind))
    shape = numba.njit(
        {
            2: lambda e: (e[place + 1], e[place + 2]),
            3: lambda e: (e[place + 1], e[place + 2], e[place + 3]),
            4: lambda e: (e[place + 1], e[place + 2], e[place + 3], e[place + 4]),
        }[ndim]
    )
    return numba.njit(lambda extra: array_at(extra[place], shape(extra), kind))


def _c_density(function, size: int, kinds: list[tuple[np.dtype, int]]):
    """The function of three pointers that numba compiles to C."""
    arguments = numba.njit(lambda extra: ())
    place = 0
    for dtype, ndim in kinds:
        arguments = _appended(arguments, _reader(dtype, ndim, place))
        place += ndim + 1
    length = max(place, 1)
    inputs = [types.Array(numba.from_dtype(dtype), ndim, "C") for dtype, ndim in kinds]
    call = _native(function, (types.Array(types.float64, 1, "C"), *inputs))
    evaluate = numba.njit(lambda q, extra: call((q,) + arguments(extra)))  # noqa: RUF005

    def density(q, gradient, extra):
        try:
            value, packed = evaluate(numba.carray(q, (size,)), numba.carray(extra, (length,)))
            for k in range(size):  # an assignment of slices would compile the text of its error: 2 seconds
                gradient[k] = packed[k]
            return value.item()
        except Exception:  # nothing can be raised through C: a failed evaluation is a divergence
            return np.nan

    return density


def _native(function, input_types):
    """A compiled numba function, called by its address.

    An ordinary call would link the whole density into its caller and optimise it again, which takes seconds and
    defeats PyTensor's disk cache.
    """
    _, folded = function.fold_argument_types(input_types, {})  # PyTensor's functions take *args: one tuple
    function.compile(folded)
    result = function.overloads[folded]
    output_type = result.signature.return_type
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)

    @intrinsic
    def call(typingctx, arguments):
        def codegen(context, builder, signature, args):
            convention = context.call_conv
            prototype = convention.get_function_type(output_type, folded)
            pointer = builder.inttoptr(context.get_constant(types.intp, address), prototype.as_pointer())
            values = args if isinstance(folded[0], types.BaseTuple) else cgutils.unpack_tuple(builder, args[0])
            status, output = convention.call_function(builder, pointer, output_type, folded, values)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return impl_ret_new_ref(context, builder, output_type, output)

        return output_type(arguments), codegen

    return call


def _appended(first, last):
    return numba.njit(lambda extra: first(extra) + (last(extra),))  # noqa: RUF005 (numba has no unpacking here)
