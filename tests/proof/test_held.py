"""The held tree: its root depends on the set alone, and no root has a proof of presence and one of absence."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import CertificateRejectedError, InputError
from neverseen.proof.held import BITS, EMPTY, Path, Proof, check_absence, check_presence, leaf, prove, root
from tests import oracle


def commitment(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def near(base: int, place: int) -> bytes:
    """A commitment that parts from another at a bit."""
    return (int.from_bytes(commitment(base)) ^ (1 << (BITS - 1 - place))).to_bytes(32)


COMMITMENTS = st.one_of(
    st.builds(commitment, st.integers(0, 40)), st.builds(near, st.integers(0, 3), st.integers(0, 255))
)
SETS = st.sets(COMMITMENTS, max_size=12)


@given(members=SETS, data=st.data())
@settings(max_examples=60)
def test_the_root_depends_on_the_set_alone(members: set[bytes], data: st.DataObject) -> None:
    order = data.draw(st.permutations(sorted(members)))
    assert root(order) == oracle.held_hash(members)
    others = data.draw(SETS)
    assert (root(others) == root(members)) == (others == members)


@given(members=SETS, asked=st.lists(COMMITMENTS, min_size=1, max_size=4))
@settings(max_examples=60)
def test_each_commitment_is_proved_present_or_absent_and_never_both(members: set[bytes], asked: list[bytes]) -> None:
    top = root(members)
    for each in [*asked, *list(members)[:3]]:
        path = prove(members, each)
        assert path == (oracle.held_path(members, each)[0], tuple(oracle.held_path(members, each)[1]))
        right, wrong = (check_presence, check_absence)[:: 1 if each in members else -1]
        right(top, each, path)
        with pytest.raises(CertificateRejectedError, match="does not show that the commitment is"):
            wrong(top, each, path)
        with pytest.raises(CertificateRejectedError, match="does not lead to this root"):
            right(commitment(99), each, path)


def verdicts(top: bytes, each: bytes, path: Path) -> set[str]:
    found = set()
    for check in (check_presence, check_absence):
        try:
            check(top, each, path)
        except CertificateRejectedError:
            continue
        found.add(check.__name__)
    return found


TREES: Any = st.recursive(st.one_of(st.none(), COMMITMENTS), lambda halves: st.tuples(halves, halves), max_leaves=12)


@given(tree=TREES, asked=st.lists(COMMITMENTS, min_size=1, max_size=3))
@settings(max_examples=150)
def test_no_root_that_is_made_up_has_proofs_of_presence_and_of_absence(tree: Any, asked: list[bytes]) -> None:
    """Whoever signs the root can build any tree, with leaves in wrong places and empty halves."""

    def hash_of(part: Any) -> bytes:
        if isinstance(part, tuple):
            return hashlib.sha256(b"neverseen:node:1" + hash_of(part[0]) + hash_of(part[1])).digest()
        return EMPTY[1] if part is None else leaf(part)[1]

    def leaves(part: Any) -> set[bytes]:
        return leaves(part[0]) | leaves(part[1]) if isinstance(part, tuple) else {part} - {None}

    for each in {*asked, *leaves(tree)}:
        found, part, siblings = set(), tree, list[bytes]()
        while True:
            ends = [None, each, *([part] if isinstance(part, bytes) else [])]
            found |= {word for end in ends for word in verdicts(hash_of(tree), each, Path(end, tuple(siblings)))}
            if not isinstance(part, tuple):
                break
            mine = each[len(siblings) // 8] >> (7 - len(siblings) % 8) & 1
            siblings.append(hash_of(part[1 - mine]))
            part = part[mine]
        assert len(found) < 2


@given(members=st.sets(COMMITMENTS, min_size=1, max_size=8), each=COMMITMENTS, data=st.data())
@settings(max_examples=100)
def test_a_changed_path_is_refused(members: set[bytes], each: bytes, data: st.DataObject) -> None:
    top, path = root(members), prove(members, each)
    parts = [*path.siblings, *([] if path.leaf is None else [path.leaf])]
    siblings = list(path.siblings)
    kind = data.draw(st.sampled_from(["byte", "cut", "longer", "none"]))
    changed = path
    if kind == "byte" and parts:
        place, byte = data.draw(st.integers(0, len(parts) - 1)), data.draw(st.integers(0, 31))
        part = bytearray(parts[place])
        part[byte] ^= data.draw(st.integers(1, 255))
        if place < len(siblings):
            changed = Path(path.leaf, (*siblings[:place], bytes(part), *siblings[place + 1 :]))
        else:
            changed = Path(bytes(part), path.siblings)
    elif kind == "cut" and siblings:
        changed = Path(path.leaf, tuple(siblings[: data.draw(st.integers(0, len(siblings) - 1))]))
    elif kind == "longer":
        changed = Path(path.leaf, (*siblings, data.draw(st.sampled_from([EMPTY[1], commitment(3)]))))
    elif kind == "none" and path.leaf is not None:
        changed = Path(None, path.siblings)
    if changed != path:
        assert verdicts(top, each, changed) == set()


def test_paths_of_impossible_form_are_refused() -> None:
    known, other = commitment(1), commitment(2)
    top = root([known, other])
    for siblings in ((b"",), (bytes(31),), ("0" * 32,), (None,)):
        with pytest.raises(CertificateRejectedError, match="is not 32 bytes long"):
            check_presence(top, known, Path(known, siblings))  # type: ignore[arg-type]
    for end in (b"", bytes(31), "x" * 32):
        with pytest.raises(CertificateRejectedError, match="is not 32 bytes long"):
            check_absence(top, known, Path(end, ()))  # type: ignore[arg-type]
    with pytest.raises(CertificateRejectedError, match="it has 257 hashes, and no path has more than 256"):
        check_presence(top, known, Path(known, (other,) * 257))
    with pytest.raises(CertificateRejectedError, match="below a subtree that holds at most one commitment"):
        check_presence(top, known, Path(known, (EMPTY[1],)))
    away = next(each for each in map(commitment, range(9)) if each[0] >> 7 != known[0] >> 7)
    with pytest.raises(CertificateRejectedError, match="the commitment at its end is not on the path"):
        check_absence(top, known, Path(away, (other,)))


def test_what_is_no_commitment_is_refused() -> None:
    for wrong in (b"", bytes(33), "a" * 32, bytearray(32)):
        with pytest.raises(InputError, match="a commitment must be 32 bytes"):
            root([wrong])  # type: ignore[list-item]
        with pytest.raises(InputError, match="a commitment must be 32 bytes"):
            prove([], wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="a commitment must be 32 bytes"):
            check_absence(root([]), wrong, Path(None, ()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a commitment is given twice"):
        root([bytes(32), bytes(32)])


# -- the text of a proof ---------------------------------------------------------------------------------

MEMBERS = [*map(commitment, range(5)), near(0, 255), near(1, 20)]


def made(wanted: bytes) -> Proof:
    return Proof.of(7, "ab" * 32, root(MEMBERS).hex(), wanted, prove(MEMBERS, wanted))


def reads(raw: bytes) -> str:
    """What the library makes of a text, in the words of the oracle."""
    try:
        proof = Proof.from_json(raw)
        proof.check()
    except CertificateRejectedError:
        return "nothing"
    return "presence" if proof.held else "absence"


@pytest.mark.parametrize("wanted", [commitment(2), commitment(9), near(1, 21), near(2, 0)])
def test_any_changed_byte_of_a_proof_is_refused(wanted: bytes) -> None:
    proof = made(wanted)
    raw = proof.to_json()
    assert Proof.from_json(raw) == proof
    assert proof.held == (wanted in MEMBERS)
    about = proof.number, proof.digest, proof.commitment  # which its holder compares: another proof would be as good
    for place, byte in enumerate(raw):
        for other in {byte ^ 1, byte ^ 32, ord("0"), ord("f"), ord(" "), 0, 255} - {byte}:
            changed = raw[:place] + bytes([other]) + raw[place + 1 :]
            if reads(changed) != "nothing":
                read = Proof.from_json(changed)
                assert (read.number, read.digest, read.commitment) != about
                assert read.held == (bytes.fromhex(read.commitment) in MEMBERS)
    for changed in (raw[:-1], raw + b"\n", raw[1:], b"", b"\n", b"[]\n", b"[" * 30000, b"\xff" + raw, raw * 40):
        assert reads(changed) == "nothing"


@given(data=st.data())
@settings(max_examples=100)
def test_library_and_oracle_read_the_same_proofs(data: st.DataObject) -> None:
    """Any field in place of another, and values of other types."""
    proofs = [json.loads(made(each).to_json()) for each in (commitment(1), commitment(8), near(0, 255))]
    said = dict(data.draw(st.sampled_from(proofs)))
    name = data.draw(st.sampled_from([*said, "more"]))
    odd = [None, "", [], {}, 0, 1.5, True, -1, "0" * 64, ["0" * 64], "A" * 64, {"digest": "0" * 64, "number": 2**53}]
    said[name] = data.draw(st.sampled_from([*(each.get(name) for each in proofs), *odd]))
    text = oracle.canonical_json(said) + "\n"
    assert reads(text.encode()) == oracle.proof_shows(text)
