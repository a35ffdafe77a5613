"""The shared part of all tables: columns of labels, ids, owners and texts, and rows of features. All are untrusted.

Errors name the file, the line or row, and the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from neverseen.errors import InputError, LabelError
from neverseen.labels import has_surrogates, normalise, text
from neverseen.proof.receipts import TEXT_LIMIT
from neverseen.sources.written_labels import Form

if TYPE_CHECKING:
    import numpy as np

    from neverseen.targets import Targets

ROW_LIMIT = 10_000_000
COLUMN_LIMIT = 2**20
BYTE_LIMIT = 2**34
"""Most bytes of a decompressed file, and of its content in memory."""
TEXTS_LIMIT = 2**30
"""Most bytes of all texts, labels, ids and owners of a Parquet file, counted as often as they occur."""
LINE_LIMIT = 2**24
"""Most letters of a line, and of a cell, which may span several lines."""
_GREATEST = 2.0**128 - 2.0**104  # of float32
HEADS = {"labels": "label", "ids": "id", "owners": "owner", "weights": "weight", "texts": "text"}
"""The usual names of columns."""


@dataclass(frozen=True)
class Columns:
    """The columns of labels, ids, owners and texts in a source; None for the usual names."""

    labels: str | None = None
    ids: str | None = None
    owners: str | None = None
    label: str | None = None
    """One label for all."""
    texts: str | None = None
    told_apart: bool = True
    """Whether ids and owners matter. For predictions they do not."""
    labelled: bool = True
    """Whether labels are needed. If not, they are not read: samples to predict may have none."""
    shared: bool = False
    """Whether ids and owners are columns of another source, so this one need not have them."""
    weights: str | None = None
    form: Form | None = None
    """How labels are written that are not classes; a source alone knows, so `read_source` sets it."""

    def matter(self, what: str) -> bool:
        """Return whether the labels, ids, owners, weights or texts of a source are used."""
        if what == "labels":
            return self.labelled and self.label is None
        if what == "weights":
            return self.labelled
        return self.told_apart or what == "texts"

    def read(self, special: Mapping[str, str]) -> dict[str, str]:
        """Return the columns to read; an id is also the name of a sample."""
        return {what: name for what, name in special.items() if self._is_read(what)}

    def _is_read(self, what: str) -> bool:
        if what == "owners":
            return self.told_apart
        return self.labelled or not what.startswith(("labels", "weights"))

    def several(self, heads: Sequence[str]) -> list[str]:
        """Return the columns of the numbers to predict, if each has one of its own; else an empty list."""
        names = (self.labels or "").split(",")
        fits = self.labels not in heads and self.form is not None and len(names) == self.form.outputs > 1
        return names if fits and set(names) <= set(heads) else []


@dataclass(frozen=True)
class Takes:
    """The kind of samples that a store takes, for checks and messages."""

    kind: str
    """``"features"``, ``"images"`` or ``"texts"``."""
    n_features: int
    store: str
    backbone: str
    targets: Targets | None = None
    """What the labels of the store stand for; None for classes."""

    def __str__(self) -> str:
        what = f"rows of {self.n_features} features" if self.kind == "features" else self.kind
        return f"{self.store} takes {what} (backbone {self.backbone})"


@dataclass
class Samples:
    """The samples of a source.

    Attributes
    ----------
    labels, ids, owners, weights : list or None
        None if the source has none.
    names : list of str
        The name of each sample, for messages.
    places : list of str
        The place of each in the source.
    skipped : list of (str, str)
        Samples left out, and why.
    """

    samples: Any
    labels: list[Any] | None
    ids: list[Any] | None
    owners: list[Any] | None
    names: list[str]
    places: list[str]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    weights: list[Any] | None = None
    """Of weighted classes, while they are read: then each is a part of its label."""

    def __len__(self) -> int:
        return len(self.samples)

    def only(self, rows: Sequence[int]) -> Samples:
        """Return some of them."""

        def chosen(values: Any) -> Any:
            return None if values is None else [values[row] for row in rows]

        samples = chosen(self.samples) if isinstance(self.samples, list) else self.samples[list(rows)]
        lists = (chosen(self.labels), chosen(self.ids), chosen(self.owners))
        return Samples(samples, *lists, chosen(self.names), chosen(self.places), self.skipped)

    def usable(self) -> Samples:
        """Return the samples with features, without the unusable images, which are in `skipped`."""
        bad: dict[int, str] = getattr(self.samples, "bad", {})
        if not bad:
            return self
        kept = self.only([row for row in range(len(self)) if row not in bad])
        kept.skipped = [(self.names[row], why) for row, why in bad.items()] + self.skipped
        return kept


class Heads:
    """The columns of a table: which are labels, ids, owners and texts, and which are features."""

    def __init__(
        self,
        source: Path,
        heads: Sequence[str],
        columns: Columns,
        takes: Takes | None,
        lines: Mapping[str, int] | None = None,
    ) -> None:
        require_narrow(source, len(heads))
        if len(set(heads)) != len(heads):
            raise InputError(f"{source} has two columns of the same name, or no header line")
        if takes is not None and takes.kind == "images":
            raise InputError(f"{source} is a table, and {takes}: give a folder of images, or one image")
        has_texts = columns.texts is not None or "text" in heads
        self.has_texts = takes.kind == "texts" if takes is not None else has_texts
        self.special = special_columns(source, heads, columns, HEADS, lines, others_ignored=self.has_texts)
        if not self.has_texts and columns.texts is None:
            self.special.pop("texts", None)
        self.features = [name for name in heads if name not in self.special.values()]
        if self.has_texts and "texts" not in self.special:
            raise InputError(
                f"{source} has no column 'text', and {takes}: name the column of texts; it has {listed(heads)}",
                arguments=("texts",),
            )
        if not self.has_texts and columns.texts is not None:
            raise InputError(
                f"{columns.texts!r} is given as a column of texts, and {takes}: leave that out", arguments=("texts",)
            )
        if not self.has_texts and not self.features:
            raise InputError(f"{source} has no columns of features")
        if self.has_texts:
            self.features = []

    def require_width(self, source: Path, takes: Takes | None) -> None:
        """Raise unless the table has the right number of feature columns."""
        if takes is not None and not self.has_texts and len(self.features) != takes.n_features:
            count = len(self.features)
            raise InputError(
                f"{source} has {count} {'column' if count == 1 else 'columns'} of features "
                f"({listed(self.features)}), and {takes}"
            )


def special_columns(
    source: Path,
    heads: Sequence[str],
    columns: Columns,
    usual: Mapping[str, str],
    lines: Mapping[str, int] | None = None,
    *,
    others_ignored: bool = True,
) -> dict[str, str]:
    """Return the columns of labels, ids, owners, weights and texts. In a file of lines, `lines` has each one's first.

    `usual` has the usual names of those that such a source can have.

    Other columns are features, or are ignored. A column that is called almost like one that is read is refused: with
    one wrong letter, in the head or in a single line, samples would be left without an owner.
    """
    found: dict[str, str] = {}
    given_names = {what: getattr(columns, what) for what in usual}
    several = columns.several(heads)
    for place, name in enumerate(several, 1):
        found["labels" if place == 1 else f"labels {place}"] = name
        given_names["labels"] = several[0]
    if columns.form is None or not columns.form.weighs:
        del given_names["weights"]
    if columns.shared:
        given_names |= {what: None for what in ("ids", "owners") if given_names[what] not in heads}
    asked = [(what, given, usual[what]) for what, given in given_names.items()]
    for what, given, name in asked:
        if given is not None and given not in heads:
            raise InputError(f"{source} has no {given!r}, given for {what}; it has {listed(heads)}", arguments=(what,))
        if given is not None or name in heads:
            found[what] = given or name
    for what, given, usually in asked:
        if not columns.matter(what):
            continue
        if what not in found and what in ("labels", "texts"):  # whoever needs them is told
            continue
        if not others_ignored and (what == "texts" or given is not None or (lines and what in found)):
            continue  # features may be called so; and lines with features have no other fields
        name = given or usually
        alike = {_stem(name)} | ({_stem(what)} if given is None else set())
        for head in heads:
            if head not in found.values() and _stem(head) in alike:
                where = f"{source}, line {lines[head]}" if lines else str(source)
                raise InputError(
                    f"{where}: {head!r} is not read: {what} are read from {name!r}. Rename it, or give its name",
                    arguments=(what,),
                )
    return found


def _stem(name: str) -> str:
    return name.strip().casefold().removesuffix("s")


def cell(what: str, value: Any, where: str, name: str, columns: Columns) -> Any:
    """Return a cell as a label, an id, an owner or a text; raise if it cannot be one.

    Labels that are not classes are returned as they are, for `Form.read`.
    """
    if columns.form is not None and columns.form.takes_raw(what):
        return value
    if what == "ids" and not columns.told_apart:
        try:
            return cell(what, value, where, name, Columns())
        except (InputError, LabelError):
            return None  # its row is its name
    blank = value is None or (isinstance(value, str) and not value.strip())
    if blank and what == "owners":
        return None  # no owner
    if blank:
        raise empty_cell(where, name)
    if what == "texts" and not isinstance(value, str):
        raise InputError(f"{where}: the cell of the column {name!r} is not a text")
    if not isinstance(value, str | bytes | int | float):
        raise InputError(f"{where}: the cell of the column {name!r} is not a text or a number")
    if what == "texts" and has_surrogates(str(value)):
        raise InputError(
            f"{where}: the cell of the column {name!r} has surrogate code points, which are not characters"
        )
    if what != "texts":
        try:
            size = len(text(normalise(value)))
        except LabelError as error:
            raise LabelError(f"{where}: the cell of the column {name!r} cannot be used: {error}") from None
        if size > TEXT_LIMIT:
            raise InputError(
                f"{where}: the cell of the column {name!r} has {size:,} bytes in canonical form; at most "
                f"{TEXT_LIMIT:,} fit"
            )
    return value


def cells(what: str, values: Sequence[Any], source: Path, name: str, columns: Columns) -> list[Any]:
    """Return a column of labels, ids, owners or texts; raise if a cell cannot be one. Equal texts are checked once."""
    known: dict[str, Any] = {}
    found = []
    for row, value in enumerate(values, 1):
        if not isinstance(value, str):
            found.append(cell(what, value, f"{source}, row {row}", name, columns))
            continue
        if value not in known:
            known[value] = cell(what, value, f"{source}, row {row}", name, columns)
        found.append(known[value])
    return found


def empty_cell(where: str, name: str) -> InputError:
    """Return the error about an empty cell."""
    return InputError(f"{where}: the cell of the column {name!r} is empty: fill it in, or leave the row out")


def features_of(
    source: Path, features: np.ndarray, lists: dict[str, list[Any]], heads: list[str] | None, where: list[str]
) -> Samples:
    """Return rows of features, all of them finite in float32."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        good = np.abs(features) <= _GREATEST
    if not good.all():
        row, column = (int(place) for place in np.argwhere(~good)[0])
        name = repr(heads[column]) if heads is not None else str(column + 1)
        raise InputError(
            f"{source}, {where[row]}: the cell of the column {name} is NaN, infinite or beyond float32: drop or "
            "rescale it"
        )
    return samples_of(features, lists, where)


def samples_of(samples: Any, lists: dict[str, list[Any]], where: list[str]) -> Samples:
    """Return samples with the labels, ids and owners read beside them."""
    ids = lists.get("ids")
    labels = [values for what, values in lists.items() if what.startswith("labels")]
    if len(labels) > 1:
        labels = [list(zip(*labels, strict=True))]
    named = [None] * len(samples) if ids is None else ids
    names = [f"row {row}" if name is None else str(name) for row, name in enumerate(named, 1)]
    found = Samples(samples, labels[0] if labels else None, ids, lists.get("owners"), names, where)
    found.weights = lists.get("weights")
    return found


def require_few(source: Path, rows: int) -> None:
    """Raise if there are too many rows."""
    if rows > ROW_LIMIT:
        raise InputError(f"{source} has more than {ROW_LIMIT:,} rows: use fewer at a time")


def require_narrow(source: Path, columns: int) -> None:
    """Raise if there are too many columns."""
    if columns > COLUMN_LIMIT:
        raise InputError(f"{source} has {columns:,} columns; at most {COLUMN_LIMIT:,} are read")


def lines_of(source: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file that was opened as ``utf-8-sig``; raise for a line above the limit.

    A byte order mark that is not at the start of the file is refused: it would become part of a label, an id or a text.
    """
    number = 0
    try:
        while line := file.readline(LINE_LIMIT):
            number += 1
            if len(line) >= LINE_LIMIT:
                raise InputError(f"{source}, line {number} is longer than {LINE_LIMIT:,} letters")
            if line.startswith("\ufeff"):
                raise InputError(f"{source}, line {number} begins with a byte order mark, as if files had been joined")
            yield line
    except UnicodeDecodeError:
        raise InputError(f"{source} is not text in UTF-8") from None


def not_a_feature(where: str, name: str, content: str, takes: Takes | None) -> InputError:
    """Return the error about a cell or a column that is not a feature."""
    if not content.strip():
        return empty_cell(where, name)
    if name == "text" and takes is not None:
        return InputError(
            f"{where}: the column 'text' holds texts, and {takes}. Make a store for texts, with a backbone such as "
            "minilm"
        )
    return InputError(
        f"{where}: the column {name!r} does not hold numbers, so it is not a feature. If it holds labels, ids or "
        "owners, give its name for these; otherwise leave it out",
        arguments=("labels", "ids", "owners"),
    )


def listed(names: Sequence[str]) -> str:
    """Return some names in one line."""
    return ", ".join(names[:8]) + " ..." * (len(names) > 8)
