"""`AnalyticClassifier`: exact learning and forgetting behind scikit-learn's conventions."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length

from neverseen.encoding import Encoder, RandomProjection
from neverseen.errors import ConfigurationError, InputError, NotLearnedError
from neverseen.hardware import choose
from neverseen.holdings import FORGET, FORGET_CLASS, LEARN, Change
from neverseen.labels import LabelIndex, as_array, from_text, normalise, text
from neverseen.model import saving
from neverseen.model.configuration import Configuration, empty_digest
from neverseen.model.exact import ExactModel
from neverseen.model.frozen import decision, probabilities, scored, share_right
from neverseen.model.inputs import label_list
from neverseen.model.means import ClassMeans, class_means
from neverseen.model.own_lock import own_lock
from neverseen.model.validating import SEEN, column, read, unchanged_on_error
from neverseen.model.without import LeftOut, Without, left_out, what_if
from neverseen.proof.keys import Key
from neverseen.targets import Classes, Targets


class AnalyticClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A ridge classifier that forgets exactly.

    Learn a stream with `partial_fit`, and `forget` samples or classes in any order. The model is then bit for bit
    the one that learned only the remaining samples: it has the same `digest` and the same saved file. It keeps no
    samples, only sums of small integers and a keyed digest of each sample. So it can refuse to forget a sample that it
    never learned.

    Parameters
    ----------
    encoder : Encoder, optional
        How features become codes: `RandomProjection` (the default, with 2048 codes), `GaussianKernel` or `Identity`.
    gamma : int or "auto"
        Ridge strength, a whole number from 1 to 2**40: the larger it is, the less a single sample counts. Codes have a
        spread of about 18: a sample adds about 300 to each diagonal entry. With "auto", the held samples choose it.
    grid_bits : int
        Weights are multiples of ``2**-grid_bits``.
    track_classes : bool
        Keep sums for each class, so that `forget_class` works. This costs d**2 / 2 integers per class. **A sum
        over one sample is that sample**: protect a model that tracks small classes like the data itself.
    class_folder : path, optional
        A folder for these sums, which are otherwise kept in memory.
    key : Key, optional
        Secret key of the sample digests. Models need the same key to be merged or compared byte for byte. By default
        a new one is made.
    hardware : {"auto", "numpy", "torch", "cuda"}
        Changes the time, but no bit of the result.
    backbone : str, optional
        Digest of the backbone that makes the features; part of the model's own digest. `ForgettingModel` sets it.
    targets : Targets, optional
        What the labels stand for (`neverseen.targets`): by default a class each. With `LabelSets`, a sample has any
        number of labels; with `Numbers`, it has numbers; with `WeightedClasses`, a class and a weight.
    class_weight : {None, "balanced"}
        With "balanced", all classes count about the same. Needs ``track_classes=True``, and each change takes a solve.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Classes held, sorted. Absent while the model holds no sample.
    n_features_in_ : int
        Number of features. Absent while the model holds no sample.
    weights_ : ndarray of shape (d, C)
        Weights as float64.
    gamma_ : int
        Ridge strength of these weights.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, RandomProjection
    >>> X = np.random.default_rng(0).normal(size=(60, 5)); y = np.where(X[:, 0] > 0, "cat", "dog")
    >>> model = AnalyticClassifier(RandomProjection(32, seed=0), gamma=2**12).partial_fit(X, y)
    >>> never = AnalyticClassifier(RandomProjection(32, seed=0), gamma=2**12).partial_fit(X[20:], y[20:])
    >>> model.forget(X[:20], y[:20]).digest() == never.digest()
    True
    """

    def __init__(
        self,
        encoder: Encoder | None = None,
        gamma: int | Literal["auto"] = 2**16,
        *,
        grid_bits: int = 40,
        track_classes: bool = False,
        class_folder: str | os.PathLike[str] | None = None,
        key: Key | None = None,
        hardware: str = "auto",
        backbone: str | None = None,
        targets: Targets | None = None,
        class_weight: str | None = None,
    ) -> None:
        self.encoder, self.gamma, self.grid_bits = encoder, gamma, grid_bits
        self.track_classes, self.class_folder = track_classes, class_folder
        self.key, self.hardware, self.backbone = key, hardware, backbone
        self.targets, self.class_weight = targets, class_weight

    # -- learning ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> AnalyticClassifier:
        """Drop everything learned so far, and learn these samples.

        Parameters
        ----------
        X : array-like of shape (n, n_features), finite
        y : sequence of n labels
        """
        with own_lock(self), unchanged_on_error(self):
            features, index = self._samples(X, y, reset=True)
            model = self.new_model(features.shape[1])
            model.apply(Change(LEARN, model.configuration.encoder.quantise(features, model.hardware), index))
            self.hold(model)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Any] | None = None) -> AnalyticClassifier:
        """Learn more samples; new classes may appear at any time. An empty batch changes nothing.

        Parameters
        ----------
        X : array-like of shape (n, n_features), finite
        y : sequence of n labels
        classes : iterable of labels, optional
            If given, other labels are refused. Not needed otherwise: a class exists once it has a sample.
        """
        with own_lock(self), unchanged_on_error(self):
            features, index = self._samples(X, y, reset=self.exact is None, least=0)
            if classes is not None:
                unknown = set(index.texts) - {text(normalise(label)) for label in classes}
                if unknown:
                    raise InputError(f"y contains labels that are not in classes: {', '.join(sorted(unknown)[:5])}")
            model = self.exact or self.new_model(features.shape[1])
            model.apply(Change(LEARN, model.configuration.encoder.quantise(features, model.hardware), index))
            self.hold(model)
        return self

    def merge(self, other: AnalyticClassifier) -> AnalyticClassifier:
        """Add everything that another model holds. Both have the same settings and key. With others: `Federation`."""
        if not isinstance(other, AnalyticClassifier):
            raise InputError(f"merge takes another AnalyticClassifier; got {type(other).__name__}")
        if self.configuration().digest() != other.configuration().digest():
            raise ConfigurationError("the models have different configurations (encoder, gamma, grid_bits or backbone)")
        others = other.exact
        if others is None:
            return self
        with own_lock(self):
            model = self.exact or self.new_model(others.n_features, default_key=others.holdings.key)
            model.merge(others)
            self.hold(model)
        return self

    # -- forgetting --------------------------------------------------------------------------------

    def forget(self, X: Any, y: Any) -> AnalyticClassifier:
        """Forget exactly these samples.

        If the model does not hold one of them with this label, as often as it is listed, the whole request is refused
        with `NotLearnedError`, and nothing changes. After the last sample is forgotten, the model is as new.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            The features as they were learned.
        y : sequence of n labels
        """
        with own_lock(self):
            model, change = self._forgetting(X, y)
            model.apply(change)
            self.hold(model)
        return self

    def forget_class(self, label: Any) -> AnalyticClassifier:
        """Forget every sample of a class. You do not need the samples, but the model needs ``track_classes=True``."""
        name = text(normalise(label))
        with own_lock(self):
            model = self.exact
            if model is None:
                raise NotLearnedError(f"the model holds no sample of class {name}: never learned, or already forgotten")
            model.apply(Change(FORGET_CLASS, name=name))
            self.hold(model)
        return self

    # -- what if -----------------------------------------------------------------------------------

    def without(self, X: Any, y: Any) -> Without:
        """Return the model without these samples, exactly as `forget` would leave it. Nothing changes.

        It refuses the same requests as `forget`. It takes as long as forgetting the samples and computing the weights,
        with memory for one more Gram matrix. Without any samples, it returns the model as it is.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            The features as they were learned.
        y : sequence of n labels
        """
        model, change = self._forgetting(X, y)
        return what_if(model, change, model.check, self._reader())

    def leave_one_out(self, X: Any, y: Any) -> Iterator[LeftOut]:
        """Predict each of these samples with the model without that sample. Nothing changes.

        It refuses the same requests as `forget`, before it yields the first answer. It takes one full solve, and for
        each sample about as long as forgetting it, with memory for one more Gram matrix and factor. All answers are
        about the model at the time of the call, even if it learns or forgets meanwhile.

        Yields
        ------
        LeftOut
            ``label``, the class with the greatest score, and ``scores``, an ndarray of shape (C,) in the order of
            `classes_`; -inf for a class that would be gone.
        """
        model, change = self._forgetting(X, y)
        return left_out(model, change, model.check)

    # -- predicting --------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the greatest score for each sample; with other `targets`, their predictions."""
        answers: np.ndarray = (model := self._require()).predict(self._read(model.configuration.encoder, X))
        if answers is None:  # another thread had the last sample forgotten
            raise NotFittedError(f"this {type(self).__name__} holds no samples any more")
        return answers

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores: shape (n, C), or (n,) for two classes. Exact integers on the grid, scaled to float64."""
        return decision(self._asked(ExactModel.scores, X)[0], self.configuration())

    def predict_proba(self, X: Any, temperature: float | None = None) -> np.ndarray:
        """Return a probability for each sample and class; shape (n, C).

        Least squares on one-hot labels estimates probabilities. By default, these are the probability vector nearest
        to the scores: non-negative, with a sum of one, and exactly 0 for improbable classes.

        Parameters
        ----------
        temperature : float, optional
            With it, ``softmax(scores / temperature)``: no probability is 0, and all bits are the same on every machine.
            A number from 1e-6 to 1e6, such as 0.1; a smaller one makes the probabilities more extreme. Fix it
            beforehand: a temperature fitted on samples still reveals something of them once forgotten.
        """
        return probabilities(self._asked(ExactModel.scores, X)[0], self.configuration(), temperature)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the fraction of samples whose class is predicted correctly; with other `targets`, `Targets.score`."""
        targets = self.configuration().targets
        if not targets.one_hot:
            return scored(targets, self.predict(X), y, sample_weight)
        return share_right(*self._asked(ExactModel.labels, X), y, sample_weight)

    def means(self, by: str = "mean", shrinkage: float | None = None) -> ClassMeans:
        """Return the means of the classes as they are now: they predict, and say how new a sample is.

        Parameters
        ----------
        by : {"mean", "cosine", "lda"}
            How near a sample is to a mean: by distance, by angle, or by a covariance that all classes share.
        shrinkage : float, optional
            For ``"lda"``, the share of a multiple of one in the covariance, between 0 and 1, fixed beforehand. By
            default, `gamma` is the ridge.
        """
        return class_means(self._require(), self._reader(), by, shrinkage)

    # -- what the model is -------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """Classes held, sorted."""
        model = self.exact
        if model is None:
            raise AttributeError("classes_ exists once the model holds samples")
        return as_array([from_text(name) for name in model.classes])

    @property
    def gamma_(self) -> int:
        """Ridge strength of the weights: with ``gamma="auto"``, what the sums choose."""
        return self._require().gamma()

    @property
    def weights_(self) -> np.ndarray:
        """Weights as float64, of shape (d, C)."""
        steps: np.ndarray = self._require().weights()
        return steps * 2.0 ** -int(self.grid_bits)  # a power of two: as exact as float64 is

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the model: configuration, classes and weights."""
        model = self.exact
        return empty_digest(self.configuration()) if model is None else model.digest()

    def error_bound(self) -> np.ndarray:
        """Return a proven bound on ``|weights_ - W*|`` in each column; shape (C,).

        W* is the exact ridge solution. The weights are W* rounded to the grid, so the bound is half a grid step.
        """
        return np.full(self._require().weights().shape[1], np.ldexp(1.0, -int(self.grid_bits) - 1))

    def discard_hints(self) -> None:
        """Drop factors and recent codes, which only save time. No result changes."""
        model = self.exact
        if model is not None:
            model.discard_hints()

    # -- saving ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, include_key: bool = True) -> None:
        """Write the model to one file, which only you can read. It is replaced as a whole or not at all.

        Parameters
        ----------
        include_key : bool
            Whether to write the membership key too. Without it, nobody can tell from the file which samples are held,
            and `load` needs ``key=`` to learn or forget.
        """
        model = self.exact
        saving.write(path, self.configuration(), model, bool(self.track_classes), self.key, include_key=include_key)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        key: Key | None = None,
        hardware: str = "auto",
        class_folder: str | os.PathLike[str] | None = None,
    ) -> AnalyticClassifier:
        """Read a model that `save` wrote; raise `FileRejectedError` if the file is damaged or is not a model."""
        configuration, model, track_classes, found = saving.read(path, key, choose(hardware), class_folder)
        classifier = cls(
            clone(configuration.encoder),  # changing its settings must not change the model
            configuration.gamma,
            grid_bits=configuration.grid_bits,
            track_classes=track_classes,
            class_folder=class_folder,
            key=found,
            hardware=hardware,
            backbone=configuration.backbone,
            targets=None if type(configuration.targets) is Classes else configuration.targets,
            class_weight=configuration.class_weight,
        )
        if model is not None:
            classifier.hold(model)
        return classifier

    # -- for what is built on it ------------------------------------------------------------------

    @property
    def exact(self) -> ExactModel | None:
        """The exact model inside, or None if no sample is held. Raises if settings were changed since."""
        model: ExactModel | None = getattr(self, "_model", None)
        if model is not None and self.configuration().digest() != model.configuration_digest:
            raise ConfigurationError(
                "encoder, gamma, grid_bits or backbone was changed after samples were learned; set them back, "
                "or call fit to start again"
            )
        return model

    def hold(self, model: ExactModel) -> None:
        """Use this exact model from now on. If it holds no sample, reset."""
        if model.statistics.total:
            self._model, self.n_features_in_ = model, model.n_features
        else:
            for name in ("_model", *SEEN):
                self.__dict__.pop(name, None)

    def configuration(self) -> Configuration:
        """Return the current settings, checked."""
        encoder = RandomProjection() if self.encoder is None else self.encoder
        if not isinstance(encoder, Encoder):
            raise ConfigurationError(
                f"encoder must be an Encoder such as RandomProjection(2048); got {type(encoder).__name__}"
            )
        targets = Classes() if self.targets is None else self.targets
        return Configuration(clone(encoder), self.gamma, self.grid_bits, self.backbone, targets, self.class_weight)

    def new_model(self, n_features: int, default_key: Key | None = None) -> ExactModel:
        """Return an exact model with these settings that holds nothing yet."""
        if self.key is not None and not isinstance(self.key, Key):
            raise ConfigurationError(
                f"key must be a neverseen.Key, such as Key.generate(); got {type(self.key).__name__}"
            )
        key = self.key or default_key or Key.generate()
        hardware = choose(self.hardware)
        return ExactModel.in_memory(
            self.configuration(), n_features, key, hardware, bool(self.track_classes), self.class_folder
        )

    # -- inside ------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return self.exact is not None

    def _require(self) -> ExactModel:
        model = self.exact
        if model is None:
            raise NotFittedError(f"this {type(self).__name__} holds no samples; call fit or partial_fit first")
        return model

    def _samples(
        self, X: Any, y: Any, *, reset: bool, least: int = 1, any_label: bool = False
    ) -> tuple[np.ndarray, LabelIndex]:
        features = read(self, X, reset=reset, least=least)
        index = LabelIndex(label_list(column(self, y, self.targets), any_label, self.targets))
        check_consistent_length(features, index.positions)
        return features, index

    def _forgetting(self, X: Any, y: Any) -> tuple[ExactModel, Change]:
        """Return the model, and the change that forgets these samples."""
        with own_lock(self):
            model = self.exact
            if model is None:
                words = "the model holds no samples: nothing was learned, or everything is already forgotten"
                raise NotLearnedError(words)
            features, index = self._samples(X, y, reset=False, least=0, any_label=True)
            return model, Change(FORGET, model.configuration.encoder.quantise(features, model.hardware), index)

    def _read(self, encoder: Encoder, X: Any) -> np.ndarray:
        return encoder.quantise(read(self, X, reset=False))

    def _reader(self) -> Callable[[Any], np.ndarray]:
        """Return what reads samples as this takes them now, whatever it learns or forgets later."""
        seen = copy.copy(self)
        seen.__dict__.pop("_model", None)
        return partial(seen._read, self.configuration().encoder)

    def _asked(
        self, question: Callable[[ExactModel, np.ndarray], tuple[np.ndarray, list[str]]], X: Any
    ) -> tuple[np.ndarray, list[str]]:
        answers, names = question(model := self._require(), self._read(model.configuration.encoder, X))
        if not names:  # another thread had the last sample forgotten
            raise NotFittedError(f"this {type(self).__name__} holds no samples any more")
        return answers, names
