"""Commands run in this process, on a store of the test."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from dayjob import Broker
from dayjob.cli import main
from tests.cli.processes import with_broker

Answer = TypeVar("Answer")


class Store:
    """A SQLite file, and commands on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.url = f"sqlite:///{self.path}"

    def run(self, command: str, *arguments: str, input: str | None = None) -> Result:
        """Run the command with the URL in the environment."""
        runner = CliRunner()
        result = runner.invoke(
            main, [*command.split(), *arguments], input=input, env={"DAYJOB_URL": self.url}
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback (most recent call last)" not in result.stderr
        return result

    def json(self, command: str, *arguments: str) -> Any:
        result = self.run(command, *arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def with_broker(self, work: Callable[[Broker], Awaitable[Answer]]) -> Answer:
        return with_broker(self.url, work)

    def enqueue(self, *arguments: str) -> str:
        result = self.run("enqueue", *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    def kill(self, *ids: str, reason: str = "ValueError: bad number 7") -> None:
        """Make pending jobs dead."""

        async def work(broker: Broker) -> None:
            for queue in await broker.queues():
                for job in await broker.claim(queue, limit=1000, worker="w"):
                    if job.id in ids:
                        await broker.dead_letter(job, reason)
                    else:
                        await broker.release(job)

        self.with_broker(work)
