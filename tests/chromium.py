"""A real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """Return the path of a Chromium that is installed: what NEVERSEEN_CHROMIUM says, or one on the path."""
    asked = os.environ.get("NEVERSEEN_CHROMIUM")
    return shutil.which(asked) if asked else next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser without a window; skip the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests need: pip install playwright")
    path = executable()
    if path is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium, or set NEVERSEEN_CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        chromium: Browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()
