"""The exact model: sums, holdings and certified weights under one configuration.

It works on quantised features (int8) and label texts, after `neverseen.encoding.quantise`. `neverseen.model.classifier`
wraps it for float features and scikit-learn. Every method validates first and changes last: if it raises, not a byte
has changed.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from neverseen.engine.arithmetic import GridWeights
from neverseen.engine.following import Following
from neverseen.engine.solver import Solution
from neverseen.engine.statistics import Statistics
from neverseen.errors import (
    ConfigurationError,
    HardwareError,
    InputError,
    NeverseenError,
    NotLearnedError,
    NotTrackedError,
)
from neverseen.hardware import Array, Hardware
from neverseen.holdings import (
    FORGET_CLASS,
    LEARN,
    Change,
    Decision,
    HeldTicket,
    Holdings,
    MemoryHoldings,
    decide,
    members_of,
    moved,
    require_new,
    standing,
)
from neverseen.labels import LabelIndex, as_array, from_text
from neverseen.model.configuration import Configuration, empty_digest, model_digest
from neverseen.model.frozen import CHUNK_ROWS, by_parts, leading
from neverseen.model.hints import Hints
from neverseen.model.row_sums import sums_of
from neverseen.proof.keys import Key
from neverseen.targets import Rows

FEW_ANSWERS = 4
"""Number of labels proved without weights between two changes. For more, computing new weights is cheaper."""


class Checked(NamedTuple):
    """A change that a model accepts, and a token for the state of the model."""

    decision: Decision
    state: object


class Ready(NamedTuple):
    """Weights for one state of a model. They never change, so using them needs no lock."""

    state: object
    weights: GridWeights
    classes: list[str]


class ExactModel:
    """A model that learns and forgets exactly.

    A change is checked, then committed. To do something in between, such as handing out receipts, hold the model
    `locked`.

    Parameters
    ----------
    n_features : int
        Width d0 of the quantised features.
    holdings : Holdings
        The samples held, in memory or in a ledger. Without a key, the model can predict, but not learn or forget.
    statistics : Statistics
        The sums of these samples.
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        holdings: Holdings,
        hardware: Hardware,
        statistics: Statistics,
    ) -> None:
        self.configuration = configuration
        self.configuration_digest = configuration.digest()
        self.n_features = n_features
        self.hardware = hardware
        self.statistics = statistics
        self.holdings = holdings
        self._torn = False
        self._state = object()  # another after each change
        self._lock = threading.RLock()
        self._hints = Hints(configuration, hardware)
        self._ready: Ready | None = None
        configuration.require_tracking(statistics.class_grams is not None)
        self._answered = 0  # labels proved without weights since the last change

    @classmethod
    def in_memory(
        cls,
        configuration: Configuration,
        n_features: int,
        key: Key | None,
        hardware: Hardware,
        track_classes: bool = False,
        class_folder: str | os.PathLike[str] | None = None,
    ) -> ExactModel:
        """Return a new model in memory, without samples."""
        size = configuration.encoder.code_size(n_features)
        statistics = Statistics(size, hardware, track_classes, class_folder, configuration.targets)
        holdings = MemoryHoldings(key, by_class=configuration.targets.one_hot)
        return cls(configuration, n_features, holdings, hardware, statistics)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            left_out = ("_lock", "_state", "_hints", "_ready", "_answered")
            state = {name: value for name, value in vars(self).items() if name not in left_out}
            # Copied now, under the lock: pickle reads the state after the lock is released.
            for name in ("statistics", "holdings"):
                state[name] = copy.deepcopy(state[name], {id(self.hardware): self.hardware})
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._state, self._ready = threading.RLock(), object(), None
        self.discard_hints()

    # -- changes -----------------------------------------------------------------------------------

    def check(self, change: Change) -> Checked:
        """Return an accepted change, or raise. Nothing changes.

        It looks up each id, receipt and digest once. `commit` does not repeat this unless the model changed meanwhile.
        """
        with self.locked():
            if change.kind == FORGET_CLASS:
                self._require_class(change.name)
            else:
                self._require_width(change.quantised)
            seen = change.seen_at is self._state
            return Checked(decide(self.holdings, self.configuration_digest, change, seen=seen), self._state)

    def check_new(self, numbers: Sequence[bytes]) -> object:
        """Raise `IdTakenError` unless all ids are new; return a token for the state of the model."""
        with self.locked():
            require_new(self.holdings, numbers)
            return self._state

    def standing(self, change: Change) -> tuple[list[bool], object]:
        """Return for each ticket of a change whether its sample is held under it; and a token for the state."""
        with self.locked():
            if not change.tickets:
                return [], self._state
            members = members_of(self.holdings, self.configuration_digest, change)
            found = standing(self.holdings, change.tickets, members)
            return [each is not None for each in found], self._state

    def moved(self, change: Change, rows: Sequence[int]) -> tuple[int, ...]:
        """Return the rows whose samples are held with other features."""
        with self.locked():
            members = members_of(self.holdings, self.configuration_digest, change)
            return moved(self.holdings, rows, members, change.contents) if change.contents else ()

    def alike(self, change: Change) -> list[Sequence[HeldTicket]]:
        """Return, for each sample of a change, the tickets of all samples held with its features and label."""
        with self.locked():
            members = members_of(self.holdings, self.configuration_digest, change)
            held = self.holdings.by_members(members)
            return [held[digest].tickets if digest in held else () for _, digest in members]

    def commit(self, checked: Checked) -> None:
        """Make a change: first record it in the holdings, then update the sums. If it raises, nothing has changed."""
        with self.locked():
            decision = checked.decision
            if checked.state is not self._state:  # another change came in between
                decision = self.check(decision.change).decision
            change = decision.change
            if change.kind == FORGET_CLASS:
                self._require_readable([change.name])
                self.statistics.settle()
                self._record(decision)
                with self._following():
                    self.statistics.remove_class(change.name)
                    self.discard_hints()
                return
            if not len(change):
                return
            batch, codes = self.batch(change.quantised, change.labels)
            learning = change.kind == LEARN
            (self.statistics.require_room if learning else self.statistics.require_part)(batch)
            self._require_readable(batch.counts)
            self._record(decision)
            with self._following():
                (self.statistics.merge if learning else self.statistics.subtract)(batch)
                self._hints.note(codes, change.labels, 1 if learning else -1)
                self._answered = 0

    def apply(self, change: Change) -> None:
        """Check a change and make it."""
        with self.locked():
            self.commit(self.check(change))

    def replay(self, change: Change) -> None:
        """Apply a change to the sums that the holdings have recorded already."""
        if change.kind == FORGET_CLASS:
            self.statistics.remove_class(change.name)
            return
        batch, _ = self.batch(change.quantised, change.labels)
        (self.statistics.merge if change.kind == LEARN else self.statistics.subtract)(batch)

    # -- questions: what if ------------------------------------------------------------------------

    def apart(self) -> ExactModel:
        """Return a copy with the same sums and hints, but no holdings, for `without`. They share nothing that changes.

        This model first computes its weights, if it has none: the weights without a few samples follow from them. The
        rest is one copy of the Gram matrix and of the class sums.
        """
        with self.locked():
            if self.statistics.counts:
                self.solution()
            nothing, sums = MemoryHoldings(None), self.statistics.copied(self.configuration.class_weight is not None)
            twin = ExactModel(self.configuration, self.n_features, nothing, self.hardware, sums)
            twin._hints = self._hints.copied()
            return twin

    @contextmanager
    def without(self, quantised: np.ndarray, labels: LabelIndex) -> Iterator[None]:
        """Leave out held samples for a while. Only for a model from `apart`, because nothing is recorded."""
        if not len(labels):
            yield
            return
        batch, codes = self.batch(quantised, labels)
        hints = self._hints
        self.statistics.subtract(batch)
        self._hints, self._state = hints.copied(), object()
        self._hints.note(codes, labels, -1)
        yield
        self.statistics.merge(batch)
        self._hints, self._state = hints, object()

    def _require_class(self, name: str) -> None:
        if name not in self.statistics.counts:
            raise NotLearnedError(f"the model holds no sample of class {name}: never learned, or already forgotten")
        if self.statistics.class_grams is None:
            raise NotTrackedError(
                "forgetting a class without its samples needs the class's own sums: "
                "set track_classes=True before learning, or forget its samples"
            )

    def merge(self, other: ExactModel, *, subtract: bool = False) -> None:
        """Add, or subtract, everything that another model holds. Both are in memory, with the same configuration."""
        if other is self:
            raise InputError("a model cannot be merged with itself: its samples would be held twice")
        ours, theirs = self.holdings, other.holdings
        if not (isinstance(ours, MemoryHoldings) and isinstance(theirs, MemoryHoldings)):
            raise ConfigurationError("only models in memory can be merged: a store learns samples, not models")
        first, second = sorted((self, other), key=id)  # always in this order: two merges cannot block each other
        with first.locked(), second.locked():
            if self.configuration_digest != other.configuration_digest:
                raise ConfigurationError(
                    "the models have different configurations (encoder, gamma, grid_bits or backbone)"
                )
            if self.n_features != other.n_features:
                raise ConfigurationError(f"the models have {self.n_features} and {other.n_features} features")
            (ours.require_part if subtract else ours.require_mergeable)(theirs)
            (self.statistics.require_part if subtract else self.statistics.require_room)(other.statistics)
            self._require_readable(other.statistics.counts)
            other._require_readable(other.statistics.counts)
            self._torn, self._state, self._ready = True, object(), None
            with self._following():
                (self.statistics.subtract if subtract else self.statistics.merge)(other.statistics)
                (ours.subtract if subtract else ours.merge)(theirs)
                self.discard_hints()

    # -- answers -----------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """Canonical texts of the classes, in class order: the columns of the weights."""
        return self.statistics.classes

    def scores(self, quantised: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return exact scores in grid steps, int64 of shape (n, C), and the classes of the columns."""
        self._require_width(quantised)
        ready = self.ready()
        return by_parts(partial(self._scored, ready), quantised, CHUNK_ROWS), ready.classes

    def _scored(self, ready: Ready, quantised: np.ndarray) -> np.ndarray:
        return ready.weights.scores(self.configuration.encoder.expand(quantised, self.hardware))

    def ready(self) -> Ready:
        """Return weights for the model as it is now. If they are computed already, this does not wait."""
        found = self._ready
        if found is not None and found.state is self._state:
            return found
        with self.locked():
            if self._ready is None or self._ready.state is not self._state:
                self._ready = Ready(self._state, GridWeights(self.weights(), self.hardware), self.classes)
            return self._ready

    def labels(self, quantised: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the position of the greatest score of each sample, of shape (n,), and the classes of the positions.

        The result is that of `scores`. But for a few samples after a change, it needs no new weights
        (`neverseen.engine.answering`).
        """
        self._require_width(quantised)
        ready = self._ready
        stale = ready is None or ready.state is not self._state
        if stale and 0 < len(quantised) <= FEW_ANSWERS and self.configuration.followed:
            with self.locked():
                found = self._proved(quantised)
                if found is not None:
                    return found, self.classes
        ready = self.ready()
        if not ready.classes:
            return np.zeros(len(quantised), np.intp), ready.classes
        width = max(self.statistics.size, len(ready.classes))
        return leading(partial(self._scored, ready), quantised, width), ready.classes

    def predict(self, quantised: np.ndarray) -> Any:
        """Return the prediction for each sample; None if the model holds no samples."""
        targets = self.configuration.targets
        if targets.one_hot:
            places, names = self.labels(quantised)
            return as_array([from_text(name) for name in names])[places] if names else None
        scores, names = self.scores(quantised)
        return targets.answers(scores, names, self.configuration.grid_bits) if names else None

    def _proved(self, quantised: np.ndarray) -> np.ndarray | None:
        """Return the positions of the greatest scores, if they can be found cheaply without weights; else None."""
        if self._answered + len(quantised) > FEW_ANSWERS:
            return None
        self._answered += len(quantised)
        found = self._hints.leading(self.statistics, self.configuration.encoder.expand(quantised, self.hardware))
        return found if found is not None and (found >= 0).all() else None

    def digest(self) -> str:
        """Return the SHA-256 of the model: configuration, classes, weights."""
        with self.locked():
            if not self.statistics.total:
                return empty_digest(self.configuration)
            return model_digest(self.configuration_digest, self.n_features, self.classes, self.weights())

    def weights(self) -> np.ndarray:
        """Return the weights in grid steps: int64 of shape (d, C), correctly rounded. Do not write to them."""
        view = self.solution().weights.view()
        view.flags.writeable = False
        return view

    def solution(self) -> Solution | Following:
        """Return the solution behind the weights, with more bits of them."""
        with self.locked():
            return self._hints.solution(self.statistics)

    def gamma(self) -> int:
        """Return the ridge strength of the weights; if the sums choose it, what they choose."""
        gamma = self.configuration.gamma
        return self.solution().gamma if gamma == "auto" else gamma

    def discard_hints(self) -> None:
        """Drop data that only saves time: factors, earlier solutions, codes of recent samples. The bits stay the same.

        Hints are in memory only and are never saved, but they may hold traces of samples forgotten since the last full
        solve or decomposition. So may the sums until waiting samples are added to them, which this does too. Weights
        for the model as it is now stay.
        """
        with self._lock:
            self._hints, self._answered = Hints(self.configuration, self.hardware), 0
            self.statistics.settle()

    # -- inside ------------------------------------------------------------------------------------

    def batch(self, quantised: np.ndarray, index: LabelIndex) -> tuple[Statistics, Array | None]:
        """Return the statistics of a batch, and its codes if they fit one chunk and each is a sample."""
        tracked, targets = self.statistics.class_grams is not None, self.configuration.targets
        if isinstance(targets, Rows):
            return sums_of(quantised, index, targets, self.configuration, self.hardware), None
        expand = self.configuration.encoder.expand
        if len(quantised) <= CHUNK_ROWS:
            codes = expand(quantised, self.hardware)
            return Statistics.of(codes, index, self.hardware, tracked, targets), codes
        total = Statistics(self.statistics.size, self.hardware, tracked, targets=targets)
        for start in range(0, len(quantised), CHUNK_ROWS):
            codes = expand(quantised[start : start + CHUNK_ROWS], self.hardware)
            total.merge(Statistics.of(codes, index.part(start, start + CHUNK_ROWS), self.hardware, tracked, targets))
        return total, None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the model from changing; raise first if it is torn."""
        with self._lock:
            self._require_whole()
            yield

    def _require_width(self, quantised: np.ndarray) -> None:
        if quantised.ndim != 2 or quantised.shape[1] != self.n_features:
            raise InputError(f"samples must have {self.n_features} features; got an array of shape {quantised.shape}")

    def _require_whole(self) -> None:
        if self._torn:
            raise HardwareError(
                "an earlier change of this model was cut off half-way; load it again from its last saved file, or open "
                "its store again"
            )

    def _require_readable(self, classes: Iterable[str]) -> None:
        """Raise if the sums of some classes, which may be in files, cannot be read. Nothing is recorded yet."""
        if self.statistics.class_grams is not None:
            self.statistics.class_grams.require(classes)

    def _record(self, decision: Decision) -> None:
        """Record a change as a whole or not at all. From then on, the model is torn until its sums are updated.

        So an interrupt half-way never leaves a false state. After a refusal the model is not torn, unless the refusal
        is uncertain: the connection was lost during the commit.
        """
        self._torn, self._state, self._ready = True, object(), None
        try:
            self.holdings.record(decision)
        except NeverseenError as error:
            self._torn = getattr(error, "uncertain", False)
            raise

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Update the sums after a change was recorded. An exception raised here says that the change may be made."""
        try:
            yield
        except BaseException as error:
            error.uncertain = True  # type: ignore[attr-defined]
            raise
        self._torn = False
