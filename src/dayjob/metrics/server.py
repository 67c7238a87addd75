"""``/metrics`` and ``/healthz`` over HTTP, from a thread with its own event loop and broker.

A handler that blocks the worker's loop therefore does not block a probe, and the probe reports it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET, AF_INET6
from threading import Thread
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from dayjob.broker import Broker
from dayjob.errors import ConfigError, DayjobError
from dayjob.inspect import Health, Inspector
from dayjob.metrics.exposition import Exposition
from dayjob.runtime.bridge import Bridge, Work

_log = logging.getLogger("dayjob.metrics")

TIMEOUT = 5.0
"""Seconds for one request to the store."""

REQUEST_TIMEOUT = 10.0
"""Seconds that a client may take to send its request."""

Answer = TypeVar("Answer")


class MetricsServer:
    """Serves from ``start`` to ``stop``. ``alive`` returns the problem of the worker, or None.

    A request must be for an IP address, ``localhost``, a name without dots, or one of ``hosts`` (``"*"``:
    any). A web page whose own name leads to this machine (DNS rebinding) can't read the metrics.
    """

    def __init__(
        self,
        make_broker: Callable[[], Broker],
        port: int,
        *,
        host: str = "127.0.0.1",
        hosts: Collection[str] = (),
        registry: CollectorRegistry | None = None,
        alive: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._make_broker = make_broker
        self._registry = registry
        self._alive = alive
        self._hosts = {host, *hosts}
        self._bridge = Bridge("dayjob-metrics-loop")
        self._broker: Broker | None = None
        try:
            self._http = _http_server(host)((host, port), _handler(self))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"metrics can't be served on {host}:{port}: {error}") from error
        self._http.daemon_threads = True
        self._thread = Thread(target=self._http.serve_forever, name="dayjob-metrics", daemon=True)

    @property
    def port(self) -> int:
        port: int = self._http.server_address[1]
        return port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        if self._broker is not None:
            self._run(self._broker.close)
        self._bridge.stop(TIMEOUT)

    def _run(self, work: Work[Answer]) -> Answer:
        return self._bridge.run(work, wait=lambda future: future.result(TIMEOUT))

    async def _inspector(self) -> Inspector:
        if self._broker is None:
            self._broker = self._make_broker()  # Opened below, so that concurrent requests share it.
        return Inspector(await self._broker.open())

    def accepts(self, host: str | None) -> bool:
        if host is None or "*" in self._hosts:
            return True
        name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        with suppress(ValueError):
            return bool(ip_address(name))
        return "." not in name or name in self._hosts

    # Pages.

    def metrics(self) -> tuple[int, str, bytes]:
        async def render() -> bytes:
            return await Exposition(await self._inspector(), self._registry).render()

        try:
            return 200, Exposition.content_type, self._run(render)
        except (DayjobError, TimeoutError) as error:
            return 503, "text/plain", f"the store is unavailable: {error}\n".encode()

    def health(self) -> tuple[int, str, bytes]:
        async def check() -> Health:
            return await (await self._inspector()).health()

        try:
            health = self._run(check)
        except (DayjobError, TimeoutError) as error:
            health = Health(False, f"the store is unavailable: {error}")
        problem = self._alive()
        if health.ok and problem is not None:
            health = Health(False, problem, health.round_trip_seconds)
        return 200 if health.ok else 503, "application/json", msgspec.json.encode(health)


def _http_server(host: str) -> type[ThreadingHTTPServer]:
    class HttpServer(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log the error. A client that disconnects, as a probe at its timeout does, is none."""
            error = sys.exception()
            if isinstance(error, ConnectionError):
                _log.debug("%s: %s", client_address, error)
            else:
                _log.error("a request of %s failed", client_address, exc_info=error)

    return HttpServer


def _refused() -> tuple[int, str, bytes]:
    return 403, "text/plain", b"this host name is not allowed: add it with --metrics-host\n"


def _handler(server: MetricsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT

        def do_GET(self) -> None:
            page = {"/metrics": server.metrics, "/healthz": server.health}.get(self.path.partition("?")[0])
            if not server.accepts(self.headers.get("Host")):
                page = _refused
            code, kind, body = page() if page is not None else (404, "text/plain", b"not found\n")
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            _log.debug(format, *args)

    return Handler
