"""Pictures of the console for the documentation: ``python -m tests.screenshots`` writes them to ``docs/images``."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.service.operations.settings import service_folder
from tests import chromium
from tests.service.test_console import Running, call, go, opened, running
from tests.waiting import pause

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLACE = Path(__file__).parents[1] / "docs" / "images"
DESK, PHONE = {"width": 1120, "height": 760}, {"width": 390, "height": 780}
HELD_OUT = 400


def main() -> None:
    """Serve a model of handwritten digits, use it a little, and take the pictures."""
    PLACE.mkdir(parents=True, exist_ok=True)
    features, labels = load_digits(return_X_y=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        classifier = AnalyticClassifier(RandomProjection(512, seed=0), 2**14, track_classes=True)
        store.create(folder, Precomputed(64, "digits"), classifier).close()
        probe = service_folder(folder) / "probe.npz"
        np.savez(probe, features=features[-HELD_OUT:].astype(np.float32), labels=labels[-HELD_OUT:])
        with running(folder, Precomputed(64, "digits"), seal_after=4.0) as service, chromium.browser() as browser:
            receipts = used(service, features[:-HELD_OUT], labels[:-HELD_OUT])
            pictures(service, browser, features[-1], receipts)


def used(service: Running, features: np.ndarray, labels: np.ndarray) -> list[str]:
    """Learn in some batches, forget a little in between; return receipts of what is held."""
    receipts: list[str] = []
    for start in range(0, 900, 60):
        rows = slice(start, start + 60)
        samples = [
            {"features": sample.tolist(), "label": int(label)}
            for sample, label in zip(features[rows], labels[rows], strict=True)
        ]
        receipts += call(service, "POST", "/v1/samples", {"samples": samples})["receipts"]
        call(service, "POST", "/v1/publish")
        pause(1.2)  # so that the points of the charts lie apart
        for sample in features[-5:]:
            call(service, "POST", "/v1/predict", {"samples": [{"features": sample.tolist()}]})
        if start % 180 == 120:
            call(service, "POST", "/v1/forget", {"receipts": [receipts.pop(0) for _ in range(7)]})
    return receipts


def pictures(service: Running, browser: Browser, sample: np.ndarray, receipts: list[str]) -> None:
    """Take all pictures."""
    with opened(browser, service, viewport=DESK) as page:
        go(page, "/#/")
        page.locator(".chart").nth(3).wait_for()
        shot(page, "overview", whole=True)
        go(page, "/#/forget")
        page.get_by_label("Receipts", exact=True).fill("\n".join(receipts[:3]))
        page.get_by_role("button", name="Show the effect").click()
        page.get_by_role("dialog").wait_for()
        shot(page, "forget")
        page.get_by_role("button", name="Forget 3 samples").click()
        page.locator(".steps li.done", has_text="published").wait_for()
        shot(page, "progress")
        page.locator(".progress").get_by_role("link", name="Certificate").click()
        page.locator(".verdict.good").wait_for()
        page.locator("#check-mine").get_by_label("Receipt", exact=True).fill(receipts[0])
        page.get_by_role("button", name="Look for it").click()
        page.locator("#check-mine .chip.good").wait_for()
        page.get_by_role("button", name="Check the weights").click()
        page.locator("#check-weights .chip.said").wait_for()
        shot(page, "certificate", whole=True)
        go(page, "/#/predict")
        page.get_by_label("Features").fill(", ".join(f"{value:g}" for value in sample))
        page.get_by_role("button", name="Predict").click()
        page.locator(".answer").wait_for()
        shot(page, "predict")
    with opened(browser, service, viewport=DESK, color_scheme="dark") as page:
        go(page, "/#/requests")
        shot(page, "requests-dark")
    with opened(browser, service, viewport=PHONE) as page:
        go(page, "/#/")
        page.locator(".chart").nth(3).wait_for()
        shot(page, "phone")


def shot(page: Page, name: str, whole: bool = False) -> None:
    """Take one picture."""
    pause(0.3)  # until it has stopped moving
    picture = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB")
    few = picture.quantize(128, dither=Image.Dither.NONE)  # a quarter of the bytes, and no difference to see
    few.save(PLACE / f"console-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
