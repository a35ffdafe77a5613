"""`Intake`: where what people hand in, samples or receipts, becomes a `Change`.

Here a sample is decoded, an id is read and a receipt is opened, once each. What comes out goes down to the exact model
as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from neverseen.backbones import Backbone, FeatureCache
from neverseen.backbones.contents import as_list
from neverseen.backbones.reading import Prepared, lose, prepare
from neverseen.errors import (
    ConfigurationError,
    FeaturesMovedError,
    InputError,
    KeyMissingError,
    LabelError,
    NotLearnedError,
    ReceiptRejectedError,
    warn_of,
)
from neverseen.holdings import FORGET, FORGET_CLASS, LEARN, Change, Ticket, owned_number, tickets_of
from neverseen.labels import LabelIndex, from_text, normalise, text
from neverseen.model.exact import Checked, ExactModel
from neverseen.model.targets import label_list
from neverseen.proof.keys import Keyring
from neverseen.proof.receipts import (
    SALT_SIZE,
    TEXT_LIMIT,
    Receipt,
    commitment,
    key_check_of,
    require_cipher,
    seal,
    unseal,
)


class Shown(NamedTuple):
    """A receipt as it was handed in, and what it says."""

    token: bytes
    receipt: Receipt
    seen_at: object = None  # stands for the state in which the model found its sample to be held under it

    def facts(self) -> dict[str, Any]:
        """Return id, label and owner of its sample, as they were given."""
        said = self.receipt
        return {"id": from_text(said.id), "label": from_text(said.label), "owner": from_text(said.owner)}


class Verdict(NamedTuple):
    """What is to be said about one receipt."""

    owner: Any  # as it was learned; None if the receipt cannot be read
    label: Any
    error: ReceiptRejectedError | None  # None: its sample is held
    shown: Shown | None = None  # None if it cannot be read, or is another owner's


class Intake:
    """Makes changes of samples and receipts, for one model.

    Parameters
    ----------
    configuration : bytes
        Digest of the model's configuration.
    keys : Keyring or None
        Without them nothing can be learned or forgotten.
    owned : bool
        Whether ids are an owner's own, and every receipt has a random salt, as in a store. Else what a model gives
        depends on what it holds alone.
    """

    def __init__(self, backbone: Backbone, configuration: bytes, keys: Keyring | None, *, owned: bool) -> None:
        self.backbone = backbone
        self.keys = keys
        self._configuration = configuration
        self._owned = owned

    def require_keys(self) -> Keyring:
        """Return the keys, or say that they are missing."""
        if self.keys is None:
            raise KeyMissingError(
                "this model was loaded without its keys: it can predict, not learn or forget. Use keys="
            )
        return self.keys

    def prepare(self, samples: Any, *, remember: bool) -> Prepared:
        """Return samples with their features taken."""
        listed = samples if isinstance(samples, Prepared) else as_list(samples)
        return prepare(self.backbone, listed, remember=remember)

    # -- changes -----------------------------------------------------------------------------------

    def learning(
        self,
        model: ExactModel,
        samples: Any,
        labels: Any,
        ids: Iterable[Any] | None,
        owners: Iterable[Any] | None,
    ) -> Change:
        """Return the change that learns samples, with a receipt for each. Ids that are taken are refused first.

        A cache of features has the samples once they are learned, and not before.
        """
        listed = samples if isinstance(samples, Prepared) else as_list(samples)
        keys = self.require_keys()
        require_cipher()  # before the network has worked for minutes
        count = len(listed)
        index = _indexed(labels, count)
        names = [index.texts[position] for position in index.positions]
        id_texts = _texts("ids", [secrets.token_urlsafe(12) for _ in range(count)] if ids is None else ids, count)
        owner_texts = _texts("owners", [None] * count if owners is None else owners, count)
        numbered = self.tickets(id_texts, owner_texts, names, [b""] * count)
        seen_at = model.check_new(numbered)  # likewise; `commit` looks again only if the model changed meanwhile
        prepared = prepare(self.backbone, listed, remember=True)
        salts = [self.new_salt() for _ in range(count)]
        about = zip(id_texts, owner_texts, names, prepared.prints, prepared.quantised, salts, strict=True)
        key = keys.current()[0]
        receipts = tuple(seal(Receipt(*parts), key, self._configuration) for parts in about)
        tickets = (
            ticket._replace(commitment=commitment(receipt), salt=salt)
            for ticket, receipt, salt in zip(
                self.tickets(id_texts, owner_texts, names, prepared.prints), receipts, salts, strict=True
            )
        )
        return Change(
            LEARN,
            prepared.quantised,
            index,
            tuple(tickets),
            receipts=receipts,
            prints=tuple(prepared.prints),
            features=prepared.features,
            seen_at=seen_at,
        )

    def forgetting(
        self,
        given: Any,
        labels: Any = None,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: str | None = None,
    ) -> Change:
        """Return the change that forgets samples, given them with their labels, or their receipts, opened or not."""
        if labels is not None:
            return self._forgetting_samples(given, labels, ids, owners, owner)
        for what, values in (("ids", ids), ("owners", owners)):
            if values is not None:
                raise InputError(f"receipts hold their {what}: leave {what} out, or give labels if these are samples")
        shown = given if _all_shown(given) else self.opened([given] if isinstance(given, bytes) else as_list(given))
        quantised = np.empty((0, self.backbone.n_features), np.int8)
        if shown:
            quantised = np.stack([each.receipt.quantised for each in shown])
        index, tickets = self._about(shown)
        tokens = tuple(each.token for each in shown)
        prints = tuple(each.receipt.fingerprint for each in shown)
        states = {each.seen_at for each in shown}
        seen_at = states.pop() if len(states) == 1 and owner is None else None
        return Change(FORGET, quantised, index, tuple(tickets), owner, receipts=tokens, prints=prints, seen_at=seen_at)

    def _forgetting_samples(
        self, given: Any, labels: Any, ids: Iterable[Any] | None, owners: Iterable[Any] | None, owner: str | None
    ) -> Change:
        self.require_keys()
        samples = given if isinstance(given, Prepared) else as_list(given)
        count = len(samples)
        index = _indexed(labels, count, any_label=True)
        names = [index.texts[position] for position in index.positions]
        id_texts = None if ids is None else _texts("ids", ids, count)
        owner_texts = None if owners is None else _texts("owners", owners, count)
        prepared = prepare(self.backbone, samples, remember=False)
        prints = tuple(prepared.prints)
        tickets = tuple(self.tickets(id_texts or [""] * count, owner_texts, names, prints))
        found_by = tickets if id_texts or owner_texts else None
        contents = tuple(ticket.content for ticket in tickets)
        return Change(FORGET, prepared.quantised, index, found_by, owner, prints=prints, contents=contents)

    def forgetting_class(self, label: Any) -> Change:
        """Return the change that forgets a class."""
        return Change(FORGET_CLASS, name=text(normalise(label)))

    def new_salt(self) -> bytes:
        """Return the salt of a new receipt; in memory there is none."""
        return secrets.token_bytes(SALT_SIZE) if self._owned else b""

    # -- receipts ----------------------------------------------------------------------------------

    def opened(self, tokens: Sequence[Any]) -> list[Shown]:
        """Return receipts with what they say, or raise `ReceiptRejectedError`."""
        keys = self.require_keys()
        for row, token in enumerate(tokens):
            if not isinstance(token, bytes):
                raise InputError(
                    f"receipts are bytes; row {row} is of type {type(token).__name__}. To forget samples, give their "
                    "labels too: forget(samples, labels)"
                )
        return [
            Shown(token, unseal(token, row, keys.receipts, self._configuration)) for row, token in enumerate(tokens)
        ]

    def verdicts(self, model: ExactModel, tokens: Sequence[bytes], owners: Sequence[str | None]) -> list[Verdict]:
        """Return what is to be said about each receipt by itself, or about its being listed again.

        One of somebody else is refused as one that cannot be read is, and nothing is looked up for it: how long that
        takes does not tell what became of its sample.
        """
        keys = self.require_keys()
        found: list[Verdict | None] = [None] * len(tokens)
        shown: dict[int, Shown] = {}
        for row, (token, owner) in enumerate(zip(tokens, owners, strict=True)):
            try:
                receipt = unseal(token, row, keys.receipts, self._configuration)
                if owner not in (None, receipt.owner):
                    raise ReceiptRejectedError(f"receipt {row} is another owner's. Nothing was changed", row, "owner")
                shown[row] = Shown(token, receipt)
            except ReceiptRejectedError as error:
                found[row] = Verdict(None, None, error)
        change = self.forgetting(list(shown.values()))
        seen: set[bytes] = set()
        stand, state = model.standing(change)
        for (row, each), ticket, stands in zip(shown.items(), change.tickets or (), stand, strict=True):
            refusal = _used(row) if not stands else _repeated(row) if ticket.number in seen else None
            seen.add(ticket.number)
            about = each.facts()
            checked = each._replace(seen_at=state if stands else None)
            found[row] = Verdict(about["owner"], about["label"], refusal, checked)
        return [each for each in found if each is not None]

    def tickets(
        self, ids: Sequence[str], owners: Sequence[str] | None, names: Iterable[str], prints: Iterable[bytes]
    ) -> list[Ticket]:
        """Return the ticket of each sample; without its number, where that takes an owner or an id not known."""
        key = self.require_keys().membership
        tickets = tickets_of(self._configuration, key, ids, names, prints)
        if not self._owned:
            return tickets
        if owners is None:
            return [ticket._replace(number=b"", owner="") for ticket in tickets]
        return [
            ticket._replace(
                number=owned_number(self._configuration, key, owner, ticket.id) if ticket.id else b"", owner=owner
            )
            for ticket, owner in zip(tickets, owners, strict=True)
        ]

    def _about(self, shown: Sequence[Shown]) -> tuple[LabelIndex, list[Ticket]]:
        """Return labels and tickets of what receipts are about."""
        receipts = [each.receipt for each in shown]
        tickets = self.tickets(
            [receipt.id for receipt in receipts],
            [receipt.owner for receipt in receipts],
            [receipt.label for receipt in receipts],
            [receipt.fingerprint for receipt in receipts],
        )
        return LabelIndex([from_text(receipt.label) for receipt in receipts]), [
            ticket._replace(commitment=commitment(each.token)) for ticket, each in zip(tickets, shown, strict=True)
        ]

    # -- checking and committing -------------------------------------------------------------------

    def check(self, model: ExactModel, change: Change) -> Checked:
        """Return a change that a model may make, or raise why not, in the words of what was handed in."""
        if change.kind == FORGET and change.receipts:
            seen: set[bytes] = set()
            for row, ticket in enumerate(change.tickets or ()):
                if ticket.number in seen:
                    raise _repeated(row)
                seen.add(ticket.number)
        try:
            return model.check(change)
        except NotLearnedError as error:
            if change.kind == FORGET and change.receipts:
                raise (_used(error.rows[0]) if error.rows else error) from None
            if change.kind != FORGET or change.owner is not None:  # an owner must not learn of what others hold
                raise
            rows = model.moved(change, error.rows)
            if not rows:
                raise
            raise FeaturesMovedError(
                f"the model learned this very sample (row {rows[0]}; {len(rows)} of {len(change)} in all), but "
                "the backbone now makes other features of it: another machine, library or setting rounds "
                "differently. Forget it with its receipt. Nothing was changed",
                rows,
            ) from error

    def commit(self, model: ExactModel, change: Change) -> None:
        """Check a change and make it. A cache of features loses what goes before, and keeps what came after."""
        with model.locked():
            checked = self.check(model, change)
            if change.kind == LEARN:
                self._require_current_key(change)
            else:
                lose(self.backbone, self._prints_that_go(model, checked))
            model.commit(checked)
            if change.features is not None and isinstance(self.backbone, FeatureCache):  # as `prepare` found
                try:
                    self.backbone.remember(change.prints, change.features)
                except Exception as error:  # the samples are learned
                    warn_of(f"{self.backbone.name} could not keep features: {str(error) or type(error).__name__}")

    def _require_current_key(self, change: Change) -> None:
        """Raise unless the receipts can still be opened: their key may have been dropped since they were sealed."""
        sealed = {key_check_of(token) for token in change.receipts}
        if sealed and not sealed <= {key.check() for key in self.require_keys().current()}:
            raise ConfigurationError(
                "the key that sealed these receipts has been dropped meanwhile, so that nobody could open them: learn "
                "the samples again. Nothing was changed"
            )

    def _prints_that_go(self, model: ExactModel, checked: Checked) -> Sequence[bytes] | None:
        """Return the fingerprints that a cache must lose as samples go; None for all, where they cannot be known.

        A sample is found by its quantised features. One with other content can have the same, and what was learned is
        in the cache under a fingerprint that nobody has now.
        """
        change, numbers = checked.decision.change, checked.decision.numbers
        if change.kind == FORGET_CLASS:
            return None
        if change.contents and isinstance(self.backbone, FeatureCache):
            held = model.holdings.by_numbers(numbers)
            if not {held[number].content for number in numbers} <= set(change.contents):
                return None
        return change.prints


def _all_shown(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, Shown) for each in given)


def _repeated(row: int) -> ReceiptRejectedError:
    return ReceiptRejectedError(f"receipt {row} is listed twice in one request. Nothing was changed", row, "repeated")


def _used(row: int) -> ReceiptRejectedError:
    return ReceiptRejectedError(
        f"receipt {row} was used already, or on another copy of this model: its sample is not held. "
        "Nothing was changed",
        row,
        "used",
    )


def _indexed(labels: Any, count: int, any_label: bool = False) -> LabelIndex:
    """Return labels as an index, one for each sample."""
    if labels is None or isinstance(labels, str | bytes | dict | set):
        raise InputError(f"labels must be a sequence, one label for each sample; got {type(labels).__name__}")
    listed = labels if hasattr(labels, "__array__") or isinstance(labels, list | tuple) else list(labels)
    try:
        index = LabelIndex(label_list(listed, any_label))
    except LabelError:
        raise
    except ValueError as error:
        raise InputError(f"labels cannot be used: {error}") from error
    if len(index) != count:
        raise InputError(f"there are {count} samples and {len(index)} labels: give one label for each sample")
    _require_short("labels", index.texts)
    return index


def _texts(what: str, values: Iterable[Any], count: int) -> list[str]:
    """Return ids or owners as canonical texts, one for each sample."""
    if isinstance(values, str | bytes):
        raise InputError(f"{what} must be a sequence with one value for each sample; got one {type(values).__name__}")
    texts = [text(normalise(value)) for value in values]
    if len(texts) != count:
        raise InputError(f"there are {count} samples and {len(texts)} {what}: give one for each sample")
    _require_short(what, texts)
    return texts


def _require_short(what: str, texts: Iterable[str]) -> None:
    longest = max(map(len, texts), default=0)  # canonical texts are ASCII: a letter is a byte
    if longest > TEXT_LIMIT:
        raise InputError(f"one of the {what} is {longest} bytes long in its canonical form; at most {TEXT_LIMIT} fit")
