"""The scripts of this engine: one per verb in ``lua/``, each behind all of ``lua/shared/``.

They are called by their digest, and sent in full when the server does not know them: after its restart, a
``SCRIPT FLUSH``, or a failover.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_LUA = files("dayjob.engines.redis") / "lua"


class Script(Struct, frozen=True):
    source: bytes
    digest: bytes


@cache
def script(verb: str) -> Script:
    source = _shared() + (_LUA / f"{verb}.lua").read_bytes()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


@cache
def _shared() -> bytes:
    parts = sorted((_LUA / "shared").iterdir(), key=lambda part: part.name)
    return b"".join(part.read_bytes() for part in parts)
