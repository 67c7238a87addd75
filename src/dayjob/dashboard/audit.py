"""The audit log: one line for each action, with the user, the client address, the target and the outcome."""

from __future__ import annotations

import logging

_log = logging.getLogger("dayjob.audit")


def audit(
    action: str, user: str | None, client: str, target: str | None = None, outcome: str | int | None = None
) -> None:
    """Log one action. The target is quoted, because names may contain line breaks."""
    level = logging.WARNING if outcome in ("refused", "failed") else logging.INFO
    text = f"{action} by {user or 'anonymous'} from {client}"
    text += f" on {target!r}" if target is not None else ""
    text += f": {outcome}" if outcome is not None else ""
    extra = {"action": action, "user": user, "client": client, "target": target, "outcome": outcome}
    _log.log(level, "%s", text, extra=extra)
