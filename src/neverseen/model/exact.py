"""The exact model: statistics, membership and certified weights under one configuration.

It works on quantised features (int8) and label texts, after `neverseen.encoding.quantise`;
`neverseen.model.classifier` puts floats and scikit-learn in front of it. Verbs validate first and change last: one
that raises has left every byte as it was.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from neverseen.engine.arithmetic import GridWeights
from neverseen.engine.following import Following
from neverseen.engine.solver import Solution
from neverseen.engine.statistics import Statistics
from neverseen.errors import ConfigurationError, HardwareError, InputError, NeverseenError, NotLearnedError
from neverseen.hardware import Array, Hardware
from neverseen.holdings import (
    FORGET_CLASS,
    LEARN,
    Change,
    Decision,
    Holdings,
    Member,
    MemoryHoldings,
    Ticket,
    decide,
    members_of,
    moved,
    require_new,
    standing,
)
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration, empty_digest, model_digest
from neverseen.model.hints import Hints
from neverseen.proof.keys import Key

CHUNK_ROWS = 32768
"""Samples encoded and summed at a time, to bound memory. Any value gives the same bits."""


class Checked(NamedTuple):
    """A change that a model has found good, and what stands for the state in which it is."""

    decision: Decision
    state: object


class ExactModel:
    """A model that learns and forgets exactly.

    A change is checked, then committed: what is to happen between the two, such as handing out receipts, happens there,
    with the model `locked`.

    Parameters
    ----------
    configuration : Configuration
    n_features : int
        Width d0 of the quantised features.
    holdings : Holdings
        Which samples are held, in memory or in a ledger. Without a key the model can predict, not learn or forget.
    hardware : Hardware
    statistics : Statistics
        Sums of the samples held.
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
        self._weights: GridWeights | None = None

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
        """Return a model that holds nothing yet, in memory."""
        size = configuration.encoder.code_size(n_features)
        statistics = Statistics(size, hardware, track_classes, class_folder)
        return cls(configuration, n_features, MemoryHoldings(key), hardware, statistics)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            left_out = ("_lock", "_state", "_hints", "_weights")
            state = {name: value for name, value in vars(self).items() if name not in left_out}
            # Copied here, where nothing changes: who pickles walks through it when the lock is open again.
            for name in ("statistics", "holdings"):
                state[name] = copy.deepcopy(state[name], {id(self.hardware): self.hardware})
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._state = threading.RLock(), object()
        self.discard_hints()

    # -- changes -----------------------------------------------------------------------------------

    def check(self, change: Change) -> Checked:
        """Return a change that may be made, or raise why it may not. Nothing is changed.

        It finds each id, receipt and digest once; `commit` does not look again unless the model changed meanwhile.
        """
        with self.locked():
            if change.kind == FORGET_CLASS:
                self._require_class(change.name)
            else:
                self._require_width(change.quantised)
            seen = change.seen_at is self._state
            return Checked(decide(self.holdings, self.configuration_digest, change, seen=seen), self._state)

    def check_new(self, tickets: Sequence[Ticket]) -> object:
        """Raise `IdTakenError` unless all ids are new; return what stands for the state in which they are."""
        with self.locked():
            require_new(self.holdings, tickets)
            return self._state

    def standing(self, change: Change) -> tuple[list[bool], object]:
        """Return, for each ticket of a change, whether its sample is held under it, and what stands for the state."""
        with self.locked():
            if not change.tickets:
                return [], self._state
            members = self.members(change.quantised, change.labels)
            return standing(self.holdings, change.tickets, members), self._state

    def moved(self, change: Change, rows: Sequence[int]) -> tuple[int, ...]:
        """Return those of some rows whose samples are held with other features."""
        with self.locked():
            members = self.members(change.quantised, change.labels)
            return moved(self.holdings, rows, members, change.contents) if change.contents else ()

    def members(self, quantised: np.ndarray, labels: LabelIndex) -> list[Member]:
        """Return class and digest of each sample."""
        return members_of(self.holdings, self.configuration_digest, quantised, labels)

    def commit(self, checked: Checked) -> None:
        """Make a change: what lasts is on disk first, then the sums follow. One that raises has changed nothing."""
        with self.locked():
            decision = checked.decision
            if checked.state is not self._state:  # somebody else's change came between
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
                self._weights = None

    def apply(self, change: Change) -> None:
        """Check a change and make it."""
        with self.locked():
            self.commit(self.check(change))

    def replay(self, change: Change) -> None:
        """Let the sums follow a change that the holdings have already."""
        if change.kind == FORGET_CLASS:
            self.statistics.remove_class(change.name)
            return
        batch, _ = self.batch(change.quantised, change.labels)
        (self.statistics.merge if change.kind == LEARN else self.statistics.subtract)(batch)

    # -- questions: what if ------------------------------------------------------------------------

    def apart(self) -> ExactModel:
        """Return a model of the same sums and hints and no holdings, for `without`. It shares nothing that changes.

        The weights of this model are computed first, if they are not known: those without a few samples follow from
        them. The rest takes one copy of the Gram matrix and of the class sums.
        """
        with self.locked():
            if self.statistics.counts:
                self.solution()
            nothing, sums = MemoryHoldings(None), self.statistics.copied()
            twin = ExactModel(self.configuration, self.n_features, nothing, self.hardware, sums)
            twin._hints = self._hints.copied()
            return twin

    @contextmanager
    def without(self, quantised: np.ndarray, labels: LabelIndex) -> Iterator[None]:
        """Let samples that are held be left out for a while; only of a model that is `apart`: there is no record."""
        if not len(labels):
            yield
            return
        batch, codes = self.batch(quantised, labels)
        hints = self._hints
        self.statistics.subtract(batch)
        self._hints, self._weights = hints.copied(), None
        self._hints.note(codes, labels, -1)
        yield
        self.statistics.merge(batch)
        self._hints, self._weights = hints, None

    def _require_class(self, name: str) -> None:
        if name not in self.statistics.counts:
            raise NotLearnedError(f"the model holds no sample of class {name}: never learned, or already forgotten")
        if self.statistics.class_grams is None:
            raise ConfigurationError(
                "forgetting a class without its samples needs the class's own sums: "
                "set track_classes=True before learning, or forget its samples"
            )

    def merge(self, other: ExactModel) -> None:
        """Add all that another model holds: same configuration, same key; both in memory."""
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
            ours.require_mergeable(theirs)
            self.statistics.require_room(other.statistics)
            self._require_readable(other.statistics.counts)
            other._require_readable(other.statistics.counts)
            self._torn, self._state = True, object()
            with self._following():
                self.statistics.merge(other.statistics)
                ours.merge(theirs)
                self.discard_hints()

    # -- answers -----------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """Canonical texts of the classes, in class order: the columns of the weights."""
        return self.statistics.classes

    def scores(self, quantised: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return exact scores in grid steps, int64 of shape (n, C), and the classes that the columns stand for."""
        with self.locked():
            self._require_width(quantised)
            if self._weights is None:
                self._weights = GridWeights(self.weights(), self.hardware)
            parts = [
                self._weights.scores(
                    self.configuration.encoder.expand(quantised[start : start + CHUNK_ROWS], self.hardware)
                )
                for start in range(0, max(1, len(quantised)), CHUNK_ROWS)
            ]
            return np.concatenate(parts), self.classes

    def digest(self) -> str:
        """Return the SHA-256 of what the model is: configuration, classes, weights."""
        with self.locked():
            if not self.statistics.total:
                return empty_digest(self.configuration)
            return model_digest(self.configuration_digest, self.n_features, self.classes, self.weights())

    def weights(self) -> np.ndarray:
        """Return the weights in grid steps: int64 of shape (d, C), correctly rounded, not to be written to."""
        view = self.solution().weights.view()
        view.flags.writeable = False
        return view

    def solution(self) -> Solution | Following:
        """Return the solution behind the weights, with more bits of them."""
        with self.locked():
            return self._hints.solution(self.statistics)

    def discard_hints(self) -> None:
        """Drop what only saves time: factors, earlier solutions, codes of recent samples. The bits stay the same.

        Hints live in memory alone and are never saved, but they may hold traces of samples forgotten since the last
        full solve. So may the sums, until they are settled, as they are here.
        """
        with self._lock:
            self._hints, self._weights = Hints(self.configuration, self.hardware), None
            self.statistics.settle()

    # -- inside ------------------------------------------------------------------------------------

    def batch(self, quantised: np.ndarray, index: LabelIndex) -> tuple[Statistics, Array | None]:
        """Return the statistics of a batch, and its codes if they fit one chunk."""
        tracked = self.statistics.class_grams is not None
        expand = self.configuration.encoder.expand
        if len(quantised) <= CHUNK_ROWS:
            codes = expand(quantised, self.hardware)
            return Statistics.of(codes, index, self.hardware, tracked), codes
        total = Statistics(self.statistics.size, self.hardware, tracked)
        for start in range(0, len(quantised), CHUNK_ROWS):
            codes = expand(quantised[start : start + CHUNK_ROWS], self.hardware)
            total.merge(Statistics.of(codes, index.part(start, start + CHUNK_ROWS), self.hardware, tracked))
        return total, None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the model still, having made sure that it is whole."""
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
        """Raise if the sums of some classes, which may be in files, cannot be read: nothing is on record yet."""
        if self.statistics.class_grams is not None:
            self.statistics.class_grams.require(classes)

    def _record(self, decision: Decision) -> None:
        """Put a change on record, all of it or nothing. From here on the model is torn until its sums have followed.

        So an interrupt in the middle can never pass for a state. A refusal is no tear, unless it is uncertain whether
        it was one: then a connection was lost while it committed.
        """
        self._torn, self._state = True, object()
        try:
            self.holdings.record(decision)
        except NeverseenError as error:
            self._torn = getattr(error, "uncertain", False)
            raise

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Let the sums follow what is on record. What is raised meanwhile says that the change may have been made."""
        try:
            yield
        except BaseException as error:
            error.uncertain = True  # type: ignore[attr-defined]
            raise
        self._torn = False
