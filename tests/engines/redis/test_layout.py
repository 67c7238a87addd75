"""The layout is as documented: fixed keys, all declared; bounded scripts; little memory per job."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from dayjob import Broker, ConfigError, JobState, Limit, NewJob
from dayjob.engines.base import DocumentWrite
from dayjob.engines.redis import diagnosis, keys, migration
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.diagnosis import settings_risks
from dayjob.engines.redis.migration import server_version
from tests.engines.redis.conftest import QUIET
from tests.support.bound import BOUND
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client

LUA = Path(keys.__file__).parent / "lua"
SHARED = sorted((LUA / "shared").glob("*.lua"))
VERBS = sorted(LUA.glob("*.lua"))

BOUNDED = {
    "DEL", "EXISTS", "GET", "HDEL", "HEXISTS", "HGET", "HINCRBY", "HMGET", "HSET", "HSETNX", "HSTRLEN",
    "PEXPIRE", "PUBLISH", "PUBSUB", "RENAME", "RPUSH", "SADD", "SET", "SISMEMBER", "SREM", "TIME", "ZADD",
    "ZCARD", "ZRANDMEMBER", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREM", "ZSCAN", "ZSCORE",
}  # fmt: skip
"""Commands whose work is bounded by their arguments; ranges also need a LIMIT, and scans a COUNT."""


def test_the_scripts_name_their_keys_in_the_order_of_the_call() -> None:
    source = (LUA / "shared" / "1_keys.lua").read_text()
    named: dict[int, str] = {}
    for names, values in re.findall(r"^local ([A-Z_, ]+) = (KEYS.*)$", source, re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"KEYS\[(\d+)\]", values)]
        named |= dict(zip(numbers, names.split(", "), strict=True))
    assert [named[number] for number in sorted(named)] == [name.upper() for name in (*keys.FIXED, "reply")]


def test_every_key_is_documented() -> None:
    for name in (*keys.FIXED, *keys.PERMANENT, "handoffs:…", "reply:…"):
        assert f"\n``{name}``" in (keys.__doc__ or "")


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_script_has_a_header_with_its_purpose_and_arguments(path: Path) -> None:
    head = path.read_text().partition("\nlocal")[0].partition("\nfor")[0]
    assert head.startswith("-- ")
    keys_ = "-- KEYS: " if path.stem == "migrate" else "-- KEYS and the first ARGV: shared/1_keys.lua. "
    assert re.search(f"^{re.escape(keys_)}.*ARGV: ", head, re.MULTILINE)


@pytest.mark.parametrize("path", [*SHARED, *VERBS], ids=lambda path: path.stem)
def test_a_script_touches_declared_keys_only_and_does_bounded_work(path: Path) -> None:
    declared = {name.upper() for name in (*keys.FIXED, "reply", "layout")} | {"key", "index", "KEYS[index]"}
    declared.add("list")  # the list of a client that waits: its name has the same hash tag
    for command, key, rest in re.findall(
        r"redis\.p?call\('(\w+)'(?:, ([\w\[\].]+))?([^\n]*)", path.read_text()
    ):
        assert command in BOUNDED
        channel = command == "PUBLISH" and key in ("ARGV[2]", "ARGV[3]", "waiting.channel")
        assert command in ("TIME", "PUBSUB") or key in declared or channel
        assert "LIMIT" in rest or not command.startswith("ZRANGE")
        assert "COUNT" in rest or command != "ZSCAN"
    for command, key in re.findall(r"\bsend\('(\w+)', (\w+)", path.read_text()):
        assert command in BOUNDED
        assert key in declared


def test_only_a_claim_and_the_migration_read_payloads() -> None:
    """The transitions of a thousand large jobs would otherwise block the server for seconds."""
    reads = re.compile(r"'HM?GET', (?:PAYLOADS|RESULTS)")
    assert {path.stem for path in [*SHARED, *VERBS] if reads.search(path.read_text())} == {"7_claim"}


async def test_a_reply_is_kept_longer_than_its_write_is_repeated(server: Server) -> None:
    async with Broker(f"{server.url}?timeout=3600", config=QUIET) as broker:
        await broker.enqueue("q")
    with client(server.url) as connection:
        (reply,) = connection.scan_iter("*:reply:*")
        assert connection.ttl(reply) > 3600


async def test_a_pending_job_takes_few_bytes(server: Server, broker: Broker) -> None:
    with client(server.url) as connection:
        await broker.enqueue("default", b"[]", task="tasks.noop")
        before = connection.info("memory")["used_memory_dataset"]
        for _ in range(4):
            await broker.enqueue_many([NewJob("default", b"[]", task="tasks.noop") for _ in range(5000)])
        after = connection.info("memory")["used_memory_dataset"]
    assert (after - before) / 20_000 <= 600


async def test_an_older_server_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "OLDEST", (99, 0))
    with pytest.raises(ConfigError, match=r"version \d+\.\d+\.\d+: dayjob needs Redis 6\.2 or later"):
        await Broker(server.url, config=QUIET).open()


def test_the_version_is_read_from_the_server_info() -> None:
    assert server_version(b"# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n") == (6, 2, 14)
    assert server_version(b"# Server\r\nserver_name:valkey\r\nredis_version:7.2.4\r\n") == (7, 2, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}, ["set appendonly yes"]),
        ({"save": "3600 1", "appendonly": "no", "maxmemory-policy": "allkeys-lru"}, ["allkeys-lru"]),
        (
            {"save": "", "appendonly": "no", "maxmemory-policy": "volatile-ttl"},
            ["appendonly", "volatile-ttl"],
        ),
        ({"save": "", "appendonly": "yes", "maxmemory-policy": "noeviction"}, []),
        ({"save": "3600 1", "appendonly": "no"}, []),
        ({}, []),
    ],
)
def test_settings_that_may_lose_jobs_are_found(settings: dict[str, str], words: list[str]) -> None:
    risks = settings_risks(settings)
    assert len(risks) == len(words)
    for risk, word in zip(risks, words, strict=True):
        assert word in risk


async def test_a_server_that_hides_its_settings_is_accepted(server: Server) -> None:
    with client(server.url) as connection:
        connection.config_set("maxmemory-policy", "allkeys-lru")
        connection.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all", "-config")
    async with Broker(server.url, config=QUIET) as broker:
        allowed = broker._engine._client  # type: ignore[attr-defined]
        assert len(await diagnosis.risks(allowed)) == 1
        hidden = Client(allowed.settings)
        hidden.settings.options["username"], hidden.settings.options["password"] = "app", "x"
        assert await diagnosis.risks(hidden) == []
        await hidden.close()


async def test_risks_are_logged_when_a_server_is_first_opened(
    server: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with client(server.url) as connection:
        connection.config_set("maxmemory-policy", "allkeys-lru")
    for _ in range(2):
        async with Broker(proxy.url("dayjob"), config=QUIET) as broker:
            await broker.stats("q")
    assert caplog.text.count("set it to noeviction") == 1


async def test_the_documented_rights_suffice_for_all_verbs(server: Server, proxy: Proxy) -> None:
    text = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    commands = re.search(r"and the commands\s+`([A-Z\s]+)`", text)
    assert commands is not None
    with client(server.url) as connection:
        rights = [f"+{command.lower()}" for command in commands[1].split()]
        connection.execute_command(
            "ACL",
            "SETUSER",
            "app",
            "on",
            ">word",
            "~{dayjob}:*",
            "resetchannels",
            "&{dayjob}:*",
            "-@all",
            *rights,
        )
    url = proxy.url("dayjob").replace("127.0.0.1", "app:word@127.0.0.1")
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many(
            [NewJob("q", dedup_key="k", kv={b"k": b"v"}), NewJob("q"), NewJob("r", delay=1)]
        )
        await broker.enqueue("q", expires=1e-6)
        await broker.promote()
        first, second = await broker.claim("q", limit=2)
        await broker.renew(first)
        await broker.cancel(first.id)
        await broker.check_cancels()
        assert first.cancel_requested
        await broker.ack(first, enqueue=[NewJob("q")], kv={b"k": b"w"})
        await broker.dead_letter(second, "x")
        assert [job.id for job in await broker.latest_dead()] == [second.id]
        await broker.requeue(second.id)
        await broker.reschedule(second.id, priority=1)
        await broker.pause("q")
        await broker.resume("q")
        for state in JobState:
            await broker.jobs(state=state)
            await broker.jobs(state=state, newest_first=True)
        await broker.purge_dead()
        await broker.reap()
        await broker.sweep()
        await broker.kv_delete(b"k")
        assert await broker.next_due() is not None
        engine = broker._engine
        for expected, value in ((None, b"1"), (b"1", b"2"), (b"2", None)):
            assert await engine.compare_and_set([DocumentWrite("k", "a", expected, value)], announce=True)
            await engine.documents("k")
        waiting = asyncio.create_task(broker.claim("h", wait=BOUND))
        while "h" not in broker._session.waiting_claims.by_queue:
            await asyncio.wait({waiting}, timeout=0.01)
        async with Broker(url, config=QUIET) as other:
            await other.enqueue("h")
            assert (await other.stats("h")).running == 1, "the job was not handed off"
        assert len(await waiting) == 1
        await broker.set_limit("api", Limit(running=1, rate=1, per=60))
        await broker.enqueue_many([NewJob("limited", limits=["api"])] * 2)
        (running,) = await broker.claim("limited", limit=2)
        await broker.ack(running)
        await broker.limits()
        await engine.bucket_due("api")
        await engine.reclaim(["w"], 10)
        await engine.position(second.key, 10)
        with client(server.url) as connection:
            assert connection.acl_log() == []
