"""A line in the log for each thing that somebody did: who, from where, what, to which, and its outcome."""

from __future__ import annotations

import logging

_log = logging.getLogger("dayjob.audit")


def audit(
    action: str, who: str | None, client: str, target: str | None = None, outcome: str | int | None = None
) -> None:
    """Names may hold line breaks, so they are written as Python would."""
    level = logging.WARNING if outcome in ("refused", "failed") else logging.INFO
    text = f"{action} by {who or 'nobody'} from {client}"
    text += f" on {target!r}" if target is not None else ""
    text += f": {outcome}" if outcome is not None else ""
    extra = {"action": action, "who": who, "client": client, "target": target, "outcome": outcome}
    _log.log(level, "%s", text, extra=extra)
