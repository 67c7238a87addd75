"""The findings of ``dayjob doctor`` about a database in object storage."""

from __future__ import annotations

from dayjob.engines.base import Diagnostic
from dayjob.engines.slatedb.keys import VERSION
from dayjob.engines.slatedb.settings import SlateSettings


def diagnose(settings: SlateSettings) -> list[Diagnostic]:
    text = "accepted jobs are in the bucket"
    if settings.local:
        text = "jobs survive a kill of the process, but not a power cut: file:// does not sync its writes"
    return [
        Diagnostic("layout", "ok", f"version {VERSION} at {settings.store}{settings.path.lstrip('/')}"),
        Diagnostic("durability", "ok", text),
    ]
