"""`Intake`: turns the samples or receipts of a request into a `Change`.

It decodes each sample, reads each id and opens each receipt once, and makes the ticket and the member digest of each
sample. The change goes to the exact model as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from neverseen.backbones import Backbone, FeatureCache
from neverseen.backbones.contents import as_list
from neverseen.backbones.reading import Prepared, lose, prepare, require_own, to_predict
from neverseen.errors import (
    ConfigurationError,
    FeaturesMovedError,
    InputError,
    KeyMissingError,
    NotLearnedError,
    ReceiptRejectedError,
    warn_of,
)
from neverseen.holdings import (
    FORGET,
    FORGET_CLASS,
    LEARN,
    Change,
    Member,
    Origin,
    Ticket,
    content_digest,
    member_digests,
    owned_number,
    ticket_number,
)
from neverseen.labels import LabelIndex, from_private_text, from_text, normalise, text
from neverseen.model.configuration import Configuration
from neverseen.model.exact import Checked, ExactModel
from neverseen.model.grouping import as_given, indexed, ordered, parted, require_short
from neverseen.proof.keys import Keyring
from neverseen.proof.receipts import (
    SALT_SIZE,
    Receipt,
    commitment,
    key_check_of,
    require_cipher,
    seal,
    unseal,
)
from neverseen.targets import Rows


class Shown(NamedTuple):
    """A receipt as it was given, its content, and the ticket of its sample."""

    receipt: bytes
    opened: Receipt
    ticket: Ticket
    member: Member
    origin: Origin  # of ticket and member
    seen_at: object = None  # stands for the state in which the model found its sample to be held under it

    def facts(self) -> dict[str, Any]:
        """Return id, label and owner of its sample, as they were given."""
        said = self.opened
        id_, owner = from_private_text(said.id), from_private_text(said.owner)
        return {"id": id_, "label": from_text(said.label), "owner": owner}


class Verdict(NamedTuple):
    """The answer about one receipt."""

    owner: Any  # as it was learned; None if the receipt cannot be read
    label: Any
    error: ReceiptRejectedError | None  # None: its sample is held
    shown: Shown | None = None  # None if it cannot be read, or is another owner's


class Intake:
    """Makes changes from samples and receipts, for one model.

    Parameters
    ----------
    configuration : Configuration
        That of the model.
    keys : Keyring or None
        Without them, nothing can be learned or forgotten.
    owned : bool
        Whether each owner has their own ids, and every receipt a random salt, as in a store. Otherwise receipts depend
        only on the samples.
    """

    def __init__(self, backbone: Backbone, configuration: Configuration, keys: Keyring | None, *, owned: bool) -> None:
        self.backbone = backbone
        self.keys = keys
        self._configuration, self._targets = configuration.digest(), configuration.targets
        self._encoder, self._network = configuration.encoder, configuration.backbone
        self._owned = owned

    def require_keys(self) -> Keyring:
        """Return the keys, or raise `KeyMissingError`."""
        if self.keys is None:
            raise KeyMissingError(
                "this model was loaded without its keys: it can predict, not learn or forget. Use keys="
            )
        return self.keys

    def origin(self) -> Origin:
        """Return the origin of tickets and member digests."""
        return Origin(self._configuration, self.require_keys().membership)

    def prepare(self, samples: Any, labels: Any = None, *, remember: bool) -> Prepared:
        """Return samples with their features and, if labels are given, with their member digests."""
        given = as_given(require_own(samples, self._network), self._targets, self.backbone.n_features)
        prepared = replace(prepare(self.backbone, self._encoder, given, remember=remember), backbone=self._network)
        if labels is None:
            return prepared
        index, order = indexed(labels, prepared, self._targets, any_label=True)
        return replace(prepared, members=self._members(ordered(prepared, order), index), origin=self.origin())

    def _members(self, prepared: Prepared, index: LabelIndex) -> tuple[Member, ...]:
        """Return the class and the member digest of each sample, reused from its preparation if they fit."""
        origin = self.origin()
        if prepared.origin == origin and [index.texts[each] for each in index.positions] == [
            name for name, _ in prepared.members
        ]:
            return prepared.members
        return tuple(member_digests(*origin, parted(prepared.quantised, prepared.lengths), index))

    def read(self, samples: Any) -> np.ndarray:
        """Return the quantised features of samples to predict."""
        return to_predict(self.backbone, self._encoder, require_own(samples, self._network)).quantised

    # -- changes -----------------------------------------------------------------------------------

    def learning(
        self,
        model: ExactModel,
        samples: Any,
        labels: Any,
        ids: Iterable[Any] | None,
        owners: Iterable[Any] | None,
    ) -> Change:
        """Return the change that learns samples, with a receipt for each. Ids in use are refused first.

        A cache of features keeps the samples only once they are learned.
        """
        listed = as_given(require_own(samples, self._network), self._targets, self.backbone.n_features)
        keys = self.require_keys()
        require_cipher()  # before the network has worked for minutes
        count = len(listed)
        index, order = indexed(labels, listed, self._targets)
        id_texts = _texts("ids", [secrets.token_urlsafe(12) for _ in range(count)] if ids is None else ids, count)
        owner_texts = _texts("owners", [None] * count if owners is None else owners, count)
        numbers = self.numbers(id_texts, owner_texts)
        seen_at = model.check_new(numbers)  # likewise; `commit` looks again only if the model changed meanwhile
        prepared = ordered(prepare(self.backbone, self._encoder, listed, remember=True), order)
        members = self._members(prepared, index)
        names = [name for name, _ in members]
        salts = [self.new_salt() for _ in range(count)]
        features = parted(prepared.quantised, prepared.lengths)
        about = zip(id_texts, owner_texts, names, prepared.fingerprints, features, salts, strict=True)
        key = keys.current()[0]
        receipts = [seal(Receipt(*parts), key, self._configuration) for parts in about]
        contents = self.contents(prepared.fingerprints, names)
        tickets = map(Ticket, numbers, contents, id_texts, owner_texts, map(commitment, receipts), salts)
        return Change(
            LEARN,
            prepared.quantised,
            index,
            tuple(tickets),
            members,
            self.origin(),
            receipts=tuple(receipts),
            fingerprints=tuple(prepared.fingerprints),
            features=prepared.features,
            seen_at=seen_at,
            lengths=prepared.lengths,
        )

    def forgetting(
        self,
        given: Any,
        labels: Any = None,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: str | None = None,
    ) -> Change:
        """Return the change that forgets samples, given with their labels, or by receipts, opened or not."""
        if labels is not None:
            return self._forgetting_samples(given, labels, ids, owners, owner)
        for what, values in (("ids", ids), ("owners", owners)):
            if values is not None:
                raise InputError(f"receipts hold their {what}: leave {what} out, or give labels if these are samples")
        shown = given if _all_shown(given) else self.opened([given] if isinstance(given, bytes) else as_list(given))
        origin = self.origin()
        if any(each.origin != origin for each in shown):
            raise ConfigurationError("these receipts were opened by another model: give the receipts themselves")
        width = self.backbone.n_features
        rows = [each.opened.quantised.reshape(-1, width) for each in shown]
        states = {each.seen_at for each in shown}
        return Change(
            FORGET,
            np.concatenate([np.empty((0, width), np.int8), *rows]),
            LabelIndex([from_text(each.opened.label) for each in shown]),
            tuple(each.ticket for each in shown),
            tuple(each.member for each in shown),
            origin,
            owner,
            receipts=tuple(each.receipt for each in shown),
            fingerprints=tuple(each.opened.fingerprint for each in shown),
            seen_at=states.pop() if len(states) == 1 and owner is None else None,
            lengths=tuple(map(len, rows)) if isinstance(self._targets, Rows) else None,
        )

    def _forgetting_samples(
        self, given: Any, labels: Any, ids: Iterable[Any] | None, owners: Iterable[Any] | None, owner: str | None
    ) -> Change:
        self.require_keys()
        samples = as_given(require_own(given, self._network), self._targets, self.backbone.n_features)
        count = len(samples)
        index, order = indexed(labels, samples, self._targets, any_label=True)
        id_texts = [""] * count if ids is None else _texts("ids", ids, count)
        owner_texts = None if owners is None else _texts("owners", owners, count)
        prepared = ordered(prepare(self.backbone, self._encoder, samples, remember=False), order)
        members = self._members(prepared, index)
        contents = tuple(self.contents(prepared.fingerprints, [name for name, _ in members]))
        tickets = None
        if ids is not None or owners is not None:
            parts = self.numbers(id_texts, owner_texts), contents, id_texts, owner_texts or [""] * count
            tickets = tuple(map(Ticket, *parts))
        return Change(
            FORGET,
            prepared.quantised,
            index,
            tickets,
            members,
            self.origin(),
            owner,
            fingerprints=tuple(prepared.fingerprints),
            contents=contents,
            lengths=prepared.lengths,
        )

    def forgetting_class(self, label: Any) -> Change:
        """Return the change that forgets a class."""
        return Change(FORGET_CLASS, name=text(normalise(label)))

    def new_salt(self) -> bytes:
        """Return the salt of a new receipt; in memory there is none."""
        return secrets.token_bytes(SALT_SIZE) if self._owned else b""

    # -- receipts ----------------------------------------------------------------------------------

    def opened(self, receipts: Sequence[Any]) -> list[Shown]:
        """Return opened receipts, or raise `ReceiptRejectedError`."""
        keys = self.require_keys()
        for row, receipt in enumerate(receipts):
            if not isinstance(receipt, bytes):
                raise InputError(
                    f"receipts are bytes; row {row} is of type {type(receipt).__name__}. To forget samples, give their "
                    "labels too: forget(samples, labels)"
                )
        return self._shown(
            [(each, unseal(each, row, keys.receipts, self._configuration)) for row, each in enumerate(receipts)]
        )

    def _shown(self, given: Sequence[tuple[bytes, Receipt]]) -> list[Shown]:
        """Return opened receipts with the tickets and digests of their samples."""
        if not given:
            return []
        origin, said = self.origin(), [opened for _, opened in given]
        ids, owners, names = ([getattr(each, name) for each in said] for name in ("id", "owner", "label"))
        contents = self.contents([each.fingerprint for each in said], names)
        commitments = [commitment(receipt) for receipt, _ in given]
        tickets = map(Ticket, self.numbers(ids, owners), contents, ids, owners, commitments)
        index = LabelIndex([from_text(name) for name in names])
        members = member_digests(*origin, [each.quantised for each in said], index)
        made = zip(given, tickets, members, strict=True)
        return [Shown(receipt, opened, ticket, member, origin) for (receipt, opened), ticket, member in made]

    def verdicts(self, model: ExactModel, receipts: Sequence[bytes], owners: Sequence[Any] | None) -> list[Verdict]:
        """Return the answer about each receipt by itself, and about listing it again.

        A receipt of another owner is refused like an unreadable one, and nothing is looked up for it. So the time does
        not reveal anything about its sample.
        """
        keys = self.require_keys()
        found: list[Verdict | None] = [None] * len(receipts)
        readable: dict[int, tuple[bytes, Receipt]] = {}
        whose = [None] * len(receipts) if owners is None else owners
        for row, (receipt, owner) in enumerate(zip(receipts, whose, strict=True)):
            try:
                opened = unseal(receipt, row, keys.receipts, self._configuration)
                if owner is not None and text(normalise(owner)) != opened.owner:
                    raise ReceiptRejectedError("is another owner's", row, "owner")
                readable[row] = receipt, opened
            except ReceiptRejectedError as error:
                found[row] = Verdict(None, None, error)
        shown = self._shown(list(readable.values()))
        stand, state = model.standing(self.forgetting(shown))
        seen: set[bytes] = set()
        for row, each, stands in zip(readable, shown, stand, strict=True):
            number = each.ticket.number
            refusal = _used(row) if not stands else _repeated(row) if number in seen else None
            seen.add(number)
            about = each.facts()
            checked = each._replace(seen_at=state if stands else None)
            found[row] = Verdict(about["owner"], about["label"], refusal, checked)
        return [each for each in found if each is not None]

    def numbers(self, ids: Sequence[str], owners: Sequence[str] | None) -> list[bytes]:
        """Return the number of each ticket; empty if it needs an owner or an id that is unknown."""
        origin = self.origin()
        if not self._owned:
            return [ticket_number(*origin, id_text) for id_text in ids]
        if owners is None:
            return [b""] * len(ids)
        pairs = zip(owners, ids, strict=True)
        return [owned_number(*origin, owner, id_text) if id_text else b"" for owner, id_text in pairs]

    def contents(self, fingerprints: Iterable[bytes], names: Iterable[str]) -> list[bytes]:
        """Return the keyed digest of each raw sample, given the class of each."""
        origin = self.origin()
        return [content_digest(*origin, *pair) for pair in zip(fingerprints, names, strict=True)]

    # -- checking and committing -------------------------------------------------------------------

    def check(self, model: ExactModel, change: Change) -> Checked:
        """Return an accepted change, or raise, with an error about the given samples or receipts."""
        if change.kind == FORGET and change.receipts:
            seen: set[bytes] = set()
            for row, ticket in enumerate(change.tickets or ()):
                if ticket.number in seen:
                    raise _repeated(row)
                seen.add(ticket.number)
        elif change.kind == FORGET and len(change) and not model.statistics.total:
            raise NotLearnedError(
                "the model holds no samples: nothing was learned, or everything is already forgotten",
                tuple(range(len(change))),
            )
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
        """Check a change and make it. A cache first drops forgotten features, and at the end keeps learned ones."""
        with model.locked():
            checked = self.check(model, change)
            if change.kind != LEARN:
                lose(self.backbone, self._fingerprints_that_go(checked))
            with self._current_key(change) if change.kind == LEARN else nullcontext():
                model.commit(checked)
            if change.features is not None and isinstance(self.backbone, FeatureCache):  # as `prepare` found
                try:
                    self.backbone.remember(change.fingerprints, change.features)
                except Exception as error:  # the samples are learned
                    warn_of(f"{self.backbone.name} could not keep features: {str(error) or type(error).__name__}")

    @contextmanager
    def _current_key(self, change: Change) -> Iterator[None]:
        """Keep others from dropping the key of the receipts; raise if it was dropped since they were sealed."""
        sealed = {key_check_of(receipt) for receipt in change.receipts}
        with self.require_keys().unrotated() as keys:
            if not sealed <= {key.check() for key in keys}:
                raise ConfigurationError(
                    "the key that sealed these receipts has been dropped meanwhile, so that nobody could open them: "
                    "learn the samples again. Nothing was changed"
                )
            yield

    def _fingerprints_that_go(self, checked: Checked) -> Sequence[bytes] | None:
        """Return the fingerprints that a cache must drop with forgotten samples; None for all, if they are unknown.

        A sample is found by its quantised features. Another sample can have the same features, and then the cache has
        the learned sample under a fingerprint that nobody knows now.
        """
        change, contents = checked.decision.change, checked.decision.contents
        if change.kind == FORGET_CLASS:
            return None
        if change.contents and isinstance(self.backbone, FeatureCache) and not contents <= set(change.contents):
            return None
        return change.fingerprints


def _all_shown(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, Shown) for each in given)


def _repeated(row: int) -> ReceiptRejectedError:
    return ReceiptRejectedError("is listed twice in one request", row, "repeated")


def _used(row: int) -> ReceiptRejectedError:
    fault = "was used already, or on another copy of this model: its sample is not held"
    return ReceiptRejectedError(fault, row, "used")


def _texts(what: str, values: Iterable[Any], count: int) -> list[str]:
    """Return ids or owners as canonical texts, one for each sample."""
    if isinstance(values, str | bytes):
        raise InputError(f"{what} must be a sequence with one value for each sample; got one {type(values).__name__}")
    texts = [text(normalise(value)) for value in values]
    if len(texts) != count:
        raise InputError(f"there are {count} samples and {len(texts)} {what}: give one for each sample")
    require_short(what, texts)
    return texts
