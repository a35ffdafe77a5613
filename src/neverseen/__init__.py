"""Exact forgetting for classifiers on pre-trained features.

Learn a stream of samples; forget any of them, or a whole class, on request. Afterwards the model is bit for bit the one
that never saw them.
"""

from typing import TYPE_CHECKING

from neverseen.errors import (
    AlreadyForgottenError,
    AmbiguousError,
    CertificateRejectedError,
    CheckFailedError,
    ConfigurationError,
    FeaturesMovedError,
    FileRejectedError,
    HardwareError,
    IdTakenError,
    IllConditionedError,
    InputError,
    KeyMissingError,
    LabelError,
    LedgerError,
    LimitError,
    MissingPackageError,
    NeverseenError,
    NotLearnedError,
    NotPublishedError,
    NotTrackedError,
    ReceiptRejectedError,
    StoreDamagedError,
    StoreLockedError,
    UnknownKindError,
)
from neverseen.proof.keys import Key, Keyring

__version__ = "0.1.0"

__all__ = [
    "AlreadyForgottenError",
    "AmbiguousError",
    "AnalyticClassifier",
    "CertificateRejectedError",
    "CheckFailedError",
    "ConfigurationError",
    "Encoder",
    "FeaturesMovedError",
    "Federation",
    "FileRejectedError",
    "ForgettingModel",
    "GaussianKernel",
    "HardwareError",
    "IdTakenError",
    "Identity",
    "IllConditionedError",
    "InputError",
    "Key",
    "KeyMissingError",
    "Keyring",
    "LabelError",
    "LedgerError",
    "LimitError",
    "MissingPackageError",
    "NeverseenError",
    "NotLearnedError",
    "NotPublishedError",
    "NotTrackedError",
    "RandomProjection",
    "ReceiptRejectedError",
    "StoreDamagedError",
    "StoreLockedError",
    "TwoStreams",
    "UnknownKindError",
    "__version__",
    "choose_gamma",
    "learn_batches",
]

# Importing SciPy and scikit-learn takes a second. Errors, the client and a command's help do not need them, so names
# that do are imported on first use. Type checkers see plain imports: they know every name, and no others.
_LATE = {
    "AnalyticClassifier": "model.classifier",
    "Encoder": "encoding",
    "Federation": "model.federation",
    "ForgettingModel": "model.forgetting",
    "GaussianKernel": "encoding",
    "Identity": "encoding",
    "RandomProjection": "encoding",
    "TwoStreams": "encoding",
    "choose_gamma": "model.choosing",
    "learn_batches": "model.batches",
}
_ROOMS = (
    "backbones",
    "checks",
    "client",
    "encoding",
    "hardware",
    "holdings",
    "ledger",
    "service",
    "store",
    "targets",
    "tracking",
)

if TYPE_CHECKING:
    from neverseen.encoding import Encoder, GaussianKernel, Identity, RandomProjection, TwoStreams
    from neverseen.model.batches import learn_batches
    from neverseen.model.choosing import choose_gamma
    from neverseen.model.classifier import AnalyticClassifier
    from neverseen.model.federation import Federation
    from neverseen.model.forgetting import ForgettingModel
else:

    def __getattr__(name: str) -> object:
        """Import a name on its first use, and keep it."""
        from importlib import import_module

        if name in _ROOMS:
            return import_module(f"neverseen.{name}")
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"neverseen.{_LATE[name]}"), name)
        return found

    def __dir__() -> list[str]:
        """Return all names, including those that are not imported yet."""
        return sorted({*globals(), *_LATE, *_ROOMS})
