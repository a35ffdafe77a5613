"""Repair wrong labels: find suspects, forget them by receipt, learn them again with the right label.

The repaired model is bit for bit the one that had the repaired labels from the start.
"""

import numpy as np
from sklearn.datasets import load_digits

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
from neverseen.backbones import Precomputed

X, truth = load_digits(return_X_y=True)
X, truth, X_test, y_test = X[:1200], truth[:1200], X[1200:], truth[1200:]

# One label in five is wrong.
random = np.random.default_rng(0)
wrong = random.random(len(X)) < 0.2
given = np.where(wrong, (truth + random.integers(1, 10, len(X))) % 10, truth)

settings = AnalyticClassifier(RandomProjection(512), gamma=2**14)
model = ForgettingModel(Precomputed(64), settings)
receipts = model.learn(X, given, ids=range(len(X)))
print(f"{wrong.sum()} of {len(X)} labels are wrong: test accuracy {model.score(X_test, y_test):.3f}")

# Suspects: samples for which the model predicts another label. A person checks them; here, `truth` is that person.
for _ in range(5):
    suspects = np.flatnonzero(model.predict(X) != given)
    confirmed = [row for row in suspects if given[row] != truth[row]]
    if not confirmed:
        break
    model.forget([receipts[row] for row in confirmed])
    given[confirmed] = truth[confirmed]
    again = model.learn(X[confirmed], given[confirmed], ids=confirmed)
    for row, receipt in zip(confirmed, again, strict=True):
        receipts[row] = receipt
    print(
        f"{len(suspects)} suspects, {len(confirmed)} repaired: test accuracy {model.score(X_test, y_test):.3f}, "
        f"{(given != truth).sum()} wrong labels left"
    )

never = ForgettingModel(Precomputed(64), settings)
never.learn(X, given)
assert model.digest() == never.digest()
print(f"equal to the model that never saw the repaired mistakes: {model.digest()}")
