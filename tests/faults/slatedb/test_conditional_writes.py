"""A store that ignores the condition of a write is refused: two processes would destroy each other's jobs."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest

from dayjob import Broker, ConfigError
from tests.engines.slatedb.s3 import BUCKET, Proxy, Server
from tests.faults.slatedb.conftest import QUIET
from tests.support.bound import BOUND

pytestmark = pytest.mark.slow


def objects(server: Server, prefix: str) -> bytes:
    """Return the listing of the bucket below the prefix."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.request("GET", f"/{BUCKET}?list-type=2&prefix={prefix}")
    listing = connection.getresponse().read()
    connection.close()
    return listing


async def test_a_store_without_conditional_writes_is_refused_before_anything_is_stored(
    url: str, base: str, proxy: Proxy, server: Server
) -> None:
    proxy.dropped_headers = frozenset({"if-none-match"})
    with pytest.raises(ConfigError, match="If-None-Match") as caught:
        await Broker(url, config=QUIET).open()
    assert url in str(caught.value)
    assert b"<Key>" not in objects(server, base.rpartition("/")[2])


async def test_a_known_store_is_not_tried_again(url: str, base: str, proxy: Proxy, server: Server) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    assert b"trial-" not in objects(server, base.rpartition("/")[2])
    paths: list[str] = []
    proxy.failing, proxy.fails = b"503 Slow Down", lambda method, path: bool(paths.append(path))  # type: ignore[func-returns-value]
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.stats("q")).pending == 1
    assert paths
    assert not [path for path in paths if "trial-" in path]


async def test_another_endpoint_of_a_database_is_tried(url: str, proxy: Proxy) -> None:
    """The database was made through an endpoint that honours conditional writes. This one may not."""
    async with Broker(url, config=QUIET):
        pass
    proxy.dropped_headers = frozenset({"if-none-match"})
    with pytest.raises(ConfigError, match="If-None-Match"):
        await Broker(url.replace("127.0.0.1", "localhost"), config=QUIET).open()
