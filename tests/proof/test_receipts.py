"""Every refusal of a receipt, on the bytes themselves; what the model does with them is in test_forgetting."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import Key, ReceiptRejectedError
from neverseen.proof.receipts import Receipt, commitment, seal, unseal
from tests.samples import codes

KEY, OLDER, OTHER = (Key(bytes([number] * 32)) for number in (1, 2, 3))
MODEL = bytes(range(32))
FEATURES = codes("receipt", 1, 1280)[0]
RECEIPT = Receipt('"holiday-17"', '"ada"', '"cat"', bytes(16), FEATURES)
TOKEN = seal(RECEIPT, KEY, MODEL)


def refusal(token: bytes, keys: tuple[Key, ...] = (KEY, OLDER), model: bytes = MODEL) -> ReceiptRejectedError:
    with pytest.raises(ReceiptRejectedError, match=r"^receipt 4 .*\. Nothing was changed$") as caught:
        unseal(token, 4, keys, model)
    assert caught.value.row == 4
    return caught.value


def same(first: Receipt, second: Receipt) -> bool:
    parts = [
        (part.id, part.owner, part.label, part.fingerprint, part.salt, bytes(part.quantised))
        for part in (first, second)
    ]
    return parts[0] == parts[1] and second.quantised.dtype == np.int8


def test_size() -> None:
    assert len(TOKEN) - FEATURES.size == 28 + 16 + 38 + 32  # and so 1.36 KiB for EfficientNet-Lite0


def test_it_opens_under_any_key_of_the_model() -> None:
    assert same(RECEIPT, unseal(TOKEN, 0, [KEY], MODEL))
    assert same(RECEIPT, unseal(TOKEN, 0, [OTHER, OLDER, KEY], MODEL))
    assert same(RECEIPT, unseal(seal(RECEIPT, OLDER, MODEL), 0, [KEY, OLDER], MODEL))


def test_nothing_shows_from_outside() -> None:
    for secret in (b"holiday", b"ada", b"cat", MODEL[:8], FEATURES[:16].tobytes(), KEY.reveal()[:8]):
        assert secret not in TOKEN


def test_it_is_a_function_of_what_it_says() -> None:
    assert seal(RECEIPT, KEY, MODEL) == TOKEN
    other = seal(Receipt('"holiday-18"', '"ada"', '"cat"', bytes(16), FEATURES), KEY, MODEL)
    assert len(other) == len(TOKEN)
    same_bytes = sum(a == b for a, b in zip(other[16:], TOKEN[16:], strict=True))
    assert same_bytes < 40  # of nearly 1400: as many as chance gives, five or so, and room


def test_altered() -> None:
    error = refusal(TOKEN[:-1] + bytes([TOKEN[-1] ^ 1]))
    assert error.reason == "altered"
    assert "its seal is broken" in str(error)
    error = refusal(TOKEN + b"\0")
    assert error.reason == "altered"
    assert f"it has {len(TOKEN) + 1} bytes but states {len(TOKEN)}" in str(error)


def test_truncated() -> None:
    for length in range(1, len(TOKEN)):
        error = refusal(TOKEN[:length])
        assert error.reason == "truncated", length
    assert f"1 of {len(TOKEN)} bytes" not in str(refusal(TOKEN[:1]))
    assert f"it has only {len(TOKEN) - 1} of {len(TOKEN)} bytes" in str(refusal(TOKEN[:-1]))


def test_a_length_to_match_the_cut_does_not_help() -> None:
    for length in range(28, len(TOKEN), 50):
        cut = TOKEN[:4] + struct.pack("<I", length) + TOKEN[8:length]
        assert refusal(cut).reason == "altered"


def test_another_key() -> None:
    error = refusal(seal(RECEIPT, OTHER, MODEL))
    assert error.reason == "key"
    assert "sealed under a key that this model does not have" in str(error)


def test_claiming_a_key_does_not_help() -> None:
    forged = bytearray(seal(RECEIPT, OTHER, MODEL))
    forged[8:16] = bytes.fromhex(KEY.check())
    assert refusal(bytes(forged)).reason == "altered"


def test_a_salt_is_sealed_in_and_makes_another_receipt() -> None:
    salted = [replace(RECEIPT, salt=bytes([number] * 16)) for number in (1, 2)]
    tokens = [seal(receipt, KEY, MODEL) for receipt in salted]
    assert len({TOKEN, *tokens}) == len({commitment(token) for token in (TOKEN, *tokens)}) == 3
    for receipt, token in zip(salted, tokens, strict=True):
        assert token[:4] == b"NSR2"
        assert len(token) == len(TOKEN) + 16
        assert same(receipt, unseal(token, 0, [KEY], MODEL))
        assert seal(receipt, KEY, MODEL) == token
    assert TOKEN[:4] == b"NSR1"


@pytest.mark.parametrize("token", [TOKEN, seal(replace(RECEIPT, salt=bytes(16)), KEY, MODEL)])
def test_one_kind_of_receipt_does_not_pass_for_the_other(token: bytes) -> None:
    other = b"NSR2" if token.startswith(b"NSR1") else b"NSR1"
    assert refusal(other + token[4:]).reason == "altered"


def test_another_model() -> None:
    error = refusal(TOKEN, model=bytes(32))
    assert error.reason == "model"
    assert "belongs to another model" in str(error)


@pytest.mark.parametrize("token", [b"", b"N0", b"hello", b"\x89PNG\r\n", b"NSR3" + TOKEN[4:]])
def test_not_a_receipt(token: bytes) -> None:
    error = refusal(token)
    assert error.reason == "foreign"
    assert "is not a receipt" in str(error)


def test_halves_of_two_receipts_do_not_make_one() -> None:
    other = seal(Receipt('"b"', '"eve"', '"dog"', bytes(16), FEATURES), KEY, MODEL)
    size = min(len(TOKEN), len(other))
    for cut in (20, 28, 100, size - 16):
        assert refusal((TOKEN[:cut] + other[cut:])[: len(TOKEN)].ljust(len(TOKEN), b"\0")).reason == "altered"


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(TOKEN) - 1), change=st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, change: int) -> None:
    altered = bytearray(TOKEN)
    altered[place] ^= change
    refusal(bytes(altered))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(token: bytes) -> None:
    refusal(token)
    refusal(TOKEN[:28] + token)


@given(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.binary(min_size=16, max_size=16),
    st.lists(st.integers(-127, 127), max_size=40),
)
@settings(deadline=None)
def test_what_is_sealed_comes_out(one: str, two: str, three: str, fingerprint: bytes, features: list[int]) -> None:
    receipt = Receipt(one, two, three, fingerprint, np.array(features, dtype=np.int8))
    assert same(receipt, unseal(seal(receipt, KEY, MODEL), 0, [KEY], MODEL))
