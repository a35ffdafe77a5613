"""The errors of this package, sorted by what the caller can do about them.

    NeverseenError
    ├── InputError (ValueError)             the data cannot be used: correct it and call again
    │   ├── LabelError                      a label has no canonical form
    │   ├── IdTakenError                    an id belongs to a sample that is held, or is given twice
    │   └── AmbiguousError                  several samples fit: say which by id or owner, or use the receipts
    ├── NotLearnedError (LookupError)       the model does not hold the sample or class to forget
    │   └── FeaturesMovedError              it holds the sample, with other features: use the receipt
    ├── ReceiptRejectedError (ValueError)   a receipt is altered, foreign, used up or cut short
    │   └── AlreadyForgottenError           its sample was forgotten, and a certificate says so
    ├── NotPublishedError (LookupError)     no such version or certificate is published yet
    ├── CertificateRejectedError (ValueError)   a certificate, or the model that it describes, is wrong
    ├── ConfigurationError (ValueError)     settings are invalid, changed after learning, or differ between models
    │   ├── NotTrackedError                 a class cannot be forgotten without its samples: forget the samples
    │   └── UnknownKindError                no such encoder, hardware and so on: import the package that has it
    ├── KeyMissingError (RuntimeError)      the membership key is needed and was not given
    ├── FileRejectedError (ValueError)      a saved file is damaged, foreign or from another version
    ├── IllConditionedError (ArithmeticError)   no float64 factor of the system contracts: raise gamma
    ├── LimitError (OverflowError)          more than the integers can hold: split the model
    ├── MissingPackageError (ImportError)   an optional package is needed: install what the message names
    ├── CheckFailedError (AssertionError)   a class of yours breaks its contract (neverseen.checks)
    ├── StoreLockedError (RuntimeError)     another process is writing the store
    ├── StoreDamagedError (RuntimeError)    a file of a store is missing, outdated or altered: restore it
    ├── LedgerError (RuntimeError)          the ledger's database cannot be used
    └── HardwareError (RuntimeError)        an exact product came out wrong: do not trust this machine

If a method of a model raises an error, the model is exactly as it was before. There is one exception: if `Store.learn`
is interrupted when the samples are or may be on disk, its exception has their `receipts`.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import typing
import warnings
from collections.abc import Iterator


def warn_of(message: str) -> None:
    """Warn of a failure after a change was made. It raises nothing, not even under ``-W error``.

    The change stands, and the caller must learn that it was made.
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
    arguments : tuple of str
        Names of the arguments that are wrong, or that help. The command line adds the options of these names.
    """

    code: str = "error"
    arguments: tuple[str, ...] = ()

    def __init__(self, *message: object, arguments: tuple[str, ...] = (), **more: typing.Any) -> None:
        super().__init__(*message, **more)
        self.arguments = arguments


@contextlib.contextmanager
def damaged(refusal: NeverseenError) -> Iterator[None]:
    """Raise `refusal` in place of anything that reading damaged or false content may raise.

    A refusal of the same kind is raised as it is: it knows more. The original error is hidden: it may quote a secret.
    """
    try:
        yield
    except type(refusal):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error):
        raise refusal from None


class InputError(NeverseenError, ValueError):
    """The given samples or labels cannot be used."""

    code = "invalid_request"


class LabelError(InputError, TypeError):
    """A label has no canonical form."""


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
    """The model does not hold the sample or class to forget.

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
    fault : str
        The reason in words, as the rest of a sentence that begins with the receipt: ``"was altered: its seal is
        broken"``. Empty in errors of the client.
    """

    code = "receipt_rejected"
    fault = ""

    def __init__(self, fault: str, row: int, reason: str, receipt: str | None = None) -> None:
        super().__init__(f"{receipt or f'receipt {row}'} {fault}. Nothing was changed")
        self.row = row
        self.reason = reason
        self.fault = fault


class AlreadyForgottenError(ReceiptRejectedError):
    """The sample of a receipt was forgotten already, and a certificate says so. It may have been learned again since.

    Attributes
    ----------
    certificate : int
        Its number.
    """

    code = "already_forgotten"

    def __init__(self, fault: str, row: int, certificate: int) -> None:
        super().__init__(fault, row, "used")
        self.certificate = certificate


class NotPublishedError(NeverseenError, LookupError):
    """No such version or certificate is published."""

    code = "nothing_published"


class CertificateRejectedError(NeverseenError, ValueError):
    """A certificate, or the model that it describes, is wrong.

    Attributes
    ----------
    number : int or None
        Number of the certificate, if it is known.
    undecided : bool
        Whether the check could not be made now, which says nothing against the certificate.
    """

    code = "certificate_rejected"

    def __init__(self, message: str, number: int | None = None, *, undecided: bool = False) -> None:
        super().__init__(message)
        self.number = number
        self.undecided = undecided


class CheckFailedError(NeverseenError, AssertionError):
    """An encoder, a backbone, a hardware or a database fails a check of `neverseen.checks`."""

    code = "check_failed"


class StoreLockedError(NeverseenError, RuntimeError):
    """Another process is writing the store."""

    code = "store_locked"


class StoreDamagedError(NeverseenError, RuntimeError):
    """A file of a store is missing, older than the others, or altered."""

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


class NotTrackedError(ConfigurationError):
    """The model does not keep sums for each class, so it cannot forget a class without its samples."""

    code = "not_tracked"


class UnknownKindError(ConfigurationError):
    """An encoder, a backbone, a hardware or a database has a kind that nobody registered."""

    code = "unknown_kind"


class KeyMissingError(NeverseenError, RuntimeError):
    """The membership key is needed, but the model was loaded without it."""

    code = "key_missing"


class FileRejectedError(NeverseenError, ValueError):
    """A saved file is damaged, foreign, or of a version that this package cannot read."""

    code = "file_rejected"


class IllConditionedError(NeverseenError, ArithmeticError):
    """The system is too ill-conditioned for float64 factors to make progress."""

    code = "ill_conditioned"


class LimitError(NeverseenError, OverflowError):
    """A sum or a weight would not fit its integers."""

    code = "limit_reached"


class MissingPackageError(NeverseenError, ImportError):
    """An optional package is needed, but is not installed or cannot be imported."""

    code = "missing_package"


class HardwareError(NeverseenError, RuntimeError):
    """A product failed its check: the hardware or a numerical library computes wrongly."""

    code = "hardware_failed"
