"""The errors of this package, sorted by what the caller can do about them.

    NeverseenError
    ├── InputError (ValueError)             the data cannot be used: correct it and call again
    │   ├── LabelError                      a label has no canonical form
    │   ├── IdTakenError                    an id belongs to a sample that is held, or is given twice
    │   └── AmbiguousError                  several samples fit: say which by id or owner, or use the receipts
    ├── NotLearnedError (LookupError)       asked to forget what the model does not hold
    │   └── FeaturesMovedError              it holds the sample, with other features: use the receipt
    ├── ReceiptRejectedError (ValueError)   a receipt is altered, foreign, used up or cut short
    │   └── AlreadyForgottenError           its sample was forgotten, and a certificate says so
    ├── NotPublishedError (LookupError)     no such version or certificate is published yet
    ├── CertificateRejectedError (ValueError)   a certificate, or what it vouches for, is not what it should be
    ├── ConfigurationError (ValueError)     settings are invalid, changed after learning, or differ between models
    │   └── UnknownKindError                no such encoder, hardware and so on: import the package that has it
    ├── KeyMissingError (RuntimeError)      the membership key is needed and was not given
    ├── FileRejectedError (ValueError)      a saved file is damaged, foreign or from another version
    ├── IllConditionedError (ArithmeticError)   no float64 factor of the system contracts: raise gamma
    ├── LimitError (OverflowError)          more than the integers can hold: split the model
    ├── MissingPackageError (ImportError)   an optional package is needed: install what the message names
    ├── CheckFailedError (AssertionError)   a class of yours does not do what its contract asks (neverseen.checks)
    ├── StoreLockedError (RuntimeError)     another process is writing the store
    ├── StoreDamagedError (RuntimeError)    a file of a store is missing, older or not what was written: restore it
    ├── LedgerError (RuntimeError)          the ledger's database cannot be used
    └── HardwareError (RuntimeError)        an exact product came out wrong: do not trust this machine

If a method of a model raises an error, the model is exactly as it was before. The one exception: if `Store.learn` is
interrupted when the samples are or may be on disk, what it raises has their `receipts`.
"""

from __future__ import annotations

import contextlib
import logging
import warnings


def warn_of(message: str) -> None:
    """Warn of what failed after a change was made. It raises nothing, not even under ``-W error``.

    The change stands, and whoever made it must hear that it was made.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    except Exception:  # the warning itself, or that of a standard error which is closed
        with contextlib.suppress(Exception):
            logging.getLogger("neverseen").warning(message)


class NeverseenError(Exception):
    """Base of every error raised on purpose by this package.

    Attributes
    ----------
    code : str
        What happened, for programs. The service and its client use the same code for the same failure.
    """

    code: str = "error"


class InputError(NeverseenError, ValueError):
    """The samples or labels handed in cannot be used."""

    code = "invalid_request"


class LabelError(InputError, TypeError):
    """A label is of a kind that has no canonical form."""


class _RowError(InputError):
    """One row of a request cannot be used.

    Attributes
    ----------
    row : int
        Its position in the request.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class IdTakenError(_RowError):
    """The id of `row` belongs to a sample that is held, or is given twice.

    Attributes
    ----------
    first : int or None
        The row before it that has the same id; None if a sample that is held has it.
    """

    code = "id_taken"

    def __init__(self, message: str, row: int, first: int | None = None) -> None:
        super().__init__(message, row)
        self.first = first


class AmbiguousError(_RowError):
    """Several held samples match `row`, and the request does not say which one to forget."""

    code = "ambiguous"


class NotLearnedError(NeverseenError, LookupError):
    """The model does not hold what it was asked to forget.

    Never learned and already forgotten are the same state, so they give the same error.

    Attributes
    ----------
    rows : tuple of int
        Positions, in the request, of the samples the model does not hold. Empty for a class.
    """

    code = "not_learned"

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class FeaturesMovedError(NotLearnedError):
    """The sample was learned, but the backbone now gives other features for it: use its receipt."""

    code = "features_moved"


class ReceiptRejectedError(NeverseenError, ValueError):
    """A receipt cannot be honoured.

    Attributes
    ----------
    row : int
        Position of the receipt in the request.
    reason : str
        ``"foreign"``: not a receipt; ``"truncated"``; ``"altered"``; ``"key"``: sealed under a key the model does not
        have; ``"model"``: given by another model; ``"used"``: no sample is held under it any more; ``"repeated"``:
        listed twice in one request; ``"owner"``: another owner's, where only one owner's were asked for.
    """

    code = "receipt_rejected"

    def __init__(self, message: str, row: int, reason: str) -> None:
        super().__init__(message)
        self.row = row
        self.reason = reason


class AlreadyForgottenError(ReceiptRejectedError):
    """The sample of a receipt was forgotten already, and a certificate says so. It may have been learned again since.

    Attributes
    ----------
    certificate : int
        Its number.
    """

    code = "already_forgotten"

    def __init__(self, message: str, row: int, certificate: int) -> None:
        super().__init__(message, row, "used")
        self.certificate = certificate


class NotPublishedError(NeverseenError, LookupError):
    """No such version or certificate is published."""

    code = "nothing_published"


class CertificateRejectedError(NeverseenError, ValueError):
    """A certificate, or what it vouches for, is not what it should be.

    Attributes
    ----------
    number : int or None
        Number of the certificate, if it is known.
    """

    code = "certificate_rejected"

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class CheckFailedError(NeverseenError, AssertionError):
    """An encoder, a backbone, a hardware or a database fails a check of `neverseen.checks`."""

    code = "check_failed"


class StoreLockedError(NeverseenError, RuntimeError):
    """Another process is writing the store."""

    code = "store_locked"


class StoreDamagedError(NeverseenError, RuntimeError):
    """A file of a store is missing, older than the others, or not what was written."""

    code = "store_damaged"


class LedgerError(NeverseenError, RuntimeError):
    """The database of a ledger cannot be used.

    Attributes
    ----------
    uncertain : bool
        Whether a commit failed, so that the change may or may not have been made: open the store again to see.
    being_read : bool
        Whether it only has to wait for a reader: nothing failed, and you can try again.
    """

    code = "ledger_failed"

    def __init__(self, message: str, uncertain: bool = False, being_read: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.being_read = being_read


class ConfigurationError(NeverseenError, ValueError):
    """A setting is invalid, was changed after learning, or differs between two models."""

    code = "invalid_configuration"


class UnknownKindError(ConfigurationError):
    """An encoder, a backbone, a hardware or a database is of a kind that nobody registered."""

    code = "unknown_kind"


class KeyMissingError(NeverseenError, RuntimeError):
    """The membership key is needed for this and the model was loaded without it."""

    code = "key_missing"


class FileRejectedError(NeverseenError, ValueError):
    """A saved file is damaged, foreign, or of a version this package does not read."""

    code = "file_rejected"


class IllConditionedError(NeverseenError, ArithmeticError):
    """The system is too ill-conditioned for float64 factors to make progress."""

    code = "ill_conditioned"


class LimitError(NeverseenError, OverflowError):
    """A sum or a weight would not fit its integers."""

    code = "limit_reached"


class MissingPackageError(NeverseenError, ImportError):
    """An optional package is needed for this and is not installed, or does not import."""

    code = "missing_package"


class HardwareError(NeverseenError, RuntimeError):
    """A product failed its check: the hardware or a numerical library computes wrongly."""

    code = "hardware_failed"
