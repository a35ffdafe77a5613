"""Quantisation in PyTorch, with the bits of `neverseen.encoding.quantise`.

The steps are the same: each is one correctly rounded IEEE operation on float64, or exact. PyTorch divides by a number
as if it multiplied by its reciprocal, which rounds twice; so numbers are tensors here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def quantised(features: Tensor, target: float) -> tuple[Tensor, Tensor]:
    """Return int8 codes of float64 features of shape (n, d0), and whether all features are finite."""
    import torch

    width = features.shape[1]
    tops = features.abs().amax(1, keepdim=True)
    _, exponents = torch.frexp(tops)
    # 2**-e in two factors, because it may be beyond 2**1023 (or below 2**-1022). If it is large, both products are
    # exact. If it is small and the first product underflows, what is left underflows to zero, as it does in one step.
    down = -exponents.long()
    scaled = features * _power(down >> 1) * _power(down - (down >> 1))
    squares = features.new_zeros((len(features), 1 << (width - 1).bit_length()))
    torch.mul(scaled, scaled, out=squares[:, :width])
    while squares.shape[1] > 1:
        half = squares.shape[1] // 2
        squares = squares[:, :half] + squares[:, half:]
    root = (squares / torch.full_like(squares, width)).sqrt()
    factor = torch.where(root > 0, torch.full_like(root, target) / root, 0.0)
    return (scaled * factor).round().clamp(-127, 127).to(torch.int8), tops.isfinite().all()


def _power(exponents: Tensor) -> Tensor:
    """Return ``2**exponents`` exactly, for -1022 to 1023."""
    import torch

    return ((exponents + 1023) << 52).view(torch.float64)
