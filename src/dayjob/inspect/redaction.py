"""Hide values whose names look like secrets, in headers, arguments, results and dedup keys. Pure.

Redaction fails closed: content that can't be searched for names is hidden as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dayjob.errors import ConfigError
from dayjob.model.codec import UNDECODABLE

DEFAULT = (
    r"passw|pwd|passphrase|secret|token|authorization|bearer|(api|access|private)[-_]?key|cookie|credential"
)
HIDDEN = "[redacted]"

DEPTH = 100
"""Levels of nested values that are searched for names."""

_JSON_STARTS = ("{", "[", '"')


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

    def values(self, value: Any, depth: int = DEPTH) -> Any:
        """Return the value with hidden values replaced, in mappings and lists.

        Raise ``RecursionError`` for a value that is nested more than ``depth`` levels.
        """
        if not isinstance(value, dict | list):
            return value
        if depth == 0:
            raise RecursionError("the value is nested too deeply")
        if isinstance(value, list):
            return [self.values(each, depth - 1) if isinstance(each, dict | list) else each for each in value]
        return {
            name: HIDDEN if self.hides(name) else self.values(each, depth - 1) for name, each in value.items()
        }

    def dedup_key(self, key: str | None, payload: bytes) -> str | None:
        """Return the dedup key, hidden if it contains a hidden value of the arguments."""
        if not key or self._hides_nothing:
            return key
        try:
            hidden = self._hidden(msgspec.json.decode(payload), DEPTH) if payload else ()
            return HIDDEN if any(text and text in key for text in hidden) else key
        except UNDECODABLE:
            return HIDDEN if self.content(payload) == _hidden_content(payload) else key

    def _hidden(self, value: Any, depth: int, is_hidden: bool = False) -> Iterator[str]:
        """Yield the hidden texts and numbers of a value."""
        if depth == 0:
            raise RecursionError("the value is nested too deeply")
        if isinstance(value, dict):
            for name, each in value.items():
                yield from self._hidden(each, depth - 1, is_hidden or self.hides(name))
        elif isinstance(value, list):
            for each in value:
                yield from self._hidden(each, depth - 1, is_hidden)
        elif is_hidden and value is not None and not isinstance(value, bool):
            yield str(value)

    def restored(self, given: Any, stored: Any, depth: int = DEPTH) -> Any:
        """Return an edited value with its hidden values from the stored one.

        Raise ``ValueError`` for a hidden value that has none. In a list only unchanged items have one: an
        item that moved would get the value of another. Raise ``RecursionError`` for a value that is nested
        more than ``depth`` levels.
        """
        if depth == 0 and isinstance(given, dict | list):
            raise RecursionError("the value is nested too deeply")
        if isinstance(given, dict):
            known = stored if isinstance(stored, dict) else {}
            restored = {}
            for name, each in given.items():
                if each == HIDDEN and self.hides(name) and name in known:
                    restored[name] = known[name]
                else:
                    restored[name] = self.restored(each, known.get(name), depth - 1)
            return restored
        if isinstance(given, list):
            old = stored if isinstance(stored, list) else []
            return [
                known if self.values(known) == each else self.restored(each, None, depth - 1)
                for each, known in zip(given, [*old, *[None] * len(given)], strict=False)
            ]
        if given == HIDDEN and stored != HIDDEN:
            raise ValueError(f"{HIDDEN} stands for no stored value here: enter the value")
        return given

    def content(self, data: bytes) -> Any:
        """Return a payload or a result: decoded JSON with hidden values replaced, else text, else hex.

        Three kinds of content are hidden as a whole: bytes that are no text, text that begins like JSON, such
        as JSON that is nested too deeply, and text with a name to hide.
        """
        try:
            return self.values(msgspec.json.decode(data))
        except UNDECODABLE:
            pass
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if self._hides_nothing:
                return {"bytes": len(data), "hex": data[:256].hex()}
            return _hidden_content(data)
        if not self._hides_nothing and (
            text.lstrip("\ufeff \t\r\n").startswith(_JSON_STARTS) or self.hides(text)
        ):
            return _hidden_content(data)
        return {"text": text}


def _hidden_content(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "content": HIDDEN}
