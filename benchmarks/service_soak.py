"""A service that is killed again and again under load, and what it holds in the end: for `benchmarks.service`.

Threads learn, forget by receipt and by sample, forget classes, predict, replay and forge, each with samples of its own,
and note what was acknowledged. The service is killed (SIGKILL) now and then and started again. A request whose answer
was lost is either sent again under its idempotency key until it is answered, or left alone for good.

In the end every request that was acknowledged must have been done, once; of those left alone, each wholly or not at
all; and the digest must be that of a new model, in memory, that learned just what is held.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np

from benchmarks.service_process import Samples, Served
from neverseen.client import Client, ReceiptRefusedError, ServiceError, UnreachableError
from neverseen.proof.certificates import Certificate, check_chain, is_mine

T = TypeVar("T")
_STOPPED = 120.0  # seconds that a request is tried again: the service comes back sooner


class WrongStateError(Exception):
    """The service lost, invented or repeated something."""


@dataclass
class LeftAlone:
    """A request of which nobody knows whether it was done."""

    kind: str
    names: list[str]


class Worker(threading.Thread):
    """One client, with samples that no other client touches.

    Attributes
    ----------
    held : dict
        Receipts of the samples that are held for certain, by name.
    gone : dict
        Names that were forgotten for certain, with the receipt and the request that did it.
    left_alone : list of LeftAlone
    requests : list of str
        Ids of all requests that were acknowledged.
    """

    def __init__(self, place: int, served: Served, samples: Samples, tracked: bool, seed: int, stop: threading.Event):
        super().__init__(name=f"client {place}", daemon=True)
        self.held: dict[str, bytes] = {}
        self.gone: dict[str, tuple[bytes, str]] = {}
        self.left_alone: list[LeftAlone] = []
        self.requests: list[str] = []
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._place, self._samples, self._tracked, self._stopping = place, samples, tracked, stop
        self._rng = random.Random(seed)  # noqa: S311 (not a secret)
        self._client = Client(served.url, served.token, timeout=60, retries=0)
        self._made = 0
        self._last: Callable[[], str] | None = None

    def run(self) -> None:
        """Ask for one thing after the other until told to stop."""
        verbs: list[tuple[Callable[[], None], int]] = [
            (self._learn, 6),
            (self._forget_receipts, 5),
            (self._forget_samples, 2),
            (self._predict, 6),
            (self._replay, 2),
            (self._forge, 1),
        ]
        if self._tracked:
            verbs.append((self._forget_class, 1))
        try:
            while not self._stopping.is_set():
                self._rng.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]()
        except BaseException as error:  # shown by whoever waits for this thread
            self.failure = error
        finally:
            self._client.close()

    def _learn(self) -> None:
        own = self._tracked and self._rng.random() < 0.2
        names = [self._new_name(own) for _ in range(self._rng.randint(1, 8))]
        rows, labels = self._rows(names), [self._samples.label(name) for name in names]
        key = secrets.token_hex(8)

        def send() -> list[bytes]:
            result = self._client.learn(rows, labels, names, idempotency_key=key)
            self._acknowledged(result.request.id)
            return result.receipts

        # What a class holds must be known for certain when it is forgotten.
        receipts = self._certainly("learn", names, send, always=own)
        if receipts is not None:
            self.held.update(zip(names, receipts, strict=True))

    def _forget_receipts(self) -> None:
        names = self._some_held()
        key = secrets.token_hex(8)
        receipts = [self.held[name] for name in names]
        if names:
            self._forget("forget", names, lambda: self._client.forget(receipts, idempotency_key=key).id)

    def _forget_samples(self) -> None:
        names = self._some_held()
        key, rows = secrets.token_hex(8), self._rows(names)
        labels = [self._samples.label(name) for name in names]
        if names:
            self._forget(
                "forget by sample",
                names,
                lambda: self._client.forget(samples=rows, labels=labels, ids=names, idempotency_key=key).id,
            )

    def _forget_class(self) -> None:
        label = f"own-{self._place}"
        names = [name for name in self.held if self._samples.label(name) == label]
        key = secrets.token_hex(8)
        if names:
            self._forget(
                "forget class", names, lambda: self._client.forget_class(label, idempotency_key=key).id, always=True
            )

    def _forget(self, kind: str, names: list[str], send: Callable[[], str], always: bool = False) -> None:
        request = self._certainly(kind, names, send, always)
        receipts = {name: self.held.pop(name) for name in names}
        if request is not None:
            self._acknowledged(request)
            self._last = lambda: request if send() == request else "another"
            self.gone.update({name: (receipt, request) for name, receipt in receipts.items()})

    def _predict(self) -> None:
        names = [f"asked-{self._rng.randrange(self._samples.classes)}-{row}" for row in range(self._rng.randint(1, 8))]
        try:
            found = self._client.predict(self._rows(names))
        except UnreachableError:
            return
        except ServiceError as error:
            if error.code in ("nothing_published", "stopping", "unavailable"):
                return
            raise
        if len(found.rows) != len(names):
            raise WrongStateError(f"{len(names)} samples got {len(found.rows)} predictions")
        self.counts["predict"] += 1

    def _replay(self) -> None:
        """Send the last forget again: it must be answered as it was, and not be done again."""
        if self._last is not None:
            try:
                if self._last() == "another":
                    raise WrongStateError("a request that was sent again was taken for a new one")
            except ServiceError as error:
                if not _is_away(error):
                    raise
                return
            self.counts["replay"] += 1

    def _forge(self) -> None:
        """Bring a receipt with a bit flipped: it must be refused."""
        if not self.held:
            return
        receipt = bytearray(self._rng.choice(list(self.held.values())))
        receipt[self._rng.randrange(len(receipt))] ^= 1 << self._rng.randrange(8)
        try:
            self._client.forget(bytes(receipt))
        except ReceiptRefusedError:
            self.counts["forged, refused"] += 1
        except ServiceError as error:
            if not _is_away(error):
                raise
        else:
            raise WrongStateError("a forged receipt was honoured")

    def _certainly(self, kind: str, names: list[str], send: Callable[[], T], always: bool = False) -> T | None:
        """Send a change; if its answer is lost, send it again until it is answered, or leave it alone: by lot."""
        again = always or self._rng.random() < 0.5
        until = time.monotonic() + _STOPPED
        lost = False
        while True:
            try:
                result = send()
            except ServiceError as error:
                if not _is_away(error):
                    raise
                begun = not isinstance(error.__cause__, httpx.ConnectError)  # else nobody was there to take it
                lost = lost or begun
                if begun and not again:
                    self.left_alone.append(LeftAlone(kind, names))
                    self.counts["left alone"] += 1
                    return None
                if time.monotonic() > until:
                    raise WrongStateError(f"the service did not come back in {_STOPPED:g} s: {error}") from error
                time.sleep(self._rng.uniform(0.02, 0.2))
            else:
                self.counts[kind] += 1
                self.counts["sent again"] += int(lost)
                return result

    def _acknowledged(self, request: str) -> None:
        self.requests.append(request)

    def _new_name(self, own: bool) -> str:
        self._made += 1
        if own:
            return f"own-{self._place}-{self._made}"
        return f"t{self._place}-{self._rng.randrange(self._samples.classes)}-{self._made}"

    def _some_held(self) -> list[str]:
        free = [name for name in sorted(self.held) if not name.startswith("own")]  # those go with their class
        return self._rng.sample(free, min(len(free), self._rng.randint(1, 8)))

    def _rows(self, names: Sequence[str]) -> np.ndarray:
        return np.array([self._samples.row(name) for name in names]).reshape(-1, self._samples.width)


def soak(
    served: Served,
    samples: Samples,
    base: set[str],
    *,
    seconds: float,
    kill_every: float,
    clients: int,
    tracked: bool,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Load a running service, kill it now and then, and return what was found; the first thing wrong is an error.

    Parameters
    ----------
    base : set of str
        Names of what it holds already.
    """
    rng, stop = random.Random(seed), threading.Event()  # noqa: S311
    workers = [Worker(place, served, samples, tracked, seed + place, stop) for place in range(clients)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    kills: list[float] = []
    try:
        for number in range(1, int(seconds / kill_every) + 1):
            # At a moment that nobody chose, in each interval.
            moment = began + kill_every * (number - 1) + rng.uniform(0.2, 0.9) * kill_every
            while (left := moment - time.monotonic()) > 0 and not _failure(workers):
                time.sleep(min(left, 0.5))
            if _failure(workers):
                break
            served.kill()
            kills.append(served.start())
            done = sum(sum(worker.counts.values()) for worker in workers)
            say(f"kill {number}: ready again after {kills[-1]:.1f} s; {done:,} requests answered so far")
        while (left := began + seconds - time.monotonic()) > 0 and not _failure(workers):
            time.sleep(min(left, 0.5))
    finally:
        stop.set()
    for worker in workers:
        worker.join(120)
    if failure := _failure(workers):
        raise WrongStateError(f"a client failed: {failure}\n{served.log()}") from failure
    took = time.monotonic() - began
    checks = _check_requests(served, workers)
    stopped = served.stop()
    counts = sum((worker.counts for worker in workers), Counter[str]())
    return {
        "seconds": took,
        "kills": len(kills),
        "slowest_restart": max(kills, default=0.0),
        "stop_seconds": stopped,
        "answered": dict(sorted(counts.items())),
        **checks,
        **_check_held(served, base, workers),
    }


def _check_requests(served: Served, workers: Sequence[Worker]) -> dict[str, int]:
    """Require that acknowledged requests are known and published, and that certificates name what was forgotten."""
    with Client(served.url, served.token, timeout=60) as client:
        numbers: dict[str, int] = {}
        for request in {request for worker in workers for request in worker.requests}:
            found = client.wait(request, timeout=60)
            if found.certificate is None:
                raise WrongStateError(f"request {request} is {found.state} and has no certificate")
            numbers[request] = found.certificate
        entries = client.certificates()
        chain = [client.certificate(number) for number in range(1, client.model().version + 1)]
        if not entries:
            raise WrongStateError("there are no certificates")
    check_chain(chain)
    by_number: dict[int, Certificate] = {certificate.number: certificate for certificate in chain}
    forgotten = [entry for worker in workers for entry in worker.gone.values()]
    for receipt, request in forgotten:
        if not is_mine(by_number[numbers[request]], receipt):
            raise WrongStateError(f"certificate {numbers[request]} does not name a sample of request {request}")
    return {"requests_acknowledged": len(numbers), "samples_certified": len(forgotten), "certificates": len(chain)}


def _check_held(served: Served, base: set[str], workers: Sequence[Worker]) -> dict[str, Any]:
    """Require that a stopped service's store holds what it should, and has the digest of an offline replay."""
    held, digest = served.held()
    certain = base | {name for worker in workers for name in worker.held}
    gone = {name for worker in workers for name in worker.gone}
    if missing := certain - held:
        raise WrongStateError(f"{len(missing)} acknowledged samples are lost, such as {sorted(missing)[:3]}")
    if back := gone & held:
        raise WrongStateError(f"{len(back)} forgotten samples are back, such as {sorted(back)[:3]}")
    left = [entry for worker in workers for entry in worker.left_alone]
    done = 0
    for entry in left:
        inside = sum(name in held for name in entry.names)
        if inside not in (0, len(entry.names)):
            raise WrongStateError(f"a {entry.kind} was done by half: {inside} of {len(entry.names)} samples are held")
        done += (inside > 0) == (entry.kind == "learn")
    known = certain | {name for entry in left for name in entry.names}
    if odd := held - known:
        raise WrongStateError(f"{len(odd)} samples are held that nobody learned, such as {sorted(odd)[:3]}")
    replayed = served.replay(held)
    if replayed != digest:
        raise WrongStateError(f"the digest is {digest}, and that of an offline replay {replayed}")
    return {
        "samples_held": len(held),
        "left_alone": len(left),
        "left_alone_and_done": done,
        "lost": 0,
        "digest": digest,
        "replayed_digest": replayed,
    }


def _is_away(error: ServiceError) -> bool:
    """Return whether an error says that the service is down or about to be, and nothing about the request."""
    return isinstance(error, UnreachableError) or error.code in ("stopping", "unavailable")


def _failure(workers: Sequence[Worker]) -> BaseException | None:
    return next((worker.failure for worker in workers if worker.failure is not None), None)
