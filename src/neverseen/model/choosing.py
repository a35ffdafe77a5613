"""The choice of gamma on samples or receipts, by leaving each of them out once."""

from __future__ import annotations

from typing import Any, Protocol

from sklearn.base import clone
from sklearn.utils import check_consistent_length

from neverseen.engine.leaving import least_error
from neverseen.errors import ConfigurationError, InputError
from neverseen.hardware import choose
from neverseen.holdings import Change
from neverseen.labels import LabelIndex
from neverseen.model.classifier import AnalyticClassifier
from neverseen.model.configuration import Configuration
from neverseen.model.forgetting import ForgettingModel
from neverseen.model.inputs import label_list
from neverseen.model.validating import column, read
from neverseen.targets import Rows, WeightedClasses


class Described(Protocol):
    """What has settings."""

    @property
    def configuration(self) -> Configuration:
        """The settings."""


class Opener(Protocol):
    """What opens its receipts, as a `Store` does."""

    @property
    def description(self) -> Described:
        """What it is."""

    def forgetting(self, given: Any, labels: Any = None) -> Change:
        """Return the change that would forget samples or receipts."""


def choose_gamma(model: AnalyticClassifier | ForgettingModel | Opener, given: Any, labels: Any = None) -> int:
    """Return the gamma whose models predict each of these samples best when they have not learned it.

    It tries the powers of two that ``gamma="auto"`` would try for these samples. For each, it adds up the squared
    errors of leave-one-out: each sample is predicted by the model of all the others. Within about four per cent it
    takes the largest gamma. The comparison is exact, so the choice is the same on every machine and in any order. It
    depends on these samples, the encoder and the targets alone: not on `gamma`, nor on what the model holds.

    **A gamma that you chose on samples, and keep, still says something of them after you forget them.** So choose on a
    base set. Or choose again on the receipts that are left after a forget, and learn these samples again with the new
    gamma. ``gamma="auto"`` does this by itself.

    Parameters
    ----------
    model : AnalyticClassifier, ForgettingModel or Store
        It says what encoder and targets are used; nothing in it changes. It may be empty.
    given : samples or list of bytes
        Samples with their labels; or receipts, which only a `ForgettingModel` or a `Store` can open. At least two.
    labels : sequence, optional
        Of the samples.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, RandomProjection, choose_gamma
    >>> X = np.random.default_rng(0).normal(size=(60, 5)); y = np.where(X[:, 0] > 0, "cat", "dog")
    >>> choose_gamma(AnalyticClassifier(RandomProjection(32, seed=0)), X, y)
    4096
    """
    if isinstance(model, AnalyticClassifier):
        about, scratch = model.configuration(), clone(model)  # which notes nothing in the model
        features = read(scratch, given, reset=True)
        index = LabelIndex(label_list(column(scratch, labels, model.targets), targets=model.targets))
        check_consistent_length(features, index.positions)
        quantised = about.encoder.quantise(features)
    else:
        if isinstance(model, ForgettingModel):
            about = model.classifier.configuration()
        else:
            about = model.description.configuration
        change = model.forgetting(given, labels)
        if len(set(change.receipts)) < len(change.receipts):
            raise InputError("a receipt is listed twice: its sample would never be left out")
        quantised, index = change.quantised, change.labels
    if isinstance(about.targets, WeightedClasses) or about.class_weight is not None:
        raise ConfigurationError("leaving out counts all samples alike, and weights do not: choose gamma yourself")
    if isinstance(about.targets, Rows):
        raise ConfigurationError(
            "leaving out is for samples of one row, and here they have many: choose gamma yourself"
        )
    if len(quantised) < 2:
        raise InputError(f"to leave one sample out, there must be two; got {len(quantised)}")
    hardware = choose(model.hardware if isinstance(model, AnalyticClassifier) else "auto")
    targets = about.targets.columns(index.texts).values[index.positions]  # (n, C)
    return least_error(about.encoder.expand(quantised, hardware), targets, hardware)
