"""The Lua scripts: one per verb in ``lua/``, preceded by the functions of ``lua/shared/`` that it needs.

A script runs from its first line at each call. In Lua 5.1 the definition of a function takes time, and so
does each variable that it refers to. So a script has only the functions that it calls, and values in place of
the names of constants.

Scripts are called by their digest, and sent in full when the server does not have them: after a restart, a
``SCRIPT FLUSH``, or a failover.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

from dayjob.engines.base import BATCH, BATCH_BYTES, ID_RESERVATION, LIMITS, MOST_BLOCKED
from dayjob.engines.redis.arguments import TRANSITION_CODES
from dayjob.engines.redis.record import REPORTED, STATE_CODES
from dayjob.model.job import ERRORS_KEPT, LEASE_EXPIRED, WORKER_GONE, JobState
from dayjob.model.lifecycle import EXPIRED

_LUA = files("dayjob.engines.redis") / "lua"

_REPLY_AGAIN = """local stored = stored_reply()
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

_NAME = re.compile(r"\w+")
_TEXT = r"'(?:[^'\\]|\\.)*'"
_VALUE = re.compile(rf"{_TEXT}|\d+|KEYS\[\d+\]")
_COMMENT = re.compile(rf"({_TEXT})|[ \t]*--.*")
_CONSTANTS = re.compile(rf"^local ([A-Z_, ]+) = ((?:(?:{_TEXT}|\d+|KEYS\[\d+\])(?:, )?)+)\n", re.MULTILINE)
_TOKEN = re.compile(rf"{_TEXT}|(?<![.\w])[A-Za-z_]\w*(?!\w| = )")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)


class Script(Struct, frozen=True):
    source: bytes
    digest: bytes


@cache
def script(verb: str) -> Script:
    start = "" if verb in _WITHOUT_REPLY else _REPLY_AGAIN
    shared = "" if verb == "migrate" else _shared()
    plain = _read("insert_plain") if verb == "insert" else ""
    source = _lean(plain + shared + start + _read(verb)).encode()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


def _read(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")


@cache
def _shared() -> str:
    parts = sorted((_LUA / "shared").iterdir(), key=lambda part: part.name)
    return _constants() + "".join(part.read_text("utf-8") for part in parts)


def _lean(source: str) -> str:
    """Return the script without comments, names of constants, and functions that it does not call."""
    source = _COMMENT.sub(lambda found: found[1] or "", source)
    values: dict[str, str] = {}
    for found in _CONSTANTS.finditer(source):
        values |= zip(_NAME.findall(found[1]), _VALUE.findall(found[2]), strict=True)
    source = _TOKEN.sub(lambda found: values.get(found[0], found[0]), _CONSTANTS.sub("", source))
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(source)}
    needed: set[str] = set()
    added = {_FUNCTION.sub("", source)}
    while added:
        names = {name for text in added for name in _TOKEN.findall(text)} & functions.keys() - needed
        needed |= names
        added = {functions[name] for name in names}
    return _FUNCTION.sub(lambda found: found[0] if found[1] in needed else "", source)


@cache
def _constants() -> str:
    """Return Lua code that defines the constants shared with Python. ``PENDING`` is the name of a key."""
    values: dict[str, int | str] = {
        "PENDING_STATE" if state is JobState.PENDING else state.name: code
        for state, code in STATE_CODES.items()
    }
    values |= {transition.name: code for transition, code in TRANSITION_CODES.items()}
    values |= {"ERRORS_KEPT": ERRORS_KEPT, "BATCH_BYTES": BATCH_BYTES, "ID_RESERVATION": ID_RESERVATION}
    values |= {"REPORTED": REPORTED, "BATCH": BATCH, "MOST_BLOCKED": MOST_BLOCKED}
    texts = {
        "EXPIRED_TEXT": EXPIRED, "LEASE_EXPIRED_TEXT": LEASE_EXPIRED, "WORKER_GONE_TEXT": WORKER_GONE,
        "LIMITS_KIND": LIMITS,
    }  # fmt: skip
    values |= {name: f"'{text}'" for name, text in texts.items()}
    return f"local {', '.join(values)} = {', '.join(map(str, values.values()))}\n"
