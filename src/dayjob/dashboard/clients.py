"""The client of a request: the peer of the connection, or the client that a named proxy forwards for."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from dayjob.errors import ConfigError

UNKNOWN = "unknown"

_FORWARDING = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")


class Clients:
    """Finds clients. ``X-Forwarded-For`` and ``X-Forwarded-Proto`` count only from a named proxy."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        if isinstance(proxies, str):
            raise ConfigError(f"proxies={proxies!r} is a string: pass a list of addresses")
        self._proxies = [_network(text) for text in proxies]

    def address(self, request: HTTPConnection) -> str:
        """Return the address of the client. A client can't choose it."""
        peer = request.client.host if request.client and request.client.host else UNKNOWN
        if self._is_proxy(peer):
            for text in reversed(",".join(request.headers.getlist("x-forwarded-for")).split(",")):
                address = _address(text.strip())
                if address is None:
                    break
                peer = address
                if not self._is_proxy(address):
                    break
        return peer

    def scheme(self, request: HTTPConnection) -> str:
        """Return the scheme that the client's browser uses."""
        scheme: str = request.scope["scheme"]
        peer = request.client.host if request.client else UNKNOWN
        if self._is_proxy(peer):
            given = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
            return given if given in ("http", "https") else scheme
        return scheme

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)


def is_direct(request: HTTPConnection) -> bool:
    """Return whether a client on this machine sent the request itself, as far as it can be seen.

    A proxy adds headers or, as nginx does without configuration, sends HTTP/1.0. The peer of a Unix socket is
    unknown.
    """
    if request.client is None or not is_loopback(request.client.host):
        return False
    forwarded = any(name.startswith("x-forwarded") or name in _FORWARDING for name in request.headers)
    return not forwarded and request.scope.get("http_version") != "1.0"


def is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return "?"


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(
            f"the proxy {text!r} is not an address: pass one such as 127.0.0.1, or a network (10.0.0.0/8)"
        ) from error


def _address(text: str) -> str | None:
    """Return the address in an entry of ``X-Forwarded-For``, without its port."""
    name = host_name(text if text.count(":") < 2 or text.startswith("[") else f"[{text}]")
    try:
        return str(ip_address(name))
    except ValueError:
        return None
