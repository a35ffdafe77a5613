"""The command line as a whole: its commands and its error messages."""

from __future__ import annotations

import errno
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from neverseen.cli import asking, checking, forgetting, learning, looking, moving, publishing, serving
from neverseen.cli.output import OUTCOME, OutputError, drop_output, open_streams
from neverseen.cli.printing import shown
from neverseen.errors import NeverseenError

NAME, OPTIONS = "neverseen.command", "neverseen.options"
"""Under these names, a context notes the running command and its options."""
RENAMED = {"skipped": "--skip-others"}
"""Options that are not called like the argument."""


class Commands(TyperGroup):
    """Commands whose errors are one line on stderr, and exit code 1."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, and note its name and options."""
        name, command, rest = super().resolve_command(ctx, args)
        running: Any = getattr(command, "commands", {}).get(rest[0] if rest else "", command)
        ctx.meta[NAME] = f"{name} {running.name}" if running is not command else str(name)
        ctx.meta[OPTIONS] = {option for each in running.params for option in each.opts}
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Only our own mistakes show a traceback."""
        OUTCOME.note("", done=False)
        try:
            return super().invoke(ctx)
        except OutputError as error:
            drop_output()
            if error.errno == errno.EPIPE and not OUTCOME.words:  # its reader has seen enough
                raise typer.Exit(1) from None
            raise _failed(ctx, OUTCOME.unprinted(str(error.strerror))) from None
        except KeyboardInterrupt:
            raise _failed(ctx, OUTCOME.interrupted(), 130) from None
        except OSError as error:
            named = error.filename is not None and error.strerror is not None
            raise _failed(ctx, f"{error.filename}: {error.strerror}" if named else str(error)) from None
        except NeverseenError as error:
            words = str(error) or type(error).__name__
            wanted = (RENAMED.get(each, f"--{each.replace('_', '-')}") for each in error.arguments)
            options = ", ".join(option for option in wanted if option in ctx.meta.get(OPTIONS, ()))
            raise _failed(ctx, f"{words} ({options})" if options else words) from None
        except MemoryError:
            raise _failed(ctx, "there is not enough memory for this" + _remedy(ctx.meta.get(NAME))) from None


def _remedy(command: str | None) -> str:
    """Return the remedy for a lack of memory."""
    if command == "init":
        return ": use fewer codes (--codes)"
    reading = ("learn", "forget", "predict", "what-if", "verify retrain")
    return ": use fewer samples at a time" if command in reading else ""


def _failed(ctx: Any, words: str, code: int = 1) -> typer.Exit:
    """Say which command failed, and why."""
    line = " ".join(words.split())
    typer.echo(f"error: {shown(ctx.meta.get(NAME, 'neverseen'))}: {shown(line)}", err=True)
    return typer.Exit(code)


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
    """Classifiers that forget exactly, kept in folders.

    Exit codes: 0 done, 1 failed or refused (one line on stderr says why), 2 usage error, 130 interrupted.
    """


for _module in (learning, forgetting, asking, publishing, looking, checking, moving, serving):
    _module.register(app)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning
    open_streams()
    try:
        app(prog_name="neverseen")
    except OutputError as error:  # of --help and --version
        drop_output()
        typer.echo(f"error: neverseen: {OUTCOME.unprinted(str(error.strerror))}", err=True)
        sys.exit(1)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {shown(' '.join(str(message).split()))}", err=True)
