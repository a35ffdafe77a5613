"""`ForgettingModel`: raw samples in, receipts out, and exact forgetting with either."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone

from neverseen.backbones import Backbone, efficientnet_lite0
from neverseen.backbones.contents import as_list, fingerprint, portions
from neverseen.backbones.progress import progress_bar
from neverseen.classifier import AnalyticClassifier, label_list
from neverseen.encoding import quantise
from neverseen.errors import (
    ConfigurationError,
    FeaturesMovedError,
    InputError,
    KeyMissingError,
    LabelError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.keys import Keyring
from neverseen.labels import LabelIndex, from_text, normalise, text
from neverseen.receipts import TEXT_LIMIT, Receipt, commitment, require_cipher, seal, unseal
from neverseen.register import Ticket, tickets_of

CHUNK = 256
"""Samples decoded at a time, or fewer if they are large. Any value gives the same features."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Samples whose features have been taken already (`ForgettingModel.prepare`), to be given instead of them."""

    quantised: np.ndarray  # int8, shape (n, d0)
    prints: list[bytes]  # fingerprints of the raw samples

    def __len__(self) -> int:
        return len(self.prints)

    def only(self, rows: Sequence[int]) -> Prepared:
        """Return some of them."""
        return Prepared(self.quantised[list(rows)], [self.prints[row] for row in rows])

    @classmethod
    def joined(cls, parts: Sequence[Prepared]) -> Prepared:
        """Return several as one, in order."""
        return cls(np.concatenate([part.quantised for part in parts]), [each for part in parts for each in part.prints])


class Verdict(NamedTuple):
    """What is to be said about one receipt."""

    owner: Any  # as it was learned; None if the receipt cannot be read
    label: Any
    error: ReceiptRejectedError | None  # None: its sample is held


class ForgettingModel:
    """A classifier of images or texts that forgets exactly, by receipt or by sample.

    A frozen backbone turns samples into features; an `AnalyticClassifier` learns and forgets them. Each sample learned
    gives a receipt for its owner. After forgetting, the model is bit for bit the one that never learned the sample:
    same `digest`, same saved file. A request that is refused changes nothing.

    Parameters
    ----------
    backbone : Backbone, optional
        What makes features of samples. `neverseen.backbones.efficientnet_lite0` by default, for images.
    classifier : AnalyticClassifier, optional
        Its settings are used; it is not changed, and must hold no samples.
    keys : Keyring, optional
        The model's secrets. New ones by default, in memory: ``model.keys.save(path)`` before you hand out receipts.

    Attributes
    ----------
    backbone : Backbone
    classifier : AnalyticClassifier
        To look at: weights, scores, settings. What it learns by itself has no receipts.
    keys : Keyring or None

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
    >>> from neverseen.backbones import Precomputed
    >>> rows = np.random.default_rng(0).normal(size=(60, 5)); labels = np.where(rows[:, 0] > 0, "cat", "dog")
    >>> def new():
    ...     return ForgettingModel(Precomputed(5), AnalyticClassifier(RandomProjection(32), gamma=2**12))
    >>> model, never = new(), new()
    >>> receipts = model.learn(rows, labels)
    >>> model.forget(receipts[:20])
    >>> _ = never.learn(rows[20:], labels[20:])
    >>> model.digest() == never.digest()
    True
    """

    def __init__(
        self,
        backbone: Backbone | None = None,
        classifier: AnalyticClassifier | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self.backbone = _checked(backbone)
        settings = AnalyticClassifier() if classifier is None else classifier
        if not isinstance(settings, AnalyticClassifier) or hasattr(settings, "n_features_in_"):
            raise ConfigurationError(
                "classifier must be an AnalyticClassifier that holds no samples: what it learned without the backbone "
                "has no receipts"
            )
        if keys is None:
            keys = Keyring.generate(settings.key)
        elif not isinstance(keys, Keyring):
            raise ConfigurationError(f"keys must be a neverseen.Keyring; got {type(keys).__name__}")
        elif settings.key not in (None, keys.membership):
            raise ConfigurationError("the classifier's key is another than the keyring's membership key: leave it out")
        digest = self.backbone.digest()
        if settings.backbone not in (None, digest):
            raise ConfigurationError("the classifier was set up for another backbone: leave its backbone= out")
        self._start(clone(settings).set_params(backbone=digest, key=keys.membership), keys)

    def _start(self, classifier: AnalyticClassifier, keys: Keyring | None) -> None:
        self.classifier = classifier
        self._keys = keys
        self._lock = threading.RLock()
        self._configuration = classifier._configuration().digest()

    @property
    def keys(self) -> Keyring | None:
        """The model's secrets; None if it was loaded without them."""
        return self._keys

    def __bool__(self) -> bool:
        return True  # also while it holds no sample

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a ForgettingModel is not pickled or copied, keys and all: use save and load")

    # -- learning ----------------------------------------------------------------------------------

    def learn(
        self,
        samples: Any,
        labels: Any,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        *,
        deliver: Callable[[list[bytes]], None] | None = None,
    ) -> list[bytes]:
        """Learn samples and return a receipt for each, in order. Give them to their owners; the model keeps none.

        Parameters
        ----------
        samples : sequence of n samples
            Images (arrays, PIL images, paths, encoded bytes), texts or feature rows, as the backbone takes them.
        labels : sequence of n labels
        ids : iterable of n values, optional
            What to know each sample by; no two held at one time may be the same. Random ones by default. A sample
            that is learned again under its old id has its old receipt, which is good again. (In a store ids are an
            owner's own, and every receipt is new: see `neverseen.store`.)
        owners : iterable of n values, optional
            Whose each sample is, noted in its receipt alone.
        deliver : callable, optional
            Called with the receipts when every check has passed, just before the samples are learned: what it stores
            is there even if the process dies on the way back. If it raises, nothing is learned.

        Returns
        -------
        list of bytes
            About 115 bytes more than the backbone has features; 130 in a store.
        """
        keys = self._require_keys()
        require_cipher()  # before the network has worked for minutes
        listed = samples if isinstance(samples, Prepared) else as_list(samples)
        count = len(listed)
        index, texts = _indexed(labels, count)
        id_texts = _texts("ids", [secrets.token_urlsafe(12) for _ in range(count)] if ids is None else ids, count)
        owner_texts = _texts("owners", [None] * count if owners is None else owners, count)
        with self._lock:
            model = self.classifier._held()
            if model is not None:  # before the network has worked for nothing; `_learn` makes sure
                model.register.require_new(self._tickets(keys, id_texts, owner_texts, texts, [b""] * count))
        prepared = self._read(listed, remember=True)
        quantised, prints = prepared.quantised, prepared.prints
        salts = [self._new_salt() for _ in prints]
        about = zip(id_texts, owner_texts, texts, prints, quantised, salts, strict=True)
        receipts = [seal(Receipt(*parts), keys.receipts[0], self._configuration) for parts in about]
        tickets = [
            ticket._replace(commitment=commitment(receipt), salt=salt)
            for ticket, receipt, salt in zip(
                self._tickets(keys, id_texts, owner_texts, texts, prints), receipts, salts, strict=True
            )
        ]
        try:
            with self._lock:
                self.classifier._learn(
                    quantised, index, tickets, None if deliver is None else lambda: deliver(receipts)
                )
        except BaseException:
            self._drop(prints)
            raise
        return receipts

    # -- forgetting --------------------------------------------------------------------------------

    def prepare(self, samples: Any, *, remember: bool = False) -> Prepared:
        """Return samples with their features taken, to be given to `learn` or `forget` in their place.

        This is the slow part of either, and the only one that needs the backbone. It holds no lock.

        Parameters
        ----------
        samples : sequence of n samples
        remember : bool
            Whether a cache may keep the features: only for samples that are about to be learned.
        """
        return self._read(as_list(samples), remember=remember)

    def forget(
        self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None, dry_run: bool = False
    ) -> None:
        """Forget exactly these samples, given their receipts, or the samples themselves with their labels.

        All of them or, if one is refused, none. A receipt needs no backbone and cannot miss. A sample goes through the
        backbone again, and is found if its features are still the same.

        Parameters
        ----------
        given : sequence of bytes, or of samples
            Receipts if `labels` is left out, else samples.
        labels : sequence of labels, optional
        ids : iterable, optional
            The ids of the samples. Needed where the same sample was learned several times and not all are to go.
        dry_run : bool
            Raise what would be raised, and change nothing.

        Raises
        ------
        ReceiptRejectedError
            A receipt is altered, cut short, used up, or another model's. Its ``reason`` says which.
        FeaturesMovedError
            The model learned this sample, but its features come out differently now. Only the receipt helps.
        NotLearnedError
            The model does not hold the sample with this label, or not under this id.
        """
        if labels is None:
            if ids is not None:
                raise InputError("receipts hold their ids: leave ids out, or give labels if these are samples")
            self._forget_receipts([given] if isinstance(given, bytes) else as_list(given), dry_run)
        else:
            self._forget_samples(given if isinstance(given, Prepared) else as_list(given), labels, ids, dry_run)

    def _forget_receipts(self, tokens: list[Any], dry_run: bool) -> None:
        receipts = self._unsealed(tokens, self._require_keys())
        if not receipts:
            return
        with self._lock:
            quantised, index, tickets = self._about(receipts, tokens)
            seen: set[bytes] = set()
            for row, ticket in enumerate(tickets):
                if ticket.number in seen:
                    raise _repeated(row)
                seen.add(ticket.number)
            try:
                self._forget(quantised, index, tickets, [receipt.fingerprint for receipt in receipts], dry_run)
            except NotLearnedError as error:
                raise (_used(error.rows[0]) if error.rows else error) from None

    def verdicts(self, tokens: Sequence[bytes], owners: Sequence[Any] | None = None) -> list[Verdict]:
        """Return what `forget` would say about each receipt by itself, or about its being listed again; change nothing.

        For many requests at a time: all are looked up together.

        Parameters
        ----------
        tokens : sequence of bytes
        owners : sequence, optional
            Whose each receipt must be; None for anybody's. One of somebody else is refused as one that cannot be read
            is, and nothing is looked up for it: how long that takes does not tell what became of its sample.
        """
        keys = self._require_keys()
        limits = [None] * len(tokens) if owners is None else [_text_of(owner) for owner in owners]
        found: list[Verdict | None] = [None] * len(tokens)
        receipts: dict[int, Receipt] = {}
        for row, (token, limit) in enumerate(zip(tokens, limits, strict=True)):
            try:
                receipt = unseal(token, row, keys.receipts, self._configuration)
                if limit not in (None, receipt.owner):
                    raise ReceiptRejectedError(f"receipt {row} is another owner's. Nothing was changed", row, "owner")
                receipts[row] = receipt
            except ReceiptRejectedError as error:
                found[row] = Verdict(None, None, error)
        with self._lock:
            model = self.classifier._held()
            quantised, index, tickets = self._about(list(receipts.values()), [tokens[row] for row in receipts])
            standing = [False] * len(tickets)
            if model is not None and tickets:
                standing = model.register.standing(tickets, model.membership.digests(quantised, index))
        seen: set[bytes] = set()
        for (row, receipt), ticket, stands in zip(receipts.items(), tickets, standing, strict=True):
            refusal = _used(row) if not stands else _repeated(row) if ticket.number in seen else None
            seen.add(ticket.number)
            found[row] = Verdict(from_text(receipt.owner), from_text(receipt.label), refusal)
        return [verdict for verdict in found if verdict is not None]

    def _about(self, receipts: list[Receipt], tokens: Sequence[bytes]) -> tuple[np.ndarray, LabelIndex, list[Ticket]]:
        """Return features, labels and tickets of what receipts are about."""
        texts = [receipt.label for receipt in receipts]
        prints = [receipt.fingerprint for receipt in receipts]
        quantised = np.empty((0, self.backbone.n_features), np.int8)
        if receipts:
            quantised = np.stack([receipt.quantised for receipt in receipts])
        ids, owners = [receipt.id for receipt in receipts], [receipt.owner for receipt in receipts]
        tickets = self._tickets(self._require_keys(), ids, owners, texts, prints)
        shown = [ticket._replace(commitment=commitment(token)) for ticket, token in zip(tickets, tokens, strict=True)]
        return quantised, LabelIndex([from_text(name) for name in texts]), shown

    def _forget_samples(
        self,
        samples: list[Any] | Prepared,
        labels: Any,
        ids: Iterable[Any] | None,
        dry_run: bool,
        owners: Iterable[Any] | None = None,
    ) -> None:
        keys = self._require_keys()
        count = len(samples)
        index, texts = _indexed(labels, count, any_label=True)
        id_texts = None if ids is None else _texts("ids", ids, count)
        owner_texts = None if owners is None else _texts("owners", owners, count)
        prepared = self._read(samples, remember=False)
        quantised, prints = prepared.quantised, prepared.prints
        if not count:
            return
        with self._lock:
            tickets = self._tickets(keys, id_texts or [""] * count, owner_texts, texts, prints)
            try:
                self._forget(quantised, index, tickets if id_texts or owner_texts else None, prints, dry_run)
            except NotLearnedError as error:
                moved = self._moved(error.rows, quantised, index, tickets)
                if not moved:
                    raise
                raise FeaturesMovedError(
                    f"the model learned this very sample (row {moved[0]}; {len(moved)} of {count} in all), but "
                    "the backbone now makes other features of it: another machine, library or setting rounds "
                    "differently. Forget it with its receipt. Nothing was changed",
                    moved,
                ) from error

    def _moved(
        self, rows: Iterable[int], quantised: np.ndarray, index: LabelIndex, tickets: Sequence[Ticket]
    ) -> tuple[int, ...]:
        """Return the rows that are held with other features: their content is known, their features are not."""
        model = self.classifier._held()
        if model is None:
            return ()
        members = model.membership.digests(quantised, index)
        held, known = model.membership.held(members), model.register.known(ticket.content for ticket in tickets)
        return tuple(row for row in rows if tickets[row].content in known and not held[members[row]])

    def _forget(
        self,
        quantised: np.ndarray,
        index: LabelIndex,
        tickets: Sequence[Ticket] | None,
        prints: Sequence[bytes],
        dry_run: bool,
    ) -> None:
        model = self.classifier._held()
        if model is None:
            raise NotLearnedError(
                "the model holds no samples: nothing was learned, or all of it is forgotten already",
                tuple(range(len(index))),
            )
        if dry_run:
            model.require(quantised, index, tickets)
        else:
            self.classifier._forget(model, quantised, index, tickets, lambda: self._drop(prints))

    def _drop(self, prints: Sequence[bytes]) -> None:
        """Let a cache lose what is not held: it must not outlast that, and losing it costs time alone."""
        discard = getattr(self.backbone, "discard", None)
        if discard is not None:
            discard(prints)

    def forget_class(self, label: Any, *, dry_run: bool = False) -> None:
        """Forget every sample of a class, without receipts. Needs a classifier with ``track_classes=True``.

        A cache of features (`neverseen.backbones.Cached`) is emptied: it does not know which samples were of the class.
        With `dry_run`, raise what would be raised, and change nothing.
        """
        with self._lock:
            model = self.classifier._held()
            clear = getattr(self.backbone, "clear", None)
            if model is not None and (dry_run or clear is not None):
                model.require_class(text(normalise(label)))
            if dry_run and model is not None:
                return
            if model is not None and clear is not None:
                clear()
            self.classifier.forget_class(label)

    def read_receipt(self, receipt: bytes) -> dict[str, Any]:
        """Return id, label and owner of a receipt that this model gave, used or not; change nothing."""
        (opened,) = self._unsealed([receipt], self._require_keys())
        return {"id": from_text(opened.id), "label": from_text(opened.label), "owner": from_text(opened.owner)}

    # -- predicting --------------------------------------------------------------------------------

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class of greatest score for each sample."""
        return self.classifier.predict(features_of(self.backbone, samples))

    def predict_proba(self, samples: Any) -> np.ndarray:
        """Return a probability for each sample and class; shape (n, C)."""
        return self.classifier.predict_proba(features_of(self.backbone, samples))

    def score(self, samples: Any, labels: Any) -> float:
        """Return the share of samples whose class is predicted right."""
        return self.classifier.score(features_of(self.backbone, samples), labels)

    # -- what the model is -------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """Classes held, sorted; empty while the model holds no sample."""
        return getattr(self.classifier, "classes_", np.empty(0, dtype=object))

    def __len__(self) -> int:
        """Return the number of samples held."""
        model = self.classifier._held()
        return 0 if model is None else model.statistics.total

    def digest(self) -> str:
        """Return the SHA-256, in hex, of what the model is: backbone, settings, classes, weights."""
        return self.classifier.digest()

    # -- saving ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file. Neither the backbone nor the keys are in it: ``keys.save`` stores those."""
        self.classifier.save(path, include_key=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        backbone: Backbone | None = None,
        keys: Keyring | None = None,
        *,
        hardware: str = "auto",
        class_folder: str | os.PathLike[str] | None = None,
    ) -> ForgettingModel:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : path
        backbone : Backbone, optional
            The one it was made with, told by its digest. `efficientnet_lite0` by default.
        keys : Keyring, optional
            Without them the model can predict, not learn or forget.
        """
        found = _checked(backbone)
        classifier = AnalyticClassifier.load(
            path, key=None if keys is None else keys.membership, hardware=hardware, class_folder=class_folder
        )
        if classifier.backbone != found.digest():
            made = "features alone: use AnalyticClassifier.load" if classifier.backbone is None else "another backbone"
            raise ConfigurationError(f"{path} holds a model of {made}; this is {found.name} ({found.digest()[:16]}...)")
        return cls._of(found, classifier, keys)

    @classmethod
    def _of(cls, backbone: Backbone, classifier: AnalyticClassifier, keys: Keyring | None) -> Self:
        """Return a model over a classifier that was set up for it, and may hold samples."""
        model = cls.__new__(cls)
        model.backbone = backbone
        model._start(classifier, keys)
        return model

    # -- inside ------------------------------------------------------------------------------------

    def _require_keys(self) -> Keyring:
        if self.keys is None:
            raise KeyMissingError(
                "this model was loaded without its keys: it can predict, not learn or forget. Use keys="
            )
        return self.keys

    def _unsealed(self, tokens: list[Any], keys: Keyring) -> list[Receipt]:
        for row, token in enumerate(tokens):
            if not isinstance(token, bytes):
                raise InputError(
                    f"receipts are bytes; row {row} is of type {type(token).__name__}. To forget samples, give their "
                    "labels too: forget(samples, labels)"
                )
        return [unseal(token, row, keys.receipts, self._configuration) for row, token in enumerate(tokens)]

    def _tickets(
        self,
        keys: Keyring,
        ids: Sequence[str],
        owners: Sequence[str] | None,
        names: Iterable[str],
        prints: Iterable[bytes],
    ) -> list[Ticket]:
        """Return the ticket of each sample. Owners, None if they are not known, make no difference in memory."""
        return tickets_of(self._configuration, keys.membership, ids, names, prints)

    def _new_salt(self) -> bytes:
        """Return the salt of a new receipt: none, so that what a model gives depends on what it holds alone."""
        return b""

    def _read(self, samples: list[Any] | Prepared, *, remember: bool) -> Prepared:
        """Return quantised features and fingerprints, refusing samples of the backbone's base set."""
        if isinstance(samples, Prepared):
            return samples
        base = getattr(self.backbone, "base", None)
        parts, prints = [np.empty((0, self.backbone.n_features), np.int8)], list[bytes]()
        try:
            with progress_bar("features", len(samples), batch=CHUNK) as advance:
                for chunk in portions(samples, CHUNK):
                    for sample in chunk:
                        prints.append(fingerprint(sample))
                        if base is not None and base.holds(prints[-1]):
                            raise InputError(
                                f"sample {len(prints) - 1} belongs to the base set {base.name!r} that the backbone was "
                                "trained on: it can be neither learned nor forgotten. Nothing was changed"
                            )
                    parts.append(quantise(features_of(self.backbone, chunk, remember)))
                    if len(parts[-1]) != len(chunk):
                        raise InputError(f"{self.backbone.name} gave {len(parts[-1])} rows for {len(chunk)} samples")
                    advance(len(chunk))
        except BaseException:
            if remember:
                self._drop(prints)
            raise
        return Prepared(np.concatenate(parts), prints)


def features_of(backbone: Backbone, samples: Any, remember: bool = False) -> np.ndarray:
    """Return the features of samples; a cache may keep them only if they are about to be learned."""
    cache: Any = backbone
    plain = remember or not hasattr(cache, "discard")
    features = np.asarray(cache.extract(samples) if plain else cache.extract(samples, remember=False))
    if features.ndim != 2 or features.shape[1] != backbone.n_features:
        raise InputError(
            f"{backbone.name} gave features of shape {features.shape}; n_features is {backbone.n_features}"
        )
    return features


def _checked(backbone: Backbone | None) -> Backbone:
    if backbone is None:
        return efficientnet_lite0()
    if not isinstance(backbone, Backbone):
        raise ConfigurationError(
            f"a backbone has a name, n_features, extract and digest; {type(backbone).__name__} has not: "
            "see neverseen.backbones"
        )
    return backbone


def _repeated(row: int) -> ReceiptRejectedError:
    return ReceiptRejectedError(f"receipt {row} is listed twice in one request. Nothing was changed", row, "repeated")


def _used(row: int) -> ReceiptRejectedError:
    return ReceiptRejectedError(
        f"receipt {row} was used already, or on another copy of this model: its sample is not held. "
        "Nothing was changed",
        row,
        "used",
    )


def _text_of(owner: Any) -> str | None:
    return None if owner is None else text(normalise(owner))


def _indexed(labels: Any, count: int, any_label: bool = False) -> tuple[LabelIndex, list[str]]:
    """Return labels as an index and as canonical texts, one for each sample."""
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
    return index, [index.texts[position] for position in index.positions]


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
