"""The findings of ``dayjob doctor`` about a database in object storage."""

from __future__ import annotations

from dayjob.engines.base import Diagnostic
from dayjob.engines.slatedb.keys import VERSION
from dayjob.engines.slatedb.settings import SlateSettings


def diagnose(settings: SlateSettings) -> list[Diagnostic]:
    diagnostics = [
        Diagnostic("layout", "ok", f"version {VERSION} at {settings.store}{settings.path.lstrip('/')}")
    ]
    if settings.local:
        diagnostics.append(
            Diagnostic(
                "durability", "warning",
                "file:// survives a kill of the process, but not a power cut: its writes are not synced",
                "use sqlite:/// on one machine, or a bucket",
            )
        )  # fmt: skip
    else:
        diagnostics.append(Diagnostic("durability", "ok", "accepted jobs are in the bucket"))
    return diagnostics
