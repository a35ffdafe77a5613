"""The operations that the engine needs from a machine. Nothing here is trusted to be exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, SupportsInt, TypeVar, cast

import numpy as np

INT8_PRODUCT = 127 * 127  # the largest product of two codes
FLOAT32_ROWS = 2**24 // INT8_PRODUCT  # 1040 products of codes sum to less than 2**24
INT32_ROWS = (2**31 - 1) // INT8_PRODUCT  # 133,144 of them to less than 2**31

BYTE_ROWS = 2**17  # products of a code and a byte sum to less than 2**31

Factor = Any
"""The result of `HardwareOf.cholesky`: only the hardware that made it looks inside."""


class Array(Protocol):  # noqa: PLW1641 (arrays have no hash)
    """The operations that the engine applies to arrays directly. NumPy's arrays and PyTorch's tensors have them all.

    Everything else is an operation of the hardware. An array is only ever passed to the hardware that made it.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> object: ...
    @property
    def T(self) -> Array: ...  # noqa: N802

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Array: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __int__(self) -> int: ...  # of one number
    def __float__(self) -> float: ...

    # The other side is an array of the same hardware, or a number.
    def __add__(self, other: Any, /) -> Array: ...
    def __sub__(self, other: Any, /) -> Array: ...
    def __rsub__(self, other: Any, /) -> Array: ...
    def __mul__(self, other: Any, /) -> Array: ...
    def __rmul__(self, other: Any, /) -> Array: ...
    def __lshift__(self, other: Any, /) -> Array: ...
    def __rshift__(self, other: Any, /) -> Array: ...
    def __and__(self, other: Any, /) -> Array: ...
    def __or__(self, other: Any, /) -> Array: ...
    def __lt__(self, other: Any, /) -> Array: ...
    def __gt__(self, other: Any, /) -> Array: ...
    def __eq__(self, other: object, /) -> Array: ...  # type: ignore[override]
    def __neg__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __invert__(self) -> Array: ...

    def all(self) -> object: ...
    def min(self) -> SupportsInt: ...
    def max(self) -> SupportsInt: ...
    def sum(self, axis: int, /) -> Array: ...
    def clip(self, least: int, most: int, /) -> Array: ...
    def diagonal(self) -> Array: ...
    def tolist(self) -> list[Any]: ...


A = TypeVar("A", bound=Array)
"""The arrays of one kind of hardware."""


Moved = tuple[A, A, list[int]]

SmallChange = Callable[..., tuple[A, ...]]
"""`neverseen.hardware.torch_small_changes.small_change` for arrays of this kind.

The last results, from the third on, are valid until the next call."""


class HardwareOf(Protocol[A]):
    """The operations of one kind of hardware, whose arrays are of type `A`.

    A kind of hardware is a class with all of these; `neverseen.checks.check_hardware` tests them.
    `neverseen.engine.arithmetic` bounds every exact product before and checks it after, so a mistake here raises an
    error and never changes a bit.

    Attributes
    ----------
    name : str
        The name under which it is registered.
    cholesky_keeps : bool
        Whether `cholesky` leaves its argument as it was.
    integers : bool
        Whether 64-bit integer products (`symmetric_product`, `int8_int64_matmul`) are fast. If not, float64 products
        are used instead, and checked.
    bytewise : bool
        Whether `int8_int64_matmul` is made of int8 products: it is fast, and has to be checked.
    """

    name: str
    cholesky_keeps: bool
    integers: bool = False
    bytewise: bool = False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def small_changes(self) -> SmallChange[A] | None:
        """Return a function that makes a small change in one go, if that is faster than step by step."""
        return None

    def few_rows(self, matrix: np.ndarray) -> Callable[[A], A] | None:
        """Return a function that multiplies a few int8 rows by this int8 or int64 matrix, if that is quick in integers.

        Its results are exact, of 32 bits for int8 and of 64 for int64, and need no check. The caller bounds them.
        """
        return None

    def alone(self) -> AbstractContextManager[Any]:
        """Return a context for many small steps of one thread, in which no library has threads of its own.

        Otherwise, threads that have finished a step keep spinning on the cores that the next step needs.
        """
        return nullcontext()

    # -- arrays ------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy only the name: everything else belongs to this machine."""
        from neverseen.hardware import choose

        return choose, (self.name,)

    def array(self, values: np.ndarray) -> A:
        """Return `values` in this hardware's memory; no copy if they are there already."""

    def numpy(self, array: A) -> np.ndarray:
        """Return an array as a NumPy array, in main memory."""

    def zeros(self, *shape: int) -> A:
        """Return int64 zeros."""

    def float64(self, array: A) -> A:
        """Return integers as float64, rounded to nearest where they exceed 2**53."""

    def limb(self, matrix: A, shift: int, bits: int | None) -> A:
        """Return ``(matrix >> shift) mod 2**bits`` of integers as float64; for None all higher bits, signed."""

    def int64(self, array: A) -> A:
        """Return integers of any type, or integral floats, as int64."""

    def int8(self, array: A) -> A:
        """Return integers between -127 and 127 as int8."""

    def rectified(self, sums: A, shift: int) -> A:
        """Return ``(sums >> shift).clip(0, 127)`` as int8, for integers and a shift from 0 to 31."""
        values: Any = sums
        return self.int8((values >> shift).clip(0, 127))

    def rint(self, array: A) -> A:
        """Return float64 rounded to the nearest integer."""

    def concatenate(self, arrays: list[A], axis: int) -> A:
        """Join arrays along an axis."""

    def contiguous(self, array: A) -> A:
        """Return an array laid out row by row."""

    def copied(self, array: A) -> A:
        """Return a copy of an array."""

    def max_abs(self, array: A) -> float:
        """Return the largest magnitude in an array of floats; NaN if there is one, 0 for an empty array."""

    def row_sums(self, matrix: A) -> np.ndarray:
        """Return the sum of the magnitudes of each row, in float64."""

    def measured(self, codes: A) -> tuple[np.ndarray, int]:
        """Return the `row_sums` of int8 codes, and the least of them; there is at least one."""
        return self.row_sums(codes), int(codes.min())

    def row_moments(self, matrix: A) -> np.ndarray:
        """Return the sums of magnitudes, numbers and squares of each row of an int64 matrix, float64 of shape (3, d).

        Only where `integers` is true.
        """

    def near_half(self, rests: A, doubts: np.ndarray) -> list[int]:
        """Return the columns of float64 rests with an entry within a column's doubt of a half; NaN counts as near."""
        near: Any = ~(0.5 - abs(rests) > self.array(doubts[None, :]))
        return sorted(set(self.where(near)[1].tolist()))

    def add_in_place(self, target: A, change: A, sign: int) -> None:
        """Add `sign` times `change`, integers of any width, to an int64 array."""

    def add_to_rows(self, target: A, rows: list[int], change: A, sign: int) -> None:
        """Add `sign` times the rows of an int64 array to rows of another, each named once."""

    def add_to_diagonal(self, matrix: A, value: float | A) -> None:
        """Add a number, or a vector's entries one each, to the diagonal of a square matrix."""

    def quantised(self, features: np.ndarray, target: float) -> np.ndarray | None:
        """Return what `neverseen.encoding.quantise` does for a matrix of real numbers; None leaves it to the caller.

        `target` is the root mean square that each row shall have. It returns None too if a number is not finite.
        """
        return None

    # -- products ----------------------------------------------------------------------------------

    def matmul(self, left: A, right: A) -> A:
        """Return a float64 product."""

    def symmetric_matmul(self, left: A, right: A) -> A:
        """Return a float64 product; `left` is symmetric, or may be treated as if it were."""
        return self.matmul(left, right)

    def approximate_product(self, matrix: A, block: A) -> A:
        """Return ``matrix @ block`` in float64, for a symmetric int64 matrix and a float64 block."""
        return self.matmul(self.float64(matrix), block)

    def less_product(self, matrix: A, left: A, right: A, *, overwrite: bool = False) -> A:
        """Return ``matrix - left @ right`` in float64, symmetric as `matrix` is; it may overwrite that if told so."""
        result: Any = matrix - self.matmul(left, right)
        return cast("A", result)

    def move(self, steps: A, rests: A, left: tuple[A, A, A], right: tuple[A, A, A], doubts: np.ndarray) -> Moved[A]:
        """Return ``steps + rests`` moved by a product, as new steps and rests, and the columns `near_half`.

        `left` is ``u1 + u2 + u3`` of shape (d, k), and `right` is ``e1 + e2 + e3`` of shape (k, C), all float64. The
        products ``u1 @ e1`` and ``u1 @ e2 + u2 @ e1`` are exact: in each the terms are multiples of a power of two, and
        their sums have 53 bits.
        """
        moved: Any
        rest: Any
        e1: Any
        e2: Any
        e3: Any
        (u1, u2, u3), (e1, e2, e3), moved, rest = left, right, steps, rests
        for part in (
            self.matmul(u1, e1),
            self.matmul(self.concatenate([u1, u2], 1), self.concatenate([e2, e1], 0)),
            self.matmul(self.concatenate([u1, u2, u3], 1), self.concatenate([e3, e2 + e3, e1 + (e2 + e3)], 0)),
        ):
            whole: Any = self.rint(part)
            moved, rest = moved + self.int64(whole), rest + (part - whole)
        carry: Any = self.rint(rest)
        return moved + self.int64(carry), rest - carry, self.near_half(rest - carry, doubts)

    def int8_int64_matmul(self, left: A, right: A) -> A:
        """Return the product of an int8 and an int64 array modulo 2**64, if `integers` or `bytewise`."""

    def int8_matmul(self, left: A, right: A) -> A:
        """Return the product of two int8 arrays as integers of at least 32 bits; at most INT32_ROWS inner terms."""

    def int8_gram(self, codes: A) -> A:
        """Return ``codes.T @ codes`` for int8 codes as integers of at least 16 bits; at most INT32_ROWS rows."""

    def class_sums(self, codes: A, positions: np.ndarray, classes: int) -> A:
        """Return the sums of int8 codes by class, int64 of shape (classes, d); `positions` has each sample's class."""

    def few_class_sums(self, codes: A, positions: np.ndarray, classes: int) -> A:
        """Return `class_sums` of a few samples, in integer arithmetic alone."""
        few = np.zeros((classes, codes.shape[1]), np.int64)
        for position, row in zip(positions, self.numpy(codes), strict=True):
            few[position] += row
        return self.array(few)

    def where(self, mask: A) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the entries of a mask that are set."""

    def wrapping_matvec(self, matrix: A, vector: A) -> A:
        """Return ``matrix @ vector`` modulo 2**64, in integer arithmetic alone."""

    def symmetric_product(self, matrix: A, block: A, narrow: bool = False) -> A:
        """Return ``matrix @ block`` modulo 2**64 for a symmetric int64 matrix, in integer arithmetic alone.

        If `narrow`, the caller knows that all numbers lie in -2**31..2**31 - 1.
        """
        columns: list[Any] = [self.wrapping_matvec(matrix, column)[:, None] for column in cast("Any", block.T)]
        return self.concatenate(columns, 1) if columns else block

    # -- factors -----------------------------------------------------------------------------------

    def cholesky(self, matrix: A) -> Factor | None:
        """Return the Cholesky factor of a symmetric float64 matrix, which it may overwrite; None if there is none."""

    def cholesky_solve(self, factor: Factor, right: A) -> A:
        """Return the solution of the factored system for each column of `right`."""

    def cholesky_inverse(self, factor: Factor) -> A:
        """Return the inverse of the factored matrix, symmetric."""

    def triangle(self, factor: Factor) -> A:
        """Return a Cholesky factor as a lower triangular matrix, with zeros above the diagonal."""

    def inverse(self, matrix: A) -> A:
        """Return the inverse of a small float64 matrix; raise ValueError or RuntimeError if it is singular."""


Hardware = HardwareOf[Array]
"""Any kind of hardware: its user knows about its arrays only what `Array` says."""
