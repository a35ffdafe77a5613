"""Compiled loops for the products and updates that every request repeats, if the package was built with a compiler.

``kernels.c`` says what they compute. They are optional: `available` tells whether they can be used, and their callers
can do the same work without them. ``NEVERSEEN_KERNELS=0`` in the environment turns them off.

Every function checks its arrays before it passes on their addresses, and raises before anything changes. Integer
results are the same on every machine, with any number of threads; float64 results are not.

``python -m neverseen.hardware.kernels`` says whether they are in use; with ``--build`` it compiles them first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.hardware import compiling

_FOLDER = Path(__file__).parent
_MAX_THREADS = 8
_SHARE = 2**19  # multiplications that are worth a thread: it takes as long to start as about a fifth of them
_SHARE_OF_TEAM = 2**16  # the same for a thread that is there already
_FEW = 4  # columns up to which a block is multiplied one by one: its rows would not fill a vector
_CODE_ROWS = 2048  # samples that are packed at a time; their sums stay below 2**31
_TO_WHOLE, _TO_REAL, _TO_HALF = range(3)  # what kernels.c calls matrices of int64, float64 and int32
_NARROW, _CODES = 3, 4  # what kernels.c calls a product of integers of 32 bits, and one of int8 by integers
_TERMS = 512  # columns of a low rank that are packed at a time


_TYPES = {"n": ctypes.c_long, "x": ctypes.c_double, "p": ctypes.c_void_p, "-": None}
_SIGNATURES = {  # as in kernels.c: the result and the arguments
    "ns_version": ("n", ""),
    "ns_level": ("n", ""),
    "ns_panel": ("n", "nn"),
    "ns_gather": ("n", "n"),
    "ns_dismiss": ("-", ""),
    "ns_times_vector": ("-", "nnnnppp"),
    "ns_times": ("-", "nnnnnnnnpppp"),
    "ns_times_codes": ("-", "nnnnnppppp"),
    "ns_few": ("-", "nnnnnppp"),
    "ns_quantise": ("n", "nnnnppp"),
    "ns_rectify": ("-", "nnpp"),
    "ns_round": ("n", "npp"),
    "ns_moments": ("-", "nnnpp"),
    "ns_update": ("-", "nnnnnppxppp"),
    "ns_move": ("n", "nnnnn" + 10 * "p" + "n"),
}


def _load(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library in a folder, or None; and its name, or the reason."""
    if os.environ.get("NEVERSEEN_KERNELS") == "0":
        return None, "turned off by NEVERSEEN_KERNELS=0"
    path = folder / compiling.LIBRARY
    try:
        expected = compiling.version(folder)
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = _TYPES[result], [_TYPES[letter] for letter in arguments]
        found = library.ns_version()
    except (OSError, AttributeError) as error:
        return None, f"not compiled: {error}" if path.exists() else "not compiled"
    if found != expected:
        return None, "compiled from another source"
    return library, ("any processor", "AVX2", "AVX-512", "AVX-512 with VNNI")[library.ns_level()]


_here = threading.local()
_library, _state = _load(_FOLDER)
_level = _library.ns_level() if _library is not None else 0  # the instruction set in use


def available() -> bool:
    """Return whether the functions here can be called."""
    return _library is not None


def level() -> int:
    """Return the number of the instruction set in use, as kernels.c counts them."""
    return int(_level)


def quick() -> bool:
    """Return whether float products here beat those of a numerical library: not without wide vectors."""
    return _library is not None and _level > 0


@contextmanager
def team() -> Iterator[None]:
    """Keep threads waiting for what this thread calls here, so that small products are shared too.

    They wait by spinning, so do not keep them for longer than a request. If another thread has a team, there is none.
    """
    outermost = _library is not None and not getattr(_here, "gathered", False)
    try:
        if outermost:
            _here.gathered = _call("ns_gather", _most_threads()) > 1
        yield
    finally:  # also after an interrupt right behind the call: a team that nobody dismisses spins for ever
        if outermost:
            _here.gathered = False
            _call("ns_dismiss")


# -- products ----------------------------------------------------------------------------------------


def times_vector(matrix: np.ndarray, vector: np.ndarray, *, threads: int | None = None) -> np.ndarray:
    """Return ``matrix @ vector`` for a symmetric matrix. It reads only one triangle.

    Parameters
    ----------
    matrix : ndarray of shape (d, d), int64 or float64
    vector : ndarray of shape (d,), int64 or float64
        Integers are multiplied by integers, modulo 2**64. Otherwise the result is float64.
    threads : int, optional
        By default chosen by the amount of work and the number of processors, here and in the other functions.
    """
    size, (kind, code) = _square(matrix), _kinds(matrix, vector)
    check("vector", vector, kind, (size,))
    count = _threads(threads, size * size)
    sums: np.ndarray = np.zeros((count, size), kind)
    _call("ns_times_vector", _level, code, count, size, matrix, vector, sums)
    return sums[0] if count == 1 else sums.sum(axis=0)


def times_block(
    matrix: np.ndarray, block: np.ndarray, *, narrow: bool = False, threads: int | None = None
) -> np.ndarray:
    """Return ``matrix @ block`` for a symmetric matrix of shape (d, d) and a block of shape (d, n); see `product`."""
    size, (kind, _) = _square(matrix), _kinds(matrix, block)
    check("block", block, kind, (size, None))
    if not 0 < block.shape[1] <= _FEW:
        return product(matrix, block, narrow=narrow, threads=threads)
    columns = [times_vector(matrix, column, threads=threads) for column in np.ascontiguousarray(block.T)]
    return np.stack(columns, axis=1)


def product(left: np.ndarray, right: np.ndarray, *, narrow: bool = False, threads: int | None = None) -> np.ndarray:
    """Return ``left @ right`` for matrices of shape (m, d) and (d, n). The left may have any memory order.

    The left is of int8, int64 or float64, the right of int64 or float64. Integers are multiplied by integers, modulo
    2**64. Otherwise the result is float64; int8 by float64 is not offered. If `narrow`, all integers lie in
    -2**31..2**31 - 1, and the product is faster. That is not checked: larger ones are cut off.
    """
    if not isinstance(left, np.ndarray) or left.ndim != 2 or left.dtype not in (np.int8, np.int64, np.float64):
        raise TypeError("the left must be a matrix of int8, int64 or float64")
    kind, code = (np.int64, _CODES) if left.dtype == np.int8 else _kinds(left, right)
    code = _NARROW if narrow and code == 0 else code
    (rows, inner), item = left.shape, left.itemsize
    check("right", right, kind, (inner, None))
    result: np.ndarray = np.zeros((rows, right.shape[1]), kind)
    if result.size and inner:
        if not left.flags.aligned or any(stride % item for stride in left.strides):
            left = np.ascontiguousarray(left)
        across, along = (stride // item for stride in left.strides)
        count = _threads(threads, result.size * inner)
        packed = np.empty(inner * _padded(right.shape[1], real=True), kind)
        _call("ns_times", _level, code, count, rows, *right.shape, across, along, left, right, packed, result)
    return result


def times_codes(left: np.ndarray, right: np.ndarray, *, threads: int | None = None) -> np.ndarray:
    """Return ``left @ right`` for int8 matrices of shape (m, d) and (d, n), as int32. Sums that need more bits wrap."""
    check("left", left, np.int8, (None, None))
    check("right", right, np.int8, (left.shape[1], None))
    (rows, inner), columns = left.shape, right.shape[1]
    result: np.ndarray = np.zeros((rows, columns), np.int32)
    if result.size and inner:
        count = _threads(threads, result.size * inner // 16)  # a sixteenth of the time of 64-bit integers
        packed = [np.empty(_padded(size, real=False) * ((inner + 3) // 2), np.int32) for size in result.shape]
        _call("ns_times_codes", _level, count, rows, inner, columns, left, right, *packed, result)
    return result


def row_moments(matrix: np.ndarray, *, threads: int | None = None) -> np.ndarray:
    """Return the sums of the magnitudes, of the numbers and of their squares for each row of an int64 matrix, (3, d).

    They are float64, and each is the sum of d roundings.
    """
    size = _square(matrix)
    check("matrix", matrix, np.int64, (size, size))
    result = np.empty((3, size))
    _call("ns_moments", _level, _threads(threads, size * size), size, matrix, result)
    return result


# -- updates -----------------------------------------------------------------------------------------


def add_codes(matrix: np.ndarray, codes: np.ndarray, signs: np.ndarray, *, threads: int | None = None) -> None:
    """Add ``codes.T @ diag(signs) @ codes`` to a matrix of shape (d, d), modulo 2**64, or 2**32 if it is int32.

    Parameters
    ----------
    matrix : int64 or int32 ndarray of shape (d, d)
        Symmetric; both triangles get the same numbers.
    codes : int8 ndarray of shape (n, d), entries in -127..127
    signs : int8 ndarray of shape (n,), entries in -1..1
    """
    half = isinstance(matrix, np.ndarray) and matrix.dtype == np.int32
    size = len(matrix) if half else _square(matrix)
    check("matrix", matrix, np.int32 if half else np.int64, (size, size), changes=True)
    check("codes", codes, np.int8, (None, size))
    check("signs", signs, np.int8, (len(codes),))
    _apart(matrix, codes, signs)
    if len(signs) and not -1 <= signs.min() <= signs.max() <= 1:  # larger ones could exceed 32 bits
        raise ValueError("signs must be -1, 0 or 1")
    if codes.min(initial=0) == -128:  # times -1 it is no int8
        raise ValueError("codes must be -127 to 127")
    for start in range(0, len(codes), _CODE_ROWS):
        some, theirs = codes[start : start + _CODE_ROWS], signs[start : start + _CODE_ROWS]
        # A multiplication of codes takes a sixteenth of the time of one of 64-bit integers, and the matrix is moved.
        count = _threads(threads, size * size * (len(some) + 16) // 16)
        packed = np.empty((2, _padded(size, real=False) * ((len(some) + 3) // 2)), np.int32)
        kind = _TO_HALF if half else _TO_WHOLE
        _call("ns_update", _level, kind, count, size, len(some), some, theirs, 1.0, packed[0], packed[1], matrix)


def add_low_rank(
    matrix: np.ndarray, left: np.ndarray, right: np.ndarray, times: float = 1.0, *, threads: int | None = None
) -> None:
    """Add ``times * left.T @ right``, which is symmetric, to a symmetric float64 matrix of shape (d, d).

    One triangle is computed and added to both, so the matrix remains symmetric to the last bit.

    Parameters
    ----------
    matrix : float64 ndarray of shape (d, d)
    left, right : float64 ndarrays of shape (n, d)
    """
    size = _square(matrix)
    check("matrix", matrix, np.float64, (size, size), changes=True)
    check("left", left, np.float64, (None, size))
    check("right", right, np.float64, left.shape)
    _apart(matrix, left, right)
    for start in range(0, len(left), _TERMS):
        some, others = left[start : start + _TERMS], right[start : start + _TERMS]
        packed = np.empty((2, _padded(size, real=True) * (len(some) + 1)))
        count = _threads(threads, size * size * (len(some) + 2) // 2)
        sizes = _level, _TO_REAL, count, size, len(some)
        _call("ns_update", *sizes, some, others, float(times), packed[0], packed[1], matrix)


def move(
    steps: np.ndarray,
    rests: np.ndarray,
    left: tuple[np.ndarray, np.ndarray, np.ndarray],
    right: tuple[np.ndarray, np.ndarray, np.ndarray],
    doubt: np.ndarray,
    near: np.ndarray,
    *,
    threads: int | None = None,
) -> int:
    """Add ``(u1 + u2 + u3) @ (e1 + e2 + e3)`` to integer steps and rests; return how many entries are in doubt.

    For each entry ``p = u1 @ e1`` and ``q = u1 @ e2 + u2 @ e1`` are exact, and what is left of the product is rounded.
    All three are rounded to integers, their remainders are added to the rest, and the rest is rounded again. The
    integers go to `steps`, and a rest between -1/2 and 1/2 remains.

    Parameters
    ----------
    steps : int64 ndarray of shape (d, C)
    rests : float64 ndarray of shape (d, C)
    left, right : three float64 ndarrays of shape (d, n) each, and three of shape (n, C)
        The terms of p are multiples of some power of two, and so are those of q. The caller bounds the sums of their
        magnitudes, as multiples of it, by 2**53, and the moves by 2**62.
    doubt : float64 ndarray of shape (C,)
        An entry is in doubt unless its rest is further than this from a half. NaN is in doubt.
    near : int64 ndarray, of any length
        Receives the places of such entries in ``steps.ravel()``, in any order, as many as fit.
    """
    check("steps", steps, np.int64, (None, None), changes=True)
    (size, columns) = steps.shape
    check("rests", rests, np.float64, (size, columns), changes=True)
    check("u1", left[0], np.float64, (size, None))
    terms = left[0].shape[1]
    for place in range(3):
        check(f"u{place + 1}", left[place], np.float64, (size, terms))
        check(f"e{place + 1}", right[place], np.float64, (terms, columns))
    check("doubt", doubt, np.float64, (columns,))
    check("near", near, np.int64, (None,), changes=True)
    for written in (steps, rests, near):
        _apart(written, *(each for each in (steps, rests, near, *left, *right, doubt) if each is not written))
    count = _threads(threads, size * columns * (6 * terms + 8))
    sizes = _level, count, size, terms, columns
    return int(_call("ns_move", *sizes, steps, rests, *left, *right, doubt, near, len(near)))


# -- checks, and calls -------------------------------------------------------------------------------


def _kind(array: np.ndarray) -> type:
    return np.int64 if array.dtype == np.int64 else np.float64


def _kinds(matrix: np.ndarray, right: np.ndarray) -> tuple[type, int]:
    """Return the type of a right side and of its product with a matrix, and the number of the pair in kernels.c."""
    if _kind(matrix) is np.float64:
        return np.float64, 1
    whole = getattr(right, "dtype", None) != np.float64
    return (np.int64, 0) if whole else (np.float64, 2)


def _square(matrix: np.ndarray) -> int:
    """Check a matrix, and return its size."""
    size = len(matrix) if isinstance(matrix, np.ndarray) and matrix.ndim else 0
    check("matrix", matrix, _kind(np.asarray(matrix)), (size, size))
    return size


def check(name: str, array: np.ndarray, kind: type, shape: tuple[int | None, ...], *, changes: bool = False) -> None:
    """Raise unless an array has this type and shape (None: any length), lies row by row, and is writable if needed."""
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(kind):
        found = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be an array of {kind.__name__}, not {found}")
    if array.ndim != len(shape) or any(
        want is not None and size != want for size, want in zip(array.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have the shape ({wanted}), not {array.shape}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError(f"{name} must be stored row by row without gaps")
    if changes and not array.flags.writeable:
        raise ValueError(f"{name} is read-only")


def _apart(written: np.ndarray, *others: np.ndarray) -> None:
    if any(np.may_share_memory(written, other) for other in others):  # exact for arrays without gaps
        raise ValueError("an array that is changed must not share memory with another")


def _padded(size: int, *, real: bool) -> int:
    """Return the size in whole panels."""
    panel = _panel(_level, real)
    return -(-size // panel) * panel


@functools.cache
def _panel(level: int, real: bool) -> int:
    return int(_call("ns_panel", level, int(real)))


def _threads(asked: int | None, work: int) -> int:
    if asked is not None:
        if not 1 <= asked <= _MAX_THREADS:
            raise ValueError(f"threads must be 1 to {_MAX_THREADS}, not {asked}")
        return asked
    share = _SHARE_OF_TEAM if getattr(_here, "gathered", False) else _SHARE
    return max(1, min(_most_threads(), work // share))


def _most_threads() -> int:
    there = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(there, _MAX_THREADS)


@functools.cache
def function(name: str, brief: bool) -> Any:
    """Return a function of the library, which takes numbers and addresses. A brief one keeps the interpreter meanwhile.

    Others let it go, and wait for it if another thread is busy: often longer than a brief loop takes.
    """
    if _library is None:
        raise RuntimeError(f"the kernels are {_state}")
    function = getattr((ctypes.PyDLL if brief else ctypes.CDLL)(_library._name), name)
    result, arguments = _SIGNATURES[name]
    function.restype, function.argtypes = _TYPES[result], [_TYPES[letter] for letter in arguments]
    return function


def address(array: np.ndarray) -> int:
    """Return where an array lies. It must be kept for as long as the address is used."""
    return int(array.__array_interface__["data"][0])


def _call(name: str, *arguments: np.ndarray | float) -> Any:
    if _library is None:
        raise RuntimeError(f"the kernels are {_state}")
    passed = [address(each) if isinstance(each, np.ndarray) else each for each in arguments]
    return getattr(_library, name)(*passed)


def _main(arguments: list[str]) -> str | int:
    """Print whether the kernels are in use; return an error message, or 0."""
    if arguments not in ([], ["--build"]):
        return "usage: python -m neverseen.hardware.kernels [--build]"
    if arguments:
        if reason := compiling.compile_library(_FOLDER):
            return f"the kernels could not be compiled: {reason}"
        # This process has loaded an older library, and would get it again.
        return subprocess.run([sys.executable, "-m", "neverseen.hardware.kernels"], check=False).returncode
    print(f"the kernels are {'in use' if available() else 'not in use'} ({_state})")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
