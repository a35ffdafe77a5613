"""Checks of settings: numbers in a range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neverseen.errors import ConfigurationError


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """Return a setting as an int; raise `ConfigurationError` if it is not a whole number in this range."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ConfigurationError(f"{name} must be a whole number between {least} and {most}; got {value!r}")
    return int(value)


def real_number(name: str, value: Any, least: float, most: float) -> float:
    """Return a setting as a float; raise `ConfigurationError` if it is not a number in this range of powers of two."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{name} must be a number; got {value!r}") from error
    if not least <= number <= most:  # also refuses NaN
        low, high = (math.frexp(bound)[1] - 1 for bound in (least, most))
        raise ConfigurationError(f"{name} must be a number between 2**{low} and 2**{high}; got {value!r}")
    return number
