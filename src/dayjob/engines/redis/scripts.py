"""The Lua scripts: one per verb in ``lua/``, preceded by the parts of ``lua/shared/`` that it needs.

They are called by their digest, and sent in full when the server does not have them: after a restart, a
``SCRIPT FLUSH``, or a failover.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

from dayjob.engines.base import BATCH_BYTES, ID_RESERVATION
from dayjob.engines.redis.arguments import TRANSITION_CODES
from dayjob.engines.redis.record import REPORTED, STATE_CODES
from dayjob.model.job import ERRORS_KEPT, LEASE_EXPIRED, WORKER_GONE, JobState
from dayjob.model.lifecycle import EXPIRED

_LUA = files("dayjob.engines.redis") / "lua"

_PARTS = {
    "insert": 5, "settle": 5, "claim": 6, "insert_and_claim": 6, "compare_and_set": 5, "split_records": 2,
    "migrate": 0,
}  # fmt: skip
"""How many parts of ``lua/shared/`` a verb needs; the others need those up to the rules."""

_RULES = 4

_REPLY_AGAIN = b"""local stored = stored_reply()
if stored then
  return stored
end
"""

_WITHOUT_REPLY = frozenset(
    {
        "build_dead_index", "cancel_requests", "claim", "insert_and_claim", "migrate", "pending_queues",
        "prune_dead_index", "quarantine", "repair", "split_records",
    }
)  # fmt: skip
"""The scripts that store no reply, or return a stored one in their own way. Others begin with its check."""


class Script(Struct, frozen=True):
    source: bytes
    digest: bytes


@cache
def script(verb: str) -> Script:
    parts = _shared()[: _PARTS.get(verb, _RULES)]
    start = b"" if verb in _WITHOUT_REPLY else _REPLY_AGAIN
    source = b"".join([_constants(), *parts, start, (_LUA / f"{verb}.lua").read_bytes()])
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


@cache
def _shared() -> tuple[bytes, ...]:
    parts = sorted((_LUA / "shared").iterdir(), key=lambda part: part.name)
    return tuple(part.read_bytes() for part in parts)


@cache
def _constants() -> bytes:
    """Return Lua code that defines the constants shared with Python. ``PENDING`` is the name of a key."""
    values: dict[str, int | str] = {
        "PENDING_STATE" if state is JobState.PENDING else state.name: code
        for state, code in STATE_CODES.items()
    }
    values |= {transition.name: code for transition, code in TRANSITION_CODES.items()}
    values |= {"ERRORS_KEPT": ERRORS_KEPT, "BATCH_BYTES": BATCH_BYTES, "ID_RESERVATION": ID_RESERVATION}
    values |= {"REPORTED": REPORTED}
    texts = {"EXPIRED_TEXT": EXPIRED, "LEASE_EXPIRED_TEXT": LEASE_EXPIRED, "WORKER_GONE_TEXT": WORKER_GONE}
    values |= {name: f"'{text}'" for name, text in texts.items()}
    return f"local {', '.join(values)} = {', '.join(map(str, values.values()))}\n".encode()
