"""A scikit-learn pipeline that forgets exactly, and one that only seems to.

Rule: nothing before the classifier may be fitted on data that may be forgotten.
"""

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from neverseen import AnalyticClassifier, RandomProjection

X, y = load_wine(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
base, X, y = X[:20], X[20:], y[20:]  # 20 wines that are public and stay for good


def classifier() -> AnalyticClassifier:
    """Return a classifier that has learned nothing."""
    return AnalyticClassifier(RandomProjection(512), gamma=2**14)


# Wrong: the scaler's means include the wines that will be forgotten.
wrong = make_pipeline(StandardScaler(), classifier()).fit(X, y)
wrong[-1].forget(wrong[:-1].transform(X[:10]), y[:10])
never = make_pipeline(StandardScaler(), classifier()).fit(X[10:], y[10:])
print("scaler fitted on everything: equal to never seen?", wrong[-1].digest() == never[-1].digest())
assert wrong[-1].digest() != never[-1].digest()  # the forgotten wines live on in the scaler

# Right: the scaler is fitted once, on wines that nobody will ask to forget, and then frozen.
scaler = StandardScaler().fit(base)
model = classifier().partial_fit(scaler.transform(X), y)
model.forget(scaler.transform(X[:10]), y[:10])
never_saw = classifier().fit(scaler.transform(X[10:]), y[10:])
print("scaler fitted on a base set: equal to never seen?", model.digest() == never_saw.digest())
assert model.digest() == never_saw.digest()

# The classifier scales each row to a fixed length, so a column of large numbers hides the others. Scaling matters here.
unscaled = classifier().fit(X[10:], y[10:])
print(f"test accuracy: {unscaled.score(X_test, y_test):.3f} without scaling, ", end="")
print(f"{model.score(scaler.transform(X_test), y_test):.3f} with")
