"""The diagnostics of ``dayjob doctor``: version, role, durability and memory of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dayjob.engines.base import Diagnostic
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.keys import LAYOUT
from dayjob.errors import ConfigError, EngineUnavailable

FULL = 0.9
_MEBIBYTE = 2**20


async def diagnose(client: Client) -> list[Diagnostic]:
    (info,) = await client.execute(("INFO",))
    facts = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return [
        Diagnostic("layout", "ok", f"version {LAYOUT} under {client.settings.shown}"),
        *_diagnostics(facts, await risks(client)),
    ]


async def risks(client: Client) -> list[str]:
    """Return the settings of the server that may lose jobs; none if the server hides its settings."""
    names = ("save", "appendonly", "maxmemory-policy")
    try:
        replies = await client.execute(*(("CONFIG", "GET", name) for name in names))
    except (ConfigError, EngineUnavailable):
        return []
    return settings_risks({reply[0].decode(): reply[1].decode() for reply in replies if reply})


def settings_risks(settings: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    if settings.get("save") == "" and settings.get("appendonly") == "no":
        found.append(
            'a restart of the server loses every job (save "" and appendonly no): set appendonly yes'
        )
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        found.append(f"a full server may drop all jobs (maxmemory-policy {policy}): set it to noeviction")
    return found


def _diagnostics(facts: Mapping[str, str], found: list[str]) -> Iterator[Diagnostic]:
    """Yield the findings about the server's ``INFO`` and the risks in its settings."""
    yield Diagnostic("version", "ok", f"Redis {facts.get('redis_version', '(unknown)')}")
    if facts.get("role") == "slave":
        yield Diagnostic(
            "role", "error", "this server is a replica and accepts no jobs", "connect to the primary"
        )
    for risk in found:
        text, _, remedy = risk.partition(": ")
        yield Diagnostic("durability", "error", text, remedy)
    if not found:
        if facts.get("aof_enabled") == "1":
            yield Diagnostic("durability", "ok", "every change goes to the append-only file")
        else:
            yield Diagnostic(
                "durability", "warning", "a crash loses the changes after the last snapshot",
                "set appendonly yes",
            )  # fmt: skip
    used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    if most and used > FULL * most:
        yield Diagnostic(
            "memory", "warning", f"{used / _MEBIBYTE:,.0f} of {most / _MEBIBYTE:,.0f} MiB are used",
            "a full server refuses new jobs: raise maxmemory, or add workers",
        )  # fmt: skip
    else:
        yield Diagnostic("memory", "ok", f"{used / _MEBIBYTE:,.0f} MiB are used")
