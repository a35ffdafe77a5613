"""`Client` and `AsyncClient`: the loops that carry out conversations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import httpx

from neverseen.client import answers, conversations
from neverseen.client.answers import CertificateEntry, Check, Effect, LearnResult, Model, Predictions, Request, WhatIf
from neverseen.client.connection import Connected, request_of, trust
from neverseen.client.conversations import Conversation, Pause, Send, page
from neverseen.client.samples import plain_label, receipt_list, sample_list
from neverseen.errors import InputError

if TYPE_CHECKING:
    from neverseen.proof.certificates import Certificate

P = ParamSpec("P")
T = TypeVar("T")
Receipts = bytes | str | Iterable[bytes | str]
Which = str | Request | LearnResult
_CHECKS = ("signature", "chain")


class Client(Connected):
    """A client of the service. Threads can share it, and it is a context manager.

    Every call has a timeout. If no answer comes, or the service says to try later, the client retries, and doubles the
    wait each time. A change is sent under one idempotency key, so it happens once however often it is sent. A refusal
    by the service raises a `ServiceError`. Refused receipts and samples raise subclasses of the errors that a model
    raises.

    Parameters
    ----------
    url : str
        Such as ``"https://forget.example.org"``.
    token : str, optional
        API key, ``nsk_...``. Without it, you can only read and check certificates.
    timeout : float
        Seconds without any data after which an attempt fails.
    retries : int
        Attempts after the first.
    insecure : bool
        Send the token to another host without TLS: others on the network can read it.
    ca_file : path, optional
        Certificates of authorities to trust instead of the system's, for a service with a self-signed certificate.
    transport : httpx.BaseTransport, optional
        Replaces the network.

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def learn(
        self,
        samples: Any,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        owner: str | None = None,
        *,
        numbers: Any = None,
        weights: Any = None,
        idempotency_key: str | None = None,
    ) -> LearnResult:
        """Learn samples; return a receipt for each once they are on the service's disk.

        Parameters
        ----------
        samples : array, or sequence of rows of features, texts, or images
            Images are bytes of a file, a `Path`, or a Pillow image; or an array of uint8.
        labels : sequence of str or int
            Or of sets of these, if the service learns label sets.
        numbers : sequence of float, or of rows of float
            In place of labels, if the service learns numbers.
        weights : sequence of int
            Beside labels, if the service learns weighted classes.
        ids : sequence of str, optional
            No two held samples may have the same id.
        owner : str, optional
            The owner of the samples. Not needed if the API key has an owner.
        idempotency_key : str, optional
            By default, each call makes its own. Give one to be able to repeat the call after this process has died. If
            no answer came, `ServiceError.idempotency_key` has it. If the call was cancelled or interrupted, the
            `CancelledError` or `KeyboardInterrupt` has it as an attribute of the same name.
        """
        if labels is None and numbers is None:
            raise InputError("give the labels of the samples, or their numbers if the service learns those")
        listed = sample_list(samples, labels, ids, numbers, weights)
        body = {"samples": listed} | ({} if owner is None else {"owner": owner})
        return self._run(
            conversations.change(self._retries, "/v1/samples", body, idempotency_key, answers.read_learned)
        )

    @overload
    def forget(
        self,
        receipts: Receipts | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: Literal[False] = False,
        *,
        owner: str | None = None,
        numbers: Any = None,
        weights: Any = None,
        idempotency_key: str | None = None,
    ) -> Request: ...

    @overload
    def forget(
        self,
        receipts: Receipts | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        *,
        dry_run: Literal[True],
        owner: str | None = None,
        numbers: Any = None,
        weights: Any = None,
        idempotency_key: str | None = None,
    ) -> Effect: ...

    def forget(
        self,
        receipts: Receipts | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        dry_run: bool = False,
        *,
        owner: str | None = None,
        numbers: Any = None,
        weights: Any = None,
        idempotency_key: str | None = None,
    ) -> Request | Effect:
        """Forget samples, by receipts or by the samples themselves; return once that is on the service's disk.

        All are forgotten, or none. Predictions exclude them once the request is published: see `wait`.

        Parameters
        ----------
        receipts : bytes, or sequence of bytes
            Receipts in base64url may be `str`.
        samples, labels, numbers, weights : optional
            As they were learned.
        ids : sequence of str, optional
            Ids of the samples. Without ids, samples are found by their content.
        dry_run : bool
            Make all checks, change nothing, and return the effect.
        owner : str, optional
            The owner of the samples, if they were learned for one. Not needed if the API key has an owner.
        idempotency_key : str, optional
            See `learn`.
        """
        body = conversations.held("forget", receipts, samples, labels, ids, owner, numbers, weights)
        return self._run(conversations.forget(self._retries, "/v1/forget", body, idempotency_key, dry_run))

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
        body = {"label": plain_label(label)}
        return self._run(conversations.forget(self._retries, "/v1/forget/class", body, idempotency_key, dry_run))

    def predict(self, samples: Any) -> Predictions:
        """Return the published model's predictions for samples."""
        return self._ask(answers.read_predictions, "POST", "/v1/predict", {"samples": sample_list(samples)})

    def what_if(
        self,
        receipts: Receipts | None = None,
        samples: Any = None,
        labels: Any = None,
        ids: Iterable[str] | None = None,
        test: Any = None,
        test_labels: Any = None,
        owner: str | None = None,
        *,
        numbers: Any = None,
        weights: Any = None,
        test_numbers: Any = None,
        test_weights: Any = None,
    ) -> WhatIf:
        """Preview a forget: return the model now and without some samples. Needs the scope audit; changes nothing.

        Give receipts or samples as for `forget`. Both models also predict the samples in `test`, with `test_labels` or
        `test_numbers`.
        """
        if (test is None) != (test_labels is None and test_numbers is None):
            raise InputError("give test and test_labels together: the samples to predict, and their labels")
        body = conversations.held("what_if", receipts, samples, labels, ids, owner, numbers, weights)
        if test is not None:
            body["test"] = sample_list(test, test_labels, None, test_numbers, test_weights)
        return self._ask(answers.read_what_if, "POST", "/v1/what-if", body)

    def model(self) -> Model:
        """Return a summary of the published model."""
        return self._ask(answers.read_model, "GET", "/v1/model")

    def request(self, request: Which) -> Request:
        """Return a request with its present state."""
        return self._run(conversations.request(self._retries, request))

    def requests(self, limit: int = 100, before: str | None = None) -> list[Request]:
        """Return requests, newest first; `before` is the id of the last request on the previous page."""
        return self._ask(answers.read_requests, "GET", "/v1/requests", query=page(limit, before))

    def certificate(self, number: int) -> Certificate:
        """Return a certificate. Its form is checked; `check` checks its signature."""
        return self._run(conversations.certificate(self._retries, number))

    def certificates(self, limit: int = 100, before: int | None = None) -> list[CertificateEntry]:
        """Return the list of certificates, newest first; `before` is the last number on the previous page."""
        return self._ask(answers.read_entries, "GET", "/v1/certificates", query=page(limit, before))

    def verify(
        self, certificate: int | Certificate, receipt: bytes | str | None = None, checks: Iterable[str] = _CHECKS
    ) -> list[Check]:
        """Have the service check a certificate. `check` does it locally, without sending the receipt.

        Parameters
        ----------
        checks : sequence of str
            Any of ``"signature"``, ``"chain"``, ``"mine"`` (whether this certificate lists the receipt, which you must
            give; the sample may have been learned again later) and ``"weights"`` (needs the scope audit).
        """
        which = certificate if isinstance(certificate, int) else json.loads(certificate.to_json())
        body: dict[str, Any] = {"certificate": which, "checks": list(checks)}
        if receipt is not None:
            (body["receipt"],) = receipt_list(receipt)
        return self._ask(answers.read_checks, "POST", "/v1/verify", body)

    def publish(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """Publish the held samples as a new version; needs the scope admin.

        Fewer changes than the policy's `min_batch` are refused, unless `below_min_batch` is true.
        """
        return self._ask(dict, "POST", "/v1/publish", query=_administered(below_min_batch), repeatable=False)

    def seal(self, *, below_min_batch: bool = False) -> dict[str, Any]:
        """Publish, and clear forgotten samples off the service's disk; needs the scope admin.

        Fewer changes than the policy's `min_batch` are refused, unless `below_min_batch` is true.
        """
        return self._ask(dict, "POST", "/v1/seal", query=_administered(below_min_batch), repeatable=False)

    def wait(self, request: Which, state: str = "published", timeout: float = 60.0) -> Request:
        """Return a request once it has reached a state; raise `WaitedTooLongError` after `timeout` seconds."""
        return self._run(conversations.wait(self._retries, request, state, timeout))

    def _ask(self, reader: Callable[[dict[str, Any]], T], *send: Any, **more: Any) -> T:
        return self._run(conversations.ask(self._retries, Send(*send, **more), reader))

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


def _administered(below_min_batch: bool) -> dict[str, str]:
    return {"below_min_batch": "true"} if below_min_batch else {}


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a method of `Client` for `AsyncClient`: it holds the same conversation, with the `_run` of that class."""

    @wraps(method)
    async def call(self: Any, /, *given: P.args, **named: P.kwargs) -> T:
        found: Any = method(self, *given, **named)
        return await found  # type: ignore[no-any-return]

    return call


class AsyncClient(Connected):
    """`Client` for asyncio: the same methods, to be awaited. It is an asynchronous context manager.

    Parameters
    ----------
    url, token, timeout, retries, insecure, ca_file
        See `Client`.
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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    learn = _awaited(Client.learn)
    forget = _awaited(Client.forget)
    forget_class = _awaited(Client.forget_class)
    predict = _awaited(Client.predict)
    what_if = _awaited(Client.what_if)
    model = _awaited(Client.model)
    request = _awaited(Client.request)
    requests = _awaited(Client.requests)
    certificate = _awaited(Client.certificate)
    certificates = _awaited(Client.certificates)
    verify = _awaited(Client.verify)
    publish = _awaited(Client.publish)
    seal = _awaited(Client.seal)
    wait = _awaited(Client.wait)

    async def _ask(self, reader: Callable[[dict[str, Any]], T], *send: Any, **more: Any) -> T:
        return await self._run(conversations.ask(self._retries, Send(*send, **more), reader))

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
