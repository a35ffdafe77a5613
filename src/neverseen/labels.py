"""Labels: one canonical text and one order for every kind of label.

Classes are distinguished and sorted by value, never by their first appearance, so the order of the
columns holds no trace of history. The rules are section 3 of ``docs/specification.md``.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from neverseen.errors import FileRejectedError, LabelError

if TYPE_CHECKING:
    import numpy as np

Label = Hashable

_MAX_BITS = 4096  # an integer's text stays far below Python's limit of 4300 digits
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = "None, bool, int, finite float, str, bytes, or a tuple or frozenset of these"


def has_surrogates(text: str) -> bool:
    """Return whether a text has surrogate code points, halves of characters, which cannot be encoded."""
    return _SURROGATE.search(text) is not None


def _numpy(kind: str) -> Any:
    """Return a type of NumPy; an empty tuple if nobody has imported NumPy, since then no value has that type."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else getattr(numpy, kind)


def normalise(label: Any) -> Label:
    """Return the plain Python value that stands for a label.

    NumPy scalars become Python values; floats with an integral value become ints.

    Examples
    --------
    >>> import numpy as np
    >>> normalise(np.int8(3)), normalise(3.0), normalise("cat")
    (3, 3, 'cat')
    """
    if isinstance(label, _numpy("generic")) and label.dtype.kind in "biufUS":  # not dates: they depend on the unit
        label = label.item()
    if label is None or isinstance(label, bool):
        return label
    if isinstance(label, int):
        if label.bit_length() > _MAX_BITS:
            raise LabelError(f"a label is an integer of {label.bit_length()} bits; at most {_MAX_BITS} are supported")
        return int(label)  # also of an IntEnum
    if isinstance(label, float):
        label = float(label)
        if not math.isfinite(label):
            raise LabelError(f"a label is {label!r}; labels must be finite: drop those samples or name their class")
        return int(label) if label.is_integer() else label
    if isinstance(label, str):
        plain = "".join(label)  # also of a str enum
        if has_surrogates(plain):
            raise LabelError(
                f"the label {plain!r} has surrogate code points, which are not characters: decode it properly"
            )
        return plain
    if isinstance(label, bytes):
        return bytes(label)
    if isinstance(label, tuple):
        return tuple(normalise(item) for item in label)
    if isinstance(label, frozenset):
        return frozenset(normalise(item) for item in label)
    raise LabelError(
        f"a label is of type {type(label).__name__}, which has no canonical form; use {_KINDS} "
        "(for an enum or an object, its name)"
    )


def require_classes(labels: Iterable[Any]) -> None:
    """Raise `LabelError` if a label cannot be learned as a class: a float that is not a whole number.

    Such numbers are nearly always the targets of a regression. The rule checks each label by itself, so the rest of the
    batch does not matter. Older models may hold such a class: they can still be read, and its samples forgotten.

    Examples
    --------
    >>> require_classes([1.0, "cat", ("tall", 0.5)])
    >>> require_classes(["cat", 0.5])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    neverseen.errors.LabelError: Unknown label type: 0.5 is a number with a fraction ...
    """
    kinds = float, _numpy("floating")
    for label in labels:
        if not isinstance(label, kinds) or (value := float(label)).is_integer():
            continue
        if math.isnan(value):
            raise LabelError("Input y contains NaN: labels must be finite. Drop those samples or name their class")
        if math.isinf(value):
            raise LabelError(
                "Input y contains infinity or a value too large for dtype('float64'): labels must be finite. Drop "
                "those samples or name their class"
            )
        raise LabelError(
            f"Unknown label type: {value!r} is a number with a fraction, which names no class. If it does, give it as "
            f"a text, {str(value)!r}; to predict numbers, sort them into classes first"
        )


def order_key(label: Label) -> tuple[Any, ...]:
    """Return a key that sorts normalised labels of any mix of kinds."""
    if label is None:
        return (0,)
    if isinstance(label, bool):
        return (1, label)
    if isinstance(label, int | float):
        return (2, label)
    if isinstance(label, str):
        return (3, label)
    if isinstance(label, bytes):
        return (4, label)
    if isinstance(label, tuple):
        return (5, tuple(order_key(item) for item in label))
    assert isinstance(label, frozenset)
    return (6, tuple(sorted(order_key(item) for item in label)))


def _plain(label: Label) -> Any:
    if isinstance(label, float):
        return {"float": label.hex()}
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    if isinstance(label, tuple):
        return {"tuple": [_plain(item) for item in label]}
    if isinstance(label, frozenset):
        return {"frozenset": [_plain(item) for item in sorted(label, key=order_key)]}
    return label


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse_json(content: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text; raise `ValueError` if it is not JSON, or if an object has a name twice.

    `json.loads` would silently keep the last value of such a name. Other readers may keep the first.
    """
    return json.loads(content, object_pairs_hook=_named_once)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def text(label: Label) -> str:
    """Return the canonical text of a normalised label.

    Examples
    --------
    >>> text("cat"), text(("a", 1)), text(0.5)
    ('"cat"', '{"tuple":["a",1]}', '{"float":"0x1.0000000000000p-1"}')
    """
    return canonical_json(_plain(label))


def plain(label: Label) -> Any:
    """Return a label as a JSON value: text, number, true, false and null unchanged, others as in the specification."""
    return json.loads(text(normalise(label)))


def from_text(canonical: str) -> Label:
    """Return the label with this canonical text; refuse any other text. For classes: it remembers them."""
    if not isinstance(canonical, str):
        raise FileRejectedError(f"a label is given as {type(canonical).__name__}, not as text")
    # A pair, a set or a row of numbers may be one sample's own: such labels are not remembered.
    return from_private_text(canonical) if canonical.startswith("{") else _class_of(canonical)


def from_private_text(canonical: str) -> Label:
    """Return the id or owner with this canonical text. It is not cached, so it goes with its sample."""
    try:
        label = normalise(_from_plain(json.loads(canonical)))
        known = text(label) == canonical
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise FileRejectedError(f"{canonical[:80]!r} is not the text of a label") from error
    if not known:
        raise FileRejectedError(f"{canonical[:80]!r} is not the canonical text of a label")
    return label


_class_of = lru_cache(maxsize=2**12)(from_private_text)


def _from_plain(value: Any) -> Label:
    if isinstance(value, dict):
        ((kind, body),) = value.items()
        if kind == "float":
            return float.fromhex(body)
        if kind == "bytes":
            return bytes.fromhex(body)
        items = (_from_plain(item) for item in body)
        return tuple(items) if kind == "tuple" else {"frozenset": frozenset}[kind](items)
    if isinstance(value, list):
        raise ValueError("a bare list is not a label")
    return normalise(value)


class LabelIndex:
    """The classes of a batch: the distinct labels in class order, and each sample's position among them.

    Attributes
    ----------
    texts : list of str
        Canonical texts of the distinct labels, in class order. Elsewhere in the package a class is
        known by this text: Python holds ``True == 1``, and a dict keyed by the labels would merge the two.
    positions : ndarray of intp, shape (n,)
        For each sample, the position of its label in `texts`.
    """

    def __init__(self, labels: Iterable[Any]) -> None:
        import numpy as np

        labels = list(labels)
        # Labels of these two types are the same exactly if their values are equal.
        if all(type(label) is int or type(label) is str for label in labels):
            distinct = [normalise(raw) for raw in dict.fromkeys(labels)]
            place = {label: position for position, label in enumerate(distinct)}
            positions = [place[label] for label in labels]
        else:
            distinct, positions = self._told_apart(labels)
        order = sorted(range(len(distinct)), key=lambda position: order_key(distinct[position]))
        rank = np.empty(len(distinct), dtype=np.intp)
        rank[order] = np.arange(len(distinct))
        self.texts = [_class_text(distinct[position]) for position in order]
        self.positions = rank[np.array(positions, dtype=np.intp)]

    @staticmethod
    def _told_apart(labels: list[Any]) -> tuple[list[Label], list[int]]:
        """Return the distinct labels, in order of appearance, and each label's position among them."""
        seen: dict[tuple[type, Label] | str, int] = {}
        distinct: list[Label] = []
        positions: list[int] = []
        for raw in labels:
            label = normalise(raw)
            # For flat labels (type, value) tells apart what the text tells apart, and is cheaper.
            key = text(label) if isinstance(label, tuple | frozenset) else (type(label), label)
            position = seen.setdefault(key, len(distinct))
            if position == len(distinct):
                distinct.append(label)
            positions.append(position)
        return distinct, positions

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, start: int, stop: int) -> LabelIndex:
        """Return the index of some of the samples; `texts` stays as it is."""
        part = copy.copy(self)
        part.positions = self.positions[start:stop]
        return part


def _class_text(label: Label) -> str:
    return _flat_text(label) if isinstance(label, str | int) else text(label)


_flat_text = lru_cache(maxsize=2**12, typed=True)(text)  # True and 1 are not the same


def in_class_order(texts: Iterable[str]) -> list[str]:
    """Return canonical texts in class order."""
    return sorted(texts, key=_order_of_text)


def _order_of_text(canonical: str) -> tuple[Any, ...]:
    known = isinstance(canonical, str) and not canonical.startswith("{")
    return _order_of_class(canonical) if known else order_key(from_text(canonical))


@lru_cache(maxsize=2**16)
def _order_of_class(canonical: str) -> tuple[Any, ...]:
    return order_key(from_text(canonical))


def as_array(labels: Sequence[Label]) -> np.ndarray:
    """Return labels as scikit-learn users expect them: a typed array if they share a kind, else objects."""
    import numpy as np

    kinds = {order_key(label)[0] for label in labels}
    if len(kinds) == 1 and kinds <= {1, 2, 3}:
        typed = np.array(labels)
        if typed.dtype.kind in "biufU" and typed.tolist() == list(labels):  # e.g. "a\0" and 2**60 + 0.5 are not kept
            return typed
    objects = np.empty(len(labels), dtype=object)
    for position, label in enumerate(labels):
        objects[position] = label
    return objects
