"""Hide values whose names look like secrets, in headers and arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dayjob.errors import ConfigError

DEFAULT = r"passw|secret|token|authorization|api[-_]?key|cookie|credential|private[-_]?key"
HIDDEN = "[redacted]"


class Redaction:
    """Hides the values of names that contain a match of a regular expression, in any case."""

    def __init__(self, pattern: str = DEFAULT) -> None:
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise ConfigError(f"redact={pattern!r} is not a regular expression: {error}") from None
        self._hides_nothing = pattern == ""

    def hides(self, name: str) -> bool:
        return not self._hides_nothing and self._pattern.search(name) is not None

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: HIDDEN if self.hides(name) else value for name, value in headers.items()}

    def values(self, value: Any) -> Any:
        """Return the value with hidden values replaced, at any depth of mappings and lists."""
        if isinstance(value, dict):
            return {
                name: HIDDEN if self.hides(str(name)) else self.values(each) for name, each in value.items()
            }
        if isinstance(value, list):
            return [self.values(each) for each in value]
        return value

    def restored(self, given: Any, stored: Any) -> Any:
        """Return an edited value with its hidden values from the stored one.

        Raise ``ValueError`` for a hidden value that has none. In a list only unchanged items have one: an
        item that moved would get the value of another.
        """
        if isinstance(given, dict):
            known = stored if isinstance(stored, dict) else {}
            restored = {}
            for name, each in given.items():
                if each == HIDDEN and self.hides(name) and name in known:
                    restored[name] = known[name]
                else:
                    restored[name] = self.restored(each, known.get(name))
            return restored
        if isinstance(given, list):
            old = stored if isinstance(stored, list) else []
            return [
                known if self.values(known) == each else self.restored(each, None)
                for each, known in zip(given, [*old, *[None] * len(given)], strict=False)
            ]
        if given == HIDDEN and stored != HIDDEN:
            raise ValueError(f"{HIDDEN} stands for no stored value here: enter the value")
        return given

    def content(self, data: bytes) -> Any:
        """Return a payload or a result: decoded JSON with hidden values replaced, else text, else hex."""
        try:
            return self.values(msgspec.json.decode(data))
        except (msgspec.MsgspecError, RecursionError):
            pass
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError:
            return {"bytes": len(data), "hex": data[:256].hex()}
