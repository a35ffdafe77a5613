"""Pages of the site that lie outside of `docs/`: MkDocs calls `on_files` and `on_page_markdown`.

Links are written as they work in the repository, and are turned into those of the site here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
MADE = ("CHANGELOG.md", "CONTRIBUTING.md")  # the others stand for pages that are there
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages, and the examples as files."""
    for name in MADE:
        files.append(File.generated(config, PAGES[name], content=(ROOT / name).read_text("utf-8")))
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".sh"):
            files.append(File.generated(config, f"examples/{path.name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave `docs/`, or come from outside of it, into links of the site."""
    here = page.file.src_uri
    sources = {made: source for source, made in PAGES.items() if source in MADE}
    home = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def turned(link: re.Match[str]) -> str:
        goal = posixpath.normpath(posixpath.join(home, link[2]))
        place = PAGES.get(goal, goal.removeprefix("docs/"))
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(here) or '.')}{link[3] or ''}{link[4]}"

    return LINK.sub(turned, markdown)
