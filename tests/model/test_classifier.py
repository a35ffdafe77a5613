from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    GaussianKernel,
    Identity,
    InputError,
    Key,
    LabelError,
    NotLearnedError,
    RandomProjection,
)
from neverseen.model import validating
from tests.samples import clustered

X, Y = clustered("classifier", 60, 6, 3)
NAMES = np.array(["cat", "dog", "emu"])[Y]
KEY = Key(bytes(32))


def new(**options: Any) -> AnalyticClassifier:
    settings: dict[str, Any] = {"gamma": 2**10, "key": KEY, "hardware": "numpy"} | options
    return AnalyticClassifier(settings.pop("encoder", RandomProjection(48, seed=0)), **settings)


@parametrize_with_checks(
    [new(), AnalyticClassifier(RandomProjection(64), 2**8, track_classes=True)],
    expected_failed_checks=lambda _: {"check_class_weight_classifiers": "only None and 'balanced' are exact"},
)
def test_scikit_learn_conventions(estimator: AnalyticClassifier, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings on purpose
        check(estimator)


def test_it_classifies_digits() -> None:
    data, target = load_digits(return_X_y=True)
    for encoder in (RandomProjection(512), GaussianKernel(data[:200], 0.4)):
        model = AnalyticClassifier(encoder, 2**12).fit(data[200:1400], target[200:1400])
        assert model.score(data[1400:], target[1400:]) > 0.88


def test_pipelines_searches_and_clones() -> None:
    data, target = load_digits(return_X_y=True)
    data, target = data[:300], target[:300]
    pipeline = make_pipeline(StandardScaler(), new(encoder=RandomProjection(64)))
    assert cross_val_score(pipeline, data, target, cv=3).mean() > 0.8
    search = GridSearchCV(
        new(encoder=RandomProjection(64)), {"gamma": [2**8, 2**12], "encoder__seed": [0, 1]}, cv=2
    ).fit(data, target)
    assert set(search.best_params_) == {"gamma", "encoder__seed"}
    model = new(encoder=RandomProjection(64, seed=5)).fit(data, target)
    twin = clone(model)
    assert not hasattr(twin, "classes_")
    assert twin.fit(data, target).digest() == model.digest()
    assert new().get_params()["encoder__n_codes"] == 48


LABEL_KINDS: dict[str, list[Any]] = {
    "ints": [0, 7, -3],
    "strings": ["b", "a", "ü"],
    "bools": [True, False, True],
    "tuples": [("a", 1), ("a", 2), ("b",)],
    "mixed": [None, 3, "x"],
    "bytes": [b"\0", b"\xff", b""],
    "floats": [1.0, 2.0, -1.0],
    "frozensets": [frozenset({1}), frozenset(), frozenset({1, 2})],
    "big": [2**80, -(2**80), 0],
}


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_labels_of_any_hashable_kind(kind: str) -> None:
    labels = [LABEL_KINDS[kind][position] for position in Y]
    model = new(track_classes=True).partial_fit(X, labels)
    assert set(model.classes_.tolist()) == set(LABEL_KINDS[kind])
    assert all(label in LABEL_KINDS[kind] for label in model.predict(X).tolist())
    assert 0.5 < model.score(X, labels) <= 1
    model.forget(X[:10], labels[:10]).forget_class(labels[20])
    keep = [row for row in range(10, 60) if labels[row] != labels[20]]
    assert model.digest() == new(track_classes=True).fit(X[keep], [labels[row] for row in keep]).digest()


@pytest.mark.parametrize(
    "container",
    [list, tuple, np.array, pd.Series, lambda y: pd.Series(y, dtype="category"), lambda y: np.array(y, dtype=object)],
)
def test_labels_in_any_container(container: Callable[[Any], Any]) -> None:
    assert new().fit(X, container(NAMES.tolist())).digest() == new().fit(X, NAMES).digest()
    assert new().fit(X, container(Y.tolist())).digest() == new().fit(X, Y).digest()


def test_features_in_any_container() -> None:
    expected = new().fit(X, NAMES).digest()
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = new().fit(frame, NAMES)
    assert model.digest() == expected
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert new().fit(X.tolist(), NAMES).digest() == expected
    assert new().fit(X.astype(np.float32), NAMES).digest() == expected  # the samples are multiples of 1/64
    torch = pytest.importorskip("torch")
    assert new().fit(torch.from_numpy(X), torch.from_numpy(Y.astype(np.int64))).digest() == new().fit(X, Y).digest()


@pytest.mark.parametrize("named", [False, True])
def test_plain_arrays_are_treated_as_validation_would(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way past scikit-learn's validation accepts and refuses the same, in the same words."""
    bad = X.copy()
    bad[3, 2] = np.nan
    odd = [X[:5], X[:0], X[:5].astype(np.float32), X[:5].astype(">f8"), X[:5].astype(np.float16), X[:5].tolist(), bad]
    odd += [X[:5, :4], X[0], X[:5][None], X[:5].astype(complex), X[:5].astype(object), X[:5].view(np.matrix), None]

    def outcome(values: Any, plain: bool) -> tuple[Any, ...]:
        model = new().fit(pd.DataFrame(X, columns=list("abcdef")) if named else X, Y)
        with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if not plain:
                patched.setattr(validating, "_is_plain", lambda *_: False)
            answers = []
            for verb in (model.decision_function, lambda rows: model.forget(rows, Y[: len(rows)]).digest()):
                try:
                    answers.append(np.asarray(verb(values)).tolist())
                except Exception as error:
                    answers.append((type(error), str(error)))
            return answers, [str(warning.message) for warning in said], model.digest()

    for values in odd:
        assert outcome(values, True) == outcome(values, False)


def test_labels_that_cannot_be_classes() -> None:
    with pytest.raises(ValueError, match="Unknown label type"):
        new().fit(X, np.linspace(0, 1, 60))
    with pytest.raises(ValueError, match="Unknown label type"):
        new().fit(X, np.linspace(0, 1, 60).tolist())
    with pytest.raises(ValueError, match="contains NaN"):
        new().fit(X, np.full(60, np.nan))
    with pytest.raises(LabelError, match="no canonical form"):
        new().fit(X, [object()] * 60)
    with pytest.raises(ValueError, match="should be a 1d array"):
        new().fit(X, np.zeros((60, 2)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        new().fit(X, NAMES[:-1])
    with pytest.raises(ValueError, match="requires y to be passed"):
        new().fit(X, None)
    with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
        new().fit(X, NAMES[:, None])


def test_new_classes_may_come_at_any_time() -> None:
    model = new()
    for name in ("emu", "cat", "dog"):
        model.partial_fit(X[name == NAMES], NAMES[name == NAMES])
    assert model.classes_.tolist() == ["cat", "dog", "emu"]
    assert model.digest() == new().fit(X, NAMES).digest()
    model.partial_fit(X[:2], NAMES[:2], classes=["cat", "dog", "emu", "fox"])
    assert model.classes_.tolist() == ["cat", "dog", "emu"]  # a class exists once it has a sample
    before = model.digest()
    with pytest.raises(InputError, match=r"not in classes: \"cat\""):
        model.partial_fit(X[NAMES == "cat"], NAMES[NAMES == "cat"], classes=["dog"])
    assert model.digest() == before


def test_forgetting_refuses_what_is_not_held() -> None:
    model = new(track_classes=True)
    with pytest.raises(NotLearnedError, match="holds no samples"):
        model.forget(X[:1], NAMES[:1])
    with pytest.raises(NotLearnedError, match='no sample of class "cat"'):
        model.forget_class("cat")
    model.fit(X[:30], NAMES[:30])
    before = model.digest()
    other = next(name for name in ("cat", "dog", "emu") if name != NAMES[0])
    for rows, labels in [(X[30:31], NAMES[30:31]), (X[:1], [other]), (X[[0, 0]], NAMES[[0, 0]]), (X[:31], NAMES[:31])]:
        with pytest.raises(NotLearnedError) as refusal:
            model.forget(rows, labels)
        assert refusal.value.rows == (len(rows) - 1,)
        assert model.digest() == before
    with pytest.raises(ValueError, match="features"):
        model.forget(X[:, :3], NAMES)
    model.forget(X[:0], NAMES[:0])
    assert model.digest() == before
    model.forget(X[:1], NAMES[:1])
    with pytest.raises(NotLearnedError, match="already forgotten"):
        model.forget(X[:1], NAMES[:1])


def test_duplicates_count() -> None:
    model = new().fit(X[[0, 0, 1]], NAMES[[0, 0, 1]])
    assert model.forget(X[:1], NAMES[:1]).digest() == new().fit(X[:2], NAMES[:2]).digest()
    model.forget(X[:1], NAMES[:1])
    with pytest.raises(NotLearnedError):
        model.forget(X[:1], NAMES[:1])


def test_class_forgetting_needs_tracking() -> None:
    model = new().fit(X, NAMES)
    with pytest.raises(ConfigurationError, match="set track_classes=True before learning"):
        model.forget_class("cat")
    tracked = new(track_classes=True).fit(X, NAMES)
    digest = tracked.digest()
    cats = NAMES == "cat"
    assert tracked.forget_class("cat").classes_.tolist() == ["dog", "emu"]
    assert tracked.digest() == new().fit(X[~cats], NAMES[~cats]).digest()
    with pytest.raises(NotLearnedError, match="never learned, or already forgotten"):
        tracked.forget_class("cat")
    assert tracked.partial_fit(X[cats], NAMES[cats]).digest() == digest  # the class may come back


def test_the_last_sample_gone_the_model_is_as_new() -> None:
    model = new(track_classes=True).fit(X, NAMES)
    model.forget(X[:40], NAMES[:40])
    for name in model.classes_.tolist():
        model.forget_class(name)
    assert model.digest() == new(track_classes=True).digest()
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")
    with pytest.raises(NotFittedError, match="holds no samples"):
        model.predict(X)
    model.partial_fit(X[:, :2], NAMES)  # another width is as good as any
    assert model.n_features_in_ == 2


def test_an_empty_batch_changes_nothing() -> None:
    model = new().partial_fit(np.zeros((0, 6)), [])
    assert not hasattr(model, "n_features_in_")
    model.partial_fit(X, NAMES)
    before = model.digest()
    assert model.partial_fit(X[:0], NAMES[:0]).digest() == before
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        new().fit(np.zeros((0, 6)), [])


def test_a_refused_first_batch_leaves_the_model_as_new() -> None:
    model = new()
    state = dict(vars(model))
    for rows, labels in [(X, [object()] * 60), (X, NAMES[:3]), (np.full((2, 3), np.nan), [0, 1])]:
        with pytest.raises(ValueError):
            model.partial_fit(rows, labels)
        assert vars(model) == state


def test_a_refused_fit_leaves_the_model_as_it_was() -> None:
    model = new().fit(X, NAMES)
    before = model.digest()
    model.set_params(gamma=0)
    with pytest.raises(ConfigurationError):
        model.fit(X[:, :3], NAMES)
    model.set_params(gamma=2**10)
    assert model.n_features_in_ == 6
    assert model.digest() == before
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :3], NAMES)
    for fresh, options in ((new(gamma=0), {}), (new(), {"classes": ["fox"]})):
        with pytest.raises((ConfigurationError, InputError)):
            fresh.partial_fit(X, NAMES, **options)
        assert not hasattr(fresh, "n_features_in_")


def test_weights_cannot_be_written_to() -> None:
    model = new().fit(X, NAMES)
    with pytest.raises(ValueError, match="read-only"):
        model._model.weights()[0, 0] = 1


def test_codes_waiting_for_a_solve_are_bounded() -> None:
    model = new(encoder=RandomProjection(64)).fit(X, NAMES)
    model.digest()
    for _ in range(10):
        model.partial_fit(X, NAMES)
    assert model._model._hints._changes == []
    assert model._model._hints._last is None


def test_merge_is_addition() -> None:
    left, right = new().fit(X[:20], NAMES[:20]), new().fit(X[20:], NAMES[20:])
    whole = new().fit(X, NAMES).digest()
    assert copy.deepcopy(left).merge(right).digest() == whole
    assert copy.deepcopy(right).merge(left).digest() == whole
    assert new().merge(left).merge(right).merge(new()).digest() == whole
    left.merge(right).forget(X[30:40], NAMES[30:40])  # what came by merging can be forgotten
    assert left.digest() == new().fit(X[[*range(30), *range(40, 60)]], NAMES[[*range(30), *range(40, 60)]]).digest()


def test_merge_refuses_what_does_not_fit() -> None:
    model = new().fit(X, NAMES)
    before = model.digest()
    for other, message in [
        (new(gamma=2**11).fit(X, NAMES), "different configurations"),
        (new(encoder=Identity()).fit(X, NAMES), "different configurations"),
        (new(key=Key.generate()).fit(X, NAMES), "different membership keys"),
        (new().fit(X[:, :4], NAMES), "6 and 4 features"),
        (new(track_classes=True).fit(X, NAMES), "keeps class sums and the other does not"),
        (model, "cannot be merged with itself"),
        ("a model", "takes another AnalyticClassifier"),
    ]:
        with pytest.raises((ConfigurationError, InputError), match=message):
            model.merge(other)  # type: ignore[arg-type]
        assert model.digest() == before


def test_a_merged_new_model_takes_the_others_key() -> None:
    other = AnalyticClassifier(RandomProjection(48), 2**10).fit(X[:30], NAMES[:30])
    model = AnalyticClassifier(RandomProjection(48), 2**10).merge(other)
    assert model.n_features_in_ == 6
    assert model.forget(X[:10], NAMES[:10]).digest() == other.forget(X[:10], NAMES[:10]).digest()


def test_settings_cannot_change_under_what_was_learned() -> None:
    encoder = RandomProjection(48, seed=0)
    model = new(encoder=encoder).fit(X, NAMES)
    encoder.set_params(seed=1)
    for verb in (lambda: model.predict(X), lambda: model.forget(X[:1], NAMES[:1]), model.digest):
        with pytest.raises(ConfigurationError, match="changed after samples were learned"):
            verb()
    encoder.set_params(seed=0)
    assert model.digest() == new().fit(X, NAMES).digest()
    model.set_params(gamma=2**11)
    with pytest.raises(ConfigurationError, match="changed after samples were learned"):
        model.partial_fit(X, NAMES)
    assert model.fit(X, NAMES).digest() == new(gamma=2**11).fit(X, NAMES).digest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0}, "gamma must be a whole number between 1"),
        ({"gamma": 1.5}, "gamma must be a whole number"),
        ({"grid_bits": 0}, "grid_bits must be a whole number between 1 and 52"),
        ({"grid_bits": 53}, "grid_bits must be"),
        ({"encoder": "projection"}, "encoder must be an Encoder"),
        ({"key": b"secret"}, "key must be a neverseen.Key"),
        ({"hardware": "tpu"}, "the hardware 'tpu' is not known; known are cuda, numpy, torch"),
    ],
)
def test_unusable_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        new(**options).fit(X, NAMES)


def test_predictions_agree_with_each_other() -> None:
    model = new().fit(X, NAMES)
    scores, shares = model.decision_function(X), model.predict_proba(X)
    assert scores.shape == shares.shape == (60, 3)
    assert np.array_equal(model.classes_[scores.argmax(axis=1)], model.predict(X))
    assert np.array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
    assert np.allclose(shares.sum(axis=1), 1)
    assert (shares >= 0).all()
    assert model.score(X, NAMES) == np.mean(model.predict(X) == NAMES)
    weights = np.arange(60)
    assert model.score(X, NAMES, weights) == np.average(model.predict(X) == NAMES, weights=weights)
    assert model.score(X[:3], ["fox"] * 3) == 0
    two = new().fit(X, np.where(Y == 0, "a", "b"))
    assert two.decision_function(X).shape == (60,)
    assert np.array_equal(two.predict(X), np.where(two.decision_function(X) > 0, "b", "a"))
    one = new().fit(X, ["only"] * 60)
    assert set(one.predict(X)) == {"only"}
    assert one.predict_proba(X).tolist() == [[1.0]] * 60


def test_weights_are_the_ridge_solution_within_the_bound() -> None:
    model = new().fit(X, NAMES)
    codes = RandomProjection(48, seed=0).encode(X).astype(np.float64)
    onehot = (NAMES[:, None] == model.classes_).astype(np.float64)
    ridge = np.linalg.solve(codes.T @ codes + 2**10 * np.eye(48), codes.T @ onehot)
    assert model.error_bound().tolist() == [2.0**-41] * 3
    assert (abs(model.weights_ - ridge) <= model.error_bound() + 1e-15).all()
    assert np.allclose(model.decision_function(X), codes @ model.weights_, atol=1e-12)


def test_a_key_never_shows() -> None:
    secret = bytes(range(100, 132))
    model = new(key=Key(secret)).fit(X, NAMES)
    shown = repr(model) + str(model) + str(model.get_params()) + model._repr_html_()
    assert secret.hex() not in shown
    assert str(secret)[2:-1] not in shown


def test_models_are_told_apart_by_key_only_on_disk() -> None:
    one, other = new().fit(X, NAMES), new(key=Key.generate()).fit(X, NAMES)
    assert one.digest() == other.digest()


def test_copies_are_independent() -> None:
    for track_classes in (False, True):
        model = new(track_classes=track_classes).fit(X, NAMES)
        model.digest()
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
            twin.forget(X[:5], NAMES[:5])
            assert twin.digest() == new().fit(X[5:], NAMES[5:]).digest()
            assert model.digest() == new().fit(X, NAMES).digest()


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.uint64])
def test_weights_are_the_same_for_any_whole_number_of_grid_bits(kind: Any) -> None:
    features, labels = np.eye(4), [0, 1, 0, 1]
    model = AnalyticClassifier(Identity(), grid_bits=kind(40), hardware="numpy").fit(features, labels)
    plain = AnalyticClassifier(Identity(), hardware="numpy").fit(features, labels)
    assert np.array_equal(model.weights_, plain.weights_)
    assert np.array_equal(model.decision_function(features), plain.decision_function(features))
    assert np.array_equal(model.predict_proba(features), plain.predict_proba(features))
    assert np.array_equal(model.error_bound(), plain.error_bound())
