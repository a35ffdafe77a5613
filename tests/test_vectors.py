"""The vectors in docs/vectors are the oracle's, and the library's.

The first part uses the oracle alone: it reads the inputs from the files and works out everything else from the
specification. The second shows the library the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import oracle, vectors

STORE: dict[str, Any] = json.loads((vectors.FOLDER / "store.json").read_text())
SERVED: dict[str, Any] = json.loads((vectors.FOLDER / "served.json").read_text())
TIE: dict[str, Any] = json.loads((vectors.FOLDER / "tie.json").read_text())
LABELS: dict[str, Any] = json.loads((vectors.FOLDER / "labels.json").read_text())
HELD: dict[str, Any] = json.loads((vectors.FOLDER / "held.json").read_text())


def label_of(about: dict[str, Any]) -> Any:
    """The label that a description stands for."""
    match about["kind"]:
        case "none":
            return None
        case "bool":
            return about["value"]
        case "int":
            return int(about["value"])
        case "float":
            return struct.unpack(">d", bytes.fromhex(about["bits"]))[0]
        case "str":
            return bytes.fromhex(about["utf8"]).decode()
        case "bytes":
            return bytes.fromhex(about["hex"])
        case "tuple":
            return tuple(label_of(item) for item in about["items"])
        case "frozenset":
            return frozenset(label_of(item) for item in about["members"])
    raise ValueError(about)


def rows_of(sample: dict[str, Any]) -> list[float]:
    raw = bytes.fromhex(sample["features"])
    return list(struct.unpack(f"<{len(raw) // 8}d", raw))


# -- by the oracle alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", vectors.MADE)
def test_the_files_are_what_the_oracle_makes(name: str) -> None:
    assert (vectors.FOLDER / name).read_text() == vectors.text(vectors.MADE[name]())


def test_the_files_hold_no_number_that_a_browser_misreads() -> None:
    def numbers(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [number for item in value for number in numbers(item)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    found = [number for content in (STORE, SERVED, TIE, LABELS, HELD) for number in numbers(content)]
    assert found
    assert all(isinstance(number, int) and abs(number) < 2**53 for number in found)


def test_there_is_a_label_of_each_kind_in_class_order() -> None:
    labels = [label_of(entry["label"]) for entry in LABELS["labels"]]
    texts = [entry["text"] for entry in LABELS["labels"]]
    assert [oracle.label_text(label) for label in labels] == texts
    assert [oracle.label_text(label) for label in oracle.class_order(reversed(labels))] == texts
    kinds = {entry["label"]["kind"] for entry in LABELS["labels"]}
    assert kinds == {"none", "bool", "int", "float", "str", "bytes", "tuple", "frozenset"}
    assert [oracle.label_text(label_of(entry["label"])) for entry in LABELS["same"]] == ["1", "0"]


def test_the_tie_is_one() -> None:
    exact = oracle.exact_weights(TIE["gram"], TIE["cross"], TIE["gamma"])
    steps = [value * 2 ** TIE["grid_bits"] for value in exact[0]]
    assert [step % 1 for step in steps] == [Fraction(1, 2)] * 2
    assert all(weight % 2 == 0 for weight in TIE["weights"][0])


def test_the_receipts_say_what_was_learned() -> None:
    key = bytes.fromhex(STORE["keys"]["receipts"])
    for sample in STORE["samples"]:
        model, prints, name, owner, label, q = oracle.receipt_parts(bytes.fromhex(sample["receipt"]), key)
        assert model.hex() == STORE["configuration_digest"][:32]
        assert (prints.hex(), name, owner, label, q) == (
            sample["fingerprint"],
            sample["id"],
            sample["owner"],
            sample["label"],
            sample["quantised"],
        )
        assert q == oracle.quantise(oracle.float32_row(rows_of(sample)))


def test_the_certificates_are_a_chain_under_the_key() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    first, second = (state["certificate"] for state in STORE["states"])
    for text in (first, second):
        said = json.loads(text)
        signature = bytes.fromhex(said.pop("signature"))
        signed = b"neverseen:certificate:1" + oracle.canonical_json(said).encode()
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(said["key"])).verify(signature, signed)
    assert json.loads(second)["previous"] == hashlib.sha256(first.encode()).hexdigest()
    assert json.loads(second)["commitments"] == [STORE["samples"][STORE["forgotten"]]["commitment"]]


def test_a_stores_receipts_say_what_was_learned_and_their_salt() -> None:
    key = bytes.fromhex(STORE["keys"]["receipts"])
    for sample, known in zip(SERVED["samples"], STORE["samples"], strict=True):
        salt, model, prints, *said = oracle.salted_receipt_parts(bytes.fromhex(sample["receipt"]), key)
        assert (salt.hex(), model.hex()) == (sample["salt"], STORE["configuration_digest"][:32])
        assert prints.hex() == known["fingerprint"]
        assert said == [sample["id"], sample["owner"], sample["label"], known["quantised"]]
    ids, numbers = (len({sample[name] for sample in SERVED["samples"]}) for name in ("id", "ticket_number"))
    assert ids < numbers == len(SERVED["samples"])  # two owners have the same id


def test_the_audit_log_is_a_chain_under_its_key_and_a_certificate_has_its_head() -> None:
    key = oracle.audit_key(bytes.fromhex(STORE["keys"]["membership"]))
    assert key.hex() == SERVED["audit"]["key"]
    previous = "0" * 64
    for number, line in enumerate(SERVED["audit"]["lines"], 1):
        said = json.loads(line)
        code = said.pop("mac")
        assert (code, said["line"], said["previous"]) == (oracle.audit_code(said, key), number, previous)
        previous = code
    first, second = (json.loads(text) for text in SERVED["certificates"])
    assert (first["audit"], second["audit"]) == (None, {"head": previous, "lines": number})


def test_the_certificates_of_a_store_are_a_chain_under_the_key() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for text in SERVED["certificates"]:
        said = json.loads(text)
        signature = bytes.fromhex(said.pop("signature"))
        signed = b"neverseen:certificate:2" + oracle.canonical_json(said).encode()
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(said["key"])).verify(signature, signed)
    assert said["previous"] == hashlib.sha256(SERVED["certificates"][0].encode()).hexdigest()
    assert said["commitments"] == [SERVED["samples"][STORE["forgotten"]]["commitment"]]


def test_there_are_proofs_of_each_kind_and_each_that_is_refused_breaks_a_rule() -> None:
    for case in HELD["cases"]:
        members = set(case["commitments"])
        for each in case["proofs"]:
            said = json.loads(each["proof"])
            assert each["shows"] == oracle.proof_shows(each["proof"])
            assert (each["shows"] == "presence") == (said["commitment"] in members)
            assert said["root"] == case["root"]
    ends = [json.loads(each["proof"]) for case in HELD["cases"] for each in case["proofs"]]
    assert {(said["leaf"] is None, said["leaf"] == said["commitment"]) for said in ends} == {
        (True, False),
        (False, True),
        (False, False),
    }
    assert max(len(said["siblings"]) for said in ends) == 256
    assert {oracle.proof_shows(each["proof"]) for each in HELD["refused"]} == {"nothing"}


# -- by the library --------------------------------------------------------------------------------------


def test_the_library_knows_the_labels() -> None:
    from neverseen.labels import from_text, in_class_order, normalise, text

    texts = [entry["text"] for entry in LABELS["labels"]]
    assert [text(normalise(label_of(entry["label"]))) for entry in LABELS["labels"]] == texts
    assert in_class_order(reversed(texts)) == texts
    assert [text(from_text(name)) for name in texts] == texts


def test_the_library_settles_the_tie() -> None:
    from neverseen.engine.solver import solve
    from neverseen.proof.witness import check_weights, make_witness

    gram, cross = (np.array(TIE[name], np.int64) for name in ("gram", "cross"))
    solution = solve(gram, cross, TIE["gamma"], TIE["grid_bits"])
    assert solution.weights.tolist() == TIE["weights"]
    witness = make_witness(gram, cross, solution)
    rests = [[int(value) for value in row] for row in TIE["rests"]]
    assert (witness.bits, witness.rests.tolist(), list(witness.unproved)) == (TIE["bits"], rests, TIE["unproved"])
    check_weights(gram, cross, TIE["gamma"], TIE["grid_bits"], solution.weights, witness)


def test_the_library_makes_and_checks_the_proofs() -> None:
    from neverseen import CertificateRejectedError
    from neverseen.proof.held import Proof, prove, root

    for case in HELD["cases"]:
        members = [bytes.fromhex(each) for each in case["commitments"]]
        assert root(members).hex() == case["root"]
        for each in case["proofs"]:
            proof = Proof.from_json(each["proof"].encode())
            proof.check()
            assert proof.held == (each["shows"] == "presence")
            wanted = bytes.fromhex(proof.commitment)
            made = Proof.of(proof.number, proof.digest, case["root"], wanted, prove(members, wanted))
            assert made.to_json().decode() == each["proof"]
    for each in HELD["refused"]:
        with pytest.raises(CertificateRejectedError):
            Proof.from_json(each["proof"].encode()).check()


def test_the_library_makes_the_same_model_receipts_and_files(tmp_path: Path) -> None:
    from neverseen import AnalyticClassifier, ForgettingModel, Key, Keyring, RandomProjection
    from neverseen.backbones import Precomputed
    from neverseen.labels import from_text
    from neverseen.model.versions import Version, write_version

    keys = Keyring(Key(bytes.fromhex(STORE["keys"]["membership"])), [Key(bytes.fromhex(STORE["keys"]["receipts"]))])
    settings = json.loads(STORE["configuration_text"])
    encoder = RandomProjection(settings["encoder"]["codes"], seed=settings["encoder"]["seed"])
    backbone = Precomputed(STORE["backbone"]["features"], STORE["backbone"]["name"])
    classifier = AnalyticClassifier(encoder, settings["gamma"], grid_bits=settings["grid_bits"])
    model = ForgettingModel(backbone, classifier, keys)
    assert backbone.digest() == STORE["backbone"]["digest"]
    samples = STORE["samples"]
    receipts = model.learn(
        [np.array(rows_of(sample)) for sample in samples],
        [from_text(sample["label"]) for sample in samples],
        ids=[from_text(sample["id"]) for sample in samples],
        owners=[from_text(sample["owner"]) for sample in samples],
    )
    assert [receipt.hex() for receipt in receipts] == [sample["receipt"] for sample in samples]
    for place, state in enumerate(STORE["states"]):
        if place:
            model.forget([receipts[STORE["forgotten"]]])
        exact: Any = model.classifier.__dict__["_model"]
        assert exact.configuration_digest.hex() == STORE["configuration_digest"]
        assert exact.weights().tolist() == [[int(value) for value in row] for row in state["weights"]]
        assert model.digest() == state["state"]["model"]
        assert exact.statistics.digest() == state["state"]["statistics"]
        model.save(tmp_path / "model")
        assert (tmp_path / "model").read_bytes().hex() == state["saved_model"]
        version = Version.of(exact)
        version.check(exact.statistics)
        write_version(tmp_path / "version", version)
        assert (tmp_path / "version").read_bytes().hex() == state["version"]


def test_the_library_reads_the_certificates_and_the_receipts() -> None:
    from neverseen.proof.certificates import Certificate, check_chain, is_mine
    from neverseen.sources.receipts import receipt_of

    certificates = [Certificate.from_json(state["certificate"].encode()) for state in STORE["states"]]
    check_chain(certificates, certificates[0].key)
    for place, sample in enumerate(STORE["samples"]):
        token = receipt_of(sample["receipt_line"].encode(), "a line")
        assert token.hex() == sample["receipt"]
        assert is_mine(certificates[1], token) == (place == STORE["forgotten"])
        assert not is_mine(certificates[0], token)


def test_a_store_gives_the_same_receipts_numbers_and_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neverseen import AnalyticClassifier, Key, Keyring, RandomProjection
    from neverseen.backbones import Precomputed
    from neverseen.labels import from_text
    from neverseen.model.intake import Intake
    from neverseen.proof.certificates import AuditHead, Certificate, check_chain, issue
    from neverseen.proof.signing import SigningKey
    from neverseen.service import audit_key, check_audit
    from neverseen.store import create

    keys = Keyring(Key(bytes.fromhex(STORE["keys"]["membership"])), [Key(bytes.fromhex(STORE["keys"]["receipts"]))])
    settings = json.loads(STORE["configuration_text"])
    encoder = RandomProjection(settings["encoder"]["codes"], seed=settings["encoder"]["seed"])
    classifier = AnalyticClassifier(encoder, settings["gamma"], grid_bits=settings["grid_bits"])
    backbone = Precomputed(STORE["backbone"]["features"], STORE["backbone"]["name"])
    samples = SERVED["samples"]
    salts = iter([bytes.fromhex(sample["salt"]) for sample in samples])
    monkeypatch.setattr(Intake, "new_salt", lambda self: next(salts))
    expected = [Certificate.from_json(text.encode()) for text in SERVED["certificates"]]
    previous: Certificate | None = None
    with create(tmp_path / "s", backbone, classifier, keys=keys) as store:
        receipts = store.learn(
            [np.array(rows_of(sample)) for sample in samples],
            *([from_text(sample[name]) for sample in samples] for name in ("label", "id", "owner")),
        )
        assert [receipt.hex() for receipt in receipts] == [sample["receipt"] for sample in samples]
        numbers = {row.number.hex(): row.commitment.hex() for row in store.ledger.samples()}
        assert numbers == {sample["ticket_number"]: sample["commitment"] for sample in samples}
        for wanted in expected:
            made = store.publish(audit=wanted.audit)
            assert (made.before, made.after, made.commitments) == (wanted.before, wanted.after, wanted.commitments)
            previous = issue(
                made.number,
                wanted.time,
                made.configuration,
                made.before,
                made.after,
                made.learned,
                made.forgotten,
                [bytes.fromhex(entry) for entry in made.commitments],
                made.grid_bits,
                previous,
                SigningKey(bytes.fromhex(STORE["keys"]["signing"])),
                made.audit,
            )
            assert previous.to_json().decode() == SERVED["certificates"][made.number - 1]
            if made.number == 1:
                store.forget([receipts[STORE["forgotten"]]])
    check_chain(expected, expected[0].key)
    (tmp_path / "audit.jsonl").write_text("".join(SERVED["audit"]["lines"]))
    assert audit_key(keys).reveal().hex() == SERVED["audit"]["key"]
    report = check_audit(tmp_path, audit_key(keys), expected, expected[1].audit)
    assert (report.last, report.certificates) == (2, 1)
    assert isinstance(expected[1].audit, AuditHead)


@pytest.mark.parametrize("seed", range(6))
def test_the_library_makes_the_witness_of_the_specification(seed: int) -> None:
    """Bits, rests and unproved columns of systems of many kinds, as section 10.1 settles them."""
    from neverseen.engine.solver import solve
    from neverseen.proof.witness import make_witness

    generator = np.random.default_rng(seed)
    for size, samples, gamma, grid_bits, scale in (
        (1, 3, 1, 40, 1),
        (2, 5, 1, 1, 1),
        (5, 3, 1, 40, 2**18),
        (6, 9, 2**20, 52, 1),
        (4, 8, 1, 20, 2**40),
        (3, 2, 2**40, 40, 1),
    ):
        codes = generator.integers(-127, 128, (samples, size))
        gram = (codes.T @ codes * scale).astype(np.int64)
        cross = generator.integers(-(2**19) * gamma // 2**10 - 1, 2**19, (size, 3)).astype(np.int64)
        if seed % 2:
            cross[:, 0] = gamma * 2 ** min(19, 60 - grid_bits)
        solution = solve(gram, cross, gamma, grid_bits)
        made = make_witness(gram, cross, solution)
        expected = oracle.witness(gram.tolist(), cross.tolist(), gamma, grid_bits)
        assert (made.bits, made.rests.tolist(), list(made.unproved)) == tuple(expected)


def test_a_weight_too_large_for_one_piece_is_unproved_as_the_specification_says() -> None:
    from neverseen.engine.solver import solve
    from neverseen.proof.witness import make_witness

    gram = np.diag([2**57, 0, 0]).astype(np.int64)
    cross = np.array([[2**56, 1], [2**19, 3], [0, 1]], np.int64)
    made = make_witness(gram, cross, solve(gram, cross, 1, 20))
    expected = oracle.witness(gram.tolist(), cross.tolist(), 1, 20)
    assert expected.unproved == [0]
    assert (made.bits, made.rests.tolist(), list(made.unproved)) == tuple(expected)
