"""Groups of an InferenceData (PyMC 5) or a DataTree (PyMC 6), for one chain or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

__all__ = ["Groups", "as_result", "groups_of", "joined"]

Groups = dict[str, xr.Dataset]


def groups_of(idata: Any, chain: int) -> Groups:
    """The datasets of one chain, with its number as coordinate."""
    found = (
        {name: node.to_dataset() for name, node in idata.children.items()}
        if isinstance(idata, xr.DataTree)
        else {name: idata[name] for name in idata.groups()}
    )
    return {name: ds.assign_coords(chain=[chain]) if "chain" in ds.dims else ds for name, ds in found.items()}


def joined(parts: list[Groups]) -> Groups:
    """Join the groups of single chains, given in the order of their numbers."""
    first = parts[0]
    return {
        name: xr.concat(
            [part[name] for part in parts],
            dim="chain",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="override",
            combine_attrs="override",
        )
        if "chain" in ds.dims
        else ds
        for name, ds in first.items()
    }


def as_result(groups: Groups) -> Any:
    """What ``pm.sample`` returns for these groups."""
    import arviz as az  # late, as in PyMC 6: it takes longer to import than this package

    if int(az.__version__.split(".")[0]) >= 1:
        return xr.DataTree.from_dict(groups)  # type: ignore[arg-type]
    return az.InferenceData(**groups)  # type: ignore[arg-type]


def divergences(groups: Groups) -> int:
    """Divergent transitions after tuning."""
    stats = groups.get("sample_stats")
    return 0 if stats is None or "diverging" not in stats else int(np.sum(stats["diverging"].values))
