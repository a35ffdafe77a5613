"""The promise: a file of samples, an image, an archive and a store's folder can be refused, and do nothing else.

They come from others. None of them may run code, be read from or written to elsewhere, hang a command, fill the memory,
or speak to the terminal; and what is refused leaves no trace.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
import timeit
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from neverseen import AnalyticClassifier, InputError, RandomProjection, store
from neverseen.backbones import Images, OnnxBackbone, Precomputed
from neverseen.backbones.recipes import FILE
from neverseen.labels import has_surrogates
from neverseen.sources import parquet_files, tables
from neverseen.sources.samples import read_source
from neverseen.sources.tables import Columns
from tests.cli.test_cli import INIT, NAMES, ROWS, _here, answer, run, write_csv
from tests.networks_for_stores import Letters, linear_network
from tests.samples import uniform_bytes

__all__ = ["_here"]

STRIPES = ("--backbone", "tests.networks_for_stores:Brightness")
HEADS = ",".join("abcdefgh")
ONES = ",".join("1" * 8)


def tree(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


# -- tables ------------------------------------------------------------------------------------------


def array(values: Any) -> bytes:
    """Return an array as a file of NumPy."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array(values))
    return file.getvalue()


def headed(header: str) -> bytes:
    """Return a file of NumPy that has a crafted header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + bytes(64)


def archived(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def damaged(method: int) -> bytes:
    """Return an archive whose array is compressed, with wrong bytes in it."""
    content = bytearray(
        archived({"X.npy": array(np.arange(4096).reshape(512, 8)), "y.npy": array(["x"] * 512)}, method)
    )
    content[60:90] = b"\xff" * 30
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nul.csv", f"label,{HEADS}\nx,\0,{ONES[2:]}\n".encode()),
        ("quote.csv", f'label,{HEADS}\n"x,{ONES}\n'.encode()),
        ("wide.csv", b"label," + b",".join(b"c%d" % place for place in range(5000)) + b"\n"),
        ("inf.csv", f"label,{HEADS}\nx,1e999,{ONES[2:]}\n".encode()),
        ("hex.csv", f"label,{HEADS}\nx,0x10,{ONES[2:]}\n".encode()),
        ("underscore.csv", f"label,{HEADS}\nx,1_0,{ONES[2:]}\n".encode()),
        ("digits.csv", f"label,{HEADS}\nx,\u0661,{ONES[2:]}\n".encode()),
        ("utf16.csv", f"label,{HEADS}\nx,{ONES}\n".encode("utf-16")),
        ("field.csv", f"label,{HEADS}\n{'x' * 200_000},{ONES}\n".encode()),
        ("deep.jsonl", b"[" * 100_000 + b"\n"),
        ("deeper.jsonl", b'{"a":' * 100_000 + b"\n"),
        ("nan.jsonl", b'{"features": [NaN' + b",1" * 7 + b'], "label": "x"}\n'),
        ("big.jsonl", b'{"features": [1' + b"0" * 400 + b",1" * 7 + b'], "label": "x"}\n'),
        ("digits.jsonl", b'{"features": [' + b"1" * 10_000 + b",1" * 7 + b'], "label": "x"}\n'),
        ("bool.jsonl", b'{"features": [true' + b",1" * 7 + b'], "label": "x"}\n'),
        ("label.jsonl", b'{"features": [1' + b",1" * 7 + b'], "label": {"a": 1}}\n'),
        ("other.jsonl", b'{"features": [1' + b",1" * 7 + b'], "label": "x"}\n{"text": "a", "label": "x"}\n'),
        ("empty.jsonl", b""),
        ("cut.npz", b"PK\x03\x04"),
        ("raw.npz", archived({"X": b"no array", "y.npy": array(["x"])})),
        ("raw-labels.npz", archived({"X.npy": array(ROWS[:1]), "y": b"x"})),
        ("raw-other.npz", archived({"X.npy": array(ROWS[:1]), "y.npy": array(["x"]), "notes.txt": b"x"})),
        ("token.npz", archived({"X.npy": headed("{'descr': '<f8', 'shape': ((((1,"), "y.npy": array(["x"])})),
        ("syntax.npz", archived({"X.npy": headed("{'descr': '<f8' 'shape' 1}"), "y.npy": array(["x"])})),
        ("type.npz", archived({"X.npy": headed("{'descr': ['<f8'], 'fortran_order': False, 'shape': (1, 8)}")})),
        (
            "large.npz",
            archived({"X.npy": headed("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999, 8)}")}),
        ),
        ("bz2.npz", damaged(zipfile.ZIP_BZIP2)),
        ("lzma.npz", damaged(zipfile.ZIP_LZMA)),
        ("deflated.npz", damaged(zipfile.ZIP_DEFLATED)),
        ("cut.parquet", b"PAR1" + bytes(40) + b"PAR1"),
    ],
)
def test_crafted_tables_are_refused_in_one_line(name: str, content: bytes) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    run("init", "shop", *INIT)
    before = {path: raw for path, raw in tree("shop").items() if "lock" not in path}
    Path(name).write_bytes(content)
    words = run("learn", "shop", name, code=1)
    assert words.startswith("error: learn: ")
    assert name in words
    assert {path: raw for path, raw in tree("shop").items() if "lock" not in path} == before
    assert not list(Path().glob("receipts*"))


@pytest.mark.parametrize("part", ["label", "id", "owner"])
@pytest.mark.parametrize("value", [r'"\ud800"', "NaN", "9" * 3000, f'"{"x" * 70_000}"'])
def test_a_value_without_a_canonical_form_is_told_with_its_line(part: str, value: str) -> None:
    run("init", "shop", *INIT)
    good = {"features": ROWS[0].tolist(), "label": "x", "id": "1", "owner": "ada"}
    bad = json.dumps(good | {"id": "2", part: "?"}).replace('"?"', value)
    Path("bad.jsonl").write_text(f"{json.dumps(good)}\n{bad}\n", "utf-8")
    assert run("learn", "shop", "bad.jsonl", code=1).startswith(
        "error: learn: bad.jsonl, line 2: the cell of the column"
    )


def test_a_label_that_names_no_class_is_told_with_its_line() -> None:
    run("init", "shop", *INIT)
    words = run("learn", "shop", lines("fraction.jsonl", {}, {"label": 0.5}), code=1)
    assert words.startswith("error: learn: fraction.jsonl, line 2: Unknown label type: 0.5 is a number with a fraction")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.tsv", "cat\tmiaow\n"),
        ("a.txt", "cat\tmiaow\n"),
        ("a.csv", "cat,miaow\n"),
        ("a.jsonl", '{"label": "cat", "text": "miaow"}\n'),
    ],
)
def test_a_byte_order_mark_makes_no_second_class(name: str, line: str) -> None:
    head = "label,text\n" if name.endswith("csv") else ""
    Path(name).write_text(head + line + line, "utf-8-sig")
    found = read_source(Path(name), Columns())
    assert (found.labels, found.samples) == (["cat", "cat"], ["miaow", "miaow"])
    Path(name).write_text(head + line + "\ufeff" + line, "utf-8-sig")  # files that were joined
    with pytest.raises(InputError, match=rf"{name}, line {3 if head else 2} begins with a byte order mark"):
        read_source(Path(name), Columns())


def test_names_of_columns_are_counted_while_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMN_LIMIT", 50)
    lines = [json.dumps({"text": "a", "label": "b", f"k{row}": 1}) for row in range(49)]
    Path("names.jsonl").write_text("\n".join([*lines, "no JSON"]), "utf-8")
    with pytest.raises(InputError, match=r"names\.jsonl has 51 columns; at most 50 are read"):
        read_source(Path("names.jsonl"), Columns())


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_many_names_of_columns_take_no_time_together(kind: str) -> None:
    """One pass over all names for each name would take half a minute or more."""
    count, path = (80_000 if kind == "csv" else 40_000), Path(f"names.{kind}")
    if kind == "csv":
        path.write_text("label," + ",".join(f"f{place}" for place in range(count)) + "\n", "utf-8")
    else:
        path.write_text("".join(f'{{"text":"a","label":"b","k{row}":1}}\n' for row in range(count)), "utf-8")
    before = time.process_time()
    if kind == "csv":
        with pytest.raises(InputError, match=r"there are no samples in names\.csv"):
            read_source(path, Columns())
    else:
        assert len(read_source(path, Columns())) == count
    assert time.process_time() - before < 10


def test_a_pipe_is_not_waited_for() -> None:
    run("init", "shop", *INIT)
    run("learn", "shop", lines("rows.jsonl", {}))
    for name in ("pipe.csv", "pipe.jsonl", "pipe.npz", "pipe.parquet", "pipe.txt", "pipe.png"):
        os.mkfifo(name)
        for command in ("learn", "predict", "forget"):
            assert f"{name} is a pipe or a device" in run(command, "shop", name, "--label", "x", code=1)
    assert "pipe.jsonl is a folder, a pipe or a device" in run("forget", "shop", "--receipts", "pipe.jsonl", code=1)


def test_classes_that_look_alike_are_told_apart() -> None:
    run("init", "shop", *INIT)
    labels = [1, "1", "x\u202e", "x\u202d", "y"]
    run("learn", "shop", lines("alike.jsonl", *({"label": label} for label in labels)))
    for words in (run("status", "shop"), run("forget", "shop", "alike.jsonl", "--dry-run")):
        assert (
            r"""1	1
"1"	1
"x\u202d"	1
"x\u202e"	1
y	1
"""
            in words
        )


def test_a_line_without_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", "shop", *INIT)
    monkeypatch.setattr(tables, "LINE_LIMIT", 1000)
    for name in ("long.csv", "long.jsonl"):
        Path(name).write_text("x" * 5000, "utf-8")
        assert "line 1 is longer than 1,000 letters" in run("learn", "shop", name, code=1)


def test_a_pickle_in_an_archive_is_never_opened() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (Path("owned"),)

    run("init", "shop", *INIT)
    np.savez("evil.npz", X=np.array([Evil()] * 2, dtype=object), y=np.arange(2))
    assert "plain arrays" in run("learn", "shop", "evil.npz", code=1)
    assert not Path("owned").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", "shop", *INIT)
    monkeypatch.setattr(tables, "BYTE_LIMIT", 10**6)
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    about = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 8), }".ljust(117).encode() + b"\n"
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", head + about + bytes(64 * 10**6))
    assert "unpacks to 64,000,128 bytes" in run("learn", "shop", "bomb.npz", code=1)


def test_names_do_not_speak_to_the_terminal() -> None:
    pytest.importorskip("PIL")
    run("init", "album", *STRIPES, "--codes", "16")
    Path("photos/x").mkdir(parents=True)
    Path("photos/x/\x1b]0;owned\x07.png").write_bytes(b"no image")
    from PIL import Image

    Image.fromarray(uniform_bytes("good", 8, 8, 3)).save("photos/x/good.png")
    from typer.testing import CliRunner

    from neverseen.cli import app

    result = CliRunner().invoke(app, ["learn", "album", "photos", "--skip-bad", *STRIPES])
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" not in run("learn", "album", "photos", *STRIPES, code=1)


# -- owners ----------------------------------------------------------------------------------------------


def owned(name: str, *rows: tuple[str, str, int], heads: str = "id,owner") -> str:
    """Write a table with rows of ids, owners and samples."""
    lines = [f"{heads},label,{HEADS}"]
    lines += [f"{known},{owner},x,{','.join(map(repr, ROWS[row].tolist()))}" for known, owner, row in rows]
    Path(name).write_text("\n".join(lines) + "\n", "utf-8")
    return name


def test_a_row_of_one_owner_does_not_forget_anothers_sample() -> None:
    run("init", "shop", *INIT)
    run("learn", "shop", owned("bob.csv", ("p", "bob", 0), ("q", "bob", 1)))
    for name, owner in (("ada.csv", "ada"), ("nobody.csv", "")):
        owned(name, ("q", "bob", 1), ("p", owner, 0))
        for option in ("--publish", "--by-content"):
            words = run("forget", "shop", name, option, code=1)
            assert words.startswith(f"error: forget: {name}, line 3: no such sample is held with this label, ")
            assert "owner (1 of 2 samples in all)" in words
    owned("other.csv", ("p", "ada", 0), heads="id,whose")
    assert "does not hold numbers" in run("forget", "shop", "other.csv", code=1)
    assert "no such sample is held" in run("forget", "shop", "other.csv", "--owners", "whose", code=1)
    assert answer("status", "shop")["samples"] == 2
    assert answer("forget", "shop", "bob.csv")["forgotten"] == 2


@pytest.mark.parametrize("option", ["--publish", "--by-content"])
def test_what_two_owners_share_is_forgotten_with_the_file_it_was_learned_from(option: str) -> None:
    run("init", "shop", *INIT)
    run("learn", "shop", owned("two.csv", ("p", "ada", 0), ("p", "bob", 0), ("q", "bob", 1)))
    text = Path("two.csv").read_text("utf-8").splitlines()
    unsaid = "\n".join(line.replace(",bob", "").replace(",owner", "") for line in (text[0], text[3], text[2]))
    Path("unsaid.csv").write_text(unsaid, "utf-8")
    words = run("forget", "shop", "unsaid.csv", option, code=1)
    assert words.startswith("error: forget: unsaid.csv, line 3: ")
    assert "shop holds several such samples. Identify it by a column of ids (--ids)" in words
    assert answer("forget", "shop", owned("ada.csv", ("p", "ada", 0)), option)["forgotten"] == 1
    assert "ada.csv, line 2: no such" in run("forget", "shop", "ada.csv", option, code=1)
    run("learn", "shop", "ada.csv", "--receipts", "again.jsonl")
    assert answer("forget", "shop", "two.csv", option)["forgotten"] == 3


def lines(name: str, *entries: Any) -> str:
    """Write JSON lines, of the samples that go with these parts."""
    said = ({"features": ROWS[row].tolist(), "label": "x"} | entry for row, entry in enumerate(entries))
    Path(name).write_text("".join(json.dumps(entry) + "\n" for entry in said), "utf-8")
    return name


def receipts_in(name: str) -> list[tuple[Any, Any]]:
    found = [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]
    return [(entry["id"], entry["owner"]) for entry in found]


def test_owners_count_though_the_first_line_names_none() -> None:
    run("init", "shop", *INIT)
    lines("some.jsonl", {"id": "1"}, {"id": "2", "owner": "ada"}, {"id": "3", "owner": None})
    run("learn", "shop", "some.jsonl", "--receipts", "some.r.jsonl")
    assert receipts_in("some.r.jsonl") == [("1", None), ("2", "ada"), ("3", None)]
    lines("whose.jsonl", {"id": "4"}, {"id": "5", "whose": "bob"})
    run("learn", "shop", "whose.jsonl", "--owners", "whose", "--receipts", "whose.r.jsonl")
    assert receipts_in("whose.r.jsonl") == [("4", None), ("5", "bob")]
    assert answer("forget", "shop", "some.jsonl")["forgotten"] == 3
    assert answer("forget", "shop", "whose.jsonl", "--owners", "whose")["forgotten"] == 2


def test_ids_of_some_lines_are_not_passed_over() -> None:
    run("init", "shop", *INIT)
    for entries, line in ((({}, {"id": "2"}), 1), (({"id": "1"}, {}), 2), (({"id": "1"}, {"id": None}), 2)):
        words = run("learn", "shop", lines("ids.jsonl", *entries), code=1)
        assert f"ids.jsonl, line {line}: the cell of the column 'id' is empty" in words
    assert answer("learn", "shop", lines("ids.jsonl", {}, {}))["learned"] == 2


def test_what_is_said_twice_is_refused() -> None:
    """The second owner would take the sample from the first, for a reader that keeps the other one."""
    run("init", "shop", *INIT)
    features = json.dumps(ROWS[0].tolist())
    for said in ('"owner": "ada", "owner": "bob"', '"id": "1", "id": "2"', '"label": "y"', '"more": {"a": 1, "a": 2}'):
        Path("twice.jsonl").write_text(f'{{"features": {features}, "label": "x", {said}}}\n', "utf-8")
        assert "twice.jsonl, line 1 repeats a name in one object" in run("learn", "shop", "twice.jsonl", code=1)
    np.savez("twice.npz", X=ROWS[:2], y=np.array(["x", "x"]), owners=np.array(["ada", "ada"]))
    with zipfile.ZipFile("twice.npz", "a") as archive, archive.open("owners", "w") as file:
        np.lib.format.write_array(file, np.array(["bob", "bob"]))
    assert "twice.npz has two arrays of the same name" in run("learn", "shop", "twice.npz", code=1)


# -- images ------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_bad_images_are_skipped_by_name_and_hang_nothing() -> None:
    pil = pytest.importorskip("PIL.Image")
    folder = Path("photos/x")
    folder.mkdir(parents=True)
    pil.fromarray(uniform_bytes("good", 8, 8, 3)).save(folder / "good.png")
    good = (folder / "good.png").read_bytes()
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bad = {
        "bomb.png": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))),
        "cut.png": good[: len(good) // 2],
        "empty.png": b"",
        "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(owned) (w) file closefile\n",
        "vector.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.png")  # opening it would wait for ever
    (folder / "loop.png").symlink_to("loop.png")
    run("init", "album", *STRIPES, "--codes", "16")
    done = answer("learn", "album", "photos", "--skip-bad", *STRIPES)
    assert done["learned"] == 1
    assert [entry["sample"] for entry in done["skipped"]] == [
        f"x/{name}" for name in sorted(["loop.png", "pipe.png", *bad])
    ]
    assert answer("forget", "album", "photos", "--skip-bad", *STRIPES)["forgotten"] == 1


# -- recipes -----------------------------------------------------------------------------------------


def altered_recipe(folder: str, recipe: Any, name: str | None = None) -> None:
    path = Path(folder, "store.json")
    about = json.loads(path.read_bytes())
    about["backbone"]["recipe"] = recipe
    about["backbone"]["name"] = name or about["backbone"]["name"]
    path.write_text(json.dumps(about, sort_keys=True, separators=(",", ":")) + "\n", "utf-8")


@pytest.mark.parametrize(
    "recipe",
    [
        "evil:make",
        {"kind": "evil:make"},
        {"kind": "python", "module": "evil", "function": "make"},
        {"kind": "features", "n_features": 8, "name": "precomputed", "module": "evil"},
        {"kind": "features", "n_features": 10**12, "name": "x"},
        {"kind": "features", "n_features": "8", "name": "x"},
        {"kind": "onnx", "sha256": "ab" * 32, "images": {}, "file": "../../evil.onnx"},
        {"kind": ["onnx"]},
    ],
)
def test_a_stores_recipe_runs_no_code_and_reads_nothing_else(recipe: Any) -> None:
    Path("evil.py").write_text("import pathlib\npathlib.Path('owned').touch()\ndef make(): ...\n", "utf-8")
    with store.create("shop", Letters(), AnalyticClassifier(RandomProjection(16), gamma=64)) as model:
        model.learn(["abc", "xyz"], ["a", "b"])
        model.publish()
    run("keys", "add", "shop", "app", "--scope", "predict")
    altered_recipe("shop", recipe, "evil:make")
    write_csv("rows.csv", ROWS, NAMES)
    Path("texts.csv").write_text("text\nabc\n", "utf-8")
    for source in ("rows.csv", "texts.csv"):
        run("predict", "shop", source, code=1)
    run("serve", "shop", code=1)
    assert not Path("owned").exists()


def test_a_network_beside_the_store_is_not_followed() -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    Path("network.onnx").write_bytes(linear_network(8))
    settings = AnalyticClassifier(RandomProjection(16), gamma=64)
    with store.create("album", OnnxBackbone("network.onnx", Images(size=4)), settings) as model:
        model.learn([uniform_bytes(f"p{row}", 8, 8, 3) for row in range(4)], list("aabb"))
        model.publish()
    pil = pytest.importorskip("PIL.Image")
    pil.fromarray(uniform_bytes("one", 8, 8, 3)).save("one.png")
    assert len(answer("predict", "album", "one.png")["predictions"]) == 1
    Path("album", FILE).unlink()
    Path("album", FILE).symlink_to(Path("network.onnx").absolute())
    assert "not a plain file" in run("predict", "album", "one.png", code=1)
    Path("album", FILE).unlink()
    Path("album", FILE).write_bytes(linear_network(8, seed=1))
    assert "is not the network that the store was made with" in run("predict", "album", "one.png", code=1)


def test_a_network_and_its_recipe_swapped_together_do_not_pass() -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    pil = pytest.importorskip("PIL.Image")
    settings = AnalyticClassifier(RandomProjection(16), gamma=64)
    for seed, folder in enumerate(("album", "other")):
        Path("network.onnx").write_bytes(linear_network(8, seed))
        with store.create(folder, OnnxBackbone("network.onnx", Images(size=4)), settings) as model:
            model.learn([uniform_bytes(f"p{row}", 8, 8, 3) for row in range(4)], list("aabb"))
            model.publish()
    pil.fromarray(uniform_bytes("one", 8, 8, 3)).save("one.png")
    Path("album", FILE).write_bytes(Path("other", FILE).read_bytes())
    altered_recipe("album", json.loads(Path("other/store.json").read_bytes())["backbone"]["recipe"])
    assert "made with another backbone" in run("predict", "album", "one.png", code=1)


def test_a_folder_of_modules_hides_none_that_is_installed() -> None:
    """The operator's own module may lie in this folder; one named like a library must not take its place."""
    Path("json.py").write_text("import pathlib\npathlib.Path('owned').touch()\n", "utf-8")
    Path("mine.py").write_text("import json\nfrom tests.networks_for_stores import Letters\n", "utf-8")
    run("init", "post", "--backbone", "mine:Letters", "--codes", "16")
    Path("pack").mkdir()
    Path("pack/mine.py").write_text("import json\nfrom tests.networks_for_stores import Letters\n", "utf-8")
    run("init", "mail", "--backbone", "pack.mine:Letters", "--codes", "16")
    assert not Path("owned").exists()


# -- archives ----------------------------------------------------------------------------------------


def test_an_archive_writes_nowhere_else() -> None:
    store.create("shop", Precomputed(8), AnalyticClassifier(RandomProjection(16), gamma=64)).close()
    run("export", "shop", "shop.tar")
    for name, kind, link in (
        ("../escape.json", tarfile.REGTYPE, ""),
        ("/tmp/neverseen-escape.json", tarfile.REGTYPE, ""),  # noqa: S108
        ("sums/../../escape.json", tarfile.REGTYPE, ""),
        ("sums/link.json", tarfile.SYMTYPE, "/etc/passwd"),
        ("sums/hard.json", tarfile.LNKTYPE, "store.json"),
        ("pipe.json", tarfile.FIFOTYPE, ""),
        ("service/keys.json", tarfile.REGTYPE, ""),
        (".hidden", tarfile.REGTYPE, ""),
        ("store.json", tarfile.REGTYPE, ""),  # a second time
    ):
        with tarfile.open("shop.tar") as old, tarfile.open("evil.tar", "w") as new:
            for member in old:
                new.addfile(member, old.extractfile(member))
            extra = tarfile.TarInfo(name)
            extra.type, extra.linkname, extra.size = kind, link, 2 if kind == tarfile.REGTYPE else 0
            new.addfile(extra, io.BytesIO(b"{}"))
        run("import", "again", "evil.tar", code=1)
        assert not Path("again").exists(), name
        assert not list(Path().glob(".again*"))
        assert not Path("escape.json").exists()
        assert not Path("../escape.json").exists()
        assert not Path("/tmp/neverseen-escape.json").exists()  # noqa: S108


@pytest.mark.parametrize("option", ["labels", "ids", "owners", "texts"])
@pytest.mark.parametrize("name", ["lines.tsv", "lines.txt", "folder"])
def test_columns_of_what_has_none_are_not_dropped(tmp_path: Path, name: str, option: str) -> None:
    """Whoever names the column of owners must not find out later that all samples are nobody's."""
    source = tmp_path / name
    if name == "folder":
        source.mkdir()
    else:
        source.write_text("cat\ta sentence\n", "utf-8")
    named: dict[str, Any] = {option: "owner"}
    with pytest.raises(InputError, match=f"has no columns, so it has none of {option}"):
        read_source(source, Columns(**named))


# -- Parquet: a value that is repeated is in the file once -----------------------------------------------------------


def repeated(name: str, value: Any, count: int, *, typed: bool) -> Any:
    """Write a table of one text, many times over; `typed`: as a column of categories."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    places = arrow.array(np.zeros(count, np.int32))
    columns = {"text": value, "label": "a"}
    table = {head: arrow.DictionaryArray.from_arrays(places, arrow.array([entry])) for head, entry in columns.items()}
    parquet.write_table(arrow.table(table), name, store_schema=typed)


TEXTS = tables.Takes("texts", 4, "mail", "minilm")


@pytest.mark.parametrize("typed", [False, True])
def test_a_small_file_of_many_repetitions_is_not_read_to_its_end(typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    count, size, limit = 40_000, 2**10, 2**24
    repeated("bomb.parquet", "x" * size, count, typed=typed)
    assert Path("bomb.parquet").stat().st_size < 2**14
    assert len(read_source(Path("bomb.parquet"), tables.Columns(), takes=TEXTS)) == count  # as many fit as a rule
    parts, file = [], pytest.importorskip("pyarrow.parquet").ParquetFile
    batches = file.iter_batches

    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(*given, **named):
            parts.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(file, "iter_batches", counted)
    monkeypatch.setattr(tables, "TEXTS_LIMIT", limit)
    with pytest.raises(InputError, match="bomb.parquet holds too much to be read at once: split it"):
        read_source(Path("bomb.parquet"), tables.Columns(), takes=TEXTS)
    assert limit <= sum(parts) * size < 2 * limit


@pytest.mark.parametrize("typed", [False, True])
def test_a_repeated_text_costs_as_much_as_one(typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 700 bytes took half a minute and gigabytes."""
    looked: list[str] = []

    def counted(text: str) -> bool:
        looked.append(text)
        return has_surrogates(text)

    monkeypatch.setattr(tables, "has_surrogates", counted)
    repeated("same.parquet", "x" * 2**10, 3 * 4096, typed=typed)
    found = read_source(Path("same.parquet"), tables.Columns(), takes=TEXTS)
    assert (len(found), set(found.samples), set(found.labels or ())) == (3 * 4096, {"x" * 2**10}, {"a"})
    assert len(looked) == len({id(text) for text in found.samples}) == 1


def listed_zeros(name: str, rows: int, width: int) -> tables.Takes:
    """Write a small file of many features, in lists, and return the store's words for it."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(np.zeros(rows * width, np.float32)), width)
    parquet.write_table(arrow.table({"label": ["a"] * rows, "row": lists}), name, compression="zstd")
    assert Path(name).stat().st_size < 2**12
    return tables.Takes("features", width, "shop", "rows")


def test_lists_of_features_take_no_more_memory_than_the_features() -> None:
    takes = listed_zeros("rows.parquet", 2000, 384)
    tracemalloc.start()
    try:
        found = read_source(Path("rows.parquet"), Columns(), takes=takes)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.samples.shape == (2000, 384)
    assert most < 2.5 * found.samples.nbytes


@pytest.mark.parametrize("lists", [False, True])
def test_a_small_file_does_not_become_large_features(monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    monkeypatch.setattr(parquet_files, "_FREE_BYTES", 2**18, raising=False)
    monkeypatch.setattr(parquet_files, "_TIMES", 10, raising=False)
    takes = listed_zeros("large.parquet", 3000, 16)
    if not lists:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        zeros = {f"f{place}": np.zeros(3000, np.float32) for place in range(16)}
        parquet.write_table(arrow.table({"label": ["a"] * 3000, **zeros}), "large.parquet")
    with pytest.raises(InputError, match=r"large\.parquet holds too much to be read at once"):
        read_source(Path("large.parquet"), Columns(), takes=takes)


@pytest.mark.parametrize("name", ["label", "id", "owner", "text"])
@pytest.mark.parametrize("kind", ["lists", "long lists", "structs", "times"])
def test_labels_ids_owners_and_texts_are_no_lists(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = arrow.array(np.zeros(3 * 10**5, np.int8))
    cells = {
        "lists": [["x", "y"]] * 3,
        "long lists": arrow.FixedSizeListArray.from_arrays(zeros, 10**5),
        "structs": [{"a": 1}] * 3,
        "times": arrow.array([0, 1, 2], arrow.timestamp("s")),
    }
    good = {"label": ["a", "b", "c"], "id": [1, 2, 3], "owner": ["x", "y", "z"], "text": ["a", "b", "c"]}
    parquet.write_table(arrow.table(good | {name: cells[kind]}), "odd.parquet")

    def never(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("it was read")

    with monkeypatch.context() as patch:
        patch.setattr(parquet.ParquetFile, "iter_batches", never)
        with pytest.raises(InputError, match=rf"odd\.parquet: the column '{name}' holds .*, not texts or numbers"):
            read_source(Path("odd.parquet"), Columns(), takes=TEXTS)
    if name == "id":  # to predict, ids are only names
        found = read_source(Path("odd.parquet"), Columns(told_apart=False), takes=TEXTS)
        assert found.names == ["row 1", "row 2", "row 3"]


def test_a_parquet_file_is_read_in_a_new_process() -> None:
    """Parts of pyarrow that others have imported are not there."""
    repeated("same.parquet", "x", 3, typed=False)
    script = """
from pathlib import Path
from neverseen.sources.samples import read_source
from neverseen.sources.tables import Columns
print(len(read_source(Path("same.parquet"), Columns())))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (done.stderr, done.stdout) == ("", "3\n")


def test_a_cell_of_a_parquet_file_is_no_longer_than_one_of_a_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LINE_LIMIT", 100)
    for typed in (False, True):
        repeated("long.parquet", "x" * 100, 2, typed=typed)
        assert len(read_source(Path("long.parquet"), tables.Columns(), takes=TEXTS)) == 2
        repeated("long.parquet", "x" * 101, 2, typed=typed)
        with pytest.raises(InputError, match="row 1: the cell of the column 'text' is longer than 100 bytes"):
            read_source(Path("long.parquet"), tables.Columns(), takes=TEXTS)


def test_whole_rows_that_are_too_long_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of equal numbers takes no room in the file, however long it is."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = arrow.array([[1.0] * 5000] * 300)
    parquet.write_table(arrow.table({"label": ["a"] * 300, "row": rows}), "rows.parquet")
    parts, batches = [], parquet.ParquetFile.iter_batches

    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(*given, **named):
            parts.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    features = tables.Takes("features", 4, "shop", "precomputed")
    with pytest.raises(InputError, match="rows.parquet has rows of 5000 features, and shop takes rows of 4 features"):
        read_source(Path("rows.parquet"), tables.Columns(), takes=features)
    assert sum(parts) <= 64


def test_texts_are_looked_through_at_once() -> None:
    """Letter by letter, a file of a kilobyte took minutes."""
    text = "\u00e9" * 2**18
    assert not has_surrogates(text)
    assert has_surrogates(text + "\ud800")
    at_once = min(timeit.repeat(lambda: has_surrogates(text), time.process_time, number=1))
    one_by_one = min(timeit.repeat(lambda: any(letter == "\ud800" for letter in text), time.process_time, number=1))
    assert at_once < one_by_one / 2
    assert [has_surrogates(letter) for letter in "\ud7ff\ud800\udbff\udfff\ue000"] == [False, True, True, True, False]


def test_columns_that_are_not_taken_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zeros = arrow.array(np.zeros(1000, np.int8))
    parquet.write_table(arrow.table({"label": zeros, **{f"f{place}": zeros for place in range(100)}}), "w.parquet")

    def read(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it was read")

    for name in ("read", "iter_batches"):
        monkeypatch.setattr(parquet.ParquetFile, name, read)
    features = tables.Takes("features", 4, "shop", "precomputed")
    with pytest.raises(InputError, match="has 100 columns of features"):
        read_source(Path("w.parquet"), tables.Columns(), takes=features)
    monkeypatch.setattr(tables, "BYTE_LIMIT", 2**18)  # as numbers of eight bytes they are more
    with pytest.raises(InputError, match="holds too much"):
        read_source(Path("w.parquet"), tables.Columns(), takes=replace(features, n_features=100))
