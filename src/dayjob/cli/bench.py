"""``dayjob bench``: measure the throughput of a store from this machine."""

from __future__ import annotations

import asyncio

import click

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.output import Column, console, json_option, print_json, progress, table
from dayjob.cli.store_command import StoreCommand, on_store
from dayjob.model.config import BrokerConfig, Retention
from dayjob.model.job import NewJob
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from dayjob.worker import Worker

BATCH = 1000
SINGLE_ENQUEUES = 200


@click.command(cls=StoreCommand)
@click.option("-n", "--jobs", type=click.IntRange(100, 10_000_000), default=10_000, show_default=True,
              help="How many jobs to run.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(min=1), default=100, show_default=True,
              help="The worker's slots.")  # fmt: skip
@click.option("--size", type=click.IntRange(0, 1_000_000), default=0, show_default=True, metavar="BYTES",
              help="The size of each payload.")  # fmt: skip
@json_option
def bench(url: str, jobs: int, concurrency: int, size: int, as_json: bool) -> None:
    """Measure a store: single enqueues, enqueues in batches, and a worker on no-op jobs.

    It uses a new queue and removes its jobs afterwards. Other queues are not changed, but share the load.
    """
    queue = f"dayjob-bench-{new_key().hex()[-8:]}"
    payload = b'"' + b"x" * max(size - 2, 0) + b'"'

    async def enqueue(broker: Broker) -> tuple[float, float]:
        started = SYSTEM.elapsed()
        for _ in range(SINGLE_ENQUEUES):
            await broker.enqueue(queue, payload)
        single = SINGLE_ENQUEUES / (SYSTEM.elapsed() - started)
        started = SYSTEM.elapsed()
        with progress("enqueuing", jobs) as update:
            for first in range(0, jobs, BATCH):
                await broker.enqueue_many([NewJob(queue, payload)] * min(BATCH, jobs - first))
                update(min(first + BATCH, jobs))
        return single, jobs / (SYSTEM.elapsed() - started)

    async def drain(broker: Broker) -> float:
        app = App(url, config=BrokerConfig(retention=Retention(done=0)))

        @app.handler(queue=queue)
        async def no_op(job: object) -> None: ...

        worker = Worker(app, queues=[queue], concurrency=concurrency)
        started = SYSTEM.elapsed()
        with progress("running", jobs + SINGLE_ENQUEUES) as update:
            working = asyncio.ensure_future(worker.run_until_idle())
            while not working.done():
                await asyncio.wait({working}, timeout=0.2)
                update(worker.done)
            await working
        return worker.done / (SYSTEM.elapsed() - started)

    single, batched = on_store(url, enqueue, writes=True)
    drained = on_store(url, drain, writes=True)
    figures = {"enqueue_one_by_one": single, "enqueue_in_batches": batched, "run": drained}
    if as_json:
        print_json({name: round(rate, 1) for name, rate in figures.items()})
    else:
        rows = [
            ("enqueue, one by one", single),
            (f"enqueue, in batches of {BATCH:,}", batched),
            (f"run by one worker, {concurrency} slots", drained),
        ]
        console().print(table((Column("operation"), Column("jobs per second")), rows))
