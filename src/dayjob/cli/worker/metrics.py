"""``dayjob worker --metrics``: the metrics and health of this process over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

from dayjob.broker import Broker
from dayjob.cli.worker.options import Address
from dayjob.errors import ConfigError
from dayjob.worker import Worker


@contextmanager
def serving_metrics(worker: Worker, address: Address | None, hosts: tuple[str, ...] = ()) -> Iterator[None]:
    """Measure the worker's jobs and serve the metrics, if an address is given."""
    if address is None:
        yield
        return
    try:
        metrics = import_module("dayjob.metrics")
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"--metrics needs {error.name}, which is not installed: run  pip install 'dayjob[metrics]'"
        ) from error
    app = worker.app
    meter = app.meter or metrics.measure(app)
    try:
        server = metrics.MetricsServer(
            lambda: Broker(app.url, config=app.broker_config), address.port, host=address.host,
            hosts=hosts, registry=meter.registry, alive=worker.problem,
        )  # fmt: skip
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    server.start()
    try:
        yield
    finally:
        server.stop()
