"""The address of a service, and a safe connection to it."""

from __future__ import annotations

import ipaddress
import math
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from neverseen.client.conversations import Retries, Send
from neverseen.errors import CertificateRejectedError, ConfigurationError

if TYPE_CHECKING:
    from neverseen.proof.certificates import Certificate


class _Bearer(httpx.Auth):
    """Adds the token to each request, and shows it nowhere else."""

    def __init__(self, token: str) -> None:
        self.__token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.__token}"
        yield request

    def __repr__(self) -> str:
        return "<token>"


class Connected:
    """The shared part of both clients: an address, connection settings, and checks that need no service."""

    def __init__(self, url: str, token: str | None, timeout: float, retries: int, insecure: bool) -> None:
        self._url = _address(url, token is not None, insecure)
        self._retries = Retries(retries)
        self._settings: dict[str, Any] = {
            "base_url": self._url,
            "auth": None if token is None else _Bearer(_sound(token)),
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "headers": {"Accept": "application/json"},
            "follow_redirects": False,  # a redirect could carry the token elsewhere
            "trust_env": self._url.scheme == "https",  # without TLS, a proxy from the environment would read it
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._url)!r})"

    @staticmethod
    def check(certificate: Certificate | bytes, *, public_key: str, receipt: bytes | None = None) -> Certificate:
        """Check a certificate here, without asking the service; return it, or raise `CertificateRejectedError`.

        Parameters
        ----------
        certificate : Certificate or bytes
            The certificate, or the bytes of its file.
        public_key : str
            The publisher's key, 64 hex digits, from an independent source: the key inside the certificate proves
            nothing.
        receipt : bytes, optional
            Require that the certificate lists this receipt as forgotten. The receipt is not sent anywhere. No
            certificate can tell whether the sample was learned again later.
        """
        from neverseen.proof.certificates import Certificate, check_signature, is_mine

        found = Certificate.from_json(certificate) if isinstance(certificate, bytes) else certificate
        check_signature(found, public_key)
        if receipt is not None and not is_mine(found, receipt):
            raise CertificateRejectedError(
                f"certificate {found.number} does not list this receipt as forgotten: check the certificate that the "
                "request names",
                found.number,
            )
        return found


def request_of(http: httpx.Client | httpx.AsyncClient, step: Send) -> httpx.Request:
    """Return the HTTP request for a step."""
    content = step.content()
    headers = step.headers | ({} if content is None else {"Content-Type": "application/json"})
    timeout = http.timeout
    if step.timeout is not None:
        timeout = httpx.Timeout(min(step.timeout, timeout.read or math.inf))
    return http.build_request(
        step.method, step.path, params=step.query, content=content, headers=headers, timeout=timeout
    )


def _address(url: str, with_token: bool, insecure: bool) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigurationError("the service's address is not a URL such as https://forget.example.org") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise ConfigurationError("the service's address must begin with https://, or http:// on this machine")
    if address.userinfo or address.query or address.fragment:
        raise ConfigurationError("the service's address must have no user, query or fragment: pass the token as token=")
    if address.scheme == "http" and with_token and not insecure and not _is_here(address.host):
        raise ConfigurationError(
            f"{address} has no TLS: others on the network could read the token. Use https, or insecure=True on a "
            "network that only you use"
        )
    return address


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _sound(token: str) -> str:
    if not isinstance(token, str) or not token or not all("!" <= letter <= "~" for letter in token):
        raise ConfigurationError("the token is not an API key: it is nsk_ and 43 letters, digits, - and _, on one line")
    return token


def trust(ca_file: str | Path | None) -> ssl.SSLContext | bool:
    """Return the authorities to trust: the system's, or those in a file."""
    return True if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
