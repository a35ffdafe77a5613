"""What an operator decides: publishing policy, output mode, limits."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from neverseen.errors import ConfigurationError

FOLDER, NAME = "service", "service.toml"
OUTPUTS = ("labels", "top-k", "scores")


@dataclass(frozen=True)
class Settings:
    """What an operator decides about a service.

    Attributes
    ----------
    min_batch : int
        Samples by which a version differs from the one before, at least. Fewer changes wait for more.
    max_delay : float
        Seconds after the first unpublished change. By then it is published, if `min_batch` samples have changed.
    publish_below_min_batch : bool
        Publish after `max_delay` even if fewer than `min_batch` samples have changed.
    quiet : float
        Seconds without a new request before a publication: requests that come one after the other share one.
    seal_after : float
        Seconds after a forgetting when the disk is cleared of it; 0: with each publication.
    output : {"labels", "top-k", "scores"}
        What a prediction tells. Less tells less about the samples learned.
    top_k : int
        Classes of a prediction with ``"top-k"``.
    max_body, max_json, max_public_body : int
        Bytes of a request: as a form, as JSON, and without a key.
    max_batch, max_request_pixels : int
        Of one request: samples or receipts, and the pixels of all its images.
    max_image_bytes, max_pixels, max_text : int
        Of one sample: bytes and pixels of an image, letters of a text.
    max_waiting_bytes, max_waiting_pixels : int
        Bytes of all bodies, and pixels of all images, that are held at a time; one key may hold a quarter of the
        bytes and half of the pixels. As many bytes again are for rows of features, and for answers that clients have
        not read yet.
    body_timeout : float
        Seconds in which a body must have come.
    body_pause, body_rate : float
        Seconds in which so many bytes a second must have come, again and again, until the body is whole.
    reading_processes, reading_waiting : int
        Processes that read large bodies and images, and requests that may wait for them.
    reading_memory : int
        Bytes that each of these processes, and the one that checks certificates, may take for a request.
    reading_timeout : float
        Seconds of processor time that each of them may take for a request.
    verify_waiting : int
        Requests that may wait to have certificates checked.
    queue_requests, queue_samples : int
        What may wait for the writer to be learned, and as much of everything else; a quarter may be one key's.
    predict_waiting, predict_threads : int
        Samples that may wait for a prediction, a quarter of them one key's, and threads that predict.
    requests_per_second, request_burst, samples_per_second, sample_burst : float
        Token buckets of each key.
    bytes_per_second, bytes_burst : int
        Token bucket of each key, for the bytes of bodies.
    public_per_second, public_burst : float
        Requests without a key, by address.
    health_per_second, health_burst : float
        Questions whether the service is alive and ready, by address.
    public_bytes_per_second, public_bytes_burst : int
        Bytes of bodies without a key, by address.
    max_classes, max_new_classes : int
        Classes of the model, and new ones of one request.
    classes_per_second, class_burst : float
        Token bucket of each key, for new classes.
    memory : int
        Bytes that the service may use; 0: as many as machine, container and process limits allow. A request after
        which publishing would need more is refused. Where there is little, the limits of bodies and pixels are lower.
    max_scores : int
        With output ``"scores"``: scores of one answer, samples times classes.
    refusal_seconds : float
        Refusals of one kind in so many seconds are one line of the audit log, with a count.
    max_connections, connections_per_address : int
        Connections at a time. Fewer, if the process may not open so many files.
    idle_timeout : float
        Seconds that a connection may wait for its next request, or for a client that does not read.
    answer_rate : float
        Bytes a second of an answer that a client must take on the whole, beside `idle_timeout`; or it is cut.
    stop_timeout : float
        Seconds that a stop waits for what is queued.
    history_points : int
        Publications that are kept for charts.
    audit_bytes, audit_files : int
        Of the audit log: bytes after which a file is closed and another begun, and closed files to keep.

    Examples
    --------
    >>> Settings(min_batch=10, max_delay=60).policy()
    {'min_batch': 10, 'max_delay': 60.0, 'publish_below_min_batch': False, 'seal_after': 3600.0}
    """

    min_batch: int = 1
    max_delay: float = 5.0
    publish_below_min_batch: bool = False
    quiet: float = 0.05
    seal_after: float = 3600.0
    output: str = "labels"
    top_k: int = 3
    max_body: int = 2**26
    max_json: int = 2**25
    max_public_body: int = 2**20
    max_batch: int = 10_000
    max_image_bytes: int = 2**24
    max_pixels: int = 25_000_000
    max_request_pixels: int = 50_000_000
    max_text: int = 100_000
    max_waiting_bytes: int = 2**29
    max_waiting_pixels: int = 100_000_000
    body_timeout: float = 60.0
    body_pause: float = 15.0
    body_rate: float = 2048.0
    reading_processes: int = 2
    reading_waiting: int = 64
    reading_memory: int = 2**30
    reading_timeout: float = 10.0
    verify_waiting: int = 8
    queue_requests: int = 20_000
    queue_samples: int = 200_000
    predict_waiting: int = 20_000
    predict_threads: int = 1
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
    memory: int = 0
    max_scores: int = 100_000
    refusal_seconds: float = 60.0
    max_connections: int = 1000
    connections_per_address: int = 500
    idle_timeout: float = 30.0
    answer_rate: float = 2.0**14
    stop_timeout: float = 30.0
    history_points: int = 10_000
    audit_bytes: int = 2**26
    audit_files: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "output":
                if value not in OUTPUTS:
                    raise ConfigurationError(f"output must be one of {', '.join(OUTPUTS)}; got {value!r}")
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
            if not math.isfinite(value) or not least <= value <= 2**53:
                raise ConfigurationError(
                    f"{field.name} must be {'at least' if least else 'not below'} {least:g}; got {value!r}"
                )
            if not whole:
                object.__setattr__(self, field.name, float(value))
        for room, times, one in (("max_waiting_bytes", 4, "max_body"), ("max_waiting_pixels", 2, "max_request_pixels")):
            if getattr(self, room) < times * getattr(self, one):  # a share of the room must take a request
                raise ConfigurationError(
                    f"{room} must be at least {times} times {one}; got {getattr(self, room)} and {getattr(self, one)}"
                )

    @classmethod
    def load(cls, folder: Path, **overrides: Any) -> Settings:
        """Return the settings of a store's folder: of ``service/service.toml`` if it is there.

        Parameters
        ----------
        folder : Path
            The store's folder.
        **overrides
            Settings that take precedence; None stands for what the file says.
        """
        path = folder / FOLDER / NAME
        known = {field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        if path.is_file():
            try:
                found = tomllib.loads(path.read_text("utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{path} cannot be read: {error}") from None
            odd = sorted(set(found) - known)
            if odd:
                raise ConfigurationError(f"{path} has unknown settings: {', '.join(odd)[:200]}")
        found |= {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**found)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (settings of {folder})") from None

    def policy(self) -> dict[str, Any]:
        """Return the publishing policy, as JSON values."""
        return {
            name: asdict(self)[name] for name in ("min_batch", "max_delay", "publish_below_min_batch", "seal_after")
        }


def service_folder(folder: Path) -> Path:
    """Return the folder of a service's own files in a store's folder, made with mode 700 if it is not there."""
    place = folder / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    return place
