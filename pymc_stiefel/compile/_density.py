"""From a PyMC model to the compiled log density that the engine calls.

The variables of a step become one flat vector in the engine's layout. Orthonormal variables enter with their
untransformed density, all others with PyMC's transforms. The function that PyTensor's numba backend compiles is
wrapped as a C function; values that are not sampled by the step (data, variables of other steps) are passed by
address, so that they may change between draws without a new compilation.
"""

from __future__ import annotations

import copyreg
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pymc.pytensorf import compile, rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_stiefel import geometry
from pymc_stiefel.compile._cache import kept
from pymc_stiefel.compile._checks import index_check
from pymc_stiefel.compile._layout import layout_of, make_slots, manifold_block
from pymc_stiefel.compile._link import HEAD, STRICT, calls_python, evaluate, link_numba, link_python, raise_error
from pymc_stiefel.compile._minibatches import INDEX_NAME, has_minibatches, make_batches, with_own_indices
from pymc_stiefel.compile._ordered_log import has_log_gaps, in_widths
from pymc_stiefel.engine.jit.linking import linked_once
from pymc_stiefel.engine.stochastic_kernels import no_batches
from pymc_stiefel.ops import without_manifold_check

__all__ = ["ModelDensity", "manifold_block", "model_density"]


def numba_mode() -> Mode:
    """PyTensor's numba mode, with this package's products, sums and elementary functions."""
    # imported late: PyTensor's numba backend takes a tenth of a second
    from pymc_stiefel.compile.rewrites import functions, products, sums, symmetric

    return get_mode("NUMBA").including(symmetric.NAME, products.NAME, sums.NAME, functions.NAME)


class ModelDensity:
    """Log density and gradient of a model, as an address for the engine.

    Parameters
    ----------
    model : pymc.Model
    values : sequence of value variables
        The variables that are sampled. The others are held fixed at ``shared``.
    initial_point : dict
        Defines the shapes and the first values of ``shared``.
    reflect : bool or None
        Which matrices may have the sign of a column flipped; None means those in O(n), which need it.
    minibatches : bool
        Whether to accept a model with ``pm.Minibatch``. The caller writes the numbers of the rows to ``batches.rows``
        before each evaluation. If False, such a model is refused.
    jacobian : bool
        Whether the density of transformed variables includes the Jacobian of their transform.
    widths : bool
        Whether ordered scales are reparameterised to remove a funnel, see ``_ordered_log``.
    tempered : bool
        Whether the terms of observed variables and potentials are multiplied by ``inverse_temperature``.

    Attributes
    ----------
    layout : Layout
    inverse_temperature : shared variable
    shared : dict
        Name of a variable that is not sampled -> its shared variable.
    reads : bool
        Whether the density reads data or other variables, which may be replaced, see ``refresh``.
    batches : Batches
        Row numbers of the minibatches, empty without ``pm.Minibatch``.
    is_slow : bool
        Whether evaluations go through Python.
    """

    is_slow = False

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
        tempered: bool = False,
        compile_kwargs: dict | None = None,
    ):
        blocks = {value: manifold_block(model, value) for value in values}
        gaps = [value for value in values if widths and has_log_gaps(model, value)]
        self.slots = make_slots(values, blocks, gaps, initial_point)
        self.layout = layout_of(self.slots, reflect)
        self._by_name = {str(slot.value.name): slot for slot in self.slots}

        self.inverse_temperature = pytensor.shared(np.asarray(1.0), "inverse_temperature__")
        on_manifold = [value for value in values if blocks[value] is not None]
        logp = _log_density(model, on_manifold, jacobian, self.inverse_temperature if tempered else None)
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
        self._check_indices = index_check(logp, [flat], givens)
        self._graph = ([flat], [pt.cast(logp, "float64"), packed], givens)
        self._compile_kwargs = {k: v for k, v in (compile_kwargs or {}).items() if k != "mode"}
        with model:  # for the model's setting of bounds checks
            self._compile()

    # ------------------------------------------------------------ compilation

    def _compile(self) -> None:
        inputs, outputs, givens = self._graph
        try:
            with pytensor.config.change_flags(**STRICT), linked_once():
                self._function = compile(inputs, outputs, givens=givens, mode=numba_mode(), **self._compile_kwargs)
                self._function.trust_input = True
                self._link()
        except Exception as error:  # whatever numba raises, try the default backend
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
        self._c_function: Any = link_numba(self._function.vm.jit_fn, self.layout.size, self._kinds)

    def _link_python(self) -> None:
        self._kinds, self.is_slow = [], True
        self._c_function = link_python(self._function, self.layout.size)

    @cached_property
    def calls_python(self) -> bool:
        """Whether an evaluation runs Python code, even for a single Op, so that threads would wait for each other."""
        return self.is_slow or calls_python(self._function)

    @property
    def address(self) -> int:
        return self._c_function.address

    # ------------------------------------------------------------ data

    def refresh(self) -> bool:
        """Read data and other variables again; return whether any has been replaced since the last time."""
        known = getattr(self, "_values", None)
        self._own_batches()
        values = [container.storage[0] for container in self._function.input_storage[1:]]
        if known is not None and all(new is old for new, old in zip(values, known, strict=True)):
            return False
        if known is None or any(values[k] is not known[k] for k in self._data):
            self.checked = False
        self._values = values
        self._held = [
            np.asarray(value, dtype=dtype, order="C") for value, (dtype, _) in zip(values, self._kinds, strict=False)
        ]
        numbers = [number for array in self._held for number in (array.ctypes.data, *array.shape)]
        self.extra = np.array([*[0] * HEAD, *numbers], dtype=np.int64)
        return True

    @cached_property
    def _data(self) -> list[int]:
        """Positions of the data among the values that are read. Users do not replace the others."""
        own = {shared.name for shared in self.shared.values()}
        names = [container.name or "" for container in self._function.input_storage[1:]]
        return [k for k, name in enumerate(names) if name not in own and not name.startswith(INDEX_NAME)]

    def check(self, flat: np.ndarray) -> None:
        """Raise an error if the data are wrong at ``flat``: indices out of bounds, lengths that do not fit."""
        if self._check_indices is not None:
            self._check_indices(flat)
        try:
            if self.is_slow:
                self._function(flat)
            else:  # called from Python, which receives errors of compiled code
                self._function.vm.jit_fn(flat, *(np.require(array, requirements="W") for array in self._held))
        except np.linalg.LinAlgError:
            self.checked = True  # a divergence
        except Exception as error:
            error.add_note("The log density of the model cannot be evaluated: do its data fit together?")
            raise
        self.checked = True

    def check_subspaces(self, flat: np.ndarray, gradient: np.ndarray) -> None:
        """Refuse a density that depends on more than the span of a Grassmann variable's columns."""
        for slot in self.slots:
            if slot.block is not None and slot.block.subspace:
                refuse_turning(str(slot.value.name), slot.view(flat), slot.view(gradient))

    def raise_error(self) -> None:
        """Raise an error that Python code raised in an evaluation; the engine cannot."""
        raise_error(self.extra)

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
        """Names of the value variables that are sampled."""
        return list(self._by_name)

    def pack(self, point: dict[str, np.ndarray]) -> np.ndarray:
        """The flat vector of a point (names and values of value variables)."""
        flat = np.empty(self.layout.size)
        for name, slot in self._by_name.items():
            slot.write(point[name], flat)
        return flat

    def unpack(self, states: np.ndarray, point: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The points of flat vectors, one per row: copies of ``point`` with new values of the sampled variables."""
        points = [point.copy() for _ in states]
        for name, slot in self._by_name.items():
            values = slot.read(states)
            rows = values if values.ndim > 1 else [values[k, ...] for k in range(len(values))]  # arrays, not scalars
            for new, value in zip(points, rows, strict=True):
                new[name] = value
        return points

    def on_manifold(self, flat: np.ndarray) -> np.ndarray:
        """Replace matrices that are not orthonormal by the nearest orthonormal ones, in place."""
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
        return evaluate(self.address, flat, self.extra)

    def copy(self) -> ModelDensity:
        """A copy with the same compiled functions, for another chain or step. It keeps its own errors."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        del new._values
        new.refresh()
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Compiled C functions cannot be sent to other processes; they are linked again there."""
        dropped = ("_c_function", "_graph", "_values", "_held", "extra")
        state = {key: value for key, value in self.__dict__.items() if key not in dropped}
        return state | {"_function": _Travelling(self._function)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with linked_once():
            if self.is_slow:
                self._link_python()
            else:
                self._link()
        self.refresh()


def model_density(
    model: pm.Model,
    values: Sequence[Variable],
    initial_point: dict[str, np.ndarray],
    *,
    reflect: bool | None = None,
    minibatches: bool = False,
    compile_kwargs: dict | None = None,
) -> ModelDensity:
    """The density that samplers use, compiled once for a model.

    With minibatches or variables of other steps, it has its own shared values, and is compiled for every call.
    """

    def make() -> ModelDensity:
        options: Any = {"reflect": reflect, "minibatches": minibatches, "compile_kwargs": compile_kwargs}
        return ModelDensity(model, values, initial_point, widths=True, **options)

    if set(values) != set(model.value_vars) or (minibatches and has_minibatches(model)):
        return make()
    shapes = tuple((value, initial_point[str(value.name)].shape) for value in values)
    options = sorted((name, repr(option)) for name, option in (compile_kwargs or {}).items())
    return kept(model, ("density", shapes, reflect, *options), make).copy()


class _Travelling:
    """Pickles a compiled function such that another process compiles it with the same settings."""

    def __init__(self, function) -> None:
        self.function = function

    def __reduce__(self):
        return _arrive, copyreg.dispatch_table[type(self.function)](self.function)


def _arrive(make, arguments):
    numba_mode()  # registers the rewrites
    with pytensor.config.change_flags(**STRICT):
        return make(*arguments)


def _log_density(
    model: pm.Model, on_manifold: list[Variable], jacobian: bool = True, likelihood_weight: Variable | None = None
) -> Variable:
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
    terms = [pt.sum(factor) for factor in factors]
    if likelihood_weight is not None:
        free = [rv in model.free_RVs for rv in model.basic_RVs] + [False] * len(model.potentials)
        terms = [term if prior else likelihood_weight * term for term, prior in zip(terms, free, strict=True)]
    return without_manifold_check([pt.sum(terms)])[0]


def refuse_turning(name: str, X: np.ndarray, G: np.ndarray) -> None:
    """Refuse the gradient ``G`` of a density that changes when the columns of ``X`` are rotated."""
    turning = X.swapaxes(-1, -2) @ G
    if np.abs(turning - turning.swapaxes(-1, -2)).max() > 1e-6 * (1.0 + np.abs(G).max()):
        name = name.removesuffix("_polar__")
        raise ValueError(
            f"the log density changes when the columns of {name} are rotated, but a Grassmann variable may enter the "
            f"model through its subspace alone, such as {name} @ {name}.T; use StiefelUniform for {name}, or change "
            "the model"
        )


def _refuse_random(logp: Variable) -> None:
    """Refuse a random density (``pm.Minibatch``): it has no exact accept step."""
    if any(isinstance(variable.type, RandomType) for variable in ancestors([logp])):
        raise ValueError(
            "the log density of this model is random (pm.Minibatch?): an accept step would be wrong. "
            "Use OrthogonalSGHMC, or put the whole data in the model."
        )
