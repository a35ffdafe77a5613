"""What a source holds is taken, told or refused: no file and no field of it is left out in silence.

Whoever has a folder forgotten believes that all of it is gone. An image that was passed over stays in the model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen.cli import app
from tests.cli.test_cli import _here, answer, run
from tests.samples import uniform_bytes

__all__ = ["_here"]

STRIPES = ("--backbone", "tests.networks_for_stores:Brightness")


# -- folders -----------------------------------------------------------------------------------------


@pytest.fixture
def album() -> str:
    pil = pytest.importorskip("PIL.Image")
    for place in range(4):
        folder = Path("photos") / ("cat", "dog")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pil.fromarray(uniform_bytes(f"photo {place}", 16, 16, 3)).save(folder / f"{place}.png")
    run("init", "album", *STRIPES, "--codes", "24")
    return "album"


def commands(album: str) -> list[list[str]]:
    """Return each command that reads a folder."""
    read = ["learn", "forget", "predict", "what-if", "verify retrain"]
    return [[*command.split(), album, "photos", *STRIPES] for command in read]


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nobody list photos/dog, as if its mode were 0: the administrator may list every folder."""
    real = os.scandir

    def scandir(place: Any = ".") -> Any:
        if Path(os.fsdecode(place)).name == "dog":
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        yield


def test_a_folder_that_cannot_be_read_is_no_empty_one(album: str, request: pytest.FixtureRequest) -> None:
    run("learn", album, "photos", *STRIPES)
    request.getfixturevalue("closed")
    for command in commands(album):
        for more in ([], ["--skip-bad"]):
            assert "photos/dog: Permission denied" in run(*command, *more, code=1)
    assert answer("status", album)["samples"] == 4


def test_a_folder_that_is_a_link_is_refused_by_name(album: str) -> None:
    run("learn", album, "photos", *STRIPES)
    shutil.move("photos/dog", "elsewhere")
    links = {"photos/dog": "../elsewhere", "photos/cat/again": "..", "photos/cat/.hidden": "../../elsewhere"}
    for name, target in links.items():
        Path(name).symlink_to(target)
        for command in commands(album):
            words = run(*command, code=1)
            assert f"{name} is a link to a folder, which is not followed" in words
        Path(name).unlink()
    assert answer("status", album)["samples"] == 4
    Path("linked").symlink_to("photos")  # which is named, and is all there
    assert answer("forget", album, "linked", *STRIPES)["forgotten"] == 2


def test_files_that_are_not_taken_are_told(album: str) -> None:
    for name in ("cat/a.jfif", "cat/b.JFIF", "dog/c.jfif", "dog/d.avif", "dog/notes", "dog/.e.png", "list.txt"):
        Path("photos", name).write_bytes(b"what it is does not matter")
    endings = ".bmp, .gif, .jpeg, .jpg, .png, .ppm, .tif, .tiff or .webp"
    told = [
        {"sample": "cat/a.jfif", "why": f"its name does not end in {endings} (and 2 more like it)"},
        {"sample": "dog/.e.png", "why": "it is hidden: its name begins with a dot"},
        {"sample": "dog/d.avif", "why": f"its name does not end in {endings}"},
        {"sample": "dog/notes", "why": f"its name does not end in {endings}"},
        {"sample": "list.txt", "why": f"its name does not end in {endings}"},
    ]
    done = CliRunner().invoke(app, ["learn", album, "photos", *STRIPES])
    assert done.stderr.splitlines() == [f"skipped: {each['sample']}: {each['why']}" for each in told]
    assert "learned 4 samples" in done.stdout
    for command in commands(album)[2:]:
        assert answer(*command)["skipped"] == told
    done = answer("forget", album, "photos", *STRIPES)
    assert (done["forgotten"], done["skipped"]) == (4, told)


def test_a_folder_of_nothing_that_is_taken_says_what_it_has() -> None:
    Path("photos").mkdir()
    Path("photos/a.jfif").write_bytes(b"")
    run("init", "album", *STRIPES, "--codes", "24")
    words = run("learn", "album", "photos", *STRIPES, code=1)
    assert "there are no samples in photos. a.jfif: its name does not end in .bmp" in words


def test_an_image_that_is_no_file_cannot_be_used(album: str) -> None:
    os.mkfifo("photos/cat/pipe.png")
    Path("photos/dog/gone.png").symlink_to("nowhere.png")
    words = run("learn", album, "photos", *STRIPES, code=1)
    assert "2 of 6 images in photos cannot be used: cat/pipe.png: it is a pipe, a device or a broken link;" in words
    done = answer("learn", album, "photos", "--skip-bad", *STRIPES)
    assert (done["learned"], [each["sample"] for each in done["skipped"]]) == (4, ["cat/pipe.png", "dog/gone.png"])


# -- fields ------------------------------------------------------------------------------------------

TEXT = {"text": "a letter", "label": "x", "id": "a", "owner": "ada"}
LETTERS = ("--backbone", "tests.networks_for_stores:Letters")
ALIKE = [
    ("owner", "Owner"),
    ("owner", "owners"),
    ("owner", " owner"),
    ("id", "ID"),
    ("label", "labels"),
    ("text", "Text"),
]


def write_table(kind: str, rows: list[dict[str, Any]]) -> str:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    lines = [json.dumps(row) for row in rows]
    if kind == "csv":
        lines = [",".join(heads), *(",".join(str(row.get(head, "")) for head in heads) for row in rows)]
    Path(f"mail.{kind}").write_text("\n".join(lines) + "\n", "utf-8")
    return f"mail.{kind}"


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize(("name", "wrong"), ALIKE)
def test_a_misspelt_name_is_refused_also_beside_the_right_one(kind: str, name: str, wrong: str) -> None:
    """The line with `Owner` would be learned as nobody's."""
    run("init", "mail", *LETTERS, "--codes", "24")
    other = {key: value for key, value in TEXT.items() if key != name}
    for rows in ([TEXT, {**other, "id": "b", wrong: "bob"}], [{**TEXT, wrong: "bob"}]):
        words = run("learn", "mail", write_table(kind, rows), *LETTERS, code=1)
        place = f"mail.jsonl, line {len(rows)}" if kind == "jsonl" else "mail.csv"
        assert f"{place}: {wrong!r} is not read: {name}s are read from {name!r}" in words
    assert answer("status", "mail")["samples"] == 0
    if name != "text":
        source = write_table(kind, [{**other, wrong: "bob"}])
        assert answer("learn", "mail", source, f"--{name}s", wrong, *LETTERS)["learned"] == 1


def test_a_misspelt_name_of_another_choice_is_refused() -> None:
    run("init", "mail", *LETTERS, "--codes", "24")
    rows = [{**TEXT, "customer": "cy"}, {**TEXT, "id": "b", "Customer": "dan"}]
    words = run("learn", "mail", write_table("jsonl", rows), "--owners", "customer", *LETTERS, code=1)
    assert "mail.jsonl, line 2: 'Customer' is not read: owners are read from 'customer'" in words
    done = answer("learn", "mail", write_table("jsonl", rows[:1]), "--owners", "customer", *LETTERS)
    assert done["learned"] == 1  # the owner was chosen


def test_misspelt_arrays_are_refused() -> None:
    run("init", "shop", "--backbone", "features:2", "--codes", "24")
    arrays: dict[str, Any] = {"X": np.ones((1, 2)), "y": ["x"], "ids": ["a"], "owners": ["ada"]}
    for wrong, name in {"Y": "y", "labels": "y", "id": "ids", "Owners": "owners", "owner": "owners"}.items():
        np.savez("a.npz", **(arrays | {wrong: ["b"]}))
        assert f"{wrong!r} is not read" in (words := run("learn", "shop", "a.npz", code=1))
        assert f"are read from {name!r}" in words
    np.savez("a.npz", **arrays)
    assert answer("learn", "shop", "a.npz")["learned"] == 1


def test_names_that_a_command_does_not_read_may_be_anything() -> None:
    run("init", "mail", *LETTERS, "--codes", "24")
    source = write_table("jsonl", [TEXT])
    run("learn", "mail", source, *LETTERS)
    odd = write_table("jsonl", [{**TEXT, "Owner": "bob", "ID": "b", "Label": "y"}])
    assert len(answer("predict", "mail", odd, *LETTERS)["predictions"]) == 1
    run("init", "shop", "--backbone", "features:2", "--codes", "24")
    Path("a.csv").write_text("label,Text,texts\nx,1,2\n", "utf-8")  # features, by these names
    assert answer("learn", "shop", "a.csv")["learned"] == 1
