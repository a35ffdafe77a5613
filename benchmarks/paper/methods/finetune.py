"""Finetune: go on training on the retained samples, and trust that the others fade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.paper.methods.descent import Descent, GradientMethod, require_retained
from benchmarks.paper.methods.interface import Request


class Finetune(GradientMethod):
    """Descends on the cross-entropy of the retained samples."""

    @dataclass(frozen=True)
    class Settings(Descent):
        """Public settings: 10 epochs at 0.01."""

    name: ClassVar[str] = "finetune"
    reads_retained: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Descend on the retained samples."""
        self.descend(require_retained(request), self.cross_entropy)
