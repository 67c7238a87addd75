"""Found by the application: ``autodiscover`` imports the module ``tasks`` of each installed app."""

from __future__ import annotations

from dayjob.contrib.django import task
from tests.contrib.django.site import groups


@task
def add(one: int, other: int) -> int:
    return one + other


@task
def rename(name: str, alias: str = "default") -> str:
    """Read and write in the thread of a plain function."""
    group = groups(alias).get(name=name)
    group.name = f"{name}, seen"
    group.save()
    return str(group.name)


@task
async def arename(name: str, alias: str = "default") -> str:
    group = await groups(alias).aget(name=name)
    group.name = f"{name}, seen"
    await group.asave()
    return str(group.name)
