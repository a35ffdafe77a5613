"""Runs what is missing, several processes side by side. Each result is kept as soon as it is there.

Start it again after whatever stopped it, and it goes on with the runs that have no result yet.
"""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.paper.experiments import Key, keys, settings_digest
from benchmarks.paper.results import Result, keep, key_of, read_runs
from benchmarks.paper.settings import Setting, SettingError

PHASES = ("all", "shared", "timing")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads NumPy


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes
    ----------
    out, work, data : Path
        Folders of the results (``SETTING.jsonl``), of shared artefacts, of the images.
    workers : int
        Processes side by side in the shared phase; the timing phase always has one. 0 for no process but this one.
    deadline : float or None
        No run starts this many seconds after the beginning.
    stop : float or None
        Runs still going on after this many seconds are ended and left for the next time; those that are known to take
        longer than is left are not started.
    longest_first : bool
        Begin with what took longest the last time, which wastes least at the end; else with what matters most.
    """

    out: Path
    work: Path
    data: Path
    device: str = "cpu"
    workers: int = 1
    deadline: float | None = None
    stop: float | None = None
    longest_first: bool = False
    again: bool = False
    failed: bool = False
    phase: str = "all"
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def file(self, setting: Setting) -> Path:
        """Return the file of a setting's results."""
        return self.out / f"{setting.name}.jsonl"


def chosen(setting: Setting, options: Options) -> list[Key]:
    """Return the runs that the options name, whether there are results or not."""
    every = keys(setting)
    for name, wanted in options.only.items():
        known = dict.fromkeys(str(getattr(key, name)) for key in every)
        if unknown := sorted(wanted - set(known)):
            raise SettingError(f"--only {name}={','.join(unknown)}: {setting.name} has {', '.join(known)}")
    return [key for key in every if all(str(getattr(key, n)) in v for n, v in options.only.items())]


def parse_only(texts: list[str]) -> dict[str, frozenset[str]]:
    """Read ``method=scrub,finetune,dataset=cifar10`` and the like: names with the values that are wanted."""
    only: dict[str, frozenset[str]] = {}
    for text in texts:
        name = ""
        for word in text.split(","):
            before, found, after = word.partition("=")
            name = before if found else name
            if name not in Key._fields:
                raise SettingError(f"--only takes {', '.join(Key._fields)}; got {word!r}")
            only[name] = only.get(name, frozenset()) | {after if found else word}
    return only


def missing(setting: Setting, options: Options) -> list[Key]:
    """Return the chosen runs without a result, with one of other settings, or with one that is to be replaced."""
    done = _done(setting, options)
    return [
        key
        for key in chosen(setting, options)
        if options.again or key not in done or (options.failed and done[key]["failed"])
    ]


def failures(setting: Setting, options: Options) -> list[Key]:
    """Return the chosen runs whose result says that they failed."""
    return [key for key, result in _done(setting, options).items() if result["failed"]]


def _done(setting: Setting, options: Options) -> dict[Key, Result]:
    """Return the results of the chosen runs, without those of other settings."""
    runs = {key_of(run)[:5]: run for run in read_runs(options.file(setting))}
    found = [(key, runs.get(key[:5], {})) for key in chosen(setting, options)]
    return {key: run for key, run in found if run.get("settings_digest") == settings_digest(key, setting)}


def run(setting: Setting, options: Options) -> int:
    """Run what is missing; return how many runs are left.

    The timing phase begins when the shared one has nothing left to do.
    """
    began = time.monotonic()
    todo = missing(setting, options)
    _require_data(todo, options.data)
    shared = [key for key in todo if not key.timed]
    timed = [key for key in todo if key.timed]
    left = 0
    if options.phase != "timing":
        left += _Pool(setting, options, began, options.workers).run(shared)
    if options.phase != "shared" and not left:
        left += _Pool(setting, options, began, 1).run(timed)
    elif options.phase == "all":
        left += len(timed)
    print(f"{len(todo) - left} runs done, {left} left of those chosen, {time.monotonic() - began:.0f} s", flush=True)
    return left


def _require_data(todo: list[Key], folder: Path) -> None:
    """Raise, before anything is run or replaced, if images are not there or cannot be read."""
    from benchmarks.paper.data import load

    for name in dict.fromkeys(key.dataset for key in todo):
        load(name, folder)


class _Pool:
    """Hands runs to worker processes, those of one data set and seed to the same worker where it can."""

    def __init__(self, setting: Setting, options: Options, began: float, workers: int) -> None:
        self.setting, self.options, self.began, self.workers = setting, options, began, workers
        self.file = options.file(setting)
        self.todo: list[Key] = []
        self.alone: list[Key] = []  # ran out of memory beside others
        self.busy: dict[Connection, tuple[Any, Key, float]] = {}
        self.seconds: list[tuple[Key, float]] = []

    def run(self, todo: list[Key]) -> int:
        """Run all, and return how many were left when the time was up."""
        self.todo, total = list(todo), len(todo)
        if not total:
            return 0
        self.seconds = known_seconds(self.file)
        if self.options.longest_first:
            self.todo.sort(key=lambda key: estimate(key, self.seconds), reverse=True)
        if self.options.workers == 0:
            return self._run_here()
        try:
            for _ in range(min(self.workers, total)):
                if self.todo and not self._late():
                    self._start_worker(None)
            while self.busy:
                rest = None if self.options.stop is None else max(0.0, self.options.stop - self._elapsed())
                ready = wait(list(self.busy), timeout=rest)
                if not ready:
                    print(f"stopped after {self._elapsed():.0f} s with {len(self.busy)} runs going on", flush=True)
                    break
                for connection in ready:
                    self._take(connection)  # type: ignore[arg-type]
        finally:
            for connection, (process, _, _) in list(self.busy.items()):
                process.kill()
                process.join()
                connection.close()
            unfinished = len(self.busy)
            self.busy.clear()
        if self.alone and not self._late():
            unfinished += _Pool(self.setting, self.options, self.began, 1).run(self.alone)
        else:
            unfinished += len(self.alone)
        return len(self.todo) + unfinished

    def _run_here(self) -> int:
        worker = _Worker(self.setting, self.options)
        while self.todo and not self._late():
            key = self.todo.pop(0)
            result = worker.attempt(key)
            keep(self.file, result)
            self._say(key, result, result.get("seconds", 0.0))
        return len(self.todo)

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _late(self) -> bool:
        limits = [limit for limit in (self.options.deadline, self.options.stop) if limit is not None]
        return bool(limits) and self._elapsed() >= min(limits)

    def _start_worker(self, previous: Key | None) -> None:
        ours, theirs = mp.Pipe()
        context = mp.get_context("spawn")
        arguments = (theirs, self.setting, replace(self.options, workers=self.workers))
        process = context.Process(target=_work, args=arguments, daemon=True)
        with _environment({name: str(_threads(self.workers)) for name in THREADS}):
            process.start()
        theirs.close()
        self._give(ours, process, previous)

    def _give(self, connection: Connection, process: Any, previous: Key | None) -> None:
        """Hand out the next run, or let the worker go."""
        key = None if self._late() else self._next(previous)
        if key is None:
            connection.send(None)
            process.join()
            connection.close()
            return
        self.todo.remove(key)
        self.busy[connection] = (process, key, time.monotonic())
        connection.send(key)

    def _next(self, previous: Key | None) -> Key | None:
        """Prefer what the worker has at hand, then what fewest others are at; leave what would not end in time."""
        end = math.inf if self.options.stop is None else self.options.stop
        fitting = [key for key in self.todo if self._elapsed() + estimate(key, self.seconds) <= end]
        at_hand = [key for key in fitting if previous is not None and key.place == previous.place]
        others = [key.place for _, key, _ in self.busy.values()]
        best = sorted(fitting, key=lambda key: others.count(key.place))  # a stable order: the first of the least
        return next(iter(at_hand or best), None)

    def _take(self, connection: Connection) -> None:
        process, key, started = self.busy.pop(connection)
        seconds = time.monotonic() - started
        try:
            result = connection.recv()
        except EOFError:
            process.join()
            result = failure(key, self.setting, f"the process ended with code {process.exitcode}")
            connection.close()
            keep(self.file, result)
            self._say(key, result, seconds)
            if self.todo and not self._late():
                self._start_worker(key)
            return
        if self.workers > 1 and str(result["failed"]).startswith("OutOfMemoryError"):
            self.alone.append(key)
            print(f"[{self._elapsed():6.0f} s] {key}: out of memory; again at the end, alone", flush=True)
        else:
            keep(self.file, result)
            self._say(key, result, result.get("seconds", seconds))
        self._give(connection, process, key)

    def _say(self, key: Key, result: Result, seconds: float) -> None:
        self.seconds.append((key, seconds))
        rest = sum(estimate(other, self.seconds) for other in [*self.todo, *(key for _, key, _ in self.busy.values())])
        outcome = f"FAILED: {result['failed']}" if result["failed"] else "ok"
        left = len(self.todo) + len(self.busy)
        print(
            f"[{self._elapsed():6.0f} s] {key}: {outcome} ({seconds:.1f} s); {left} left, "
            f"about {rest / max(1, self.workers):.0f} s",
            flush=True,
        )


def estimate(key: Key, known: list[tuple[Key, float]]) -> float:
    """Return how long a run may take: as long as those most like it that are known."""
    likenesses = ("experiment", "method", "requests", "dataset"), ("experiment", "method"), ("experiment",), ()
    for names in likenesses:
        alike = [s for other, s in known if all(getattr(other, name) == getattr(key, name) for name in names)]
        if alike:
            return sum(alike) / len(alike)
    return 0.0


def known_seconds(path: Path) -> list[tuple[Key, float]]:
    """Return how long the runs took that have results."""
    return [(key_of(run), run["seconds"]) for run in read_runs(path) if "seconds" in run]


def failure(key: Key, setting: Setting, reason: str) -> Result:
    """Return the result of a run that failed."""
    digest = settings_digest(key, setting)
    return key._asdict() | {"setting": setting.name, "settings_digest": digest, "failed": reason}


class _Worker:
    """Does runs, and keeps the artefacts of the last one at hand for the next."""

    def __init__(self, setting: Setting, options: Options) -> None:
        self.setting, self.options = setting, options
        self.artefacts: Any = None

    def attempt(self, key: Key) -> Result:
        """Return the result of a run, or that it failed: whatever a method does, the others go on."""
        from benchmarks.paper.artefacts import Artefacts
        from benchmarks.paper.execution import run_one

        options = self.options
        try:
            if self.artefacts is None or (self.artefacts.name, self.artefacts.seed) != key.place:
                self.artefacts = Artefacts(self.setting, *key.place, options.data, options.work, options.device)
            waited, started = self.artefacts.waited, time.monotonic()
            result = run_one(key, self.setting, self.artefacts)
            seconds = time.monotonic() - started - (self.artefacts.waited - waited)
            result["seconds"] = round(seconds, 2)  # without what is made once for many runs
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            result = failure(key, self.setting, f"{type(error).__name__}: {error}"[:500])
        return result


def _threads(workers: int) -> int:
    """Return how many threads each of so many processes may have, so that they do not wait for each other."""
    return max(1, (os.cpu_count() or 1) // max(1, workers))


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Have some environment variables for a while, for processes that start meanwhile; those that are set stay."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _work(connection: Connection, setting: Setting, options: Options) -> None:
    """Run what the parent sends, until it sends None or is gone."""
    import torch

    torch.set_num_threads(_threads(options.workers))
    worker = _Worker(setting, options)
    while True:
        try:
            key: Key | None = connection.recv()
        except EOFError:
            return
        if key is None:
            return
        result = worker.attempt(key)
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
        connection.send(result)
