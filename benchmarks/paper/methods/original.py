"""Original: no unlearning at all. What doing nothing looks like in every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.paper.methods.descent import GradientMethod
from benchmarks.paper.methods.interface import Request


class Original(GradientMethod):
    """Leaves the original as it is, whatever is asked."""

    @dataclass(frozen=True)
    class Settings:
        """Nothing of its own."""

    name: ClassVar[str] = "original"
    reads_retained: ClassVar[bool] = False

    def update(self, request: Request) -> None:
        """Do nothing."""
