"""The scripts of this engine: one per verb in ``lua/``, each behind what it needs of ``lua/shared/``.

They are called by their digest, and sent in full when the server does not know them: after its restart, a
``SCRIPT FLUSH``, or a failover.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_LUA = files("dayjob.engines.redis") / "lua"


_PARTS = {"insert": 5, "settle": 5, "claim": 6, "insert_and_claim": 6, "write_notes": 5, "raise_layout": 0}
"""How many parts of ``lua/shared/`` a verb needs; the others need those up to the rules."""

_RULES = 4


class Script(Struct, frozen=True):
    source: bytes
    digest: bytes


@cache
def script(verb: str) -> Script:
    source = b"".join(_shared()[: _PARTS.get(verb, _RULES)]) + (_LUA / f"{verb}.lua").read_bytes()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


@cache
def _shared() -> tuple[bytes, ...]:
    parts = sorted((_LUA / "shared").iterdir(), key=lambda part: part.name)
    return tuple(part.read_bytes() for part in parts)
