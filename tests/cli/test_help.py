"""The help of every command on a terminal of 80 columns: no line is wider, and no sentence is cut off."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from dayjob.cli import main
from dayjob.cli.main import SECTIONS


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_no_line_is_wider_than_80_columns_and_no_sentence_is_cut(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    _usage, *lines = result.output.splitlines()
    assert [line for line in lines if len(line) > 80 or line.endswith("...")] == []


def test_every_command_has_a_section() -> None:
    assert sorted(str(each.name) for section in SECTIONS.values() for each in section) == sorted(
        main.commands
    )
