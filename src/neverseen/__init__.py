"""Exact forgetting for classifiers on pre-trained features.

Learn a stream of samples; forget any of them, or a whole class, on request. The model left is bit for bit the one that
never saw them.
"""

from neverseen.classifier import AnalyticClassifier
from neverseen.encoding import Encoder, GaussianKernel, Identity, RandomProjection
from neverseen.errors import (
    AlreadyForgottenError,
    CertificateRejectedError,
    ConfigurationError,
    FeaturesMovedError,
    FileRejectedError,
    HardwareError,
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
    ReceiptRejectedError,
    StoreDamagedError,
    StoreLockedError,
)
from neverseen.forgetting import ForgettingModel
from neverseen.keys import Key, Keyring

__version__ = "0.1.0"

__all__ = [
    "AlreadyForgottenError",
    "AnalyticClassifier",
    "CertificateRejectedError",
    "ConfigurationError",
    "Encoder",
    "FeaturesMovedError",
    "FileRejectedError",
    "ForgettingModel",
    "GaussianKernel",
    "HardwareError",
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
    "RandomProjection",
    "ReceiptRejectedError",
    "StoreDamagedError",
    "StoreLockedError",
    "__version__",
]
