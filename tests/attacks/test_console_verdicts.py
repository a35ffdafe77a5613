"""Green means that this browser checked it, wrong input is called wrong, and "forgotten" is said of no more than is known.

A person who opens a certificate trusts what the page says. So the page must not repeat a service that lies, must tell
what is no receipt from a receipt that is not listed, and must not say of a sample that it is gone when it may have been
learned again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from neverseen import Keyring
from tests.service.test_console import (
    NO_SUBTLE,
    Running,
    altered,
    call,
    centre,
    check,
    drop,
    forgotten,
    go,
    hurried,
    learned,
    new_store,
    opened,
    running,
)
from tests.waiting import on_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

ORDER = 2**252 + 27742317777372353535851937790883648493
PRIME = 2**255 - 19


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(new_store(tmp_path_factory.mktemp("verdicts") / "model"), seal_after=1000) as started:
        learned(started)
        yield started


def lying(route: Route) -> None:
    """Answer every check with yes."""
    asked: Any = route.request.post_data_json
    names = asked["checks"]
    checks = [{"name": name, "passed": True, "message": "all is well", "seconds": 0.01} for name in names]
    route.fulfill(json={"checks": checks})


def shaped(content: bytes, magic: bytes = b"NSR1") -> bytes:
    """Return bytes that have the outer form of a receipt."""
    return magic + (28 + len(content)).to_bytes(4, "little") + bytes(20) + content


def coded(receipt: bytes) -> str:
    return base64.urlsafe_b64encode(receipt).decode()


def look(page: Page, text: str) -> None:
    check(page, "mine").get_by_label("Receipt", exact=True).fill(text)
    check(page, "mine").get_by_role("button", name="Look for it").click()


# -- green -------------------------------------------------------------------------------------------


def updated(change: dict[str, str], document: dict[str, Any]) -> None:
    document.update(change)


def wrapped(name: str, document: dict[str, Any]) -> None:
    document[name] = [document[name]]


FORGED = [
    {"time": "2099-01-01T00:00:00Z"},
    {"signature": "00" * 64},
    {"signature": "01" + "00" * 63},  # a point of small order, and s = 0
]


@pytest.mark.parametrize("subtle", [True, False])
def test_forged_certificates_and_a_service_that_lies(browser: Browser, service: Running, subtle: bool) -> None:
    number = forgotten(service, learned(service))
    with opened(browser, service) as page:
        if not subtle:
            page.add_init_script(NO_SUBTLE)
        page.route("**/v1/verify", lying)
        for change in FORGED:
            page.route(f"**/v1/certificates/{number}", altered(partial(updated, change)))
            go(page, f"/certificates/{number}")
            page.get_by_role("heading", name="Do not trust this certificate").wait_for()
            assert "failed" in check(page, "signature").inner_text()
            assert check(page, "signature").locator(".good").count() == 0
            assert page.locator(".verdict.good").count() == 0


def test_a_key_that_the_service_does_not_tell(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    refused = {"error": {"code": "busy", "message": "not now"}}
    page.route("**/v1/certificates/key", lambda route: route.fulfill(status=503, json=refused))
    go(page, f"/certificates/{number}")
    page.get_by_role("heading", name="Checked in part").wait_for()
    check(page, "signature").get_by_text("Whether this is the service's key could not be checked").wait_for()
    assert check(page, "signature").locator(".good").count() == 0
    assert page.locator(".verdict.good").count() == 0


def test_a_key_that_comes_after_too_many_requests(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    asked = []

    def late(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()
        else:
            too_many = {"error": {"code": "rate_limited", "message": "too often"}}
            route.fulfill(status=429, json=too_many, headers={"Retry-After": "1"})

    page.route("**/v1/certificates/key", late)
    hurried(page)
    go(page, f"/certificates/{number}")
    page.locator(".verdict.good").wait_for()
    assert len(asked) == 2


def test_a_list_that_passes_for_a_text(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    for name in ("key", "configuration", "time", "error_bound", "signature"):
        page.route(
            f"**/v1/certificates/{number}",
            altered(partial(wrapped, name)),
        )
        go(page, f"/certificates/{number}")
        page.get_by_role("heading", name="Not a valid certificate").wait_for()
        assert page.locator(".good").count() == 0


def test_a_file_with_a_mark_before_it(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))

    def marked(route: Route) -> None:
        route.fulfill(body=b"\xef\xbb\xbf" + route.fetch().body(), content_type="application/json")

    page.route(f"**/v1/certificates/{number}", marked)
    go(page, f"/certificates/{number}")
    page.get_by_role("heading", name="Not a valid certificate").wait_for()


def test_a_forged_certificate_lists_a_receipt(page: Page, service: Running) -> None:
    receipt = learned(service)
    number = forgotten(service, receipt)
    page.route(f"**/v1/certificates/{number}", altered(lambda document: document.update(signature="00" * 64)))
    go(page, f"/certificates/{number}")
    page.get_by_role("heading", name="Do not trust this certificate").wait_for()
    look(page, receipt)
    check(page, "mine").get_by_text("The certificate itself has not passed its checks.").wait_for()
    assert check(page, "mine").locator(".good").count() == 0


def test_what_the_service_says_of_itself_is_not_green(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    call(service, "POST", "/v1/seal")
    page.route("**/v1/verify", lying)
    go(page, f"/certificates/{number}")
    page.get_by_role("button", name="Check the weights").click()
    check(page, "weights").locator(".reason").get_by_text("The service says: All is well.").wait_for()
    assert check(page, "weights").locator(".good").count() == 0
    for path in ("/#/", "/#/requests"):
        go(page, path)
        page.locator(".chip", has_text="sealed").first.wait_for()
        assert page.locator(".good").count() == 0


def assert_nothing_is_said(page: Page) -> None:
    """Nothing is said of receipts that are not in the field any more."""
    assert check(page, "mine").locator(".chip").all_inner_texts() == ["not looked for"]
    assert check(page, "mine").locator(".found").inner_text() == ""


def test_what_was_said_of_another_receipt_is_gone(page: Page, service: Running) -> None:
    mine, other = learned(service), coded(shaped(bytes(100)))
    go(page, f"/certificates/{forgotten(service, mine)}")
    page.locator(".verdict.good").wait_for()
    listed = check(page, "mine").locator(".head .good", has_text="listed")
    look(page, mine)
    listed.wait_for()
    for text in (other, "nonsense", ""):
        check(page, "mine").get_by_label("Receipt", exact=True).fill(text)
        assert_nothing_is_said(page)
        look(page, mine)
        listed.wait_for()
    files = check(page, "mine").get_by_label("Or a file")
    files.set_input_files({"name": "other.txt", "mimeType": "text/plain", "buffer": other.encode()})
    assert_nothing_is_said(page)
    check(page, "mine").get_by_role("button", name="Look for it").click()
    listed.wait_for()
    check(page, "mine").get_by_role("button", name="Remove").click()
    assert_nothing_is_said(page)
    check(page, "mine").get_by_role("button", name="Look for it").click()
    listed.wait_for()
    drop(page, "#check-mine .drop", "other.txt", other)
    assert_nothing_is_said(page)


def test_a_receipt_that_is_replaced_while_it_is_looked_for(page: Page, service: Running) -> None:
    mine = learned(service)
    go(page, f"/certificates/{forgotten(service, mine)}")
    page.locator(".verdict.good").wait_for()
    check(page, "mine").get_by_label("Receipt", exact=True).fill(mine)
    check(page, "mine").locator("form").evaluate(
        """(form) => {
            form.requestSubmit();
            form.querySelector("textarea").value = "another";
            form.querySelector("textarea").dispatchEvent(new Event("input", { bubbles: true }));
        }"""
    )
    check(page, "mine").get_by_role("button", name="Look for it").wait_for()
    assert_nothing_is_said(page)


def test_weights_that_fail_take_the_green_from_a_receipt(page: Page, service: Running) -> None:
    def failing(route: Route) -> None:
        wrong = {"name": "weights", "passed": False, "message": "the weights are others", "seconds": 0.1}
        route.fulfill(json={"certificate": 1, "passed": False, "checks": [wrong]})

    mine = learned(service)
    page.route("**/v1/verify", failing)
    go(page, f"/certificates/{forgotten(service, mine)}")
    page.locator(".verdict.good").wait_for()
    look(page, mine)
    check(page, "mine").locator(".head .good", has_text="listed").wait_for()
    page.get_by_role("button", name="Check the weights").click()
    page.get_by_role("heading", name="Do not trust this certificate").wait_for()
    for _ in range(2):  # what was found before, and what is found now
        check(page, "mine").get_by_text("The certificate itself has not passed its checks.").wait_for()
        assert check(page, "mine").locator(".good").count() == 0
        look(page, mine)


def test_weights_of_an_older_certificate_take_nothing_from_it(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    forgotten(service, learned(service))
    go(page, f"/certificates/{number}")
    page.locator(".verdict.good").wait_for()
    page.get_by_role("button", name="Check the weights").click()
    check(page, "weights").get_by_text("no longer stored").wait_for()
    assert page.locator(".verdict.good").count() == 1
    assert check(page, "weights").locator(".head").get_by_text("not known").count() == 1


def test_a_refusal_and_an_effect_of_what_was_replaced(page: Page, service: Running) -> None:
    """The page for forgetting shows nothing about a receipt that is not in the field any more."""
    used, held = learned(service), learned(service)
    forgotten(service, used)
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(used)
    page.get_by_role("button", name="Show the effect").click()
    page.locator("main .notice").get_by_text("no sample is held under this receipt").wait_for()
    page.get_by_label("Receipts", exact=True).fill(held)
    assert page.locator("main .notice").count() == 0

    asked: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(route)

    page.route("**/v1/forget?dry_run=true", hold)
    page.get_by_role("button", name="Show the effect").click()
    on_page(page, lambda: bool(asked))
    page.get_by_label("Receipts", exact=True).fill(used)
    asked[0].continue_()
    page.get_by_role("button", name="Show the effect").wait_for()
    assert page.get_by_role("dialog").count() == 0


def test_a_list_of_certificates_that_does_not_come(page: Page, service: Running) -> None:
    newest = forgotten(service, learned(service))
    around = page.get_by_role("navigation", name="Certificates around")
    go(page, f"/certificates/{newest}")
    around.get_by_text("This is the newest").wait_for()
    answers: list[dict[str, Any]] = [{"status": 503, "body": "later"}, {"json": {"certificates": []}}, {"json": {}}]
    page.route("**/v1/certificates?limit=1", lambda route: route.fulfill(**answers.pop()))
    while answers:
        go(page, "/certificates/1")
        around.get_by_text("There may be newer ones").wait_for()
        assert "This is the newest" not in page.locator("main").inner_text()


def hostile_signatures() -> list[tuple[bytes, bytes, bytes, bool]]:
    """Return keys, signatures and messages, and whether each is good."""
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key = secret.public_key().public_bytes_raw()
    cases: list[tuple[bytes, bytes, bytes, bool]] = []
    for size in (0, 1, 63, 64, 111, 112, 127, 128, 1000):
        message = bytes(place * 7 % 256 for place in range(size))
        cases.append((key, secret.sign(message), message, True))
        cases.append((key, secret.sign(message), message + b"!", False))
    message, signature = b"certificate", secret.sign(b"certificate")
    for place in (0, 31, 32, 63):
        wrong = bytearray(signature)
        wrong[place] ^= 1
        cases.append((key, bytes(wrong), message, False))
    high = int.from_bytes(signature[32:], "little") + ORDER  # the same equation, another text
    cases.append((key, signature[:32] + high.to_bytes(32, "little"), message, False))
    identity, two, minus = (1).to_bytes(32, "little"), (PRIME - 1).to_bytes(32, "little"), bytes(32)
    for small in (identity, two, minus, (PRIME + 1).to_bytes(32, "little"), bytes(31) + b"\x80"):
        cases.append((small, small + bytes(32), message, False))  # holds for a key of small order, whatever is signed
        cases.append((key, small + signature[32:], message, False))
        cases.append((small, signature, message, False))
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    cases.append((other, signature, message, False))
    cases.append((b"\x02" + bytes(31), signature, message, False))  # no point of the curve
    cases += [(key, signature[:63], message, False), (key[:31], signature, message, False)]
    rfc = (  # RFC 8032, section 7.1, test 3
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        "af82",
    )
    known, signed, said = map(bytes.fromhex, rfc)
    cases.append((known, signed, said, True))
    return cases


@pytest.mark.parametrize("subtle", [True, False])
def test_signatures_that_are_almost_right(browser: Browser, service: Running, subtle: bool) -> None:
    cases = hostile_signatures()
    with opened(browser, service) as page:
        if not subtle:
            page.add_init_script(NO_SUBTLE)
        go(page, "/#/certificates")
        found = page.evaluate(
            """async (cases) => {
                const { isSigned } = await import("/console/ed25519.js");
                const { fromHex } = await import("/console/hashing.js");
                return Promise.all(cases.map((parts) => isSigned(...parts.map(fromHex))));
            }""",
            [[part.hex() for part in case[:3]] for case in cases],
        )
    assert found == [case[3] for case in cases]


# -- what is no receipt --------------------------------------------------------------------------------


def test_what_is_no_receipt(page: Page, service: Running) -> None:
    receipt = base64.urlsafe_b64decode(learned(service))
    number = forgotten(service, coded(receipt))
    go(page, f"/certificates/{number}")
    for text, words in (
        ("hello", "is not a receipt"),
        ("TlNS", "is not a receipt"),
        (coded(bytes(300)), "is not a receipt"),
        (coded(shaped(bytes(100), b"NSR9")), "is not a receipt"),
        (coded(receipt[:-1]), "cut short"),
        (coded(receipt[:6]), "cut short"),
        (coded(receipt + b"\0"), "something after it"),
        (f"{coded(receipt)}\n{coded(receipt)[:40]}", "Line 2 is a receipt that is cut short"),
        ('{"id": "s1", "label": "cat"}', "is not a receipt"),
        ('{"receipts": 5}', "is not a receipt"),
        ("null", "is not a receipt"),
        ("", "Paste a receipt"),
    ):
        look(page, text)
        check(page, "mine").locator(".notice").get_by_text(words).wait_for()
        assert "listed" not in check(page, "mine").inner_text()
    look(page, coded(receipt))
    check(page, "mine").get_by_text("lists this receipt as forgotten").wait_for()
    look(page, coded(shaped(bytes(100), b"NSR2")))
    check(page, "mine").get_by_text("not listed", exact=True).wait_for()


def test_a_file_does_not_silently_outrank_the_text(page: Page, service: Running) -> None:
    mine, other = learned(service), coded(shaped(bytes(100)))
    go(page, f"/certificates/{forgotten(service, mine)}")
    check(page, "mine").get_by_label("Or a file").set_input_files(
        {"name": "other.txt", "mimeType": "text/plain", "buffer": other.encode()}
    )
    check(page, "mine").get_by_label("Receipt", exact=True).fill(mine)
    check(page, "mine").get_by_text("Both will be read: the text, and other.txt").wait_for()
    check(page, "mine").get_by_role("button", name="Look for it").click()
    check(page, "mine").get_by_text("1 of 2 listed", exact=True).wait_for()
    check(page, "mine").get_by_text("Not listed: 1").click()
    check(page, "mine").get_by_text("other.txt, line 1").wait_for()
    check(page, "mine").get_by_role("button", name="Remove").click()
    check(page, "mine").get_by_role("button", name="Look for it").click()
    check(page, "mine").get_by_text("listed", exact=True).wait_for()


def test_five_of_four_thousand(page: Page, service: Running) -> None:
    mine = [learned(service) for _ in range(5)]
    number = forgotten(service, *mine)
    receipts = [coded(shaped(place.to_bytes(40, "little"))) for place in range(4000)]
    places = [7, 1000, 2000, 3000, 3999]
    for place, receipt in zip(places, mine, strict=True):
        receipts[place] = receipt
    lines = "".join(json.dumps({"id": f"s{place}", "receipt": each}) + "\n" for place, each in enumerate(receipts))
    go(page, f"/certificates/{number}")
    check(page, "mine").get_by_label("Or a file").set_input_files(
        {"name": "all.jsonl", "mimeType": "application/jsonl", "buffer": lines.encode()}
    )
    check(page, "mine").get_by_role("button", name="Look for it").click()
    check(page, "mine").get_by_text("lists 5 of 4,000 receipts as forgotten").wait_for()
    check(page, "mine").get_by_text("Listed: 5", exact=True).click()
    shown = check(page, "mine").locator("details[open] li").all_inner_texts()
    assert shown == [f"all.jsonl, line {place + 1:,}, id s{place}" for place in places]
    with page.expect_download() as saved:
        check(page, "mine").get_by_role("button", name="Download the list").click()
    told = [json.loads(line) for line in Path(saved.value.path()).read_text().splitlines()]
    assert [place for place, entry in enumerate(told) if entry["listed"]] == places
    assert len(told) == 4000


# -- numbers and labels --------------------------------------------------------------------------------

WRONG_ROWS = {
    "1,5;2,5;3,5;4,5": "Row 1 has commas and semicolons",
    "1,,2,3,4,5,6,7,8": "Row 1 has no value in place 2",
    "1;;2;3;4;5;6;7;8": "Row 1 has no value in place 2",
    "1\t\t2\t3\t4\t5\t6\t7\t8": "Row 1 has no value in place 2",
    "\t1\t2\t3\t4\t5\t6\t7\t8": "Row 1 has no value in place 1",
    "1,2,3,4,5,6,7,8,": "Row 1 has no value in place 9",
    "1,5 2,5 3,5 4,5": "Row 1 has something that is not a finite number",
    "1,5\t2,5\t3,5\t4,5": "Row 1 has something that is not a finite number",
    "1 2 3 4 5 6 7 0x10": "Row 1 has something that is not a finite number",
    "1 2 3 4 5 6 7 0b11": "Row 1 has something that is not a finite number",
    "1 2 3 4 5 6 7 Infinity": "Row 1 has something that is not a finite number",
    "1 2 3 4 5 6 7 1e999": "Row 1 has something that is not a finite number",
    "1 2 3 4 5 6 7 8\n1;2;3;4;5;6;7;": "Row 2 has no value in place 8",
}
"""Rows that were taken for others, or could be, and what is said of them."""


def test_rows_that_could_be_read_in_two_ways(page: Page) -> None:
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append([each["features"] for each in json.loads(route.request.post_data or "")["samples"]])
        route.fulfill(json={"version": 1, "predictions": [{"label": "cat"}] * len(sent[-1])})

    page.route("**/v1/predict", answer)
    go(page, "/#/predict")
    for text, words in WRONG_ROWS.items():
        page.get_by_label("Features").fill(text)
        page.get_by_role("button", name="Predict").click()
        page.locator("main .notice").get_by_text(words).wait_for()
    assert sent == []
    row = [1, 2.5, -3, 0.25, 5, 6e-3, 7, 8]
    good = ["1, 2.5, -3, .25, 5., 6e-3, +7, 8", "1;2.5;-3;.25;5;6E-3;7;8", "1\t2.5\t-3\t.25\t5\t6e-3\t7\t8"]
    good += ["  1  2.5 -3 .25 5 6e-3 7 8 ", str(row), "1 2.5 -3 .25 5 6e-3 7 8\r\n\n1,2.5,-3,.25,5,6e-3,7,8\n"]
    for text in good:
        page.get_by_label("Features").fill(text)
        assert page.locator(".answer").count() == 0  # the answer was to what was there before
        page.get_by_role("button", name="Predict").click()
        page.locator(".answer").first.wait_for()
    assert sent == [[row]] * 5 + [[row, row]]


def test_labels_that_are_no_whole_numbers(page: Page) -> None:
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or "")["label"])
        route.fulfill(status=404, json={"error": {"code": "not_learned", "message": "no sample of it"}})

    page.route("**/v1/forget/class?dry_run=true", answer)
    go(page, "/#/forget")
    page.get_by_label("A whole class").check()
    labels = {"7": 7, "-7": -7, "0": 0, "007": "007", "-0": "-0", "1e3": "1e3", "0x10": "0x10", "7.0": "7.0"}
    for label in labels:
        page.get_by_label("Label", exact=True).fill(label)
        page.get_by_role("button", name="Show the effect").click()
        page.locator("main .notice").get_by_text("No sample of it.").wait_for()
    assert [json.dumps(label) for label in sent] == [json.dumps(label) for label in labels.values()]
    for label in ("007", "-0", "9007199254740993"):
        page.get_by_label("Label", exact=True).fill(label)
        page.get_by_label("Kind").select_option("whole number")
        page.get_by_role("button", name="Show the effect").click()
        page.locator("main .notice").get_by_text(f"“{label}” is not a whole number").wait_for()
    assert len(sent) == len(labels)


def test_a_class_whose_samples_are_not_told(browser: Browser, service: Running) -> None:
    learned(service, "secret")
    call(service, "POST", "/v1/publish")
    with opened(browser, service, service.forgetter) as page:
        go(page, "/#/forget")
        page.get_by_label("A whole class").check()
        page.get_by_label("Label", exact=True).fill("secret")
        page.get_by_role("button", name="Show the effect").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("heading", name="The class will be forgotten").wait_for()
        assert dialog.locator("td").all_inner_texts() == ["secret", "all"]
        dialog.get_by_role("button", name="Forget the class").click()
        page.locator(".steps li.done", has_text="published").wait_for()
        assert page.locator(".progress .facts").inner_text().split("\n")[2:4] == ["What", "Forget a class"]


# -- forgotten, and learned again ----------------------------------------------------------------------


def again(service: Running, name: str) -> str:
    """Learn a sample under an id, the same each time; return its receipt."""
    features = [round(0.1 * place, 1) for place in range(len(centre("cat")))]
    body = {"samples": [{"features": features, "label": "cat", "id": name}]}
    return str(call(service, "POST", "/v1/samples", body)["receipts"][0])


def test_what_was_learned_again_is_not_called_forgotten(page: Page, service: Running) -> None:
    receipt = again(service, "twice")
    number = forgotten(service, receipt)
    again(service, "twice")
    call(service, "POST", "/v1/publish")
    go(page, f"/certificates/{number}")
    page.locator(".verdict.good").wait_for()
    look(page, receipt)
    words = check(page, "mine").get_by_text(f"Certificate {number} lists this receipt as forgotten")
    assert "Later versions may have learned the sample again." in words.inner_text()
    assert "unless they were learned again" in page.locator("main").inner_text()
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.url))
    check(page, "mine").get_by_role("button", name="Ask the service what is held now").click()
    said = check(page, "mine").locator(".held li")
    said.wait_for()
    assert " ".join(said.inner_text().split()) == (
        "the service says: used up No sample is held under this receipt. "
        f"If it was learned again, it has a new receipt. See Certificate {number}."
    )
    page.locator("#announce").get_by_text("a sample is held under 0 of 1 receipt").wait_for()
    announced = page.locator("#announce").inner_text()
    assert "If a sample was learned again, it has a new receipt." in announced
    assert "not held" not in said.inner_text() + announced
    assert check(page, "mine").locator(".held .good").count() == 0
    assert len(sent) == 1
    assert "dry_run=true" in sent[0]


def test_a_receipt_that_cannot_be_read_is_not_called_not_held(browser: Browser, tmp_path: Path) -> None:
    """Its key was dropped, or it is a bad copy: the sample is held all the same."""
    with running(new_store(tmp_path / "model"), seal_after=1000) as service:
        receipt = learned(service)
        Keyring.load(tmp_path / "model" / "keys.json").rotate(keep=0)
        newer = learned(service)
        number = call(service, "POST", "/v1/publish")["certificate"]
        bad = bytearray(base64.urlsafe_b64decode(newer))
        bad[-1] ^= 1
        with opened(browser, service) as page:
            go(page, f"/certificates/{number}")
            page.locator(".verdict.good").wait_for()
            for shown, words in ((receipt, "the key was dropped"), (coded(bytes(bad)), "its seal is broken")):
                look(page, shown)
                check(page, "mine").get_by_role("button", name="Ask the service what is held now").click()
                said = check(page, "mine").locator(".held li").filter(has_text=words)
                said.wait_for()
                assert "the service says: not known" in said.inner_text()


def test_a_receipt_is_sent_to_the_service_only_when_asked(page: Page, service: Running) -> None:
    receipt = learned(service)
    go(page, f"/certificates/{forgotten(service, receipt)}")
    page.locator(".verdict.good").wait_for()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    look(page, receipt)
    check(page, "mine").get_by_role("button", name="Ask the service what is held now").wait_for()
    assert sent == []
    check(page, "mine").get_by_role("button", name="Ask the service what is held now").click()
    check(page, "mine").get_by_text("the service says: used up").wait_for()


def test_the_forget_page_says_what_the_service_knows(page: Page, service: Running) -> None:
    receipt = learned(service)
    number = forgotten(service, receipt)
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(receipt)
    page.get_by_role("button", name="Show the effect").click()
    notice = page.locator("main .notice")
    notice.get_by_text("The service says that no sample is held under this receipt.").wait_for()
    assert f"Certificate {number} lists it as forgotten" in notice.inner_text()
    assert "learned again" in notice.inner_text()
