"""Nobody's words can rearrange the page, hide in it, or pass for other words.

Labels, ids, owners, names of keys and of files, and messages that quote them come from whoever may learn. Signs that
turn the direction of writing, take no room or break lines are shown by their numbers, wherever people read them.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.test_console import Running, call, centre, drop, go, new_store, running

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
