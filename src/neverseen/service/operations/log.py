"""The service's log for its operator, as lines on stderr.

A program that runs the service itself can configure the logger `neverseen.service`. Otherwise Python prints warnings
and errors, without a time.
"""

from __future__ import annotations

import logging
import re
import time

LOG = logging.getLogger("neverseen.service")
LEVELS = ("debug", "info", "warning", "error")
_TOKEN = re.compile(r"nsk_[\w-]+")


class _Lines(logging.Formatter):
    """Time in UTC, level and message. Only the first line of an entry begins with a time, whatever the message is."""

    def format(self, record: logging.LogRecord) -> str:
        lines = _TOKEN.sub("nsk_...", super().format(record)).splitlines()
        return "\n    ".join("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in s) for s in lines)


def log_to_stderr(level: str) -> None:
    """Print the log of the service from a level on, and warnings of the libraries that it uses."""
    lines = _Lines("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logging.basicConfig(handlers=[handler])
    LOG.setLevel(level.upper())
