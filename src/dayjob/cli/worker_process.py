"""One worker in this process, from the app's import to the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import click

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.app_argument import load_app
from dayjob.cli.dashboard import serve_with
from dayjob.cli.worker_health import Files, Health
from dayjob.cli.worker_lifeline import Lifeline
from dayjob.cli.worker_metrics import serving_metrics
from dayjob.cli.worker_news import log_outcomes
from dayjob.cli.worker_options import WorkerOptions, queues_of
from dayjob.errors import ConfigError, DayjobError, EngineUnavailable
from dayjob.events import Event
from dayjob.runtime.clock import block
from dayjob.worker import Worker
from dayjob.worker.garbage import collect_less_often

_log = logging.getLogger("dayjob.worker")

OK, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
REPLACE = 75
"""A child's exit code that asks its supervisor for a successor, without delay."""

GRACE = 3.0
"""Seconds that foreign threads have to end after the worker has."""


def run_worker(options: WorkerOptions) -> int:
    """Work in this process until a signal or, with ``burst``, until nothing is left to do."""
    worker = make_worker(load_app(options.app), options)
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    with serving_metrics(worker, options.metrics):
        code = _run(worker, options, threads)
    return _leave(code, threads)


def run_child(options: WorkerOptions, descriptor: int) -> int:
    """Work for the supervisor at the other end of the line."""
    lifeline = Lifeline(descriptor, options.shutdown_timeout)
    try:
        worker = make_worker(load_app(options.app), options)
    except click.ClickException as error:
        if not options.reload:
            raise
        error.show()
        _log.info("waiting for a change of the files in %s", Path.cwd())
        Files(Path.cwd()).wait_for_change()
        return REPLACE
    health = Health(worker, max_rss=options.max_rss, reload=options.reload)

    async def started(_: Event) -> None:
        # A service manager may signal this process too, and that is not the second signal: the word is.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        lifeline.ready()

    worker.app.events.add("worker.started", started)
    lifeline.attach(worker)
    health.start()
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    with serving_metrics(worker, options.metrics):
        code = _run(worker, options, threads)
    if code == OK and (health.replace or _is_used_up(worker, options)):
        code = REPLACE
    return _leave(code, threads)


def _is_used_up(worker: Worker, options: WorkerOptions) -> bool:
    """Whether ``max_jobs`` ended it. A burst may end by itself, so it is over once a run finds no job."""
    return options.max_jobs is not None and (worker.done > 0 or not options.burst)


def make_worker(app: App, options: WorkerOptions) -> Worker:
    queues = queues_of(app) if options.queues is None else options.queues
    if options.queues is None and not queues:
        raise click.UsageError(
            f"{options.app} has no tasks, so there is no queue to serve: import the modules that "
            "define them, or name queues with -q ('*' for all)"
        )
    log_outcomes(app)
    if options.take_over:
        take_over(app)
    try:
        return Worker(
            app, queues, options.concurrency, options.job_timeout, options.shutdown_timeout, options.lease,
            options.name, unknown_task=options.unknown_task, max_jobs=options.max_jobs,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def take_over(app: App) -> None:
    """Have the app take its storage over from whoever has it open."""
    url = f"{app.url}{'&' if '?' in app.url else '?'}takeover=1"
    try:
        Broker(url, config=app.config)
    except ConfigError as error:
        scheme = app.url.partition(":")[0]
        raise click.UsageError(
            f"--take-over: {scheme}:// has no single owner to take over from, or the URL says it already "
            f"({error})"
        ) from error
    app.url = url


def _run(worker: Worker, options: WorkerOptions, threads: ThreadPoolExecutor) -> int:
    dashboard = None if options.dashboard is None else serve_with(worker.app, options.dashboard)
    try:
        return _run_worker(worker, options, threads)
    finally:
        if dashboard is not None:
            dashboard.stop()


def _run_worker(worker: Worker, options: WorkerOptions, threads: ThreadPoolExecutor) -> int:
    code = FAILED
    collect_less_often()
    try:
        with asyncio.Runner(loop_factory=_loop_factory(options.uvloop)) as runner:
            runner.run(_serve(worker, options.burst, threads))
        code = OK
    except EngineUnavailable as error:
        _log.error("the storage is not available: %s", error)
        code = UNAVAILABLE
    except ConfigError as error:
        _log.error("%s", error)
        code = USAGE
    except DayjobError as error:
        _log.error("%s: %s", type(error).__name__, error)
    except asyncio.CancelledError:
        _log.warning("worker %s was interrupted before it had started", worker.name)
    except Exception:
        _log.exception("worker %s failed", worker.name)
    return code


async def _serve(worker: Worker, burst: bool, threads: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads)
    try:
        with _signals(worker):
            await (worker.run_until_idle() if burst else worker.run())
    finally:
        loop.set_default_executor(ThreadPoolExecutor())  # Closing the loop would wait for the threads.


@contextmanager
def _signals(worker: Worker) -> Iterator[None]:
    """For as long as the worker does not listen itself (the app starts or ends): the second one is final."""
    this = asyncio.current_task()
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        heard.append(number)
        worker.stop()
        if this is not None and len(heard) > 1:
            loop.call_soon_threadsafe(this.cancel)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed."""
    if wanted:
        with suppress(ImportError):
            factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
            return factory
    return None


def _leave(code: int, threads: ThreadPoolExecutor) -> int:
    """The exit code, to exit with. Threads that don't end must not hold that up: all jobs are settled.

    What handlers gave to ``asyncio.to_thread`` the interpreter waits for before anything else.
    """
    ending = threading.Thread(target=threads.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    ending.join(GRACE)
    if ending.is_alive():
        _abandon(code)
    threading.Thread(target=_end_within, args=(GRACE, code), name="dayjob-exit", daemon=True).start()
    return code


def _end_within(seconds: float, code: int) -> None:
    """Once the interpreter waits for threads that are not daemons, let it do so for these seconds only."""
    threading.main_thread().join()
    block(seconds)
    _abandon(code)


def _abandon(code: int) -> None:
    _log.warning("some threads did not end, and are left behind")
    logging.shutdown()
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(code)
