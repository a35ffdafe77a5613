"""Retrain: from where the original began, on the retained samples alone. The reference for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.paper.methods.descent import GradientMethod, require_retained
from benchmarks.paper.methods.interface import Request


class Retrain(GradientMethod):
    """Trains anew at each request, with the recipe of the original (`Start.train`)."""

    @dataclass(frozen=True)
    class Settings:
        """Nothing of its own."""

    name: ClassVar[str] = "retrain"
    reads_retained: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Put a newly trained model in the place of the old one."""
        if self.start.train is None:
            raise ValueError("retrain needs the recipe of the original: set Start.train")
        self.model = self.start.train(require_retained(request))
