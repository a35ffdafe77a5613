"""Exact forgetting for classifiers on pre-trained features.

Learn a stream of samples; forget any of them, or a whole class, on request. The model left is bit for bit the one that
never saw them.
"""

from neverseen.classifier import AnalyticClassifier
from neverseen.encoding import Encoder, GaussianKernel, Identity, RandomProjection
from neverseen.errors import (
    ConfigurationError,
    FeaturesMovedError,
    FileRejectedError,
    HardwareError,
    IllConditionedError,
    InputError,
    KeyMissingError,
    LabelError,
    LimitError,
    MissingPackageError,
    NeverseenError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.forgetting import ForgettingModel
from neverseen.keys import Key, Keyring

__version__ = "0.1.0"

__all__ = [
    "AnalyticClassifier",
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
    "LimitError",
    "MissingPackageError",
    "NeverseenError",
    "NotLearnedError",
    "RandomProjection",
    "ReceiptRejectedError",
    "__version__",
]
