"""What ``dayjob doctor`` says of a database in object storage."""

from __future__ import annotations

from dayjob.engines.base import Diagnostic
from dayjob.engines.slatedb.keys import VERSION
from dayjob.engines.slatedb.place import Place


def diagnose(place: Place) -> list[Diagnostic]:
    diagnostics = [Diagnostic("layout", "ok", f"version {VERSION} at {place.store}{place.path.lstrip('/')}")]
    if place.local:
        diagnostics.append(
            Diagnostic(
                "durability", "warning",
                "file:// survives a kill of the process, but not a power cut: its writes are not synced",
                "use sqlite:/// on one machine, or a bucket",
            )
        )  # fmt: skip
    else:
        diagnostics.append(Diagnostic("durability", "ok", "what is accepted is in the bucket"))
    return diagnostics
