"""The actions of the tests on the site."""

from __future__ import annotations

from typing import Any


def migrate(alias: str = "default") -> None:
    from django.core.management import call_command

    call_command("migrate", database=alias, verbosity=0)


def groups(alias: str = "default") -> Any:
    """The rows that the tests write: the groups of ``django.contrib.auth``."""
    from django.contrib.auth.models import Group

    return Group.objects.using(alias)
