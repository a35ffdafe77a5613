"""Test vectors for a second implementer, made by the oracle alone: ``python -m tests.vectors`` writes docs/vectors."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from tests import oracle

FOLDER = Path(__file__).parents[1] / "docs" / "vectors"

LABELS: list[Any] = [
    None,
    False,
    True,
    -(2**60) - 1,
    -1.5,
    0,
    2.0**-1074,
    0.1,
    7,
    2**80,
    "",
    "a",
    'a"\\/\n\u007f',
    "a\0",
    "ü",
    "\U0001f600",
    b"",
    b"\x00\xff",
    (),
    ("a", 1),
    ("a", 1, None),
    ("b", (True, 0.5)),
    frozenset(),
    frozenset({2, "x", 1}),
    frozenset({b"\x01", (None,)}),
]


def described(label: Any) -> dict[str, Any]:
    """A label in JSON that holds it exactly: numbers as texts, floats as their bits, texts as UTF-8 in hex."""
    match label:
        case None:
            return {"kind": "none"}
        case bool():
            return {"kind": "bool", "value": label}
        case int():
            return {"kind": "int", "value": str(label)}
        case float():
            return {"kind": "float", "bits": struct.pack(">d", label).hex()}
        case str():
            return {"kind": "str", "utf8": label.encode().hex()}
        case bytes():
            return {"kind": "bytes", "hex": label.hex()}
        case tuple():
            return {"kind": "tuple", "items": [described(item) for item in label]}
        case frozenset():
            members = sorted((described(item) for item in label), key=json.dumps)  # not the canonical order
            return {"kind": "frozenset", "members": members}
    raise TypeError(label)


def labels() -> dict[str, Any]:
    """Labels of every kind, in class order, with their canonical texts."""
    ordered = oracle.class_order(LABELS)
    return {
        "about": "Section 3: labels in class order, and the canonical text of each.",
        "labels": [{"label": described(label), "text": oracle.label_text(label)} for label in ordered],
        "same": [
            {"label": described(1.0), "text": oracle.label_text(1.0)},
            {"label": described(-0.0), "text": oracle.label_text(-0.0)},
        ],
    }


def tie() -> dict[str, Any]:
    """Exact ties: on a grid of 1/32, 3/64 and -5/64 are in the middle between two multiples."""
    gram, cross = [[2**13 - 2**10, 0, 0], [0, 2, 0], [0, 0, 0]], [[3 << 7, -(5 << 7)], [1, 0], [0, 0]]
    gamma, grid_bits = 2**10, 5
    proof = oracle.witness(gram, cross, gamma, grid_bits)
    return {
        "about": (
            "Sections 5 and 10.1: row 0 of both columns is an exact tie, which goes to even. Column 1 is proved, for its "
            "residual is 0. Column 0 holds 1/1026 beside its tie, and no bound proves it."
        ),
        "gram": gram,
        "cross": cross,
        "gamma": gamma,
        "grid_bits": grid_bits,
        "exact": [[str(value) for value in row] for row in oracle.exact_weights(gram, cross, gamma)],
        "weights": oracle.weights(gram, cross, gamma, grid_bits),
        "bits": proof.bits,
        "rests": [[str(value) for value in row] for row in proof.rests],
        "unproved": proof.unproved,
    }


def secret(name: str) -> bytes:
    return hashlib.sha256(b"vectors: " + name.encode()).digest()


SEED = 2**64 - 1  # above 2^53: see section 7 about reading it
CODES, GAMMA, GRID_BITS, WIDTH = 6, 2**10, 40, 3
SAMPLES: list[tuple[list[float], str, str, str | None]] = [
    ([3.0, -4.0, 0.5], "cat", "ada/1", "ada"),
    ([1.0, 1.0, -2.0], "dog", "bob/1", "bob"),
    ([0.1, 0.2, 0.3], "cat", "ada/2", "ada"),
    ([1e-310, 2e-310, 0.0], "dog", "tiny", None),
    ([-7.25, 1e30, 5e29], "ü", "u", None),
]
FORGOTTEN = 2


def store() -> dict[str, Any]:
    """A model on given features: what it learns, gives, publishes, forgets and publishes again."""
    membership, sealing, signing = secret("membership"), secret("receipts"), secret("signing")
    encoder = oracle.random_projection_configuration(CODES, SEED)
    backbone = oracle.precomputed_digest(WIDTH, "vectors")
    settings = oracle.configuration(encoder, GAMMA, GRID_BITS, backbone)
    configuration = oracle.configuration_digest(encoder, GAMMA, GRID_BITS, backbone)

    samples: list[dict[str, Any]] = []
    for row, label, name, owner in SAMPLES:
        q = oracle.quantise(oracle.float32_row(row))
        raw = struct.pack(f"<{len(row)}d", *row)
        texts = (oracle.label_text(name), oracle.label_text(owner), oracle.label_text(label))
        prints = oracle.fingerprint("<f8", [len(row)], raw)
        token = oracle.receipt(sealing, configuration, prints, *texts, q)
        samples.append(
            {
                "features": raw.hex(),
                "label": texts[2],
                "id": texts[0],
                "owner": texts[1],
                "quantised": q,
                "code": oracle.random_projection(q, CODES, SEED),
                "fingerprint": prints.hex(),
                "member": oracle.member_digest(configuration, membership, label, q).hex(),
                "ticket_number": oracle.ticket_number(configuration, membership, texts[0]).hex(),
                "ticket_content": oracle.ticket_content(configuration, membership, texts[2], prints).hex(),
                "receipt": token.hex(),
                "receipt_line": oracle.receipt_line(token, *texts),
                "commitment": oracle.commitment(token),
            }
        )

    empty = {
        "classes": 0,
        "model": oracle.model_digest(configuration, 0, [], []).hex(),
        "samples": 0,
        "statistics": oracle.statistics_digest(oracle.Statistics([], [], [], [])).hex(),
    }
    states: list[dict[str, Any]] = []
    certificates: list[str] = []
    before: dict[str, Any] = empty
    for number, held in ((1, range(len(SAMPLES))), (2, [i for i in range(len(SAMPLES)) if i != FORGOTTEN])):
        kept = [samples[place] for place in held]
        sums = oracle.statistics([sample["code"] for sample in kept], [SAMPLES[place][1] for place in held])
        n = oracle.weights(sums.gram, sums.cross, GAMMA, GRID_BITS)
        after = {
            "classes": len(sums.classes),
            "model": oracle.model_digest(configuration, WIDTH, sums.classes, n).hex(),
            "samples": len(kept),
            "statistics": oracle.statistics_digest(sums).hex(),
        }
        order = [oracle.label_text(label) for label in sums.classes]
        members = sorted((order.index(sample["label"]), bytes.fromhex(sample["member"])) for sample in kept)
        tickets = [bytes.fromhex(s["ticket_number"] + s["ticket_content"] + s["member"]) for s in kept]
        forgotten = [] if number == 1 else [samples[FORGOTTEN]["commitment"]]
        said = {
            "after": after,
            "before": before,
            "commitments": forgotten,
            "configuration": configuration.hex(),
            "error_bound": (2.0 ** -(GRID_BITS + 1)).hex(),
            "forgotten": len(forgotten),
            "learned": len(SAMPLES) if number == 1 else 0,
            "number": number,
            "previous": None if number == 1 else hashlib.sha256(certificates[-1].encode("ascii")).hexdigest(),
            "time": f"2026-01-31T12:00:0{number}Z",
        }
        certificates.append(oracle.signed_certificate(said, signing))
        states.append(
            {
                "held": list(held),
                "gram": sums.gram,
                "cross": sums.cross,
                "weights": [[str(value) for value in row] for row in n],
                "state": after,
                "saved_model": oracle.saved_model(
                    settings, WIDTH, sums, [digest for _, digest in members], tickets, membership
                ).hex(),
                "version": oracle.version_file(settings, WIDTH, sums, GAMMA, GRID_BITS).hex(),
                "certificate": certificates[-1],
            }
        )
        before = after
    return {
        "about": (
            "Sections 1 to 10: five samples are learned and published, sample 2 is forgotten by its receipt, and the rest is "
            "published. Keys are 32 bytes. Receipts are NSR1, certificates of format 1."
        ),
        "keys": {"membership": membership.hex(), "receipts": sealing.hex(), "signing": signing.hex()},
        "backbone": {"digest": backbone, "features": WIDTH, "kind": "precomputed", "name": "vectors"},
        "configuration_text": oracle.canonical_json(settings),
        "configuration_digest": configuration.hex(),
        "samples": samples,
        "forgotten": FORGOTTEN,
        "states": states,
    }


ACTIONS: list[dict[str, Any]] = [
    {
        "action": "learn",
        "key": "app",
        "outcome": "applied",
        "request": "r1",
        "samples": 5,
        "time": "2026-01-31T12:00:01Z",
    },
    {
        "action": "forget",
        "key": "ada",
        "outcome": "applied",
        "request": "r2",
        "samples": 1,
        "time": "2026-01-31T12:00:02Z",
    },
]


def served() -> dict[str, Any]:
    """The samples of `store` in a store behind a service: salts, numbers by owner, a log, certificates of format 2."""
    model = store()
    membership, sealing, signing = (secret(name) for name in ("membership", "receipts", "signing"))
    configuration = bytes.fromhex(model["configuration_digest"])
    samples: list[dict[str, Any]] = []
    for place, known in enumerate(model["samples"]):
        salt = secret(f"salt {place}")[:16]
        id_text = oracle.label_text(SAMPLES[place][2].rpartition("/")[2])
        texts = (id_text, known["owner"], known["label"])
        token = oracle.receipt(
            sealing, configuration, bytes.fromhex(known["fingerprint"]), *texts, known["quantised"], salt
        )
        samples.append(
            {
                "features": known["features"],
                "label": texts[2],
                "id": texts[0],
                "owner": texts[1],
                "salt": salt.hex(),
                "ticket_number": oracle.ticket_number_of_owner(configuration, membership, texts[1], texts[0]).hex(),
                "receipt": token.hex(),
                "receipt_line": oracle.receipt_line(token, *texts),
                "commitment": oracle.commitment(token),
            }
        )
    key = oracle.audit_key(membership)
    lines = oracle.audit_lines(ACTIONS, key)
    certificates: list[str] = []
    for state, line in zip(model["states"], (None, lines[-1]), strict=True):
        said = {
            name: value
            for name, value in json.loads(state["certificate"]).items()
            if name not in ("format", "key", "signature")
        }
        said["audit"] = line and {"head": json.loads(line)["mac"], "lines": json.loads(line)["line"]}
        if certificates:
            said["commitments"] = [samples[FORGOTTEN]["commitment"]]
            said["previous"] = hashlib.sha256(certificates[-1].encode("ascii")).hexdigest()
        certificates.append(oracle.signed_certificate(said, signing))
    return {
        "about": (
            "Sections 7 and 9 to 12: the samples and keys of store.json in a store. Ids are an owner's own, receipts are NSR2 "
            "with the salts given here, and certificates are of format 2. The first was published by a command, the second by "
            "a service with this audit log."
        ),
        "samples": samples,
        "audit": {"key": key.hex(), "lines": lines},
        "certificates": certificates,
    }


def commitments() -> list[bytes]:
    """Commitments, two pairs of which part late."""
    found = [hashlib.sha256(f"vectors: commitment {number}".encode()).digest() for number in range(8)]
    late = [bytes([*found[0][:-1], found[0][-1] ^ 1]), bytes([*found[1][:7], found[1][7] ^ 128, *found[1][8:]])]
    return found + late


def held() -> dict[str, Any]:
    """Sets of commitments, their roots, and proofs of presence and of absence."""
    known = commitments()
    cases: list[dict[str, Any]] = []
    for number, members in enumerate(([], known[:1], known[2:4], known[:6], known[:8] + known[9:], known), 1):
        digest = secret(f"certificate {number}").hex()
        asked = [*known, secret("unknown")]
        proofs = [oracle.held_proof(members, each, number, digest) for each in asked]
        cases.append(
            {
                "commitments": sorted(each.hex() for each in members),
                "root": oracle.held_hash(members).hex(),
                "proofs": [{"proof": text, "shows": oracle.proof_shows(text)} for text in proofs],
            }
        )
    return {
        "about": (
            "Section 10.3: sets of commitments, their roots, and proofs, each a line of a file of proofs. Their certificates "
            "are made up. The proofs in refused do not hold, for the reason given."
        ),
        "cases": cases,
        "refused": [{"why": why, "proof": text} for why, text in refused_proofs(known)],
    }


def refused_proofs(known: list[bytes]) -> list[tuple[str, str]]:
    """Proofs that do not hold, each for one reason."""
    digest = secret("certificate 4").hex()
    good = json.loads(oracle.held_proof(known[:6], known[0], 4, digest))
    absent = json.loads(oracle.held_proof(known[:6], known[8], 4, digest))
    alone = json.loads(oracle.held_proof(known[:1], known[0], 4, digest))
    siblings = good["siblings"]
    other = next(each for each in known if each[0] >> 7 != known[0][0] >> 7)

    def made_up(leaf: bytes, sibling: bytes) -> dict[str, Any]:
        root = oracle.held_climb(leaf, known[0], [sibling]).hex()
        return {**alone, "leaf": leaf.hex(), "root": root, "siblings": [sibling.hex()]}

    changed: list[tuple[str, dict[str, Any]]] = [
        ("a sibling was altered", good | {"siblings": [*siblings[:-1], f"{int(siblings[-1], 16) ^ 1:064x}"]}),
        ("two siblings are swapped", good | {"siblings": [siblings[1], siblings[0], *siblings[2:]]}),
        ("a sibling is missing", good | {"siblings": siblings[1:]}),
        ("it is about another commitment", good | {"commitment": known[1].hex()}),
        ("the leaf is said to be absent", good | {"leaf": None}),
        ("the leaf is another commitment", good | {"leaf": known[1].hex()}),
        ("absence is said to be presence", absent | {"leaf": absent["commitment"]}),
        ("the root is of another version", good | {"root": oracle.held_hash(known).hex()}),
        ("the leaf is not on the path", made_up(other, oracle.held_hash([other]))),
        ("it goes on below a leaf", made_up(known[0], bytes(32))),
        ("there is no certificate 0", good | {"certificate": {"digest": digest, "number": 0}}),
        ("a key is missing", {name: value for name, value in good.items() if name != "leaf"}),
    ]
    texts = [(why, oracle.canonical_json(said) + "\n") for why, said in changed]
    plain = oracle.canonical_json(good)
    return [*texts, ("there is no line feed", plain), ("it is not canonical", plain.replace(":", ": ", 1) + "\n")]


def text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


MADE = {"held.json": held, "labels.json": labels, "served.json": served, "store.json": store, "tie.json": tie}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in MADE.items():
        (FOLDER / name).write_text(text(make()))
