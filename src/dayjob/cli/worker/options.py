"""The options of ``dayjob worker``, and the command line that passes them to a child process."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import asdict, replace

from dayjob.cli.logging_setup import Format
from dayjob.worker.executor import OnUnknown

_NEGATIVE = {"uvloop": ["--no-uvloop"], "log_jobs": ["--no-log-jobs"]}
"""The flags that are given for ``False``."""

_WEIGHT = re.compile(r"(.+):([0-9]{1,6})")


class Address(Struct, frozen=True):
    """An address to listen on. Other machines can reach it unless the host is a loopback address."""

    host: str
    port: int

    def next(self, number: int) -> Address:
        """Return the address that many ports further."""
        return Address(self.host, self.port + number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """Names and meanings are those of the command's options."""

    app: str
    queues: tuple[str, ...] | None
    """None: the queues of the app's tasks and handlers. Empty: all queues."""
    concurrency: int
    threads: int | None
    pool_processes: int | None
    processes: int
    burst: bool
    job_timeout: float | None
    shutdown_timeout: float
    lease: float | None
    name: str | None
    unknown_task: OnUnknown
    max_jobs: int | None
    max_rss: int | None
    reload: bool
    take_over: bool
    metrics: Address | None
    metrics_host: tuple[str, ...]
    dashboard: int | None
    uvloop: bool
    log_level: str
    log_format: Format
    log_jobs: bool | None
    """None: on a terminal only."""

    @property
    def weighted_queues(self) -> tuple[str, ...] | dict[str, int] | None:
        """The queues, by name with their weights if all of them have one: ``critical:5``."""
        weights = [_WEIGHT.fullmatch(queue) for queue in self.queues or ()]
        if not weights or None in weights:
            return self.queues
        return {found[1]: int(found[2]) for found in weights if found is not None}

    @property
    def supervised(self) -> bool:
        """Whether a supervisor is needed, for several processes or for restarts."""
        return self.processes > 1 or self.restarts or self.reload

    @property
    def restarts(self) -> bool:
        return self.max_jobs is not None or self.max_rss is not None

    def for_child(self, number: int, descriptor: int, *, restarted: bool = False) -> list[str]:
        """Return the command line of a child, numbered from 1.

        A restarted child never takes over the storage: another owner may have taken it from its predecessor.
        """
        child = replace(
            self,
            queues=("*",) if self.queues == () else self.queues,
            name=None if self.name is None else f"{self.name}-{number}",
            take_over=self.take_over and not restarted,
            metrics=None if self.metrics is None else self.metrics.next(number - 1),
            dashboard=self.dashboard if number == 1 else None,
        )
        arguments = ["worker", "--child", str(descriptor)]
        for field, value in asdict(child).items():
            option = f"--{field.replace('_', '-')}"
            if isinstance(value, bool):
                arguments += [option] if value else _NEGATIVE.get(field, [])
            elif isinstance(value, tuple):
                for each in value:
                    arguments += [option, each]
            elif value is not None:
                arguments += [option, str(value)] if field != "app" else [value]
        return arguments
