"""Worker processes: they read untrusted input, with little memory, time and priority.

Python runs one thread at a time. A thread that parses a large JSON text holds up everybody, and nobody knows in advance
how much memory an image or a certificate takes. So a separate process with low priority reads a body or checks a
certificate, and returns the result. If it takes too much memory or time, it ends, its request is refused, and a new
process takes its place. A process that hangs is ended after a while.

Starting a process takes half a second, and more on a busy machine. So processes start in the background, and a request
gets the first one that is free, whether it has just started or has just finished another request.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import neverseen
from neverseen.service.errors import Refusal, too_much
from neverseen.service.operations.log import LOG
from neverseen.service.reception import messages
from neverseen.service.sharing.turns import Turns

Answer = tuple[dict[str, Any], list[memoryview]]
HELLO: dict[str, Any] = {}  # the question to which there is an empty answer, once there can be one
_NICE = 10  # set from here, so that imports run at low priority too
_PATIENCE = 6  # a question that takes this many times its processor time, by the wall clock, hangs
_STARTING = 60.0  # seconds in which a process must start, on a busy machine
_PAUSE = 1.0  # seconds between a failed start and the next, and between two looks for a free process
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Workers:
    """Processes that each answer one request at a time. They start when they are needed.

    Parameters
    ----------
    about : dict
        The settings of a process, as JSON values: see `neverseen.service.reception.worker_process`.
    waiting : int
        Requests that may wait; more are refused. Clients take turns: see `Turns`.
    """

    def __init__(self, about: dict[str, Any], processes: int, waiting: int) -> None:
        self._about, self._most = about, processes
        self._turns = Turns(processes, waiting)
        self._pool = ThreadPoolExecutor(processes, "worker")
        self._patience = _PATIENCE * float(about["seconds"])
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()  # None: the service stops
        self._running: dict[subprocess.Popen[bytes], float] = {}  # since when
        self._lock = threading.Lock()
        self._count = 0  # processes: idle, at work, and those that are being started
        self._starters: set[threading.Thread] = set()
        self._wanted = 0  # those who wait for a process
        self._failures, self._failed = 0, -math.inf  # starts that failed, and when the last one did
        self._stopping = False

    def prepare_all(self) -> None:
        """Start all processes in the background."""
        for _ in range(self._most):
            self.prepare(self._most)

    def prepare(self, ahead: int = 1) -> None:
        """Start a process in the background, unless there are enough, or a start has just failed."""
        with self._lock:
            if self._stopping or self._count >= self._most or time.monotonic() < self._failed + _PAUSE:
                return
            if len(self._starters) >= max(ahead, self._wanted):  # all who wait for one will get one
                return
            starter = threading.Thread(target=self._start, name="worker-start", daemon=True)
            try:
                starter.start()
            except RuntimeError:  # the system has no more threads
                self._note_failure("a worker process did not start", exc_info=True)
                return
            self._count += 1
            self._starters.add(starter)

    async def ask(
        self,
        client: str,
        question: dict[str, Any],
        content: bytes | bytearray = b"",
        room: Callable[[int], bool] | None = None,
    ) -> Answer:
        """Return a process's answer to a question.

        `room` is called in between, from a thread, to ask for room for pixels.
        """
        async with self._turns.turn(client):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._exchange, question, content, room)

    def stalled(self) -> bool:
        """Return whether a process has used half of its wall-clock time, or none could be started."""
        late = time.monotonic() - self._patience / 2
        missing = not self._count and self._failed >= late
        return missing or any(since < late for since in list(self._running.values()))

    def stop(self) -> None:
        """End the processes."""
        with self._lock:
            self._stopping = True
            starters = list(self._starters)
        for process in list(self._running):
            process.kill()  # whoever waits for it is told, and ends it
        for _ in range(self._most):
            self._idle.put(None)
        self._pool.shutdown(wait=True, cancel_futures=True)
        for starter in starters:
            starter.join()
        while not self._idle.empty():
            _end(self._idle.get())

    def _start(self) -> None:
        """Start a process, and pass it on once it is ready."""
        process, hello, error = None, None, None
        try:
            process = _started(self._about)
            hello = self._asked(process, HELLO, b"", None, max(_STARTING, self._patience))
        except Exception as found:
            error = found
        with self._lock:
            self._starters.discard(threading.current_thread())
            if hello is not None and not self._stopping:
                self._idle.put(process)
                return
            _end(process)
            self._count -= 1
            ended = "" if process is None else f": it ended with {process.returncode}"
            self._note_failure(f"a worker process did not start{ended}", exc_info=error)

    def _note_failure(self, words: str, **about: Any) -> None:
        self._failures, self._failed = self._failures + 1, time.monotonic()
        if not self._stopping:
            LOG.error(words, **about)

    def _take(self) -> subprocess.Popen[bytes]:
        """Return a free process as soon as there is one; refuse if there is none and none starts."""
        before = self._failures
        with self._lock:
            self._wanted += 1
        try:
            return self._taken(before)
        finally:
            with self._lock:
                self._wanted -= 1

    def _taken(self, before: int) -> subprocess.Popen[bytes]:
        while True:
            if self._idle.empty():
                self.prepare()
            process = None
            with suppress(queue.Empty):
                process = self._idle.get(timeout=_PAUSE)
            if self._stopping:
                self._idle.put(process)
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            if process is None:
                if self._failures > before and not self._count:
                    raise Refusal("busy", "the request cannot be read now: try again in a moment", wait=5)
            elif process.poll() is None:
                return process
            else:
                self._renew(process)  # it has ended to give its memory back

    def _renew(self, process: subprocess.Popen[bytes]) -> None:
        _end(process)
        with self._lock:
            self._count -= 1
        self.prepare()

    def _exchange(
        self, question: dict[str, Any], content: bytes | bytearray, room: Callable[[int], bool] | None
    ) -> Answer:
        found = None
        for _ in range(self._most + 1):  # each that runs may end to give its memory back; a new one does not
            process, since = self._take(), time.monotonic()
            try:
                found = self._asked(process, question, content, room, self._patience)
            except BaseException:
                self._renew(process)
                raise
            if found is not None:
                self._idle.put(process)
                break
            ended = process.wait()
            self._renew(process)
            if ended < 0:  # by the system, or by a clock
                if time.monotonic() - since >= self._patience:
                    raise Refusal("busy", "the request was not read in time: try again in a moment", wait=5)
                raise too_much()
        if found is None:
            raise RuntimeError("a worker process ended before it answered: see the lines above")
        about, parts = found
        if "refusal" in about:
            raise Refusal(**about["refusal"])
        if "failed" in about:
            raise RuntimeError(f"a worker process failed: {about['failed']}")
        return about, parts

    def _asked(
        self,
        process: subprocess.Popen[bytes],
        question: dict[str, Any],
        content: bytes | bytearray,
        room: Callable[[int], bool] | None,
        patience: float,
    ) -> Answer | None:
        """Return a process's answer, or None if the process has ended."""
        there, back = process.stdin, process.stdout
        if not isinstance(there, io.RawIOBase) or not isinstance(back, io.RawIOBase):
            raise TypeError("the process has no pipes")
        clock = threading.Timer(patience, process.kill)  # its own counts processor time: one that hangs has none
        clock.daemon = True
        try:
            self._running[process] = time.monotonic()
            clock.start()
            if self._stopping:
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            messages.send(there, question, [memoryview(content)])
            found = messages.receive(back)
            while found is not None and "room" in found[0]:
                messages.send(there, {"room": room is None or room(found[0]["room"])})
                found = messages.receive(back)
        except BrokenPipeError:
            found = None
        finally:
            clock.cancel()
            self._running.pop(process, None)
        return found


def _started(about: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "neverseen.service.reception.worker_process", json.dumps(about)]
    paths = [str(Path(neverseen.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]  # the same code as here
    environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603
    with suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, process.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))
    return process


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
