"""Tasks of ``django.tasks``, or of its backport."""

from __future__ import annotations

from typing import Any

from dayjob.contrib.django.tasks_api import task

noted: list[int] = []


@task  # type: ignore[untyped-decorator]
def double(number: int) -> int:
    return 2 * number


@task  # type: ignore[untyped-decorator]
async def adouble(number: int) -> int:
    return 2 * number


@task  # type: ignore[untyped-decorator]
def note(number: int) -> None:
    noted.append(number)


@task  # type: ignore[untyped-decorator]
def fail(text: str) -> None:
    raise ValueError(text)


@task(takes_context=True)  # type: ignore[untyped-decorator]
async def fail_twice(context: Any) -> None:
    raise ValueError(context.attempt)
