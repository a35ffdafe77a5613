"""Commands of the service: serve, keys add, keys list, keys revoke."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.opening import FEATURES, backbone_for, described, keys_of
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import print_json, print_table, tell
from neverseen.errors import InputError, NeverseenError

Name = Annotated[str, typer.Argument(help="The key's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(serve)
    keys = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    keys.command("add")(add)
    keys.command("list")(list_keys)
    keys.command("revoke")(revoke)
    app.add_typer(keys, name="keys", help="Manage the API keys of the service. Example: `neverseen keys list shop`")


def serve(
    folder: options.Folder,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8080,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate file for TLS, with its chain, in PEM format.", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key file for TLS, in PEM format.", show_default=False)] = None,
    min_batch: Annotated[
        int | None, typer.Option(help="Publish only when this many samples have changed.", show_default="1")
    ] = None,
    max_delay: Annotated[
        float | None,
        typer.Option(help="Publish this many seconds after the first change, if the batch is full.", show_default="5"),
    ] = None,
    publish_below_min_batch: Annotated[
        bool | None,
        typer.Option(
            "--publish-below-min-batch",
            help="Publish after --max-delay even if fewer samples than --min-batch have changed.",
            show_default=False,
        ),
    ] = None,
    seal_after: Annotated[
        float | None,
        typer.Option(
            help="Clear forgotten samples off the disk after this many seconds; 0: with each publication.",
            show_default="3600",
        ),
    ] = None,
    effect: Annotated[
        str | None,
        typer.Option(
            help="When forgets take effect on predictions: published (with the next version) or immediate.",
            show_default="published",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Content of predictions: labels, top-k or scores.", show_default="labels")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Classes in a top-k prediction.", show_default="3")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Lowest level to log: debug, info, warning or error.", show_default="info")
    ] = None,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
) -> None:
    """Serve a store over HTTP, with a console for browsers.

    Settings that are not given as options come from the environment (`NEVERSEEN_SERVE_MIN_BATCH=10`), then from
    `service/service.toml` in the store's folder. If the store has no recipe for its backbone, give the backbone with
    --backbone, or serve only features and receipts with --backbone features.

    Example: `neverseen serve shop --port 8080`
    """
    from neverseen.service import KeyFile, Settings
    from neverseen.service import serve as run
    from neverseen.service.operations.log import log_to_stderr
    from neverseen.service.operations.settings import service_folder

    chosen = Settings.load(
        folder,
        min_batch=min_batch,
        max_delay=max_delay,
        publish_below_min_batch=publish_below_min_batch,
        seal_after=seal_after,
        effect=effect,
        output=output,
        top_k=top_k,
        log_level=log_level,
    )
    log_to_stderr(chosen.log_level)
    described(folder)
    known = keys_of(folder, keys)
    network = backbone_for(folder, backbone)
    if not any(key.revoked is None for key in KeyFile(service_folder(folder)).all()):
        typer.echo("warning: there are no API keys yet: make one with neverseen keys add", err=True)
    if backbone == FEATURES:
        words = f"samples are rows of {network.n_features} features of {network.name}: images and texts are refused"
        typer.echo(words, err=True)
    run(
        folder,
        chosen,
        backbone=network,
        keys=known,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        ready=lambda address: typer.echo(f"console and API: {address}", err=True),
    )


def add(
    folder: options.Folder,
    name: Name,
    scope: Annotated[list[str], typer.Option(help="learn, predict, forget, audit or admin. Can be repeated.")],
    owner: Annotated[
        str | None, typer.Option(help="The key can learn and forget only this owner's samples.", show_default=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make an API key and print its token. The token is not stored, and cannot be shown again.

    Example: `neverseen keys add shop ada-phone --scope learn --scope forget --owner ada`
    """
    keys = _file(folder)
    OUTCOME.note(f"neverseen keys list {folder} says what was done", done=False)
    token = keys.add(name, scope, owner)
    try:
        if as_json:
            print_json({"name": name, "owner": owner, "scopes": sorted(set(scope)), "token": token})
        else:
            typer.echo(token)
    except BaseException:  # nobody has the token
        OUTCOME.note(f"nobody has the token of the key {name}: run neverseen keys revoke {folder} {name}", done=False)
        with suppress(OSError, NeverseenError):
            keys.revoke(name)
            words = f"the key {name} was revoked, since nobody has its token. Add one under another name"
            OUTCOME.note(words, done=False)
        raise


def list_keys(folder: options.Folder, as_json: options.Json = False) -> None:
    """List the API keys, without their tokens.

    Example: `neverseen keys list shop`
    """
    keys = [vars(key) | {"scopes": list(key.scopes)} for key in _file(folder, make=False).all()]
    found = [{name: value for name, value in key.items() if name != "sha256"} for key in keys]
    if as_json:
        print_json(found)
        return
    heads = ("name", "scopes", "owner", "created", "revoked")
    rows = [
        (key["name"], " ".join(key["scopes"]), key["owner"] or "", key["created"], key["revoked"] or "")
        for key in found
    ]
    print_table(heads, rows)


def revoke(folder: options.Folder, name: Name, as_json: options.Json = False) -> None:
    """Revoke an API key. A running service rejects it at once.

    Example: `neverseen keys revoke shop ada-phone`
    """
    keys = _file(folder, make=False)
    if not keys.path.exists():
        raise InputError(f"there is no key {name!r}")
    OUTCOME.note(f"neverseen keys list {folder} says what was done", done=False)
    revoked = keys.revoke(name)
    tell(f"revoked {revoked.name}", {"name": revoked.name, "revoked": revoked.revoked}, as_json)


def _file(folder: Path, *, make: bool = True) -> Any:
    """Return the file of keys of a store; `make` its folder, if it is not there."""
    from neverseen.service import KeyFile
    from neverseen.service.operations.settings import FOLDER, service_folder

    described(folder)
    return KeyFile(service_folder(folder) if make else folder / FOLDER)
