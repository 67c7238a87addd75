"""Validation of names, headers and kv pairs; texts that are safe to store, or to print on a terminal.

A name may be any text without NUL and lone surrogates, which some engines can't store. All engines refuse the
same names, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dayjob.errors import ConfigError, KvValueTooLarge

QUEUE_BYTES = 200
KEY_BYTES = 1024
HEADERS_BYTES = 64 * 1024
ERROR_CHARS = 16 * 1024
KV_VALUE_BYTES = 256 * 1024

_UNUSUAL = re.compile(r"[^ -~]")
_CONFIDENTIAL = ("dedup key", "value of header")


@contextmanager
def as_config_error(prefix: str = "") -> Iterator[None]:
    """Raise ``ConfigError``, with this prefix, for a ``TypeError`` or ``ValueError`` of the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{prefix}{error}") from None


def check_text(value: object, kind: str) -> int:
    """Return the size of the text in UTF-8 bytes. Raise if an engine can't store it."""
    if not isinstance(value, str):
        raise TypeError(f"{_subject(value, kind)} is a {type(value).__name__}: pass a str")
    if "\0" in value:
        raise ValueError(f"{_subject(value, kind)} holds a NUL character: remove it")
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{_subject(value, kind)} holds a lone surrogate: pass valid Unicode") from None


def check_name(value: object, kind: str, max_bytes: int) -> None:
    """Raise for an empty or too long name, or one that an engine can't store."""
    size = check_text(value, kind)
    if size == 0:
        raise ValueError(f"the {kind} is empty: pass at least one character")
    if size > max_bytes:
        raise ValueError(f"{_subject(value, kind)} has {size:,} bytes: at most {max_bytes:,} are allowed")


def _subject(value: object, kind: str) -> str:
    """Return the subject of an error text. Values that may be secrets are left out."""
    return f"the {kind}" if kind.startswith(_CONFIDENTIAL) else f"the {kind} {shown(value)}"


def check_queue(value: object) -> None:
    check_name(value, "queue name", QUEUE_BYTES)


def check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers is a {type(headers).__name__}: pass a mapping of texts")
    size = 0
    for name, value in headers.items():
        check_name(name, "header name", KEY_BYTES)
        size += len(name.encode()) + check_text(value, f"value of header {name!r}")
    if size > HEADERS_BYTES:
        raise ValueError(f"the headers have {size:,} bytes: at most {HEADERS_BYTES:,} are allowed")


def check_kv_key(key: object) -> None:
    if not isinstance(key, bytes):
        raise TypeError(f"the kv key is a {type(key).__name__}: pass bytes")
    if not 0 < len(key) <= KEY_BYTES:
        raise ValueError(f"the kv key has {len(key):,} bytes: pass 1 to {KEY_BYTES:,}")


def check_kv(kv: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    if not isinstance(kv, Mapping):
        raise TypeError(f"kv is a {type(kv).__name__}: pass a mapping of bytes to bytes")
    for key, value in kv.items():
        check_kv_key(key)
        check_kv_value(value)
    return dict(kv)


def check_kv_value(value: object) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"the kv value is a {type(value).__name__}: encode it to bytes")
    if len(value) > KV_VALUE_BYTES:
        raise KvValueTooLarge(len(value), KV_VALUE_BYTES)


def counted(number: int, noun: str) -> str:
    """Return the number with the noun: "1 job", "2,000 jobs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clean_error(text: str) -> str:
    """Return the text without characters that an engine can't store. Cuts the middle of a long text."""
    if len(text) > ERROR_CHARS:
        half = ERROR_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def printable(text: str, keep: str = "") -> str:
    """Return the text with control characters escaped: it can't change a terminal or forge a line of a log.

    Controls of C0 and C1, bidirectional overrides, line separators and other invisible characters are
    escaped, except those in ``keep``.
    """
    return _UNUSUAL.sub(
        lambda each: each[0] if each[0].isprintable() or each[0] in keep else repr(each[0])[1:-1], text
    )


def shown(value: object) -> str:
    """Return the value for an error text: escaped, and cut if long. Its ``repr`` may fail."""
    try:
        text = ascii(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."
