"""Label sets, numbers, weighted and balanced classes from the command line: the answers of the library, or a refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from neverseen import AnalyticClassifier, Key, RandomProjection
from neverseen.backbones import Precomputed
from neverseen.cli.answers import measured
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses
from tests.cli.test_cli import _here, answer, run
from tests.samples import clustered

__all__ = ["_here"]  # a fixture

ROWS, CLUSTERS = clustered("kinds of labels", 24, 4, 3)
ROWS = ROWS.astype(np.float32).astype(np.float64)  # as every format can write them
INIT = ("--backbone", "features:4", "--codes", "16", "--gamma", "256")
SETS = [["red", "round"], ["round"], []]
NUMBERS = [[0.5, -2.0], [1.25, 100.0], [0.1, 7.0]]
WEIGHTED = [["cat", 3], ["dog", 1], ["emu", 20]]


class Kind(NamedTuple):
    targets: Targets
    labels: list[Any]
    init: tuple[str, ...]
    cells: list[str]  # of CSV, for the labels of the three clusters


KINDS = {
    "sets": Kind(LabelSets(), SETS, ("--targets", "label-sets"), ["red|round", "round", ""]),
    "numbers": Kind(
        Numbers(2, bits=4),
        NUMBERS,
        ("--targets", "numbers", "--outputs", "2", "--bits", "4"),
        ["0.5|-2", "1.25|1e2", "0.1|7"],
    ),
    "weighted": Kind(WeightedClasses(), WEIGHTED, ("--targets", "weighted-classes"), ["cat,3", "dog,1", "emu,20"]),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def labels(kind: Kind, rows: Any) -> list[Any]:
    return [kind.labels[CLUSTERS[row]] for row in rows]


def never(kind: Kind, rows: Any) -> AnalyticClassifier:
    """The model in memory that learned these rows, and nothing else."""
    grid_bits = 20 if kind.targets.kind == "numbers" else 40
    about: dict[str, Any] = {"backbone": Precomputed(4).digest(), "key": Key.generate()}
    model = AnalyticClassifier(RandomProjection(16), 256, grid_bits=grid_bits, targets=kind.targets, **about)
    return model.fit(ROWS[list(rows)].astype(np.float32), labels(kind, rows))


def write(name: str, kind: Kind, rows: Any) -> None:
    """Rows with their labels, in the format of the name."""
    rows = list(rows)
    weighted = kind.targets.kind == "weighted-classes"
    names = ["label", "weight"] if weighted else ["label"]
    path, given = Path(name), labels(kind, rows)
    columns = list(zip(*given, strict=True)) if weighted else [given]
    if path.suffix == ".csv":
        lines = [",".join(["id", *names, "a", "b", "c", "d"])]
        lines += [",".join([f"s{row}", kind.cells[CLUSTERS[row]], *map(repr, ROWS[row].tolist())]) for row in rows]
        path.write_text("\n".join(lines) + "\n", "utf-8")
    elif path.suffix == ".jsonl":
        entries = [
            {"id": f"s{row}", "features": ROWS[row].tolist()} | dict(zip(names, each, strict=True))
            for row, each in zip(rows, zip(*columns, strict=True), strict=True)
        ]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    elif path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        found = {"id": [f"s{row}" for row in rows]} | dict(zip(names, map(list, columns), strict=True))
        parquet.write_table(arrow.table(found | {"row": ROWS[rows].tolist()}), path)
    else:
        cells = [kind.cells[CLUSTERS[row]].partition(",")[0] for row in rows]
        arrays: dict[str, Any] = {"y": np.array(cells)} if kind.targets.kind != "numbers" else {"y": np.array(given)}
        arrays |= {"weights": np.array([each[1] for each in given])} if weighted else {}
        np.savez(path, X=ROWS[rows], ids=np.array([f"s{row}" for row in rows]), **arrays)


def shop(kind: Kind, rows: Any = range(24)) -> None:
    run("init", "shop", *INIT, *kind.init)
    write("all.csv", kind, rows)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")


def test_every_format_is_learned_alike(kind: Kind) -> None:
    shop(kind)
    assert answer("history", "shop")[0]["model"] == never(kind, range(24)).digest()
    for name in ("all.jsonl.jsonl", "all.parquet", "all.npz"):
        write(name, kind, range(24))
        assert answer("verify", "retrain", "shop", name)["passed"]
    receipt = json.loads(Path("all.jsonl").read_text("utf-8").splitlines()[0])
    rounded = kind.targets.given(kind.targets.label(labels(kind, [0])[0]))
    assert receipt["label"] == rounded
    assert run("verify", "store", "shop").startswith("ok: shop is whole: 24 samples")
    assert "the exact solution" in run("verify", "weights", "shop")
    found = answer("learn", "shop", "all.npz", "--random-ids", "--skip-held", "--receipts", "none.jsonl")
    assert (found["learned"], found["held_already"]) == (0, 24)


def test_answers_are_those_of_the_library(kind: Kind) -> None:
    shop(kind, range(16))
    write("test.csv", kind, range(16, 24))
    model, truth = never(kind, range(16)), labels(kind, range(16, 24))
    rows = ROWS[16:].astype(np.float32)
    found = answer("predict", "shop", "test.csv", "--labelled")
    field = {"label-sets": "labels", "numbers": "numbers"}.get(kind.targets.kind, "class")
    expected = model.predict(rows)
    said = [each[field] for each in found["predictions"]]
    if field == "labels":
        assert list(map(set, said)) == list(map(set, expected))
    else:
        assert said == expected.tolist()
    assert (found["measure"], found["accuracy"]) == (kind.targets.measure, None)
    assert found["score"] == model.score(rows, truth)
    assert f"{measured(kind.targets)}: " in run("predict", "shop", "test.csv", "--labelled")
    write("some.csv", kind, range(3))
    before = answer("status", "shop")
    view = model.without(ROWS[:3].astype(np.float32), labels(kind, range(3)))
    asked = answer("what-if", "shop", "some.csv", "--test", "test.csv")
    assert (asked["now"]["score"], asked["without"]["score"]) == (found["score"], view.score(rows, truth))
    assert asked["without"]["model"] == never(kind, range(3, 16)).digest()
    assert (asked["now"]["samples"], asked["without"]["samples"]) == (16, 13)
    pairs = zip(model.predict(rows), view.predict(rows), strict=True)
    assert asked["changed"] == sum(not np.array_equal(one, other) for one, other in pairs)
    apart = answer("what-if", "shop", "--receipts", "all.jsonl", "--leave-one-out")
    guesses = [each.label for each in model.leave_one_out(ROWS[:16].astype(np.float32), labels(kind, range(16)))]
    assert [each["predicted"] for each in apart["samples"]] == kind.targets.said(guesses)
    left = [kind.targets.label(label) for label in labels(kind, range(16))]
    assert apart["score"] == kind.targets.score(guesses, left)
    run("what-if", "shop", "some.csv", "--leave-one-out")
    assert "nothing was changed" in run("what-if", "shop", "some.csv", "--test", "test.csv")
    dry = answer("forget", "shop", "some.csv", "--dry-run")
    assert dry["requested"] == 3
    counts: dict[str, int] = {}
    for label in labels(kind, range(3)):
        for name in label if field == "labels" else [label[0]] if field == "class" else []:
            counts[name] = counts.get(name, 0) + 1
    assert dry["classes"] == [{"class": name, "samples": counts[name]} for name in sorted(counts)]
    after = answer("status", "shop")
    assert after | {"bytes": 0} == before | {"bytes": 0}
    assert after["samples"] == 16
    assert after["targets"] == kind.targets.configuration()
    assert after["samples_by_class"] == asked["now"]["classes"]
    assert None not in [each["class"] for each in after["samples_by_class"]]
    run("status", "shop")


@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_leaves_no_trace(kind: Kind, seed: int) -> None:
    """After learning and forgetting in any order, what is published is the model of what is held."""
    draw = np.random.default_rng(seed)
    run("init", "shop", *INIT, *kind.init)
    held: dict[int, str] = {}  # the file of its receipt, by row
    for step in range(5):
        if not held or draw.random() < 0.5:
            new = [int(row) for row in draw.permutation(24)[:5] if row not in held]
            if not new:
                continue
            write(f"{step}.csv", kind, new)
            run("learn", "shop", f"{step}.csv", "--receipts", f"{step}.receipts", "--no-publish")
            held |= dict.fromkeys(new, f"{step}.receipts")
        elif draw.random() < 0.5:
            gone = [int(row) for row in draw.permutation(list(held))[:3]]
            write(f"{step}.csv", kind, gone)
            run("forget", "shop", f"{step}.csv", "--no-publish")
            held = {row: file for row, file in held.items() if row not in gone}
        else:
            row = int(draw.choice(list(held)))
            run("forget", "shop", "--receipts", held.pop(row), "--id", f"s{row}", *["--seal"] * int(draw.integers(2)))
    run("seal", "shop")
    expected = (
        never(kind, sorted(held)) if held else never(kind, [0]).forget(ROWS[:1].astype(np.float32), labels(kind, [0]))
    )
    assert answer("predict" if held else "history", "shop", *["0.csv"] * bool(held))["model" if held else -1] == (
        expected.digest()
    )


def test_balanced_classes_and_a_chosen_gamma() -> None:
    cats = Kind(LabelSets(), ["cat", "dog", "emu"], (), ["cat", "dog", "emu"])
    write("all.csv", cats, range(24))
    for name, more in (("even", ("--class-weight", "balanced", "--track-classes")), ("auto", ("--gamma", "auto"))):
        run("init", name, *INIT, *more)
        run("learn", name, "all.csv", "--receipts", f"{name}.jsonl")
        run("forget", name, "--receipts", f"{name}.jsonl", "--id", "s0")
        settings: dict[str, Any] = {"gamma": "auto"} if name == "auto" else {"gamma": 256, "class_weight": "balanced"}
        model = AnalyticClassifier(
            RandomProjection(16), track_classes=name == "even", backbone=Precomputed(4).digest(), **settings
        ).fit(ROWS[1:].astype(np.float32), labels(cats, range(1, 24)))
        found = answer("predict", name, "all.csv", "--labelled")
        assert (found["model"], found["measure"]) == (model.digest(), "accuracy")
        assert found["accuracy"] == found["score"] == model.score(ROWS.astype(np.float32), labels(cats, range(24)))
    run("forget-class", "even", "cat")
    assert "--track-classes" in run("init", "t", *INIT, "--class-weight", "balanced", code=2)
    words = run("init", "t", *INIT[:-1], "auto", "--targets", "numbers", code=1)
    assert "gamma='auto' needs the sum of the squares" in words
    words = run("init", "t", *INIT, "--targets", "label-sets", "--track-classes", "--keys", "k", code=1)
    assert "track_classes needs a class for each sample" in words
    assert "--targets numbers" in run("init", "t", *INIT, "--outputs", "2", code=2)
    assert not Path("t").exists()
    assert not Path("k").exists()


def test_numbers_in_columns_of_their_own() -> None:
    kind = KINDS["numbers"]
    shop(kind)
    lines = ["x,y,a,b,c,d"] + [",".join(map(repr, [*labels(kind, [row])[0], *ROWS[row].tolist()])) for row in range(24)]
    Path("two.csv").write_text("\n".join(lines) + "\n", "utf-8")
    assert answer("verify", "retrain", "shop", "two.csv", "--labels", "x,y")["passed"]
    assert "two.csv has no 'x,z'" in run("verify", "retrain", "shop", "two.csv", "--labels", "x,z", code=1)
    run("init", "one", *INIT, "--targets", "numbers", "--bits", "0")
    run("learn", "one", "two.csv", "--labels", "y", code=1)  # x would be a feature too many
    Path("one.csv").write_text("\n".join(line.partition(",")[2] for line in lines) + "\n", "utf-8")
    run("learn", "one", "one.csv", "--labels", "y", "--receipts", "one.jsonl")
    assert isinstance(answer("predict", "one", "one.csv", "--labels", "y")["predictions"][0]["numbers"][0], float)


REFUSED = {
    "sets": [
        ("a.csv", "label,a,b,c,d\nred| round,1,2,3,4\n", "a.csv, line 2: the labels 'red| round' cannot be told apart"),
        ("a.csv", "label,a,b,c,d\nred||round,1,2,3,4\n", "cannot be told apart"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": "red"}', "line 1: the labels of a sample are a list or a set"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": null}', "the labels of a sample are a list or a set"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": [null]}', "None cannot be one of the labels"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": [{"a": 1}]}', "has no canonical form"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": ["' + "x" * 70_000 + '"]}', "at most 65,535 fit"),
        ("a.csv", "label,weight,a,b,c,d\nred,3,1,2,3,4\n", "a.csv has 5 columns of features"),
    ],
    "numbers": [
        ("a.csv", "label,a,b,c,d\n1.5,1,2,3,4\n", "a.csv, line 2: a sample has 2 numbers to predict"),
        ("a.csv", "label,a,b,c,d\n1|x,1,2,3,4\n", "line 2: 'x' is not a number"),
        ("a.csv", "label,a,b,c,d\n1|,1,2,3,4\n", "'' is not a number"),
        ("a.csv", "label,a,b,c,d\n1|nan,1,2,3,4\n", "must be finite"),
        ("a.csv", "label,a,b,c,d\n1|1e9,1,2,3,4\n", "is beyond 65536"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": ["1", 2]}', "a sample has 2 numbers"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": [1, 2, 3]}', "a sample has 2 numbers"),
        ("a.jsonl", '{"features": [1, 2, 3, 4], "label": [true, 2]}', "a sample has 2 numbers"),
    ],
    "weighted": [
        ("a.csv", "label,a,b,c,d\ncat,1,2,3,4\n", "a.csv has no weights"),
        ("a.csv", "label,weights,a,b,c,d\ncat,3,1,2,3,4\n", "'weights' is not read: weights are read from 'weight'"),
        ("a.csv", "label,weight,a,b,c,d\ncat,0,1,2,3,4\n", "line 2: the label of a weighted sample is a pair"),
        ("a.csv", "label,weight,a,b,c,d\ncat,1.5,1,2,3,4\n", "the label of a weighted sample is a pair"),
        ("a.csv", "label,weight,a,b,c,d\n,1,1,2,3,4\n", "line 2: the cell of the column 'label' is empty"),
    ],
}


def test_labels_that_cannot_be_read(kind: Kind) -> None:
    run("init", "shop", *INIT, *kind.init)
    (name,) = [name for name, each in KINDS.items() if each is kind]
    for file, content, why in REFUSED[name]:
        Path(file).write_text(content, "utf-8")
        assert why in run("learn", "shop", file, "--receipts", "r.jsonl", code=1)
    assert not Path("r.jsonl").exists()
    np.savez("flags.npz", X=ROWS[:2], y=np.array([[1, 0], [0, 1]]))
    if name != "numbers":
        assert "y has shape (2, 2)" in run("learn", "shop", "flags.npz", code=1)
    if name != "weighted":
        write("all.csv", kind, range(3))
        assert "does not learn weighted classes" in run("learn", "shop", "all.csv", "--weights", "weight", code=1)
    shutil.rmtree("shop")
    run("init", "shop", *INIT, *kind.init)
    write("all.csv", kind, range(3))
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    assert "means need a class for each sample" in run("predict", "shop", "all.csv", "--by", "lda", code=1)
    assert "without --track-classes" in run("forget-class", "shop", "cat", code=1)
    other = {"sets": "green", "numbers": "1|1", "weighted": "cat,4"}[name]
    lines = Path("all.csv").read_text("utf-8").splitlines()
    lines[1] = lines[1].replace(kind.cells[CLUSTERS[0]], other, 1)
    Path("other.csv").write_text("\n".join(lines), "utf-8")
    assert "no such sample is held" in run("forget", "shop", "other.csv", code=1)
    assert answer("status", "shop")["samples"] == 3


def test_labels_of_lines_and_folders() -> None:
    """A label that is a text is written as in CSV: before a TAB, as the name of a folder, or with --label."""
    from neverseen.sources.samples import Columns, read_source
    from neverseen.sources.tables import Takes

    takes = Takes("texts", 4, "mail", "minilm", LabelSets())
    Path("mail.tsv").write_text("praise|late\tIt works.\n\tNo label.\n", "utf-8")
    assert read_source(Path("mail.tsv"), Columns(), takes=takes).labels == [["praise", "late"], []]
    assert read_source(Path("mail.tsv"), Columns(label="x|y"), takes=takes).labels == [["x", "y"]] * 2
    images = Takes("images", 4, "album", "net", LabelSets())
    Path("photos/red|round").mkdir(parents=True)
    Path("photos/red|round/a.png").write_bytes(b"")
    assert read_source(Path("photos"), Columns(), takes=images).labels == [["red", "round"]]
