"""`Federation`: the exact sum of the models of clients that share no key and no samples."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from sklearn.base import clone

from neverseen.errors import ConfigurationError, FileRejectedError, InputError, NotLearnedError
from neverseen.hardware import choose
from neverseen.holdings import JointHoldings
from neverseen.model import saving
from neverseen.model.classifier import AnalyticClassifier
from neverseen.model.exact import ExactModel
from neverseen.model.forgetting import ForgettingModel

Part = AnalyticClassifier | ForgettingModel | str | os.PathLike[str]
"""A client's model, or the file that its ``save(path, include_key=False)`` wrote."""


class Federation:
    """The sum of the models of many clients, each with its own membership key. Any of them can leave, exactly.

    A client learns alone, and gives its *part*: the file of its model without the key. The sum is bit for bit the model
    that learned all samples in one place. After a client has left, it is the one that never had its samples.

    The sum itself learns, forgets and merges nothing. To forget a sample, a client forgets it in its own model, and
    calls for `replace` with its new part. A part holds sums of samples: **guard it like the data**.

    Parameters
    ----------
    classifier : AnalyticClassifier, optional
        Only its settings are used, except for the key. All clients need the same ones.

    Attributes
    ----------
    clients : dict of str to str
        The SHA-256 of each client's part, by the client's name.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, Federation, RandomProjection
    >>> X = np.random.default_rng(0).normal(size=(90, 5)); y = np.where(X[:, 0] > 0, "cat", "dog")
    >>> settings = AnalyticClassifier(RandomProjection(32), gamma=2**12)
    >>> federation = Federation(settings)
    >>> for name, rows in [("Aachen", slice(0, 30)), ("Bern", slice(30, 60)), ("Cork", slice(60, 90))]:
    ...     federation.join(name, AnalyticClassifier(RandomProjection(32), gamma=2**12).fit(X[rows], y[rows]))
    >>> federation.classifier.digest() == settings.fit(X, y).digest()
    True
    >>> federation.leave("Cork")
    >>> federation.classifier.digest() == settings.fit(X[:60], y[:60]).digest()
    True
    """

    def __init__(self, classifier: AnalyticClassifier | None = None) -> None:
        settings = AnalyticClassifier() if classifier is None else classifier
        if not isinstance(settings, AnalyticClassifier):
            raise ConfigurationError(f"classifier must be an AnalyticClassifier; got {type(settings).__name__}")
        self._settings = clone(settings).set_params(key=None)
        self._lock = threading.RLock()
        self._held: tuple[dict[str, bytes], ExactModel | None] = {}, None  # the parts and their sum: replaced as one

    def join(self, name: str, part: Part) -> None:
        """Add the part of a new client. If it is refused, nothing has changed."""
        if not isinstance(name, str):
            raise InputError(f"the name of a client is a text; got {name!r}")
        if name in self._held[0]:
            raise InputError(f"there is a client {name!r} already: use replace, or another name")
        self._change(name, None, _content(part))

    def replace(self, name: str, part: Part) -> None:
        """Put another part in the place of a client's, in one step. If it is refused, nothing has changed."""
        self._change(name, self._part(name), _content(part))

    def leave(self, name: str) -> None:
        """Subtract everything that a client brought, and drop its part."""
        self._change(name, self._part(name), None)

    @property
    def classifier(self) -> AnalyticClassifier:
        """The sum as it is now: it predicts, and can be saved. After a change, take the new one."""
        found: AnalyticClassifier = clone(self._settings)
        whole = self._held[1]
        if whole is not None:
            found.hold(whole)
        return found

    @property
    def clients(self) -> dict[str, str]:  # noqa: D102  # in the class
        return {name: hashlib.sha256(part).hexdigest() for name, part in sorted(self._held[0].items())}

    # -- inside ------------------------------------------------------------------------------------

    def _change(self, name: str, gone: bytes | None, new: bytes | None) -> None:
        """Subtract one part and add another. The sum is made anew, so an interrupt leaves the old one as it was."""
        added = None if new is None else _parsed(new)
        with self._lock:
            parts, whole = self._held
            if parts.get(name) != gone:
                raise InputError(f"the part of {name!r} was changed by another thread meanwhile")
            others = {other: part for other, part in parts.items() if other != name}
            if added is not None and new is not None:
                self._require_fit(added, new, others)
                others[name] = new
            sum_ = None
            if others:
                holdings = JointHoldings(by_class=self._settings.configuration().targets.one_hot)
                sum_ = self._empty((whole or added).n_features, holdings)  # type: ignore[union-attr]  # one is there
                if whole is not None:
                    sum_.merge(whole)
                if gone is not None:
                    sum_.merge(_parsed(gone), subtract=True)
                if added is not None:
                    sum_.merge(added)
                holdings.complete = True
            self._held = others, sum_

    def _require_fit(self, added: ExactModel, raw: bytes, others: dict[str, bytes]) -> None:
        ours, theirs = self._settings.configuration().as_json(), added.configuration.as_json()
        differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        if bool(self._settings.track_classes) != (added.statistics.class_grams is not None):
            differing.append("track_classes")
        if differing:
            raise ConfigurationError(f"the part has another {', '.join(differing)} than the federation")
        for name, part in others.items():
            if part == raw:
                raise InputError(f"this is the part of {name!r}: its samples would be held twice")

    def _part(self, name: str) -> bytes:
        parts = self._held[0]
        if name not in parts:
            raise NotLearnedError(f"the federation has no client {name!r}")
        return parts[name]

    def _empty(self, n_features: int, holdings: JointHoldings) -> ExactModel:
        made = self._settings.new_model(n_features)
        return ExactModel(made.configuration, n_features, holdings, made.hardware, made.statistics)


def _content(part: Part) -> bytes:
    found = part.classifier if isinstance(part, ForgettingModel) else part
    if not isinstance(found, AnalyticClassifier):
        if not isinstance(found, str | os.PathLike):
            raise InputError(f"a part is a model, or the path of its file; got {type(found).__name__}")
        return Path(found).read_bytes()
    if found.exact is None:
        raise NotLearnedError("the part holds no samples: such a client is no part of a federation")
    return saving.content(found.exact)


def _parsed(raw: bytes) -> ExactModel:
    try:
        model = saving.parsed(raw, choose("numpy"))
    except FileRejectedError as error:
        raise FileRejectedError(f"the part is not a model that can be loaded: {error}") from error
    if model is None:
        raise NotLearnedError("the part holds no samples: such a client is no part of a federation")
    if model.holdings.key is not None:
        raise InputError(
            "the part has its client's key in it, which nobody else may have: save it with include_key=False"
        )
    return model
