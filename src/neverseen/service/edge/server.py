"""`serve`: runs the service as a process, from start to stop."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import gc
import math
import os
import signal
import socket
import ssl
import sys
import termios
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from neverseen.backbones import Backbone
from neverseen.errors import ConfigurationError
from neverseen.proof.keys import Keyring
from neverseen.service.edge.app import create_app
from neverseen.service.edge.connections import Connection, Connections, allowed
from neverseen.service.edge.protocol import LimitedProtocol, plainly
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import Settings
from neverseen.service.reception.requests import is_sending
from neverseen.service.sharing.limits import origin

_SWITCH = 0.00002  # seconds that a busy thread keeps the interpreter from those who wait for it: see `serve`
_PR_SET_TIMERSLACK = 29
_PAUSE = 0.1  # seconds until the next attempt to accept a connection, after one that failed
_UNREAD = 2**18  # bytes of a request that the system takes before they are read here; it would take 32 MiB
_UNSENT = 2**17  # bytes that the system takes of an answer and has not sent yet
_FLUSH = 5.0  # seconds that clients have, at a stop, to read the rest of their answers
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")  # of OpenSSL: a certificate, and another one's key
_UNSENT_PART = 8  # of the bytes that may wait, unsent answers may take one part in so many
_FULL = Refusal(
    "busy", "all connections are in use (max_connections, connections_per_address): try again in a moment", wait=1
)


class Server(uvicorn.Server):
    """A server with a limit on connections, which does not wait for clients to close their side at the end.

    `ready` is called when it accepts connections, and `stopping` when it no longer does.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        ready: Callable[[], None] | None = None,
        stopping: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._connections, self._ready, self._stopping = connections, ready, stopping
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like the base class, but accept connections here, where they are counted."""
        self._listeners = sockets or bound(self.config.host, self.config.port)
        for listener in self._listeners:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)  # so has what is accepted there
            listener.listen(self.config.backlog)
        await super().startup(sockets=[])
        for listener in self._listeners:
            self._begin(self._accept(listener))
        if self.started and self._ready is not None:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Tidy connections about once a second."""
        if counter % 10 == 0:
            self._connections.tidy()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as the base does, but cut connections on which nothing is left to be said.

        After `timeout_graceful_shutdown`, the base would cancel all requests, those too whose answers are being sent.
        """
        for task in self._tasks:
            task.cancel()
        patience, self.config.timeout_graceful_shutdown = self.config.timeout_graceful_shutdown, None
        cutting = asyncio.ensure_future(self._cut(math.inf if patience is None else patience))
        if self._stopping is not None:
            self._stopping()
        try:
            await super().shutdown(self._listeners)
        finally:
            cutting.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # what was cut to make room ends meanwhile
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError:  # the client has gone, or the system has no room
                await asyncio.sleep(_PAUSE)
                continue
            connection = self._connections.admit(origin(str(peer[0])), partial(_hang_up, accepted))
            if connection is not None:
                self._begin(self._connect(accepted, connection))
                continue
            with accepted, suppress(OSError):
                if self.config.ssl is None:
                    accepted.send(plainly(_FULL))

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            made = LimitedProtocol(config, self.server_state, self.lifespan.state, loop)
            made.connection = connection
            return made

        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # the system would take megabytes, and whether they go is not seen
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
            await loop.connect_accepted_socket(protocol, accepted, ssl=config.ssl)
        except OSError:  # no TLS was agreed on, or the client has gone
            connection.ended()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cut(self, patience: float) -> None:
        """Cut connections once all requests are answered, or after so many seconds have all answered now.

        Then clients have a while to take their answers.
        """
        clock, quiet = asyncio.get_running_loop().time, 0
        end = clock() + patience
        while quiet < 3 and clock() < end:  # an answer may be on its way out
            await asyncio.sleep(0.1)
            quiet = 0 if self.server_state.tasks else quiet + 1
        end = clock() + _FLUSH
        while True:
            late = clock() - end
            for connection in list(self.server_state.connections):
                transport = getattr(connection, "transport", None)
                if transport is not None and (late >= 0 or _is_over(connection)):
                    transport.abort()
            for task in self.server_state.tasks:
                if late > 1 or not is_sending(task):  # one that is sending ends with its connection
                    task.cancel()
            await asyncio.sleep(0.1)


def connections_of(settings: Settings) -> Connections:
    """Return the connections of a service, limited by its settings and by the number of files it may open."""
    most = allowed(settings.max_connections)
    unsent = settings.max_waiting_bytes // _UNSENT_PART
    return Connections(most, settings.connections_per_address, settings.idle_timeout, most_unsent=unsent)


def _is_over(connection: Any) -> bool:
    """Return whether all requests of a connection are answered, and its client has received everything.

    False if the system does not tell.

    The system is asked too: with TLS there are buffers of unknown size in between, which are empty only if the system
    has taken everything.
    """
    transport = connection.transport
    if connection.answering or transport.get_write_buffer_size():
        return False
    try:
        left = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (AttributeError, OSError, ValueError):
        return False
    return not any(left)


def _hang_up(accepted: socket.socket) -> None:
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


def serve(
    folder: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    backbone: Backbone | None = None,
    keys: Keyring | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    hardware: str = "auto",
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a store until the process is told to stop (SIGTERM or SIGINT).

    Then it accepts no new connections, finishes queued requests within ``stop_timeout``, and closes the store.

    Parameters
    ----------
    settings : Settings, optional
        By default those in the folder.
    backbone, keys
        As for `create_app`.
    host, port
        Where to listen.
    tls_cert, tls_key : Path, optional
        Files of a certificate (with its chain) and its key, in PEM: both or none.
    ready : callable, optional
        Called with the service's address once it accepts connections.
    """
    # A prediction takes the interpreter a hundred times, and each time waits this long for an event loop that is busy.
    sys.setswitchinterval(_SWITCH)
    wake_punctually()
    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("TLS needs both a certificate and its key")
    if tls_cert is not None and tls_key is not None:
        require_tls(tls_cert, tls_key)
    app = create_app(folder, settings, backbone=backbone, keys=keys, hardware=hardware)
    service = app.state.service
    chosen = service.settings  # fitted to the machine
    tls: dict[str, Any] = {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key} if tls_cert is not None else {}
    config = uvicorn.Config(
        app.state.front,
        host=host,
        port=port,
        access_log=False,
        proxy_headers=False,  # the client is whoever connects
        log_config=None,  # its errors go where ours go
        log_level="error",  # lower levels print a line for each client that does not speak HTTP
        server_header=False,
        date_header=True,
        lifespan="on",
        ws="none",
        http=LimitedProtocol,
        backlog=2048,
        timeout_keep_alive=max(1, int(chosen.idle_timeout)),
        timeout_graceful_shutdown=max(1, int(chosen.stop_timeout)),
        **tls,
    )
    sockets = bound(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"{'http' if tls_cert is None else 'https'}://{shown}:{sockets[0].getsockname()[1]}/"
    told = partial(ready, address) if ready is not None else None
    server = Server(config, connections_of(chosen), told, service.expect_stop)
    if threading.current_thread() is threading.main_thread():
        # The server has handlers of its own while it runs. These are for signals that come while the store is opened.
        # The server raises the signal that stopped it once more, when all is done: then there is nothing left to do.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    try:
        service.start()  # what is wrong with the store is told in a sentence, before there is a server
        if not server.should_exit:
            service.readers.prepare_all()
            gc.collect()
            gc.freeze()  # each search for cycles in all that was imported would hold everybody up for 0.2 s
            with suppress(KeyboardInterrupt):
                server.run(sockets)
    except OSError as error:
        if not server.started:  # another program began to listen after the port was bound here
            raise _unusable(host, port, error) from None
        raise
    finally:
        for each in sockets:
            each.close()
        if service.started:
            service.stop()
    if not server.started and not server.should_exit:
        raise ConfigurationError(f"the service did not start on {host}:{port}: see the lines above")


def wake_punctually() -> None:
    """Have the system end short waits of this thread, and of those that it starts, in time.

    Linux lets a wait take 50 microseconds longer, so that it wakes less often. A prediction that waits for the
    interpreter would wait several times as long as it has to.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def require_tls(cert: Path, key: Path) -> None:
    """Raise, with the remedy, if these files cannot be used for TLS."""
    for path in (cert, key):
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    context, asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str]()

    def passphrase() -> str:
        asked.append("")  # or it would be asked for on the terminal
        return ""

    try:
        context.load_verify_locations(cert)
    except ssl.SSLError:
        words = "give a file with the certificate of the server, and then those of its chain, each from BEGIN to END"
        raise ConfigurationError(f"{cert} is not a certificate in PEM: {words}", arguments=("tls_cert",)) from None
    try:
        context.load_cert_chain(cert, key, passphrase)
    except ssl.SSLError as error:
        words = (
            f"is not a private key in PEM, or cannot be used with {cert} ({error.reason or error}): give the file with "
        )
        words += "its private key"
        if asked:
            words = "is protected by a passphrase: write it without one (openssl pkey), readable by this user only"
        elif error.reason in _MISMATCHES:
            words = f"is not the key of {cert}: give the two files that belong together, the server's certificate first"
        raise ConfigurationError(f"{key} {words}", arguments=("tls_key",)) from None


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a port on all addresses of a host; raise `ConfigurationError` if there are none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        words = f"{host} is not an address of this machine: {error.strerror}"
        raise ConfigurationError(words, arguments=("host",)) from None
    sockets: list[socket.socket] = []
    missing = OSError(errno.EADDRNOTAVAIL, "it is not an address of this machine")
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            made = socket.socket(family, kind, protocol)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind(address)
            except OSError:
                made.close()
                raise
            sockets.append(made)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # localhost, on a machine without IPv6
                continue
            for each in sockets:
                each.close()
            raise _unusable(host, port, error) from None
    if not sockets:
        raise _unusable(host, port, missing)
    return sockets


def _unusable(host: str, port: int, error: OSError) -> ConfigurationError:
    why = str(error.strerror)
    if error.errno == errno.EADDRINUSE:
        why = "it is in use by another program. End that one, or choose another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "this user may not use it. Choose a port from 1024 on"
    return ConfigurationError(f"port {port} of {host} cannot be used: {why}", arguments=("port",))
