"""Wrong input for each command: one line that names the file and says what to do, in words of the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from neverseen import Keyring, LedgerError, store
from neverseen.proof.signing import SigningKey
from tests.cli.test_cli import INIT, NAMES, ROWS, _here, answer, run, write_csv

__all__ = ["_here"]

PYTHON = re.compile(
    r"Errno|Keyring|codec|\w+Error\b|=True|neverseen\.\w|frozenset|put it into a list|store\.(create|open)"
)
"""Words that say something to programmers alone."""

ROW = ROWS[0].tolist()
LINE = {"features": ROW, "label": "x"}


def prepare() -> None:
    """Make a store with samples, one without, one for texts, one for images, and files that are none of what is wanted."""
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT, "--track-classes")
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    run("certificate", "shop", "--output", "1.json")
    run("init", "empty", *INIT)
    run("init", "mail", "--backbone", "tests.networks_for_stores:Letters", "--codes", "24")
    run("init", "album", "--backbone", "tests.networks_for_stores:Brightness", "--codes", "24")
    Path("dir").mkdir()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    os.mkfifo("pipe.csv")
    Path("nothing.csv").write_bytes(b"")
    Path("junk.csv").write_bytes(b"label,a\n\xff,1\n")
    Path("quote.csv").write_bytes(b'label,a\n"x"y,1\n')
    Path("label.txt").write_text("\thello\n", "utf-8")
    Path("text.txt").write_text("x\t \n", "utf-8")
    Path("halves.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "\\ud800", "label": "x"}\n', "utf-8")
    Path("list.jsonl").write_text(json.dumps(LINE | {"id": [1]}), "utf-8")
    np.savez("one.npz", X=np.float64(3))
    np.savez("dates.npz", X=ROWS[:1], y=np.array(["2020-01-01"], dtype="M8[D]"))
    np.savez("long.npz", X=ROWS[:1].astype(np.longdouble), y=np.array(["x"]))
    np.savez("image.npz", X=np.zeros((4, 4, 3), np.uint8), y=np.array(["x"] * 4))


STORES = [
    "learn {} all.csv",
    "forget {} all.csv",
    "forget {} --receipts all.jsonl",
    "forget-class {} cat",
    "publish {}",
    "seal {}",
    "predict {} all.csv",
    "status {}",
    "history {}",
    "certificate {}",
    "verify weights {}",
    "verify retrain {} all.csv",
    "verify audit {}",
    "export {} out.onnx",
    "export {} out.tar",
    "keys add {} app --scope learn",
    "keys list {}",
    "keys revoke {} app",
    "serve {}",
]

LETTERS = "--backbone tests.networks_for_stores:Letters"
STRIPES = "--backbone tests.networks_for_stores:Brightness"

WRONG = {
    # sources
    "learn shop pipe.csv": "pipe.csv is a pipe or a device: give a file",
    "learn shop loop": "there is no loop",
    "learn shop all.jsonl": "all.jsonl is a file of receipts, not of samples: forget takes it as receipts (--receipts)",
    "learn shop nothing.csv": "there are no samples in nothing.csv: its first line has no column names",
    "learn shop junk.csv": "junk.csv is not text in UTF-8",
    "learn shop quote.csv": "quote.csv, line 2: this is not CSV",
    "learn shop one.npz": "one.npz: X is a single value, not an array of samples",
    "learn shop dates.npz": "dates.npz, row 1: the cell of the column 'y' is not a text or a number",
    "learn shop long.npz": "long.npz: X has shape (1, 8) and dtype float128, and shop takes rows of 8 features",
    "learn shop list.jsonl": "list.jsonl, line 1: the cell of the column 'id' is not a text or a number",
    "learn shop all.csv --label=": "the label is empty: give the samples one (--label)",
    f"learn mail label.txt {LETTERS}": "label.txt, line 1: there is no label before the TAB",
    f"learn mail text.txt {LETTERS}": "text.txt, line 1: there is no text after the TAB",
    f"learn mail halves.jsonl {LETTERS}": "halves.jsonl, line 2: the cell of the column 'text' has surrogate code points",
    f"learn album image.npz {STRIPES}": "an array of them has the shape (images, height, width, 3)",
    # receipts
    "forget shop --receipts absent": "there is no absent: give a file of receipts",
    "forget shop --receipts dir": "dir is a folder, a pipe or a device: give a file of receipts",
    "forget shop --receipts pipe": "pipe is a folder, a pipe or a device: give a file of receipts",
    "learn shop all.csv --receipts shop": "--receipts shop is in the folder of the store. Files there stay",
    "learn shop all.csv --receipts shop/sums/mine.jsonl": "is in the folder of the store. Files there stay",
    "export shop shop/out.tar": "the file shop/out.tar is in the folder of the store. Files there stay",
    "export shop shop/out.onnx": "the file shop/out.onnx is in the folder of the store. Files there stay",
    "certificate shop --output shop/out.json": "--output shop/out.json is in the folder of the store. Files there stay",
    "certificate shop --output shop/certificates/2.json": "is in the folder of the store. Files there stay",
    # keys
    "learn shop all.csv --keys absent": "there is no absent: give the key file that the store was made with",
    "learn shop all.csv --keys pipe": "pipe is a folder, a pipe or a device: give the key file",
    "verify audit shop --keys dir": "dir is a folder, a pipe or a device: give the key file",
    "serve shop --keys absent": "there is no absent: give the key file that the store was made with",
    "init new --backbone features:8 --keys dir": "dir is a folder, a pipe or a device: give the key file",
    "init new --backbone features:8 --keys loop": "there is no loop: give the key file",
    # new stores
    "init new --backbone features:0": "--backbone features:0: n_features must be a whole number between 1 and",
    "init new --backbone features:8:": "--backbone features:8:: write it as features:NUMBER[:NAME]",
    "init new --backbone features:8 --keys new/keys.json": "--keys new/keys.json is in the folder of the store",
    "init dir --backbone features:8 --keys dir/keys.json": "--keys dir/keys.json is in the folder of the store",
    "init nowhere/new --backbone features:8": "the folder nowhere for new does not exist: make it first",
    "init loop --backbone features:8": "loop already exists: choose another folder",
    # certificates and files of versions
    "verify chain absent": "there is no absent: give a store's folder, or files of certificates",
    "verify chain pipe": "pipe is a folder, a pipe or a device: give a store's folder, or files of certificates",
    "verify chain 1.json shop": "shop is a folder, a pipe or a device: give a store's folder",
    "verify chain empty": "/empty yet: run neverseen publish /",
    "verify mine absent --receipt all.jsonl": "there is no absent: give a store's folder",
    "verify mine empty --receipt all.jsonl": "/empty yet: run neverseen publish /",
    "verify weights shop --exported absent": "there is no absent: give a .safetensors file that export wrote",
    "verify weights shop --exported pipe": "pipe is a folder, a pipe or a device: give a .safetensors file that export wrote",
    "import new absent.tar": "there is no absent.tar: give a .tar file that export wrote",
    "import new pipe": "pipe is a folder, a pipe or a device: give a .tar file that export wrote",
    "import nowhere/new 1.json": "the folder nowhere for new does not exist: make it first",
}


def test_a_working_folder_is_no_place_for_a_store_or_its_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    files = sorted(Path("shop").rglob("*"))
    source = str(Path("all.csv").absolute())
    with monkeypatch.context() as patch:
        patch.chdir("shop")  # where receipts go by default
        assert "--receipts . is in the folder of the store" in run("learn", ".", source, code=1)
    assert sorted(Path("shop").rglob("*")) == files
    Path("new").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir("new")
        words = run("init", ".", "--backbone", "features:8", code=1)
        assert "new is the working folder, which stays as it is: name a new folder in it" in words
        assert not any(Path().iterdir())
        run("init", "shop", "--backbone", "features:8")


def test_what_is_wrong_is_said_in_words_of_the_command_line() -> None:
    prepare()
    before = answer("status", "shop") | {"bytes": 0}
    for command, why in WRONG.items():
        words = run(*command.split(" "), code=1)
        assert why in words, (command, words)
        assert not PYTHON.search(words), (command, words)
    assert answer("status", "shop") | {"bytes": 0} == before
    assert not Path("new").exists()
    assert not list(Path().glob("receipts*"))


def test_a_digest_may_be_in_capitals_and_must_be_whole() -> None:
    """An empty word, such as a variable that was never set, would accept every key."""
    prepare()
    key = answer("status", "shop")["public_key"]
    newest = answer("verify", "chain", "shop", "--public-key", f" {key.upper()}")["newest"]
    run("verify", "chain", "1.json", "--newest", newest.upper(), "--public-key", key.upper())
    for option in ("--public-key", "--newest"):
        for word in ("", "x" * 64, key[:-1]):
            words = " ".join(run("verify", "chain", "1.json", option, word, code=2).replace("│", " ").split())
            assert "64 hex digits are needed" in words


def test_keys_are_listed_without_a_trace() -> None:
    run("init", "shop", *INIT)
    before = sorted(Path("shop").rglob("*"))
    assert answer("keys", "list", "shop") == []
    assert "there is no key 'app'" in run("keys", "revoke", "shop", "app", code=1)
    assert sorted(Path("shop").rglob("*")) == before


@pytest.mark.parametrize("random", [False, True])
def test_a_file_name_that_is_no_text_is_no_id(random: bool) -> None:
    pil = pytest.importorskip("PIL.Image")
    run("init", "album", *STRIPES.split(), "--codes", "24")
    folder = Path("photos/cat")
    folder.mkdir(parents=True)
    pil.fromarray(np.zeros((16, 16, 3), np.uint8)).save("one.png")
    os.link("one.png", os.fsencode(folder) + b"/na\xefve.png")
    if random:
        assert answer("learn", "album", "photos", "--random-ids", *STRIPES.split())["learned"] == 1
    else:
        words = run("learn", "album", "photos", *STRIPES.split(), code=1)
        assert "photos, cat/na\ufffdve.png: its name is not text in UTF-8, so it cannot be an id" in words
        assert "Rename it, or use --random-ids" in words
        assert "label" not in words
    folder.rename(os.fsdecode(b"photos/ca\xeft"))
    words = run("learn", "album", "photos", "--random-ids", *STRIPES.split(), code=1)
    assert "the folder photos/ca\ufffdt is not named in UTF-8, so it names no class. Rename it" in words


@pytest.mark.parametrize(
    ("place", "why"),
    [("absent", "absent is not a store"), ("all.csv", "all.csv is a file, not a store: give the folder")],
)
def test_what_is_no_store_is_told_by_every_command(place: str, why: str) -> None:
    write_csv("all.csv", ROWS[:3], NAMES[:3])
    for command in STORES:
        words = run(*command.format(place).split(), code=1)
        assert why in words, (command, words)
        assert not PYTHON.search(words), (command, words)


@pytest.mark.parametrize("option", ["--owners ada", "--ids all.csv-0", "--labels x", "--label x", "--by-content"])
def test_options_of_sources_are_refused_beside_receipts(option: str) -> None:
    """Whoever writes --owners ada for --owner ada must not forget the samples of all."""
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    words = run("forget", "shop", "--receipts", "all.jsonl", *option.split(), code=2)
    assert option.split(maxsplit=1)[0] in words
    assert answer("status", "shop")["samples"] == len(ROWS)


def test_without_the_signing_key_nothing_is_changed_that_cannot_be_published() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT, "--track-classes")
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    missing = "shop/signing.json, the key that signs certificates, is missing: restore it from a copy"
    another = "shop/signing.json is not the key that this store signs with: restore it from a copy"
    for told in (missing, another):
        Path("shop/signing.json").unlink(missing_ok=True)
        if told == another:
            SigningKey.generate().save("shop/signing.json")
        for command in (
            "learn shop all.csv --random-ids",
            "forget shop --receipts all.jsonl",
            "forget-class shop cat",
            "publish shop",
            "seal shop",
        ):
            assert told in run(*command.split(), code=1)
    assert answer("status", "shop")["samples"] == len(ROWS)
    assert answer("forget", "shop", "--receipts", "all.jsonl", "--no-publish")["forgotten"] == len(ROWS)
    Path("shop/keys.json").unlink()
    assert "give their file with --keys FILE" in run("serve", "shop", code=1)


@pytest.mark.parametrize("option", ["--codes 0", "--codes 1048577", "--seed -1", "--gamma 0", "--scale 0"])
def test_settings_out_of_range_are_told_by_their_option(option: str) -> None:
    assert option.split(maxsplit=1)[0] in run("init", "new", "--backbone", "features:8", *option.split(), code=2)
    assert not Path("new").exists()


def test_a_change_whose_publication_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from neverseen.cli import app
    from neverseen.store import Store

    source, receipts = tmp_path / "rows.csv", tmp_path / "receipts.jsonl"
    source.write_text("a,b,label\n1,2,cat\n3,4,dog\n")
    run = CliRunner()
    assert run.invoke(app, ["init", str(tmp_path / "s"), "--backbone", "features:2", "--codes", "16"]).exit_code == 0

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "publish", full)
    learned = run.invoke(app, ["learn", str(tmp_path / "s"), str(source), "--receipts", str(receipts)])
    assert learned.exit_code == 1
    assert "2 samples learned, with receipts in" in learned.output
    forgotten = run.invoke(app, ["forget", str(tmp_path / "s"), "--receipts", str(receipts)])
    assert forgotten.exit_code == 1
    assert "2 samples forgotten, but not published yet" in forgotten.output


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), LedgerError("it cannot be reached")], ids=repr)
def test_a_refused_init_leaves_no_keys(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would know whose they are. Keys that were there stay, and so do those of a store that was made."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise error

    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    with monkeypatch.context() as patched:
        patched.setattr(store, "create", fails)
        words = run("init", "new", *INIT, "--keys", "new.json", code=code)
        assert not Path("new.json").exists()
        Keyring.create("old.json")
        run("init", "new", *INIT, "--keys", "old.json", code=code)
        assert Path("old.json").exists()
    if isinstance(error, MemoryError):
        assert words == "error: init: there is not enough memory for this: use fewer codes (--codes)\n"
    real = store.create

    def fails_late(*args: Any, **ways: Any) -> NoReturn:
        real(*args, **ways).close()
        raise error

    monkeypatch.setattr(store, "create", fails_late)
    run("init", "new", *INIT, "--keys", "new.json", code=code)
    assert Path("new.json").exists()


@pytest.mark.parametrize(
    ("command", "remedy"), [("predict shop all.csv", ": use fewer samples at a time"), ("status shop", "")]
)
def test_a_lack_of_memory_has_the_remedy_of_its_command(
    command: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("publish", "shop")

    def fails(*_: object, **__: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(store.Store, "predict", fails)
    monkeypatch.setattr(store.Store, "status", fails)
    words = run(*command.split(), code=1)
    assert words == f"error: {command.split(maxsplit=1)[0]}: there is not enough memory for this{remedy}\n"
