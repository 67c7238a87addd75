"""Import every module of the installed dayjob, and run a job. Run by the interpreter of a fresh environment.

Prints the modules that can't be imported as JSON, each with the package that it misses. Any other error of an
import ends the program.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import dayjob
from dayjob import App, Worker

PYTEST_ONLY = {"dayjob.pytest_plugin"}
"""Imported by pytest itself."""


def modules() -> list[str]:
    folder = Path(dayjob.__file__).parent
    names = (
        ".".join(("dayjob", *path.relative_to(folder).with_suffix("").parts)) for path in folder.rglob("*.py")
    )
    return sorted(
        name.removesuffix(".__init__")
        for name in names
        if not name.endswith("__main__") and name not in PYTEST_ONLY
    )


def missing(names: Iterable[str]) -> dict[str, str]:
    """Return the modules that can't be imported, each with the package that it misses."""
    found: dict[str, str] = {}
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "dayjob"):
                raise
            found[name] = package
    return found


def set_up_django() -> None:
    """Enter a minimal site, if Django is installed: models and the admin can't be imported outside of one."""
    try:
        import django
        from django.conf import settings
    except ModuleNotFoundError:
        return
    settings.configure(
        INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes"],
        DAYJOB={"URL": "memory://"},
    )
    django.setup()


async def run_a_job() -> None:
    app = App("memory://")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    async with app:
        handle = await double.aenqueue(21)
        await Worker(app).run_until_idle()
        assert await handle.aresult() == 42


if __name__ == "__main__":
    asyncio.run(run_a_job())
    set_up_django()
    print(json.dumps(missing(modules())))
