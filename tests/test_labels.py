from __future__ import annotations

import enum
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neverseen import FileRejectedError, LabelError
from neverseen.labels import LabelIndex, as_array, from_text, in_class_order, normalise, order_key, text
from tests import oracle


class Size(enum.IntEnum):
    ONE = 1


class Shade(enum.Enum):
    DARK = 1


class Colour(enum.StrEnum):
    RED = "red"


FLAT = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.binary(max_size=4),
)
LABELS = st.recursive(
    FLAT, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=5
)


@given(LABELS)
def test_text_is_the_specified_one_and_can_be_read_back(label: object) -> None:
    canonical = text(normalise(label))
    assert canonical == oracle.label_text(label)
    assert canonical.isascii()
    assert text(from_text(canonical)) == canonical


@given(st.lists(LABELS, max_size=8))
def test_class_order_is_the_specified_one(labels: list[object]) -> None:
    texts = {text(normalise(label)) for label in labels}
    assert in_class_order(texts) == [oracle.label_text(label) for label in oracle.class_order(labels)]


@given(st.lists(FLAT, max_size=12), st.randoms(use_true_random=False))
def test_index_does_not_depend_on_the_order_of_samples(labels: list[object], random: object) -> None:
    index = LabelIndex(labels)
    assert [index.texts[position] for position in index.positions] == [text(normalise(label)) for label in labels]
    shuffled = labels[::-1]
    assert LabelIndex(shuffled).texts == index.texts


@given(st.lists(st.integers(-3, 3) | st.sampled_from(["1", "-1", "", "b"]), max_size=12))
def test_plain_labels_are_told_apart_as_any_others_are(labels: list[object]) -> None:
    class Text(str):  # of another type, so that each label is looked at by itself
        __slots__ = ()

    quick, slow = LabelIndex(labels), LabelIndex([*labels, Text("last")])
    assert [quick.texts[position] for position in quick.positions] == [
        slow.texts[position] for position in slow.positions[:-1]
    ]
    assert quick.texts == in_class_order(set(quick.texts))


def test_equal_values_of_different_kinds_stay_apart() -> None:
    assert LabelIndex([True, 1, "1", b"1", (1,), None]).texts == [
        "null",
        "true",
        "1",
        '"1"',
        '{"bytes":"31"}',
        '{"tuple":[1]}',
    ]
    assert len(LabelIndex([1, 1.0, np.float32(1), np.int64(1), Size.ONE]).texts) == 1
    assert LabelIndex([np.float64(0.5), 0.5, -0.0, 0]).texts == ["0", '{"float":"0x1.0000000000000p-1"}']


@pytest.mark.parametrize(
    "label",
    [
        object(),
        [1],
        {"a": 1},
        Shade.DARK,
        1j,
        ("a", [1]),
        np.datetime64("2026-01-01", "ns"),
        np.timedelta64(1, "s"),
    ],
)
def test_labels_without_a_canonical_form_are_refused(label: object) -> None:
    with pytest.raises(LabelError, match="has no canonical form"):
        normalise(label)


@pytest.mark.parametrize("label", [math.nan, math.inf, np.float32("nan"), (1, math.nan)])
def test_labels_must_be_finite(label: object) -> None:
    with pytest.raises(LabelError, match="must be finite"):
        normalise(label)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[1]",
        "{}",
        '{"float":"x"}',
        '{"float":"0x1.0p+0","bytes":""}',
        "01",
        ' "a"',
        "1.0",
        '{"set":[]}',
        "[" * 9999,
    ],
)
def test_texts_that_are_not_canonical_are_refused(damaged: str) -> None:
    with pytest.raises(FileRejectedError, match="text of a label"):
        from_text(damaged)


def test_arrays_are_typed_where_that_loses_nothing() -> None:
    assert as_array([1, 2]).dtype.kind == "i"
    assert as_array(["a", "bb"]).dtype.kind == "U"
    assert as_array([False, True]).dtype.kind == "b"
    assert as_array(["a\0", "b"]).dtype == object  # NumPy would drop the NUL
    assert as_array([2**60 + 1, 0.5]).dtype == object  # NumPy would round
    mixed = as_array([None, 1, "a", (1, 2), (3, 4)])
    assert mixed.dtype == object
    assert mixed.tolist() == [None, 1, "a", (1, 2), (3, 4)]
    assert sorted([(2,), (1, 5)], key=order_key) == [(1, 5), (2,)]


def test_surrogates_are_refused_and_enums_count_as_their_text() -> None:
    with pytest.raises(LabelError, match="surrogate"):
        normalise("\ud83d\ude00")
    assert normalise("\U0001f600") == "\U0001f600"

    assert LabelIndex([Colour.RED, "red"]).texts == ['"red"']


@pytest.mark.parametrize("text_", ['{"float":"nan"}', '{"float":"0x1p99999"}', '{"float":"0x1.0000000000000p+0"}'])
def test_floats_that_no_label_can_be_are_refused(text_: str) -> None:
    with pytest.raises(FileRejectedError, match="text of a label"):
        from_text(text_)


def test_huge_integers_are_refused_by_name() -> None:
    assert text(normalise(2**4095)) == str(2**4095)
    with pytest.raises(LabelError, match="integer of 16610 bits"):
        normalise(10**5000)
