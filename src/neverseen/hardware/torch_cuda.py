"""PyTorch on one NVIDIA GPU: arrays stay in its memory, int8 products run on its tensor cores."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from neverseen.errors import ConfigurationError
from neverseen.hardware import fused_small_changes
from neverseen.hardware.numpy_cpu import SUM_ROWS
from neverseen.hardware.protocol import HardwareOf, SmallChange
from neverseen.hardware.torch_quantising import quantised
from neverseen.hardware.torch_small_changes import Replayed, small_change

if TYPE_CHECKING:
    import torch

_BLOCK = 2048  # of a triangular factor
_FEW_ROWS = 4  # that are added one by one, as that is faster than to send their places
_MOST_HERE = 2**15  # codes that the processor looks at: one step for the GPU rather than five
_MANY_NUMBERS = 2**18  # features for whose quantisation the way to the GPU and back pays
_BYTES = 0x0080808080808080
_LOADING = threading.Lock()
_MOST_PINNED = 2**22  # numbers that are copied by way of pinned memory, which PyTorch keeps
_PINNED = 2**15  # numbers; fewer come from a GPU sooner without


class CudaHardware(HardwareOf[Any]):
    """PyTorch on one NVIDIA GPU; arrays stay in its memory."""

    name = "cuda"
    cholesky_keeps = True
    bytewise = True

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigurationError(
                "hardware='cuda' was requested, but PyTorch sees no CUDA device; use hardware='auto'"
            )
        with _LOADING:  # PyTorch loads a library for the first factor, and fails in threads that want one meanwhile
            torch.linalg.cholesky_ex(torch.eye(1, device="cuda"))
        self._torch = torch

    def small_changes(self) -> SmallChange[torch.Tensor]:
        kernels = fused_small_changes.kernels()
        if kernels is None:
            return Replayed(small_change, still=9)
        return Replayed(functools.partial(fused_small_changes.small_change, kernels), still=9)

    def array(self, values: np.ndarray) -> torch.Tensor:
        tensor = self._torch.from_numpy(np.require(values, requirements=["C", "W"]))  # read-only ones it would warn of
        if not 0 < values.size <= _MOST_PINNED:
            return tensor.cuda()
        place = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        place.numpy()[...] = values  # PyTorch would start threads to copy
        return place.cuda(non_blocking=True)  # the GPU need not have caught up

    def numpy(self, array: torch.Tensor) -> np.ndarray:
        if not _PINNED < array.numel() <= _MOST_PINNED:
            return array.cpu().numpy()
        place = self._torch.empty(
            array.shape, dtype=array.dtype, pin_memory=True
        )  # PyTorch keeps such memory for reuse
        return place.copy_(array).numpy()

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

    def contiguous(self, array: torch.Tensor) -> torch.Tensor:
        return array.contiguous()

    def copied(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def max_abs(self, array: torch.Tensor) -> float:
        return float(array.abs().max()) if array.numel() else 0.0

    def row_sums(self, matrix: torch.Tensor) -> np.ndarray:
        return self.numpy(self._torch.linalg.vector_norm(self.float64(matrix), 1, dim=1))

    def measured(self, codes: torch.Tensor) -> tuple[np.ndarray, int]:
        if codes.numel() <= _MOST_HERE:
            here = self.numpy(codes).astype(np.int16)  # holds the magnitude of -128 too
            return np.abs(here).sum(axis=1).astype(np.float64), int(here.min())
        wide = codes.short()
        told = self.numpy(self._torch.cat([wide.abs().sum(1), wide.min()[None]]))
        return told[:-1].astype(np.float64), int(told[-1])

    def add_in_place(self, target: torch.Tensor, change: torch.Tensor, sign: int) -> None:
        target.add_(change, alpha=sign)

    def add_to_rows(self, target: torch.Tensor, rows: list[int], change: torch.Tensor, sign: int) -> None:
        if len(rows) <= _FEW_ROWS:
            for row, part in zip(rows, change, strict=True):
                target[row].add_(part, alpha=sign)
            return
        target.index_add_(0, self.array(np.array(rows)), change, alpha=sign)

    def add_to_diagonal(self, matrix: torch.Tensor, value: float | torch.Tensor) -> None:
        matrix.diagonal().add_(value)

    def quantised(self, features: np.ndarray, target: float) -> np.ndarray | None:
        if features.size < _MANY_NUMBERS or features.dtype not in (np.float32, np.float64):
            return None
        codes, finite = quantised(self.float64(self.array(features)), target)
        return self.numpy(codes) if finite else None

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right

    def int8_matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self._padded(left), self._padded(right.t())
        return self._torch._int_mm(a, b.t())[: left.shape[0], : right.shape[1]]

    def int8_int64_matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Cut each number of `right` into eight bytes with signs: ``sum of byte_p 2**(8 p)``, modulo 2**64.

        With 128 added to each of the seven low bytes, a byte without a sign is 128 more than the one with a sign; and
        that is the same bits, but for the top one. Sums of ``d <= 2**17`` products of at most 127 * 128 have 31 bits.
        """
        shape = len(left), right.shape[1], 8
        whole = ((right + _BYTES) ^ _BYTES).contiguous().view(self._torch.int8)
        product = self.int8_matmul(left, whole).long().reshape(shape)
        return (product << self._torch.arange(0, 64, 8, device=product.device)).sum(2)

    def less_product(
        self, matrix: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, overwrite: bool = False
    ) -> torch.Tensor:
        result = matrix if overwrite else matrix.clone()
        return result.addmm_(left, right, alpha=-1)

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
        for start in range(0, len(codes), SUM_ROWS):
            stop = start + SUM_ROWS
            sums.index_add_(0, places[start:stop], codes[start:stop].long())
        return sums

    def few_class_sums(self, codes: torch.Tensor, positions: np.ndarray, classes: int) -> torch.Tensor:
        if classes == 1:
            return codes.long() if len(codes) == 1 else codes.sum(0, dtype=self._torch.int64)[None]
        return self.class_sums(codes, positions, classes)  # in integers

    def where(self, mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self.numpy(mask.nonzero()).T
        return rows, columns

    def cholesky(self, matrix: torch.Tensor) -> BlockedFactor | None:
        factor, info = self._torch.linalg.cholesky_ex(matrix)
        return BlockedFactor(factor, self._torch) if int(info) == 0 else None

    def cholesky_solve(self, factor: BlockedFactor, right: torch.Tensor) -> torch.Tensor:
        return factor.solve(right)

    def cholesky_inverse(self, factor: BlockedFactor) -> torch.Tensor:
        return self._torch.cholesky_inverse(factor.lower)

    def triangle(self, factor: BlockedFactor) -> torch.Tensor:
        return factor.lower.tril()

    def inverse(self, matrix: torch.Tensor) -> torch.Tensor:
        return self._torch.linalg.inv(matrix)


class BlockedFactor:
    """A lower Cholesky factor on a GPU, with its diagonal blocks inverted.

    Substitution row by row leaves a GPU idle. With inverted blocks, a solve is a few dozen products, and five times as
    fast for a hundred columns. It is a little less accurate. That is harmless: a factor is only a hint, and refinement
    makes up for it.
    """

    def __init__(self, factor: torch.Tensor, torch: Any) -> None:
        self._torch, self.lower, size = torch, factor, len(factor)
        self._parts = [slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]

    @functools.cached_property
    def _inverses(self) -> list[torch.Tensor]:
        """The inverses of the blocks on the diagonal. They are not computed before something is solved."""
        factor, torch = self.lower, self._torch
        eye = torch.eye(min(_BLOCK, len(factor)), dtype=factor.dtype, device=factor.device)
        whole = [part for part in self._parts if part.stop - part.start == len(eye)]
        blocks = torch.stack([factor[part, part] for part in whole])  # all at once
        inverses = list(_inverted(blocks, torch))
        for part in self._parts[len(whole) :]:  # a smaller one at the end
            rest = slice(0, part.stop - part.start)
            inverses.append(torch.linalg.solve_triangular(factor[part, part], eye[rest, rest], upper=False))
        return inverses

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

    Doubling: the inverse of [[P, 0], [Q, R]] is [[P', 0], [-R' Q P', R']], with P' and R' the inverses of P and R. If n
    is a power of two, all pairs of one size are done at once, in log2(n) rounds of two products. Substitution takes n.
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
