"""The command ``neverseen``: stores from a shell. Every command is in ``docs/commands.md``."""

from neverseen.cli.program import app, main

__all__ = ["app", "main"]
