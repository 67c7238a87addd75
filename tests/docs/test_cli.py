"""Every command and every option is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dayjob.cli import main

DOCS = Path(__file__).parents[2] / "docs"
OWN_PAGES = {"worker": "worker.md", "demo": "demo.md", "dashboard": "dashboard.md"}
"""Commands with a page of their own."""


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


ALL = dict(commands(main))


def documented(names: tuple[str, ...]) -> str:
    """Return the documentation of a command."""
    if names[0] in OWN_PAGES:
        return (DOCS / OWN_PAGES[names[0]]).read_text()
    page = (DOCS / "cli.md").read_text()
    section = re.search(rf"^### `dayjob {names[0]}`\n(.*?)(?=^##|\Z)", page, re.M | re.S)
    assert section is not None, f"docs/cli.md has no section on dayjob {names[0]}"
    return section[1]


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_every_command_and_option_is_documented(names: tuple[str, ...]) -> None:
    text = documented(names)
    for name in names[1:]:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", text), f"{' '.join(names)} is not documented"
    for option in ALL[names].params:
        if isinstance(option, click.Option) and not option.hidden and option.name != "url":
            long = max(option.opts, key=len)
            assert f"`{long}" in text, f"{long} of dayjob {' '.join(names)} is not documented"


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_every_option_has_a_help_text(names: tuple[str, ...]) -> None:
    command = ALL[names]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.opts[0]} of dayjob {' '.join(names)} has no help text"


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_every_command_has_help(names: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*names, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
