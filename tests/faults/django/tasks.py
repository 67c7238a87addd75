"""Tasks that read rows: in a thread, on the event loop, and in child processes.

The import of a model fails if Django is not set up, in a child process too.
"""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.db import connections

from dayjob.contrib.django import task


@task
def in_thread() -> int:
    return int(Group.objects.using("pg").count())


@task
async def on_loop() -> int:
    return int(await Group.objects.using("pg").acount())


@task(pool="process")
def in_child() -> int:
    return int(Group.objects.using("pg").count())


@task(pool="process")
async def on_loop_of_child() -> int:
    return int(await Group.objects.using("pg").acount())


@task
def close_connections() -> int:
    """Close the open connections of this thread. Return their number."""
    found = [each for each in connections.all(initialized_only=True) if each.connection is not None]
    connections.close_all()
    return len(found)
