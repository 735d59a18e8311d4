"""Draws of many chains in one zarr store: one chunk per chain and variable, written by the task that ran the chain.

The driver writes names, shapes and coordinates. Each task fills its own chunks, so no locks are needed, and
marks its chain as finished last. Only these marks show which chains are done; an interrupted run is resumed from them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import uuid
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pymc_stiefel.cluster._checks import needs
from pymc_stiefel.cluster._results import Groups

__all__ = ["Store", "identity"]

OURS = "sample_chains"
PROBE_SIZE, PROBE_TOLERANCE = 64, 1e-6
FINISHED, SECONDS, DIVERGENCES = range(3)


@dataclass(frozen=True)
class Store:
    """Where draws are kept: a path, or a URL of fsspec with its options."""

    url: str
    storage_options: dict[str, Any] | None = None
    call: str = ""  # a name for this call, under which workers keep the arrays open

    @classmethod
    def at(cls, place: Any, storage_options: dict[str, Any] | None = None) -> Store:
        """Workers have other working directories, so a path becomes absolute."""
        url = os.fspath(place)
        if storage_options is None:  # versions of zarr differ in how they treat local URLs: a path is plain
            url = url.removeprefix("file://").removeprefix("local://")
        return cls(url if "://" in url else os.path.abspath(url), storage_options, uuid.uuid4().hex)

    def _open(self, mode: str) -> Any:
        return needs("zarr").open_group(self.url, mode=mode, storage_options=self.storage_options)

    # ------------------------------------------------------------ driver

    def recorded(self) -> dict[str, Any] | None:
        """The identity of the run in the store, None if there is no store yet."""
        try:
            root = self._open("r")
        except (FileNotFoundError, NotADirectoryError):  # zarr's own errors are subclasses of the first
            if "://" not in self.url and os.path.lexists(self.url):
                raise ValueError(f"store={self.url!r} exists and is not a zarr store; give another path") from None
            return None
        if OURS not in root.attrs:
            raise ValueError(
                f"store={self.url!r} was not written by sample_chains, or its preparation was interrupted; "
                "delete it or give another path"
            )
        stored: dict[str, Any] = json.loads(root.attrs[OURS])
        return stored

    def create(self, template: Groups, run: dict[str, Any], job: bytes) -> None:
        """Write everything but the draws, for the numbers of draws and chains in ``run``."""
        chains = run["chains"]
        try:
            root = self._open("w-")
        except Exception as error:
            raise OSError(
                f"store={self.url!r} cannot be written ({type(error).__name__}: {error}); give a path or URL that the "
                "driver and all workers can write to"
            ) from error
        for name, dataset in template.items():
            length = run["tune"] if name.startswith("warmup") else run["draws"]
            if "tuning_steps" in dataset.attrs:
                dataset = dataset.assign_attrs(tuning_steps=run["tune"])
            self._create_group(root, name, dataset, chains, length)
        own = root.create_group(OURS)
        own.create_array("record", shape=(chains, 3), chunks=(1, 3), dtype="f8", fill_value=0.0)
        own.create_array("job", data=np.frombuffer(job, dtype=np.uint8))
        root.attrs[OURS] = json.dumps(run)

    def _create_group(self, root: Any, name: str, dataset: xr.Dataset, chains: int, length: int) -> None:
        drawn = [key for key in dataset.data_vars if "chain" in dataset[key].dims]
        frame = dataset.drop_vars(drawn)
        if drawn:
            frame = frame.drop_dims([dim for dim in ("chain", "draw") if dim in frame.dims])
            frame = frame.assign_coords(chain=np.arange(chains), draw=np.arange(length))
            frame.attrs.pop("sampling_time", None)
        with warnings.catch_warnings():  # zarr 3 has no final format for labels of coordinates
            warnings.filterwarnings("ignore", module="zarr")
            warnings.filterwarnings("ignore", message=".*(Zarr V3|Zarr format 3).*")
            frame.to_zarr(
                self.url, group=name, mode="a", consolidated=False, storage_options=self.storage_options, zarr_format=3
            )
        group = root[name]
        for key in drawn:
            array = dataset[key]
            if array.dtype.kind not in "biufc":
                raise TypeError(
                    f"{name}.{key} has dtype {array.dtype}, which a store cannot keep; leave keep_warning_stat out"
                )
            shape = tuple({"chain": chains, "draw": length}.get(str(dim), size) for dim, size in array.sizes.items())
            group.create_array(
                str(key),
                shape=shape,
                chunks=tuple(1 if dim == "chain" else max(1, n) for dim, n in zip(array.dims, shape, strict=True)),
                dtype=array.dtype,
                fill_value=np.nan if array.dtype.kind == "f" else None,
                dimension_names=[str(dim) for dim in array.dims],
                attributes={key: value for key, value in array.attrs.items() if isinstance(value, str | int | float)},
            )

    def record(self) -> np.ndarray:
        """One row for each chain: whether it is finished, its seconds, its divergences."""
        return np.asarray(self._open("r")[f"{OURS}/record"][:])

    def read(self, chains: list[int]) -> Groups:
        """The groups with these chains, opened lazily: one Dask chunk per chain if Dask is installed."""
        chunks: Any = {} if importlib.util.find_spec("dask") else None
        groups = {}
        for name in self._open("r").group_keys():
            if name == OURS:
                continue
            opened = xr.open_zarr(
                self.url, group=name, chunks=chunks, consolidated=False, storage_options=self.storage_options
            )
            whole = "chain" not in opened.dims or opened.sizes["chain"] == len(chains)
            groups[name] = opened if whole else opened.isel(chain=chains)
        return groups

    # ------------------------------------------------------------ tasks

    def read_job(self) -> bytes:
        """The pickled job."""
        return np.asarray(self._open("r")[f"{OURS}/job"][:]).tobytes()

    def write(self, chain: int, groups: Groups, seconds: float, divergences: int) -> None:
        """Write the draws of one chain, then mark it as finished."""
        for name, dataset in groups.items():
            for key, array in dataset.data_vars.items():
                if "chain" in array.dims:
                    self._array(f"{name}/{key}")[chain] = array.transpose("chain", ...).values[0]
        self._array(f"{OURS}/record")[chain] = np.array([1.0, seconds, divergences])

    def _array(self, path: str) -> Any:
        """An array, opened once by each worker, because opening takes longer than writing a chain."""
        arrays = _opened(self.call)
        if path not in arrays:
            arrays[path] = self._open("r+")[path]
        return arrays[path]


@functools.lru_cache(maxsize=2)
def _opened(call: str) -> dict[str, Any]:
    """Arrays that this process has open for a call. A later call may find another store at the same place."""
    return {}


def identity(settings: dict[str, Any], probe: Groups) -> dict[str, Any]:
    """What must agree for a run to be resumed: settings, variables, data, and the first draws of a short chain.

    The short chain represents what cannot be listed: the density and the settings of the steps.
    """
    posterior = probe["posterior"]
    numbers = np.concatenate([np.ravel(posterior[name].values[0]).astype(float) for name in sorted(posterior, key=str)])
    data = {
        f"{group}.{name}": hashlib.sha256(np.ascontiguousarray(dataset[name].values).tobytes()).hexdigest()[:16]
        for group, dataset in probe.items()
        for name in dataset.data_vars
        if "chain" not in dataset[name].dims and dataset[name].dtype != object
    }
    return {
        **settings,
        "variables": {str(name): str(dict(posterior[name].isel(chain=0, draw=0).sizes)) for name in posterior},
        "data": data,
        "first draws": [float(number) for number in numbers[:PROBE_SIZE]],
    }


def differences(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences between the run in a store and the requested run, in words."""
    found = []
    for key in [key for key in now if key != "first draws"]:
        one, other = stored.get(key), now[key]
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
            parts = [
                f"{name} {one.get(name, 'missing')} in the store, {other.get(name, 'missing')} now" for name in names
            ]
            found.append(f"{key}: {', '.join(parts)}")
        else:
            found.append(f"{key}: {one} in the store, {other} now")
    one, other = np.array(stored["first draws"]), np.array(now["first draws"])
    if not found and not (one.shape == other.shape and np.allclose(one, other, PROBE_TOLERANCE, PROBE_TOLERANCE)):
        found.append(
            "the density or the step: variables, data and settings have the same names and values, but the first draws "
            f"of a short chain are {np.round(one[:4], 4).tolist()} in the store, {np.round(other[:4], 4).tolist()} now"
        )
    return found
