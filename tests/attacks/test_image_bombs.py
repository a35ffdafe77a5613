"""Images are measured before they are unpacked: each, all of a request, all of a key, and all that there are.

What is unpacked is brought to the network's size elsewhere: whoever predicts has no more to do for a large image than for
a small one, and what is learned is the same to the last bit.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from benchmarks.siege_attacks import FORM, bomb, form, post, together
from benchmarks.siege_service import SIDE as THUMBNAIL
from benchmarks.siege_service import Thumbnails, create
from neverseen import AnalyticClassifier, ForgettingModel, Identity, InputError, store
from neverseen.backbones import Cached, Images, fingerprint
from neverseen.backbones.contents import Reduced, decoded
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception import contents, messages
from neverseen.service.reception.contents import Bounds
from neverseen.service.reception.reception import bounds_of
from neverseen.service.sharing.shares import Shares
from tests.attacks.siege import Besieged, besieged, call
from tests.services import QUICK, Running, running

SIDE = 2000  # of the largest image that is taken
LIMITS = {"max_pixels": SIDE**2, "max_request_pixels": 2 * SIDE**2, "max_waiting_pixels": 4 * SIDE**2}
BOUNDS = Bounds("images", 4, 100, 1000, 2**24, LIMITS["max_pixels"], LIMITS["max_request_pixels"])
ROOM = 400_000_000  # bytes: two processes that read images, and what they read


def picture(side: int, colour: tuple[int, int, int] = (200, 30, 30)) -> str:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PREDICT = {"samples": [{"image": picture(8)}]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with besieged(
        tmp_path_factory.mktemp("images") / "s", "images", quiet=0, max_delay=0, reading_timeout=1.0, **LIMITS
    ) as found:
        given = [{"image": picture(8), "label": "red"}, {"image": picture(8, (0, 0, 250)), "label": "blue"}]
        assert call(found, "/v1/samples", {"samples": given})[0] == 201
        assert call(found, "/v1/publish", {})[0] == 200
        yield found


def test_forty_bombs_in_one_request(service: Besieged) -> None:
    small = bomb(SIDE)
    assert len(small) < 5000
    as_form = form(*[(b"files", small)] * 40)
    as_json = b'{"samples":[' + b",".join([b'{"image":"%s"}' % base64.b64encode(small)] * 40) + b"]}"
    before = service.memory()
    with service.watched(PREDICT) as watch:
        assert post(service.port, "/v1/predict", service.tokens["attacker"], as_form, FORM) == 413
        assert post(service.port, "/v1/predict", service.tokens["attacker"], as_json) == 413
        learn = as_json.replace(b'"}', b'","label":"x"}')
        assert post(service.port, "/v1/samples", service.tokens["attacker"], learn) == 413
        assert post(service.port, "/v1/forget", service.tokens["attacker"], learn) == 413
    assert set(watch.statuses) == {200}
    assert watch.peak < before + ROOM


def test_many_requests_of_one_bomb_each(service: Besieged) -> None:
    body = form((b"files", bomb(SIDE)))
    before = service.memory()
    with service.watched(PREDICT) as watch:
        statuses = together(12, lambda _: post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM))
    assert set(statuses) <= {200, 503}
    assert statuses[200]
    assert set(watch.statuses) == {200}
    assert watch.peak < before + ROOM


def test_the_error_names_the_limit(service: Besieged) -> None:
    image = base64.b64encode(bomb(SIDE)).decode()
    status, found = call(service, "/v1/predict", {"samples": [{"image": image}] * 3})
    assert status == 413
    assert found["error"]["code"] == "too_large"
    assert "12000000 pixels together, more than 8000000" in found["error"]["message"]


def test_nothing_is_unpacked_if_all_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[bytes] = []
    monkeypatch.setattr(contents, "decoded", unpacked.append)
    with pytest.raises(Refusal, match="pixels together") as found:
        contents.images_of([bomb(SIDE)] * 3, BOUNDS, lambda pixels: None)
    assert (found.value.status, unpacked) == (413, [])

    def full(pixels: int) -> None:
        raise Refusal("busy", f"no room for {pixels}")

    with pytest.raises(Refusal, match="no room for 4000000"):
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


def packed_zeros(millions: int) -> bytes:
    """What `zlib.compress` makes of so many million zeros, without the time that it takes."""
    packer = zlib.compressobj(9)
    first = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    sum_of_all = (millions * 10**6 % 65521) << 16 | 1  # Adler-32
    return first + block * (millions - 1) + b"\x03\0" + struct.pack(">I", sum_of_all)


PACKED = packed_zeros(500)


def test_packed_zeros() -> None:
    assert zlib.decompress(packed_zeros(3)) == bytes(3 * 10**6)


@pytest.mark.parametrize(
    "content",
    [
        png(chunk(b"zTXt", b"a\0\0" + PACKED)),
        png(chunk(b"iCCP", b"a\0\0" + PACKED)),
        png(chunk(b"iTXt", b"a\0\1\0\0\0" + PACKED)),
        png(*[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000), 9))] * 500),
    ],
    ids=["text", "profile", "international text", "many texts"],
)
def test_what_is_beside_the_pixels(service: Besieged, content: bytes) -> None:
    body = form((b"files", content))
    before = service.memory()
    with service.watched(PREDICT) as watch:
        assert post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM) in (200, 413, 422)
    assert set(watch.statuses) == {200}
    assert watch.peak < before + ROOM


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
    assert contents.pixels_of(tiff(2048)) == 2048**2
    with pytest.raises(Refusal, match="more than 4000000 pixels"):
        contents.images_of([tiff(2048)], BOUNDS, lambda pixels: None)


def test_frames_are_not_all_unpacked(service: Besieged) -> None:
    frames = [Image.new("P", (1000, 1000), number) for number in range(150)]  # 600 million bytes
    for kind in ("GIF", "PNG", "WEBP"):
        file = io.BytesIO()
        frames[0].convert("RGB").save(file, kind, save_all=True, append_images=frames[1:], method=0)
        body = form((b"files", file.getvalue()))
        before = service.memory()
        with service.watched(PREDICT) as watch:
            assert post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM) == 200
        assert watch.peak < before + ROOM


def test_an_image_that_takes_too_much_time(service: Besieged) -> None:
    text = b"P3 2000 1300 255\n" + b"1 " * (3 * 2000 * 1300)  # numbers as text, which are read one by one
    body = form((b"files", text))
    refused = post(service.port, "/v1/predict", service.tokens["attacker"], body, FORM)
    assert refused in (413, 503)  # by its processor time; on a busy machine by the clock on the wall, which ends first
    assert call(service, "/v1/predict", PREDICT)[0] == 200


def test_limits_fit_each_other() -> None:
    from neverseen.errors import ConfigurationError

    limits: dict[str, Any] = {"max_waiting_pixels": 10**6, "max_request_pixels": 10**6}
    with pytest.raises(ConfigurationError, match="max_waiting_pixels must be at least 2 times max_request_pixels"):
        Settings(**limits)
    with pytest.raises(ConfigurationError, match="max_waiting_bytes must be at least 4 times max_body"):
        Settings(max_waiting_bytes=2**26)


# -- what reaches the service of them ----------------------------------------------------------------


def carried(files: list[bytes], bounds: Bounds) -> tuple[int, list[Any]]:
    """The bytes that a worker process hands back for images, and what the service makes of them."""
    about, parts = messages.packed(contents.predicted(form(*[(b"files", file) for file in files]), FORM, bounds, room))
    about = json.loads(json.dumps(about))
    return sum(map(len, parts)), messages.unpacked(about, [memoryview(part) for part in parts]).samples


def room(pixels: int) -> None:
    """As much as you like."""


def noise(width: int, height: int, mode: str, kind: str = "PNG", **settings: Any) -> bytes:
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(width).integers(0, 256, (height, width, bands), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values if bands > 1 else values[:, :, 0], mode).save(file, kind, **settings)
    return file.getvalue()


def test_a_bomb_is_made_small_before_the_service_gets_it() -> None:
    size, (image,) = carried([bomb(SIDE)], bounds_of(Thumbnails(), Settings()))
    assert size == 3 * THUMBNAIL**2  # 75 million bytes, when they were scaled where others are predicted
    assert isinstance(image, Reduced)


def test_many_dots_do_not_grow() -> None:
    bounds = replace(BOUNDS, images=Images(128).configuration())
    size, images = carried([noise(1, 1, "RGB")] * 100, bounds)
    assert size == 300
    assert [image.shape for image in images] == [(1, 1, 3)] * 100


NOISE = [
    noise(7, 5, "RGB"),
    noise(90, 61, "RGB"),
    noise(61, 90, "RGBA"),
    noise(200, 40, "L"),
    noise(64, 64, "RGB", "JPEG"),
    noise(33, 70, "RGB", "WEBP", lossless=True),
]


@pytest.mark.parametrize(
    "images",
    [Images(4), Images(16, resize=20, resample="bicubic"), Images(60, 0.5, 0.25, divisor=255, resample="nearest")],
    ids=repr,
)
def test_what_the_network_sees_is_the_same_to_the_last_bit(images: Images) -> None:
    _, found = carried(NOISE, replace(BOUNDS, images=images.configuration()))
    assert any(isinstance(image, Reduced) for image in found)
    assert images(found).tobytes() == images([decoded(file) for file in NOISE]).tobytes()
    assert [fingerprint(image) for image in found] == [fingerprint(file) for file in NOISE]


def test_an_image_reduced_for_another_network_is_refused() -> None:
    image = Images(4).reduced(np.zeros((9, 9, 3), np.uint8))
    for other in (Images(5), Images(4, resize=5), Images(4, resample="box")):
        with pytest.raises(InputError, match="was reduced with the settings"):
            other([image])


def test_a_backbone_that_may_want_the_whole_gets_the_whole(tmp_path: Path) -> None:
    class Curious(Thumbnails):
        def extract(self, samples: Any) -> np.ndarray:
            return super().extract([sample[::2] for sample in samples])

    assert bounds_of(Thumbnails(), Settings()).images == Images(THUMBNAIL).configuration()
    assert bounds_of(Cached(Thumbnails(), tmp_path), Settings()).images == Images(THUMBNAIL).configuration()
    assert bounds_of(Curious(), Settings()).images is None
    _, (image,) = carried([noise(90, 61, "RGB")], bounds_of(Curious(), Settings()))
    assert image.shape == (61, 90, 3)


def test_what_is_learned_is_what_is_learned_without_a_service(tmp_path: Path) -> None:
    def digest(found: Running) -> str:
        assert found.client.post("/v1/publish", headers=found.admin).status_code == 200
        return str(found.client.get("/v1/model", headers=found.admin).json()["digest"])

    def told(files: list[bytes]) -> list[dict[str, Any]]:
        return [{"image": base64.b64encode(file).decode(), "label": len(file) % 3} for file in files]

    model = ForgettingModel(Thumbnails(), AnalyticClassifier(Identity(), 2**12))
    labels = [len(file) % 3 for file in NOISE]
    model.learn(NOISE, labels)
    create(tmp_path / "s")
    with running(tmp_path / "s", QUICK, Thumbnails(), None) as found:
        answer = found.client.post("/v1/samples", json={"samples": told(NOISE)}, headers=found.admin)
        assert answer.status_code == 201
        assert digest(found) == model.digest()
        again = found.client.post("/v1/forget", json={"samples": told(NOISE[1:2])}, headers=found.admin)
        assert again.status_code == 202  # found again, by its features
        assert found.forget(answer.json()["receipts"][2:3]).status_code == 202
        model.forget(NOISE[1:3], labels[1:3])
        assert digest(found) == model.digest()
    with store.open(tmp_path / "s", backbone=Thumbnails()) as opened:
        opened.forget([decoded(NOISE[3])], labels[3:4])  # learned there, found here
