"""A PostgreSQL server for the tests: one that is given, or one of our own in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

GIVEN = "NEVERSEEN_TEST_POSTGRES"
"""URL of a database on a server that is running already; the tests make and drop schemas in it."""


class Server(NamedTuple):
    """A server that runs."""

    url: str  # of a database
    folder: Path | None  # where it keeps its data under "data", if it is our own


class NoServerError(Exception):
    """There is no server, and the message says why."""


@contextmanager
def server() -> Iterator[Server]:
    """Give a server, and stop it afterwards if it was started here.

    PostgreSQL does not run as root, so for root it runs as nobody. (pgserver itself would add a user to the machine; its
    programs alone are used here, on a socket in a folder of their own.)
    """
    if given := os.environ.get(GIVEN):
        url = sa.make_url(given).set(drivername="postgresql+psycopg")
        yield Server(url.render_as_string(hide_password=False), None)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from pgserver._commands import POSTGRES_BIN_PATH
        except ImportError:
            raise NoServerError(f"no PostgreSQL: pip install pgserver psycopg[binary], or set {GIVEN}") from None
    programs = Path(POSTGRES_BIN_PATH)
    folder = Path(tempfile.mkdtemp(prefix="neverseen-pg-", dir="/tmp"))
    settings: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}}
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            settings |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        data, sockets = str(folder / "data"), f"-h '' -k {folder}"
        _run(
            [programs / "initdb", "-D", data, "--auth=trust", "--encoding=utf8", "-U", "postgres", "--no-sync"],
            settings,
        )
        control = [programs / "pg_ctl", "-D", data, "-w", "-t", "30"]
        _run([*control, "-l", folder / "log", "-o", sockets, "start"], settings)
        try:
            yield Server(f"postgresql+psycopg://postgres@/postgres?host={folder}", folder)
        finally:
            _run([*control, "-m", "immediate", "stop"], settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[Any], settings: dict[str, Any]) -> None:
    try:
        subprocess.run(
            command, check=True, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **settings
        )
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        words = str(getattr(error, "stderr", "") or error).strip()
        raise NoServerError(f"PostgreSQL does not start: {Path(command[0]).name}: {words}") from None


@contextmanager
def database(url: str, name: str) -> Iterator[str]:
    """Give the URL of an empty place of this name, and drop it afterwards."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
            connection.exec_driver_sql(f'CREATE SCHEMA "{name}"')
        place = sa.make_url(url).update_query_dict({"options": f"-csearch_path={name}"})
        yield place.render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.exec_driver_sql("SET lock_timeout = '10s'")
            connection.exec_driver_sql(f'DROP SCHEMA "{name}" CASCADE')
    finally:
        engine.dispose()
