"""Samples made from a hash, so that no library's random generator can change them."""

from __future__ import annotations

import hashlib

import numpy as np


def uniform_bytes(name: str, *shape: int) -> np.ndarray:
    """Uniform uint8 values that depend on the name alone."""
    size = int(np.prod(shape))
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(size), np.uint8).reshape(shape)


def features(name: str, rows: int, columns: int) -> np.ndarray:
    """Float features, multiples of 1/64 in [-2, 2)."""
    return (uniform_bytes(name, rows, columns).astype(np.float64) - 128) / 64


def clustered(name: str, rows: int, columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Features that scatter about one centre per class, and their labels."""
    labels = uniform_bytes(name + ":labels", rows) % classes
    return features(name + ":centres", classes, columns)[labels] + features(name + ":noise", rows, columns), labels


def codes(name: str, rows: int, columns: int) -> np.ndarray:
    """Int8 codes over the whole of -127..127."""
    return (uniform_bytes(name, rows, columns) % 255).astype(np.int16).__sub__(127).astype(np.int8)
