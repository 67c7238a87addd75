"""The model ``Job``, for Django's permissions and the admin. It has no table: the store has the jobs."""

from __future__ import annotations

from django.db import models


class Job(models.Model):  # type: ignore[misc]
    """A job of the site. ``view_job`` allows to read jobs, and ``change_job`` to cancel and requeue them."""

    id = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        app_label = "dayjob"
        default_permissions = ("view", "change")
        verbose_name = "job"

    def __str__(self) -> str:
        return str(self.id)
