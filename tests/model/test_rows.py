"""Many rows make one sample: learned, forgotten and held as one, and equal to the oracle after any history."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    FeaturesMovedError,
    Federation,
    ForgettingModel,
    Identity,
    InputError,
    Key,
    Keyring,
    LabelError,
    NotLearnedError,
    RandomProjection,
    ReceiptRejectedError,
    choose_gamma,
    learn_batches,
)
from neverseen.backbones import Cached, Precomputed
from neverseen.backbones.contents import fingerprint
from neverseen.labels import LabelIndex, text
from neverseen.model import row_sums
from neverseen.model.grouping import predict_together
from neverseen.model.row_sums import sums_of
from neverseen.proof import receipts as sealing
from neverseen.targets import LabelSets, Numbers, Rows, Targets, WeightedClasses, targets_of
from neverseen.targets.rows import added
from tests import oracle
from tests.model.test_forgetting import Letters

KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
LENGTHS = [2, 1, 3, 2, 4, 1]
SAMPLES = [
    np.random.default_rng(place).normal(size=(length, 3)).astype(np.float32) for place, length in enumerate(LENGTHS)
]
SAMPLES[3] = SAMPLES[0]  # the same sample twice, where the labels are the same
KINDS: dict[str, tuple[Targets | None, list[Any]]] = {
    "classes": (None, [["sky", "tree"], "tree", ["tree", "sky", "tree"], ["sky", "tree"], [3, "sky", 3, 2], [2]]),
    "sets": (
        LabelSets(),
        [[["red"], []], {"red", "round"}, [{"red"}, {"round", "red"}, {"red"}], [["red"], []], frozenset(), [["blue"]]],
    ),
    "numbers": (
        Numbers(outputs=2, bits=2),
        [[[1, 2], [0.5, 0]], (1, -1), [[0, 0], [0, 0], [3, -2]], [[1, 2], [0.5, 0]], (0, 0), [[7, 7]]],
    ),
    "weighted": (
        WeightedClasses(),
        [[("a", 2), ("b", 1)], ("b", 3), [("b", 1), ("a", 2), ("b", 1)], [("a", 2), ("b", 1)], ("a", 1000), [("c", 1)]],
    ),
}
EACH = pytest.mark.parametrize("kind", list(KINDS))


def new(kind: str = "classes", backbone: Any = None, **more: Any) -> ForgettingModel:
    targets = Rows(KINDS[kind][0], most=4)
    return ForgettingModel(
        backbone or Precomputed(3),
        AnalyticClassifier(Identity(), 2**6, targets=targets, hardware="numpy", **more),
        KEYS,
    )


def taught(kind: str = "classes") -> tuple[ForgettingModel, list[bytes]]:
    model = new(kind)
    return model, model.learn(SAMPLES, KINDS[kind][1], range(6))


def saved(model: ForgettingModel, tmp_path: Path) -> bytes:
    model.save(tmp_path / "model")
    return (tmp_path / "model").read_bytes()


# -- against the oracle ----------------------------------------------------------------------------------


def rows_of(kind: str, place: int) -> list[tuple[Any, dict[Any, int], int]]:
    """Label, y and w of each row of a sample, from sections 3.1 and 3.2 alone."""
    given, found = KINDS[kind][1][place], []
    for each in given if isinstance(given, list) else [given] * LENGTHS[place]:
        if kind == "classes":
            found.append((each, {None: 1, each: 1}, 1))
        elif kind == "sets":
            found.append((frozenset(each), {None: 1} | dict.fromkeys(each, 1), 1))
        elif kind == "numbers":
            steps = tuple(round(4 * number) for number in each)
            found.append((steps, dict(enumerate(steps)), 1))
        else:
            found.append((each, {None: each[1], each[0]: each[1]}, each[1]))
    return found


def configuration_of(model: ForgettingModel) -> dict[str, Any]:
    backbone = oracle.precomputed_digest(3, "precomputed")
    settings_ = oracle.configuration(oracle.identity_configuration(), 2**6, 40, backbone)
    each = model.classifier.configuration().targets.each.configuration()  # type: ignore[attr-defined]
    return settings_ | {"targets": {"each": each, "kind": "rows", "most": 4}}


def told(kind: str, place: int) -> tuple[str, list[list[int]], bytes]:
    """Label text, rows in order, and fingerprint of a sample."""
    label, order = oracle.label_of_rows([each for each, _, _ in rows_of(kind, place)])
    rows = [SAMPLES[place][at] for at in order]
    prints = [oracle.fingerprint("<f4", [3], row.tobytes()) for row in rows]
    return oracle.label_text(label), [oracle.quantise(row.tolist()) for row in rows], oracle.fingerprint_of_rows(prints)


def specified(model: ForgettingModel, kind: str, places: list[int]) -> tuple[bytes, str]:
    """The saved file and the digest of the model that holds these samples."""
    about = configuration_of(model)
    digest = hashlib.sha256(oracle.canonical_json(about).encode()).digest()
    held = [
        [(oracle.quantise(row.tolist()), y, w) for row, (_, y, w) in zip(SAMPLES[at], rows_of(kind, at), strict=True)]
        for at in places
    ]
    sums, key, members, tickets = oracle.statistics_of_rows(held), KEYS.membership.reveal(), [], []
    for at in places:
        label, rows, mark = told(kind, at)
        member = oracle.member_digest(digest, key, KINDS_LABELS[kind][at], [value for row in rows for value in row])
        members.append(member)
        tickets.append(
            oracle.ticket_number(digest, key, str(at)) + oracle.ticket_content(digest, key, label, mark) + member
        )
    weights = oracle.weights(sums.gram, sums.cross, 2**6, 40)
    file = oracle.saved_model(about, 3, sums, sorted(members), tickets, key)
    return file, oracle.model_digest(digest, 3, sums.classes, weights).hex()


KINDS_LABELS = {
    kind: [oracle.label_of_rows([each for each, _, _ in rows_of(kind, at)])[0] for at in range(6)] for kind in KINDS
}
OPERATION = st.tuples(st.sampled_from(["learn", "receipt", "sample", "named", "all"]), st.integers(0, 5))


@EACH
@settings(max_examples=12)
@given(history=st.lists(OPERATION, max_size=14))
def test_any_history_ends_in_what_the_oracle_makes(
    tmp_path_factory: pytest.TempPathFactory, kind: str, history: list[tuple[str, int]]
) -> None:
    """Sums, weights, members, tickets and file are those of the samples that remain, and nothing else."""
    tmp_path, labels = tmp_path_factory.mktemp("rows"), KINDS[kind][1]
    model, receipts, held = new(kind), dict[int, bytes](), set[int]()
    for verb, at in history:
        some, its_labels = SAMPLES[at : at + 1], labels[at : at + 1]
        if verb in ("learn", "all"):
            places = [each for each in ([at] if verb == "learn" else range(6)) if each not in held]
            found = model.learn([SAMPLES[each] for each in places], [labels[each] for each in places], places)
            receipts |= dict(zip(places, found, strict=True))
            held |= set(places)
        elif at not in held:
            with pytest.raises((NotLearnedError, ReceiptRejectedError)):
                model.forget(receipts[at]) if at in receipts else model.forget(some, its_labels, ids=[at])
        elif verb == "receipt" or {0, 3} <= held:
            model.forget(receipts[at])
            held.discard(at)
        else:
            model.forget(some, its_labels, ids=[at] if verb == "named" else None)
            held.discard(at)
    places = sorted(held)
    assert len(model) == len(places)
    if places:
        assert (saved(model, tmp_path), model.digest()) == specified(model, kind, places)
    else:
        assert saved(model, tmp_path) == saved(new(kind), tmp_path)
    loaded = ForgettingModel.load(tmp_path / "model", Precomputed(3), KEYS)
    assert loaded.digest() == model.digest()
    if places:
        loaded.forget([receipts[at] for at in places])
        assert len(loaded) == 0


@EACH
def test_a_receipt_holds_all_rows(kind: str) -> None:
    model, receipts = taught(kind)
    digest = model.classifier.configuration().digest()
    for at, receipt in enumerate(receipts):
        label, rows, mark = told(kind, at)
        q = [value for row in rows for value in row]
        assert receipt == oracle.receipt(KEYS.receipts[0].reveal(), digest, mark, str(at), "null", label, q)
        assert model.read_receipt(receipt) == {"id": at, "label": KINDS_LABELS[kind][at], "owner": None}


def test_fingerprints_of_rows_are_no_others() -> None:
    marks = [fingerprint(row) for row in SAMPLES[0]]
    assert oracle.fingerprint_of_rows(marks) not in {fingerprint(SAMPLES[0]), *marks}


@EACH
def test_in_parts_and_as_a_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are added up in parts: each has whole samples, also where one has more rows than a part."""
    model = new(kind)
    change = model._intake.learning(model._exact(), SAMPLES, KINDS[kind][1], None, None)
    about, hardware, rows_ = model.classifier.configuration(), model._exact().hardware, Rows(KINDS[kind][0], most=4)
    whole = sums_of(change.quantised, change.labels, rows_, about, hardware)
    for rows in (1, 3, 5):
        monkeypatch.setattr(row_sums, "CHUNK_ROWS", rows)
        assert sums_of(change.quantised, change.labels, rows_, about, hardware).digest() == whole.digest()
    with pytest.raises(InputError, match="there are 12 rows, and their labels are of 13"):
        sums_of(change.quantised[1:], change.labels, rows_, about, hardware)


# -- predictions -----------------------------------------------------------------------------------------


@EACH
def test_rows_are_predicted_and_samples_from_their_rows(kind: str) -> None:
    model, _ = taught(kind)
    exact = model.classifier.exact
    assert exact is not None
    weights, names = exact.weights().tolist(), [None, *model.classes_[1:]]
    rows = np.concatenate(SAMPLES)
    scores = [oracle.scores(oracle.quantise(row.tolist()), weights) for row in rows]
    assert exact.scores(Identity().quantise(rows))[0].tolist() == scores
    parts = [scores[sum(LENGTHS[:at]) : sum(LENGTHS[: at + 1])] for at in range(6)]
    sums = [[sum(column) for column in zip(*part, strict=True)] for part in parts]
    found, each = predict_together(model, SAMPLES), model.predict(rows)
    if kind == "numbers":
        means = [[float(Fraction(s, 2**42) / len(part)) for s in row] for row, part in zip(sums, parts, strict=True)]
        assert found.tolist() == means
        with pytest.raises(ConfigurationError, match="a majority needs a class for each row"):
            predict_together(model, SAMPLES, by="majority")
    elif kind == "sets":
        wanted = [{n for n, s in zip(names[1:], row[1:], strict=True) if 2 * s >= row[0]} for row in sums]
        assert found == wanted
    else:
        best = [names[1:][row[1:].index(max(row[1:]))] for row in sums]
        assert found.tolist() == best
        votes = [[names[1:][s[1:].index(max(s[1:]))] for s in part] for part in parts]
        most = [max(names[1:], key=some.count) for some in votes]  # the first among equals
        assert predict_together(model, SAMPLES, by="majority").tolist() == most
        assert each.tolist() == [name for some in votes for name in some]
    assert len(predict_together(model, model.prepare(SAMPLES))) == 6
    assert len(predict_together(model, [])) == 0
    assert len(predict_together(model, [np.concatenate(SAMPLES)])) == 1  # of more rows than are learned together


def test_ties_of_samples_go_to_the_first_class() -> None:
    targets, names = Rows(), ["null", '"a"', '"b"', '"c"']
    scores = np.array([[9, 1, 5, 0], [9, 5, 1, 0], [9, 0, 0, 3]])
    assert targets.together(scores, [2, 1], names, 40).tolist() == ["a", "c"]
    assert targets.together(scores, [2, 1], names, 40, by="majority").tolist() == ["a", "c"]
    assert targets.together(scores, [3], names, 40, by="majority").tolist() == ["a"]
    with pytest.raises(InputError, match="by must be"):
        targets.together(scores, [3], names, 40, by="mean")


def test_sums_of_scores_beyond_64_bits() -> None:
    """Scores are below 2**62; four of them need one bit more than there are. Labels of sets double them once more."""
    scores = np.array([[2**62 - 1, 2**61, -(2**62) + 1]] * 4)
    assert added(scores, [4]).tolist() == [[4 * int(each) for each in scores[0]]]
    assert added(scores, [1, 3]).tolist() == [[k * int(each) for each in scores[0]] for k in (1, 3)]
    assert Rows(LabelSets()).together(scores, [4], ["null", '"a"', '"b"'], 40) == [frozenset("a")]
    assert Rows(Numbers(3)).together(scores, [4], ["0", "1", "2"], 40)[0, 1] == 2.0 ** (61 - 48)


@EACH
def test_leaving_out_one_sample(kind: str) -> None:
    model, receipts = taught(kind)
    for at, found in enumerate(model.leave_one_out(receipts)):
        other = new(kind)
        rest = [each for each in range(6) if each != at]
        other.learn([SAMPLES[each] for each in rest], [KINDS[kind][1][each] for each in rest], rest)
        assert model.without(receipts[at : at + 1]).digest() == other.digest()
        assert np.array_equal(found.label, predict_together(other, SAMPLES[at : at + 1])[0])


def test_scores_are_of_rows() -> None:
    model, _ = taught()
    rows, truth = np.concatenate(SAMPLES[4:]), [3, "sky", 3, 2, 2]
    right = [said == label for said, label in zip(model.predict(rows).tolist(), truth, strict=True)]
    assert model.score(rows, truth) == np.mean(right)


# -- other ways in ---------------------------------------------------------------------------------------


def test_models_are_merged(tmp_path: Path) -> None:
    first, second, labels = new(), new(), KINDS["classes"][1]
    first.learn(SAMPLES[:3], labels[:3], range(3))
    second.learn(SAMPLES[3:], labels[3:], range(3, 6))
    assert saved(first.merge(second), tmp_path) == saved(taught()[0], tmp_path)


def test_models_with_keys_of_their_own_add_up() -> None:
    first, second, sum_of = (ForgettingModel(Precomputed(3), new().classifier.set_params(key=None)) for _ in range(3))
    first.learn(SAMPLES[:3], KINDS["classes"][1][:3])
    second.learn(SAMPLES[3:], KINDS["classes"][1][3:])
    federation = Federation(sum_of.classifier)
    federation.join("first", first.classifier)
    federation.join("second", second.classifier)
    assert federation.classifier.digest() == taught()[0].digest()
    federation.leave("first")
    assert federation.classifier.digest() == second.digest()


def test_documents_whose_passages_have_other_features_now(tmp_path: Path) -> None:
    """The passages are recognised, in any text backbone, and the receipt forgets them as they were learned."""
    documents = [["a cab", "bad face"], ["fade", "deaf ace", "cab"]]
    model = new(backbone=Letters())
    receipts = model.learn(documents, ["law", ["sport", "law", "sport"]])
    before = saved(model, tmp_path)
    model.backbone.drift = 0.3  # type: ignore[attr-defined]
    with pytest.raises(FeaturesMovedError, match="row 0; 2 of 2 in all"):
        model.forget(documents, ["law", ["sport", "law", "sport"]])
    with pytest.raises(NotLearnedError, match="does not hold 1 of the 1"):
        model.forget(documents[:1], ["sport"])
    assert saved(model, tmp_path) == before
    model.forget(receipts)
    assert len(model) == 0


def test_batches_and_prepared_samples() -> None:
    model, receipts = taught()
    batches = ((SAMPLES[at : at + 2], KINDS["classes"][1][at : at + 2], range(at, at + 2)) for at in (0, 2, 4))
    assert [each for some in learn_batches(new(), batches) for each in some] == receipts
    other = new()
    prepared = other._intake.prepare(SAMPLES, KINDS["classes"][1], remember=True)
    assert [digest for _, digest in prepared.members] == [
        digest for _, digest in model._intake.learning(new()._exact(), SAMPLES, KINDS["classes"][1], None, None).members
    ]
    assert other.learn(prepared, KINDS["classes"][1], range(6)) == receipts
    turned = [each[::-1] if isinstance(each, list) else each for each in KINDS["classes"][1]]
    again = new()
    assert again.learn(prepared, turned, range(6)) != receipts  # other rows have these labels
    third = new()
    third.learn(SAMPLES, turned, range(6))
    assert third.digest() == again.digest() != model.digest()


def test_arrays_of_samples_with_one_label_for_all_their_rows() -> None:
    """Passages of one topic, as one array; and one label for each row, in an array too."""
    stacked = np.stack([SAMPLES[0], SAMPLES[3]])
    first, second = new(), new()
    first.learn(stacked, ["law", "sport"], range(2))
    second.learn(list(stacked), np.array([["law", "law"], ["sport", "sport"]]), range(2))
    assert first.digest() == second.digest()
    assert first.classes_.tolist() == [None, "law", "sport"]


def test_the_same_sample_counts_twice() -> None:
    model = new()
    model.learn([SAMPLES[0], SAMPLES[0]], [["sky", "tree"]] * 2)
    with pytest.raises(InputError, match="learned 2 times under different ids"):
        model.forget([SAMPLES[0]], [["sky", "tree"]])
    with pytest.raises(NotLearnedError):
        model.forget([SAMPLES[0]], [["tree", "sky"]])  # the labels of other rows
    with pytest.raises(NotLearnedError):
        model.forget([SAMPLES[0][::-1]], [["sky", "sky"]])
    model.forget([SAMPLES[0], SAMPLES[0]], [["sky", "tree"]] * 2)
    assert len(model) == 0


def test_a_cache_keeps_no_rows(tmp_path: Path) -> None:
    """A receipt does not name the rows of its sample, so a cache could not drop them."""
    backbone = Cached(Precomputed(3), tmp_path / "cache")
    model = new(backbone=backbone)
    receipts = model.learn(SAMPLES, KINDS["classes"][1])
    model.forget(receipts[:1])
    assert len(backbone) == 0
    ForgettingModel(backbone, AnalyticClassifier(Identity(), 2**6)).learn(SAMPLES[0], ["sky", "tree"])
    assert len(backbone) == 2  # of one row each


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "labels", "words"),
    [
        (SAMPLES[0], ["sky"] * 2, "sample 0 must be a list or an array of its rows"),
        (["text"], ["sky"], "the command line has one row for each"),
        ([SAMPLES[0][:0]], ["sky"], "sample 0 has no rows"),
        ([np.ones((5, 3))], ["sky"], "sample 0 has 5 rows: at most 4 fit, as most=4"),
        (SAMPLES[:1], [["sky"]], "sample 0: a sample has 2 rows and 1 labels"),
        (SAMPLES[:1], [["sky", None]], "None cannot be the label of a row"),
        (SAMPLES[:1], [None], "None cannot be the label of a row"),
        (SAMPLES[:1], [["sky", 0.5]], "sample 0: .*0.5"),
        (SAMPLES[:2], ["sky"], "there are 2 samples and 1 labels"),
        (SAMPLES[:1], "s", "labels must be a sequence"),
        (SAMPLES[:1], None, "labels must be a sequence"),
    ],
)
def test_samples_that_are_refused(tmp_path: Path, samples: Any, labels: Any, words: str) -> None:
    model, _ = taught()
    before = saved(model, tmp_path)
    looked_for = labels is not None and "0.5" not in words  # samples to forget may have labels of earlier versions
    asked: list[Any] = [model.learn, *([model.forget] if looked_for else [])]
    for ask in asked:
        with pytest.raises(InputError, match=words):
            ask(samples, labels)
    assert saved(model, tmp_path) == before


def test_a_sample_that_no_receipt_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the backbone sees it. What is left for the rest of a receipt is enough."""
    model = new(backbone=Precomputed(3))
    monkeypatch.setattr("neverseen.model.grouping.FEATURES_LIMIT", 8)
    monkeypatch.setattr(Precomputed, "extract", None)
    with pytest.raises(InputError, match="sample 0 has 3 rows: at most 2 fit"):
        model.learn([SAMPLES[2]], ["sky"])
    longest = "x" * sealing.TEXT_LIMIT
    said = sealing.Receipt(longest, longest, longest, bytes(16), np.zeros(1, np.int8), bytes(16))
    assert len(sealing.seal(said, KEYS.receipts[0], bytes(32))) <= 2**18
    assert sealing.FEATURES_LIMIT + 2**18 == 2**25


@pytest.mark.parametrize(
    "settings_", [{"track_classes": True}, {"track_classes": True, "class_weight": "balanced"}], ids=["tracked", "even"]
)
def test_settings_that_need_a_class_for_each_sample(settings_: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs a class for each sample"):
        new(**settings_).learn(SAMPLES[:1], ["sky"])
    with pytest.raises(ConfigurationError, match="choose gamma yourself"):
        AnalyticClassifier(gamma="auto", targets=Rows()).configuration()
    model, receipts = taught()
    with pytest.raises(ConfigurationError, match="choose gamma yourself"):
        choose_gamma(model, receipts)


def test_questions_about_classes_of_samples() -> None:
    model, _ = taught()
    for ask in (lambda: model.predict_proba(SAMPLES[0]), model.means, lambda: model.forget_class("sky")):
        with pytest.raises((ConfigurationError, InputError, NotLearnedError, ValueError)):
            ask()
    assert len(model) == 6
    plain = ForgettingModel(Precomputed(3), AnalyticClassifier(Identity(), 2**6))
    with pytest.raises(NotLearnedError):
        predict_together(plain, SAMPLES)
    plain.learn(SAMPLES[0], ["sky", "tree"])
    with pytest.raises(ConfigurationError, match="a sample of this model is one row"):
        predict_together(plain, SAMPLES)
    with pytest.raises(InputError, match="prepared for a model with other targets"):
        plain.learn(model.prepare(SAMPLES), ["sky"] * 6)
    with pytest.raises(InputError, match="prepared for a model with other targets"):
        model.learn(plain.prepare(SAMPLES[0]), ["sky"] * 2)
    prepared = model.prepare(SAMPLES)
    with pytest.raises(InputError, match="prepared together"):
        prepared.only([0])
    with pytest.raises(InputError, match="prepared together"):
        prepared.joined([prepared])


def test_a_classifier_by_itself_has_no_samples_of_rows() -> None:
    with pytest.raises(LabelError, match="with a ForgettingModel or a Store"):
        AnalyticClassifier(RandomProjection(8), targets=Rows()).fit(SAMPLES[0], ["sky", "tree"])


@pytest.mark.parametrize(
    "settings_", [{"each": Rows()}, {"each": "classes"}, {"most": 0}, {"most": 2**16 + 1}, {"most": 2.0}]
)
def test_settings_of_rows(settings_: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"(each|most) must be"):
        Rows(**settings_)


def test_columns_that_no_samples_have() -> None:
    """A file with them is refused: classes of rows have the column of the sample beside them, and it is the largest."""
    classes, sets, numbers = Rows(), Rows(LabelSets()), Rows(Numbers(2))
    assert all(each.has_columns({}) for each in (classes, sets, numbers))
    assert classes.has_columns({"null": 2, '"sky"': 2})
    assert numbers.has_columns({"0": 2, "1": 2})
    for counts in ({"null": 1}, {'"sky"': 1}, {"null": 1, '"sky"': 2}):
        assert not classes.has_columns(counts)
    assert not sets.has_columns({'"sky"': 1})
    assert not numbers.has_columns({"0": 2})


def test_settings_are_read_again() -> None:
    for each in (None, LabelSets(), Numbers(2, 3), WeightedClasses()):
        rows = Rows(each, most=7)
        assert targets_of(rows.configuration()) == rows
    assert repr(Rows(most=7)) == "Rows(most=7)"
    assert repr(Rows(Numbers(2, 3), most=7)) == "Rows(Numbers(bits=3, outputs=2), most=7)"


@pytest.mark.parametrize(
    "label",
    [
        *((), ("a", 1), (("a", 0),), (("a", True),), (("a", 1), ("a", 1)), (("b", 1), ("a", 1)), ((None, 1),)),
        *((("a", 5),), (("a", 2), ("b", 3)), (("a", 1, 1),), "a", (("a", 1.5),), (("a", -1),)),
    ],
)
def test_labels_that_no_sample_has(label: Any) -> None:
    with pytest.raises(LabelError, match="no label of a sample of many rows"):
        Rows(most=4).rows(LabelIndex([label]))
    with pytest.raises(LabelError):
        Rows(most=4).length(text(label))
