"""The publications of a store: certificates, which are never removed, and the newest version. All are checked.

Anyone with write access can put files into a folder, and a folder may be assembled from different copies. So nothing is
trusted because it exists: a certificate counts only if its signature, its number and its link to the previous one are
right, and a version only if its certificate states its digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neverseen.errors import CertificateRejectedError, FileRejectedError, NotPublishedError, StoreDamagedError, damaged
from neverseen.hardware import Hardware
from neverseen.io.files import create_file
from neverseen.labels import parse_json
from neverseen.ledger import Ledger
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof.certificates import AuditHead, Certificate, check_next, check_signature
from neverseen.proof.statements import class_count
from neverseen.store.description import NAME, Description

VERSIONS, CERTIFICATES = "versions", "certificates"
NEWEST = "newest"
"""Key of a note in the ledger: number and digest of the newest certificate."""
AUDIT = "audit"
"""Key of a note in the ledger: the head of a service's audit log, as canonical JSON."""
_NAME = re.compile(r"([0-9]{8}|[1-9][0-9]{8,15})\.json", re.ASCII)
_UNNAMED = re.compile(r"\.[0-9]{8,16}\.json\.[a-z0-9_]{8}", re.ASCII)  # a certificate while it is written
_REMEDY = (
    "Put back the newest ledger there is; a file ledger.sqlite-wal beside it belongs to it. Do not remove "
    "certificates: they are signed, and others may have them. 'Backups' in docs/service.md says more"
)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder of a store, which is created if a copy left it out. Folders in it are ignored."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return [path for path in folder.iterdir() if path.is_symlink() or not path.is_dir()]


def note_of(certificate: Certificate) -> str:
    """Return the note in the ledger about the newest certificate."""
    return f"{certificate.number} {certificate.digest()}"


class Publications:
    """The certificates and versions in a store's folder. The ledger names the newest."""

    def __init__(self, folder: Path, description: Description, ledger: Ledger, hardware: Hardware) -> None:
        self._folder, self._description = folder, description
        self._ledger, self._hardware = ledger, hardware
        self._read: tuple[int, Version] | None = None

    @property
    def number(self) -> int:
        """The number of the version that readers see; 0 if there is none."""
        return self.noted_number("published")

    @property
    def sealed_number(self) -> int:
        """The number of the certificate up to which the disk is cleared of forgotten samples; 0 if there is none."""
        return self.noted_number("sealed")

    def noted_number(self, key: str) -> int:
        """Return the number noted in the ledger under a key, or 0."""
        noted = self._ledger.meta(key) or "0"
        if not (noted.isascii() and noted.isdecimal() and len(noted) <= 16):
            raise StoreDamagedError(f"the ledger of {self._folder} is damaged: its note {key!r} is no number")
        return int(noted)

    def unpublished(self) -> int:
        """Return by how many samples the store differs from the published version; see `Store.unpublished`."""
        learned, held, number = self._ledger.learned_since_certificate()
        return learned + self._shown(number) - (held - learned)

    def shows_forgotten(self) -> bool:
        """Return whether the published version has samples that are no longer held; nobody can tell which."""
        if not self._ledger.pending():
            return False
        learned, held, number = self._ledger.learned_since_certificate()
        return self._shown(number) > held - learned

    def _shown(self, number: int) -> int:
        """Return the number of samples of a version."""
        return self.checked(number).after.samples if number else 0

    @property
    def audit_head(self) -> AuditHead | None:
        """The head that a service's audit log must have reached, according to the ledger and the newest certificate."""
        noted, number = self._ledger.meta(AUDIT), self.number
        with damaged(StoreDamagedError(f"the ledger of {self._folder} is damaged: its note {AUDIT!r} is invalid")):
            found = [] if noted is None else [AuditHead(**parse_json(noted))]
            if not all(head.is_sound() for head in found):
                raise ValueError
        certified = self.certificate(number).audit if number else None
        return max(found + ([] if certified is None else [certified]), key=lambda head: head.lines, default=None)

    def certificate_path(self, number: int) -> Path:
        """Return the path of a certificate."""
        return self._folder / CERTIFICATES / f"{number:08d}.json"

    def version_path(self, number: int) -> Path:
        """Return the path of a version."""
        return self._folder / VERSIONS / f"{number:08d}.safetensors"

    # -- certificates ------------------------------------------------------------------------------

    def certificate(self, number: int) -> Certificate:
        """Return the certificate in a file. Its signature is not checked."""
        path = self.certificate_path(number)
        if not path.is_file():
            raise StoreDamagedError(f"{path} is missing: restore it from a copy")
        found = Certificate.load(path)
        if found.number != number:
            raise StoreDamagedError(f"{path} holds certificate {found.number}: restore it from a copy")
        return found

    def certificates(self) -> list[Certificate]:
        """Return all published certificates, oldest first."""
        return [self.certificate(number) for number in range(1, self.number + 1)]

    def checked(self, number: int) -> Certificate:
        """Return a certificate; raise unless this store signed it and it follows the previous one."""
        configuration = self._description.configuration
        with self._named(number - 1):
            before = None if number == 1 else self.certificate(number - 1)
        with self._named(number):
            found = self.certificate(number)
            check_next(found, before, self._description.public_key)
        if found.configuration != configuration.digest().hex() or found.grid_bits != configuration.grid_bits:
            raise StoreDamagedError(
                f"{self.certificate_path(number)} is of a model with other settings: restore it from a copy"
            )
        noted = self._ledger.meta(NEWEST) or ""
        if noted.startswith(f"{number} ") and noted != note_of(found):
            raise StoreDamagedError(
                f"{self.certificate_path(number)} is not the certificate that was published under its number: restore "
                "that one from a copy"
            )
        return found

    def ahead(self, published: int) -> Certificate | None:
        """Return the certificate that a process may have left ahead of the ledger when it died, or None.

        Raises `StoreDamagedError` if a certificate is missing, if the newest is not valid, or if certificates are newer
        than the ledger.
        """
        folder = self._folder / CERTIFICATES
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        found = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        missing = next((number for number in range(1, published + 1) if number not in found), None)
        if missing is not None:
            raise StoreDamagedError(
                f"{self.certificate_path(missing)} is missing, of {published} published: restore it from a copy"
            )
        if published:
            self.checked(published)
        newest = max(found, default=0)
        if newest > published + 1:
            with self._named(newest):
                check_signature(self.certificate(newest), self._description.public_key)
            raise self.older(published, newest, f"that one can only follow certificate {newest - 1}")
        return self.checked(newest) if newest == published + 1 else None

    @contextmanager
    def _named(self, number: int) -> Iterator[None]:
        """Turn the rejection of a certificate into an error that names its file and the remedy."""
        try:
            yield
        except CertificateRejectedError as error:
            raise StoreDamagedError(
                f"{self.certificate_path(number)} cannot be relied on ({error}): restore it from a copy, or move it "
                "out of the folder if it never was this store's"
            ) from error

    def older(self, published: int, newest: int, why: str) -> StoreDamagedError:
        """Return the error for a ledger that is older than a certificate."""
        return StoreDamagedError(
            f"the ledger of {self._folder} is older than its certificates: it has {published}, and certificate "
            f"{newest} is in the folder ({why}). To go on would bring back what was forgotten since, and sign another "
            f"certificate {published + 1}. Nothing was changed. {_REMEDY}"
        )

    def left_behind(self, number: int) -> StoreDamagedError:
        """Return the error for a certificate that a failed publication of version 0.1.0 left behind."""
        path = self.certificate_path(number)
        return StoreDamagedError(
            f"{path} was signed by a publication of version 0.1.0 that failed: the ledger does not know it, and has "
            "changed since. Nothing was changed. All that this certificate lists is still noted as forgotten. Version "
            f"0.1.0 did not show it to anybody. If you have not given the file to anybody either, move {path.name} out "
            "of the folder and keep it; the store then opens, and the next publication has that number. If somebody "
            "has it, make a new store. 'Backups' in docs/service.md says more"
        )

    def add(self, certificate: Certificate) -> None:
        """Write a new certificate. An existing one is never replaced."""
        create_file(self.certificate_path(certificate.number), [certificate.to_json()])

    def remove_unnamed(self) -> None:
        """Remove partial certificates of a process that died. They never had their final names, and nobody saw them.

        They are signed, so they must not stay beside the certificate with the same number.
        """
        for path in files_in(self._folder / CERTIFICATES):
            if _UNNAMED.fullmatch(path.name):
                path.unlink()

    # -- versions ----------------------------------------------------------------------------------

    def newest_version(self) -> Version:
        """Return the published version."""
        number = self.number
        if number == 0:
            raise NotPublishedError(
                f"nothing is published in {self._folder} yet: publish it, or wait for the process that writes it"
            )
        for _ in range(10):  # another process may publish, and remove this version, between the two lines
            read = self._read  # another thread may put an older one there meanwhile
            if read is not None and read[0] == number:
                return read[1]
            try:
                self._read = number, self._version(number)
            except FileNotFoundError:
                if number == self.number:
                    raise StoreDamagedError(
                        f"version {number} is missing from {self._folder / VERSIONS}: restore it from a copy, or "
                        "publish again"
                    ) from None
                number = self.number
        raise StoreDamagedError(
            f"the versions in {self._folder / VERSIONS} changed while they were being read: try again"
        )

    def _version(self, number: int) -> Version:
        """Return a version; raise unless its certificate states it, or `FileNotFoundError` if it is missing."""
        path = self.version_path(number)
        stated = self.checked(number).after
        remedy = "restore it from a copy, or remove it and publish again"
        try:
            version = read_version(path, self._hardware)
        except FileRejectedError as error:
            raise StoreDamagedError(f"{error}: {remedy}") from error
        if (version.digest(), class_count(version.classes, stated.samples)) != (stated.model, stated.classes):
            raise StoreDamagedError(f"{path} is not the version that its certificate states: {remedy}")
        if version.classes and version.n_features != self._description.n_features:
            raise StoreDamagedError(
                f"{self._folder / NAME} says that samples have {self._description.n_features} features, and version "
                f"{number} has {version.n_features}: restore it from a copy"
            )
        return version

    def write_version(self, number: int, version: Version) -> None:
        """Write a version. Its folder is created if a copy left it out."""
        path = self.version_path(number)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_version(path, version)
