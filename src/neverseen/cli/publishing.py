"""Commands that make changes visible and clear the disk: publish, seal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from neverseen.cli import options
from neverseen.cli.opening import opened
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import about, published_words, tell

if TYPE_CHECKING:
    from neverseen.proof.certificates import Certificate
    from neverseen.store import Store


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(publish)
    app.command()(seal)


def publish(folder: options.Folder, keys: options.Keys = None, as_json: options.Json = False) -> None:
    """Make all changes visible to readers, with a certificate.

    Example: `neverseen publish shop`
    """
    with opened(folder, write=True, keys=keys, signs=True) as model:
        OUTCOME.note(_look(model), done=False)
        before, certificate = model.published_number, model.publish()
    tell(published_words(certificate, before), {"certificate": about(certificate)}, as_json)


def seal(folder: options.Folder, keys: options.Keys = None, as_json: options.Json = False) -> None:
    """Publish, then clear forgotten samples off the disk.

    Example: `neverseen seal shop`
    """
    with opened(folder, write=True, keys=keys, signs=True) as model:
        OUTCOME.note(_look(model), done=False)
        before, certificate = model.published_number, model.publish()
        words = published_words(certificate, before)
        ended(model, words, False, seal=True)
    tell(f"sealed; {words}", {"certificate": about(certificate), "sealed": True}, as_json)


def _look(model: Store) -> str:
    return f"neverseen status {model.folder} says what was done"


@contextmanager
def _done_before(what: str) -> Iterator[None]:
    """If a step after a change fails, say what was done, so that nobody repeats it."""
    try:
        yield
    except BaseException:
        if what:
            typer.echo(what, err=True)
        raise


def ended(model: Store, done: str, publish: bool, *, seal: bool = False) -> Certificate | None:
    """Publish and seal, as wanted. If one fails, say what was `done` before it, and what to run later."""
    certificate = None
    OUTCOME.note(done, done=False)
    if publish:
        command = f"neverseen {'seal' if seal else 'publish'} {model.folder}"
        with _done_before(done and f"{done}, but not published yet: run {command} later, and do not repeat this"):
            certificate = model.publish()
            done = f"{done}; {published_words(certificate)}"
    if seal:
        command = f"neverseen seal {model.folder}"
        with _done_before(f"{done}; not sealed yet: run {command} later, and do not repeat the rest"):
            model.scrub()
            done = f"{done}; sealed"
    OUTCOME.note(done if publish or seal else f"{done}; {published_words(None)}")
    return certificate
