"""A job in a web page: its changes as messages of server-sent events.

Each message is the whole state of the job as JSON, and its id is a hash of that: a client that reconnects
with the id of its last message receives nothing twice. The last message is ``event: end``. A client that
reconnects after it gets 204, at which browsers stop.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from dayjob import App, Job, Task

Data = Callable[[Job], Any]

RETRY = b"retry: 1000\n\n"
"""The first message of a stream: a browser reconnects a second after the end of the stream."""

END = "end"
"""The id of the last message."""


def is_of(source: App | Task[..., Any, Any], job: Job | None) -> bool:
    """Return whether the job exists, and is one of the task if the source is a task."""
    return job is not None and (isinstance(source, App) or source.app.find(job) is source)


def progress(job: Job) -> dict[str, Any]:
    """Return the data that a page may show of any job: its state, and its last reported progress."""
    fraction, message = job.progress or (0.0, "")
    return {"state": job.state, "progress": fraction, "message": message}


class JobMessages:
    """The messages for one client. ``last_id`` is that of the last message that it received."""

    def __init__(self, data: Data, last_id: str | None) -> None:
        self._data = data
        self._last_id = last_id
        self._last = b"null"

    def changed(self, job: Job) -> bytes:
        """Return the message of a record: empty if the client has received the same."""
        body = msgspec.json.encode(self._data(job))
        if job.state.finished:
            self._last = body
        id = sha256(body).hexdigest()[:16]
        if id == self._last_id:
            return b""
        self._last_id = id
        return b"id: %b\ndata: %b\n\n" % (id.encode(), body)

    def end(self) -> bytes:
        """Return the last message: the data of the finished job, or null if its record is not kept."""
        return b"id: %b\nevent: end\ndata: %b\n\n" % (END.encode(), self._last)
