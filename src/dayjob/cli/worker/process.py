"""One worker in this process, from the import of the app to the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.app_argument import load_app
from dayjob.cli.dashboard import serve_with
from dayjob.cli.worker.options import Address, WorkerOptions
from dayjob.cli.worker.restart_watcher import RestartWatcher, SourceFiles
from dayjob.cli.worker.stop_signals import StopSignals
from dayjob.cli.worker.supervisor_link import SupervisorLink
from dayjob.errors import ConfigError, DayjobError, EngineUnavailable
from dayjob.events import Event
from dayjob.runtime.clock import block
from dayjob.worker import Worker
from dayjob.worker.process_memory import collect_less_often, limit_heaps
from dayjob.worker.shared_beats import join_tree

_log = logging.getLogger("dayjob.worker")

OK, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
REPLACE = 75
"""The exit code of a child that its supervisor replaces at once."""

SWITCH_INTERVAL = 0.001
"""Seconds after which a CPU-bound thread lets others run, instead of Python's 5 ms.

The event loop and the heartbeat wait that long for each handler that computes in a thread, many times in a
commit.
"""

TASKS_TIMEOUT, THREADS_TIMEOUT = 1.0, 3.0
"""Seconds for tasks and for threads of handlers to end after the worker has stopped."""


def run_worker(options: WorkerOptions) -> int:
    """Run a worker in this process until a signal or, with ``burst``, until no job is ready."""
    return _run(make_worker(load_app(options.app), options), options)


def run_child(options: WorkerOptions, descriptor: int) -> int:
    """Run a worker as a child of the supervisor at the other end of the link."""
    link = SupervisorLink(descriptor, options.shutdown_timeout)
    files = SourceFiles(Path.cwd()) if options.reload else None  # Seen before the import reads them.
    try:
        worker = make_worker(load_app(options.app), options)
    except click.ClickException as error:
        if files is None:
            raise
        error.show()
        _log.info("waiting for a change of the files in %s", Path.cwd())
        files.wait_for_change()
        return REPLACE
    watcher = RestartWatcher(worker, max_rss=options.max_rss, reload=options.reload)

    async def started(_: Event) -> None:
        link.ready()

    worker.app.events.add("worker.started", started)
    link.attach(worker)
    if options.processes > 1:
        join_tree(link)
    watcher.start()
    # A service manager may signal this process too. Only STOP_NOW counts as the second signal.
    return _run(
        worker, options, signals=1, replaced=lambda: watcher.replace or _reached_max_jobs(worker, options)
    )


@contextmanager
def _serving_metrics(worker: Worker, address: Address | None, hosts: tuple[str, ...]) -> Iterator[None]:
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


def _reached_max_jobs(worker: Worker, options: WorkerOptions) -> bool:
    """Return whether ``max_jobs`` stopped the worker. A burst is over once a process finds no job to run."""
    return options.max_jobs is not None and (worker.done > 0 or not options.burst)


def make_worker(app: App, options: WorkerOptions) -> Worker:
    if options.queues is None and not app.queues():
        raise click.UsageError(
            f"{options.app} has no tasks, so there is no queue to serve: import the modules that "
            "define them, or name queues with -q ('*' for all)"
        )
    if options.take_over:
        take_over(app)
    try:
        return Worker(
            app, options.weighted_queues, options.concurrency, options.job_timeout, options.shutdown_timeout,
            options.lease, options.name, unknown_task=options.unknown_task, max_jobs=options.max_jobs,
            threads=options.threads, pool_processes=options.pool_processes,
            log_jobs=sys.stderr.isatty() if options.log_jobs is None else options.log_jobs,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def take_over(app: App) -> None:
    """Make the app take over its storage from the process that has it open."""
    url = f"{app.url}{'&' if '?' in app.url else '?'}takeover=1"
    try:
        Broker(url, config=app.config)
    except ConfigError as error:
        scheme = app.url.partition(":")[0]
        raise click.UsageError(
            f"--take-over: {scheme}:// has no single owner, or its URL already has takeover=1 ({error})"
        ) from error
    app.url = url


def _run(
    worker: Worker, options: WorkerOptions, signals: int = 2, replaced: Callable[[], bool] = lambda: False
) -> int:
    """Run the worker, whose first ``signals`` stop signals count. Return the exit code.

    It is ``REPLACE`` after a clean end if ``replaced`` returns true.
    """
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    with ExitStack() as stack:
        stack.enter_context(_serving_metrics(worker, options.metrics, options.metrics_host))
        if options.dashboard is not None:
            stack.callback(serve_with(worker.app, options.dashboard).stop)
        collect_less_often()
        limit_heaps()
        sys.setswitchinterval(SWITCH_INTERVAL)
        runner = asyncio.Runner(loop_factory=_loop_factory(options.uvloop))
        loop = runner.get_loop()
        with StopSignals(worker, options.shutdown_timeout, signals):
            code = _exit_code(worker, loop, _serve(worker, options.burst, threads))
            ended = _end_tasks(loop)
            if ended:
                runner.close()
    if code == OK and replaced():
        code = REPLACE
    return _leave(code, threads, ended)


def _exit_code(worker: Worker, loop: asyncio.AbstractEventLoop, serve: Coroutine[Any, Any, None]) -> int:
    code = FAILED
    try:
        _run_until_complete(loop, loop.create_task(serve))
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
        _log.warning("worker %s was interrupted before it started", worker.name)
    except (SystemExit, KeyboardInterrupt) as error:
        _log.error("worker %s was ended by %r", worker.name, error)
    except Exception:
        _log.exception("worker %s failed", worker.name)
    return code


def _run_until_complete(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[Any]) -> None:
    """Run the loop until the task ends. ``SystemExit`` in a task that a handler started fails its job only.

    asyncio raises it out of the loop as well as in the task that awaits it.
    """
    while True:
        try:
            loop.run_until_complete(serving)
            return
        except (SystemExit, KeyboardInterrupt) as error:
            if serving.done():
                raise
            _log.error("a task of a handler raised %r, which does not end the worker", error)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel the tasks that handlers left. Return whether all have ended within a moment."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _run_until_complete(loop, loop.create_task(asyncio.wait(left, timeout=TASKS_TIMEOUT)))
    return all(task.done() for task in left)


async def _serve(worker: Worker, burst: bool, threads: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads)
    try:
        await (worker.run_until_idle() if burst else worker.run())
    finally:
        loop.set_default_executor(ThreadPoolExecutor())  # Closing the loop would wait for the threads.


def _loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, if it is installed."""
    if wanted:
        with suppress(ImportError):
            factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
            return factory
    return None


def _leave(code: int, threads: ThreadPoolExecutor, tasks_ended: bool) -> int:
    """Return the exit code, and ensure that the process exits even if handlers do not end.

    All jobs are settled by now. The interpreter waits first for the threads of ``asyncio.to_thread``, then
    for others that are not daemons. Both waits are bounded.
    """
    if not tasks_ended:
        _abandon("some handlers suppressed their cancellation", code)
    ending = threading.Thread(target=threads.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    ending.join(THREADS_TIMEOUT)
    if ending.is_alive():
        _abandon("some threads of handlers did not end", code)
    threading.Thread(
        target=_exit_after, args=(THREADS_TIMEOUT, code), name="dayjob-exit", daemon=True
    ).start()
    return code


def _exit_after(seconds: float, code: int) -> None:
    """End the process this many seconds after the interpreter began to wait for threads."""
    threading.main_thread().join()
    block(seconds)
    _abandon("some threads of handlers did not end", code)


def _abandon(reason: str, code: int) -> None:
    _log.warning("%s and are abandoned", reason)
    logging.shutdown()
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(code)
