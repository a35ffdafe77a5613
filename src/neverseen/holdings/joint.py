"""Holdings of several models together, each of which has a membership key of its own."""

from __future__ import annotations

from neverseen.errors import ConfigurationError
from neverseen.holdings.deciding import Decision
from neverseen.holdings.memory import MemoryHoldings


class JointHoldings(MemoryHoldings):
    """The holdings of a sum of models. Whole models come and go; samples only in the models themselves.

    Digests of different keys never match, so nothing in it says whether two models hold the same sample.
    """

    def __init__(self, *, by_class: bool = True) -> None:
        super().__init__(None, by_class=by_class)

    def record(self, decision: Decision) -> None:
        """Refuse: what one model has learned can be forgotten by that model alone."""
        raise ConfigurationError(
            "this is the sum of the models of several clients: learn and forget in a client's own model, and replace "
            "it in the federation"
        )

    def require_keys(self, other: MemoryHoldings) -> None:
        """Accept any key."""
