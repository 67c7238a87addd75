"""The end of a process that a handler forked.

It has copies of the worker's event loop, threads and connections. If it used them, it would take the worker's
events, or settle the job a second time.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from dayjob.model.names import printable
from dayjob.runtime import process


def end_forked(error: BaseException | None) -> NoReturn:
    """End this process as Python ends a script that raised this error, or none. No cleanup runs."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        code = "".join(traceback.format_exception(error)).rstrip()
    if code is not None and not isinstance(code, int):
        with suppress(Exception):
            print(printable(str(code), keep="\n\t"), file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit((code or 0) & 0xFF)


class ForksEndHere:
    """A context manager: a process that is forked inside ends at the exit of the block."""

    def __enter__(self) -> None:
        self._pid = process.pid

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if process.pid != self._pid:
            end_forked(error)
