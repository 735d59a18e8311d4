"""The disk cache of compiled code: its key, and the handling of files that cannot be read or written."""

from __future__ import annotations

import hashlib
import pickle
import re
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import Cache


def enable_cache(target, function) -> None:
    """Enable numba's cache with our key. Numba's own key ignores edits of imported files."""
    try:
        target.enable_caching()
    except RuntimeError:
        _report("(numba found no writable folder)")
        return
    cache_file: Any = getattr(target._cache, "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, source_key(function.__code__.co_filename))


_numba_load, _numba_save = Cache.load_overload, Cache.save_overload


def _load(cache, *arguments):
    """Load from the cache. A damaged file is replaced after a new compilation."""
    try:
        return _numba_load(cache, *arguments)
    except Exception as error:  # damaged bytes can make pickle raise any error
        text = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"a damaged file in the compile cache {cache.cache_path} is replaced ({text})", RuntimeWarning, stacklevel=2
        )
        with suppress(OSError):  # as for _save
            cache.flush()
        return None


_reported: set[str] = set()


def _report(where: str) -> None:
    """Warn that nothing was saved, once for each folder and reason."""
    if where in _reported:
        return
    _reported.add(where)
    warnings.warn(
        f"compiled code could not be saved {where}, and every process compiles it again. Choose a writable folder "
        "with space by the environment variables NUMBA_CACHE_DIR=... and PYTENSOR_FLAGS=base_compiledir=...",
        RuntimeWarning,
        stacklevel=3,
    )


def _save(cache, *arguments):
    """Save to the cache. If the disk is full or read-only, the next process compiles again."""
    try:
        _numba_save(cache, *arguments)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        _report(f"in {cache.cache_path} ({reason})")


# for all users of numba: PyMC and PyTensor compile other functions of a model, and would stop with numba's error
Cache.load_overload, Cache.save_overload = _load, _save


_PACKAGE = Path(__file__).parent.parent.parent
_IMPORT = re.compile(r"^\s*from pymc_stiefel([.\w]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def source_key(file: str | Path) -> str:
    """Cache key of code compiled from ``file``: a digest of it and of all files of this package that it imports."""
    digest = hashlib.sha256()
    for path in sorted(_sources(Path(file))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(file: Path) -> set[Path]:
    found, waiting = {file}, [file]
    while waiting:
        for path in _imports(waiting.pop()) - found:
            found.add(path)
            waiting.append(path)
    return found


@cache
def _imports(file: Path) -> frozenset[Path]:
    """Files of this package that ``file`` imports."""
    found = set()
    for package, several, one in _IMPORT.findall(file.read_text(encoding="utf-8")):
        base = _PACKAGE.joinpath(*package.split("."))
        names = [name.split()[0] for name in (several or one).split(",") if name.strip()]
        found |= {path for name in names for path in (base / f"{name}.py", base / name / "__init__.py")}
        found |= {base.with_suffix(".py"), base / "__init__.py"} if package else set()
    return frozenset(path for path in found if path.exists())
