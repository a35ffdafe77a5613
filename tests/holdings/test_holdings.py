from __future__ import annotations

import copy
import logging
import pickle
from dataclasses import replace

import pytest

from neverseen import (
    AmbiguousError,
    ConfigurationError,
    IdTakenError,
    InputError,
    Key,
    KeyMissingError,
    NotLearnedError,
)
from neverseen.holdings import (
    FORGET,
    FORGET_CLASS,
    LEARN,
    Change,
    MemoryHoldings,
    Origin,
    Ticket,
    content_digest,
    decide,
    member_digests,
    moved,
    standing,
    ticket_number,
)
from neverseen.labels import LabelIndex
from tests import oracle
from tests.samples import codes

SECRET = bytes(range(32))
CONFIGURATION = oracle.configuration_digest(oracle.identity_configuration(), 5, 40)
ROWS = codes("members", 4, 7)
LABELS = ["a", ("b", 2), "a", "a"]
A, B = '"a"', '{"tuple":["b",2]}'


def tickets(*ids: str) -> tuple[Ticket, ...]:
    content = content_digest(CONFIGURATION, Key(SECRET), bytes(16), A)
    return tuple(Ticket(ticket_number(CONFIGURATION, Key(SECRET), id_text), content, id_text) for id_text in ids)


def change(kind: str, rows: list[int], ids: str | None = None, labels: list[object] | None = None) -> Change:
    """Some of the samples above, under ids of one letter each if given."""
    index = LabelIndex([LABELS[row] for row in rows] if labels is None else labels)
    return Change(kind, ROWS[rows], index, None if ids is None else tickets(*ids))


def apply(holdings: MemoryHoldings, wanted: Change) -> None:
    holdings.record(decide(holdings, CONFIGURATION, wanted))


def refusal(holdings: MemoryHoldings, wanted: Change, match: str) -> NotLearnedError:
    before = copy.deepcopy(vars(holdings))
    with pytest.raises(NotLearnedError, match=match) as caught:
        decide(holdings, CONFIGURATION, wanted)
    assert vars(holdings) == before
    return caught.value


def held(*changes: Change, key: bytes = SECRET) -> MemoryHoldings:
    holdings = MemoryHoldings(Key(key))
    for each in changes or (change(LEARN, [0, 1, 2, 3]),):
        apply(holdings, each)
    return holdings


def arrays(holdings: MemoryHoldings) -> list[bytes]:
    return [holdings.members_array().tobytes(), holdings.tickets_array().tobytes()]


# -- digests -----------------------------------------------------------------------------------------


def test_member_digests_are_the_specified_ones() -> None:
    members = member_digests(CONFIGURATION, Key(SECRET), ROWS, LabelIndex(LABELS))
    for row, label, (name, digest) in zip(ROWS.tolist(), LABELS, members, strict=True):
        assert name == oracle.label_text(label)
        assert digest == oracle.member_digest(CONFIGURATION, SECRET, label, row)


def test_tickets_are_the_specified_ones() -> None:
    fingerprint = bytes(range(16))
    number = ticket_number(CONFIGURATION, Key(SECRET), '"id"')
    assert number == oracle.ticket_number(CONFIGURATION, SECRET, '"id"')
    content = content_digest(CONFIGURATION, Key(SECRET), fingerprint, '"cat"')
    assert content == oracle.ticket_content(CONFIGURATION, SECRET, '"cat"', fingerprint)


# -- without tickets ---------------------------------------------------------------------------------


def test_a_multiset_by_class() -> None:
    holdings = held(change(LEARN, [0, 1, 2, 3]), change(LEARN, [0]))
    decide(holdings, CONFIGURATION, change(FORGET, [0, 0]))
    missing = refusal(
        holdings, change(FORGET, [0, 0, 0]), r"does not hold 1 of the 3 samples to be forgotten \(rows 2\)"
    )
    assert missing.rows == (2,)
    refusal(holdings, change(FORGET, [0], labels=["b"]), "does not hold")  # held, but not with this label
    apply(holdings, change(FORGET, [0, 0]))
    refusal(holdings, change(FORGET, [0]), "already forgotten")


def test_forgetting_leaves_no_tombstone() -> None:
    holdings = held()
    apply(holdings, change(FORGET, [3, 0, 2]))
    never = held(change(LEARN, [1]))
    assert vars(holdings) == vars(never)
    apply(holdings, Change(FORGET_CLASS, name=B))
    assert vars(holdings) == vars(MemoryHoldings(Key(SECRET)))


def test_arrays_are_canonical_and_round_trip() -> None:
    holdings = held(change(LEARN, [0, 1, 2, 3], "1234"), change(LEARN, [0]))
    other = held(change(LEARN, [3, 1], "42"), change(LEARN, [0]), change(LEARN, [0], "1"), change(LEARN, [2], "3"))
    assert arrays(holdings) == arrays(other)
    again = MemoryHoldings(Key(SECRET))
    again.fill(holdings.members_array(), {A: 4, B: 1}, holdings.tickets_array())
    assert arrays(again) == arrays(holdings)
    assert again.counts() == {A: 4, B: 1}
    assert again.is_sound()
    decide(again, CONFIGURATION, change(FORGET, [0, 1, 2, 3], "1234"))
    empty = MemoryHoldings(None)
    assert empty.members_array().shape == (0, 16)
    assert empty.tickets_array().shape == (0, 48)


def test_more_tickets_than_samples_are_not_sound() -> None:
    holdings = held(change(LEARN, [1], "1"), change(LEARN, [1], "2"))
    again = MemoryHoldings(Key(SECRET))
    again.fill(holdings.members_array()[:1], {B: 1}, holdings.tickets_array())
    assert not again.is_sound()


def test_keys_tell_holdings_apart() -> None:
    other = held(key=bytes(32))
    assert arrays(other) != arrays(held())
    with pytest.raises(ConfigurationError, match="different membership keys"):
        held().require_mergeable(other)
    keyless = MemoryHoldings(None)
    with pytest.raises(KeyMissingError, match="loaded without its membership key"):
        decide(keyless, CONFIGURATION, change(FORGET, [0]))
    with pytest.raises(KeyMissingError, match="only with their membership keys"):
        keyless.require_mergeable(held())


def test_digests_are_made_once_and_for_one_model() -> None:
    wanted = change(LEARN, [0, 1])
    made = member_digests(CONFIGURATION, Key(SECRET), wanted.quantised, wanted.labels)
    carried = replace(wanted, members=tuple(made), origin=Origin(CONFIGURATION, Key(SECRET)))
    assert decide(held(), CONFIGURATION, carried).members is carried.members
    assert list(decide(held(), CONFIGURATION, wanted).members) == made
    for other in (Origin(CONFIGURATION, Key(bytes(32))), Origin(bytes(32), Key(SECRET))):
        with pytest.raises(ConfigurationError, match="made for a model with another key or configuration"):
            decide(held(), CONFIGURATION, replace(carried, origin=other))
    with pytest.raises(ValueError, match="read-only"):
        carried.quantised[0, 0] = 1


# -- with tickets ------------------------------------------------------------------------------------


def noted() -> MemoryHoldings:
    """Sample 0 under the ids 1 and 2, sample 1 under 3."""
    return held(change(LEARN, [0, 0, 1], "123"))


def test_a_ticket_stands_for_its_sample_alone() -> None:
    holdings = noted()
    members = member_digests(CONFIGURATION, Key(SECRET), ROWS[[0, 1, 0]], LabelIndex(["a", ("b", 2), "a"]))
    stand = standing(holdings, tickets("1", "1", "4"), members)
    assert [each is not None for each in stand] == [True, False, False]
    (four,) = tickets("4")
    assert holdings.knows_contents([four.content]) == {four.content}  # the content of all is the same here
    apply(holdings, change(FORGET, [0, 0, 1], "123"))
    assert holdings.knows_contents([four.content]) == set()
    assert vars(holdings) == vars(MemoryHoldings(Key(SECRET)))


def test_ids_are_used_once() -> None:
    holdings = noted()
    decide(holdings, CONFIGURATION, change(LEARN, [2, 3], "45"))
    with pytest.raises(IdTakenError, match="the id of row 1 belongs to a sample the model holds") as caught:
        decide(holdings, CONFIGURATION, change(LEARN, [2, 3], "42"))
    assert caught.value.row == 1
    with pytest.raises(IdTakenError, match="the id of row 2 is given twice in one call"):
        decide(holdings, CONFIGURATION, change(LEARN, [2, 3, 0], "454"))
    apply(holdings, change(FORGET, [0], "2"))
    decide(holdings, CONFIGURATION, change(LEARN, [2], "2"))  # free again: nothing remembers it


def test_with_tickets_each_must_stand() -> None:
    holdings = noted()
    assert set(decide(holdings, CONFIGURATION, change(FORGET, [0, 1], "23")).numbers) == {
        ticket.number for ticket in tickets("2", "3")
    }
    for rows, ids, missing in (([0, 0], "22", (1,)), ([1, 0], "23", (0, 1)), ([0, 0], "14", (1,)), ([2], "1", (0,))):
        assert refusal(holdings, change(FORGET, rows, ids), "holds no such sample under the id").rows == missing


def test_without_tickets_it_must_be_clear_which_is_meant() -> None:
    holdings = noted()
    assert decide(holdings, CONFIGURATION, change(FORGET, [1])).numbers == [tickets("3")[0].number]
    assert len(decide(holdings, CONFIGURATION, change(FORGET, [0, 1, 0])).numbers) == 3
    with pytest.raises(AmbiguousError, match="row 1 was learned 2 times under different ids") as caught:
        decide(holdings, CONFIGURATION, change(FORGET, [1, 0]))
    assert caught.value.row == 1
    apply(holdings, change(LEARN, [0]))
    assert decide(holdings, CONFIGURATION, change(FORGET, [0])).numbers == []  # that without an id goes


def test_features_that_moved_are_told_from_samples_never_learned() -> None:
    holdings = noted()
    contents = [ticket.content for ticket in tickets("9", "9")]
    members = member_digests(CONFIGURATION, Key(SECRET), ROWS[[0, 2]], LabelIndex(["a", "a"]))
    assert moved(holdings, [0, 1], members, contents) == (1,)
    assert moved(holdings, [0, 1], members, [bytes(16)] * 2) == ()


def test_holdings_that_share_an_id_are_not_merged() -> None:
    holdings, other = noted(), held(change(LEARN, [0, 3], "45"))
    holdings.require_mergeable(other)
    holdings.merge(other)
    assert arrays(holdings) == arrays(held(change(LEARN, [0, 3, 1, 0, 0], "45321"[:5])))
    with pytest.raises(InputError, match=r"under the same id \(2 in all\)"):
        holdings.require_mergeable(other)


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
