"""Separate processes that read untrusted input, with little memory, time and priority.

Python runs one thread at a time. A thread that parses a large JSON text holds up everybody, and nobody knows in advance
how much memory an image or a certificate takes. So a separate process with low priority reads a body or checks a
certificate, and returns the result. If it takes too much memory or time, it ends, its request is refused, and the next
request gets a new process. A process that hangs is ended after a while.
"""

from __future__ import annotations

import asyncio
import io
import json
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
from neverseen.service.edge import messages
from neverseen.service.edge.errors import Refusal, too_much
from neverseen.service.edge.turns import Turns

Answer = tuple[dict[str, Any], list[memoryview]]
_NICE = 10  # set from here: a process that starts has much to import, and would do that at full priority
_PATIENCE = 6  # times the processor time of a question: whoever takes longer, by the clock on the wall, hangs
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Apart:
    """Processes that answer one request at a time each, started when they are needed.

    Parameters
    ----------
    about : dict
        What a process has to know, as JSON values: see `neverseen.service.edge.apart_process`.
    waiting : int
        Requests that may wait; more are refused. Clients take turns: see `Turns`.
    """

    def __init__(self, about: dict[str, Any], processes: int, waiting: int) -> None:
        self._about = about
        self._turns = Turns(processes, waiting)
        self._pool = ThreadPoolExecutor(processes, "apart")
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()  # first one that runs already
        for _ in range(processes):
            self._idle.put(None)
        self._patience = _PATIENCE * float(about["seconds"])
        self._running: dict[subprocess.Popen[bytes], float] = {}  # since when
        self._stopping = False

    async def ask(
        self,
        client: str,
        question: dict[str, Any],
        content: bytes | bytearray = b"",
        room: Callable[[int], bool] | None = None,
    ) -> Answer:
        """Return a process's answer to a question.

        `room` is asked in between, from a thread, whether there is room for so many pixels.
        """
        async with self._turns.turn(client):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._exchange, question, content, room)

    def stalled(self) -> bool:
        """Return whether a process has used up half of its time, by the clock on the wall."""
        late = time.monotonic() - self._patience / 2
        return any(since < late for since in list(self._running.values()))

    def stop(self) -> None:
        """End the processes."""
        self._stopping = True
        for process in list(self._running):
            process.kill()  # whoever waits for it is told, and ends it
        self._pool.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            _end(self._idle.get())

    def _exchange(
        self, question: dict[str, Any], content: bytes | bytearray, room: Callable[[int], bool] | None
    ) -> Answer:
        process = self._idle.get()
        try:
            gone = process is None or process.poll() is not None
            found = None if process is None or gone else self._asked(process, question, content, room)
            if found is None:  # there was none yet, or it had ended to give its memory back
                _end(process)
                process = None
                process = _started(self._about)
                found = self._asked(process, question, content, room)
            if found is None:
                raise RuntimeError("a separate process ended before it answered: see the lines above")
        except BaseException:
            _end(process)
            process = None
            raise
        finally:
            self._idle.put(process)
        about, parts = found
        if "refusal" in about:
            raise Refusal(**about["refusal"])
        if "failed" in about:
            raise RuntimeError(f"a separate process failed: {about['failed']}")
        return about, parts

    def _asked(
        self,
        process: subprocess.Popen[bytes],
        question: dict[str, Any],
        content: bytes | bytearray,
        room: Callable[[int], bool] | None,
    ) -> Answer | None:
        """Return a process's answer, or None if the process ended by itself; refuse if the service ended it."""
        there, back = process.stdin, process.stdout
        if not isinstance(there, io.RawIOBase) or not isinstance(back, io.RawIOBase):
            raise TypeError("the process has no pipes")
        self._running[process] = since = time.monotonic()
        clock = threading.Timer(self._patience, process.kill)  # its own counts processor time: one that hangs has none
        clock.daemon = True
        clock.start()
        try:
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
            del self._running[process]
        if found is None and process.wait() < 0:  # by the system, or by a clock
            if time.monotonic() - since >= self._patience:
                raise Refusal("busy", "the request was not read in time: try again in a moment", wait=5)
            raise too_much()
        return found


def _started(about: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "neverseen.service.edge.apart_process", json.dumps(about)]
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
