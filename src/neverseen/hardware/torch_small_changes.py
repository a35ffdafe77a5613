"""Small changes as one row of operations in PyTorch, which a GPU captures once and repeats.

The change is that of `neverseen.engine.following`: k samples with codes C, all added (s = 1) or all removed (s = -1),

    U ~ A'^-1 C',  V = C' - A'U,  E ~ 2**p L - C Y,  Y' = Y + s U E.

U is refined once, and V is exact: ``2**(f1 + f2) V = 2**(f1 + f2) C' - A'(2**f2 b1 + b2)`` with integers b1 and b2 of
up to 2h - 1 and mh - 1 bits. They are cut into limbs of h bits, m = 2 or 3, so that products with A' stay below 2**52
and are exact in float64. V itself is computed modulo 2**64. The same sums in floating point, each right to a few
roundings, prove that it has less than 62 bits: then it is what it is modulo 2**64. At the end, V, E and the move are
checked with random vectors.

Nothing waits for a number: whatever decides something is returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_FOLLOW_BITS = 22  # as in `neverseen.engine.following`
_KEPT = 6  # graphs: each has memory of its own
_CAPTURING = threading.Lock()  # PyTorch captures one graph at a time in a process
_SLACK = 1 + 2.0**-30  # more than some thousand roundings of a sum of positive numbers


class System(NamedTuple):
    """The system A', and an approximate inverse of A."""

    gram: Tensor  # (d, d) float64: G
    matrix: Tensor  # (d, d): the inverse is `matrix` less
    lefts: Tensor  # (m, d), turned, times
    rights: Tensor  # (m, d)
    aside: Tensor  # (w, d) int8: samples that are not in G yet
    signs: Tensor  # (w, 1) int8
    probe: Tensor  # (d,) int64: a random vector r
    image: Tensor  # (d,): (G + gamma) r, modulo 2**64
    across: Tensor  # (C,) int64: another random vector

    def guess(self, right: Tensor) -> Tensor:
        """Return about ``A^-1 right``."""
        return self.matrix @ right - self.lefts.t() @ (self.rights @ right)

    def remainder(self, before: Tensor, finer: Tensor, block: Tensor, limbs: int, few: _Few) -> tuple[Tensor, Tensor]:
        """Return ``2**finer before - A' block`` modulo 2**64, and an upper bound on its entries in real numbers."""
        import torch

        cut = []  # highest first, up to 2**(h - 1) each
        for place in range(limbs - 1, 0, -1):
            cut.append((block * few.power(-place)).round())
            block = block - cut[-1] * few.power(place)
        side_by_side, codes = torch.cat([*cut, block], 1), self.aside.double()
        product = self.gram @ side_by_side + few.gamma * side_by_side
        product += codes.t() @ (self.signs.double() * (codes @ side_by_side))
        exact, estimate = before << finer, before.double() * _power(finer)
        error = _top(estimate)
        for place, part in zip(range(limbs - 1, -1, -1), product.split(block.shape[1], 1), strict=True):
            scaled = part * few.power(place)
            exact, estimate, error = (
                exact - (part.long() << (place * few.bits)),
                estimate - scaled,
                error + _top(scaled),
            )
        return exact, _top(estimate) + error * 2.0**-50  # five roundings of at most 2**-53 each

    def seen(self) -> Tensor:
        """Return ``A' r`` modulo 2**64."""
        codes = self.aside.long()
        inner = (codes * self.probe).sum(1, keepdim=True) * self.signs.long()
        return self.image + (codes * inner).sum(0)


class _Few(NamedTuple):
    """A few numbers in one tensor."""

    slips: Tensor  # (C,)
    residuals: Tensor  # (C,)
    sign: Tensor  # s
    bits: Tensor  # h
    gamma: Tensor
    powers: Tensor  # of 2**h, from the -2nd to the 2nd

    def power(self, place: int) -> Tensor:
        """Return ``2**(h place)``."""
        return self.powers[place + 2]

    @classmethod
    def of(cls, told: Tensor, columns: int) -> _Few:
        """Take them apart."""
        rest = told[2 * columns :]
        return cls(told[:columns], told[columns : 2 * columns], rest[0], rest[1].long(), rest[2], rest[3:])


class _Images(NamedTuple):
    """U and what is known about it."""

    images: Tensor  # Z = A^-1 C', (d, k)
    answers: Tensor  # U
    high: Tensor  # U in three parts, of which the first two are multiples of powers of two
    middle: Tensor
    low: Tensor
    lengths: Tensor  # (k,), bounds on the norms of the columns of V
    limits: list[Tensor]  # below 1 if V is what it is modulo 2**64
    wrong: Tensor  # whether V fails its check


class _Misfit(NamedTuple):
    """E and what is known about it."""

    whole: Tensor  # (k, C), whole numbers
    rest: Tensor
    error: Tensor  # bounds on how far off E is
    sums: Tensor  # (k,): |c|_1
    limits: list[Tensor]  # below 1 if whole numbers are exact
    wrong: Tensor  # how many checks fail


def small_change(limbs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return steps, rests, the rows that correct the inverse, (k, d) each, and what the caller wants to know.

    That is: a number below 1 if all conditions hold, the largest step, the number of checks that fail; then slips,
    residuals, doubts, and whether an entry is in doubt, for each class.

    Parameters
    ----------
    limbs : int
        Of the second step of refinement, m.
    tensors
        The fields of `System`; codes C, (k, d) int8; labels ``2**p L``, (k, C) float64; steps, (d, C) int64; rests,
        (d, C) float64; and the fields of `_Few` as one tensor. Labels and the last may be arrays in main memory.
    """
    import torch

    tensors = tuple(torch.as_tensor(each) for each in tensors)
    system, (codes, wanted, steps, rests, told) = System(*tensors[:9]), tensors[9:]
    few = _Few.of(told, steps.shape[1])
    floats = codes.double()
    found = _images(system, few, floats, limbs)
    misfit = _misfit(codes, wanted, steps, rests, few.slips, system.across)
    moved, now, known, limits, wrong = _moved(system, few, found, misfit, steps, rests)
    worst = torch.stack([*limits, *found.limits, *misfit.limits]).amax()  # NaN if one is
    about = torch.stack([worst, _top(moved.double()), wrong + found.wrong + misfit.wrong])
    rows = (found.answers * few.sign).t().contiguous(), found.images.t().contiguous()
    return moved, now, *rows, torch.cat([about, *known])


def _images(system: System, few: _Few, floats: Tensor, limbs: int) -> _Images:
    """Return U, refined once."""
    import torch

    (count, size), sign, turned = floats.shape, few.sign, floats.t().contiguous()
    images = system.guess(turned)
    core = floats @ images * sign
    core.diagonal().add_(1.0)
    inverse = 1 / core if count == 1 else torch.cholesky_inverse(torch.linalg.cholesky_ex(core)[0])
    answers = images @ inverse  # by Woodbury's identity: Z (1 + s C Z)^-1
    first, finer1 = _rounded(answers, 2, few)
    residual, size1 = system.remainder(turned.long(), finer1, first, 2, few)
    reals = residual.double()
    second, finer2 = _rounded(system.guess(reals) - answers @ (images.t() @ reals) * sign, limbs, few)
    residual, size2 = system.remainder(residual, finer2, second, limbs, few)
    fine, reals = _power(-finer1 - finer2), residual.double()
    lengths = (reals * reals).sum(0).sqrt() * (fine * (1 + (size + 8) * 2.0**-52))
    # The check: r 2**(f1 + f2) V = 2**(f1 + f2) r C' - (A' r)(2**f2 b1 + b2) modulo 2**64
    probe, blocks = system.probe[:, None], (first.long() << finer2) + second.long()
    right = ((turned.long() * probe).sum(0) << (finer1 + finer2)) - (blocks * system.seen()[:, None]).sum(0)
    wrong = ((residual * probe).sum(0) != right).any().double()
    # U is cut as in `Following._moved`.
    half = (53 - (count - 1).bit_length()) // 2
    place = half - _exponent(_top(answers))
    high = (first * _power(place - finer1)).round() * _power(-place)
    below = first * _power(-finer1) - high
    middle = (below * _power(place + half - 1)).round() * _power(1 - half - place)
    low = (below - middle) + second * fine
    shifts = [((finer - 31).abs() / 32).double() for finer in (finer1, finer2)]  # 0 to 62
    return _Images(images, answers, high, middle, low, lengths, [size1 * 2.0**-61, size2 * 2.0**-61, *shifts], wrong)


def _misfit(codes: Tensor, wanted: Tensor, steps: Tensor, rests: Tensor, slips: Tensor, across: Tensor) -> _Misfit:
    """Return E. A rest is cut, and both products are checked, as in `Following._misfit`."""
    floats, numbers = codes.double(), steps.double()
    size, columns, sums = floats.shape[1], len(across), floats.abs().sum(1)
    cut = 2.0 ** (52 - (127 * size).bit_length())  # |c|_1 is at most 127 d
    coarse = (rests * cut).round() / cut
    whole = wanted - floats @ numbers
    rest = -(floats @ coarse) - floats @ (rests - coarse)
    error = (sums[:, None] * (slips + (size + 8) * 2.0**-52 / cut) + 2.0**-52 * rest.abs()) * _SLACK + 2.0**-60
    # Checked modulo 2**64, and to within rounding.
    seen = (wanted.long() * across).sum(1) - (codes.long() * (steps * across).sum(1)).sum(1)
    wrong = ((whole.long() * across).sum(1) != seen).any().double()
    signs = _signs(across)
    off = (rest @ signs + floats @ (rests @ signs)).abs()
    wrong = wrong + (~(off <= (size + columns + 8) * 2.0**-50 * columns * sums)).any().double()
    limits = [_top(sums) * _top(numbers) * 2.0**-52, _top(whole) * 2.0**-53]
    return _Misfit(whole, rest, error, sums, limits, wrong)


def _moved(
    system: System, few: _Few, found: _Images, misfit: _Misfit, steps: Tensor, rests: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], list[Tensor], Tensor]:
    """Return steps and rests, what is known about them, numbers that must be below 1, and whether the move is wrong.

    All is as in `Following._moved` and `Following._check_move`.
    """
    (high, middle, low, lengths), (whole, rest, error, sums) = found[2:6], misfit[:4]
    count, columns = whole.shape
    sizes = whole.abs() + rest.abs() + 1.0
    left_over = lengths @ sizes * _SLACK
    half = (53 - (count - 1).bit_length()) // 2
    level = half - _exponent(_top(sizes))
    e1 = ((whole + rest) * _power(level)).round() * _power(-level)
    below = (whole - e1) + rest
    e2 = (below * _power(level + half - 1)).round() * _power(1 - half - level)
    e3 = below - e2
    error = error + below.abs() * 2.0**-52
    tops, middles, lows = (part.abs().amax(0) for part in (high, middle, low))
    reach = (tops + middles + lows) @ sizes * _SLACK
    inexact = (tops @ e3.abs() + middles @ (e2.abs() + e3.abs()) + lows @ sizes) * _SLACK
    slips = (few.slips + ((2 * count + 8) * 2.0**-52 * _SLACK) * inexact + 2.0**-50) * _SLACK
    lost = (sums * 127.0).sqrt() @ error * _SLACK  # ||c||**2 <= 127 |c|_1
    residuals = (few.residuals + left_over + lost) * _SLACK
    doubts = (residuals / few.gamma + slips) * _SLACK
    e1, e2, e3 = e1 * few.sign, e2 * few.sign, e3 * few.sign
    moved, now = steps, rests
    for part in (high @ e1, high @ e2 + middle @ e1, high @ e3 + middle @ (e2 + e3) + low @ (e1 + (e2 + e3))):
        whole = part.round()
        moved, now = moved + whole.long(), now + (part - whole)
    carry = now.round()
    moved, now = moved + carry.long(), now - carry
    near = (~(0.5 - now.abs() > doubts)).any(0).double()
    vector = _signs(system.across)
    turn = (moved - steps).double() @ vector + now @ vector - rests @ vector
    off = _top(turn - (high + (middle + low)) @ ((e1 + (e2 + e3)) @ vector))
    tolerance = (count + columns + 8) * 2.0**-50 * reach.sum() + (columns + 16) ** 2 * 2.0**-50
    limits = [left_over.amax() * 2.0**_FOLLOW_BITS / few.gamma, reach.sum() * 2.0**-52]
    return moved, now, (slips, residuals, doubts, near), limits, (~(off <= tolerance)).double()


def _rounded(values: Tensor, limbs: int, few: _Few) -> tuple[Tensor, Tensor]:
    """Return values as integers of so many limbs, and the bits by which they were shifted."""
    finer = limbs * few.bits - 1 - _exponent(_top(values))
    return (values * _power(finer)).round(), finer


def _signs(vector: Tensor) -> Tensor:
    """Return random signs from random integers."""
    return (1 - 2 * (vector & 1)).double()


def _top(values: Tensor) -> Tensor:
    import torch

    return torch.linalg.vector_norm(values, float("inf"))


def _exponent(value: Tensor) -> Tensor:
    """Return the least e such that ``value < 2**e``, for a number of normal size."""
    import torch

    return torch.frexp(value)[1].long()


def _power(exponent: Tensor) -> Tensor:
    """Return ``2**exponent`` exactly, for -1022 to 1023."""
    import torch

    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


class Replayed:
    """A function of a number and tensors, captured as a CUDA graph for each number and shape, and then repeated.

    NumPy arrays among the arguments are sent to the GPU. Whoever calls must have read a result before the next call.
    While one is captured, other threads may use the GPU, but not wait for all of it: ``torch.cuda.synchronize`` fails.

    Parameters
    ----------
    still : int
        The first tensors, which stay at their places: they are not copied.
    copied : int
        The first results, of which the caller gets copies. The others are valid until the next call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], still: int, copied: int = 2) -> None:
        self._function, self._still, self._copied = function, still, copied
        self._graphs: dict[tuple[Any, ...], tuple[Any, list[Any], tuple[Tensor, ...]]] = {}

    def __call__(self, number: int, *arguments: Any) -> tuple[Tensor, ...]:
        """Return what the function returns."""
        key: tuple[Any, ...] = (number, *((tuple(each.shape), each.dtype) for each in arguments))
        key += tuple(each.data_ptr() for each in arguments[: self._still])
        if key not in self._graphs:
            if len(self._graphs) >= _KEPT:
                self._graphs.pop(next(iter(self._graphs)))  # the oldest, such as one for fewer classes
            self._graphs[key] = self._captured(number, arguments)
        graph, places, results = self._graphs[key]
        for place, value in zip(places[self._still :], arguments[self._still :], strict=True):
            place.copy_(value)
        graph.replay()
        return *(result.clone() for result in results[: self._copied]), *results[self._copied :]

    def _captured(self, number: int, arguments: tuple[Any, ...]) -> tuple[Any, list[Any], tuple[Tensor, ...]]:
        import torch

        sent = {place: _Sent(each) for place, each in enumerate(arguments) if isinstance(each, np.ndarray)}
        places = [
            sent[place].place if place in sent else each if place < self._still else each.clone()
            for place, each in enumerate(arguments)
        ]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._function(number, *places)  # libraries make what they need
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")  # others use the GPU too
        with (
            _CAPTURING,
            torch.cuda.stream(stream),
            capture,
        ):  # if it fails, the second gives this thread its stream back
            results = self._function(number, *places)
        return graph, [sent.get(place, each) for place, each in enumerate(places)], results


class _Sent:
    """A place on the GPU for an array from main memory, by way of memory from where the GPU fetches it by itself."""

    def __init__(self, values: np.ndarray) -> None:
        import torch

        tensor = torch.from_numpy(values)
        self._here, self.place = tensor.pin_memory(), tensor.cuda()

    def copy_(self, values: np.ndarray) -> None:
        """Send these."""
        self._here.numpy()[...] = values
        self.place.copy_(self._here, non_blocking=True)
