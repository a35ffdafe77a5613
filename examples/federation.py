"""Twenty clinics learn one model together. Nobody shares samples or keys, two clinics leave, and one patient goes.

The server adds what the clinics send. Afterwards its model is bit for bit the one of the samples that are left.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from neverseen import AnalyticClassifier, Federation, RandomProjection

X, y = load_digits(return_X_y=True)
X, y, X_test, y_test = X[:1400], y[:1400], X[1400:], y[1400:]
rows_of = dict(enumerate(np.array_split(np.argsort(y, kind="stable"), 20)))  # a clinic has one or two digits
folder = Path(tempfile.mkdtemp())


def new() -> AnalyticClassifier:
    """Return a model with the settings that all agreed on, and a key of its own."""
    return AnalyticClassifier(RandomProjection(512, seed=7), gamma=2**14)


def sent(clinic: int) -> Path:
    """Return the file that a clinic sends: sums, and digests of its samples, but not the key to these."""
    clinics[clinic].save(folder / f"{clinic}.part", include_key=False)
    return folder / f"{clinic}.part"


# Each clinic learns alone.
clinics = {clinic: new().fit(X[rows], y[rows]) for clinic, rows in rows_of.items()}
alone = np.mean([clinic.score(X_test, y_test) for clinic in clinics.values()])

# The server adds the parts. The order does not matter.
federation = Federation(new())
for clinic in clinics:
    federation.join(f"clinic {clinic}", sent(clinic))
together = federation.classifier.score(X_test, y_test)
print(f"{len(clinics)} clinics: test accuracy {alone:.3f} alone (mean), {together:.3f} together")
assert federation.classifier.digest() == new().fit(X, y).digest()

# Two clinics leave. The server needs nothing from them.
for clinic in (4, 11):
    federation.leave(f"clinic {clinic}")
    del clinics[clinic], rows_of[clinic]

# A patient of clinic 7 wants to be forgotten: the clinic forgets, and sends its part again.
patient, rows_of[7] = rows_of[7][:1], rows_of[7][1:]
clinics[7].forget(X[patient], y[patient])
federation.replace("clinic 7", sent(7))

left = np.concatenate(list(rows_of.values()))
print(f"{len(federation.clients)} clinics left: test accuracy {federation.classifier.score(X_test, y_test):.3f}")
assert federation.classifier.digest() == new().fit(X[left], y[left]).digest()
print(f"equal to the model that never had their samples: {federation.classifier.digest()}")
