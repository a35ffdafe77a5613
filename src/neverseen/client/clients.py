"""`Client` and `AsyncClient`: the loops that do what conversations ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import httpx

from neverseen.client import conversations
from neverseen.client.answers import CertificateEntry, Check, Effect, LearnResult, Model, Predictions, Request
from neverseen.client.connection import Connected, request_of, trust
from neverseen.client.conversations import Conversation, Pause

if TYPE_CHECKING:
    from neverseen.proof.certificates import Certificate

T = TypeVar("T")
_CHECKS = ("signature", "chain")


class Client(Connected):
    """A forgetting service, over HTTP. Safe to share between threads; a context manager.

    Every call has a timeout. A call that gets no answer, or is told to come back later, is tried again, after a wait
    that doubles: changes are sent under one idempotency key, so that they happen once however often they are sent.
    What the service refuses is a `ServiceError`; receipts and samples that it refuses are also the errors that a
    model raises.

    Parameters
    ----------
    url : str
        Such as ``"https://forget.example.org"``.
    token : str, optional
        API key, ``nsk_...``. Without it, certificates can be read and checked.
    timeout : float
        Seconds without a sign of life after which a try has failed.
    retries : int
        Tries after the first.
    insecure : bool
        Send the token without TLS to a host other than this one: whoever is on the way can read it.
    ca_file : path, optional
        Certificates of authorities to trust, instead of the system's: for a service that signed its own.
    transport : httpx.BaseTransport, optional
        Instead of the network.

    Examples
    --------
    >>> Client("http://example.org", token="nsk_secret")
    Traceback (most recent call last):
    neverseen.errors.ConfigurationError: http://example.org has no TLS: ...
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        insecure: bool = False,
        ca_file: str | Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout, retries, insecure)
        self._http = httpx.Client(**self._settings, verify=trust(ca_file), transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def learn(
        self,
        samples: Any,
        labels: Any,
        ids: Iterable[str] | None = None,
        owner: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> LearnResult:
        """Learn samples; return a receipt for each once they are on the service's disk.

        Parameters
        ----------
        samples : array, or sequence of rows of features, texts, or images
            Images are bytes of a file, a `Path`, or a Pillow image; or an array of uint8.
        labels : sequence of str or int
        ids : sequence of str, optional
            No two samples that are held may have the same.
        owner : str, optional
            To whom the samples belong. Keys that have an owner need not say it.
        idempotency_key : str, optional
            One is made for each call. Give your own to be able to repeat the call after this process has died. If no
            answer came, `ServiceError.idempotency_key` has it. If the call was cancelled or interrupted, the
            `CancelledError` or `KeyboardInterrupt` has it as an attribute of the same name.
        """
        return self._run(conversations.learn(self._retries, samples, labels, ids, owner, idempotency_key))

    @overload
    def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: Literal[False] = False,
        *,
        idempotency_key: str | None = None,
    ) -> Request: ...

    @overload
    def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
    ) -> Effect: ...

    def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: bool = False,
        *,
        idempotency_key: str | None = None,
    ) -> Request | Effect:
        """Forget samples, by receipts or by the samples themselves; return once that is on the service's disk.

        All are forgotten, or none. Predictions come from the model without them once the request is published: see
        `wait`.

        Parameters
        ----------
        receipts : bytes, or sequence of bytes
            In base64url they may be texts.
        samples, labels : optional
            As they were learned.
        ids : sequence of str, optional
            Of the samples; without them samples are found by their content.
        dry_run : bool
            Make all checks, change nothing, and return what would go.
        idempotency_key : str, optional
            See `learn`.
        """
        return self._run(conversations.forget(self._retries, receipts, samples, labels, ids, idempotency_key, dry_run))

    @overload
    def forget_class(
        self, label: str | int, dry_run: Literal[False] = False, *, idempotency_key: str | None = None
    ) -> Request: ...

    @overload
    def forget_class(
        self, label: str | int, dry_run: Literal[True], *, idempotency_key: str | None = None
    ) -> Effect: ...

    def forget_class(
        self, label: str | int, dry_run: bool = False, *, idempotency_key: str | None = None
    ) -> Request | Effect:
        """Forget every sample of a class; see `forget`."""
        return self._run(conversations.forget_class(self._retries, label, idempotency_key, dry_run))

    def predict(self, samples: Any) -> Predictions:
        """Return what the published model makes of samples."""
        return self._run(conversations.predict(self._retries, samples))

    def model(self) -> Model:
        """Return the published model at a glance."""
        return self._run(conversations.model(self._retries))

    def request(self, request: str | Request | LearnResult) -> Request:
        """Return how far a request is."""
        return self._run(conversations.request(self._retries, request))

    def requests(self, limit: int = 100, before: str | None = None) -> list[Request]:
        """Return requests, newest first; `before` is the id of the last one of the page before."""
        return self._run(conversations.requests(self._retries, limit, before))

    def certificate(self, number: int) -> Certificate:
        """Return a certificate. Its form is checked; who signed it is for `check` to say."""
        return self._run(conversations.certificate(self._retries, number))

    def certificates(self, limit: int = 100, before: int | None = None) -> list[CertificateEntry]:
        """Return the list of certificates, newest first; `before` is the number of the last of the page before."""
        return self._run(conversations.certificates(self._retries, limit, before))

    def verify(
        self,
        certificate: int | Certificate,
        receipt: bytes | str | None = None,
        checks: Iterable[str] = _CHECKS,
    ) -> list[Check]:
        """Have the service check a certificate; `check` does it here, and lets the receipt stay here.

        Parameters
        ----------
        checks : sequence of str
            Of ``"signature"``, ``"chain"``, ``"mine"`` (needs the receipt: whether this certificate lists it; a later
            one may have learned the sample again) and ``"weights"`` (needs the scope audit).
        """
        return self._run(conversations.verify(self._retries, certificate, receipt, checks))

    def publish(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """Publish what is held now; needs the scope admin.

        Fewer changes than the policy's `min_batch` are refused, unless `below_min_batch` says to publish them alone.
        """
        return self._run(conversations.administer(self._retries, "publish", below_min_batch))

    def seal(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """Publish, and clear the service's disk of what was forgotten; needs the scope admin.

        Fewer changes than the policy's `min_batch` are refused, unless `below_min_batch` says to publish them alone.
        """
        return self._run(conversations.administer(self._retries, "seal", below_min_batch))

    def wait(self, request: str | Request | LearnResult, state: str = "published", timeout: float = 60.0) -> Request:
        """Return a request once it has reached a state; raise `WaitedTooLongError` after `timeout` seconds."""
        return self._run(conversations.wait(self._retries, request, state, timeout))

    def _run(self, talk: Conversation[T]) -> T:
        outcome: conversations.Outcome = None
        try:
            while True:
                step, outcome = talk.send(outcome), None
                try:
                    if isinstance(step, Pause):
                        time.sleep(step.seconds)
                    else:
                        outcome = self._http.send(request_of(self._http, step))
                except httpx.RequestError as error:
                    outcome = error
                except BaseException as error:
                    talk.throw(error)  # it comes back, that of a change with its idempotency key
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class AsyncClient(Connected):
    """`Client` for asyncio: the same verbs, to be awaited; an asynchronous context manager.

    Parameters
    ----------
    url, token, timeout, retries, insecure, ca_file
        See `Client`.
    transport : httpx.AsyncBaseTransport, optional
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        insecure: bool = False,
        ca_file: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout, retries, insecure)
        self._http = httpx.AsyncClient(**self._settings, verify=trust(ca_file), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def learn(
        self,
        samples: Any,
        labels: Any,
        ids: Iterable[str] | None = None,
        owner: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> LearnResult:
        """See `Client.learn`."""
        return await self._run(conversations.learn(self._retries, samples, labels, ids, owner, idempotency_key))

    @overload
    async def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: Literal[False] = False,
        *,
        idempotency_key: str | None = None,
    ) -> Request: ...

    @overload
    async def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
    ) -> Effect: ...

    async def forget(
        self,
        receipts: bytes | str | Iterable[bytes | str] | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: bool = False,
        *,
        idempotency_key: str | None = None,
    ) -> Request | Effect:
        """See `Client.forget`."""
        return await self._run(
            conversations.forget(self._retries, receipts, samples, labels, ids, idempotency_key, dry_run)
        )

    @overload
    async def forget_class(
        self, label: str | int, dry_run: Literal[False] = False, *, idempotency_key: str | None = None
    ) -> Request: ...

    @overload
    async def forget_class(
        self, label: str | int, dry_run: Literal[True], *, idempotency_key: str | None = None
    ) -> Effect: ...

    async def forget_class(
        self, label: str | int, dry_run: bool = False, *, idempotency_key: str | None = None
    ) -> Request | Effect:
        """See `Client.forget_class`."""
        return await self._run(conversations.forget_class(self._retries, label, idempotency_key, dry_run))

    async def predict(self, samples: Any) -> Predictions:
        """See `Client.predict`."""
        return await self._run(conversations.predict(self._retries, samples))

    async def model(self) -> Model:
        """See `Client.model`."""
        return await self._run(conversations.model(self._retries))

    async def request(self, request: str | Request | LearnResult) -> Request:
        """See `Client.request`."""
        return await self._run(conversations.request(self._retries, request))

    async def requests(self, limit: int = 100, before: str | None = None) -> list[Request]:
        """See `Client.requests`."""
        return await self._run(conversations.requests(self._retries, limit, before))

    async def certificate(self, number: int) -> Certificate:
        """See `Client.certificate`."""
        return await self._run(conversations.certificate(self._retries, number))

    async def certificates(self, limit: int = 100, before: int | None = None) -> list[CertificateEntry]:
        """See `Client.certificates`."""
        return await self._run(conversations.certificates(self._retries, limit, before))

    async def verify(
        self,
        certificate: int | Certificate,
        receipt: bytes | str | None = None,
        checks: Iterable[str] = _CHECKS,
    ) -> list[Check]:
        """See `Client.verify`."""
        return await self._run(conversations.verify(self._retries, certificate, receipt, checks))

    async def publish(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """See `Client.publish`."""
        return await self._run(conversations.administer(self._retries, "publish", below_min_batch))

    async def seal(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """See `Client.seal`."""
        return await self._run(conversations.administer(self._retries, "seal", below_min_batch))

    async def wait(
        self, request: str | Request | LearnResult, state: str = "published", timeout: float = 60.0
    ) -> Request:
        """See `Client.wait`."""
        return await self._run(conversations.wait(self._retries, request, state, timeout))

    async def _run(self, talk: Conversation[T]) -> T:
        outcome: conversations.Outcome = None
        try:
            while True:
                step, outcome = talk.send(outcome), None
                try:
                    if isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                    else:
                        outcome = await self._http.send(request_of(self._http, step))
                except httpx.RequestError as error:
                    outcome = error
                except BaseException as error:
                    talk.throw(error)  # it comes back, that of a change with its idempotency key
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
