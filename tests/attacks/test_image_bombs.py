"""Images are measured before they are unpacked: each, all of a request, all of a key, and all that there are."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")

from PIL import Image

from benchmarks.siege_attacks import FORM, bomb, form, post, together
from neverseen.service import Settings, contents
from neverseen.service.contents import Bounds
from neverseen.service.errors import Refusal
from neverseen.service.shares import Shares
from tests.attacks.siege import Besieged, besieged, call

BOUNDS = Bounds("images", 4, 100, 1000, 2**24, 25_000_000, 50_000_000)
SIDE = 5000  # 25 megapixels


def picture(side: int, colour: tuple[int, int, int] = (200, 30, 30)) -> str:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PREDICT = {"samples": [{"image": picture(8)}]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with besieged(tmp_path_factory.mktemp("images") / "s", "images", quiet=0, max_delay=0) as found:
        given = [{"image": picture(8), "label": "red"}, {"image": picture(8, (0, 0, 250)), "label": "blue"}]
        assert call(found, "/v1/samples", {"samples": given})[0] == 201
        assert call(found, "/v1/publish", {})[0] == 200
        yield found


def test_forty_bombs_in_one_request(service: Besieged) -> None:
    small = bomb(SIDE)
    assert len(small) < 5000
    as_form = form(*[(b"files", small)] * 40)
    as_json = b'{"samples":[' + b",".join([b'{"image":"%s"}' % base64.b64encode(small)] * 40) + b"]}"
    with service.watched(PREDICT) as watch:
        assert post(service.port, "/v1/predict", service.tokens["attacker"], as_form, FORM) == 413
        assert post(service.port, "/v1/predict", service.tokens["attacker"], as_json) == 413
        learn = as_json.replace(b'"}', b'","label":"x"}')
        assert post(service.port, "/v1/samples", service.tokens["attacker"], learn) == 413
        assert post(service.port, "/v1/forget", service.tokens["attacker"], learn) == 413
    assert set(watch.statuses) == {200}
    assert watch.peak < 1_000_000_000  # three gigabytes, when each was looked at by itself


def test_many_requests_of_one_bomb_each(service: Besieged) -> None:
    body = form((b"files", bomb(SIDE)))
    with service.watched(PREDICT) as watch:
        statuses = together(12, lambda _: post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM))
    assert set(statuses) <= {200, 503}
    assert statuses[200]
    assert set(watch.statuses) == {200}
    assert watch.peak < 2_000_000_000


def test_the_error_names_the_limit(service: Besieged) -> None:
    image = base64.b64encode(bomb(SIDE)).decode()
    status, found = call(service, "/v1/predict", {"samples": [{"image": image}] * 3})
    assert status == 413
    assert found["error"]["code"] == "too_large"
    assert "75000000 pixels together, more than 50000000" in found["error"]["message"]


def test_nothing_is_unpacked_if_all_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[bytes] = []
    monkeypatch.setattr(contents, "decoded", unpacked.append)
    with pytest.raises(Refusal, match="pixels together") as found:
        contents.images_of([bomb(SIDE)] * 3, BOUNDS, lambda pixels: None)
    assert (found.value.status, unpacked) == (413, [])

    def full(pixels: int) -> None:
        raise Refusal("busy", f"no room for {pixels}")

    with pytest.raises(Refusal, match="no room for 25000000"):
        contents.images_of([bomb(SIDE)], BOUNDS, full)
    assert unpacked == []


def test_room_is_shared_between_keys() -> None:
    room = Shares(100, 50)
    assert [room.take("attacker", 25) for _ in range(4)] == [True, True, False, False]
    assert [room.take("other", 50), room.take("third", 1)] == [True, False]
    room.give("attacker", 50)
    assert room.take("third", 50)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*between: bytes) -> bytes:
    about = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(4 * 13)))
    return b"\x89PNG\r\n\x1a\n" + about + b"".join(between) + pixels + chunk(b"IEND", b"")


PACKED = zlib.compress(bytes(300_000_000), 9)


@pytest.mark.parametrize(
    "content",
    [
        png(chunk(b"zTXt", b"a\0\0" + PACKED)),
        png(chunk(b"iCCP", b"a\0\0" + PACKED)),
        png(chunk(b"iTXt", b"a\0\1\0\0\0" + PACKED)),
        png(*[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000), 9))] * 200),
    ],
    ids=["text", "profile", "international text", "many texts"],
)
def test_what_is_beside_the_pixels(service: Besieged, content: bytes) -> None:
    body = form((b"files", content))
    with service.watched(PREDICT) as watch:
        assert post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM) in (200, 413, 422)
    assert set(watch.statuses) == {200}
    assert watch.peak < 1_000_000_000


def tiff(tile: int) -> bytes:
    """A small image whose one tile is large."""
    packed = zlib.compress(bytes(tile * tile), 9)
    entries = [(256, 8), (257, 8), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile), (323, tile)]
    entries += [(324, 8), (325, len(packed))]
    start = 8 + len(packed)
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", start) + packed + struct.pack("<H", len(entries)) + listed + bytes(4)


def test_a_small_image_with_a_large_tile() -> None:
    assert contents.pixels_of(tiff(16)) == 256
    assert contents.pixels_of(tiff(6000)) == 36_000_000
    with pytest.raises(Refusal, match="more than 25000000 pixels"):
        contents.images_of([tiff(6000)], BOUNDS, lambda pixels: None)


def test_frames_are_not_all_unpacked(service: Besieged) -> None:
    frames = [Image.new("P", (1000, 1000), number) for number in range(200)]
    for kind in ("GIF", "PNG", "WEBP"):
        file = io.BytesIO()
        frames[0].convert("RGB").save(file, kind, save_all=True, append_images=frames[1:])
        body = form((b"files", file.getvalue()))
        with service.watched(PREDICT) as watch:
            assert post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM) == 200
        assert watch.peak < 1_000_000_000


def test_an_image_that_takes_too_much_time(tmp_path: Path) -> None:
    text = b"P3 2000 1300 255\n" + b"1 " * (3 * 2000 * 1300)  # numbers as text, which are read one by one
    with besieged(tmp_path / "s", "images", reading_timeout=1.0) as service:
        body = form((b"files", text))
        assert post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM) == 413
        status, found = call(service, "/v1/predict", PREDICT)
        assert (status, found["error"]["code"]) == (409, "nothing_published")


def test_limits_fit_each_other() -> None:
    from neverseen.errors import ConfigurationError

    limits: dict[str, Any] = {"max_waiting_pixels": 10**6, "max_request_pixels": 10**6}
    with pytest.raises(ConfigurationError, match="max_waiting_pixels must be at least 2 times max_request_pixels"):
        Settings(**limits)
    with pytest.raises(ConfigurationError, match="max_waiting_bytes must be at least 4 times max_body"):
        Settings(max_waiting_bytes=2**26)
