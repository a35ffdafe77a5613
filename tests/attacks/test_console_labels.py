"""Nobody's words can rearrange the page, hide in it, or pass for other words.

Labels, ids, owners, names of keys and of files, and messages that quote them come from whoever may learn. Signs that
turn the direction of writing, take no room or break lines are shown by their numbers, wherever people read them.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neverseen import store
from tests.service.test_console import Running, call, centre, drop, go, new_store, opened, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TURNED = "safe\u202egnp.exe"
HOSTILE = {
    TURNED: "safe\\u{202e}gnp.exe",
    "\u2067right to left": "\\u{2067}right to left",
    "c\u200ba\u200dt": "c\\u{200b}a\\u{200d}t",
    "cat\ufe0f": "cat\\u{fe0f}",
    "cat\u00a0": "cat\\u{a0}",
    "two\nlines": "two\\u{a}lines",
    "tag\U000e0041": "tag\\u{e0041}",
    "cat ": '"cat "',
    "\u05d0\u05d1\u05d2": "\u05d0\u05d1\u05d2",
    "safe\\u{202e}gnp.exe": "safe\\u{5c}u{202e}gnp.exe",
    "5": '"5"',
    '"5"': '"\\"5\\""',
    "true": '"true"',
    "cat\u2800": "cat\\u{2800}",
    "cat\ue000": "cat\\u{e000}",
    "caf\u00e9": "caf\u00e9",
    "cafe\u0301": "cafe\\u{301}",
    "back\\slash": "back\\slash",
}
"""Labels, and how they are shown."""
READ = """() => {
    const words = [document.title];
    for (const element of document.querySelectorAll("*")) {
        for (const name of ["title", "aria-label", "placeholder", "label", "alt"]) {
            if (element.hasAttribute(name)) words.push(element.getAttribute(name));
        }
        if (element.matches("script, style")) continue;
        for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) words.push(node.data);
    }
    return words.join("\\n");
}"""
"""All that a person may read, as the page holds it."""


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(new_store(tmp_path_factory.mktemp("labels") / "model")) as started:
        samples = [{"features": centre(label), "label": label} for label in [*HOSTILE, 5]]
        call(started, "POST", "/v1/samples", {"samples": samples})
        call(started, "POST", "/v1/publish")
        yield started


def hidden_in(page: Page) -> set[str]:
    """Return the signs of a page that nobody sees, or that turn what stands beside them."""
    odd = {"Cc", "Cf", "Zl", "Zp"}
    words: str = page.evaluate(READ)
    return {sign for sign in words if (unicodedata.category(sign) in odd and sign != "\n") or sign in "\u00a0\ufe0f"}


def test_labels_that_turn_or_hide(page: Page) -> None:
    for path in ("/#/", "/#/requests", "/#/learn", "/#/forget", "/#/predict", "/#/certificates", "/certificates/1"):
        go(page, path)
        assert hidden_in(page) == set(), path
    go(page, "/#/")
    shown = page.locator(".classes li .text")
    page.locator(".classes li").nth(len(HOSTILE)).wait_for()
    assert sorted(shown.all_text_contents()) == sorted([*HOSTILE.values(), "5"])  # no two look alike
    ways = shown.evaluate_all("(all) => all.map((element) => getComputedStyle(element).unicodeBidi)")
    assert ways == ["isolate"] * (len(HOSTILE) + 1)


def test_classes_that_are_to_be_forgotten(page: Page) -> None:
    go(page, "/#/forget")
    page.get_by_label("A whole class").check()
    dialog = page.get_by_role("dialog")
    for label, shown in HOSTILE.items():
        if "\n" in label:  # a field has one line
            continue
        page.get_by_label("Label", exact=True).fill(label)
        page.get_by_label("Kind").select_option("text")
        page.get_by_role("button", name="Show the effect").click()
        assert dialog.locator("td.text").text_content() == shown
        assert hidden_in(page) == set()
        dialog.get_by_role("button", name="Cancel").click()
        dialog.wait_for(state="detached")


def test_what_is_typed_and_not_seen_is_told(page: Page) -> None:
    go(page, "/#/learn")
    page.get_by_label("Label", exact=True).fill(TURNED)
    page.get_by_text(f"Pages show it as: {HOSTILE[TURNED]}").wait_for()
    page.get_by_label("Label", exact=True).fill("cat")
    page.get_by_text("Pages show it as").wait_for(state="hidden")


def test_the_receipt_of_a_hostile_label(page: Page) -> None:
    go(page, "/#/learn")
    page.get_by_label("Features").fill(json.dumps(centre("cat")))
    page.get_by_label("Label", exact=True).fill(TURNED)
    page.get_by_label("Id (optional)").fill("id\u202e1")
    page.get_by_role("button", name="Learn", exact=True).click()
    kept = page.locator(".batch")
    kept.wait_for()
    assert f"Label {HOSTILE[TURNED]}, id id\\u{{202e}}1" in kept.inner_text()
    assert hidden_in(page) == set()
    for words in kept.locator(".hint .text").all():
        assert words.evaluate("(element) => getComputedStyle(element).unicodeBidi") == "isolate"
    with page.expect_download() as saved:
        kept.get_by_role("button", name="Download").click()
    raw = Path(saved.value.path()).read_bytes()
    assert raw.isascii()
    assert json.loads(raw)["label"] == TURNED


def test_predictions_of_hostile_labels(page: Page) -> None:
    label, scores = {"label": TURNED}, {"scores": {TURNED: 0.75, "cat": 0.25}}
    top = {"top": [{"label": TURNED, "score": 0.5}]}
    page.route("**/v1/predict", lambda route: route.fulfill(json={"version": 1, "predictions": [label, scores, top]}))
    go(page, "/#/predict")
    page.get_by_label("Features").fill(json.dumps(centre("cat")))
    page.get_by_role("button", name="Predict").click()
    page.locator(".answer").nth(2).wait_for()
    assert page.locator(".answer").all_text_contents() == [HOSTILE[TURNED]] * 3
    assert hidden_in(page) == set()


def test_names_of_keys_owners_and_messages(page: Page) -> None:
    def model(document: dict[str, Any]) -> dict[str, Any]:
        key = {"name": TURNED, "owner": TURNED, "scopes": ["admin"]}
        return document | {"key": key, "backbone": TURNED}

    def requests(document: dict[str, Any]) -> dict[str, Any]:
        return {"requests": [entry | {"key": TURNED} for entry in document["requests"]]}

    page.route("**/v1/model", lambda route: route.fulfill(json=model(route.fetch().json())))
    page.route("**/v1/requests?*", lambda route: route.fulfill(json=requests(route.fetch().json())))
    refusal = {"error": {"code": "invalid_request", "message": f"the label {TURNED} is not liked"}}
    page.route("**/v1/predict", lambda route: route.fulfill(status=422, json=refusal))
    go(page, "/#/")
    page.locator(".facts", has_text="Your key").get_by_text(HOSTILE[TURNED]).nth(2).wait_for()
    assert hidden_in(page) == set()
    go(page, "/#/requests")
    page.locator("td", has_text=HOSTILE[TURNED]).first.wait_for()
    assert hidden_in(page) == set()
    go(page, "/#/predict")
    page.get_by_label("Features").fill(json.dumps(centre("cat")))
    page.get_by_role("button", name="Predict").click()
    page.locator(".notice").get_by_text(HOSTILE[TURNED]).wait_for()
    page.locator("#announce").get_by_text(HOSTILE[TURNED]).wait_for()
    assert hidden_in(page) == set()


def test_names_of_files(page: Page) -> None:
    go(page, "/#/forget")
    drop(page, ".drop", TURNED, "hello")
    page.locator(".drop").get_by_text(f"{HOSTILE[TURNED]} will be read").wait_for()
    page.get_by_role("button", name="Show the effect").click()
    page.locator(".notice").get_by_text(f"{HOSTILE[TURNED]}, line 1 is not a receipt").wait_for()
    assert hidden_in(page) == set()


def test_a_certificate_that_hides_something(page: Page) -> None:
    body = json.dumps({"format": TURNED, "number": 1}) + "\n"
    page.route("**/v1/certificates/1", lambda route: route.fulfill(body=body, content_type="application/json"))
    go(page, "/certificates/1")
    page.get_by_text("Show it").click()
    page.locator("pre").get_by_text(HOSTILE[TURNED]).wait_for()
    assert hidden_in(page) == set()


LARGE = [2**53, 2**60 + 1, 2**60 + 2, -(2**63) - 1, 10**300 + 7]
"""Whole numbers that a browser's own numbers round. In Python, and in files, they are different labels."""


def test_large_numbers_are_told_apart(browser: Browser, tmp_path: Path) -> None:
    """2**60 + 1 and 2**60 + 2 were one class, by the name of neither."""
    new_store(tmp_path / "model")
    labels: list[Any] = [*LARGE, str(2**60 + 1)]
    with store.open(tmp_path / "model") as model:
        receipts = model.learn(np.array([centre(f"large {label!r}") for label in labels]), labels)
        model.publish()
    shown = {label: json.dumps(label) for label in labels}
    with running(tmp_path / "model", output="top-k", top_k=2) as service, opened(browser, service) as page:
        go(page, "/#/")
        page.locator(".classes li").first.wait_for()
        rows = [words.split("\n")[0] for words in page.locator(".classes li").all_inner_texts()]
        assert sorted(rows) == sorted(shown.values())
        go(page, "/#/predict")
        for label in labels:
            page.get_by_label("Features").fill(",".join(map(str, centre(f"large {label!r}"))))
            page.get_by_role("button", name="Predict").click()
            page.locator(".answer").get_by_text(shown[label], exact=True).wait_for()
        go(page, "/#/forget")
        page.get_by_label("Receipts", exact=True).fill(base64.urlsafe_b64encode(receipts[1]).decode())
        page.get_by_role("button", name="Show the effect").click()
        page.get_by_role("dialog").wait_for()
        assert page.get_by_role("dialog").locator("td").all_inner_texts() == [shown[LARGE[1]], "1"]
        page.get_by_role("button", name="Cancel").click()
        page.get_by_label("A whole class").check()
        page.get_by_label("Label", exact=True).fill(str(LARGE[2]))
        assert page.get_by_label("Kind").input_value() == "number"
        page.get_by_role("button", name="Show the effect").click()
        page.locator("main .notice").get_by_text("use the command line for it").wait_for()


def test_no_text_passes_for_a_large_number(page: Page) -> None:
    hostile = [
        "\0integer:12345678901234567890",
        "12345678901234567890",
        '\\"12345678901234567890',
        "0.12345678901234567",
    ]
    counts = [{"label": label, "samples": 1} for label in [*hostile, 12345678901234567890]]
    answer = json.dumps(
        {"samples": 5, "classes": 5, "version": 1, "class_counts": counts, "key": {"scopes": ["audit"]}}
    )
    page.route("**/v1/model", lambda route: route.fulfill(body=answer, content_type="application/json"))
    go(page, "/#/")
    page.locator(".classes li").first.wait_for()
    rows = [words.split("\n")[0] for words in page.locator(".classes li").all_inner_texts()]
    assert rows == [
        "\\u{0}integer:12345678901234567890",
        '"12345678901234567890"',
        '\\"12345678901234567890',
        '"0.12345678901234567"',
        "12345678901234567890",
    ]
