"""A federation is the model of all its clients' samples, whoever came and went, and under whatever keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    Federation,
    FileRejectedError,
    ForgettingModel,
    InputError,
    Key,
    KeyMissingError,
    Keyring,
    NotLearnedError,
    NotTrackedError,
    RandomProjection,
)
from neverseen.backbones import Precomputed
from neverseen.hardware import Hardware
from neverseen.holdings import JointHoldings, MemoryHoldings
from neverseen.targets import LabelSets, Numbers, WeightedClasses
from tests.samples import clustered

X, Y = clustered("federation", 72, 5, 4)
KINDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "classes": ({}, Y.tolist()),
    "tracked": ({"track_classes": True}, Y.tolist()),
    "balanced": ({"track_classes": True, "class_weight": "balanced"}, Y.tolist()),
    "weighted": ({"targets": WeightedClasses()}, [(int(each), 1 + int(each)) for each in Y]),
    "sets": ({"targets": LabelSets()}, [[str(each), "all"] if each else [] for each in Y]),
    "numbers": ({"targets": Numbers(bits=4)}, [each / 2 for each in Y.tolist()]),
}


def new(**given: Any) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(10, seed=3), gamma=2**9, hardware="numpy", **given)


def learned(rows: list[int], kind: str = "classes", **given: Any) -> AnalyticClassifier:
    more, labels = KINDS[kind]
    return new(**more, **given).fit(X[rows], [labels[row] for row in rows])


def state(federation: Federation) -> tuple[str, dict[str, str]]:
    return federation.classifier.digest(), federation.clients


PARTS = st.lists(st.integers(0, len(X) - 1), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["bring", "bring", "leave"]), PARTS), max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@given(steps=STEPS)
@settings(max_examples=25, deadline=None)
def test_any_history_is_the_model_of_the_samples_of_those_who_are_in(kind: str, steps: list[Any]) -> None:
    federation, held = Federation(new(**KINDS[kind][0])), dict[str, list[int]]()
    for name, what, rows in steps:
        if what == "leave":
            if name in held:
                federation.leave(name)
                del held[name]
            continue
        (federation.replace if name in held else federation.join)(name, learned(rows, kind))
        held[name] = rows
    everything = [row for rows in held.values() for row in rows]
    assert sorted(federation.clients) == sorted(held)
    if not held:
        assert federation.classifier.digest() == new(**KINDS[kind][0]).digest()
        return
    whole = learned(everything, kind)
    assert federation.classifier.digest() == whole.digest()
    np.testing.assert_array_equal(federation.classifier.predict(X), whole.predict(X))
    ours, theirs = federation.classifier.exact, whole.exact
    assert ours is not None
    assert theirs is not None
    assert ours.statistics == theirs.statistics
    assert isinstance(ours.holdings, MemoryHoldings)
    assert len(ours.holdings.members_array()) == len(everything)


def test_clients_and_server_may_have_any_hardware(hardware: Hardware) -> None:
    federation = Federation(new().set_params(hardware=hardware.name))
    rows = [list(range(start, start + 24)) for start in (0, 24, 48)]
    for name, part in zip("abc", rows, strict=True):
        client = new() if name == "a" else new().set_params(hardware=hardware.name)
        federation.join(name, client.fit(X[part], Y[part]))
    federation.leave("b")
    whole = learned(rows[0] + rows[2])
    assert federation.classifier.digest() == whole.digest()
    assert federation.classifier.exact is not None
    assert federation.classifier.exact.hardware is hardware
    np.testing.assert_array_equal(federation.classifier.predict(X), whole.predict(X))


def test_parts_come_as_models_or_files_and_receipts_stay_with_the_client(tmp_path: Path) -> None:
    clinic = ForgettingModel(Precomputed(5), new())
    receipts = clinic.learn(X[:20], Y[:20], ids=range(20))
    settings = new(backbone=Precomputed(5).digest())
    other = new(backbone=Precomputed(5).digest()).fit(X[20:40], Y[20:40])
    other.save(tmp_path / "part", include_key=False)
    federation = Federation(settings)
    federation.join("clinic", clinic)
    federation.join("other", tmp_path / "part")
    assert federation.classifier.digest() == settings.fit(X[:40], Y[:40]).digest()
    clinic.forget(receipts[:5])
    federation.replace("clinic", clinic)
    never = new(backbone=Precomputed(5).digest()).fit(X[5:40], Y[5:40])
    assert federation.classifier.digest() == never.digest()


def test_a_part_with_a_key_in_it_is_refused(tmp_path: Path) -> None:
    learned([1, 2, 3]).save(tmp_path / "part")
    federation = Federation(new())
    with pytest.raises(InputError, match="has its client's key in it"):
        federation.join("one", tmp_path / "part")
    assert federation.clients == {}


def test_the_sum_predicts_and_is_saved_but_learns_and_forgets_nothing(tmp_path: Path) -> None:
    federation = Federation(new(track_classes=True))
    federation.join("a", learned(list(range(30)), "tracked"))
    federation.join("b", learned(list(range(30, 60)), "tracked"))
    model = federation.classifier
    model.save(tmp_path / "sum")
    loaded = AnalyticClassifier.load(tmp_path / "sum", hardware="numpy")
    assert loaded.digest() == model.digest()
    assert model.means().digest() == learned(list(range(60)), "tracked").means().digest()
    before = state(federation)
    changes: list[Callable[[], object]] = [lambda: model.partial_fit(X, Y), lambda: model.forget(X[:1], Y[:1])]
    for change in changes:
        with pytest.raises(KeyMissingError, match="without its membership key"):
            change()
    with pytest.raises(ConfigurationError, match="in a client's own model"):
        model.forget_class(int(Y[0]))
    model.fit(X[:3], Y[:3])  # a model of its own from here on
    assert state(federation) == before


def test_a_model_that_was_taken_does_not_change_later() -> None:
    federation = Federation(new())
    federation.join("a", client := learned([1, 2, 3]))
    federation.join("b", learned([4, 5]))
    before = federation.classifier
    digest = before.digest()
    client.forget(X[[1]], Y[[1]])  # the part is what was given
    federation.leave("b")
    assert before.digest() == digest
    federation.leave("a")
    assert federation.classifier.digest() == new().digest()
    federation.join("wider", new().fit(np.hstack([X, X]), Y))  # of another width: nothing is left of the others


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "another gamma": (lambda: new().set_params(gamma=2**10).fit(X, Y), ConfigurationError, "another gamma than"),
    "another encoder": (
        lambda: new().set_params(encoder=RandomProjection(11, seed=3)).fit(X, Y),
        ConfigurationError,
        "another encoder than",
    ),
    "tracking": (lambda: learned([1], "tracked"), ConfigurationError, "another track_classes than"),
    "targets": (lambda: learned([1], "sets"), ConfigurationError, "another targets than"),
    "another width": (lambda: new().fit(np.hstack([X, X]), Y), ConfigurationError, "5 and 10 features"),
    "the same part": (lambda: learned([1, 2, 3], key=Key(bytes(32))), InputError, "the part of 'one'"),
    "nothing": (new, NotLearnedError, "holds no samples"),
    "no model": (lambda: 7, InputError, "a part is a model, or the path of its file; got int"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_part_that_does_not_fit_is_refused_and_changes_nothing(why: str) -> None:
    part, error, words = REFUSED[why]
    federation = Federation(new())
    federation.join("one", learned([1, 2, 3], key=Key(bytes(32))))
    federation.join("two", learned([4, 5]))
    before = state(federation)
    changes: list[Callable[[], object]] = [
        lambda: federation.join("three", part()),
        lambda: federation.replace("two", part()),
    ]
    for change in changes:
        with pytest.raises(error, match=words):
            change()
        assert state(federation) == before


def test_names_are_checked() -> None:
    federation = Federation(new())
    federation.join("one", learned([1, 2, 3]))
    before = state(federation)
    with pytest.raises(InputError, match="a text; got 3"):
        federation.join(3, learned([4]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="already: use replace"):
        federation.join("one", learned([4]))
    changes: list[Callable[[], object]] = [
        lambda: federation.leave("two"),
        lambda: federation.replace("two", learned([4])),
    ]
    for change in changes:
        with pytest.raises(NotLearnedError, match="no client 'two'"):
            change()
    with pytest.raises(ConfigurationError, match="must be an AnalyticClassifier; got int"):
        Federation(3)  # type: ignore[arg-type]
    assert state(federation) == before


def test_a_false_file_is_refused(tmp_path: Path) -> None:
    learned([1, 2, 3]).save(tmp_path / "part", include_key=False)
    raw = bytearray((tmp_path / "part").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "part").write_bytes(raw)
    federation = Federation(new())
    with pytest.raises(FileRejectedError, match="the part is not a model that can be loaded: its checksum"):
        federation.join("one", tmp_path / "part")
    with pytest.raises(FileNotFoundError):
        federation.join("one", tmp_path / "none")
    assert federation.clients == {}


def test_an_id_twice_under_one_key_is_refused() -> None:
    keys = Keyring.generate()
    federation = Federation(new(backbone=Precomputed(5).digest()))
    for name, rows in (("one", slice(0, 5)), ("two", slice(3, 8))):
        model = ForgettingModel(Precomputed(5), new(), keys)
        model.learn(X[rows], Y[rows], ids=range(rows.start, rows.stop))
        if name == "one":
            federation.join(name, model)
        else:
            with pytest.raises(InputError, match="under the same id"):
                federation.join(name, model)
    assert list(federation.clients) == ["one"]


def test_an_interrupt_leaves_the_federation_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(new())
    federation.join("one", learned([1, 2, 3]))
    federation.join("two", learned([4, 5]))
    before = state(federation)

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(JointHoldings, "subtract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            federation.leave("two")
        with pytest.raises(KeyboardInterrupt):
            federation.replace("two", learned([6]))
    assert state(federation) == before
    federation.leave("two")
    assert federation.classifier.digest() == learned([1, 2, 3]).digest()


def test_joint_holdings_give_back_exactly_what_was_added() -> None:
    joint, parts = JointHoldings(), [learned(rows) for rows in ([1, 2, 2], [2, 3])]
    held = [part.exact.holdings for part in parts if part.exact is not None]
    for each in held:
        assert isinstance(each, MemoryHoldings)
        joint.require_mergeable(each)
        joint.merge(each)
    before = joint.counts()
    stranger = learned([1]).exact
    assert stranger is not None
    assert isinstance(stranger.holdings, MemoryHoldings)
    with pytest.raises(NotLearnedError, match="1 samples of the other model are not held"):
        joint.require_part(stranger.holdings)
    assert joint.counts() == before
    joint.require_part(held[0])  # type: ignore[arg-type]
    joint.subtract(held[0])  # type: ignore[arg-type]
    alone = JointHoldings()
    alone.merge(held[1])  # type: ignore[arg-type]
    assert joint.members_array().tolist() == alone.members_array().tolist()
    assert joint.counts() == alone.counts()


def test_class_tracking_is_needed_to_forget_a_class_also_here() -> None:
    federation = Federation(new())
    federation.join("one", learned([1, 2, 3]))
    with pytest.raises(NotTrackedError):
        federation.classifier.forget_class(int(Y[1]))
