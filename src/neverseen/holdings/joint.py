"""Holdings of several models together, each of which has a membership key of its own."""

from __future__ import annotations

from neverseen.errors import ConfigurationError
from neverseen.holdings.deciding import Decision
from neverseen.holdings.memory import MemoryHoldings


class JointHoldings(MemoryHoldings):
    """The holdings of a sum of models. Whole models come and go; samples only in the models themselves.

    Digests of different keys never match, so nothing in it says whether two models hold the same sample.

    Attributes
    ----------
    complete : bool
        Whether all models are in it. From then on it does not change: what would be added then could not leave.
    """

    def __init__(self, *, by_class: bool = True) -> None:
        super().__init__(None, by_class=by_class)
        self.complete = False

    def record(self, decision: Decision) -> None:
        """Refuse: what one model has learned can be forgotten by that model alone."""
        raise _elsewhere()

    def require_keys(self, other: MemoryHoldings) -> None:
        """Accept any key, until it is complete."""
        if self.complete:
            raise _elsewhere()

    def require_part(self, other: MemoryHoldings) -> None:
        """Raise unless these hold all that another holds, and are not complete."""
        self.require_keys(other)
        super().require_part(other)


def _elsewhere() -> ConfigurationError:
    return ConfigurationError(
        "this is the sum of the models of several clients: learn, forget and merge in a client's own model, and join "
        "or replace it in the federation"
    )
