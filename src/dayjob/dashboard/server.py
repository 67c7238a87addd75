"""Serve a dashboard. The socket is bound first, so that a wrong address fails at once."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from dayjob.app import App
from dayjob.dashboard.app import Dashboard
from dayjob.dashboard.clients import is_loopback
from dayjob.errors import ConfigError
from dayjob.runtime.clock import yield_to_loop

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHUTDOWN_TIMEOUT = 3.0


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise ``ConfigError`` with the reason and the remedy."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise ConfigError(_reason(host, port, error)) from error


def _reason(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host {host!r} cannot be resolved: pass an address of this machine, such as 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: pass another port, or stop the process that uses it"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more privileges: pass one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: pass one that is, such as 127.0.0.1"
    return f"can't listen on {host}, port {port}: {error.strerror or error}"


def binds_loopback(host: str) -> bool:
    """Return whether only clients on this machine can reach the address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(host) and all(is_loopback(str(address[0])) for *_, address in found)


class Server(uvicorn.Server):
    """uvicorn, except that a shutdown ends the live streams instead of waiting for them."""

    def __init__(self, dashboard: Dashboard, root_path: str = "") -> None:
        super().__init__(
            uvicorn.Config(
                self._respond,
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="on",
                root_path=root_path,
                server_header=False,
                proxy_headers=False,  # ``Clients`` trusts named proxies only
                timeout_graceful_shutdown=int(_SHUTDOWN_TIMEOUT),
            )
        )
        self._dashboard = dashboard

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless uvicorn refuses its body: then it ends the connection in this turn."""
        await yield_to_loop()
        await self._dashboard(scope, receive, send)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down gracefully on a signal. uvicorn would raise the signal again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


class InThread:
    """A dashboard in a thread with its own event loop: it answers while the app's loop is blocked."""

    def __init__(self, app: App, dashboard: Dashboard, listening: socket.socket) -> None:
        self._app = app
        self._server = Server(dashboard)
        self._listening = listening
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="dayjob-dashboard", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_SHUTDOWN_TIMEOUT)

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            await self._app.close()
