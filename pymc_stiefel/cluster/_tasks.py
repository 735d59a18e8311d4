"""The task that a worker runs: one chain, from its own random numbers, independent of earlier tasks on that worker."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle

from pymc_stiefel.cluster._checks import version_difference, versions
from pymc_stiefel.cluster._plan import Chain, Job, ReadyJob
from pymc_stiefel.cluster._results import Groups, divergences, groups_of
from pymc_stiefel.cluster._store import Store

__all__ = ["Message", "Task", "digest", "run_chain"]


@dataclass(frozen=True)
class Task:
    """One chain to run. Small: with a store the job is read from there, and the draws go there."""

    chain: bytes
    number: int
    job: bytes | None
    job_digest: str
    versions: dict[str, str]
    store: Store | None


@dataclass
class Message:
    """What a task reports to the driver."""

    chain: int
    host: str
    pid: int
    seconds: float = 0.0
    loading: float = 0.0  # seconds spent unpickling and compiling, 0 if the worker had the job already
    divergences: int = 0
    error: str | None = None  # traceback
    refused: str | None = None  # packages that differ
    groups: Groups | None = None


# One job for each thread: a step holds the state of a chain, and Dask workers run tasks in several threads.
_kept = threading.local()
_loading = threading.Lock()  # PyTensor compiles in one thread at a time


def digest(data: bytes) -> str:
    """Name of a pickled job."""
    return hashlib.sha256(data).hexdigest()


def run_chain(task: Task) -> Message:
    """Run one chain. Errors of the chain are part of the message, so that they do not stop the others."""
    message = Message(task.number, platform.node(), os.getpid())
    message.refused = version_difference(task.versions, versions()) or None
    if message.refused:
        return message
    try:
        begin = time.perf_counter()
        ready, fresh = _ready_job(task)
        begun = time.perf_counter()
        message.loading = begun - begin if fresh else 0.0
        chain: Chain = cloudpickle.loads(task.chain)
        groups = groups_of(ready.run(chain), task.number)
        message.seconds = time.perf_counter() - begun
        message.divergences = divergences(groups)
        if task.store is None:
            message.groups = groups
        else:
            task.store.write(task.number, groups, message.seconds, message.divergences)
    except Exception:
        message.error = traceback.format_exc()
    return message


def _ready_job(task: Task) -> tuple[ReadyJob, bool]:
    """The compiled job, and whether it had to be loaded."""
    if getattr(_kept, "digest", None) == task.job_digest and _kept.job.reusable:
        return _kept.job, False
    _kept.digest = _kept.job = None
    with _loading:
        data: Any = task.job if task.job is not None else task.store.read_job()  # type: ignore[union-attr]
        job: Job = cloudpickle.loads(data)
        _kept.job = job.ready()
    _kept.digest = task.job_digest
    return _kept.job, True
