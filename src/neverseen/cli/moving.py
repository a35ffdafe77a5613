"""Commands that move a model elsewhere: export, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neverseen.cli import options
from neverseen.cli.opening import (
    keys_asked_for,
    keys_of,
    opened,
    require_outside,
    require_place,
    require_published,
    require_writable,
)
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import shown, tell, tell_leftovers
from neverseen.errors import InputError
from neverseen.io.files import replace_file, require_file


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(export)
    app.command("import")(import_)


def export(
    folder: options.Folder,
    file: Annotated[Path, typer.Argument(help="A new file: .safetensors, .onnx or .tar.", show_default=False)],
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Write the published weights for use elsewhere, or the whole store.

    .safetensors: weights with their witness. .onnx: a graph from features to exact scores, for ONNX Runtime. .tar: the
    store with the keys in its folder, for import on another machine; guard it as you would the store. If version 0.1.0
    wrote the store and its keys are elsewhere, a .tar needs --keys.

    Example: `neverseen export shop shop.safetensors`
    """
    from neverseen import store
    from neverseen.model.onnx_graph import graph_of
    from neverseen.model.versions import write_version

    tell_leftovers(file)
    if file.exists():
        raise FileExistsError(f"{file} already exists: choose another name")
    require_outside(folder, file, "the file")
    OUTCOME.note(f"if {file} is there, it is whole", done=False)
    ending = file.suffix.lower()
    if ending == ".tar":
        require_writable(folder)
        with keys_asked_for():
            digest = store.write_archive(folder, file, None if keys is None else keys_of(folder, keys))
    elif ending in {".safetensors", ".onnx"}:
        with opened(folder, write=False) as model:
            require_published(model)
            version = model.version()
        digest = version.digest()
        if ending == ".onnx":
            replace_file(file, [graph_of(version)])
        else:
            write_version(file, version)
    else:
        raise InputError(f"{file.name} must end in .safetensors, .onnx or .tar: the ending chooses the format")
    tell(f"wrote {file}, model {digest[:16]}", {"file": str(file), "model": digest}, as_json)


def import_(
    folder: Annotated[Path, typer.Argument(help="The store's new folder; it must not exist yet.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="A .tar file that export wrote.", show_default=False)],
    keys: options.Keys = None,
    skip_others: Annotated[
        bool, typer.Option("--skip-others", help="Leave out files that do not belong to a store, and list them.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Create a store from a .tar file that export wrote.

    From then on, use only one of the two stores: two certificates with the same number cannot both be right. If version
    0.1.0 wrote the store and its keys are not in the archive, give --keys.

    Example: `neverseen import shop-again shop.tar`
    """
    from neverseen import store

    require_file(file, "a .tar file that export wrote")
    tell_leftovers(folder)
    require_place(folder)
    skipped: list[str] = []
    known = None if keys is None else keys_of(folder, keys)
    OUTCOME.note(f"if {folder} is there, it is whole", done=False)
    with keys_asked_for():
        digest = store.read_archive(folder, file, known, skipped.append if skip_others else None)
    for name in skipped:
        typer.echo(f"skipped: {shown(name)}: not a file of a store", err=True)
    facts = {"folder": str(folder), "model": digest, "skipped": skipped}
    tell(f"created {folder}, model {digest[:16]}", facts, as_json)
