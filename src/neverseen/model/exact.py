"""The exact model: statistics, membership and certified weights under one configuration.

It works on quantised features (int8) and label texts, after `neverseen.encoding.quantise`;
`neverseen.model.classifier` puts floats and scikit-learn in front of it. Verbs validate first and change last: one
that raises has left every byte as it was.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neverseen.encoding import Encoder, encoder_of, whole_number
from neverseen.engine.arithmetic import GridWeights
from neverseen.engine.following import Following, can_follow
from neverseen.engine.preconditioning import NoProgressError, Preconditioner, can_correct, corrected
from neverseen.engine.solver import Solution, solve
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
from neverseen.labels import LabelIndex, canonical_json
from neverseen.proof.keys import Key

CHUNK_ROWS = 32768
"""Samples encoded and summed at a time, to bound memory. Any value gives the same bits."""

_HEX_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Configuration:
    """What shapes a model and is fixed before its first sample."""

    encoder: Encoder
    gamma: int  # ridge strength, a whole number from 1 to 2**40
    grid_bits: int  # weights are multiples of 2**-grid_bits; from 1 to 52
    # digest of what makes the features, 64 hex digits; None if the features come from the caller
    backbone: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", whole_number("gamma", self.gamma, 1, 2**40))
        object.__setattr__(self, "grid_bits", whole_number("grid_bits", self.grid_bits, 1, 52))
        self.encoder.configuration()  # raises if its settings are unusable
        if self.backbone is not None and not (isinstance(self.backbone, str) and _HEX_DIGEST.fullmatch(self.backbone)):
            raise ConfigurationError(
                f"backbone must be a backbone's digest(), 64 hex digits, or None; got {self.backbone!r}"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        settings = {
            "encoder": self.encoder.configuration(),
            "format": 1,
            "gamma": self.gamma,
            "grid_bits": self.grid_bits,
        }
        return settings if self.backbone is None else settings | {"backbone": self.backbone}

    @classmethod
    def from_json(cls, settings: dict[str, Any], array: np.ndarray | None = None) -> Configuration:
        """Return the configuration that `as_json` gave; an encoder may also need its array."""
        encoder = encoder_of(settings["encoder"], array)
        configuration = cls(encoder, settings["gamma"], settings["grid_bits"], settings.get("backbone"))
        if configuration.as_json() != settings:
            raise ConfigurationError("the configuration is not one that there can be")
        return configuration

    def digest(self) -> bytes:
        """Return the SHA-256 of the configuration."""
        return hashlib.sha256(canonical_json(self.as_json()).encode()).digest()


def empty_digest(configuration: Configuration) -> str:
    """Return the digest of a model that holds no sample."""
    return model_digest(configuration.digest(), 0, [], np.zeros((0, 0), np.int64))


def model_digest(configuration: bytes, n_features: int, classes: list[str], weights: np.ndarray) -> str:
    """Return the SHA-256 of what a model is, in hex: configuration digest, features, classes, grid weights."""
    hasher = hashlib.sha256(b"neverseen:model:1" + configuration)
    hasher.update(struct.pack("<QQQ", n_features, *weights.shape))
    for name in classes:
        hasher.update(struct.pack("<Q", len(name)) + name.encode())
    hasher.update(np.ascontiguousarray(weights, dtype="<i8").tobytes())
    return hasher.hexdigest()


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


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
        self._hint: tuple[Solution | Following, list[str]] | None = None  # an earlier solution and its classes
        self._changes: list[tuple[Array, np.ndarray, list[str]]] = []  # codes, signs and classes since then
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
            state = {
                name: value
                for name, value in vars(self).items()
                if name not in ("_lock", "_state", "_hint", "_changes", "_weights")
            }
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
            self._record(decision)
            with self._following():
                (self.statistics.merge if learning else self.statistics.subtract)(batch)
                self._note(codes, change.labels, 1 if learning else -1)

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

    # -- hints -------------------------------------------------------------------------------------

    def discard_hints(self) -> None:
        """Drop what only saves time: factors, earlier solutions, codes of recent samples. The bits stay the same.

        Hints live in memory alone and are never saved, but they may hold traces of samples forgotten since the last
        full solve. So may the sums, until they are settled, as they are here.
        """
        with self._lock:
            self._drop_hint()
            self.statistics.settle()

    def _drop_hint(self) -> None:
        self._hint, self._changes, self._weights = None, [], None

    def _note(self, codes: Array | None, index: LabelIndex, sign: int) -> None:
        """Remember a change that the last solution helps with; a larger one makes the hint useless."""
        self._weights = None
        if self._hint is None or codes is None or not self._helps(self._hint[0], self._waiting() + len(index)):
            self._drop_hint()
            return
        names = [index.texts[position] for position in index.positions]
        self._changes.append((codes, np.full(len(names), sign), names))

    def _waiting(self) -> int:
        """Return how many samples came or went since the last solution."""
        return sum(len(signs) for _, signs, _ in self._changes)

    def _helps(self, solution: Solution | Following, samples: int) -> bool:
        """Return whether a solution helps to the one after so many samples came or went."""
        size = self.statistics.size
        return can_follow(samples, size, self.hardware) or can_correct(solution.preconditioner, samples, size)

    def weights(self) -> np.ndarray:
        """Return the weights in grid steps: int64 of shape (d, C), correctly rounded, not to be written to."""
        with self.locked():
            statistics, classes = self.statistics, self.classes
            if self._hint is not None and not self._changes:
                return _read_only(self._hint[0].weights)
            cross = statistics.cross_here()
            solution: Solution | Following | None = self._followed(cross, classes)
            if solution is None:
                hint = self._corrected()
                self._drop_hint()  # frees the old factor before a new one is made, unless it was corrected
                solution = solve(
                    statistics.gram,
                    cross,
                    self.configuration.gamma,
                    self.configuration.grid_bits,
                    hint=hint,
                    hardware=self.hardware,
                )
            self._hint, self._changes = (solution, classes), []
            return _read_only(solution.weights)

    def solution(self) -> Solution | Following:
        """Return the solution behind the weights, with more bits of them; for a model that holds samples."""
        with self.locked():
            self.weights()
            if self._hint is None:
                raise NotLearnedError("the model holds no samples, and so has no solution")
            return self._hint[0]

    def _followed(self, cross: Array, classes: list[str]) -> Following | None:
        """Return the solution that the changes since the last one lead to, if they are small."""
        if self._hint is None or not can_follow(self._waiting(), self.statistics.size, self.hardware):
            return None
        earlier, columns = self._hint
        following = Following.of(earlier, self.hardware) if isinstance(earlier, Solution) else earlier
        if following is None or not columns:
            return None
        codes, signs = self._changed()
        place = {name: position for position, name in enumerate(classes)}
        targets = np.array([place.get(name, -1) for _, _, names in self._changes for name in names], dtype=np.intp)
        old_place = {name: position for position, name in enumerate(columns)}
        following = following.with_columns([old_place.get(name, -1) for name in classes])
        return following.after(self.statistics.gram, cross, codes, signs, targets, self.hardware)

    def _corrected(self) -> Preconditioner | None:
        """Return the inverse behind the last solution, corrected for the changes since, if that saves a factor.

        Where changes are few, it does not: then they were not followed because a new factor is due.
        """
        if self._hint is None or not self._hint[1]:
            return None
        current, waiting, size = self._hint[0].preconditioner, self._waiting(), self.statistics.size
        if can_follow(waiting, size, self.hardware) or not can_correct(current, waiting, size):
            return None
        codes, signs = self._changed()
        try:
            return corrected(current, self.hardware.float64(codes), signs, self.hardware)
        except NoProgressError:
            return None

    def _changed(self) -> tuple[Array, np.ndarray]:
        """Return the codes that came or went since the last solution, and their signs."""
        codes = self.hardware.concatenate([codes for codes, _, _ in self._changes], 0)
        return codes, np.concatenate([signs for _, signs, _ in self._changes])

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
