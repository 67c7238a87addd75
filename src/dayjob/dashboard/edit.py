"""Edit and run again: the form of a finished job, and the new job from its fields.

Hidden values of the arguments stay hidden in the form. Unless they are replaced, the new job gets those of
the stored one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.rendering import page
from dayjob.dashboard.security import MAX_FORM_BYTES
from dayjob.errors import BadPayload
from dayjob.inspect import Redaction
from dayjob.inspect.json_fields import indented
from dayjob.model.codec import UNDECODABLE
from dayjob.model.config import check_priority
from dayjob.model.durations import to_micros
from dayjob.model.job import Job, NewJob, new_job_like
from dayjob.model.names import check_queue

EDITABLE = MAX_FORM_BYTES // 2
"""Bytes that the arguments may have in a form."""


class Form(Struct, frozen=True):
    """The texts of the fields, and the problem of each invalid one."""

    job: Job
    texts: Mapping[str, str]
    fixed: str | None = None
    """Why the arguments can't be edited."""
    problems: Mapping[str, str] = {}


def form_of(job: Job, redaction: Redaction) -> Form:
    texts = {"arguments": "", "queue": job.queue, "priority": str(job.priority), "delay": "0"}
    try:
        text = indented(redaction.values(msgspec.json.decode(job.payload or b"{}")), EDITABLE)
    except UNDECODABLE:
        return Form(job, texts, "The payload is not JSON. The new job gets it unchanged.")
    if len(quote_plus(text)) > EDITABLE:
        return Form(job, texts, "The arguments are too long for a form. The new job gets them unchanged.")
    return Form(job, {**texts, "arguments": text})


def parse(
    job: Job, fields: Mapping[str, str], redaction: Redaction, check: Callable[[Job, bytes], None]
) -> NewJob | Form:
    """Return the new job, or the form with its problems. A field that is not given has the job's value.

    ``check`` raises ``BadPayload`` for arguments that the task does not accept.
    """
    form = form_of(job, redaction)
    texts = {name: fields.get(name, text) for name, text in form.texts.items()}
    problems: dict[str, str] = {}

    def read(name: str, convert: Callable[[str], Any]) -> Any:
        try:
            return convert(texts[name])
        except (ValueError, TypeError, BadPayload) as error:
            problems[name] = str(error)
        except RecursionError:
            problems[name] = "This is nested too deeply."

    def arguments(text: str) -> bytes:
        if form.fixed is not None:
            return job.payload
        edited, stored = _decode(text, bool(job.task)), _decode(job.payload)
        if msgspec.json.encode(edited) == msgspec.json.encode(redaction.values(stored)):
            return job.payload
        payload = msgspec.json.encode(redaction.restored(edited, stored))
        check(job, payload)
        return payload

    new = replace(
        new_job_like(job),
        payload=read("arguments", arguments),
        queue=read("queue", _queue),
        priority=read("priority", _priority),
        delay=read("delay", _delay),
    )
    return replace(form, texts=texts, problems=problems) if problems else new


def _decode(text: str | bytes, is_object: bool = False) -> Any:
    try:
        value = msgspec.json.decode(text or b"{}")
    except UNDECODABLE as error:
        raise ValueError(f"This is not JSON: {error}.") from None
    if is_object and not isinstance(value, dict):
        raise ValueError('This is no JSON object: write the arguments by name, such as {"to": "ada"}.')
    return value


def _queue(text: str) -> str:
    check_queue(text)
    return text


def _priority(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number: lower runs first, 1000 is normal.") from None
    check_priority(number, "priority")
    return number


def _delay(text: str) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        raise ValueError(f"{text!r} is no number of seconds.") from None
    to_micros(seconds, "delay")
    return seconds


def render(request: Request, form: Form) -> Response:
    """Return the page of the form, with the problems beside their fields."""
    return page(request, "edit.html", 422 if form.problems else 200, active="jobs", form=form, job=form.job)
