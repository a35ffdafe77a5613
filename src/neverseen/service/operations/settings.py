"""The operator's settings: publishing policy, output mode, limits.

Written by hand: pydantic-settings ignores misspelt variables, accepts ``yes`` for true, and words its own messages.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neverseen.errors import ConfigurationError
from neverseen.service.operations.log import LEVELS

FOLDER, NAME = "service", "service.toml"
_CHOICES = {"output": ("labels", "top-k", "scores"), "effect": ("published", "immediate"), "log_level": LEVELS}
PREFIX = "NEVERSEEN_SERVE_"
"""Prefix of environment variables with settings, such as ``NEVERSEEN_SERVE_MIN_BATCH``."""


@dataclass(frozen=True)
class Settings:
    """The settings of a service. The tables in ``docs/service.md`` explain each of them.

    Examples
    --------
    >>> Settings(min_batch=10, max_delay=60).policy()
    {'min_batch': 10, 'max_delay': 60.0, 'publish_below_min_batch': False, 'seal_after': 3600.0}
    """

    # publications
    min_batch: int = 1
    max_delay: float = 5.0
    publish_below_min_batch: bool = False
    quiet: float = 0.05
    seal_after: float = 3600.0
    # predictions
    effect: str = "published"
    output: str = "labels"
    top_k: int = 3
    # one request, and one sample of it
    max_body: int = 2**26
    max_json: int = 2**25
    max_public_body: int = 2**20
    max_batch: int = 10_000
    max_image_bytes: int = 2**24
    max_pixels: int = 25_000_000
    max_request_pixels: int = 50_000_000
    max_text: int = 100_000
    max_labels: int = 100_000
    # all bodies that are held at a time
    max_waiting_bytes: int = 2**29
    max_waiting_pixels: int = 100_000_000
    # how bodies come, and who reads them
    body_timeout: float = 60.0
    body_pause: float = 15.0
    body_rate: float = 2048.0
    reading_processes: int = 2
    reading_waiting: int = 64
    reading_memory: int = 2**30
    reading_timeout: float = 10.0
    verify_waiting: int = 8
    # what waits for the writer and for predictions
    queue_requests: int = 20_000
    queue_samples: int = 200_000
    predict_waiting: int = 20_000
    predict_threads: int = 1
    # token buckets of a key, or of an address without one
    requests_per_second: float = 1000.0
    request_burst: float = 5000.0
    samples_per_second: float = 20_000.0
    sample_burst: float = 100_000.0
    bytes_per_second: int = 2**26
    bytes_burst: int = 2**28
    public_per_second: float = 50.0
    public_burst: float = 200.0
    health_per_second: float = 100.0
    health_burst: float = 1000.0
    public_bytes_per_second: int = 2**18
    public_bytes_burst: int = 2**22
    max_classes: int = 10_000
    max_new_classes: int = 1000
    classes_per_second: float = 10.0
    class_burst: float = 2000.0
    # the process
    memory: int = 0
    max_scores: int = 100_000
    refusal_seconds: float = 60.0
    max_connections: int = 1000
    connections_per_address: int = 500
    idle_timeout: float = 30.0
    answer_rate: float = 2.0**14
    stop_timeout: float = 30.0
    history_points: int = 10_000
    log_level: str = "info"
    audit_bytes: int = 2**26
    audit_files: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _CHOICES:
                if value not in _CHOICES[field.name]:
                    raise ConfigurationError(
                        f"{field.name} must be one of {', '.join(_CHOICES[field.name])}; got {value!r}"
                    )
                continue
            if field.type == "bool":
                if type(value) is not bool:
                    raise ConfigurationError(f"{field.name} must be true or false; got {value!r}")
                continue
            whole = field.type == "int"
            if type(value) is not int and (whole or type(value) is not float):
                raise ConfigurationError(f"{field.name} must be a {'whole ' * whole}number; got {value!r}")
            free = field.name in ("max_delay", "quiet", "seal_after", "stop_timeout", "memory")
            least = 0 if free else 1 if whole else 1e-9
            if not least <= value <= 2**53:  # nor is NaN
                words = f"{'at least' if least else 'not below'} {least:g} and at most {2**53}"
                raise ConfigurationError(f"{field.name} must be {words}; got {str(value)[:50]}")
            if not whole:
                object.__setattr__(self, field.name, float(value))
        if self.effect == "immediate" and self.output != "labels":
            raise ConfigurationError(
                f'effect = "immediate" needs output = "labels"; got {self.output!r}. Scores that change with each '
                "forget would show what was forgotten"
            )
        for room, times, one in (("max_waiting_bytes", 4, "max_body"), ("max_waiting_pixels", 2, "max_request_pixels")):
            if getattr(self, room) < times * getattr(self, one):  # a share of the room must take a request
                raise ConfigurationError(
                    f"{room} must be at least {times} times {one}; got {getattr(self, room)} and {getattr(self, one)}"
                )

    @classmethod
    def load(cls, folder: Path, **overrides: Any) -> Settings:
        """Return the settings of a store's folder: from the environment, and from ``service/service.toml`` if there.

        Parameters
        ----------
        folder : Path
            The store's folder.
        **overrides
            Settings that take precedence over both; None if not given. The environment takes precedence over the file.
        """
        path = folder / FOLDER / NAME
        found: dict[str, Any] = {}
        if os.path.lexists(path):
            if not path.is_file():  # settings that are passed over may be somebody's protection
                what = "is not a file" if path.exists() else "is a link that leads nowhere"
                raise ConfigurationError(f"{path} {what}: put the file of settings there, or remove this")
            try:
                found = tomllib.loads(path.read_text("utf-8"))
            except (ValueError, OSError) as error:
                raise ConfigurationError(f"{path} cannot be read: {error}") from None
            _require_known(found, str(path))
        # In capitals alone, or two variables could mean one setting.
        variables = {name[len(PREFIX) :].swapcase(): name for name in os.environ if name.startswith(PREFIX)}
        _require_known(variables, f"the environment ({PREFIX}...)")
        found |= {name: _value(os.environ[variable]) for name, variable in variables.items()}
        found |= {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**found)
        except ConfigurationError as error:
            where = f"settings of {folder}" + f" and of {PREFIX}... in the environment" * bool(variables)
            raise ConfigurationError(f"{error} ({where})") from None

    def policy(self) -> dict[str, Any]:
        """Return the publishing policy, as JSON values."""
        names = ("min_batch", "max_delay", "publish_below_min_batch", "seal_after")
        return {name: getattr(self, name) for name in names}


def _require_known(names: Iterable[str], where: str) -> None:
    known = [field.name for field in fields(Settings)]
    odd = sorted(set(names) - set(known))
    if odd:
        raise ConfigurationError(
            f"{where} has unknown settings: {', '.join(odd)[:200]}. Known settings: {', '.join(known)}"
        )


def _value(text: str) -> Any:
    """Return the number or truth value of a variable, or its text, which `Settings` then refuses."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def service_folder(folder: Path) -> Path:
    """Return the folder of the service's own files in a store's folder; create it with mode 700 if it is missing."""
    place = folder / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    return place
