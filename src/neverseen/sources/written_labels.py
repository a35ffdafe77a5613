"""Labels that are not classes, as sources write them: sets of labels, numbers, and classes with weights.

Where a label is a text (CSV, `.npz`, text files, names of folders), `SEPARATOR` stands between the labels of a set, and
between numbers. JSON and Parquet have lists instead, and there no text is taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.errors import InputError, LabelError
from neverseen.labels import text
from neverseen.proof.receipts import TEXT_LIMIT

if TYPE_CHECKING:
    from neverseen.sources.tables import Samples
    from neverseen.targets import Targets

SEPARATOR = "|"
_SHOWN = 300  # characters of an error about a label, which may be long


@dataclass(frozen=True)
class Form:
    """How the labels of a source are written."""

    targets: Targets
    """What the labels of the store stand for. They are not classes."""
    split: bool
    """Whether texts are taken apart at `SEPARATOR`."""

    @property
    def weighs(self) -> bool:
        """Whether each class has a weight, from a column of its own."""
        return self.targets.kind == "weighted-classes"

    @property
    def outputs(self) -> int:
        """How many columns can make one label: as many as a sample has numbers."""
        return int(getattr(self.targets, "outputs", 1))

    def takes_raw(self, what: str) -> bool:
        """Return whether cells of the labels or weights are read here, and not like a class."""
        return what == "weights" or (what.startswith("labels") and not self.weighs)

    def read(self, source: Path, found: Samples, labels: list[Any]) -> list[Any]:
        """Return labels as `Targets.label` takes them, given the cells; raise for the first that cannot be a label."""
        cells: list[Any] = labels
        if self.weighs:
            if found.weights is None:
                raise InputError(
                    f"{source} has no weights, and the store learns weighted classes: use a table with a column "
                    "'weight' (an array 'weights' in .npz), or name it",
                    arguments=("weights",),
                )
            cells = list(zip(labels, found.weights, strict=True))
        return [self._read(cell, f"{source}, {place}") for cell, place in zip(cells, found.places, strict=True)]

    def _read(self, cell: Any, where: str) -> Any:
        try:
            label = self._parted(cell)
            size = len(text(self.targets.label(label, any_label=True)))
        except (LabelError, ValueError) as error:
            raise LabelError(f"{where}: {str(error)[:_SHOWN]}") from None
        if size > TEXT_LIMIT:
            raise InputError(f"{where}: its label has {size:,} bytes in canonical form; at most {TEXT_LIMIT:,} fit")
        return label

    def _parted(self, cell: Any) -> Any:
        if self.weighs:
            name, weight = cell
            return name, number(weight) if isinstance(weight, str) else weight
        if self.targets.kind == "numbers":
            cells = cell if isinstance(cell, list | tuple) else [cell]
            parts = [part for each in cells for part in (each.split(SEPARATOR) if self._splits(each) else [each])]
            return [number(part) if self._splits(part) else part for part in parts]
        if not self._splits(cell):
            return cell
        parts = cell.split(SEPARATOR) if cell.strip() else []
        if any(part != part.strip() or not part for part in parts):
            raise LabelError(
                f"the labels {cell!r} cannot be told apart: write them as red{SEPARATOR}round, without spaces around "
                f"{SEPARATOR} and with no label left out"
            )
        return parts

    def _splits(self, cell: Any) -> bool:
        return self.split and isinstance(cell, str)


def number(cell: str) -> float:
    """Return the number in a cell. Python would also accept digits of other scripts, and `_` between digits."""
    if "_" in cell or not cell.isascii():
        raise ValueError(f"{cell!r} is not a number")
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{cell!r} is not a number") from None
