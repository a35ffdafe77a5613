"""The program of a worker process (`neverseen.service.reception.workers`): it reads bodies or checks certificates."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from neverseen.service.errors import Refusal, too_much
from neverseen.service.reception import messages
from neverseen.service.reception.contents import READERS, Bounds, require_room

_KEEP = 2**28  # a process with more bytes in memory after a request is replaced by a new one
_TOLD = 10_000  # characters of a traceback
Answer = tuple[dict[str, Any], list[Any]]


class Worker:
    """Answers questions.

    Parameters
    ----------
    about : dict
        ``bounds``: of bodies that are read, or ``certificates`` and ``key``: the folder and the public key of a chain.
        ``memory`` and ``seconds`` (of processor time): what one question may take.
    there, back : raw streams
        Questions, and answers.
    """

    def __init__(self, about: dict[str, Any], there: io.RawIOBase, back: io.RawIOBase) -> None:
        self._there, self._back = there, back
        self._seconds = float(about["seconds"])
        self._answer: Callable[[dict[str, Any], bytes], Answer]
        if "bounds" in about:
            self._bounds = Bounds(**about["bounds"])
            if self._bounds.kind == "images":
                import_module("PIL.Image")  # now, and not in the time of the first request
            self._answer = self._read
        else:
            from neverseen.service.reception.checks import Checker

            self._checker = Checker(Path(about["certificates"]), about["key"])
            self._answer = self._checker.answer

    def run(self) -> None:
        """Answer questions until the pipe is closed."""
        while (asked := messages.receive(self._there)) is not None:
            question, (part,) = asked
            content: Any = part.obj  # the bytes themselves, of which it is the only part
            signal.setitimer(signal.ITIMER_PROF, self._seconds)  # ends the process: nothing else stops a decoder
            try:
                answer = self._answer(question, content) if question else ({}, [])
            except Refusal as refusal:
                answer = {"refusal": refusal.as_arguments()}, []
            except MemoryError:
                answer = {"refusal": too_much().as_arguments()}, []
            except Exception as error:
                answer = {"failed": "".join(traceback.format_exception(error))[-_TOLD:]}, []
            signal.setitimer(signal.ITIMER_PROF, 0)
            messages.send(self._back, *answer)
            del asked, part, content, answer
            gc.collect()
            if _pages()[1] > _KEEP:
                return

    def _read(self, question: dict[str, Any], content: bytes) -> Answer:
        room = partial(require_room, self._has_room)
        given = READERS[question["action"]](content, question["content_type"], self._bounds, room)
        return messages.packed(given)

    def _has_room(self, amount: int) -> bool:
        messages.send(self._back, {"room": amount})
        found = messages.receive(self._there)
        return found is not None and bool(found[0]["room"])


def main() -> None:
    """Run the process."""
    about = json.loads(sys.argv[1])
    there, back = io.FileIO(0, "r"), io.FileIO(os.dup(1), "w")
    os.dup2(2, 1)  # printed text must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this process
    worker = Worker(about, there, back)
    gc.freeze()
    gc.disable()  # what is parsed has no cycles, and looking for them takes longer than parsing
    _limit_memory(about["memory"])
    try:
        worker.run()
    except MemoryError:  # while a question came, or an answer went: there is no other way to say so
        os.kill(os.getpid(), signal.SIGKILL)


def _limit_memory(more: int) -> None:
    reserved, _ = _pages()
    if not reserved:
        return
    most = reserved + more
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _pages() -> tuple[int, int]:
    """Return the bytes of reserved memory and of memory in use; 0 if the system does not tell."""
    try:
        size, resident = Path("/proc/self/statm").read_text("ascii").split()[:2]
    except OSError:
        return 0, 0
    page = resource.getpagesize()
    return int(size) * page, int(resident) * page


if __name__ == "__main__":
    main()
