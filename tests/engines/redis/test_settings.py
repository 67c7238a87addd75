"""From a URL to settings: each part of it, and that the password is never shown."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from dayjob import App, Broker, ConfigError
from dayjob.engines.redis.settings import RedisSettings, read_settings
from dayjob.engines.registry import parse, without_password
from tests.engines.redis.conftest import QUIET
from tests.support.servers.redis import Server


def settings(url: str) -> RedisSettings:
    return read_settings(parse(url))


@pytest.mark.parametrize(
    ("url", "kind", "options"),
    [
        ("redis://", Connection, {"host": "localhost", "port": 6379, "db": 0}),
        ("redis://host", Connection, {"host": "host", "port": 6379, "db": 0}),
        ("redis://host:7000/3", Connection, {"host": "host", "port": 7000, "db": 3}),
        ("redis://[::1]:7000/", Connection, {"host": "::1", "port": 7000, "db": 0}),
        ("redis://:p%40ss@host", Connection, {"host": "host", "password": "p@ss"}),
        ("redis://ada:x%2Fy@host/1", Connection, {"username": "ada", "password": "x/y", "db": 1}),
        ("rediss://host?ca_certs=/etc/ca.pem", SSLConnection, {"ssl_ca_certs": "/etc/ca.pem"}),
        ("rediss://host", SSLConnection, {"ssl_cert_reqs": "required", "ssl_check_hostname": True}),
        ("unix:///run/redis.sock", UnixDomainSocketConnection, {"path": "/run/redis.sock", "db": 0}),
        ("unix:///run/a%20b.sock?db=2", UnixDomainSocketConnection, {"path": "/run/a b.sock", "db": 2}),
    ],
)
def test_a_url_becomes_settings(url: str, kind: type, options: dict[str, Any]) -> None:
    found = settings(url)
    assert found.connection_type is kind
    assert {name: found.options[name] for name in options} == options
    assert isinstance(found.connection(), kind)


def test_all_keys_of_a_namespace_share_its_hash_tag() -> None:
    assert settings("redis://").keys.jobs == b"{dayjob}:jobs"
    keys = settings("redis://?prefix=shop:a").keys
    for key in (*keys.fixed, keys.layout, keys.changes, keys.ends, keys.reply(b"client", 3)):
        assert key.startswith(b"{shop:a}:")


@pytest.mark.parametrize(
    "url", ["redis://host/1?db=2", "unix:///run/redis.sock?ca_certs=x", "redis://?ssl=1"]
)
def test_options_of_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option .*rediss:// ca_certs, unix:// db"):
        settings(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ada:s3cret@host/0?prefix=p", "redis://ada:***@host/0?prefix=p"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("REDISS://:s3:c@ret@host", "REDISS://:***@host"),
        ("redis://:s3/cret@host", "redis://:***@host"),
        ("redis://ada@host", "redis://***@host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("sqlite:///a:b.db", "sqlite:///a:b.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url", ["redis://:s3cret@host/jobs", "redis://:s3cret@host?timeout=x", "redis://:s3cret@host:0x5",
            "redis://:s3cret@host?a=1&a=2", "redis://:s3cret@host#x", "mysql://:s3cret@host",
            "redis://:s3cret@[host"],
)  # fmt: skip
def test_a_refusal_does_not_show_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(url)
    assert "s3cret" not in str(caught.value)


def test_no_repr_shows_the_password() -> None:
    url = "redis://:s3cret@host"
    assert "s3cret" not in repr(App(url))
    assert "s3cret" not in repr(settings(url))
    assert "s3cret" not in repr(parse(url))


async def test_a_closed_broker_does_not_show_the_password() -> None:
    with pytest.raises(Exception, match=r"redis://:\*\*\*@host") as caught:
        await Broker("redis://:s3cret@host").enqueue("q")
    assert "s3cret" not in str(caught.value)


async def test_a_broker_whose_loop_has_ended_can_be_closed(server: Server) -> None:
    """A program may end its event loop before it closes the broker."""
    broker = Broker(server.url, config=QUIET)

    async def use() -> None:
        await broker.open()
        await broker.enqueue("q")
        await broker.claim("q")

    await asyncio.to_thread(asyncio.run, use())
    await broker.close()
    gc.collect()
    async with Broker(server.url, config=QUIET) as other:
        assert (await other.stats("q")).running == 1
