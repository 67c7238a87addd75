"""The system checks: ``manage.py check`` reports the mistakes in ``DAYJOB`` as ``dayjob.E001`` and so on."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register

from dayjob.contrib.django.configuration import problems


@register("dayjob")  # type: ignore[untyped-decorator]
def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    return [
        (Error if problem.id.startswith("E") else Warning)(
            problem.text, hint=problem.hint, id=f"dayjob.{problem.id}"
        )
        for problem in problems()
    ]
