"""The parts of an open store, for functions that need several of them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from neverseen.errors import ConfigurationError, LedgerError, StoreDamagedError, damaged, warn_of
from neverseen.hardware import Hardware
from neverseen.io.files import identity_of
from neverseen.ledger import Ledger, in_file
from neverseen.proof.keys import Keyring
from neverseen.store.description import Description
from neverseen.store.publications import VERSIONS, Publications, files_in
from neverseen.store.snapshots import files_of
from neverseen.targets import Targets

KEYS, SIGNING_KEY, LOCK, LEDGER, SUMS = "keys.json", "signing.json", "lock", "ledger.sqlite", "sums"
"""Names of files in the folder; `SUMS` is a folder itself."""


class Parts(NamedTuple):
    """The parts of a store. `identity` is that of its folder, and `clock` returns the Unix time in seconds."""

    folder: Path
    identity: tuple[int, int] | None
    description: Description
    ledger: Ledger
    publications: Publications
    hardware: Hardware
    clock: Callable[[], float]

    @classmethod
    def open(cls, folder: Path, description: Description, hardware: Hardware, clock: Callable[[], float]) -> Parts:
        """Open the ledger of a store."""
        identity = identity_of(folder)
        ledger = Ledger(description.ledger or in_file(folder / LEDGER))
        publications = Publications(folder, description, ledger, hardware)
        return cls(folder, identity, description, ledger, publications, hardware, clock)

    def require_place(self) -> None:
        """Raise `LedgerError` if another folder, or none, is where the folder was when it was opened.

        Files written there would belong to another store, or to a copy of this one.
        """
        if identity_of(self.folder) != self.identity:
            raise LedgerError(
                f"{self.folder} is another folder than when it was opened, or is gone: it was moved, deleted or "
                "restored meanwhile, or a link was changed. Nothing was written there. Open the store again"
            )

    @property
    def configuration(self) -> str:
        """The digest of the configuration, in hexadecimal."""
        return self.description.configuration.digest().hex()

    def standing(self) -> tuple[str | None, ...]:
        """Return a value that differs after each change of the ledger, until a seal makes its numbers begin anew."""
        return tuple(map(self.ledger.meta, ("sequence", "snapshot", "published", "writer")))

    def require_own(self, keys: Keyring | None) -> Keyring | None:
        """Return the keys, if given; raise if they are those of another store."""
        if keys is None:
            return None
        noted = self.ledger.meta("key_check")
        if noted is None:
            raise StoreDamagedError(
                f"the ledger of {self.folder} does not say which keys it takes: restore it from a copy"
            )
        if noted != keys.membership.check():
            raise ConfigurationError("the keys are not those that this store was made with")
        return keys

    def tidy(self) -> None:
        """Remove sums and versions that the ledger does not name: they were replaced, or left by a process that died.

        Certificates are never removed, because they are signed.
        """
        wanted = {
            SUMS: files_of(self.folder / SUMS, self.ledger.meta("snapshot") or ""),
            VERSIONS: {self.publications.version_path(self.publications.number).name},
        }
        for name, keep in wanted.items():
            for path in files_in(self.folder / name):
                if path.name not in keep:
                    path.unlink()

    def tidy_or_warn(self) -> None:
        """Do the same, but only warn if a file cannot be removed: the change is made, and `Store.scrub` tries again."""
        try:
            self.tidy()
        except Exception as error:
            why = str(error) or type(error).__name__
            warn_of(f"files in {self.folder} that are no longer needed could not be removed: {why}")

    @property
    def targets(self) -> Targets:
        """What the labels of the store stand for."""
        return self.description.configuration.targets

    def counts(self) -> dict[str, int]:
        """Return the number of held samples of each column of the weights, by the ledger."""
        labels = self.ledger.counts()
        if self.targets.one_hot:
            return labels
        with damaged(
            StoreDamagedError(f"the ledger of {self.folder} counts samples of labels that cannot be: restore it")
        ):
            return self.targets.counted(labels)

    def status(self) -> dict[str, Any]:
        """Return a summary of the store, as JSON values."""
        counts, targets = self.counts(), self.targets
        classes = targets.classes(counts)
        return {
            "backbone": self.description.backbone["name"],
            "bytes": sum(map(_size, self.folder.rglob("*"))),
            "classes": len(classes),
            "configuration": self.configuration,
            "folder": str(self.folder),
            "forgets_to_publish": len(self.ledger.pending()),
            "gamma": self._gamma(),
            "published": self.publications.number,
            "samples": targets.total(counts),
            "samples_by_class": classes,
            "sealed": self.ledger.meta("unsealed") is None,
            "targets": targets.configuration() or {"kind": targets.kind},
        }

    def _gamma(self) -> int | None:
        """Return the ridge strength of the published version; None if the samples choose it and none are published."""
        gamma = self.description.configuration.gamma
        if gamma != "auto":
            return gamma
        return self.publications.newest_version().gamma if self.publications.number else None


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 for a folder, and for a file that another process has just removed."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0
