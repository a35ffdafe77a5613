"""Samples that have many rows each (`neverseen.targets.rows`): read, put in order, and predicted as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from neverseen.backbones import Backbone
from neverseen.backbones.contents import as_list, fingerprint_of_rows
from neverseen.backbones.reading import Grouped, Prepared, as_samples, require_own, to_predict
from neverseen.errors import ConfigurationError, InputError, LabelError, NotLearnedError
from neverseen.labels import Label, LabelIndex
from neverseen.model.frozen import FrozenWeights
from neverseen.model.inputs import label_list
from neverseen.proof.receipts import FEATURES_LIMIT, TEXT_LIMIT
from neverseen.targets import Rows, Targets

if TYPE_CHECKING:
    from neverseen.model.exact import ExactModel
    from neverseen.model.forgetting import ForgettingModel

__all__ = ["predict_together"]


class Publisher(Protocol):
    """What publishes versions: a `neverseen.store.Store`."""

    backbone: Backbone

    def version(self) -> FrozenWeights:
        """Return the published version."""


def as_given(samples: Any, targets: Targets, n_features: int) -> list[Any] | Grouped | Prepared:
    """Return samples as `prepare` takes them. Each sample of many rows is a list or an array of its rows.

    Its size is checked here, before any work is done: a receipt holds all of its rows.
    """
    found = as_samples(samples)
    if isinstance(found, Prepared) and (found.lengths is not None) != isinstance(targets, Rows):
        raise InputError("these samples were prepared for a model with other targets: give the samples themselves")
    if not isinstance(targets, Rows):
        return found
    grouped = _grouped(found)
    most = min(targets.most, FEATURES_LIMIT // n_features)
    for place, length in enumerate(grouped.lengths or ()):
        if length > most:
            raise InputError(
                f"sample {place} has {length} rows: at most {most} fit, as most={targets.most}, and a receipt holds "
                f"{FEATURES_LIMIT:,} features. Split it into several samples"
            )
    return grouped


def _grouped(samples: list[Any] | Prepared) -> Grouped | Prepared:
    """Return samples of any number of rows, but at least one."""
    if isinstance(samples, Prepared):
        return samples
    rows, lengths = list[Any](), []
    for place, sample in enumerate(samples):
        if not isinstance(sample, list | tuple | np.ndarray) or (isinstance(sample, np.ndarray) and sample.ndim < 2):
            raise InputError(
                f"sample {place} must be a list or an array of its rows, because of targets=Rows(); it is of type "
                f"{type(sample).__name__}. Such samples are given from Python: the command line has one row for each"
            )
        its_rows = as_list(sample)
        if not its_rows:
            raise InputError(f"sample {place} has no rows: leave it out")
        rows += its_rows
        lengths.append(len(its_rows))
    return Grouped(rows, tuple(lengths))


def indexed(
    labels: Any, samples: list[Any] | Grouped | Prepared, targets: Targets, any_label: bool = False
) -> tuple[LabelIndex, np.ndarray | None]:
    """Return labels as an index, one for each sample; and the order of all rows, as places, where samples have many."""
    if labels is None or isinstance(labels, str | bytes | dict | set):
        raise InputError(f"labels must be a sequence, one label for each sample; got {type(labels).__name__}")
    given = labels if hasattr(labels, "__array__") or isinstance(labels, list | tuple) else list(labels)
    order = None
    try:
        if isinstance(targets, Rows) and not isinstance(samples, list):
            each = list(np.asarray(given) if hasattr(given, "__array__") else given)
            found, order = _labelled(each, samples.lengths or (), targets, any_label)
        else:
            found = label_list(given, any_label, targets)
        index = LabelIndex(found)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"labels cannot be used: {error}") from error
    if len(index) != len(samples):
        raise InputError(f"there are {len(samples)} samples and {len(index)} labels: give one label for each sample")
    require_short("labels", index.texts)
    return index, order


def _labelled(
    labels: list[Any], lengths: Sequence[int], targets: Rows, any_label: bool
) -> tuple[list[Label], np.ndarray]:
    """Return the labels of samples, and the order of all rows: in each sample, by the labels of its rows."""
    found, order, start = list[Label](), [np.empty(0, np.intp)], 0
    if len(labels) != len(lengths):
        raise InputError(f"there are {len(lengths)} samples and {len(labels)} labels: give one label for each sample")
    for place, (given, count) in enumerate(zip(labels, lengths, strict=True)):
        try:
            label, places = targets.gathered(given, count, any_label)
        except LabelError as error:
            raise LabelError(f"sample {place}: {error}") from None
        found.append(label)
        order.append(start + places)
        start += count
    return found, np.concatenate(order)


def require_short(what: str, texts: Iterable[str]) -> None:
    """Raise `InputError` if a text is too long for a receipt."""
    longest = max(map(len, texts), default=0)  # canonical texts are ASCII: a letter is a byte
    if longest > TEXT_LIMIT:
        raise InputError(f"one of the {what} is {longest} bytes long in its canonical form; at most {TEXT_LIMIT} fit")


def ordered(prepared: Prepared, order: np.ndarray | None) -> Prepared:
    """Return samples with their rows in order, and with a fingerprint for each sample."""
    if order is None or prepared.lengths is None:
        return prepared
    prints, start = [], 0
    for count in prepared.lengths:
        prints.append(fingerprint_of_rows([prepared.fingerprints[at] for at in order[start : start + count]]))
        start += count
    return Prepared(prepared.quantised[order], prints, scale=prepared.scale, lengths=prepared.lengths)


def parted(quantised: np.ndarray, lengths: Sequence[int] | None) -> np.ndarray | list[np.ndarray]:
    """Return the quantised features of each sample."""
    if lengths is None:
        return quantised
    return np.split(quantised, np.cumsum(lengths)[:-1]) if lengths else []


def predict_together(model: ForgettingModel | Publisher, samples: Any, by: str = "scores") -> Any:
    """Return one prediction for each sample of many rows.

    Of a store, the published version answers. All is exact: sums are sums of integers.

    Parameters
    ----------
    model : ForgettingModel or Store
        With ``targets=Rows(...)``.
    samples : sequence of samples, each a list or an array of its rows
    by : {"scores", "majority"}
        By scores, the scores of the rows are added, and the sums answer as the scores of a row do: the class with the
        greatest sum, the first in class order among equals; each label whose sum is at least half that of ``null``; of
        numbers, the mean over the rows. By majority, each row has a vote for its class, and ties are settled in the
        same way.

    Examples
    --------
    >>> from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
    >>> from neverseen.backbones import Precomputed
    >>> from neverseen.targets import Rows
    >>> texts = np.random.default_rng(0).normal(size=(20, 5, 3))  # twenty texts, five passages each
    >>> topics = ["sport" if text.sum() > 0 else "law" for text in texts]
    >>> classifier = AnalyticClassifier(RandomProjection(32), gamma=2**10, targets=Rows())
    >>> model = ForgettingModel(Precomputed(3), classifier)
    >>> receipts = model.learn(texts, topics)
    >>> len(receipts), len(model.predict(texts[0])), len(predict_together(model, texts))
    (20, 5, 20)
    """
    version = getattr(model, "version", None)
    weights: FrozenWeights | ExactModel | None = version() if version else model.classifier.exact  # type: ignore
    if weights is None or not weights.classes:
        raise NotLearnedError("the model holds no samples, so it has nothing to predict with")
    about = weights.configuration
    if not isinstance(about.targets, Rows):
        raise ConfigurationError(f"a sample of this model is one row, as its targets are {about.targets}: use predict")
    given = _grouped(as_samples(require_own(samples, about.backbone)))
    prepared = to_predict(model.backbone, about.encoder, given.rows if isinstance(given, Grouped) else given)
    found = weights.scores(prepared.quantised)
    scores, names = found if isinstance(found, tuple) else (found, weights.classes)
    lengths = (1,) * len(scores) if given.lengths is None else given.lengths
    return about.targets.together(scores, lengths, names, about.grid_bits, by)
