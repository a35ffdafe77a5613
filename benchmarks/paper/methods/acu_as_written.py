"""ACU with its formulas multiplied out as the paper prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.paper.methods.acu import ACU, ACUFloat64


class ACUAsWritten(ACUFloat64):
    """ACU in float64 with every product in the order of the paper's formulas, which costs the cube of d."""

    @dataclass(frozen=True)
    class Settings(ACU.Settings):
        """Settings of the recursion, evaluated as written."""

        as_written: bool = True

    name: ClassVar[str] = "acu_as_written"
