"""Many rows in one sample: eight rows of a phase make a picture, with a class for each of its parts, as in CFSSeg.

What is learned is the same as for single rows. What is forgotten goes by receipts: if some parts of a picture are to
go, the whole picture is forgotten, and what stays of it is learned again.
"""

from __future__ import annotations

import numpy as np

from benchmarks.learners.contestants import Exact, Published
from benchmarks.learners.references import CFSSeg
from neverseen import AnalyticClassifier, ForgettingModel, Keyring
from neverseen.backbones import Precomputed

PARTS = 8


class Pictures(Exact):
    """A `ForgettingModel` with ``targets=Rows()``, asked for the class of each row."""

    def __init__(self, classifier: AnalyticClassifier, width: int) -> None:
        self.pictures = ForgettingModel(Precomputed(width), classifier, Keyring.generate(classifier.key))
        self.model = self.pictures.classifier
        self.held: dict[int, list[tuple[bytes, np.ndarray, np.ndarray]]] = {}  # by part: receipt, rows, labels

    def learn(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Learn some rows as pictures."""
        places = np.arange(PARTS, len(rows), PARTS)
        samples, names = np.split(rows, places), np.split(labels, places)
        receipts = self.pictures.learn(samples, names)
        self.held.setdefault(part, []).extend(zip(receipts, samples, names, strict=True))

    def forget(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Forget the pictures with these rows, by their receipts; learn what is left of them again."""
        gone = {row.tobytes() for row in rows}
        held, self.held[part] = self.held[part], []
        for receipt, its_rows, names in held:
            left = np.array([row.tobytes() not in gone for row in its_rows])
            if left.all():
                self.held[part].append((receipt, its_rows, names))
                continue
            self.pictures.forget(receipt)
            if left.any():
                self.learn(its_rows[left], names[left], part)


class Maps(Published):
    """CFSSeg, which learns pictures as maps of features with maps of labels."""

    def __init__(self, learner: CFSSeg) -> None:
        super().__init__(learner)

    def learn(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase; the last picture is filled up with parts that the formula leaves out."""
        lacking = -len(rows) % PARTS
        parts = np.concatenate([rows, np.zeros((lacking, rows.shape[1]), rows.dtype)])
        names = np.concatenate([labels, np.full(lacking, CFSSeg.ignored)])
        self.learner.learn(parts.reshape(-1, 1, PARTS, rows.shape[1]), names.reshape(-1, 1, PARTS))
