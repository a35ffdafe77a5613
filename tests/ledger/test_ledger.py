"""The ledger: what is added is found, what cannot be kept is refused. All of it on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from neverseen.errors import InputError, LedgerError, LimitError, NotLearnedError
from neverseen.ledger import FORMAT, JournalRow, Ledger, RequestRow
from neverseen.ledger import writing as writing_module
from neverseen.ledger.tables import NAME_LIMIT
from tests.ledgers import SOME, add, everything, numbers, remove, sample, some

# -- round trips -------------------------------------------------------------------------------------


def test_what_is_added_is_found(ledger: Ledger, url: str) -> None:
    rows = some()
    add(ledger, rows)
    with Ledger(url) as again:
        for book in (ledger, again):
            assert book.by_numbers([*numbers(rows), bytes(16)]) == {row.number: row for row in rows}
            assert book.by_members([rows[0].member, bytes(16)]) == {rows[0].member: [rows[0]]}
            assert book.knows_contents([rows[1].content, bytes(16)]) == {rows[1].content}
            assert list(book.samples()) == sorted(rows)
            assert book.counts() == {'"cat"': SOME}
            assert book.by_numbers([]) == {}
            assert book.by_members([]) == {}
            assert book.knows_contents([]) == set()


def test_texts_are_kept_as_they_are(ledger: Ledger) -> None:
    printable = "".join(map(chr, range(1, 128)))
    texts = [
        printable,
        "'; DROP TABLE neverseen_samples; --",
        '"%s %(id)s ? :id {0} \\"',
        "3",
        "null",
        "",
        "x" * 60_000,
    ]
    rows = [sample(number)._replace(id=text, owner=text, name=text[:NAME_LIMIT]) for number, text in enumerate(texts)]
    add(ledger, rows)
    assert list(ledger.samples()) == sorted(rows)
    assert ledger.counts() == dict.fromkeys(sorted(text[:NAME_LIMIT] for text in texts), 1)
    for row in rows:
        assert list(ledger.samples(row.name)) == [row]
    with ledger.writing() as writing:
        writing.set_meta("'; --", texts[1])
        for row in rows:
            writing.remove_class(row.name)
    assert ledger.meta("'; --") == texts[1]
    assert ledger.counts() == {}


def test_one_sample_held_twice(ledger: Ledger) -> None:
    rows = [sample(number, member="same") for number in range(3)]
    add(ledger, rows)
    assert ledger.by_members([rows[0].member]) == {rows[0].member: sorted(rows)}
    remove(ledger, rows[1:2])
    assert ledger.by_members([rows[0].member]) == {rows[0].member: sorted([rows[0], rows[2]])}


def test_digests_with_the_same_key_are_told_apart(ledger: Ledger) -> None:
    rows = [
        sample(number)._replace(number=b"key!" + bytes([number]) * 12, content=b"key!" + bytes([9 - number]) * 12)
        for number in range(5)
    ]
    rows = [row._replace(member=row.number) for row in rows]
    add(ledger, rows[:4])
    assert ledger.by_numbers(numbers(rows)) == {row.number: row for row in rows[:4]}
    assert ledger.by_members(numbers(rows[3:])) == {rows[3].number: [rows[3]]}
    assert ledger.knows_contents([row.content for row in rows]) == {row.content for row in rows[:4]}
    remove(ledger, rows[1:2])
    assert list(ledger.samples()) == [rows[0], *rows[2:4]]
    add(ledger, rows[4:])
    assert numbers(list(ledger.samples())) == [rows[place].number for place in (0, 2, 3, 4)]


def test_more_than_one_statement_can_bind(ledger: Ledger) -> None:
    count = 40_000
    rows = [sample(number, name=f'"{number % 3}"') for number in range(count)]
    add(ledger, rows)
    assert list(ledger.samples()) == sorted(rows)
    asked = rows[:3000]
    assert ledger.by_numbers(numbers(asked)) == {row.number: row for row in asked}
    assert ledger.by_members([row.member for row in asked]) == {row.member: [row] for row in asked}
    assert len(ledger.knows_contents([row.content for row in asked])) == 3000
    remove(ledger, asked)
    assert ledger.pending() == sorted(row.commitment for row in asked)
    with ledger.writing() as writing:
        writing.remove_class('"1"')
    left = [row for row in rows[3000:] if row.name != '"1"']
    assert list(ledger.samples()) == sorted(left)
    assert list(ledger.samples('"2"')) == sorted(row for row in left if row.name == '"2"')
    assert ledger.counts() == {name: sum(row.name == name for row in left) for name in ('"0"', '"2"')}


def test_many_classes(ledger: Ledger) -> None:
    rows = [sample(number, name=f"{number}") for number in range(1200)]
    add(ledger, rows)
    add(ledger, [sample(number, name=f"{number - 2000}") for number in range(2000, 2600)])
    assert ledger.counts() == {f"{number}": 2 if number < 600 else 1 for number in sorted(range(1200), key=str)}
    remove(ledger, rows)
    assert len(ledger.counts()) == 600


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"number": b"short"}, "row 1: number, content and member must be 16 bytes each"),
        ({"commitment": bytes(16)}, "commitment 32"),
        ({"salt": bytes(8)}, "and salt 16 or none"),
        ({"member": bytearray(16)}, "must be 16 bytes"),
        ({"id": "caf\u00e9"}, "row 1: .* ASCII"),
        ({"owner": "a\0b"}, "without NUL"),
        ({"name": "n" * (NAME_LIMIT + 1)}, f"class's text is {NAME_LIMIT + 1} bytes long; at most {NAME_LIMIT}"),
        ({"learned": 0.5}, "time in seconds"),
        ({"state": "forgotten"}, "state is 'learned' or 'published'"),
        ({"number": sample(0).number}, "rows 0 and 1 have the same number. Nothing was changed"),
        ({"number": sample(7).number}, "the number of row 1 is that of a sample in the ledger. Nothing was changed"),
    ],
)
def test_rows_that_cannot_be_kept(ledger: Ledger, wrong: dict[str, Any], words: str) -> None:
    add(ledger, [sample(7)])
    before = everything(ledger)
    with pytest.raises(InputError, match=words):
        add(ledger, [sample(0), sample(1)._replace(**wrong), sample(2)])
    assert everything(ledger) == before


def test_only_what_is_there_can_be_removed(ledger: Ledger) -> None:
    rows = some()
    add(ledger, rows)
    before = everything(ledger)
    with pytest.raises(NotLearnedError, match=r"under the number of row 1 \(2 of 3 in all\)") as refusal:
        remove(ledger, [rows[0], sample(100), sample(101)])
    assert refusal.value.rows == (1, 2)
    with pytest.raises(InputError, match="given twice"):
        remove(ledger, [rows[0], rows[0]])
    with pytest.raises(NotLearnedError, match="no sample of this class"), ledger.writing() as writing:
        writing.remove_class('"dog"')
    assert everything(ledger) == before


def test_notes(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.set_meta("snapshot", "one")
        writing.set_meta("snapshot", "two")
        writing.set_meta("gone", "x")
        writing.set_meta("gone", None)
        writing.set_meta("never", None)
    assert (ledger.meta("snapshot"), ledger.meta("gone"), ledger.meta("never")) == ("two", None, None)
    for key in ("format", "sequence", "certificate"):
        with pytest.raises(InputError, match="not free"), ledger.writing() as writing:
            writing.set_meta(key, "x")
    assert ledger.meta("format") == FORMAT


# -- journal -----------------------------------------------------------------------------------------


def test_journal(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"", bytes(range(256)) * 40, b"x" * 300_000]
    for number, payload in enumerate(payloads, 1):
        with ledger.writing() as writing:
            assert writing.append("learn", payload) == number
    assert list(ledger.journal()) == [JournalRow(n, "learn", payload) for n, payload in enumerate(payloads, 1)]
    assert [row.sequence for row in ledger.journal(after=1)] == [2, 3]
    with ledger.writing() as writing:
        writing.drop_journal(2)
    assert [row.sequence for row in ledger.journal()] == [3]
    with ledger.writing() as writing:
        writing.drop_journal(3)
        assert writing.append("forget", b"") == 4
    with ledger.writing() as writing:
        writing.drop_journal(4)
    with ledger.writing() as writing:
        assert writing.append("forget", b"") == 5  # also after the journal was empty
    monkeypatch.setattr(writing_module, "PAYLOAD_LIMIT", 10)
    with pytest.raises(LimitError, match="has 11 bytes, and 10 fit: split the change"), ledger.writing() as writing:
        writing.append("learn", bytes(11))
    assert [row.sequence for row in ledger.journal()] == [5]


# -- commitments and certificates --------------------------------------------------------------------


def test_from_pending_to_certified(ledger: Ledger) -> None:
    rows = some()
    add(ledger, rows)
    assert {row.state for row in ledger.samples()} == {"learned"}
    remove(ledger, rows[:2])
    assert ledger.pending() == sorted(row.commitment for row in rows[:2])
    assert ledger.certificates_of([rows[0].commitment]).get(rows[0].commitment) is None
    with ledger.writing() as writing:
        writing.certify(1)
    assert ledger.pending() == []
    assert [ledger.certificates_of([row.commitment]).get(row.commitment) for row in rows[:3]] == [1, 1, None]
    assert {row.state for row in ledger.samples()} == {"published"}
    add(ledger, [sample(10), sample(11, state="published")])
    assert {row.id: row.state for row in ledger.by_numbers(numbers([rows[3], sample(10), sample(11)])).values()} == {
        rows[3].id: "published", sample(10).id: "learned", sample(11).id: "published"
    }  # fmt: skip
    with ledger.writing() as writing:
        writing.certify(4)
    assert {row.state for row in ledger.samples()} == {"published"}
    with pytest.raises(InputError, match="4 does not come after 4"), ledger.writing() as writing:
        writing.certify(4)


def test_learned_and_forgotten_again(ledger: Ledger) -> None:
    row = sample(0)
    for certificate in (1, 2):
        add(ledger, [row])
        remove(ledger, [row])
        assert ledger.pending() == [row.commitment]
        with ledger.writing() as writing:
            writing.certify(certificate)
        assert ledger.certificates_of([row.commitment]).get(row.commitment) == certificate


# -- requests ----------------------------------------------------------------------------------------


def request(number: int, client: str = "ada", tag: bytes | None = None) -> RequestRow:
    return RequestRow(f"request-{number}", tag, client, "forget", number, bytes([number]), 1_000 + number)


def test_requests_are_noted_with_what_they_change(ledger: Ledger) -> None:
    rows = some(3)
    with ledger.writing() as writing:
        writing.add(rows)
        writing.note_requests([request(1, tag=b"once"), request(2, "eve"), request(3)])
    with ledger.writing() as writing:
        writing.certify(1)
    with ledger.writing() as writing:
        writing.remove(numbers(rows[:1]))
        writing.note_requests([request(4)])
        writing.note_requests([])
    assert ledger.request("request-1") == request(1, tag=b"once")._replace(version=1)
    assert ledger.requests_by_tag([b"once", b"never"]) == {b"once": ledger.request("request-1")}
    assert ledger.request("request-4") == request(4)._replace(version=2)
    assert ledger.request("request-5") is None
    assert [row.id[-1] for row in ledger.requests(10)] == ["4", "3", "2", "1"]
    assert [row.id[-1] for row in ledger.requests(2)] == ["4", "3"]
    assert [row.id[-1] for row in ledger.requests(2, before="request-3")] == ["2", "1"]
    assert [row.id[-1] for row in ledger.requests(9, client="ada")] == ["4", "3", "1"]
    assert ledger.requests(9, before="request-9") == []


def test_a_tag_is_used_once(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.note_requests([request(1, tag=b"once")])
    with ledger.writing() as writing:
        writing.note_requests([request(2, tag=b"other")])

    def again() -> None:
        with ledger.writing() as writing:
            writing.add(some(1))
            writing.note_requests([request(3, tag=b"once")])

    with pytest.raises(LedgerError):
        again()
    assert ledger.counts() == {}
    assert [row.id for row in ledger.requests(9)] == ["request-2", "request-1"]


def test_the_first_request_since_a_certificate(ledger: Ledger) -> None:
    assert ledger.first_request(0) is None
    with ledger.writing() as writing:
        writing.note_requests([request(5), request(1)._replace(kind="learn"), request(3)])
        writing.certify(1)
    assert not ledger.has_tags()
    with ledger.writing() as writing:
        writing.note_requests([request(8)._replace(kind="learn"), request(9, tag=b"once")])
    assert ledger.has_tags()
    assert [ledger.first_request(number) for number in (0, 1, 2)] == [1_001, 1_008, None]
    assert [ledger.first_request(number, forgotten=True) for number in (0, 1, 2)] == [1_003, 1_009, None]


def test_scrubbing_clears_what_published_requests_were_about(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.note_requests([request(1)])
        writing.certify(1)
    with ledger.writing() as writing:
        writing.note_requests([request(2)])
    ledger.scrub()
    assert [row.body for row in ledger.requests(9)] == [b"\2", None]


def test_scrubbing_keeps_digests_that_tell_nothing(ledger: Ledger) -> None:
    bodies = [b"d" * 32, b"\1" + b"r" * 32, b"\1" + b"r" * 32 + b"d" * 32]
    with ledger.writing() as writing:
        writing.note_requests([request(number)._replace(body=body) for number, body in enumerate(bodies)])
        writing.certify(1)
    ledger.scrub()
    assert [row.body for row in ledger.requests(9)] == [bodies[1], bodies[1], None]
