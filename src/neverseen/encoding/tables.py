"""Integer tables of activations and of the Gaussian kernel, the same on every machine.

`decimal` rounds ``exp`` and ``ln`` correctly at any precision. Each entry is computed with more and more digits, until
both ends of its error interval agree. This comes to an end: ``exp`` of a rational number other than 0 is
transcendental, and so is ``ln`` of one other than 1. So no entry lies exactly where it would turn into the next.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache, partial

import numpy as np

_CONTEXT = decimal.Context(  # not that of the program, which may have few digits, or trap what is rounded
    prec=32,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    clamp=0,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
_REACH = 6  # standard deviations of a projection: beyond them, each curve has its last code


def _tanh(x: Decimal) -> Decimal:
    return 127 - 254 / (1 + (2 * x).exp())


def _sigmoid(x: Decimal) -> Decimal:
    return 127 / (1 + (-x).exp())


def _gelu(x: Decimal) -> Decimal:
    return min(Decimal(127), 32 * x / (1 + (Decimal("-1.702") * x).exp()))


_CURVES: dict[str, Callable[[Decimal], Decimal]] = {"tanh": _tanh, "sigmoid": _sigmoid, "gelu": _gelu}

ACTIVATIONS = ("relu", *_CURVES, "sign")
"""What a `neverseen.encoding.RandomProjection` can do with a projection."""


@lru_cache(maxsize=16)
def activation_table(activation: str, n_features: int) -> np.ndarray:
    """Return the codes of the projections ``p = -m .. m``, int8 of shape (2 m + 1,). Those beyond have the last codes.

    A code is the curve at ``x = p / floor(16 sqrt(n_features))``, rounded to the nearest integer, halves up. With ``u =
    10**(1 - digits)``, x and its multiple are off by at most ``12 u``, as ``|x| <= 6``; so ``exp`` is by a share of
    ``13 u``, and the code by at most ``254 * 16 u``. That is below the slack of ``10**8 / 10 u``. At 0 all is exact.
    """
    if activation == "sign":
        table = np.array([-127, 0, 127], np.int8)
    else:
        curve, unit, half = _CURVES[activation], math.isqrt(256 * n_features), Decimal("0.5")

        def code(p: int) -> Decimal:
            return curve(Decimal(p) / unit) + half

        entries = range(-_REACH * unit, _REACH * unit + 1)
        with localcontext(_CONTEXT):
            zero = math.floor(code(0))
        table = np.array([_floor(partial(code, p)) if p else zero for p in entries], np.int8)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=16)
def kernel_thresholds(bandwidth: float, n_features: int) -> np.ndarray:
    """Return ``t_v = floor(512 h**2 d0 ln(254 / (2v - 1)))`` for v = 1..127: the code is at least v up to distance t_v.

    Six roundings at most make a share of ``6 u``, which is below the slack too.
    """

    def threshold(v: int) -> Decimal:
        h = Decimal(bandwidth)  # exact
        return 512 * h * h * n_features * (Decimal(254) / Decimal(2 * v - 1)).ln()

    thresholds = np.array([min(_floor(partial(threshold, v)), 2**62) for v in range(1, 128)], np.int64)
    thresholds.flags.writeable = False
    return thresholds


def _floor(computed: Callable[[], Decimal]) -> int:
    """Return the floor of what is computed to a given number of digits; its error must stay below the slack."""
    digits = 32
    while True:
        with localcontext(_CONTEXT, prec=digits):
            value = computed()
            slack = (1 + abs(value)) * Decimal(10) ** (8 - digits)
            low, high = math.floor(value - slack), math.floor(value + slack)
        if low == high:
            return low
        digits *= 2
