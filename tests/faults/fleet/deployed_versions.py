"""Two versions of an app, as workers and producers in processes of their own.

The new version is the first step of a deployment: it has a new parameter, and neither requires the parameter
that goes nor the old name of the renamed one.
"""

from __future__ import annotations

from typing import Any, Literal

from dayjob import App, BrokerConfig, Worker
from dayjob.events import Event
from tests.faults.fleet.roles import KEEP_ALL
from tests.support.processes import send_to_test, wait_for_test

Version = Literal["old", "new"]

CALLS: dict[Version, dict[str, dict[str, Any]]] = {
    "old": {
        "mail": {"to": "ada"},
        "report": {"day": "monday", "verbose": True},
        "greet": {"name": "ada"},
    },
    "new": {
        "mail": {"to": "ada", "cc": "grace"},
        "report": {"day": "monday"},
        "greet": {"user": "ada"},
        "welcome": {"user": "ada"},
    },
}
"""The calls of each version by task: an added, a removed and a renamed parameter, and an added task."""

RESULTS: dict[Version, dict[str, str]] = {
    "old": {"mail": "to ada", "report": "monday", "greet": "hello ada"},
    "new": {"mail": "to ada, grace", "report": "monday", "greet": "hello ada", "welcome": "welcome ada"},
}


def build(url: str, version: Version) -> App:
    app = App(url, config=BrokerConfig(retention=KEEP_ALL))
    if version == "old":

        @app.task(name="mail", max_attempts=1)
        async def mail(to: str) -> str:
            return f"to {to}"

        @app.task(name="report", max_attempts=1)
        async def report(day: str, verbose: bool) -> str:
            return day

        @app.task(name="greet", max_attempts=1)
        async def greet(name: str) -> str:
            return f"hello {name}"

    else:

        @app.task(name="mail", max_attempts=1)
        async def new_mail(to: str, cc: str | None = None) -> str:
            return f"to {to}" if cc is None else f"to {to}, {cc}"

        @app.task(name="report", max_attempts=1)
        async def new_report(day: str, verbose: bool = False) -> str:
            return day

        @app.task(name="greet", max_attempts=1)
        async def new_greet(user: str = "", name: str = "") -> str:
            return f"hello {user or name}"

        @app.task(name="welcome", max_attempts=1)
        async def welcome(user: str) -> str:
            return f"welcome {user}"

    return app


async def work(url: str, version: Version) -> None:
    """Run a worker until it is stopped. Send its id when it runs."""
    app = build(url, version)
    worker = Worker(app, name=version)

    @app.on("worker.started")
    async def started(event: Event) -> None:
        send_to_test(worker.id)

    await worker.run(signals=True)


async def produce(url: str, version: Version) -> None:
    """Enqueue each call of the version, once for each time that the test allows it. Send the ids by task."""
    async with build(url, version) as app:
        while True:
            send_to_test(
                {
                    task: (await app.tasks[task].aenqueue(**arguments)).id
                    for task, arguments in CALLS[version].items()
                }
            )
            await wait_for_test()
