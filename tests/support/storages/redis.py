"""The Redis engine under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from dayjob.engines.redis.keys import Keys
from tests.support.servers.redis import client, prefix_of, url_of
from tests.support.servers.redis_audit import DAMAGED, audit
from tests.support.storages.base import EngineUnderTest


def _redis_damage(damage: Callable[[bytes], bytes]) -> Callable[[Path, str], None]:
    def harm(directory: Path, id: str) -> None:
        jobs = Keys(prefix_of(directory)).jobs
        with client(url_of(directory)) as connection:
            record = connection.hget(jobs, UUID(id).bytes)
            assert record is not None
            DAMAGED.add(UUID(id).bytes)
            connection.hset(jobs, UUID(id).bytes, damage(record))

    return harm


REDIS_DAMAGE = {
    "nothing": _redis_damage(lambda record: b""),
    "garbage": _redis_damage(lambda record: b"\xc1\xff\x00" * 99),
    "half a head": _redis_damage(lambda record: record[:40]),
    "another format": _redis_damage(lambda record: b"\x09" + record[1:]),
    "no such state": _redis_damage(lambda record: record[:1] + b"\x07" + record[2:]),
    "sizes beyond the end": _redis_damage(lambda record: record[:95] + b"\xff\xff" + record[97:]),
    "half the facts": _redis_damage(lambda record: record[:-9]),
    "text for facts": _redis_damage(lambda record: record[:-8] + b"text"),
    "a task that is no text": _redis_damage(lambda record: record.replace(b"\xa1t", b"\xa1\xff")),
    "a missing payload": _redis_damage(lambda record: record[:113] + b"\0\0\0\7" + record[117:]),
    "a tenant that is a number": _redis_damage(lambda record: record.replace(b"\xa4acme", b"\xce\0\0\0\5")),
}


def _redis_option(text: str) -> Callable[[Path], str]:
    return lambda directory: f"{url_of(directory)}&{text}"


def _redis_from_the_future(directory: Path) -> str:
    with client(url_of(directory)) as connection:
        connection.set(Keys(prefix_of(directory)).layout, 9999)
    return url_of(directory)


REDIS_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "layout from the future": _redis_from_the_future,
    "unknown option": _redis_option("colour=blue"),
    "bad timeout": _redis_option("timeout=long"),
    "no timeout": _redis_option("timeout=0"),
    "braces in the prefix": lambda directory: "redis://localhost/0?prefix={a}",
    "no prefix": lambda directory: "redis://localhost/0?prefix=",
    "a database by name": lambda directory: "redis://localhost/jobs",
    "bad port": lambda directory: "redis://localhost:99999/0",
    "no socket": lambda directory: "unix://?db=0",
}


def _redis_snapshot(directory: Path) -> Callable[[], None]:
    pattern = Keys(prefix_of(directory)).named("*")
    with client(url_of(directory)) as connection:
        kept = [key for key in connection.scan_iter(pattern) if b":reply:" not in key]
        dumps = {key: connection.dump(key) for key in kept}

    def restore() -> None:
        with client(url_of(directory)) as connection:
            connection.delete(*connection.scan_iter(pattern))
            for key, dump in dumps.items():
                connection.restore(key, 0, dump)

    return restore


REDIS = EngineUnderTest("redis", url_of, REDIS_DAMAGE, REDIS_UNUSABLE, snapshot=_redis_snapshot, after=audit)
