from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    CertificateRejectedError,
    FileRejectedError,
    Identity,
    InputError,
    LimitError,
    MissingPackageError,
)
from neverseen.engine.statistics import Statistics
from neverseen.labels import canonical_json
from neverseen.model.configuration import Configuration, empty_digest
from neverseen.proof import certificates, statements
from neverseen.proof.certificates import (
    AuditHead,
    Certificate,
    State,
    check_chain,
    check_signature,
    check_state,
    is_mine,
    issue,
)
from neverseen.proof.receipts import commitment
from neverseen.proof.signing import SigningKey
from neverseen.proof.statements import FORMATS

SETTINGS = Configuration(Identity(), 2**16, 40)
CONFIGURATION = SETTINGS.digest().hex()
KEY, OTHER = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))
RECEIPTS = [f"receipt {number}".encode() for number in range(6)]
SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"
SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification.md"


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def state(name: str, samples: int, classes: int = 2) -> State:
    return State(digest(f"sums {name}"), digest(f"model {name}"), samples, classes)


EMPTY = State.empty(CONFIGURATION)
STATES = [EMPTY, state("a", 10), state("b", 9, 3), state("b", 9, 3), state("c", 11), EMPTY, state("d", 2)]
FORGOTTEN = [[], RECEIPTS[:3], [], RECEIPTS[3:4], [digest(str(n)).encode() for n in range(11)], []]
LEARNED = [10, 2, 0, 3, 0, 2]


def certificate_after(previous: Certificate | None, key: SigningKey = KEY, **changes: Any) -> Certificate:
    place = 0 if previous is None else previous.number
    fields: dict[str, Any] = {
        "number": place + 1,
        "time": f"2025-02-28T23:59:{50 + place // 2}Z",
        "configuration": CONFIGURATION,
        "before": STATES[place],
        "after": STATES[place + 1],
        "learned": LEARNED[place],
        "forgotten": len(FORGOTTEN[place]),
        "commitments": [commitment(receipt) for receipt in FORGOTTEN[place]],
        "grid_bits": 40,
        "previous": previous,
        "signing_key": key,
        "audit": None if place % 2 else AuditHead(7 * place, digest(f"line {place}")),
    }
    return issue(**fields | changes)


def chain(key: SigningKey = KEY) -> list[Certificate]:
    issued: list[Certificate] = []
    for _ in LEARNED:
        issued.append(certificate_after(issued[-1] if issued else None, key))
    return issued


CHAIN = chain()
FILES = [certificate.to_json() for certificate in CHAIN]


def resigned(certificate: Certificate, **changes: Any) -> Certificate:
    """A certificate changed by somebody who has the key."""
    changed = replace(certificate, **changes)
    return replace(changed, signature=KEY.sign(changed.signed_bytes()).hex())


def fields_of(certificate: Certificate) -> dict[str, Any]:
    return dict(json.loads(certificate.to_json()))


def as_file(fields: dict[str, Any]) -> bytes:
    return canonical_json(fields).encode() + b"\n"


# -- what holds -----------------------------------------------------------------------------------------


def test_a_chain_holds() -> None:
    read = [Certificate.from_json(raw) for raw in FILES]
    assert read == CHAIN
    check_chain(read)
    check_chain(read, KEY.public)
    check_chain(read, KEY.public, newest=CHAIN[-1].digest())
    for number in range(1, len(CHAIN)):
        check_chain(read[:number])  # every beginning is a chain


def test_the_file_is_canonical_json_and_named_by_its_bytes() -> None:
    for certificate, raw, after in zip(CHAIN, FILES, [*CHAIN[1:], None], strict=True):
        assert raw == as_file(json.loads(raw))
        assert certificate.digest() == hashlib.sha256(raw).hexdigest()
        assert after is None or after.previous == certificate.digest()
        assert certificate.grid_bits == 40
        assert float.fromhex(certificate.error_bound) == 2.0**-41


def test_the_signature_is_over_all_the_rest() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    fields = fields_of(CHAIN[1])
    signature = bytes.fromhex(fields.pop("signature"))
    message = b"neverseen:certificate:2" + canonical_json(fields).encode()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public)).verify(signature, message)


def test_the_owner_of_a_receipt_finds_it_and_nobody_else() -> None:
    for number, receipt in enumerate(RECEIPTS):
        found = [certificate.number for certificate in CHAIN if is_mine(certificate, receipt)]
        assert found == ([2] if number < 3 else [4] if number == 3 else [])
    assert commitment(b"x") == hashlib.sha256(b"neverseen:commitment:1x").digest()
    assert not is_mine(CHAIN[0], b"")


def test_the_empty_state_is_that_of_empty_models() -> None:
    assert EMPTY.model == empty_digest(SETTINGS)
    assert EMPTY.statistics == Statistics(0).digest()


def test_states_are_compared_part_by_part() -> None:
    check_state(CHAIN[1], STATES[2])
    for name, value, words in (
        ("samples", 8, "number of samples is 9 there and 8 here"),
        ("classes", 2, "number of classes is 3 there and 2 here"),
        ("statistics", digest("x"), "digest of the sums"),
        ("model", digest("x"), "digest of the model"),
    ):
        with pytest.raises(CertificateRejectedError, match=f"^certificate 2: .*{words}") as caught:
            check_state(CHAIN[1], replace(STATES[2], **{name: value}))  # type: ignore[arg-type]
        assert caught.value.number == 2


def test_time_is_now_but_never_runs_back() -> None:
    first = certificate_after(None, time=None)
    assert first.time.startswith("20")
    late = certificate_after(None, time="2999-01-01T00:00:00Z")
    assert certificate_after(late, time=None).time == late.time
    with pytest.raises(CertificateRejectedError, match="certificate 2: its time .* is before that of certificate 1"):
        certificate_after(late)


def test_certificates_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.write_bytes(FILES[0])
    assert Certificate.load(path) == CHAIN[0]
    path.write_bytes(FILES[0][:-2])
    with pytest.raises(CertificateRejectedError, match="1.json is not JSON"):
        Certificate.load(path)


# -- what does not hold ---------------------------------------------------------------------------------


@settings(max_examples=400)
@given(data=st.data())
def test_any_changed_byte_is_rejected(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(FILES) - 1))
    raw = bytearray(FILES[number])
    kind = data.draw(st.sampled_from(["change", "insert", "delete"]))
    place = data.draw(st.integers(0, len(raw) - 1))
    if kind == "change":
        byte = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789abcdefABCDEF{}[]:,"\n')))
        if raw[place] == byte:
            return
        raw[place] = byte
    elif kind == "insert":
        raw.insert(place, data.draw(st.integers(0, 255)))
    else:
        del raw[place]
    if bytes(raw) == FILES[number]:
        return
    with pytest.raises(CertificateRejectedError):
        check_signature(Certificate.from_json(bytes(raw)))


def test_every_hex_digit_is_signed() -> None:
    """Each digit of certificate 2 in turn, flipped within what the form allows."""
    raw = FILES[1]
    survivors = 0
    for place, byte in enumerate(raw):
        if byte not in b"0123456789abcdef":
            continue
        changed = raw[:place] + (b"1" if byte == ord("0") else b"0") + raw[place + 1 :]
        try:
            certificate = Certificate.from_json(changed)
        except CertificateRejectedError:
            continue
        survivors += 1
        with pytest.raises(CertificateRejectedError, match="certificate 2: its signature is wrong"):
            check_signature(certificate)
    assert survivors > 700  # the form alone does not refuse them


@settings(max_examples=300)
@given(order=st.lists(st.integers(0, len(CHAIN) - 1), max_size=len(CHAIN) + 2))
def test_dropping_doubling_and_reordering_are_rejected(order: list[int]) -> None:
    certificates = [CHAIN[place] for place in order]
    if order == list(range(len(order))) and order:
        check_chain(certificates, KEY.public)
        if len(order) < len(CHAIN):  # cut off at the end: who knows the newest sees it
            with pytest.raises(CertificateRejectedError, match="the end was cut off"):
                check_chain(certificates, newest=CHAIN[-1].digest())
    else:
        with pytest.raises(CertificateRejectedError, match="is missing, repeated or misplaced|no certificate"):
            check_chain(certificates)


def test_foreign_keys_are_rejected() -> None:
    theirs = chain(OTHER)
    check_chain(theirs)
    with pytest.raises(CertificateRejectedError, match="certificate 1: signed with the key .* not with the key given"):
        check_chain(theirs, KEY.public)
    with pytest.raises(CertificateRejectedError, match="certificate 1: signed with the key"):
        check_signature(theirs[0], KEY.public)
    with pytest.raises(CertificateRejectedError, match="certificate 2: it is not signed with the key of certificate 1"):
        certificate_after(CHAIN[0], OTHER)
    forged = replace(CHAIN[0], key=OTHER.public)
    with pytest.raises(CertificateRejectedError, match="certificate 1: its signature is wrong"):
        check_signature(forged)
    no_point = replace(CHAIN[0], key="02" + "0" * 62)
    with pytest.raises(CertificateRejectedError, match="certificate 1: its signature is wrong"):
        check_signature(no_point)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"previous": digest("another")}, "follows a different certificate 1"),
        ({"configuration": digest("another")}, "its configuration differs from certificate 1"),
        ({"error_bound": (2.0**-21).hex()}, "its configuration differs from certificate 1"),
        ({"before": state("another", 10)}, "does not begin where certificate 1 ended"),
        ({"time": "2025-02-28T23:59:49Z"}, "is before that of certificate 1"),
    ],
)
def test_links_that_the_publisher_broke_are_rejected(changes: dict[str, Any], words: str) -> None:
    broken = resigned(CHAIN[1], **changes)
    check_signature(broken, KEY.public)
    with pytest.raises(CertificateRejectedError, match=f"^certificate 2: .*{words}") as caught:
        check_chain([CHAIN[0], broken], KEY.public)
    assert caught.value.number == 2


def test_a_chain_begins_with_the_empty_model() -> None:
    for before in (STATES[1], replace(EMPTY, model=digest("x"))):
        with pytest.raises(CertificateRejectedError, match="does not begin with the empty model"):
            check_chain([resigned(CHAIN[0], before=before)])


def test_another_history_does_not_continue_the_chain() -> None:
    """The same publisher issues a second certificate 1: it cannot stand in for the first."""
    other = certificate_after(None, after=state("x", 10))
    with pytest.raises(CertificateRejectedError, match="certificate 2: it follows a different certificate 1"):
        check_chain([other, *CHAIN[1:]])


HEX = "not 64 hex digits in lower case"
UNSOUND: list[tuple[dict[str, Any], str]] = [
    ({"number": 0}, "number is '0'"),
    ({"number": -1}, "number is '-1'"),
    ({"number": 2.0}, "number is '2.0'"),
    ({"number": True}, "number is 'True'"),
    ({"number": "2"}, "number is '2'"),
    ({"number": 2**53}, "must be 1 or more"),
    ({"audit": AuditHead(-1, digest("x"))}, "audit is not a number of lines"),
    ({"audit": AuditHead(2**53, digest("x"))}, "audit is not a number of lines"),
    ({"audit": AuditHead(True, digest("x"))}, "audit is not a number of lines"),
    ({"audit": AuditHead(1, "x")}, "audit is not a number of lines"),
    ({"number": 1}, "previous must be null in certificate 1"),
    ({"previous": None}, "previous must be null in certificate 1"),
    ({"previous": digest("x").upper()}, "previous must be null in certificate 1, and 64 hex digits"),
    ({"time": "2025-02-30T00:00:00Z"}, "its time is not of the form"),
    ({"time": "2025-02-28T24:00:00Z"}, "its time is not of the form"),
    ({"time": "2025-02-28T23:59:60Z"}, "its time is not of the form"),
    ({"time": "2025-02-28 23:59:59Z"}, "its time is not of the form"),
    ({"time": "2025-02-28T23:59:59+00:00"}, "its time is not of the form"),
    ({"time": "2025-02-28T23:59:59Z\n"}, "its time is not of the form"),
    ({"time": "٢٠25-02-28T23:59:59Z"}, "its time is not of the form"),
    ({"time": 0}, "its time is not of the form"),
    ({"configuration": "ab"}, f"configuration is {HEX}"),
    ({"configuration": digest("x") + "\n"}, f"configuration is {HEX}"),
    ({"key": KEY.public.upper()}, f"key is {HEX}"),
    ({"key": None}, f"key is {HEX}"),
    ({"signature": "0" * 127}, "128 hex digits"),
    ({"error_bound": "0x1.8p-41"}, "error bound"),
    ({"error_bound": (2.0**-1).hex()}, "error bound"),
    ({"error_bound": (2.0**-54).hex()}, "error bound"),
    ({"error_bound": 2.0**-41}, "error bound"),
    ({"error_bound": []}, "error bound"),
    ({"learned": -1, "after": state("b", 6)}, "learned and forgotten are not numbers"),
    ({"learned": True}, "learned and forgotten are not numbers"),
    ({"learned": 3}, "10 samples before, 3 learned and 3 forgotten do not make 9"),
    ({"forgotten": 2, "learned": 1}, "3 commitments for 2 forgotten samples"),
    ({"after": state("b", 8, 3)}, "do not make 8"),
    ({"after": state("b", 9, 10)}, "counts in after"),
    ({"after": state("b", 9.0)}, "counts in after"),  # type: ignore[arg-type]
    ({"after": replace(state("b", 9), samples=2**48 + 1)}, "counts in after"),
    ({"after": state("b", 9, 0)}, "after has no sample or no class"),
    ({"before": state("b", 0, 0)}, "before has no sample or no class"),
    ({"before": replace(STATES[1], model="x")}, "a digest in before"),
    ({"after": replace(STATES[2], statistics=STATES[1].statistics)}, "have the same sums, but differ"),
    ({"commitments": ("x",) * 3}, f"a commitment is {HEX}"),
    ({"commitments": (None,) * 3}, f"a commitment is {HEX}"),
    ({"commitments": CHAIN[1].commitments[::-1]}, "not sorted, or one is repeated"),
    ({"commitments": CHAIN[1].commitments[:1] * 3}, "not sorted, or one is repeated"),
    ({"commitments": CHAIN[1].commitments[1:]}, "2 commitments for 3 forgotten samples"),
]


@pytest.mark.parametrize(("changes", "words"), UNSOUND)
def test_unsound_certificates_are_not_read_even_if_signed(changes: dict[str, Any], words: str) -> None:
    signed = resigned(CHAIN[1], **changes) if "signature" not in changes else replace(CHAIN[1], **changes)
    with pytest.raises(CertificateRejectedError, match=words) as caught:
        Certificate.from_json(signed.to_json())
    if "number" not in changes:
        assert str(caught.value).startswith("certificate 2: ")
        assert caught.value.number == 2


def test_nothing_learned_and_forgotten_means_nothing_changed() -> None:
    with pytest.raises(CertificateRejectedError, match="certificate 3: nothing was learned or forgotten, yet"):
        certificate_after(CHAIN[1], after=state("other", 9))


def test_what_is_unsound_is_not_issued() -> None:
    for changes, words in (
        ({"number": 3}, "certificate 2 was expected here"),
        ({"commitments": [b"short"] * 3}, HEX),
        ({"commitments": [commitment(RECEIPTS[0])] * 3}, "one is repeated"),
        ({"grid_bits": 53}, "error bound"),
        ({"learned": 5}, "do not make"),
    ):
        with pytest.raises(CertificateRejectedError, match=words):
            certificate_after(CHAIN[0], **changes)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b"NaN\n", "not JSON"),
        (b"[]\n", "not a certificate of format neverseen-certificate-1 or neverseen-certificate-2"),
        (b"{}\n", "not a certificate of format"),
        (FILES[0].replace(b"certificate-2", b"certificate-3"), "not a certificate of format"),
        (FILES[0].replace(b"certificate-2", b"certificate-1"), "does not have the fields of a certificate: see audit"),
        (as_file(fields_of(CHAIN[0]) | {"format": []}), "not a certificate of format"),
        (as_file(fields_of(CHAIN[0]) | {"audit": 1}), "audit does not have the fields of the head of a log"),
        (as_file(fields_of(CHAIN[0]) | {"audit": {"lines": 1}}), "audit does not have the fields of the head"),
        (FILES[0].rstrip(b"\n"), "not in canonical form"),
        (FILES[0] + b"\n", "not in canonical form"),
        (FILES[0].replace(b":", b": "), "not in canonical form"),
        (FILES[0].replace(b'"learned"', b'"learned":1,"learned"'), "not in canonical form"),
        (FILES[0].replace(b'"number":1', b'"number":1e0'), "not in canonical form"),
        (as_file(fields_of(CHAIN[0]) | {"note": "x"}), "does not have the fields of a certificate: see note"),
        (
            as_file({k: v for k, v in fields_of(CHAIN[0]).items() if k != "time"}),
            "does not have the fields of a certificate: see time",
        ),
        (as_file(fields_of(CHAIN[0]) | {"before": []}), "before does not have the fields of a state"),
        (as_file(fields_of(CHAIN[0]) | {"after": {"samples": 1}}), "after does not have the fields of a state"),
        (as_file(fields_of(CHAIN[0]) | {"commitments": {}}), "commitments is not a list"),
        (as_file(fields_of(CHAIN[0]) | {"commitments": "00"}), "commitments is not a list"),
    ],
)
def test_other_files_are_not_read(raw: bytes, words: str) -> None:
    with pytest.raises(CertificateRejectedError, match=f"^here(:| is)? {words}"):
        Certificate.from_json(raw, "here")


def test_large_files_are_neither_read_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (certificates, statements):
        monkeypatch.setattr(module, "SIZE_LIMIT", len(FILES[1]) - 1)
    with pytest.raises(CertificateRejectedError, match="is too large: [0-9]+ bytes; at most"):
        Certificate.from_json(FILES[1])
    Certificate.from_json(FILES[0])
    with pytest.raises(LimitError, match="forget fewer at a time"):
        certificate_after(CHAIN[0])


# -- format 1 -------------------------------------------------------------------------------------------


def of_format_1(certificate: Certificate, **changes: Any) -> Certificate:
    """A certificate as version 0.1.0 issued it."""
    return resigned(certificate, format=FORMATS[0], audit=None, **changes)


WRITTEN_BY_0_1_0 = [
    "ecbf3ef7bf08a88ef24c19905aafd5fb0b31d74ad0f51278c6c53ded247a827d",
    "4df4a7bbc3e2be131633729dbb5fc15ac0ddb3129d6fccdcc9e94b2bb0f4a984",
]
"""Digests of the files that version 0.1.0 wrote for the first two certificates."""


def test_certificates_of_format_1_are_read_and_checked() -> None:
    first = of_format_1(CHAIN[0])
    raw = first.to_json()
    assert b'"audit"' not in raw
    assert Certificate.from_json(raw) == first
    fields = fields_of(first)
    signature = bytes.fromhex(fields.pop("signature"))
    assert signature == KEY.sign(b"neverseen:certificate:1" + canonical_json(fields).encode())
    second = of_format_1(CHAIN[1], previous=first.digest())
    assert [first.digest(), second.digest()] == WRITTEN_BY_0_1_0
    check_chain([first, second], KEY.public)
    with pytest.raises(CertificateRejectedError, match="its signature is wrong"):
        check_signature(replace(first, format=FORMATS[1]))  # a signature is for one format


def test_a_chain_begins_in_format_1_and_never_goes_back() -> None:
    first = of_format_1(CHAIN[0])
    second = of_format_1(CHAIN[1], previous=first.digest())
    third = certificate_after(second)
    check_chain([first, second, third], KEY.public)
    back = of_format_1(CHAIN[3], previous=third.digest())
    check_signature(back)
    with pytest.raises(CertificateRejectedError, match="certificate 4: its format .* is older than that of .* 3"):
        check_chain([first, second, third, back])


# -- the specification and the schema -------------------------------------------------------------------


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_certificates_follow_the_published_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    for certificate in (*CHAIN, *map(of_format_1, CHAIN)):
        validator().validate(fields_of(certificate))
    assert set(schema["properties"]) == {*schema["required"], "audit"} == set(fields_of(CHAIN[0]))
    assert set(schema["$defs"]["state"]["properties"]) == set(fields_of(CHAIN[0])["before"])
    assert set(schema["$defs"]["head"]["properties"]) == set(fields_of(CHAIN[0])["audit"])
    for bits in (1, 8, 9, 18, 19, 20, 39, 48, 49, 52):
        validator().validate(fields_of(CHAIN[0]) | {"error_bound": (2.0 ** -(bits + 1)).hex()})


def rules() -> dict[str, str]:
    """What the specification says is refused, and whether the schema alone refuses it."""
    text = SPECIFICATION.read_text().partition("**What is refused.**")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): row[2].strip() for row in rows}


def with_fields(certificate: Certificate = CHAIN[1], **changes: Any) -> bytes:
    return as_file(fields_of(certificate) | changes)


def with_state(side: str = "after", certificate: Certificate = CHAIN[1], **changes: Any) -> bytes:
    fields = fields_of(certificate)
    return as_file(fields | {side: fields[side] | changes})


ALONE: dict[str, list[bytes]] = {
    "canonical": [
        FILES[1][:-1],
        FILES[1].replace(b",", b", "),
        FILES[1].replace(b'"learned"', b'"learned":2,"learned"'),
    ],
    "format": [with_fields(format="neverseen-certificate-3"), with_fields(format=None)],
    "fields": [
        with_fields(note=""),
        with_state(note=""),
        with_fields(audit={"head": digest("x"), "lines": 1, "note": ""}),
        with_fields(of_format_1(CHAIN[1]), audit=None),
        with_fields(of_format_1(CHAIN[1]), format=FORMATS[1]),
        with_fields(audit=3),
        with_fields(commitments="x"),
        as_file({name: value for name, value in fields_of(CHAIN[1]).items() if name != "time"}),
    ],
    "number": [with_fields(number=value) for value in (0, -1, 2**53, "2", True, 2.5, None)],
    "previous": [with_fields(previous=None), with_fields(CHAIN[0], previous=digest("x"))],
    "hex": [
        with_fields(configuration="ab"),
        with_fields(key=KEY.public.upper()),
        with_fields(signature="0" * 127),
        with_fields(previous=digest("x")[:-1]),
        with_fields(commitments=["x" * 64] * 3),
        with_fields(audit={"head": "0", "lines": 1}),
        with_state(model=""),
        with_state("before", statistics=digest("x").upper()),
    ],
    "time": [
        with_fields(time=f"{value}Z")
        for value in (
            "2025-02-30T00:00:00",
            "2025-02-29T00:00:00",
            "2025-04-31T00:00:00",
            "2025-13-01T00:00:00",
            "2025-02-28T24:00:00",
            "2025-02-28T23:59:60",
            "0000-02-28T23:59:59",
            "2025-02-28T23:59:59.0",
        )
    ],
    "error_bound": [with_fields(error_bound=value) for value in ("0x1.8p-41", (2.0**-1).hex(), (2.0**-54).hex(), 1)],
    "audit": [with_fields(audit={"head": digest("x"), "lines": value}) for value in (-1, 2**53, "1", True, 1.5)],
    "counts": [
        with_fields(learned=-1),
        with_fields(learned=2**48 + 1),
        with_fields(forgotten=True),
        with_state(samples=2**48 + 1),
        with_state("before", classes=-1),
    ],
    "classes": [with_state(classes=0), with_state(classes=10), with_state("before", classes=11)],
    "empty": [
        with_state("before", CHAIN[0], model=digest("x")),
        with_state("before", CHAIN[0], statistics=digest("x")),
        with_state("after", CHAIN[4], model=digest("x")),
        with_state("after", CHAIN[4], classes=1),
    ],
    "sum": [with_fields(learned=3), with_state(samples=8)],
    "listed": [with_fields(forgotten=2, learned=1), with_fields(CHAIN[0], commitments=[digest("x")])],
    "sorted": [
        with_fields(commitments=list(CHAIN[1].commitments[::-1])),
        with_fields(commitments=[*CHAIN[1].commitments[:2], CHAIN[1].commitments[1]]),
    ],
    "unmoved": [with_state(certificate=CHAIN[2], model=digest("x"), statistics=digest("y"))],
    "sums": [with_state(statistics=STATES[1].statistics)],
    "signature": [with_fields(signature="0" * 128), resigned(CHAIN[1], key="02" + "0" * 62).to_json()],
}
CHAINS: dict[str, list[list[Certificate]]] = {
    "beginning": [[], [CHAIN[1]], [resigned(CHAIN[0], before=STATES[1], learned=0, forgotten=0)]],
    "order": [[CHAIN[0], CHAIN[2]], [CHAIN[0], CHAIN[0]], [CHAIN[0], CHAIN[1], CHAIN[0]]],
    "link": [[CHAIN[0], resigned(CHAIN[1], previous=digest("x"))]],
    "same model": [
        [CHAIN[0], resigned(CHAIN[1], configuration=digest("x"))],
        [CHAIN[0], resigned(CHAIN[1], error_bound=(2.0**-21).hex())],
    ],
    "state": [
        [CHAIN[0], resigned(CHAIN[1], before=other)]
        for other in (
            replace(STATES[1], model=digest("x")),
            replace(STATES[1], statistics=digest("x")),
            replace(STATES[1], classes=3),
        )
    ],
    "clock": [[CHAIN[0], resigned(CHAIN[1], time="2025-02-28T23:59:49Z")]],
    "same key": [
        [CHAIN[0], replace(chain(OTHER)[1], previous=CHAIN[0].digest())],
        [replace(CHAIN[0], signature=OTHER.sign(CHAIN[0].signed_bytes()).hex())],
    ],
    "newer": [[CHAIN[0], of_format_1(CHAIN[1])]],
}


def test_every_refusal_is_in_the_specification() -> None:
    assert set(rules()) == {*ALONE, *CHAINS, "size"}  # the size is tried above


@pytest.mark.parametrize("rule", ALONE)
def test_what_the_specification_refuses_is_refused(rule: str) -> None:
    by_schema = []
    for raw in ALONE[rule]:
        with pytest.raises(CertificateRejectedError):
            check_signature(Certificate.from_json(raw))
        by_schema.append(not validator().is_valid(json.loads(raw)))
    said = "yes" if all(by_schema) else "part" if any(by_schema) else "no"
    assert said == rules()[rule]


@pytest.mark.parametrize("rule", CHAINS)
def test_chains_that_the_specification_refuses_are_refused(rule: str) -> None:
    by_schema = []
    for certificates_ in CHAINS[rule]:
        with pytest.raises(CertificateRejectedError):
            check_chain(certificates_)
        by_schema.append(not all(validator().is_valid(fields_of(certificate)) for certificate in certificates_))
    said = "yes" if all(by_schema) else "part" if any(by_schema) else "no"
    assert said == rules()[rule]


def test_what_the_specification_allows_is_accepted() -> None:
    same = certificate_after(CHAIN[1], time=CHAIN[1].time)  # no rule asks for a later time
    check_chain([*CHAIN[:2], same])
    for changes in (
        {"time": "0001-01-01T00:00:00Z"},
        {"time": "9999-12-31T23:59:59Z"},
        {"time": "2024-02-29T00:00:00Z"},
        {"audit": AuditHead(2**53 - 1, digest("x"))},
        {"audit": AuditHead(0, "0" * 64)},
        {"number": 2**53 - 1},
        {"error_bound": (2.0**-53).hex()},
        {"after": replace(STATES[2], classes=9)},
    ):
        allowed = resigned(CHAIN[1], **changes)
        check_signature(Certificate.from_json(allowed.to_json()))
        validator().validate(fields_of(allowed))


# -- signing keys ---------------------------------------------------------------------------------------


def test_the_key_file_is_private_round_trips_and_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    key = SigningKey.generate()
    before = os.umask(0)
    try:
        key.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    raw = path.read_bytes()
    assert raw == as_file(json.loads(raw))
    assert SigningKey.load(path).public == key.public
    assert SigningKey.load(path).sign(b"x") == key.sign(b"x")
    with pytest.raises(FileExistsError, match=r"already exists: open it with SigningKey.load"):
        SigningKey.generate().save(path)
    assert path.read_bytes() == raw
    with pytest.raises(FileNotFoundError, match="does not exist"):
        key.save(tmp_path / "none" / "signing.key")
    with pytest.raises(FileNotFoundError, match="there is no signing key"):
        SigningKey.load(tmp_path / "none")


def test_a_key_that_could_not_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        KEY.save(tmp_path / "signing.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_key_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    KEY.save(tmp_path / "signing.key")
    (tmp_path / "signing.key").chmod(mode)
    with pytest.raises(FileRejectedError, match=f"others may read or change it .mode {mode:o}.*chmod 600"):
        SigningKey.load(tmp_path / "signing.key")


def test_damaged_key_files_are_refused_without_showing_them(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    KEY.save(path)
    raw, secret = path.read_bytes(), bytes(range(32)).hex().encode()
    for damaged in (
        b"",
        b"[]",
        b"\xff",
        raw[:-1],
        raw + b" ",
        raw.replace(b"signing-1", b"signing-2"),
        raw.replace(secret, secret.upper()),
        raw.replace(secret, secret[:-2]),
        raw.replace(secret[:4], b"ffff"),
        raw.replace(b'"' + secret + b'"', b"7"),
        raw.replace(b"{", b'{"a":1,'),
        raw + b" " * 5000,
    ):
        path.write_bytes(damaged)
        with pytest.raises(FileRejectedError, match="is not a usable signing key: ") as caught:
            SigningKey.load(path)
        assert secret[:8].decode() not in str(caught.value)


def test_the_secret_never_shows() -> None:
    secret = bytes(range(32)).hex()
    assert secret not in repr(KEY) + str(KEY)
    assert KEY.public in repr(KEY)
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copying(KEY)
    for wrong in (b"short", bytearray(32), "x" * 32, None):
        with pytest.raises(InputError, match="a signing key must be 32 bytes"):
            SigningKey(wrong)  # type: ignore[arg-type]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingPackageError, match="pip install cryptography"):
        SigningKey.generate()
    with pytest.raises(MissingPackageError, match="pip install cryptography"):
        check_signature(CHAIN[0])


def test_cryptography_is_imported_when_it_is_used() -> None:
    script = (
        "import neverseen.proof.certificates, sys; assert not any(m.startswith('cryptography') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": "src"})
