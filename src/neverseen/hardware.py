"""What a machine offers: arrays, fast products, factors. Nothing here is trusted to be exact.

Three kinds of hardware behind one small set of operations, so that the exact arithmetic and the solver are written
once:

========  ===================  ==========================================================
name      arrays live in       int8 products by
========  ===================  ==========================================================
numpy     main memory          float32 BLAS, in chunks whose sums stay under 2**24
torch     main memory          int8 matrix units (VNNI, AMX) when they pass a self-test
cuda      GPU memory           int8 tensor cores
========  ===================  ==========================================================

`choose` picks by what is there. The choice changes the time a model takes, never a bit of it:
`neverseen.engine.arithmetic` bounds every product before and checks it after.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import lapack

from neverseen.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

Array = Any  # numpy.ndarray or torch.Tensor, as the hardware has it

INT8_PRODUCT = 127 * 127  # the largest product of two codes
FLOAT32_ROWS = 2**24 // INT8_PRODUCT  # 1040 products of codes sum to less than 2**24
INT32_ROWS = (2**31 - 1) // INT8_PRODUCT  # 133,144 of them to less than 2**31


_FEW = 16  # rows; int8 matrix units want as many
_SUM_ROWS = 2**14  # codes turned to int64 at a time
_BLOCK = 2048  # of a triangular factor on a GPU
_PINNED = 2**15  # numbers; fewer go to a GPU without waiting for it. Of more, PyTorch's threads would make the copy
_TORCH_ROWS = 2048  # rows of codes multiplied at a time, which bounds what the kernel copies


class Hardware:
    """NumPy and SciPy on the CPU: always there, and the reference for the others."""

    name = "numpy"
    cholesky_keeps = False  # whether `cholesky` leaves its argument as it was
    follows = 2**6  # samples up to which following a change (`neverseen.engine.following`) is faster than to solve anew

    def __reduce__(self) -> tuple[Any, ...]:
        return choose, (self.name,)

    # -- arrays ------------------------------------------------------------------------------------

    def array(self, values: np.ndarray) -> Array:
        """Return `values` where this hardware computes; no copy when they are there already."""
        return values

    def numpy(self, array: Array) -> np.ndarray:
        """Return an array as NumPy's, in main memory."""
        return np.asarray(array)

    def zeros(self, *shape: int) -> Array:
        """Return int64 zeros."""
        return np.zeros(shape, dtype=np.int64)

    def float64(self, array: Array) -> Array:
        """Return integers as float64, rounded to nearest where they exceed 2**53."""
        return array.astype(np.float64)

    def limb(self, matrix: Array, shift: int, bits: int | None) -> Array:
        """Return ``(matrix >> shift) mod 2**bits`` of integers as float64; for None all higher bits, signed."""
        limb = np.empty(matrix.shape)
        for part in _blocks(matrix):
            taken = matrix[part].astype(np.int64, copy=False) >> shift  # narrower ones could not be shifted as far
            limb[part] = taken if bits is None else np.bitwise_and(taken, (1 << bits) - 1, out=taken)
        return limb

    def int64(self, array: Array) -> Array:
        """Return integers of any type, or integral floats, as int64."""
        return array.astype(np.int64, copy=False)

    def int8(self, array: Array) -> Array:
        """Return integers between -127 and 127 as int8."""
        return array.astype(np.int8)

    def rint(self, array: Array) -> Array:
        """Return float64 rounded to the nearest integer."""
        return np.rint(array)

    def concatenate(self, arrays: list[Array], axis: int) -> Array:
        """Join arrays along an axis."""
        return np.concatenate(arrays, axis=axis)

    def max_abs(self, array: Array) -> float:
        """Return the largest magnitude in an array of floats; NaN if there is one, 0 for an empty array."""
        return float(np.abs(array).max(initial=0.0))

    def row_sums(self, matrix: Array) -> np.ndarray:
        """Return the sum of the magnitudes of each row, in float64."""
        sums = np.empty(len(matrix))
        for part in _blocks(matrix):
            sums[part] = np.abs(matrix[part].astype(np.float64)).sum(axis=1)
        return sums

    def add_in_place(self, target: Array, change: Array, sign: int) -> None:
        """Add `sign` times `change`, integers of any width, to an int64 array."""
        (np.add if sign > 0 else np.subtract)(target, change, out=target)

    def add_to_rows(self, target: Array, rows: list[int], change: Array, sign: int) -> None:
        """Add `sign` times the rows of an int64 array to rows of another, each named once."""
        for row, part in zip(rows, change, strict=True):
            self.add_in_place(target[row], part, sign)

    def add_to_diagonal(self, matrix: Array, value: float | Array) -> None:
        """Add a number, or a vector's entries one each, to the diagonal of a square matrix."""
        matrix.flat[:: len(matrix) + 1] += value

    # -- products ----------------------------------------------------------------------------------

    def matmul(self, left: Array, right: Array) -> Array:
        """Return a float64 product."""
        return left @ right

    def int8_matmul(self, left: Array, right: Array) -> Array:
        """Return the product of two int8 arrays as integers of at least 32 bits; at most INT32_ROWS inner terms."""
        inner = left.shape[1]
        total = None
        for start in range(0, inner, FLOAT32_ROWS):
            a = left[:, start : start + FLOAT32_ROWS].astype(np.float32)
            b = right[start : start + FLOAT32_ROWS].astype(np.float32)
            part = (a @ b).astype(np.int32)
            total = part if total is None else np.add(total, part, out=total)
        return np.zeros((left.shape[0], right.shape[1]), np.int32) if total is None else total

    def int8_gram(self, codes: Array) -> Array:
        """Return ``codes.T @ codes`` for int8 codes as integers of at least 16 bits; at most INT32_ROWS rows."""
        if len(codes) == 1:
            row = codes[0].astype(np.int16)
            return np.multiply.outer(row, row)  # 127 * 127 < 2**15
        total = None
        for start in range(0, len(codes), FLOAT32_ROWS):
            a = codes[start : start + FLOAT32_ROWS].astype(np.float32)
            part = (a.T @ a).astype(np.int32)  # NumPy sees the symmetry and computes half
            total = part if total is None else np.add(total, part, out=total)
        return np.zeros((codes.shape[1], codes.shape[1]), np.int32) if total is None else total

    def class_sums(self, codes: Array, positions: np.ndarray, classes: int) -> Array:
        """Return the sums of int8 codes by class, int64 of shape (classes, d); `positions` has each sample's class."""
        sums = np.zeros((classes, codes.shape[1]), np.int64)
        order = np.argsort(positions, kind="stable")
        bounds = np.searchsorted(positions[order], np.arange(classes + 1))
        for place in range(classes):
            rows = order[bounds[place] : bounds[place + 1]]
            for start in range(0, len(rows), _SUM_ROWS):
                sums[place] += codes[rows[start : start + _SUM_ROWS]].sum(axis=0, dtype=np.int64)
        return sums

    def where(self, mask: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the entries of a mask that are set."""
        rows, columns = np.nonzero(mask)
        return rows, columns

    def wrapping_matvec(self, matrix: Array, vector: Array) -> Array:
        """Return ``matrix @ vector`` modulo 2**64, in integer arithmetic alone."""
        if matrix.dtype == np.int64:
            return np.einsum("ij,j->i", matrix, vector)  # quick in either memory order, unlike integer `@`
        blocks = [np.einsum("ij,j->i", matrix[part].astype(np.int64), vector) for part in _blocks(matrix)]
        return np.concatenate(blocks) if blocks else np.zeros(0, np.int64)

    # -- factors -----------------------------------------------------------------------------------

    def cholesky(self, matrix: Array) -> Array | None:
        """Return the Cholesky factor of a symmetric float64 matrix, which it may overwrite; None if there is none."""
        factor, info = lapack.dpotrf(matrix.T, lower=0, overwrite_a=1, clean=0)  # .T: LAPACK's order, no copy
        return factor if info == 0 and np.isfinite(factor[-1, -1]) else None

    def cholesky_solve(self, factor: Array, right: Array) -> Array:
        """Return the solution of the factored system for each column of `right`."""
        solution, _ = lapack.dpotrs(factor, right, lower=0)
        return np.ascontiguousarray(solution)

    def triangle(self, factor: Array) -> Array:
        """Return the lower triangle that a Cholesky factor consists of, with zeros above."""
        return np.tril(factor.T)

    def inverse(self, matrix: Array) -> Array:
        """Return the inverse of a small float64 matrix; raise ValueError or RuntimeError if it is singular."""
        return np.linalg.inv(matrix)


class TorchHardware(Hardware):
    """NumPy's arrays, with PyTorch's CPU kernels for the products."""

    name = "torch"
    cholesky_keeps = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._int8_units_work = _passes_int8_self_test(torch)

    # Two libraries' threads wait for work by spinning, and on the same cores each is several times slower for it. So
    # all floating-point work is PyTorch's, small or large, and NumPy's threads are left asleep.

    def limb(self, matrix: Array, shift: int, bits: int | None) -> Array:
        if not matrix.flags.writeable:  # PyTorch would warn that it cannot keep it so
            return super().limb(matrix, shift, bits)
        limb, values = self._torch.empty(matrix.shape, dtype=self._torch.float64), self._torch.from_numpy(matrix)
        for part in _blocks(matrix):
            taken = values[part].long() >> shift
            limb[part] = taken if bits is None else taken.bitwise_and_((1 << bits) - 1)
        return limb.numpy()

    def matmul(self, left: Array, right: Array) -> Array:
        return (self._torch.from_numpy(left) @ self._torch.from_numpy(right)).numpy()

    def cholesky(self, matrix: Array) -> Array | None:
        factor, info = self._torch.linalg.cholesky_ex(self._torch.from_numpy(matrix), upper=True)
        return np.asfortranarray(factor.numpy()) if int(info) == 0 else None

    def cholesky_solve(self, factor: Array, right: Array) -> Array:
        upper, solve = self._torch.from_numpy(factor), self._torch.linalg.solve_triangular
        inner = solve(upper.mT, self._torch.from_numpy(right), upper=False)  # twice the pace of torch.cholesky_solve
        return solve(upper, inner, upper=True).contiguous().numpy()

    def inverse(self, matrix: Array) -> Array:
        return self._torch.linalg.inv(self._torch.from_numpy(matrix)).numpy()

    def int8_matmul(self, left: Array, right: Array) -> Array:
        if not self._int8_units_work or len(left) == 0 or min(right.shape) < 2:
            return super().int8_matmul(left, right)
        a, b = (self._torch.from_numpy(part) for part in (_rows(left), np.ascontiguousarray(right)))
        return self._torch._int_mm(a, b)[: len(left)].numpy()

    def int8_gram(self, codes: Array) -> Array:
        if not self._int8_units_work or len(codes) <= 1 or codes.shape[1] < _FEW:
            return super().int8_gram(codes)
        total = None
        for start in range(0, len(codes), _TORCH_ROWS):
            rows = self._torch.from_numpy(_rows(codes[start : start + _TORCH_ROWS]))
            part = self._torch._int_mm(rows.t().contiguous(), rows)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total.numpy()


class CudaHardware(Hardware):
    """PyTorch on one NVIDIA GPU; arrays stay in its memory."""

    name = "cuda"
    cholesky_keeps = True
    follows = 1  # a GPU is quick to solve, and slow to begin each of many small products

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigurationError(
                "hardware='cuda' was asked for and PyTorch sees no CUDA device; use hardware='auto'"
            )
        self._torch = torch

    def array(self, values: np.ndarray) -> torch.Tensor:
        tensor = self._torch.from_numpy(np.require(values, requirements=["C", "W"]))  # read-only ones it would warn of
        if not 0 < values.size <= _PINNED:
            return tensor.cuda()
        return tensor.pin_memory().cuda(non_blocking=True)  # by way of a copy: the GPU need not have caught up

    def numpy(self, array: torch.Tensor) -> np.ndarray:
        values: np.ndarray = array.cpu().numpy()
        return values

    def zeros(self, *shape: int) -> torch.Tensor:
        return self._torch.zeros(shape, dtype=self._torch.int64, device="cuda")

    def float64(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self._torch.float64)

    def limb(self, matrix: torch.Tensor, shift: int, bits: int | None) -> torch.Tensor:
        taken = matrix.long() >> shift if shift else matrix.long()
        return self.float64(taken if bits is None else taken & ((1 << bits) - 1))

    def int64(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self._torch.int64)

    def int8(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self._torch.int8)

    def rint(self, array: torch.Tensor) -> torch.Tensor:
        return array.round()  # ties to even, as rint

    def concatenate(self, arrays: list[torch.Tensor], axis: int) -> torch.Tensor:
        return self._torch.cat(arrays, dim=axis)

    def max_abs(self, array: torch.Tensor) -> float:
        return float(array.abs().max()) if array.numel() else 0.0

    def row_sums(self, matrix: torch.Tensor) -> np.ndarray:
        return self.numpy(self._torch.linalg.vector_norm(self.float64(matrix), 1, dim=1))

    def add_in_place(self, target: torch.Tensor, change: torch.Tensor, sign: int) -> None:
        target.add_(change, alpha=sign)

    def add_to_rows(self, target: torch.Tensor, rows: list[int], change: torch.Tensor, sign: int) -> None:
        places = self._torch.tensor(rows, dtype=self._torch.int64, device=target.device)  # of no rows too
        target.index_add_(0, places, change, alpha=sign)

    def add_to_diagonal(self, matrix: torch.Tensor, value: float | torch.Tensor) -> None:
        matrix.diagonal().add_(value)

    def int8_matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self._padded(left), self._padded(right.t())
        return self._torch._int_mm(a, b.t())[: left.shape[0], : right.shape[1]]

    def int8_gram(self, codes: torch.Tensor) -> torch.Tensor:
        rows = self._padded(codes.t())
        return self._torch._int_mm(rows, rows.t())[: codes.shape[1], : codes.shape[1]]

    def _padded(self, array: torch.Tensor) -> torch.Tensor:
        """Return an array with zeros around it, which add nothing to a product.

        The tensor cores' int8 kernels want multiples of 32, and a left operand by rows with a right one by columns.
        """
        rows, columns = (max(32, -(-size // 32) * 32) for size in array.shape)
        if tuple(array.shape) == (rows, columns):
            return array.contiguous()
        padded = self._torch.zeros((rows, columns), dtype=array.dtype, device=array.device)
        padded[: array.shape[0], : array.shape[1]] = array
        return padded

    def wrapping_matvec(self, matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        rows = max(1, 2**24 // max(1, matrix.shape[1]))  # bounds the temporary at 128 MiB
        if len(matrix) <= rows:
            return (matrix * vector).sum(dim=1)  # of narrower integers too: the vector is int64, and so the product
        return self._torch.cat([(matrix[i : i + rows] * vector).sum(dim=1) for i in range(0, len(matrix), rows)])

    def class_sums(self, codes: torch.Tensor, positions: np.ndarray, classes: int) -> torch.Tensor:
        sums = self.zeros(classes, codes.shape[1])
        places = self.array(positions)
        for start in range(0, len(codes), _SUM_ROWS):
            stop = start + _SUM_ROWS
            sums.index_add_(0, places[start:stop], codes[start:stop].long())
        return sums

    def where(self, mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self.numpy(mask.nonzero()).T
        return rows, columns

    def cholesky(self, matrix: torch.Tensor) -> BlockedFactor | None:
        factor, info = self._torch.linalg.cholesky_ex(matrix)
        return BlockedFactor(factor, self._torch) if int(info) == 0 else None

    def cholesky_solve(self, factor: BlockedFactor, right: torch.Tensor) -> torch.Tensor:
        return factor.solve(right)

    def triangle(self, factor: BlockedFactor) -> torch.Tensor:
        return factor.lower.tril()

    def inverse(self, matrix: torch.Tensor) -> torch.Tensor:
        return self._torch.linalg.inv(matrix)


class BlockedFactor:
    """A lower Cholesky factor on a GPU, with its diagonal blocks inverted.

    A substitution row by row leaves a GPU idle. With the blocks inverted it is a few dozen products, five times as
    fast for a hundred columns. Inverted blocks are a little less accurate than a substitution: a factor is only ever
    a hint, and refinement makes up for it.
    """

    def __init__(self, factor: torch.Tensor, torch: Any) -> None:
        size = len(factor)
        self._torch, self.lower = torch, factor
        self._parts = [slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]
        eye = torch.eye(min(_BLOCK, size), dtype=factor.dtype, device=factor.device)
        whole = [part for part in self._parts if part.stop - part.start == len(eye)]
        blocks = torch.stack([factor[part, part] for part in whole])  # all at once
        self._inverses = list(_inverted(blocks, torch))
        for part in self._parts[len(whole) :]:  # a smaller one at the end
            rest = slice(0, part.stop - part.start)
            self._inverses.append(torch.linalg.solve_triangular(factor[part, part], eye[rest, rest], upper=False))

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """Return the solution for each column of `right`."""
        rest = right.clone(memory_format=self._torch.contiguous_format)
        solved = self._torch.empty_like(rest)
        for part, inverse in zip(self._parts, self._inverses, strict=True):  # L y = right
            self._torch.mm(inverse, rest[part], out=solved[part])
            rest[part.stop :].addmm_(self.lower[part.stop :, part], solved[part], alpha=-1)
        for part, inverse in zip(reversed(self._parts), reversed(self._inverses), strict=True):  # L' x = y
            self._torch.mm(inverse.T, solved[part], out=rest[part])
            solved[: part.start].addmm_(self.lower[part, : part.start].T, rest[part], alpha=-1)
        return rest


def _inverted(blocks: torch.Tensor, torch: Any) -> torch.Tensor:
    """Return the inverses of lower triangular blocks, of shape (b, n, n).

    Doubling: the inverse of [[P, 0], [Q, R]] is [[P', 0], [-R' Q P', R']], with P' and R' the inverses of P and R. For
    n a power of two all pairs of one size are done at once, in log2(n) rounds of two products; a substitution has n.
    """
    count, size = len(blocks), blocks.shape[1]
    if size & (size - 1):
        return torch.linalg.solve_triangular(blocks, torch.eye(size).to(blocks).expand_as(blocks), upper=False)
    inverses = torch.diag_embed(1 / blocks.diagonal(dim1=1, dim2=2))
    half = 1
    while half < size:
        shape = (count, size // (2 * half), 2 * half, size // (2 * half), 2 * half)
        known = inverses.view(shape).diagonal(dim1=1, dim2=3).movedim(-1, 1)  # (b, pairs, 2 half, 2 half), a view
        below = blocks.view(shape).diagonal(dim1=1, dim2=3).movedim(-1, 1)[..., half:, :half]
        known[..., half:, :half] = -known[..., half:, half:] @ below @ known[..., :half, :half]
        half *= 2
    return inverses


def _blocks(matrix: np.ndarray) -> list[slice]:
    """Return rows to take at a time, so that an int64 or float64 copy of them stays in a processor's cache."""
    rows = max(1, 2**18 // max(1, matrix.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(matrix), rows)]


def _rows(array: np.ndarray) -> np.ndarray:
    """Return an int8 matrix row by row, with rows of zeros if it has too few for the matrix units."""
    if len(array) >= _FEW:
        return np.ascontiguousarray(array)
    rows = np.zeros((_FEW, array.shape[1]), np.int8)
    rows[: len(array)] = array
    return rows


def contiguous(array: Array) -> Array:
    """Return an array, NumPy's or PyTorch's, laid out row by row."""
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def _passes_int8_self_test(torch: Any) -> bool:
    """Return whether this build's int8 product is there and exact on its hardest inputs.

    Without VNNI some CPUs add pairs of products in 16 bits and saturate; rows of equal extremes show it.
    """
    try:
        left = np.full((32, 512), 127, np.int8)
        left[1::2, ::3] = -127
        right = np.full((512, 32), 127, np.int8)
        right[:, 1::2] = -127
        product = torch._int_mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(np.array_equal(product, left.astype(np.int32) @ right.astype(np.int32)))


NAMES = ("auto", "numpy", "torch", "cuda")


@cache
def _make(name: str) -> Hardware:
    return {"numpy": Hardware, "torch": TorchHardware, "cuda": CudaHardware}[name]()


def choose(name: str = "auto") -> Hardware:
    """Return the hardware of that name; ``"auto"`` takes CUDA, else PyTorch, else NumPy, by what is there.

    Examples
    --------
    >>> choose("numpy").name
    'numpy'
    """
    if name not in NAMES:
        raise ConfigurationError(f"hardware must be one of {', '.join(map(repr, NAMES))}; got {name!r}")
    if name == "auto":
        if importlib.util.find_spec("torch") is None:
            name = "numpy"
        else:
            import torch

            name = "cuda" if torch.cuda.is_available() else "torch"
    elif name != "numpy" and importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            f"hardware={name!r} needs PyTorch, which is not installed: "
            "pip install 'neverseen[torch]', or use hardware='numpy'"
        )
    return _make(name)
