"""What if, from the command line: the digest of a forget, and a store that stays as it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neverseen.cli import app
from tests.cli.test_cli import INIT, NAMES, ROWS, _here, answer, run, shop, write_csv

__all__ = ["_here", "shop"]  # fixtures


def contents(folder: str) -> dict[str, Any]:
    """All that a store says and shows about itself."""
    files = {
        str(path): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.name.startswith(("ledger.", "lock"))
    }
    return files | {"status": answer("status", folder), "history": answer("history", folder)}


def test_the_answer_is_that_of_a_forget(shop: str) -> None:
    write_csv("test.csv", ROWS[:20] + 0.5, NAMES[:20])
    shutil.copytree(shop, "other")
    before = contents(shop)
    found = answer("what-if", shop, "--receipts", "all.jsonl", "--owner", "ada", "--test", "test.csv")
    assert answer("what-if", shop, "all.csv", "--test", "test.csv")["without"]["samples"] == 0
    assert contents(shop) == before
    now = answer("predict", "other", "test.csv", "--labelled")
    run("forget", "other", "--receipts", "all.jsonl", "--owner", "ada")
    then = answer("predict", "other", "test.csv", "--labelled")
    for side, expected in (("now", now), ("without", then)):
        assert found[side]["model"] == expected["model"]
        assert found[side]["accuracy"] == expected["accuracy"]
    assert found["without"]["classes"] == answer("status", "other")["samples_by_class"]
    assert (found["now"]["samples"], found["without"]["samples"], found["skipped"]) == (48, 32, [])
    both = zip(now["predictions"], then["predictions"], strict=True)
    assert found["changed"] == sum(one["class"] != other["class"] for one, other in both)


def test_one_left_out_at_a_time(shop: str) -> None:
    write_csv("some.csv", ROWS[:3], NAMES[:3], [f"all.csv-{place}" for place in range(3)])
    before = contents(shop)
    found = answer("what-if", shop, "some.csv", "--leave-one-out")
    assert answer("what-if", shop, "--receipts", "all.jsonl", "--leave-one-out")["samples"][1]["class"] == NAMES[1]
    assert contents(shop) == before
    for place, row in enumerate(found["samples"]):
        other = f"without-{place}"
        shutil.copytree(shop, other)
        run("forget", other, "--receipts", "all.jsonl", "--id", f"all.csv-{place}")
        predicted = answer("predict", other, "some.csv")["predictions"][place]["class"]
        assert row == {"class": NAMES[place], "predicted": predicted, "sample": f"all.csv-{place}"}
    right = [row["class"] == row["predicted"] for row in found["samples"]]
    assert found["accuracy"] == sum(right) / 3


def test_text_for_pipes(shop: str) -> None:
    write_csv("test.csv", ROWS[:20], NAMES[:20])
    lines = run("what-if", shop, "all.csv", "--by-content", "--test", "test.csv").splitlines()
    assert [line.split("\t")[0] for line in lines[:5]] == ["", "samples", "classes", "model", "right"]
    assert lines[5] == "20 of 20 predictions would change; nothing was changed"
    assert run("what-if", shop, "--receipts", "all.jsonl", "--id", "all.csv-3").endswith("\nnothing was changed\n")
    table = run("what-if", shop, "--receipts", "all.jsonl", "--owner", "ada", "--leave-one-out").splitlines()
    assert table[0].split("\t") == ["sample", "class", "predicted"]
    assert re.fullmatch(r"right without having learned the sample: [0-9.]+%; nothing was changed", table[-1])


def test_refusals_are_those_of_forget(shop: str) -> None:
    write_csv("strange.csv", ROWS[:2] + 9, NAMES[:2])
    before = contents(shop)
    for more in ((), ("--leave-one-out",)):
        said = run("what-if", shop, "strange.csv", *more, code=1)
        assert said == run("forget", shop, "strange.csv", code=1).replace("error: forget:", "error: what-if:")
        assert "none of 48 receipts" in run("what-if", shop, "--receipts", "all.jsonl", "--owner", "eve", *more, code=1)
    assert "there is no gone.csv" in run("what-if", shop, "all.csv", "--test", "gone.csv", code=1)
    assert contents(shop) == before
    for words, why in (
        ([], "give either receipts"),
        (["all.csv", "--receipts", "all.jsonl"], "give either receipts"),
        (["--receipts", "all.jsonl", "--labels", "label"], "applies to a source"),
        (["all.csv", "--owner", "ada"], "choose among receipts"),
        (["all.csv", "--test", "all.csv", "--leave-one-out"], "do not give --test"),
    ):
        result = CliRunner().invoke(app, ["what-if", shop, *words])
        assert result.exit_code == 2
        assert why in " ".join(result.stderr.replace("\u2502", " ").split())
    found = answer("what-if", shop, "--receipts", "all.jsonl", "--labels", "label", "--test", "all.csv")
    assert found["changed"] == len(ROWS)
    run("forget", shop, "--receipts", "all.jsonl", "--id", "all.csv-0")
    assert "certificate 2 says so" in run("what-if", shop, "--receipts", "all.jsonl", code=1)


@pytest.mark.parametrize("more", [(), ("--leave-one-out",)])
def test_a_store_that_is_in_use_is_refused(shop: str, more: tuple[str, ...]) -> None:
    from neverseen.cli.opening import opened

    with opened(Path(shop), write=True):
        assert "what-if" in run("what-if", shop, "--receipts", "all.jsonl", *more, code=1)


def test_what_can_be_learned_can_be_predicted_and_tested() -> None:
    """Columns of ids and owners by other names were taken for features, and no option said that they are none."""
    write_csv("all.csv", ROWS, NAMES)
    source = Path("all.csv").read_text("utf-8").replace("id,owner,label", "key,whose,kind", 1)
    Path("all.csv").write_text(source, "utf-8")
    write_csv("plain.csv", ROWS[:3], NAMES[:3])
    plain = Path("plain.csv").read_text("utf-8").replace("id,owner,label", "id,owner,kind", 1)
    Path("plain.csv").write_text(plain, "utf-8")
    columns = ("--labels", "kind", "--ids", "key", "--owners", "whose")
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv", *columns, "--receipts", "all.jsonl")
    found = answer("predict", "shop", "all.csv", *columns)
    assert [each["sample"] for each in found["predictions"][:2]] == ["all.csv-0", "all.csv-1"]
    assert "all.csv has no 'keyy'" in run("predict", "shop", "all.csv", *columns[:2], "--ids", "keyy", code=1)
    asked = answer("what-if", "shop", "all.csv", *columns, "--test", "all.csv")
    assert asked["now"]["accuracy"] == answer("predict", "shop", "all.csv", *columns, "--labelled")["accuracy"]
    by_receipt = ("what-if", "shop", "--receipts", "all.jsonl", *columns, "--test")
    assert answer(*by_receipt, "all.csv") == asked
    assert (
        answer("what-if", "shop", "all.csv", *columns, "--test", "plain.csv")["changed"] == 3
    )  # it has the usual ones
    assert "plain.csv has no 'key'" in run(*by_receipt, "plain.csv", code=1)  # no other source has it
