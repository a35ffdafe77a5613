"""Compiled loops for a few rows, such as the samples of a request.

All but large products keep the interpreter while they run. NumPy lets it go for each loop over 500 numbers or more, and
if another thread is busy, getting it back takes longer than all the loops. Call them only if
`neverseen.hardware.kernels.available`.
"""

from __future__ import annotations

import numpy as np

from neverseen.hardware.kernels import address, check, function, level

FEW = 8
"""Rows that are few. More are better multiplied together, by other loops."""
_BRIEF = 2**22  # multiplications that take less than 0.1 ms
_SIGNS = 256  # columns of a matrix of signs that are multiplied together: kernels.c wants whole ones


class Factor:
    """An integer matrix to multiply a few int8 rows by, again and again.

    Memory sets the pace, so it is kept in as few bytes as hold it: a matrix of +1 and -1 in bits, others in int8, int32
    or int64.

    Parameters
    ----------
    matrix : int8 or int64 ndarray of shape (d, n)
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self._columns = self._width = matrix.shape[1]
        self._kind: type = np.int32 if matrix.dtype == np.int8 else np.int64
        if matrix.dtype == np.int8 and matrix.size and bool((np.abs(matrix) == 1).all()):
            self._width = -(-self._columns // _SIGNS) * _SIGNS
            positive = np.zeros((len(matrix), self._width), bool)
            positive[:, : self._columns] = matrix > 0
            self._matrix, self._size = np.packbits(positive, axis=1, bitorder="little"), 0
        else:
            narrow = matrix.dtype == np.int64 and matrix.size and -(2**31) <= matrix.min() <= matrix.max() < 2**31
            self._matrix = np.ascontiguousarray(matrix, np.int32 if narrow else matrix.dtype)
            self._size = self._matrix.itemsize
        self._address = address(self._matrix)

    def after(self, left: np.ndarray) -> np.ndarray:
        """Return ``left @ matrix`` for int8 rows: int32 if the matrix is int8, or int64, modulo 2**64.

        The caller bounds the sums of an int8 matrix by 32 bits.
        """
        inner = len(self._matrix)
        check("left", left, np.int8, (None, inner))
        result: np.ndarray = np.zeros((len(left), self._width), self._kind)
        sizes = level(), self._size, len(left), inner, self._width
        call = function("ns_few", brief=left.size * self._width <= _BRIEF)
        call(*sizes, address(left), self._address, address(result))
        return result if self._width == self._columns else result[:, : self._columns].copy()


def rounded(numbers: np.ndarray) -> np.ndarray | None:
    """Return a float64 matrix in float32, rounded to nearest; None if a number is not finite, or beyond float32."""
    check("numbers", numbers, np.float64, (None, None))
    result = np.empty(numbers.shape, np.float32)
    return result if function("ns_round", brief=True)(numbers.size, address(numbers), address(result)) else None


def quantised(features: np.ndarray) -> np.ndarray | None:
    """Return float32 or float64 rows as int8, as `neverseen.encoding.quantise` does; None if a number is not finite."""
    check("features", features, np.float32 if features.dtype == np.float32 else np.float64, (None, None))
    rows, width = features.shape
    codes, padded = np.empty((rows, width), np.int8), 1 << max(0, width - 1).bit_length()
    room, sizes = np.empty(2 * padded), (rows, width, padded, features.itemsize)
    call = function("ns_quantise", brief=True)
    return codes if call(*sizes, address(features), address(room), address(codes)) else None


def rectified(sums: np.ndarray, shift: int) -> np.ndarray:
    """Return ``(sums >> shift).clip(0, 127)`` in int8, for an int32 matrix and a shift from 0 to 31."""
    check("sums", sums, np.int32, (None, None))
    codes = np.empty(sums.shape, np.int8)
    function("ns_rectify", brief=True)(sums.size, shift, address(sums), address(codes))
    return codes
