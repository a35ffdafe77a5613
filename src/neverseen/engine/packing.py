"""Compact integers: the upper triangle of a symmetric matrix, and the narrowest type that fits."""

from __future__ import annotations

import numpy as np

_TILE = 64  # rows mirrored at a time


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return integers in the narrowest signed type that holds them all: a function of the values alone."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    for dtype in (np.int8, np.int16, np.int32):
        bounds = np.iinfo(dtype)
        if bounds.min <= least and most <= bounds.max:
            return values.astype(dtype)
    return values.astype(np.int64)


def pack_triangle(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a square matrix, row by row."""
    size = len(matrix)
    packed = np.empty(size * (size + 1) // 2, matrix.dtype)
    place = 0
    for row in range(size):
        packed[place : place + size - row] = matrix[row, row:]
        place += size - row
    return packed


def unpack_triangle(packed: np.ndarray, size: int) -> np.ndarray:
    """Return the symmetric int64 matrix with this upper triangle."""
    matrix = np.empty((size, size), np.int64)
    place = 0
    for row in range(size):
        matrix[row, row:] = packed[place : place + size - row]
        place += size - row
    for start in range(0, size, _TILE):  # a column at a time would miss the cache with every entry
        stop = min(start + _TILE, size)
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
        corner = matrix[start:stop, start:stop]
        lower = np.tril_indices(stop - start, -1)
        corner[lower] = corner.T[lower]
    return matrix
