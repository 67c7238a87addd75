"""``dayjob completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dayjob.cli.output import print_text

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      eval "$(dayjob completion bash)"     in ~/.bashrc
      eval "$(dayjob completion zsh)"      in ~/.zshrc
      dayjob completion fish > ~/.config/fish/completions/dayjob.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    print_text(kind(root.command, {}, "dayjob", "_DAYJOB_COMPLETE").source())
