"""The Django application ``dayjob``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class DayjobConfig(AppConfig):  # type: ignore[misc]
    """Registers the checks, and imports the module ``tasks`` of each installed app.

    ``manage.py migrate`` creates dayjob's tables in the site's database too.
    """

    name = "dayjob.contrib.django"
    label = "dayjob"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        from dayjob.contrib.django import checks  # noqa: F401 - registers them

        post_migrate.connect(_create_tables, sender=self)
        autodiscover_modules("tasks")


def _create_tables(using: str, **_: Any) -> None:
    from dayjob.contrib.django.configuration import has_tables
    from dayjob.contrib.django.site_app import app

    if has_tables(using):
        app.call(app.open)
        app.call(app.close)
