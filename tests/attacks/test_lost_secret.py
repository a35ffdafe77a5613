"""The promise: a request with an idempotency key happens once, also if the service's secret is damaged or lost.

The ledger knows such requests by digests under this secret. With another one, a request that is sent again is a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neverseen.errors import NeverseenError
from neverseen.service import create_app
from tests.services import BACKBONE, KEYS, QUICK, bearer, running, samples, token

BODY = {"samples": samples([0], ids=False)}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda secret: secret.write_text(""),
    "cut off": lambda secret: secret.write_text(secret.read_text()[:62]),
    "one digit short": lambda secret: secret.write_text(secret.read_text()[:63]),
    "too long": lambda secret: secret.write_text(secret.read_text() + "ab"),
    "not hex": lambda secret: secret.write_bytes(b"\xff" * 64),
    "removed": Path.unlink,
    "a folder": lambda secret: secret.rename(secret.with_name("old")).with_name("secret").mkdir(),
    "a link that leads nowhere": lambda secret: (
        secret.rename(secret.with_name("old")).with_name("secret").symlink_to("no")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_service_does_not_start_without_the_secret_of_its_requests(tmp_path: Path, damage: str) -> None:
    folder, secret = tmp_path / "s", tmp_path / "s" / "service" / "secret"
    with running(folder, QUICK) as service:
        headers = bearer(token(folder, "ada", "learn")) | {"Idempotency-Key": "once"}
        assert service.client.post("/v1/samples", json=BODY, headers=headers).status_code == 201
    kept = secret.read_text()
    DAMAGES[damage](secret)
    service = create_app(folder, QUICK, backbone=BACKBONE, keys=KEYS, hardware="numpy").state.service
    with pytest.raises(NeverseenError, match=r"service/secret .*copy") as caught:
        service.start()
    assert len(str(caught.value).splitlines()) == 1
    if secret.is_dir():
        secret.rmdir()
    secret.unlink(missing_ok=True)
    secret.write_text(kept + "\n")  # put back by hand
    secret.chmod(0o600)
    with running(folder, QUICK) as again:
        answer = again.client.post("/v1/samples", json=BODY, headers=headers)
        assert answer.status_code == 201
        assert again.service.opened().statistics().total == 1


def test_a_new_secret_is_made_where_no_request_needs_the_old_one(tmp_path: Path) -> None:
    with running(tmp_path / "s", QUICK) as service:
        assert service.client.post("/v1/samples", json=BODY, headers=service.admin).status_code == 201  # without a key
    secret = tmp_path / "s" / "service" / "secret"
    secret.unlink()
    with running(tmp_path / "s", QUICK):
        assert len(bytes.fromhex(secret.read_text())) == 32
        assert secret.stat().st_mode & 0o777 == 0o600
