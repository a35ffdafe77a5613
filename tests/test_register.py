from __future__ import annotations

import numpy as np
import pytest

from neverseen import InputError, Key, NotLearnedError
from neverseen.membership import Member
from neverseen.register import Register, Ticket, tickets_of
from tests import oracle

SECRET = bytes(range(32))
CONFIGURATION = bytes(range(100, 132))
A, B = ('"a"', bytes([1] * 16)), ('"b"', bytes([2] * 16))
"""Two members: class, digest."""


def tickets(*ids: str) -> list[Ticket]:
    return tickets_of(CONFIGURATION, Key(SECRET), ids, ['"a"'] * len(ids), [bytes(16)] * len(ids))


def noted() -> Register:
    """Member A under the ids 1 and 2, B under 3."""
    register = Register()
    register.add([A, A, B], tickets("1", "2", "3"))
    return register


HELD: dict[Member, int] = {A: 2, B: 1}


def test_tickets_are_the_specified_ones() -> None:
    fingerprint = bytes(range(16))
    (ticket,) = tickets_of(CONFIGURATION, Key(SECRET), ['"id"'], ['"cat"'], [fingerprint])
    assert ticket.number == oracle.ticket_number(CONFIGURATION, SECRET, '"id"')
    assert ticket.content == oracle.ticket_content(CONFIGURATION, SECRET, '"cat"', fingerprint)


def test_a_ticket_stands_for_its_sample_alone() -> None:
    one, two, three, four = tickets("1", "2", "3", "4")
    register = noted()
    assert register.standing([one, one, four], [A, B, A]) == [True, False, False]
    assert register.known([four.content]) == {four.content}  # the content of all is the same here
    register.remove([one.number, two.number, three.number])
    assert register.known([four.content]) == set()
    assert len(register) == 0


def test_ids_are_used_once() -> None:
    register = noted()
    register.require_new(tickets("4", "5"))
    with pytest.raises(InputError, match="the id of row 1 belongs to a sample the model holds"):
        register.require_new(tickets("4", "2"))
    with pytest.raises(InputError, match="the id of row 2 is given twice in one call"):
        register.require_new(tickets("4", "5", "4"))
    register.remove([tickets("2")[0].number])
    register.require_new(tickets("2"))  # free again: nothing remembers it


def test_with_tickets_each_must_stand() -> None:
    register = noted()
    one, two, three, four = tickets("1", "2", "3", "4")
    assert register.resolve([A, B], [two, three]) == [two.number, three.number]
    for members, wrong, rows in (
        ([A, A], [one, four], (1,)),
        ([A, A], [one, one], (1,)),
        ([B, A], [one, three], (0, 1)),
    ):
        with pytest.raises(NotLearnedError, match="no such sample under the id of row") as refusal:
            register.resolve(members, wrong)
        assert refusal.value.rows == rows


def test_without_tickets_no_id_is_guessed() -> None:
    register = noted()
    one, two, three, _ = tickets("1", "2", "3", "4")
    assert register.resolve_without_tickets([B], HELD) == [three.number]
    assert set(register.resolve_without_tickets([A, B, A], HELD)) == {one.number, two.number, three.number}
    with pytest.raises(
        InputError, match=r"row 1 was learned 2 times under different ids, and the request has it 1 times"
    ):
        register.resolve_without_tickets([B, A], HELD)
    assert register.resolve_without_tickets([A], {A: 3}) == []  # one of the three has no id: that one goes


def test_no_trace_of_what_went() -> None:
    register, never = noted(), Register()
    register.remove([ticket.number for ticket in tickets("1", "3")])
    never.add([A], tickets("2"))
    assert vars(register) == vars(never)
    register.remove_members([A[1]])
    assert vars(register) == vars(Register())


def test_as_bytes_and_back() -> None:
    rows = noted().to_array()
    assert rows.shape == (3, 48)
    assert rows.tolist() == sorted(rows.tolist())
    again = Register()
    again.fill(rows)
    assert vars(again) == vars(noted())
    assert np.array_equal(Register().to_array(), np.zeros((0, 48)))


def test_merging() -> None:
    register, other = noted(), Register()
    other.add([A], tickets("4"))
    register.require_apart(other)
    register.merge(other)
    assert len(register) == 4
    with pytest.raises(InputError, match=r"both models hold samples under the same id \(1 in all\)"):
        register.require_apart(other)


def test_fits() -> None:
    assert noted().fits({A[1]: 2, B[1]: 1})
    assert not noted().fits({A[1]: 1, B[1]: 1})
    assert not noted().fits({A[1]: 2})
