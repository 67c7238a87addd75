"""Names of other libraries, and the form to write in their place, for the errors of unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getattr_static
from typing import NoReturn

from msgspec import Struct

_ENQUEUE = "enqueue(...) or await aenqueue(...), and for options using(delay=5, queue=...).enqueue(...)"
_BY_APP = 'task.enqueue(...), or send("name", {...}) for a task whose code is elsewhere'
_STATUS = "status() or await astatus()"

_ENQUEUING = (
    "apply_async", "defer", "defer_async", "delay", "enqueue_at", "enqueue_in", "kiq", "schedule", "send",
    "send_with_options",
)  # fmt: skip

TASK_METHODS: Mapping[str, str] = {
    **dict.fromkeys(_ENQUEUING, _ENQUEUE),
    **dict.fromkeys(("message", "s", "si", "signature"), "bind(...), for enqueue_many and ctx.then"),
    "retry": "raise RetryLater(seconds) in the task",
}

APP_METHODS: Mapping[str, str] = dict.fromkeys(("delay", "enqueue", "send_task"), _BY_APP)

HANDLE_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("failed", "ready", "state", "successful"), _STATUS),
    **dict.fromkeys(("get", "wait_result"), "result(timeout=...) or await aresult(timeout=...)"),
    "info": "progress() or record()",
    "revoke": "cancel() or await acancel()",
}

JOB_OPTIONS: Mapping[str, str] = {"countdown": "delay", "eta": "run_at"}
"""Options of a call, and those of ``using`` in their place."""

TASK_OPTIONS: Mapping[str, str] = {
    "acks_late": "leave it out, as a job is always settled after its run",
    "autoretry_for": "write retry=Retry.exponential(...): each exception is retried unless give_up_on has it",
    "bind": "write a first parameter annotated Context",
    "max_retries": "write max_attempts=..., which counts the first run too",
    "retries": "write max_attempts=..., which counts the first run too",
    "soft_time_limit": "write timeout=...",
    "time_limit": "write timeout=...",
}


class ForeignNames:
    """Base of a class with its own errors for ``names`` of other libraries: they contain the form to write.

    Python caches no attribute access of a class with ``__getattr__``, so each name has a descriptor instead.
    """

    __slots__ = ()

    def __init_subclass__(cls, *, names: Mapping[str, str] | None = None) -> None:
        super().__init_subclass__()
        for name, form in (names or {}).items():
            setattr(cls, name, _ForeignName(name, form))

    def __dir__(self) -> list[str]:
        names = super().__dir__()
        return [name for name in names if not isinstance(getattr_static(self, name, None), _ForeignName)]


class _ForeignName(Struct):
    """Raises ``AttributeError``, so that ``hasattr`` is false."""

    _name: str
    _form: str

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute {self._name!r}: write {self._form}",
            name=self._name,
            obj=owner,
        )
