"""The command line as a whole: its commands and its error messages."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from neverseen.cli import asking, checking, forgetting, learning, looking, moving, publishing, serving
from neverseen.cli.printing import shown
from neverseen.errors import NeverseenError

NAME = "neverseen.command"
"""The name under which a context notes the running command."""


class Commands(TyperGroup):
    """Commands whose errors are one line on stderr, and exit code 1."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, and note its name."""
        name, command, rest = super().resolve_command(ctx, args)
        inner = rest[:1] if hasattr(command, "commands") else []
        ctx.meta[NAME] = " ".join([str(name), *inner])
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Only our own mistakes show a traceback."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has closed it; nothing must be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            named = error.filename is not None and error.strerror is not None
            raise _failed(ctx, f"{error.filename}: {error.strerror}" if named else str(error)) from None
        except NeverseenError as error:
            raise _failed(ctx, str(error) or type(error).__name__) from None
        except MemoryError:
            raise _failed(ctx, "there is not enough memory for this: use fewer samples at a time") from None


def _failed(ctx: Any, words: str) -> typer.Exit:
    """Say which command failed, and why."""
    line = " ".join(words.split())
    typer.echo(f"error: {shown(ctx.meta.get(NAME, 'neverseen'))}: {shown(line)}", err=True)
    return typer.Exit(1)


app = typer.Typer(
    name="neverseen",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("neverseen"))
        except PackageNotFoundError:
            typer.echo("unknown: the package is not installed")
        raise typer.Exit


@app.callback()
def _neverseen(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Classifiers that forget exactly, in folders that last.

    Exit codes: 0 done, 1 failed or refused (one line on stderr says why), 2 not understood.
    """


for _module in (learning, forgetting, asking, publishing, looking, checking, moving, serving):
    _module.register(app)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning
    app(prog_name="neverseen")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {shown(' '.join(str(message).split()))}", err=True)
