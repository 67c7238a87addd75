"""The logs of child processes: the worker logs their records, with its own handlers and levels.

A record is sent as plain values: its message and exception as text, and the fields of its ``extra``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from msgspec import Raw, msgpack, to_builtins

from dayjob.model.names import ERROR_CHARS, clean_error, shown

_log = logging.getLogger("dayjob.worker")

_FIELDS = 100
"""The most fields of a record."""

_AS_TEXT = {"args", "asctime", "exc_info", "exc_text", "message", "msg"}
"""Fields that the worker gets as ``msg`` and ``exc_text``."""

_formatter = logging.Formatter()


# In the worker.


def log_levels() -> dict[str, int]:
    """Return the levels of the loggers that have one of their own, and of the root logger as ``""``."""
    levels = {"": logging.root.level}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level:
            levels[name] = logger.level
    return levels


def log_from_child(fields: Mapping[str, Any]) -> None:
    try:
        record = logging.makeLogRecord(dict(fields))
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:  # A filter of the host, for example. It must not end the connection to the child.
        _log.exception("a log record of a child process can't be logged: %s", shown(fields.get("msg")))


# In the child.


def forward_logs(try_send: Callable[[dict[str, Any]], bool]) -> LogForwarder:
    """Forward the records of all loggers, and warnings, to the worker."""
    forwarder = LogForwarder(try_send)
    logging.root.addHandler(forwarder)
    logging.captureWarnings(True)
    return forwarder


def set_levels(before: Mapping[str, int], levels: Mapping[str, int]) -> None:
    """Set these levels. A logger that had a level before, and has none now, gets that of its parent again."""
    for name, level in {**dict.fromkeys(before, logging.NOTSET), **levels}.items():
        logging.getLogger(name).setLevel(level)


class LogForwarder(logging.Handler):
    """Passes records to ``try_send``, which returns False if there is no room. Those records are dropped."""

    def __init__(self, try_send: Callable[[dict[str, Any]], bool]) -> None:
        super().__init__()
        self._try_send = try_send
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.report_dropped()
            if not self._try_send(packed_record(record)):
                self._dropped += 1
        except Exception:
            self.handleError(record)

    def report_dropped(self) -> None:
        """Log the number of dropped records, when there is room again."""
        if self._dropped:
            text = "%d log records of a child process were dropped: the worker did not read them in time"
            record = _log.makeRecord(_log.name, logging.WARNING, "", 0, text, (self._dropped,), None)
            if self._try_send(packed_record(record)):
                self._dropped = 0


def packed_record(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record as values that msgpack can encode, each of a limited size."""
    fields = {
        str(name): _packed(value)
        for name, value in islice(vars(record).items(), _FIELDS)
        if name not in _AS_TEXT
    }
    fields["msg"] = clean_error(record.getMessage())
    if record.exc_info:
        fields["exc_text"] = clean_error(_formatter.formatException(record.exc_info))
    elif record.exc_text:
        fields["exc_text"] = clean_error(record.exc_text)
    return fields


def _packed(value: Any) -> Any:
    """Return the value if it is small and plain, encoded if it has a plain form, or else its text."""
    if value is None or type(value) in (bool, float):
        return value
    if isinstance(value, str):
        return clean_error(value)
    try:
        encoded = msgpack.encode(to_builtins(value, str_keys=True, enc_hook=_text))
    except Exception:  # An int of more than 64 bits, a lone surrogate, a cycle.
        return _text(value)
    return Raw(encoded) if len(encoded) <= ERROR_CHARS else _text(value)


def _text(value: Any) -> str:
    try:
        return clean_error(str(value))
    except Exception:
        return shown(value)
