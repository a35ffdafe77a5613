"""`Callers`: the clients of a service, their rights and their limits.

Everything counts against a key or, without a key, against an address.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial

from starlette.requests import Request

from neverseen.ledger import RequestRow
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import Settings
from neverseen.service.reception.access import ApiKey, KeyFile, maker_of
from neverseen.service.reception.bodies import declared, too_large
from neverseen.service.reception.requests import KEY, address_of, token_of
from neverseen.service.sharing.limits import Buckets

_HEALTH = frozenset(["/healthz", "/readyz"])
_KEYED = ("/v1/", "/metrics")
_JUST_FOUND = "neverseen.just_found"  # in a scope: the key that `name_of` found in this round of the event loop


class Callers:
    """The keys of a service, and the token buckets of each client."""

    def __init__(self, settings: Settings, access: KeyFile) -> None:
        self._settings, self._access = settings, access
        self._requests = Buckets(settings.requests_per_second, settings.request_burst)
        self._samples = Buckets(settings.samples_per_second, settings.sample_burst)
        self._classes = Buckets(settings.classes_per_second, settings.class_burst)
        self._bytes = Buckets(settings.bytes_per_second, settings.bytes_burst)
        self._public = Buckets(settings.public_per_second, settings.public_burst)
        self._public_bytes = Buckets(settings.public_bytes_per_second, settings.public_bytes_burst)
        self._health = Buckets(settings.health_per_second, settings.health_burst)

    def key_of(self, request: Request) -> ApiKey | None:
        """Return the key of a request; without a valid key, return None and count the request against its address."""
        token = token_of(request) or ""
        key = request.scope.pop(_JUST_FOUND, None) or self._access.find(token, look=False)
        if key is None:
            self.public(request)  # who guesses is slowed down
            key = self._access.find(token)
        if key is not None:
            request.scope[KEY] = key.name
        return key

    def name_of(self, request: Request) -> str:
        """Return the client to which a request counts: the name of a known key, or an address."""
        if KEY in request.scope:
            return str(request.scope[KEY])
        key = request.scope[_JUST_FOUND] = self._known(request)
        return address_of(request) if key is None else key.name

    def look_again(self, request: Request) -> None:
        """Note that time has passed, and the key may have been revoked."""
        request.scope.pop(_JUST_FOUND, None)

    def _known(self, request: Request) -> ApiKey | None:
        token = token_of(request)
        return None if token is None else self._access.find(token, look=False)

    def require(self, request: Request, *scopes: str) -> ApiKey:
        """Return the key of a request; refuse unless it has one of these scopes, if any are given.

        The buckets come first. So every request counts, whatever the refusal, and one too many costs next to nothing.
        """
        key = self.key_of(request)
        if key is None:
            raise Refusal("unauthorized", "API key missing or invalid: send Authorization: Bearer nsk_...")
        self._count_key(key)
        if scopes and not any(map(key.may, scopes)):
            raise Refusal("forbidden", f"this needs a key with the scope {' or '.join(scopes)}")
        return key

    def count_early(self, request: Request) -> None:
        """Count a request before routing, unless its route counts it against a key."""
        path = request.scope["path"]
        if path in _HEALTH:
            self._count(request, "health_per_second", self._health)
        elif token_of(request) is None or not path.startswith(_KEYED):
            self.public(request)

    def public(self, request: Request) -> None:
        """Count a request that needs no key, once: against its key if it is valid, or against its address."""
        if "neverseen.counted" not in request.scope:
            self._count(request, "public_per_second", self._public)

    def _count(self, request: Request, setting: str, buckets: Buckets) -> None:
        request.scope["neverseen.counted"] = True
        key = self._known(request)  # who guesses counts below
        if key is not None:
            request.scope[KEY] = key.name
            self._count_key(key)
            return
        wait = buckets.take(address_of(request))
        if wait:
            limit = f"{setting} = {getattr(self._settings, setting):g}"
            words = f"too many requests from this address ({limit}): wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)

    def _count_key(self, key: ApiKey) -> None:
        self._limit(self._requests.take(key.name), "requests", "requests_per_second")

    def may_see(self, request: Request, key: ApiKey, row: RequestRow) -> bool:
        """Return whether a key may see a request: the key sent it, or sees all."""
        if key.may("audit") or row.client == key.name:
            return True
        token = token_of(request)
        return token is not None and row.maker is not None and hmac.compare_digest(row.maker, maker_of(token, row.id))

    def require_samples(self, key: ApiKey) -> None:
        """Refuse a key that has used up its samples for now, before its body is read."""
        self._limit(self._samples.wait(key.name), "samples", "samples_per_second")

    def count_samples(self, key: ApiKey, samples: int) -> None:
        """Count samples against a key."""
        self._limit(self._samples.take(key.name, samples), "samples", "samples_per_second")

    def count_classes(self, key: ApiKey, new: int) -> None:
        """Count new classes against a key."""
        if new:
            self._limit(self._classes.take(key.name, new), "new classes", "classes_per_second")

    def count_body(self, request: Request, key: ApiKey | None, most: int) -> Callable[[int], None] | None:
        """Count the bytes of a body; return a function to count them as they arrive, if that is needed.

        Bytes count before they arrive, because receiving takes time and memory too. If a request does not declare its
        length, or declares too much, they count as they arrive, even if it is refused. A client with none left is
        refused first.
        """
        said = declared(request)
        buckets, client = (self._public_bytes, address_of(request)) if key is None else (self._bytes, key.name)
        if said is not None and said <= most:
            wait, count = buckets.take(client, said), None
        else:
            wait, count = buckets.wait(client), partial(buckets.spend, client)
        if wait and said is not None and said > most:
            raise too_large(most)  # waiting would not help
        if wait and key is None:
            words = "too many bytes from this address without a key: wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)
        self._limit(wait, "bytes", "bytes_per_second", "")
        return count

    def _limit(self, wait: float, what: str, setting: str, style: str = "g") -> None:
        if wait:
            limit = f"{setting} = {getattr(self._settings, setting):{style}}"
            raise Refusal(
                "rate_limited", f"too many {what} from this key ({limit}): wait as long as Retry-After says", wait=wait
            )
