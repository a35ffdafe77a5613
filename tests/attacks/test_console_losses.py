"""No receipt is lost without a warning, nothing is said to have happened that did not, and old numbers look old.

A receipt is given once. So it must outlive a second click, another page, a lost answer. And a page that follows the
service must not take away what a person types, points at or reads, nor keep numbers that are not so any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.test_console import (
    Running,
    call,
    centre,
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
    from playwright.sync_api import Browser, Dialog, Page, Route


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(new_store(tmp_path_factory.mktemp("losses") / "model"), seal_after=1000) as started:
        learned(started)
        yield started


def teach(page: Page, label: str) -> None:
    """Learn a sample on the page for it, by hand."""
    page.get_by_label("Features").fill(json.dumps(centre(label)))
    page.get_by_label("Label", exact=True).fill(label)
    page.get_by_role("button", name="Learn", exact=True).click()


def kept(page: Page) -> list[str]:
    """Return the receipts that the page shows."""
    return [area.input_value() for area in page.locator(".batch textarea").all()]


# -- what is said ------------------------------------------------------------------------------------


def test_a_learn_request_that_is_sealed(page: Page, service: Running) -> None:
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".steps li.done", has_text="published").wait_for()
    forgotten(service, learned(service))
    call(service, "POST", "/v1/seal")
    states = {each["state"] for each in call(service, "GET", "/v1/requests")["requests"] if each["kind"] == "learn"}
    assert states == {"sealed"}
    assert "nothing of it is left" not in page.locator("main").inner_text()
    go(page, "/#/requests")
    page.locator("tbody tr", has_text="Forget").get_by_text("sealed").first.wait_for()
    assert "sealed" not in " ".join(page.locator("tbody tr", has_text="Learn").all_inner_texts())


def test_nothing_to_publish_and_nothing_to_seal(page: Page, service: Running) -> None:
    forgotten(service, learned(service))
    call(service, "POST", "/v1/publish")
    go(page, "/#/")
    page.get_by_role("button", name="Publish now").click()
    page.locator("main").get_by_text("Nothing to publish").wait_for()
    page.get_by_role("button", name="Seal now").click()
    page.locator("main").get_by_text("Sealed up to version").wait_for()
    page.get_by_role("button", name="Seal now").click()
    page.locator("main").get_by_text("Nothing to seal").wait_for()


def test_a_forget_without_an_answer_that_is_called_off(page: Page, service: Running) -> None:
    def cut(route: Route) -> None:
        route.fetch()  # it was carried out
        route.abort()

    receipt = learned(service)
    page.route("**/v1/forget", cut)
    go(page, "/#/forget")
    page.get_by_label("Receipts", exact=True).fill(receipt)
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Forget 1 sample").click()
    page.get_by_role("dialog").get_by_text("Confirming again is safe").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.locator("main .notice").get_by_text("The request may still have been carried out").wait_for()
    assert "othing was changed" not in page.locator("main").inner_text()
    assert "othing was changed" not in page.locator("#announce").inner_text()


def refused(status: int, code: str) -> dict[str, Any]:
    """Return what a service answers that refuses."""
    return {"status": status, "json": {"error": {"code": code, "message": "the service says no"}}}


def holding(page: Page, path: str) -> list[Route]:
    """Keep what is sent to a path from going on; return what was sent."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(path, hold)
    return held


def confirm(page: Page, receipt: str) -> None:
    """Ask for a receipt to be forgotten on the page for it, and confirm it."""
    page.get_by_label("Receipts", exact=True).fill(receipt)
    page.get_by_role("button", name="Show the effect").click()
    page.get_by_role("button", name="Forget 1 sample").click()


def assert_unsure(page: Page) -> None:
    """Nobody is told that nothing was changed."""
    page.locator("main .notice").get_by_text("The request may still have been carried out").wait_for()
    assert "othing was changed" not in page.locator("main").inner_text()
    assert "othing was changed" not in page.locator("#announce").inner_text()


def test_a_forget_that_is_refused_after_an_answer_was_lost(page: Page, service: Running) -> None:
    go(page, "/#/forget")
    for status, code in ((403, "forbidden"), (409, "idempotency_expired"), (404, "not_found")):
        lossy = Lossy(page, refused(status, code), path="**/v1/forget")
        confirm(page, learned(service))
        page.get_by_role("dialog").get_by_text("Confirming again is safe").wait_for()
        assert page.locator("main .notice").count() == 0  # what was said of the one before is gone
        page.get_by_role("button", name="Forget 1 sample").click()
        assert_unsure(page)
        assert len(lossy.keys) == 2
        assert len(set(lossy.keys)) == 1
        page.unroute("**/v1/forget")


def named(code: str, request: str) -> dict[str, Any]:
    """Return what a service answers whose client sends an idempotency key again, and that names its first request."""
    answer = refused(409, code)
    answer["json"]["error"]["request"] = request
    return answer


@pytest.mark.parametrize("code", ["idempotency_expired", "idempotency_conflict", "receipts_gone"])
def test_a_forget_that_the_service_names_is_followed(page: Page, service: Running, code: str) -> None:
    done = str(call(service, "POST", "/v1/forget", {"receipts": [learned(service)]})["request"]["id"])
    Lossy(page, named(code, done), path="**/v1/forget")
    go(page, "/#/forget")
    confirm(page, learned(service))
    page.get_by_role("dialog").get_by_text("Confirming again is safe").wait_for()
    page.get_by_role("button", name="Forget 1 sample").click()
    page.locator("main .notice").get_by_text("the request was accepted").wait_for()
    page.locator("main .notice .steps li.done", has_text="published").wait_for()
    page.locator("main .notice code", has_text=done).wait_for()
    assert "othing was changed" not in page.locator("main").inner_text()


def test_a_learn_that_the_service_names_is_followed(page: Page, service: Running) -> None:
    body = {"samples": [{"features": centre("cat"), "label": "cat"}]}
    done = str(call(service, "POST", "/v1/samples", body)["request"]["id"])
    Lossy(page, named("receipts_gone", done))
    go(page, "/#/learn")
    teach(page, "cat")
    page.get_by_role("button", name="Ask again").click()
    page.locator("main .steps li.done", has_text="published").wait_for()
    page.locator("main code", has_text=done).wait_for()


def test_requests_that_are_sealed_are_looked_up(browser: Browser, service: Running) -> None:
    """A seal clears the names of keys: nobody is told that nothing was asked for."""
    receipt = learned(service)
    with opened(browser, service, service.forgetter) as page:
        go(page, "/#/forget")
        confirm(page, receipt)
        done = page.locator(".steps ~ * code, .facts code").first.inner_text()
        page.locator(".steps li.done", has_text="published").wait_for()
        call(service, "POST", "/v1/seal")
        page.locator(".steps li.done", has_text="sealed").wait_for()
        go(page, "/#/requests")
        words = "No requests that are not sealed yet: sealed ones no longer name their key. Look one up by its id."
        page.locator("main").get_by_text(words).wait_for()
        page.get_by_label("Id of a request").fill("req_")
        page.get_by_role("button", name="Look it up").click()
        page.locator("main .notice.bad").wait_for()
        page.get_by_label("Id of a request").fill(f" {done} ")
        page.get_by_role("button", name="Look it up").click()
        page.locator(".steps li.done", has_text="sealed").wait_for()


def test_a_model_that_answers_before_it_is_published(browser: Browser, tmp_path: Path) -> None:
    folder = new_store(tmp_path / "model")
    with running(folder, min_batch=1000, effect="immediate") as service:
        call(service, "POST", "/v1/samples", {"samples": [{"features": centre("cat"), "label": "cat"}]})
        with opened(browser, service) as page:
            go(page, "/#/predict")
            page.locator("main").get_by_text("from the model as it is now").wait_for()
            page.get_by_label("Features").fill(json.dumps(centre("cat")))
            page.get_by_role("button", name="Predict").click()
            page.locator("main").get_by_text("By the model as it is now").wait_for()
            assert "empty" not in page.locator("main").inner_text()


def test_a_forget_that_is_asked_to_wait_after_an_answer_was_lost(page: Page, service: Running) -> None:
    answers = [None, refused(408, "timeout"), refused(429, "rate_limited")]

    def cut(route: Route) -> None:
        answer = answers.pop(0)
        if answer is None:
            route.fetch()  # it was carried out
            route.abort()
        else:
            route.fulfill(**answer)

    page.route("**/v1/forget", cut)
    go(page, "/#/forget")
    confirm(page, learned(service))
    for words in ("does not answer", "The service says no", "Too many requests"):
        page.get_by_role("dialog").get_by_text(words).get_by_text("Confirming again is safe").wait_for()
        if answers:
            page.get_by_role("button", name="Forget 1 sample").click()
    page.get_by_role("button", name="Cancel").click()
    assert_unsure(page)


def test_a_forget_whose_answer_is_cut(page: Page, service: Running) -> None:
    page.route("**/v1/forget", lambda route: route.fulfill(status=202, body='{"request": {"id"'))
    go(page, "/#/forget")
    confirm(page, learned(service))
    page.get_by_role("dialog").get_by_text("Confirming again is safe").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert_unsure(page)


def test_a_forget_that_is_closed_while_it_is_sent(page: Page, service: Running) -> None:
    held = holding(page, "**/v1/forget")
    go(page, "/#/forget")
    confirm(page, learned(service))
    on_page(page, lambda: bool(held))
    for _ in range(3):
        page.keyboard.press("Escape")  # the first is not heeded; browsers heed the second
    assert_unsure(page)


# -- receipts ----------------------------------------------------------------------------------------


def test_learning_twice(page: Page) -> None:
    go(page, "/#/learn")
    teach(page, "first")
    page.locator(".batch").first.wait_for()
    [first] = kept(page)
    teach(page, "second")
    page.locator(".batch").nth(1).wait_for()
    second, again = kept(page)
    assert again == first != second
    page.get_by_role("link", name="2 receipts to save").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download all").click()
    lines = [json.loads(line) for line in Path(saved.value.path()).read_text().splitlines()]
    assert lines == [{"label": "first", "receipt": first}, {"label": "second", "receipt": second}]
    page.get_by_role("link", name="to save").wait_for(state="hidden")


def test_other_pages_of_the_console(page: Page) -> None:
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".steps li.done", has_text="published").wait_for()
    receipts = kept(page)
    page.evaluate("window.loaded = true")
    page.locator(".progress").get_by_role("link", name="Certificate").click()
    page.locator(".verdict.good").wait_for()
    for name in ("Overview", "Requests", "Certificates"):
        page.get_by_role("navigation", name="Console").get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name, exact=True).wait_for()
    page.go_back()
    page.get_by_role("heading", name="Requests").wait_for()
    assert page.evaluate("window.loaded")  # all in one page, whose memory has them
    page.get_by_role("link", name="1 receipt to save").click()
    page.locator(".batch").wait_for()
    assert on_page(page, lambda: kept(page) == receipts)


def test_reloading_and_closing(browser: Browser, service: Running) -> None:
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    with opened(browser, service) as page:
        page.on("dialog", stay)
        go(page, "/#/learn")
        teach(page, "kept")
        page.locator(".batch").wait_for()
        receipts = kept(page)
        page.close(run_before_unload=True)
        on_page(page, lambda: bool(asked))
        assert asked == ["beforeunload"]
        assert on_page(page, lambda: kept(page) == receipts)
        with page.expect_download():
            page.locator(".batch").get_by_role("button", name="Download").click()
        page.locator(".batch").get_by_text("Saved.", exact=True).wait_for()
        page.reload()
        page.get_by_role("heading", name="Learn").wait_for()
        assert asked == ["beforeunload"]
        assert page.locator(".batch").count() == 0


def test_a_part_of_the_receipts_is_not_all(page: Page) -> None:
    """Copying a few letters saves nothing: the warnings stay until the whole field was copied."""
    go(page, "/#/learn")
    page.get_by_label("Features").fill(json.dumps([centre("kept"), centre("kept")]))
    page.get_by_label("Label", exact=True).fill("kept")
    page.get_by_role("button", name="Learn", exact=True).click()
    area = page.locator(".batch textarea")
    first = len(area.input_value().split("\n")[0])
    for start, end in ((0, 5), (5, None), (0, first), (3, 3)):
        area.evaluate("(field, part) => { field.focus(); field.setSelectionRange(...part); }", [start, end or 10**6])
        page.keyboard.press("Control+c")
        assert page.locator(".batch").get_by_text("Not saved yet.").is_visible()
        assert leaving_asks(page)
    page.get_by_role("link", name="2 receipts to save").wait_for()
    area.select_text()
    page.keyboard.press("Control+c")
    page.locator(".batch").get_by_text("Saved.", exact=True).wait_for()
    page.get_by_role("link", name="to save").wait_for(state="hidden")
    assert not leaving_asks(page)


def test_signing_out(page: Page) -> None:
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".batch").wait_for()
    [receipt] = kept(page)
    page.get_by_role("button", name="Sign out").click()
    dialog = page.get_by_role("dialog")
    assert "1 receipt not saved yet" in dialog.inner_text()
    dialog.get_by_role("button", name="Stay").click()
    assert kept(page) == [receipt]
    page.get_by_role("button", name="Sign out").click()
    with page.expect_download() as saved:
        dialog.get_by_role("button", name="Download, then sign out").click()
    assert json.loads(Path(saved.value.path()).read_text())["receipt"] == receipt
    page.get_by_role("heading", name="Sign in").wait_for()
    page.goto("/#/receipts")  # the next person at this tab
    page.locator("main").get_by_text("This tab has received no receipts.").wait_for()


def refuse_the_key(page: Page, link: str = "Predict") -> None:
    """Let the service not know the key any more, as if it had been revoked."""
    page.route("**/v1/model", lambda route: route.fulfill(**refused(401, "unauthorized")), times=1)
    page.get_by_role("navigation", name="Console").get_by_role("link", name=link).click()
    page.get_by_role("heading", name="Sign in").wait_for()


def sign_in(page: Page, key: str, link: str = "Learn") -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Console").get_by_role("link", name=link).click()
    page.get_by_role("heading", name=link).wait_for()


def test_a_key_that_is_refused_loses_no_receipts(page: Page, service: Running) -> None:
    """The page that asks for a key offers them: nobody can sign in with a key that was revoked."""
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".batch").wait_for()
    receipts = kept(page)
    refuse_the_key(page)
    page.locator("main").get_by_text("1 receipt not saved yet").wait_for()
    page.get_by_label("API key").fill("nsk_nobody")
    page.get_by_role("button", name="Sign in").click()
    page.locator("main").get_by_text("The service does not know this key").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert json.loads(Path(saved.value.path()).read_text())["receipt"] == receipts[0]
    assert not leaving_asks(page)
    sign_in(page, service.admin)
    assert on_page(page, lambda: kept(page) == receipts)  # the key is known after all


def test_the_next_key_does_not_get_the_receipts_of_the_last(page: Page, service: Running) -> None:
    go(page, "/#/learn")
    teach(page, "adas secret")
    page.locator(".batch").wait_for()
    receipts = kept(page)
    refuse_the_key(page)
    sign_in(page, service.learner)
    assert kept(page) == []
    assert page.get_by_role("link", name="to save").count() == 0
    page.evaluate("location.hash = '#/receipts'")
    page.locator("main").get_by_text("This tab has received no receipts.").wait_for()
    assert leaving_asks(page)  # they are in this tab all the same
    page.get_by_role("navigation", name="Console").get_by_role("link", name="Learn").click()
    teach(page, "bobs")
    page.locator(".batch").wait_for()
    [bobs] = kept(page)
    page.get_by_role("button", name="Sign out").click()
    dialog = page.get_by_role("dialog")
    assert "1 receipt not saved yet" in dialog.inner_text()
    with page.expect_download() as saved:
        dialog.get_by_role("button", name="Download, then sign out").click()
    assert [json.loads(line)["receipt"] for line in Path(saved.value.path()).read_text().splitlines()] == [bobs]
    page.get_by_role("heading", name="Sign in").wait_for()
    assert page.get_by_role("button", name="Download").count() == 0
    page.evaluate("location.hash = '#/receipts'")
    page.locator("main").get_by_text("This tab has received no receipts.").wait_for()
    page.evaluate("location.hash = '#/learn'")
    sign_in(page, service.admin)
    assert on_page(page, lambda: kept(page) == receipts)


def test_an_answer_that_comes_to_the_next_key(page: Page, service: Running) -> None:
    held = holding(page, "**/v1/samples")
    go(page, "/#/learn")
    teach(page, "slow")
    on_page(page, lambda: bool(held))
    refuse_the_key(page)
    sign_in(page, service.learner, "Predict")
    with page.expect_response("**/v1/samples"):
        held[0].continue_()
    assert page.get_by_role("link", name="to save").count() == 0
    refuse_the_key(page, "Learn")
    sign_in(page, service.admin)
    page.locator(".batch").wait_for()
    assert len(kept(page)) == 1


def test_receipts_that_were_handed_to_another_page_are_not_handed_to_another_key(page: Page, service: Running) -> None:
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".batch").wait_for()
    page.route("**/v1/model", lambda route: route.fulfill(**refused(401, "unauthorized")), times=1)
    page.get_by_role("link", name="Forget it again").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_label("API key").fill(service.forgetter)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Forget").wait_for()
    assert page.get_by_label("Receipts", exact=True).input_value() == ""


def test_an_answer_that_is_lost(page: Page, service: Running) -> None:
    lost: list[str] = []

    def cut(route: Route) -> None:
        answer = route.fetch()  # it was carried out
        if lost:
            route.fulfill(response=answer)
        else:
            lost.append(answer.json()["receipts"][0])
            route.abort()

    page.route("**/v1/samples", cut)
    go(page, "/#/learn")
    teach(page, "lost")
    page.locator("main").get_by_text("The samples may have been learned.").wait_for()
    page.get_by_label("Label", exact=True).fill("another")  # what the form has now is not what is asked for again
    page.get_by_role("navigation", name="Console").get_by_role("link", name="Requests").click()
    page.get_by_role("heading", name="Requests").wait_for()
    page.get_by_role("navigation", name="Console").get_by_role("link", name="Learn").click()
    page.get_by_role("button", name="Ask again").click()
    page.locator(".batch").wait_for()
    assert kept(page) == lost
    counts = call(service, "GET", "/v1/model")["class_counts"]
    assert {each["label"]: each["samples"] for each in counts}["lost"] == 1


class Lossy:
    """A service that carries out what it is asked and whose first answer is lost; then it answers as told."""

    def __init__(self, page: Page, *answers: dict[str, Any], path: str = "**/v1/samples") -> None:
        self.keys: list[str | None] = []
        self._answers: list[dict[str, Any] | None] = [None, *answers]
        page.route(path, self)

    def __call__(self, route: Route) -> None:
        self.keys.append(route.request.headers.get("idempotency-key"))
        if not self._answers:
            route.continue_()
        elif (answer := self._answers.pop(0)) is None:
            assert route.fetch().ok
            route.abort()
        else:
            route.fulfill(**answer)


def leaving_asks(page: Page) -> bool:
    asks: bool = page.evaluate(
        "() => { const left = new Event('beforeunload', { cancelable: true }); return !window.dispatchEvent(left); }"
    )
    return asks


def samples_of(service: Running, label: str) -> int:
    counts = call(service, "GET", "/v1/model")["class_counts"]
    return sum(each["samples"] for each in counts if each["label"] == label)


def test_asking_again_that_is_refused(page: Page, service: Running) -> None:
    go(page, "/#/learn")
    for number, (status, code) in enumerate(
        [(429, "rate_limited"), (408, "timeout"), (403, "forbidden"), (409, "id_taken"), (413, "too_large")]
    ):
        lossy = Lossy(page, refused(status, code))
        teach(page, f"lost {code}")
        again, notice = page.get_by_role("button", name="Ask again"), page.locator("main .notice")
        again.click()
        notice.get_by_text("says no").or_(page.get_by_text("Too many requests")).first.wait_for()
        notice.get_by_text("The samples may have been learned.").wait_for()
        assert leaving_asks(page)
        page.get_by_role("button", name="Learn", exact=True).click()
        notice.get_by_text("First finish the earlier request").wait_for()
        again.click()
        page.locator(".batch").nth(number).wait_for()
        assert len(kept(page)) == number + 1
        assert again.count() == 0
        assert len(lossy.keys) == 3
        assert len(set(lossy.keys)) == 1
        page.unroute("**/v1/samples")
        call(service, "POST", "/v1/publish")
        assert samples_of(service, f"lost {code}") == 1


def test_asking_again_with_another_key(page: Page, service: Running) -> None:
    lossy = Lossy(page, refused(401, "unauthorized"))

    def sign_in(key: str) -> None:
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Ask again").click()

    go(page, "/#/learn")
    teach(page, "lost by key")
    page.get_by_role("button", name="Ask again").click()
    sign_in(service.learner)
    page.locator("main .notice").get_by_text("Sign in with the key that sent it").wait_for()
    assert len(lossy.keys) == 2  # under another key it would be another request
    page.route("**/v1/model", lambda route: route.fulfill(**refused(401, "unauthorized")), times=1)
    page.get_by_role("navigation", name="Console").get_by_role("link", name="Predict").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.evaluate("location.hash = '#/learn'")
    sign_in(service.admin)
    page.locator(".batch").wait_for()
    call(service, "POST", "/v1/publish")
    assert samples_of(service, "lost by key") == 1


def test_asking_again_for_receipts_that_are_gone(page: Page) -> None:
    lossy = Lossy(page, refused(409, "receipts_gone"))
    go(page, "/#/learn")
    teach(page, "gone")
    page.get_by_role("button", name="Ask again").click()
    page.locator("main .notice").get_by_text("The service says no.").wait_for()
    assert page.get_by_role("button", name="Ask again").count() == 0
    assert not leaving_asks(page)
    teach(page, "gone")
    page.locator(".batch").wait_for()
    assert len(set(lossy.keys)) == 2


def test_giving_up_the_receipts(page: Page) -> None:
    Lossy(page)
    go(page, "/#/learn")
    teach(page, "given up")
    page.get_by_role("button", name="Give up the receipts").click()
    page.locator("main .notice").get_by_text("The samples may have been learned").wait_for()
    assert not leaving_asks(page)
    teach(page, "another")
    page.locator(".batch").wait_for()


def test_asking_again_while_the_first_answer_is_on_its_way(page: Page) -> None:
    held = holding(page, "**/v1/samples")
    go(page, "/#/learn")
    teach(page, "twice")
    on_page(page, lambda: bool(held))
    for name in ("Predict", "Learn"):
        page.get_by_role("navigation", name="Console").get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name).wait_for()
    page.get_by_role("button", name="Ask again").click()
    on_page(page, lambda: len(held) == 2)
    for route in held:
        route.continue_()
    page.get_by_role("heading", name="Learned").wait_for()
    page.get_by_role("link", name="1 receipt to save").wait_for()
    assert len(kept(page)) == 1
    assert page.get_by_role("button", name="Ask again").count() == 0


def test_an_answer_that_comes_after_the_page_was_left(page: Page) -> None:
    held = holding(page, "**/v1/samples")
    go(page, "/#/learn")
    teach(page, "slow")
    on_page(page, lambda: bool(held))
    page.get_by_role("navigation", name="Console").get_by_role("link", name="Predict").click()
    page.get_by_role("heading", name="Predict").wait_for()
    held[0].continue_()
    page.get_by_role("link", name="1 receipt to save").click()
    page.locator(".batch").wait_for()
    assert len(kept(page)) == 1


# -- live pages --------------------------------------------------------------------------------------


class Changing:
    """A model that changes with every answer, and may fail."""

    def __init__(self) -> None:
        self.answers, self.failing = 0, False

    def __call__(self, route: Route) -> None:
        self.answers += 1
        if self.failing:
            route.fulfill(status=503, json={"error": {"code": "unavailable", "message": "the store cannot be read"}})
            return
        document: dict[str, Any] = route.fetch().json()
        classes = [{"label": f"class {place}", "samples": place + self.answers} for place in range(40)]
        document |= {"class_counts": classes, "samples": 5000 + self.answers, "digest": f"{self.answers:064x}"}
        route.fulfill(json=document)


def wait_for_answers(page: Page, model: Changing, more: int) -> None:
    wanted = model.answers + more
    on_page(page, lambda: model.answers >= wanted)


def test_the_filter_and_the_focus_stay(page: Page) -> None:
    model = Changing()
    page.route("**/v1/model", model)
    hurried(page)
    go(page, "/#/")
    field = page.get_by_label("Find a class")
    field.fill("class 39")
    field.evaluate(
        "(element) => { element.setSelectionRange(2, 5); window.row = document.querySelector('.classes li'); }"
    )
    before = page.locator(".classes li .number").inner_text()
    wait_for_answers(page, model, 2)
    page.wait_for_function("(before) => window.row.querySelector('.number').textContent !== before", arg=before)
    assert field.input_value() == "class 39"
    assert field.evaluate("(element) => [element.selectionStart, element.selectionEnd]") == [2, 5]
    assert field.evaluate("(element) => document.activeElement === element")
    assert page.locator(".classes li").count() == 1
    assert page.evaluate("window.row.isConnected")


def test_a_button_keeps_the_focus_and_copies_what_is_shown(page: Page) -> None:
    model = Changing()
    page.route("**/v1/model", model)
    hurried(page)
    go(page, "/#/")
    button = page.get_by_role("button", name="Copy the model's digest")
    button.focus()
    button.evaluate("(element) => { window.button = element; }")
    digest = page.locator(".facts code").first.get_attribute("title")
    page.wait_for_function("(old) => document.querySelector('.facts code').title !== old", arg=digest)
    assert page.evaluate("document.activeElement === window.button")
    assert button.get_attribute("data-text") == page.locator(".facts code").first.get_attribute("title")


def test_a_chart_keeps_the_focus(page: Page, service: Running) -> None:
    learned(service)
    call(service, "POST", "/v1/publish")
    hurried(page)
    go(page, "/#/")
    chart = page.locator(".chart svg[role=img]").first
    chart.focus()
    chart.evaluate("(element) => { window.chart = element; }")
    page.keyboard.press("Home")
    words = chart.get_attribute("aria-label")
    learned(service)
    call(service, "POST", "/v1/publish")
    page.wait_for_function("(old) => window.chart.getAttribute('aria-label') !== old", arg=words)
    assert page.evaluate("document.activeElement === window.chart")


def test_thousands_of_requests(page: Page) -> None:
    def entry(place: int) -> dict[str, Any]:
        at = f"2026-01-01T00:{place // 60 % 60:02d}:{place % 60:02d}.000Z"
        about = {"kind": "forget", "state": "sealed", "samples": 1, "certificate": 1, "key": "k", "applied_at": at}
        return about | {"id": f"req_{place:024x}"}

    newest = 2050
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        before = route.request.url.partition("before=req_")[2]
        end = int(before, 16) if before else newest
        limit = int(route.request.url.partition("limit=")[2].partition("&")[0])
        route.fulfill(json={"requests": [entry(place) for place in range(end - 1, max(-1, end - 1 - limit), -1)]})

    page.route("**/v1/requests?*", answer)
    hurried(page)
    go(page, "/#/requests")
    for _ in range(3):
        first = page.locator("tbody tr").first.get_attribute("data-key")
        page.get_by_role("button", name="Older requests").click()
        page.wait_for_function("(old) => document.querySelector('tbody tr').dataset.key !== old", arg=first)
        assert page.locator("tbody tr").count() <= 100
    link = page.locator("tbody tr").nth(20).get_by_role("link")
    link.focus()
    link.evaluate("(element) => { window.link = element; }")
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('tbody code')[10])")
    chosen = page.evaluate("String(getSelection())")
    wanted = len(asked) + 3
    on_page(page, lambda: len(asked) >= wanted)
    assert page.evaluate("document.activeElement === window.link")
    assert page.evaluate("String(getSelection())") == chosen != ""
    first = page.locator("tbody tr").first.get_attribute("data-key")
    page.get_by_role("button", name="Newer requests").click()
    page.wait_for_function("(old) => document.querySelector('tbody tr').dataset.key !== old", arg=first)
    for _ in range(2):
        first = page.locator("tbody tr").first.get_attribute("data-key")
        page.get_by_role("button", name="Newer requests").click()
        page.wait_for_function("(old) => document.querySelector('tbody tr').dataset.key !== old", arg=first)
    row = page.locator("tbody tr").nth(3)
    row.get_by_role("link").focus()
    row.evaluate("(element) => { window.row = element; }")
    newest += 2  # requests come in above it
    page.wait_for_function("() => window.row.parentNode.rows[5] === window.row")
    assert page.evaluate("window.row.contains(document.activeElement)")


@pytest.mark.parametrize(("path", "asked"), [("/#/", "**/v1/model"), ("/#/requests", "**/v1/requests?*")])
def test_old_numbers_look_old(page: Page, path: str, asked: str) -> None:
    hurried(page)
    go(page, path)
    page.locator(".fresh").get_by_text("As of ").wait_for()
    refusal = {"error": {"code": "unavailable", "message": "the store cannot be read"}}
    page.route(asked, lambda route: route.fulfill(status=503, headers={"Retry-After": "1"}, json=refusal))
    page.locator(".fresh.stale").wait_for()
    words = page.locator(".fresh.stale").inner_text()
    assert "Stale: as of " in words
    assert "UTC" in words
    assert "The store cannot be read." in words
    assert page.locator("[data-stale]").count() == 1
    assert float(page.locator("[data-stale]").evaluate("(element) => getComputedStyle(element).opacity")) < 1
    page.unroute_all()
    page.locator(".fresh:not(.stale)").wait_for()
    assert page.locator("[data-stale]").count() == 0


def test_older_certificates_that_do_not_come(page: Page) -> None:
    entry = {"time": "2026-01-01T00:00:00Z", "learned": 1, "forgotten": 0, "samples": 1, "classes": 1}
    answers = [{"json": {"certificates": [entry | {"number": 9}]}}, refused(503, "unavailable")]
    answers.append({"json": {"certificates": [entry | {"number": 1}]}})
    page.route("**/v1/certificates?limit=50*", lambda route: route.fulfill(**answers.pop(0)))
    go(page, "/#/certificates")
    older = page.get_by_role("button", name="Older certificates")
    older.click()
    page.locator("main .notice").get_by_text("The service says no.").wait_for()
    older.click()
    page.get_by_role("link", name="Certificate 1", exact=True).wait_for()
    assert page.locator("main .notice").count() == 0


def test_a_request_that_cannot_be_followed(page: Page) -> None:
    refusal = {"error": {"code": "unavailable", "message": "the store cannot be read"}}
    page.route(
        "**/v1/requests/req_*", lambda route: route.fulfill(status=503, headers={"Retry-After": "1"}, json=refusal)
    )
    hurried(page)
    go(page, "/#/learn")
    teach(page, "kept")
    page.locator(".progress .fresh.stale").get_by_text("The store cannot be read.").wait_for()
    page.unroute_all()
    page.locator(".steps li.done", has_text="published").wait_for()
    page.locator(".progress .fresh.stale").wait_for(state="detached")
