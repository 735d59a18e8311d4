"""Every sampler on every problem: ``python -m benchmarks [--quick]``.

Each (problem, sampler) runs in a process of its own, on one thread; the samplers of a problem take turns, seed by seed.
Results are appended to ``benchmarks/runs.jsonl``, so that an interrupted run goes on where it stopped; ``--fresh``
starts over. At the end posteriors are compared, the speeds of samplers that agree are printed, and
``benchmarks/results.json`` is written; ``python -m benchmarks.report`` makes docs/benchmarks.md with its picture of it.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import argparse
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.problems import DATA, PROBLEMS
from benchmarks.report import print_tables
from benchmarks.samplers import SAMPLERS
from benchmarks.summary import summarise, with_earlier
from benchmarks.worker import work

HERE = Path(__file__).parent
BETTER = ("nutpie low rank", "PyMC NUTS")  # run on the better of nutpie's two expansions
DEFAULT_SAMPLERS = (
    *("StiefelNUTS", "OrthogonalHMC", "GeodesicHMC", "nutpie, polar", "nutpie, QR"),
    *BETTER,
    *("PyMC HMC, polar", "mici"),
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one seed, 200 draws, two problems: a smoke test that keeps nothing"
    )
    parser.add_argument("--problems", nargs="+", metavar="NAME", help=f"of: {'; '.join(PROBLEMS)}; or their beginnings")
    parser.add_argument("--samplers", nargs="+", metavar="NAME", help=f"of: {'; '.join((*SAMPLERS, *BETTER))}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, help="after as many of warm-up; default: as the problem says")
    parser.add_argument(
        "--budget", type=float, default=12, help="seconds of a sampler on a problem that no new seed is to exceed"
    )
    parser.add_argument("--limit", type=float, default=75, help="seconds after which it is stopped")
    parser.add_argument("--data", type=Path, default=DATA, help="where eigenmodel/hoff.dat is")
    parser.add_argument("--output", type=Path, help="directory of runs.jsonl and results.json; default: benchmarks")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.draws = 1, options.draws or 200
        options.problems = options.problems or ["uniform (10, 1)", "ppca 30, [5"]
        options.samplers = options.samplers or ["StiefelNUTS", "OrthogonalHMC", "nutpie, QR", "mici"]
    options.output = options.output or (Path(tempfile.mkdtemp()) if options.quick else HERE)
    options.problems = chosen(options.problems, list(PROBLEMS), "problem")
    options.samplers = [
        name
        for given in options.samplers or DEFAULT_SAMPLERS
        for name in ([given] if given in BETTER else chosen([given], list(SAMPLERS), "sampler"))
    ]
    return options


def chosen(given: list[str] | None, known: list[str], kind: str) -> list[str]:
    """The names that begin as one of those given."""
    if given is None:
        return known
    for name in given:
        if not any(full.startswith(name) for full in known):
            sys.exit(f"no {kind} begins with {name!r}; there are: {'; '.join(known)}")
    return [full for full in known if any(full.startswith(name) for name in given)]


class Journal:
    """The runs so far, on disk as they come."""

    def __init__(self, path: Path, fresh: bool, draws: int | None) -> None:
        self.path = path
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if any((record["machine"], record["asked"]) != (machine(), draws) for record in self.records):
            sys.exit(f"{path} was made with other versions, draws or on another machine: start over with --fresh")

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, problem: str, sampler: str) -> list[dict[str, Any]]:
        return [r for r in self.records if (r["problem"], r["sampler"]) == (problem, sampler)]


class Cell:
    """A sampler on a problem, in a process that is started with its first seed and waits for the next.

    ``patience`` multiplies the times allowed.
    """

    def __init__(
        self, problem: str, sampler: str, patience: float, options: argparse.Namespace, journal: Journal
    ) -> None:
        self.problem, self.sampler, self.options, self.journal = problem, sampler, options, journal
        self.budget, self.limit = options.budget * patience, options.limit * patience
        self.process: Any = None

    def run(self, seed: int) -> None:
        """One more seed, unless it is known, or would exceed the budget, compilation not counted."""
        known = self.journal.of(self.problem, self.sampler)
        walls = [record["wall"] for record in known]
        if any("failed" in record or record["seed"] == seed for record in known):
            return
        if walls and sum(walls) + walls[-1] > self.budget:
            return
        if self.process is None:
            self._start()
        record = {"wall": 0.0} | self._answer(seed)
        common = {"problem": self.problem, "sampler": self.sampler, "asked": self.options.draws, "machine": machine()}
        self.journal.add(common | record)
        show(self.problem, self.sampler, record)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        settings = (self.problem, self.sampler, self.options.draws, place(self.problem, self.options))
        self.process = context.Process(target=work, args=(theirs, *settings))
        self.process.start()
        theirs.close()

    def _answer(self, seed: int) -> dict[str, Any]:
        try:
            self.connection.send(seed)
            if self.connection.poll(self.limit):
                return self.connection.recv()
            self.process.kill()
            return {"failed": f"no result in {self.limit:.0f} s", "wall": self.limit}
        except (EOFError, BrokenPipeError):
            self.process.join()
            return {"failed": f"exit code {self.process.exitcode}"}

    def close(self) -> None:
        if self.process is not None:
            self.connection.close()
            self.process.join()


def place(problem: str, options: argparse.Namespace) -> dict[str, Path]:
    """Where the data are, for the problem that reads some."""
    return {"path": options.data} if problem == "eigenmodel" else {}


def show(problem: str, sampler: str, record: dict[str, Any]) -> None:
    head = f"{problem:38s} {sampler:22s}"
    if "failed" in record:
        print(f"{head} {record['failed']}", flush=True)
        return
    gradients = record["gradients"] + record["warmup_gradients"]
    seconds = record["warmup"] + record["sampling"]
    print(
        f"{head} seed {record['seed']}: {seconds:6.2f} s, {gradients:7d} gradients, min ESS {record['min_ess']:6.0f}, "
        f"compiled in {record['compile']:4.1f} s {record['note']}",
        flush=True,
    )


def better_expansion(problem: str, journal: Journal) -> str:
    """The expansion on which nutpie had more effective draws a second in its first run."""

    def speed(expansion: str) -> float:
        runs = [record for record in journal.of(problem, f"nutpie, {expansion}") if "failed" not in record]
        return max((run["min_ess"] / (run["warmup"] + run["sampling"]) for run in runs[:1]), default=0.0)

    return max(("QR", "polar"), key=speed)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.output / "runs.jsonl", options.fresh, options.draws)
    multiprocessing.set_forkserver_preload(["benchmarks.worker"])  # imports are shared, compiled code is not
    start = time.perf_counter()
    for problem in options.problems:
        if problem == "eigenmodel" and not (options.data / "eigenmodel" / "hoff.dat").exists():
            print(f"eigenmodel is left out: no {options.data / 'eigenmodel' / 'hoff.dat'}; say where with --data")
            continue
        patience = PROBLEMS[problem](**place(problem, options)).patience
        cells: dict[str, Cell] = {}
        for seed in range(options.seeds):  # samplers take turns, so that a slow minute of the machine is nobody's alone
            for sampler in options.samplers:
                if sampler not in cells:
                    name = f"{sampler}, {better_expansion(problem, journal)}" if sampler in BETTER else sampler
                    cells[sampler] = Cell(problem, name, patience, options, journal)
                cells[sampler].run(seed)
        for cell in cells.values():
            cell.close()
        print(f"--- {(time.perf_counter() - start) / 60:.1f} minutes", flush=True)
    command = shlex.join(["python", "-m", "benchmarks", *(arguments if arguments is not None else sys.argv[1:])])
    results, path = summarise(journal.records, f"`{command}`"), options.output / "results.json"
    if path.exists() and not options.fresh:
        results = with_earlier(results, json.loads(path.read_text()))
    path.write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results)


if __name__ == "__main__":
    main()
