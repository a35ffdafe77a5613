from __future__ import annotations

import copy
import logging
import pickle

import numpy as np
import pytest

from neverseen import ConfigurationError, Key, KeyMissingError, NotLearnedError
from neverseen.labels import LabelIndex
from neverseen.membership import Membership
from tests import oracle
from tests.samples import codes

SECRET = bytes(range(32))
CONFIGURATION = oracle.configuration_digest(oracle.identity_configuration(), 5, 40)
ROWS = codes("members", 4, 7)
INDEX = LabelIndex(["a", ("b", 2), "a", "a"])


def held(key: bytes = SECRET) -> Membership:
    membership = Membership(Key(key), CONFIGURATION)
    membership.add(membership.digests(ROWS, INDEX))
    return membership


def test_digests_are_the_specified_ones() -> None:
    members = held().digests(ROWS, INDEX)
    for row, label, (name, digest) in zip(ROWS.tolist(), ["a", ("b", 2), "a", "a"], members, strict=True):
        assert name == oracle.label_text(label)
        assert digest == oracle.member_digest(CONFIGURATION, SECRET, label, row)


def test_a_multiset_by_class() -> None:
    membership = held()
    first = membership.digests(ROWS[:1], LabelIndex(["a"]))
    membership.add(first)
    membership.require(first * 2)
    with pytest.raises(
        NotLearnedError, match=r"does not hold 1 of the 3 samples to be forgotten \(rows 2\)"
    ) as refusal:
        membership.require(first * 3)
    assert refusal.value.rows == (2,)
    with pytest.raises(NotLearnedError):  # held, but not with this label
        membership.require(membership.digests(ROWS[:1], LabelIndex(["b"])))
    membership.remove(first * 2)
    with pytest.raises(NotLearnedError, match="already forgotten"):
        membership.require(first)


def test_forgetting_leaves_no_tombstone() -> None:
    membership, never = held(), Membership(Key(SECRET), CONFIGURATION)
    never.add(never.digests(ROWS[1:2], LabelIndex([("b", 2)])))
    membership.remove(membership.digests(ROWS[[3, 0, 2]], LabelIndex(["a", "a", "a"])))
    assert membership.counts() == never.counts()
    assert np.array_equal(membership.to_array(), never.to_array())


def test_array_is_canonical_and_round_trips() -> None:
    membership = held()
    membership.add(membership.digests(ROWS[:1], LabelIndex(["a"])))
    array = membership.to_array()
    other = Membership(Key(SECRET), CONFIGURATION)
    for row in (3, 0, 2, 0):
        other.add(other.digests(ROWS[row : row + 1], LabelIndex(["a"])))
    other.add(other.digests(ROWS[1:2], LabelIndex([("b", 2)])))
    assert np.array_equal(array, other.to_array())
    again = Membership(Key(SECRET), CONFIGURATION)
    again.fill(array, {'"a"': 4, '{"tuple":["b",2]}': 1})
    assert np.array_equal(again.to_array(), array)
    again.require(membership.digests(ROWS, INDEX))


def test_keys_tell_memberships_apart() -> None:
    other = held(bytes(32))
    assert not np.array_equal(other.to_array(), held().to_array())
    with pytest.raises(ConfigurationError, match="different membership keys"):
        held().require_like(other)
    keyless = Membership(None, CONFIGURATION)
    with pytest.raises(KeyMissingError, match="loaded without its membership key"):
        keyless.digests(ROWS, INDEX)
    with pytest.raises(KeyMissingError, match="only with their membership keys"):
        keyless.require_like(held())


def test_a_key_does_not_show(caplog: pytest.LogCaptureFixture) -> None:
    key = Key(SECRET)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r", key, key)
    assert SECRET.hex() not in caplog.text
    assert str(SECRET) not in caplog.text
    assert repr(key) == str(key) == "Key(<secret>)"
    assert key == Key(SECRET) == copy.deepcopy(key) == pickle.loads(pickle.dumps(key))  # noqa: S301
    assert key != Key.generate()
    assert hash(key) == hash(Key(SECRET))
    assert key.reveal() == SECRET


@pytest.mark.parametrize("secret", [b"", b"short", "x" * 32, bytearray(32), None])
def test_keys_are_32_bytes(secret: bytes) -> None:
    with pytest.raises(ConfigurationError, match="must be 32 bytes"):
        Key(secret)
