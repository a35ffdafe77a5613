"""The promise: a store answers, and signs, only on top of what its own key has signed.

The attacker can write to the folder and has no key: he swaps weights, edits the certificate to match, takes the signature
away or signs with a key of his own. Nobody is answered from such a version, and nothing is signed on top of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neverseen import StoreDamagedError, store
from neverseen.errors import KeyMissingError
from neverseen.labels import canonical_json
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof.certificates import Certificate, check_chain, issue
from neverseen.proof.signing import SigningKey
from neverseen.proof.witness import Witness
from neverseen.service.core import Service
from tests import services
from tests.attacks.test_rollback import contents, refused
from tests.store.test_store import LABELS, ROWS, never, new, opened

Attack = Callable[[Path], None]


def certificate_path(folder: Path, number: int = 2) -> Path:
    return folder / "certificates" / f"{number:08d}.json"


def newest(folder: Path) -> Certificate:
    return Certificate.load(certificate_path(folder))


def swap_columns(folder: Path) -> Version:
    """Let the first class have the second one's weights, and the other way round."""
    path = folder / "versions" / "00000002.safetensors"
    version = read_version(path)
    order = [1, 0, *range(2, len(version.classes))]
    rests = np.ascontiguousarray(version.witness.rests[:, order])
    witness = Witness(rests, version.witness.bits, version.witness.unproved)
    weights = np.ascontiguousarray(version.weights[:, order])
    swapped = Version(version.configuration, version.n_features, version.classes, weights, witness)
    write_version(path, swapped)
    return swapped


def swap_and_state_it(folder: Path) -> None:
    certificate = newest(folder)
    after = replace(certificate.after, model=swap_columns(folder).digest())
    certificate_path(folder).write_bytes(replace(certificate, after=after).to_json())


def zero_the_signature(folder: Path) -> None:
    certificate_path(folder).write_bytes(replace(newest(folder), signature="0" * 128).to_json())


def edit_a_count(folder: Path) -> None:
    certificate = newest(folder)
    edited = replace(certificate, after=replace(certificate.after, classes=certificate.after.classes - 1))
    certificate_path(folder).write_bytes(edited.to_json())


def sign_with_another_key(folder: Path) -> None:
    key, found = SigningKey.generate(), newest(folder)
    before = replace(Certificate.load(certificate_path(folder, 1)), key=key.public)
    commitments = [bytes.fromhex(entry) for entry in found.commitments]
    made = issue(
        2,
        found.time,
        found.configuration,
        found.before,
        found.after,
        found.learned,
        found.forgotten,
        commitments,
        found.grid_bits,
        before,
        key,
    )
    certificate_path(folder).write_bytes(made.to_json())


def sign_with_another_key_and_name_it(folder: Path) -> None:
    """The store's description names the key, and nobody signs the description; but the certificate before has the old one."""
    sign_with_another_key(folder)
    about = json.loads((folder / "store.json").read_bytes())
    about["public_key"] = newest(folder).key
    (folder / "store.json").write_bytes(canonical_json(about).encode() + b"\n")


def put_the_first_in_place_of_the_second(folder: Path) -> None:
    shutil.copy(certificate_path(folder, 1), certificate_path(folder))


def edit_the_one_before(folder: Path) -> None:
    first = Certificate.load(certificate_path(folder, 1))
    certificate_path(folder, 1).write_bytes(replace(first, time="2020-01-01T00:00:00Z").to_json())


CERTIFICATE: list[Attack] = [
    swap_and_state_it,
    zero_the_signature,
    edit_a_count,
    sign_with_another_key,
    sign_with_another_key_and_name_it,
    put_the_first_in_place_of_the_second,
    edit_the_one_before,
]


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("key", [None, "", "0" * 63, 5, {}])
def test_the_description_names_no_key(key: object, write: bool, folder: Path) -> None:
    """So anybody's signature would do: the first certificate is signed anew as well."""
    sign_with_another_key(folder)
    about = json.loads((folder / "store.json").read_bytes())
    about["public_key"] = key
    (folder / "store.json").write_bytes(canonical_json(about).encode() + b"\n")
    refused(folder, "store.json is damaged: its field 'public_key'", write)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("attack", CERTIFICATE)
def test_a_certificate_that_the_store_did_not_sign(attack: Attack, write: bool, folder: Path) -> None:
    attack(folder)
    refused(folder, "0000000[12].json (cannot be relied on|holds certificate)", write)


@pytest.mark.parametrize("attack", CERTIFICATE)
def test_it_comes_while_the_store_is_open(attack: Attack, folder: Path) -> None:
    with opened(folder) as made, opened(folder, write=False) as reader:
        made.learn(ROWS[30:32], LABELS[30:32])
        attack(folder)
        before = contents(folder)
        with pytest.raises(StoreDamagedError, match=r"0000000[12].json"):
            made.publish()
        with pytest.raises(StoreDamagedError, match=r"0000000[12].json"):
            made.seal()
        with pytest.raises(StoreDamagedError, match=r"0000000[12].json"):
            reader.predict(ROWS)
        assert contents(folder) == before


def test_weights_are_swapped_and_the_certificate_left_alone(folder: Path) -> None:
    swap_columns(folder)
    refused(folder, "00000002.safetensors is not the version that its certificate states: restore")
    with (
        opened(folder, write=False) as reader,
        pytest.raises(StoreDamagedError, match="is not the version that its certificate states"),
    ):
        reader.predict(ROWS)


def test_a_version_that_is_wrong_can_be_removed_and_published_again(sound: Path, folder: Path) -> None:
    swap_columns(folder)
    path = folder / "versions" / "00000002.safetensors"
    path.unlink()
    with opened(folder) as made:
        with pytest.raises(StoreDamagedError, match="version 2 is missing .* publish again"):
            made.predict(ROWS)
        assert made.publish().number == 2
        assert made.digest() == made.version().digest() == never(list(range(2, 20)))
    assert path.read_bytes() == (sound / "versions" / path.name).read_bytes()


def test_the_signing_key_is_another(folder: Path) -> None:
    (folder / "signing.json").unlink()
    SigningKey.generate().save(folder / "signing.json")
    with opened(folder) as made:
        made.learn(ROWS[30:32], LABELS[30:32])
        before = contents(folder)
        with pytest.raises(StoreDamagedError, match="signing.json is not the key that this store signs with"):
            made.publish()
        assert contents(folder) == before


def test_the_signing_key_is_another_before_the_first_certificate(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        (tmp_path / "s" / "signing.json").unlink()
        SigningKey.generate().save(tmp_path / "s" / "signing.json")
        made.learn(ROWS[:5], LABELS[:5])
        with pytest.raises(StoreDamagedError, match="signing.json is not the key that this store signs with"):
            made.publish()


@pytest.mark.parametrize("way", ["lost", "another"])
def test_a_service_that_cannot_sign_does_not_start(tmp_path: Path, way: str) -> None:
    """It would take forgets that it can never publish nor seal."""
    path = services.new_store(tmp_path / "s") / "signing.json"
    path.unlink()
    if way == "another":
        SigningKey.generate().save(path)
    service = Service(tmp_path / "s", services.QUICK, services.BACKBONE, services.KEYS, hardware="numpy")
    with pytest.raises((KeyMissingError, StoreDamagedError), match="signing.json.* restore it from a copy"):
        service.start()
    store.open(tmp_path / "s", backbone=services.BACKBONE, keys=services.KEYS, hardware="numpy").close()  # it is free


def test_the_store_of_the_tests_is_not_refused(folder: Path) -> None:
    """So that the refusals above are refusals of the attack."""
    with opened(folder, write=False) as reader:
        assert reader.digest() == never(list(range(2, 20)))
    with opened(folder) as made:
        made.learn(ROWS[30:32], LABELS[30:32])
        assert made.publish().number == 3
        check_chain(made.certificates(), made.description.public_key)
