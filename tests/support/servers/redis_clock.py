"""A wrong clock of the Redis server, as dayjob sees it: ``TIME`` in scripts and as a command.

The server reads the host's clock, which tests can't set. So the processes that call ``read_shifted_clock``
send scripts in which ``TIME`` is shifted by the value of a key. Expiries of keys keep the right time.
"""

from __future__ import annotations

from typing import Any

from dayjob.engines.redis import client, scripts
from dayjob.engines.redis.client import Command

OFFSET = "test-clock-offset"
"""The key with the offset of the clock, in whole seconds."""

_TIME = "redis.call('TIME')"
_SHIFTED = f"""(function()
  local shifted = {_TIME}
  shifted[1] = shifted[1] + (redis.call('GET', '{OFFSET}') or 0)
  return shifted
end)()"""
_COMMAND = f"local shifted = {_SHIFTED} return {{tostring(shifted[1]), shifted[2]}}"


def read_shifted_clock() -> None:
    """Let this process use the shifted clock of its server, from now on."""
    lean, packed = scripts._lean, client.packed

    def shifted_script(source: str) -> str:
        return lean(source).replace(_TIME, _SHIFTED)

    def shifted_command(command: Command) -> bytes:
        return packed(("EVAL", _COMMAND, 0) if tuple(command) == ("TIME",) else command)

    scripts._lean = shifted_script
    client.packed = shifted_command
    scripts.script.cache_clear()


def set_clock(connection: Any, offset: float) -> None:
    """Set the clock of the server by the offset in seconds; 0 sets it right."""
    connection.set(OFFSET, round(offset))
