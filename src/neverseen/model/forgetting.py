"""`ForgettingModel`: raw samples in, receipts out, and exact forgetting with either."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from neverseen.backbones import Backbone, efficientnet_lite0
from neverseen.backbones.protocol import require_backbone
from neverseen.backbones.reading import Prepared, features_of
from neverseen.errors import ConfigurationError, IdTakenError, InputError
from neverseen.holdings import Change
from neverseen.model.classifier import AnalyticClassifier
from neverseen.model.exact import ExactModel
from neverseen.model.intake import Intake, Verdict
from neverseen.model.means import ClassMeans, class_means
from neverseen.model.without import LeftOut, Without, left_out, what_if
from neverseen.proof.keys import Keyring


class ForgettingModel:
    """A classifier of images or texts that forgets exactly, by receipt or by sample.

    A frozen backbone turns samples into features, and an `AnalyticClassifier` learns and forgets them. `learn` returns
    a receipt for each sample, to give to its owner. After `forget`, the model is bit for bit the one that never learned
    the sample: it has the same `digest` and the same saved file. A refused request changes nothing.

    Parameters
    ----------
    backbone : Backbone, optional
        Turns samples into features. By default `neverseen.backbones.efficientnet_lite0`, for images.
    classifier : AnalyticClassifier, optional
        Only its settings are used. It must hold no samples, and is not changed.
    keys : Keyring, optional
        The model's secrets. By default new ones, in memory: use ``model.keys.save(path)`` before you hand out receipts.

    Attributes
    ----------
    classifier : AnalyticClassifier
        For reading weights, scores and settings. Samples that you teach it directly have no receipts.

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
        found = efficientnet_lite0() if backbone is None else require_backbone(backbone)
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
            raise ConfigurationError("the classifier's key is not the keyring's membership key: leave it out")
        digest = found.digest()
        if settings.backbone not in (None, digest):
            raise ConfigurationError("the classifier was set up for another backbone: leave its backbone= out")
        self._hold(found, clone(settings).set_params(backbone=digest, key=keys.membership), keys)

    def _hold(self, backbone: Backbone, classifier: AnalyticClassifier, keys: Keyring | None) -> None:
        """Become the model around a classifier that was set up for it, and may hold samples."""
        self.backbone, self.classifier = backbone, classifier
        self._lock = threading.RLock()
        self._new: ExactModel | None = None
        self._intake = Intake(backbone, classifier.configuration(), keys, owned=False)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as in scikit-learn. They are fixed: for others, make a new model.

        With `deep`, also those of the classifier, as ``classifier__gamma`` and so on.
        """
        inner = {f"classifier__{name}": value for name, value in self.classifier.get_params().items()} if deep else {}
        return {"backbone": self.backbone, "classifier": self.classifier, "keys": self.keys} | inner

    def __sklearn_clone__(self) -> ForgettingModel:
        """Return a model with the same settings and keys that holds no samples: `sklearn.base.clone` calls this."""
        return type(self)(self.backbone, clone(self.classifier), self._intake.require_keys())

    @property
    def keys(self) -> Keyring | None:
        """The model's secrets; None if it was loaded without them."""
        return self._intake.keys

    def __bool__(self) -> bool:
        return True  # also while it holds no sample

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a ForgettingModel cannot be pickled or copied, because of its keys: use save and load")

    # -- learning ----------------------------------------------------------------------------------

    def learn(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> list[bytes]:
        """Learn samples and return a receipt for each, in order. Give them to their owners; the model keeps none.

        If the call is interrupted after the samples were learned, by Ctrl-C for example, the exception has their
        receipts as the attribute ``receipts``.

        Parameters
        ----------
        samples : sequence of n samples
            Images (arrays, PIL images, paths, encoded bytes), texts or feature rows, as the backbone takes them. With
            ``targets=Rows()``, each sample is a list or an array of these, its rows.
        labels : sequence of n labels
        ids : iterable of n values, optional
            The id of each sample; no two held samples may have the same. By default, ids are random. A sample that is
            learned again under its old id gets its old receipt, which is valid again. (In a store, each owner has their
            own ids, and every receipt is new: see `neverseen.store`.)
        owners : iterable of n values, optional
            The owner of each sample. Only the receipt holds it.

        Returns
        -------
        list of bytes
            Each is about 115 bytes longer than the number of features; 130 in a store.
        """
        change = self._intake.learning(self._exact(), samples, labels, ids, owners)
        try:
            self._commit(change)
            return list(change.receipts)
        except BaseException as error:
            held = None if isinstance(error, IdTakenError) else self.classifier.exact
            if held is not None and held.holdings.by_numbers([ticket.number for ticket in change.tickets or ()]):
                error.receipts = list(change.receipts)  # type: ignore[attr-defined]
            raise

    def merge(self, other: ForgettingModel) -> ForgettingModel:
        """Add everything that another model holds, and return this one. Receipts of both then work here.

        Both need the same backbone, settings and keys, and no id may be in both. The other model keeps its samples:
        what is forgotten must be forgotten there too.
        """
        if not isinstance(other, ForgettingModel):
            raise InputError(f"merge takes another ForgettingModel; got {type(other).__name__}")
        ours, theirs = self._intake.require_keys(), other._intake.require_keys()
        if not set(theirs.receipts) <= set(ours.receipts):
            raise ConfigurationError(
                "the other model has a receipt key that this one lacks, so some of its receipts could not be opened: "
                "build both with the same keys="
            )
        others = other._exact()
        with self._lock:
            model = self._exact()
            model.merge(others)
            self.classifier.hold(model)
            self._new = None
        return self

    # -- forgetting --------------------------------------------------------------------------------

    def prepare(self, samples: Any, *, remember: bool = False) -> Prepared:
        """Return samples with their features computed, to give to `learn` or `forget` instead of the samples.

        This is the slow part of both, and the only one that needs the backbone. It holds no lock.

        Parameters
        ----------
        samples : sequence of n samples
        remember : bool
            Whether a cache should keep the features once the samples are learned.
        """
        return self._intake.prepare(samples, remember=remember)

    def forget(
        self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None, dry_run: bool = False
    ) -> None:
        """Forget exactly these samples: give their receipts, or the samples themselves with their labels.

        If one is refused, none is forgotten. A receipt needs no backbone and always finds its sample. A sample goes
        through the backbone again, and is found if its features are still the same.

        Parameters
        ----------
        given : sequence of bytes, or of samples
            Receipts if `labels` is left out, else samples.
        labels : sequence of labels, optional
        ids : iterable, optional
            The ids of the samples. Needed if the same sample was learned several times, to forget only some of them.
        dry_run : bool
            Only check: raise the error that the request would raise, and change nothing.

        Raises
        ------
        ReceiptRejectedError
            A receipt is altered, cut short, already used, or from another model. Its ``reason`` says which.
        FeaturesMovedError
            The model learned this sample, but its features are different now. Use the receipt.
        NotLearnedError
            The model does not hold the sample with this label, or not under this id.
        """
        self._commit(self._intake.forgetting(given, labels, ids), dry_run)

    def forgetting(self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None) -> Change:
        """Return the change that `forget` would make. Whether the samples are held is not looked at."""
        return self._intake.forgetting(given, labels, ids)

    def forget_class(self, label: Any, *, dry_run: bool = False) -> None:
        """Forget every sample of a class, without receipts. Needs a classifier with ``track_classes=True``.

        A cache of features (`neverseen.backbones.Cached`) is emptied: it does not know which samples were of the class.
        With `dry_run`, only check, and change nothing.
        """
        self._commit(self._intake.forgetting_class(label), dry_run)

    def without(self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None) -> Without:
        """Return the model without these samples, exactly as `forget` would leave it. Nothing changes.

        It takes the same samples or receipts as `forget`, and refuses the same requests. See
        `AnalyticClassifier.without`.
        """
        change, model = self._intake.forgetting(given, labels, ids), self._exact()
        return what_if(model, change, partial(self._intake.check, model), self._intake.read)

    def leave_one_out(self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None) -> Iterator[LeftOut]:
        """Predict each of these samples with the model without that sample. Nothing changes.

        It takes the same samples or receipts as `forget`, and refuses the same requests. See
        `AnalyticClassifier.leave_one_out`.
        """
        change, model = self._intake.forgetting(given, labels, ids), self._exact()
        return left_out(model, change, partial(self._intake.check, model))

    def verdicts(self, tokens: Sequence[bytes], owners: Sequence[Any] | None = None) -> list[Verdict]:
        """Return the answer of `forget` for each receipt alone, and for listing it again; change nothing.

        Use this for many requests at once: it looks up all receipts together.

        Parameters
        ----------
        owners : sequence, optional
            The owner that each receipt must have; None for any. Another owner's receipt is refused like an unreadable
            one, and is not looked up. So the time this takes says nothing about its sample.
        """
        with self._lock:
            return self._intake.verdicts(self._exact(), tokens, owners)

    def read_receipt(self, receipt: bytes) -> dict[str, Any]:
        """Return the id, label and owner in a receipt of this model, used or not; change nothing."""
        return self._intake.opened([receipt])[0].facts()

    # -- predicting --------------------------------------------------------------------------------

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class with the greatest score for each sample."""
        return self.classifier.predict(features_of(self.backbone, samples))

    def decision_function(self, samples: Any) -> np.ndarray:
        """Return scores in float64: shape (n, C), or (n,) for two classes."""
        return self.classifier.decision_function(features_of(self.backbone, samples))

    def predict_proba(self, samples: Any, temperature: float | None = None) -> np.ndarray:
        """Return a probability for each sample and class; shape (n, C). See `AnalyticClassifier.predict_proba`."""
        return self.classifier.predict_proba(features_of(self.backbone, samples), temperature)

    def score(self, samples: Any, labels: Any) -> float:
        """Return the fraction of samples whose class is predicted correctly."""
        return self.classifier.score(features_of(self.backbone, samples), labels)

    def means(self, by: str = "mean", shrinkage: float | None = None) -> ClassMeans:
        """Return the means of the classes as they are now; see `AnalyticClassifier.means`."""
        return class_means(self._exact(), self._intake.read, by, shrinkage)

    # -- what the model is -------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """Classes held, sorted; empty while the model holds no sample."""
        return getattr(self.classifier, "classes_", np.empty(0, dtype=object))

    @property
    def gamma_(self) -> int | None:
        """Ridge strength of the weights; None while the samples are to choose it, and the model holds none."""
        model, gamma = self.classifier.exact, self.classifier.configuration().gamma
        return model.gamma() if model is not None else None if gamma == "auto" else gamma

    def __repr__(self) -> str:
        return f"<ForgettingModel on {self.backbone.name!r}, {len(self)} samples of {len(self.classes_)} classes>"

    def __len__(self) -> int:
        """Return the number of samples held."""
        model = self.classifier.exact
        return 0 if model is None else model.statistics.total

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the model: backbone, settings, classes and weights."""
        return self.classifier.digest()

    # -- saving ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file. It holds neither the backbone nor the keys: ``keys.save`` writes the keys."""
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
        backbone : Backbone, optional
            The backbone of the model; another one is refused by its digest. By default `efficientnet_lite0`.
        keys : Keyring, optional
            Without them, the model can predict, but not learn or forget.
        """
        found = efficientnet_lite0() if backbone is None else require_backbone(backbone)
        classifier = AnalyticClassifier.load(
            path, key=None if keys is None else keys.membership, hardware=hardware, class_folder=class_folder
        )
        if classifier.backbone != found.digest():
            made = "features alone: use AnalyticClassifier.load" if classifier.backbone is None else "another backbone"
            raise ConfigurationError(f"{path} holds a model of {made}; this is {found.name} ({found.digest()[:16]}...)")
        model = cls.__new__(cls)
        model._hold(found, classifier, keys)
        return model

    # -- inside ------------------------------------------------------------------------------------

    def _exact(self) -> ExactModel:
        """Return the exact model; if no sample is held yet, an empty one."""
        with self._lock:
            held = self.classifier.exact
            if held is not None:
                return held
            if self._new is None or self._new.statistics.total:
                self._new = self.classifier.new_model(self.backbone.n_features)
            return self._new

    def _commit(self, change: Change, dry_run: bool = False) -> None:
        with self._lock:
            model = self._exact()
            if dry_run:
                self._intake.check(model, change)
                return
            self._intake.commit(model, change)
            self.classifier.hold(model)
            self._new = None
