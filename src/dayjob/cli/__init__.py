"""The ``dayjob`` command."""

from dayjob.cli.main import main

__all__ = ["main"]
