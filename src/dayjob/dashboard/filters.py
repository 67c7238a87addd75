"""The filter of a list: from the fields of a query or a form, back to a query, and in words."""

from __future__ import annotations

from collections.abc import Mapping

from dayjob.inspect import Filter
from dayjob.model.job import JobState

NAMES = ("state", "queue", "task", "tenant", "worker", "recurring", "arg", "search")
"""The fields of a filter. ``recurring=no`` hides the jobs of schedules."""


def parse(fields: Mapping[str, str]) -> Filter:
    """Return the filter. Raise ``ValueError`` for an invalid one, which would select other jobs."""
    given = {name: value for name in NAMES if (value := fields.get(name, "").replace("\0", "\ufffd"))}
    state, recurring = given.get("state"), given.get("recurring")
    if state is not None and state not in list(JobState):
        raise ValueError(f"state={state!r} is no state of a job")
    if recurring not in (None, "yes", "no"):
        raise ValueError(f"recurring={recurring!r}: pass yes or no")
    return Filter(
        queue=given.get("queue"),
        state=None if state is None else JobState(state),
        task=given.get("task"),
        tenant=given.get("tenant"),
        worker=given.get("worker"),
        recurring=None if recurring is None else recurring == "yes",
        text=given.get("search", "").strip() or None,
        arguments=_arguments(given.get("arg", "").strip()),
    )


def _arguments(text: str) -> tuple[tuple[str, str], ...]:
    name, separator, value = text.partition("=")
    if text and not (name.strip() and separator):
        raise ValueError(f"{text!r} is no argument with a value: write name=value")
    return ((name.strip(), value.strip()),) if text else ()


def lenient(fields: Mapping[str, str]) -> tuple[Filter, str | None]:
    """Return the filter without its invalid fields, and the problem of the argument."""
    problem = None
    kept = {name: fields.get(name, "") for name in NAMES}
    if kept["state"] not in list(JobState):
        kept["state"] = ""
    if kept["recurring"] not in ("yes", "no"):
        kept["recurring"] = ""
    try:
        _arguments(kept["arg"].strip())
    except ValueError as error:
        problem, kept["arg"] = str(error), ""
    return parse(kept), problem


def to_query(filter: Filter) -> dict[str, str]:
    fields = {
        "state": filter.state and filter.state.value,
        "queue": filter.queue,
        "task": filter.task,
        "tenant": filter.tenant,
        "worker": filter.worker,
        "recurring": None if filter.recurring is None else "yes" if filter.recurring else "no",
        "arg": ", ".join("=".join(pair) for pair in filter.arguments),
        "search": filter.text,
    }
    return {name: value for name, value in fields.items() if value}


def in_words(filter: Filter) -> str:
    """Return the conditions of the filter as text, without the state."""
    query = {name: value for name, value in to_query(filter).items() if name != "state"}
    words = {"recurring": {"yes": "made by schedules", "no": "not made by schedules"}}
    labels = {"arg": "argument", "search": "containing"}
    parts = [
        words.get(name, {}).get(value) or f"{labels.get(name, name)} {value}" for name, value in query.items()
    ]
    return ", ".join(parts)
