"""Logs of a long-running command on standard error: as text, in colour on a terminal, or as JSON.

Records of jobs have ``job_id``, ``queue``, ``task``, ``attempt``, ``worker``, ``tenant`` if there is one, and
``seconds`` if a run ended. JSON has all of them.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console  # noqa: TID251 - TextFormatter escapes the lines
from rich.text import Text

from dayjob.inspect.json_fields import span
from dayjob.model.names import printable
from dayjob.worker.job_log import SHORT_ID

Format = Literal["text", "json"]

CONTINUED = "  | "
"""The beginning of the second and each further line of a record."""

LEVELS = ("debug", "info", "warning", "error")

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "failure"}

_STYLES = {
    logging.DEBUG: "dim",
    logging.WARNING: "yellow",
    logging.ERROR: "red",
    logging.CRITICAL: "bold red",
}


def configure(level: str, form: Format) -> None:
    """Send all logs to standard error. Called before the import of the app, which may change it."""
    handler: logging.Handler = logging.StreamHandler()
    if form == "text" and sys.stderr.isatty():
        handler = TerminalHandler(Console(stderr=True))
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


class TextFormatter(logging.Formatter):
    """``time LEVEL message (task, job id, attempt, duration)``, then the exception. No id is repeated.

    Control characters are escaped, and each further line begins with ``CONTINUED``, so no text of a job can
    change the terminal or forge a record.
    """

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        lines = [self.formatTime(record), f"{record.levelname:<7}", _message(record), _job(record)]
        failure = _failure(self, record)
        text = " ".join(filter(None, lines)) + (f"\n{failure}" if failure else "")
        return printable(text, keep="\n\t").replace("\n", f"\n{CONTINUED}")


class TerminalHandler(logging.Handler):
    """The same lines, coloured by level."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = Text(self.format(record), style=_STYLES.get(record.levelno, ""))
            self._console.print(line, soft_wrap=True)
        except Exception:
            self.handleError(record)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, pid, message, the job's fields, any other extra, exception."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD | line.keys()}
        failure = _failure(self, record)
        if failure:
            line["exception"] = failure
        try:
            return json.dumps(line, default=str, allow_nan=False)
        except (TypeError, ValueError):  # An extra that JSON can't represent, such as a cycle or a NaN.
            return json.dumps({name: str(value) for name, value in line.items()})


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    return message if record.name.startswith("dayjob") else f"{record.name}: {message}"


def _job(record: logging.LogRecord) -> str:
    job_id = getattr(record, "job_id", None)
    if job_id is None:
        return ""
    task = getattr(record, "task", "") or f"queue {getattr(record, 'queue', '?')}"
    id = "" if job_id[:SHORT_ID] in record.getMessage() else f"job {job_id}, "
    seconds = getattr(record, "seconds", None)
    took = "" if seconds is None else f", {seconds * 1000:.0f} ms" if seconds < 1 else f", {span(seconds)}"
    return f"({task}, {id}attempt {getattr(record, 'attempt', '?')}{took})"


def _failure(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the exception or stack of the record, or the text of a job's failure."""
    parts = [getattr(record, "failure", None) or ""]
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    elif record.exc_text:  # A record of a child process.
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(filter(None, parts))
