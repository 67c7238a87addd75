"""What ``dayjob doctor`` says of a server: its version, what a restart keeps, and how full it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dayjob.engines.base import Diagnostic
from dayjob.engines.redis.keys import LAYOUT
from dayjob.engines.redis.link import Link
from dayjob.engines.redis.opening import dangers

FULL = 0.9
_MEBIBYTE = 2**20


async def diagnose(link: Link) -> list[Diagnostic]:
    (info,) = await link.ask(("INFO",))
    facts = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return [
        Diagnostic("layout", "ok", f"version {LAYOUT} under {link.place.shown}"),
        *_facts(facts, await dangers(link)),
    ]


def _facts(facts: Mapping[str, str], found: list[str]) -> Iterator[Diagnostic]:
    """What the server tells of itself."""
    yield Diagnostic("version", "ok", f"Redis {facts.get('redis_version', '(unknown)')}")
    if facts.get("role") == "slave":
        yield Diagnostic(
            "role", "error", "this server is a replica and takes no jobs", "connect to the primary"
        )
    for danger in found:
        text, _, remedy = danger.partition(": ")
        yield Diagnostic("durability", "error", text, remedy)
    if not found:
        if facts.get("aof_enabled") == "1":
            yield Diagnostic("durability", "ok", "every change goes to the append-only file")
        else:
            yield Diagnostic(
                "durability", "warning", "a crash loses what came after the last snapshot",
                "set appendonly yes",
            )  # fmt: skip
    used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    if most and used > FULL * most:
        yield Diagnostic(
            "memory", "warning", f"{used / _MEBIBYTE:,.0f} of {most / _MEBIBYTE:,.0f} MiB are used",
            "a full server refuses new jobs: raise maxmemory, or let workers catch up",
        )  # fmt: skip
    else:
        yield Diagnostic("memory", "ok", f"{used / _MEBIBYTE:,.0f} MiB are used")
