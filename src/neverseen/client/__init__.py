"""The service's client: `Client`, and `AsyncClient` for asyncio. Needs the extra ``client``.

>>> from neverseen.client import Client
>>> Client("http://127.0.0.1:8080", token="nsk_" + "x" * 43)
Client('http://127.0.0.1:8080')
"""

from neverseen.errors import MissingPackageError

try:
    import httpx as _httpx  # noqa: F401
except ImportError as error:
    raise MissingPackageError("the client needs httpx: pip install 'neverseen[client]'") from error

from neverseen.client.answers import (
    CertificateEntry,
    Check,
    Effect,
    LearnResult,
    Model,
    ModelState,
    Prediction,
    Predictions,
    Request,
    WhatIf,
)
from neverseen.client.clients import AsyncClient, Client
from neverseen.client.failures import (
    ForgottenAlreadyError,
    NotHeldError,
    ReceiptRefusedError,
    ServiceError,
    UnreachableError,
    WaitedTooLongError,
)

__all__ = [
    "AsyncClient",
    "CertificateEntry",
    "Check",
    "Client",
    "Effect",
    "ForgottenAlreadyError",
    "LearnResult",
    "Model",
    "ModelState",
    "NotHeldError",
    "Prediction",
    "Predictions",
    "ReceiptRefusedError",
    "Request",
    "ServiceError",
    "UnreachableError",
    "WaitedTooLongError",
    "WhatIf",
]
