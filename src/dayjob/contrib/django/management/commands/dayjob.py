"""``manage.py dayjob COMMAND``: every command of ``dayjob``, on the app and the store of the site."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from dayjob.cli import main
from dayjob.cli.store_command import StoreCommand, StoreGroup
from dayjob.contrib.django.configuration import backend_queues
from dayjob.contrib.django.site_app import app
from dayjob.errors import ConfigError

APP = "dayjob.contrib.django:app"

_DJANGO_OPTIONS = ("--settings", "--pythonpath")
"""The options of ``manage.py`` that have taken effect by now."""


class Command(BaseCommand):  # type: ignore[misc]
    help = "Run a command of dayjob, such as worker, jobs or dashboard, on the site's store."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command of the command line, whose options are those of ``dayjob``."""
        _run(_without_django_options(argv[2:]), f"{Path(argv[0]).name} {argv[1]}")

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """Run the command of ``call_command``."""
        try:
            _run(arguments, "dayjob")
        except SystemExit as end:
            if end.code:
                raise CommandError(f"dayjob {' '.join(arguments)} failed", returncode=end.code) from end


def _run(arguments: list[str], name: str) -> None:
    # The processes of a worker find the site's modules in the folder of manage.py.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
    try:
        given = on_site(arguments)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    main(args=given, prog_name=name)


def on_site(arguments: list[str]) -> list[str]:
    """Return the arguments with the app or the URL of the site where the command takes one."""
    if not arguments or arguments[0] not in main.commands:
        return arguments
    name, *others = arguments
    command = main.commands[name]
    before, after = [], []
    if isinstance(command, StoreCommand | StoreGroup):
        before = ["--url", app.url]
    if any(isinstance(each, click.Argument) and each.name == "app" for each in command.params):
        after = [APP]
        if name == "worker" and backend_queues() is None:
            named = any(each.startswith(("-q", "--queues")) for each in others)
            after += [] if named else ["--queues", "*"]
    return [*before, name, *after, *others]


def _without_django_options(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for each in arguments:
        if skip:
            skip = False
        elif each in _DJANGO_OPTIONS:
            skip = True
        elif not each.startswith(tuple(f"{option}=" for option in _DJANGO_OPTIONS)):
            kept.append(each)
    return kept
