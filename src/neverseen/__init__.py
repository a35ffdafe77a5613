"""Exact forgetting for classifiers on pre-trained features.

Learn a stream of samples; forget any of them, or a whole class, on request. The model left is bit for bit the one that
never saw them.
"""

from neverseen.classifier import AnalyticClassifier
from neverseen.encoding import Encoder, GaussianKernel, Identity, RandomProjection
from neverseen.errors import (
    ConfigurationError,
    FileRejectedError,
    HardwareError,
    IllConditionedError,
    InputError,
    KeyMissingError,
    LabelError,
    LimitError,
    NeverseenError,
    NotLearnedError,
)
from neverseen.membership import Key

__version__ = "0.1.0"

__all__ = [
    "AnalyticClassifier",
    "ConfigurationError",
    "Encoder",
    "FileRejectedError",
    "GaussianKernel",
    "HardwareError",
    "Identity",
    "IllConditionedError",
    "InputError",
    "Key",
    "KeyMissingError",
    "LabelError",
    "LimitError",
    "NeverseenError",
    "NotLearnedError",
    "RandomProjection",
    "__version__",
]
