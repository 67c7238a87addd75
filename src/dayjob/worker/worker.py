"""The worker: claims jobs in batches, runs them side by side, settles them in batches, and drains.

It never holds more claims than it has slots, plus a prefetch of as many while its jobs are short.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from msgspec.structs import replace

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.context import Context
from dayjob.errors import ConfigError, DayjobError, EngineFenced, InvalidState
from dayjob.events import Event
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.job import Job
from dayjob.model.lifecycle import Transition
from dayjob.model.names import KEY_BYTES, check_name, check_queue
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.clock import SYSTEM, yield_to_loop
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.executor import Executor, OnUnknown
from dayjob.worker.fetcher import LONG, Fetcher
from dayjob.worker.heartbeat import Heartbeat
from dayjob.worker.interrupts import interrupts
from dayjob.worker.isolation import Isolation
from dayjob.worker.opening import opened
from dayjob.worker.outcome import describe
from dayjob.worker.processes import ProcessPool
from dayjob.worker.progress import ProgressReports
from dayjob.worker.registration import Registration
from dayjob.worker.report import happened
from dayjob.worker.run import Run
from dayjob.worker.settler import Batch, Settler
from dayjob.worker.threads import ThreadPool

_log = logging.getLogger("dayjob.worker")

SHORT = 0.05
"""Jobs that take less than this many seconds on average are fetched ahead."""

MOST_UNSETTLED = 4
"""Runs that have ended free their slots before their outcomes are stored, up to so many times the slots."""

_IN_A_TURN = 32
"""Runs that a task performs at most before it makes room for others on the event loop."""

_LOOK_AGAIN = 0.1
"""Seconds after which ``run_until_idle`` looks for jobs that the running ones enqueued."""

_GRACE = 2.0
"""Seconds for interrupted handlers to end, and for observers to catch up."""


class Worker:
    """Runs an app's jobs until it is stopped."""

    def __init__(
        self,
        app: App,
        queues: Sequence[str] = ("default",),
        concurrency: int = 100,
        job_timeout: Duration | None = None,
        shutdown_timeout: Duration = 30,
        lease: Duration | None = None,
        name: str | None = None,
        *,
        unknown_task: OnUnknown = "release",
        max_jobs: int | None = None,
    ) -> None:
        if isinstance(queues, str):
            raise ConfigError(f"queues={queues!r}: pass a sequence of names, such as ({queues!r},)")
        for queue in queues:
            check_queue(queue)
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"concurrency={concurrency!r}: pass a whole number, 1 or more")
        if unknown_task not in ("release", "dead"):
            raise ConfigError(f"unknown_task={unknown_task!r}: pass 'release' or 'dead'")
        self.app = app
        self.queues = tuple(queues)
        self.concurrency = concurrency
        self.name = f"{socket.gethostname()}-{os.getpid()}" if name is None else name
        check_name(self.name, "worker name", KEY_BYTES - 100)
        self.id = ""
        """Under what it claims jobs: its own for each start, from its name."""
        if lease is not None and to_micros(lease, "lease") == 0:
            raise ConfigError("lease=0: a claim needs time to run; pass some seconds")
        if max_jobs is not None and (isinstance(max_jobs, bool) or max_jobs < 1):
            raise ConfigError(f"max_jobs={max_jobs!r}: pass a whole number, 1 or more, or None")
        self.done = 0
        """How many runs have been settled."""
        self._job_timeout = None if job_timeout is None else to_micros(job_timeout, "job_timeout") / SECOND
        self._shutdown_timeout = to_micros(shutdown_timeout, "shutdown_timeout") / SECOND
        self._lease = lease
        self._unknown_task: OnUnknown = unknown_task
        self._max_jobs = max_jobs
        self._clock = app.clock or SYSTEM
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepare()

    def _prepare(self) -> None:
        """What belongs to one run and its event loop."""
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._runs: dict[bytes, Run] = {}
        self._unsettled = 0
        """How many of the runs have ended, and wait for their outcomes to be stored."""
        self._waiting: deque[Run] = deque()
        self._starting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._average = 1.0
        self._started = 0
        self._registration: Registration | None = None
        self._failure: Exception | None = None

    # From outside.

    async def run(self) -> None:
        """Work until ``stop``, SIGTERM or SIGINT; then drain. A second signal hurries."""
        await self._serve(until_idle=False)

    async def run_until_idle(self) -> None:
        """Work until nothing is claimable and nothing runs; what is scheduled for later stays."""
        await self._serve(until_idle=True)

    def stop(self) -> None:
        """Claim no more, and let ``run`` end when the running jobs have; from any thread."""
        self._from_any_thread(self._stopping)

    def problem(self) -> str | None:
        """What a health check should know: that the worker is not at work, or was not heard of in time."""
        if self._loop is None or self._registration is None:
            return "the worker is not running"
        late = self._registration.silent_for()
        return None if late is None else f"no heartbeat was stored for {late:.0f} s"

    def stop_now(self) -> None:
        """Stop without waiting for running jobs: they are interrupted and released."""
        self._from_any_thread(self._stopping)
        self._from_any_thread(self._stopping_now)

    def _from_any_thread(self, event: asyncio.Event) -> None:
        if self._loop is None:
            event.set()
        else:
            with suppress(RuntimeError):  # The loop has closed: there is nothing left to stop.
                self._loop.call_soon_threadsafe(event.set)

    # The life of a worker.

    async def _serve(self, until_idle: bool) -> None:
        if self._loop is not None:
            raise InvalidState(f"worker {self.name!r} runs already: make another one")
        self._loop = asyncio.get_running_loop()
        try:
            async with AsyncExitStack() as stack:
                broker = await stack.enter_async_context(opened(self.app))
                state = None
                if self.app.lifespan is not None:
                    state = await stack.enter_async_context(self.app.lifespan(self.app))
                await self._work(stack, broker, state, until_idle)
            if self._failure is not None:
                raise self._failure
        finally:
            self._loop = None
            self._prepare()

    async def _work(self, stack: AsyncExitStack, broker: Broker, state: Any, until_idle: bool) -> None:
        self._broker = broker
        self._state = state
        self._shutting_down = StopSignal()
        self._isolation = Isolation()
        self._threads = ThreadPool(f"dayjob-{self.app.name}")
        self._processes = ProcessPool(self.app, min(self.concurrency, os.cpu_count() or 1))
        self._progress = ProgressReports(broker)
        self._report = self._progress.report
        self._settler = Settler(broker, self._clock, self._settled, self._shut_out)
        self._executor = Executor(
            self.app, self._threads, self._processes, job_timeout=self._job_timeout,
            on_unknown=self._unknown_task,
        )  # fmt: skip
        registration = self._registration = Registration(self.app, self.name, self.queues, self.concurrency)
        await registration.join(broker)
        stack.push_async_callback(self._deregister)
        self.id = registration.id
        await broker.declare(self.app.name, self.app.recurring())
        fetcher = self._fetcher = Fetcher(broker, self._clock, self.queues, self._lease, self.id)
        heartbeat = Heartbeat(
            self._heartbeat_broker, lambda: list(self._runs.values()), self._lease, registration,
            self._replaced,
        )  # fmt: skip
        heartbeat.start()
        stack.push_async_callback(self._processes.close)
        stack.callback(self._threads.close)
        stack.push_async_callback(self._progress.close)
        stack.push_async_callback(heartbeat.stop)
        with interrupts(self._signalled):
            self._tell("worker.started")
            _log.info(
                "worker %s started: %s, %d slots", self.id,
                f"queues {', '.join(self.queues)}" if self.queues else "all queues", self.concurrency,
            )  # fmt: skip
            try:
                await self._fetch_until_stopped(fetcher, until_idle)
            except EngineFenced as error:
                self._shut_out(error)
            finally:
                await self._drain()
        _log.info("worker %s stopped after %d runs", self.id, self.done)
        self._tell("worker.stopped")
        await self.app.events.flush(_GRACE)

    def _heartbeat_broker(self) -> Broker:
        return Broker(self._broker.url, config=self._broker.config, clock=self.app.clock)

    async def _deregister(self) -> None:
        assert self._registration is not None
        try:
            await self._registration.leave(self._broker)
        except DayjobError as error:
            _log.warning("worker %s could not be taken off the roster: %s", self.id, error)

    def _replaced(self, old: str) -> None:
        """Others took this worker for dead, and its jobs with it: go on as a new one."""
        assert self._registration is not None
        self.id = self._fetcher.worker = self._registration.id
        _log.warning(
            "worker %s was declared dead after a silence, and its %d jobs given to others; it goes on as %s",
            old, len(self._runs), self.id,
        )  # fmt: skip
        for run in list(self._runs.values()):
            run.lose()

    def _shut_out(self, error: Exception) -> None:
        """The storage is this worker's no more: nothing can be claimed or settled."""
        _log.error("worker %s stops: %s", self.id, error)
        self._failure = error
        self._stopping.set()
        self._stopping_now.set()

    def _signalled(self) -> None:
        if self._stopping.is_set():
            _log.warning("worker %s stops at once", self.id)
            self._stopping_now.set()
        else:
            _log.info("worker %s stops: %d jobs are running", self.id, len(self._runs))
            self._stopping.set()

    # Claiming.

    async def _fetch_until_stopped(self, fetcher: Fetcher, until_idle: bool) -> None:
        fetching = asyncio.ensure_future(self._fetch(fetcher, until_idle))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            fetching.cancel()
            await asyncio.wait({fetching})
        if not fetching.cancelled():
            fetching.result()

    async def _fetch(self, fetcher: Fetcher, until_idle: bool) -> None:
        while not self._stopping.is_set():
            room = self._room()
            if room == 0:
                await self._change()
                continue
            alone = not self._runs
            jobs = await fetcher.fetch(room, 0 if until_idle else LONG)
            if fetcher.replaced:
                await fetcher.give_back(jobs)
                continue
            self._accept_all(jobs)
            if len(jobs) == 1:
                await yield_to_loop()  # It starts before more is asked for.
            if jobs or not until_idle:
                continue
            if self._runs:  # They may enqueue more, and wait for it.
                await self._change(_LOOK_AGAIN)
            elif alone:
                return

    def _room(self) -> int:
        """How many jobs to claim now: 0 while there is no room, or while a larger batch is worth a wait."""
        if self._max_jobs is not None and self._started >= self._max_jobs:
            if not self._waiting:
                self._stopping.set()
            return 0
        capacity = self.concurrency * (2 if self._average < SHORT else 1)
        running = len(self._runs) - min(self._unsettled, MOST_UNSETTLED * capacity)
        room = max(capacity - running, 0)
        if self._waiting and room < capacity // 4:
            return 0
        return room if self._max_jobs is None else min(room, self._max_jobs - self._started)

    async def _change(self, seconds: float | None = None) -> None:
        """Wait until a run has ended or was settled."""
        self._changed.clear()
        await SYSTEM.wait(self._changed, seconds)

    # Running.

    def _accept_all(self, jobs: Sequence[Job]) -> None:
        now = SYSTEM.elapsed()
        renew_at = {
            queue: now + self._broker.lease_of(queue, self._lease) / 2
            for queue in {job.queue for job in jobs}
        }
        for job in jobs:
            self._accept(job, renew_at[job.queue])
        self._start_some()

    def _accept(self, job: Job, renew_at: float) -> None:
        earlier = self._runs.get(job.key)
        if earlier is not None:
            earlier.lose()
        context = Context(job, self._shutting_down, self._state, self._report)
        run = Run(job, context, self.app.find(job), renew_at)
        job._watcher = run.cancel_requested
        if job.cancel_requested:
            run.cancel_requested()
        self._runs[job.key] = run
        self._started += 1
        self._waiting.append(run)

    def _start_some(self) -> None:
        """Start tasks for the runs that wait: one, and twice as many in each turn of the loop that they take.

        A run that does not wait for anything is over within its task's first step, which then takes the next.
        """
        assert self._loop is not None
        self._starting = False
        free = self.concurrency - len(self._tasks)
        for _ in range(min(len(self._waiting), free, max(len(self._tasks), 1))):
            self._tasks.add(self._loop.create_task(self._serve_slot(), context=self._isolation.fresh()))
        self._start_more()

    def _start_more(self) -> None:
        """Look again in the next turn, if a slot may be free for a run that waits."""
        if self._waiting and not self._starting and not self._stopping.is_set():
            assert self._loop is not None
            if len(self._tasks) < self.concurrency:
                self._starting = True
                self._loop.call_soon(self._start_some)

    async def _serve_slot(self) -> None:
        """Perform the runs that wait, one after the other, while they leave no trace in this task."""
        task = asyncio.current_task()
        assert task is not None
        for _ in range(_IN_A_TURN):
            if not self._waiting or self._stopping.is_set():
                break
            run = self._waiting.popleft()
            self._begun(run)
            begun = SYSTEM.elapsed()
            try:
                settlement = await self._executor.execute(run, task)
            except BaseException as error:
                if self._loop is None or self._loop.is_closed():
                    raise
                _log.exception("the run of job %s came to an odd end", run.job.id)
                settlement = Settlement.nack(run.job, describe(error))
            run.took = SYSTEM.elapsed() - begun
            self._average += (run.took - self._average) * 0.05
            if not run.abandoned:
                self._ended(run, settlement)
            if not self._isolation.holds(run, task):
                break
        self._tasks.discard(task)
        self._start_more()
        self._changed.set()

    def _begun(self, run: Run) -> None:
        job = run.job
        if self.app.events.wants("job.started"):
            self.app.events.emit(Event("job.started", job.id, job.queue, job.task, job))
        meter = self.app.meter
        if meter is not None:
            run.ending = meter.started(job, ((job.claimed_us or job.run_us) - job.run_us) / SECOND)

    def _ended(self, run: Run, settlement: Settlement | None) -> None:
        job = run.job
        progress = self._progress.take(job)
        if settlement is not None:
            if progress is not None:
                settlement = replace(settlement, progress=progress)
            self._settle(run, settlement)
        else:
            self._forget([run])
            if run.ending is not None:
                run.ending.ended("lost", run.took)
            self._tell_lost(job)

    # Settling.

    def _settle(self, run: Run, settlement: Settlement) -> None:
        self._unsettled += 1
        self._settler.put(run, settlement)

    def _settled(self, batch: Batch, results: Sequence[SettleResult]) -> None:
        self._unsettled -= len(batch)
        self.done += len(batch)
        self._forget([run for run, _ in batch])
        observed = self.app.events.observed
        for (run, settlement), result in zip(batch, results, strict=True):
            if run.ending is not None:
                run.ending.ended("lost" if result.state is None else result.state, run.took)
            if not result.applied:
                self._tell_lost(run.job)
            elif observed:
                happened(self.app.events, run.job, settlement, result)

    def _forget(self, runs: Sequence[Run]) -> None:
        for run in runs:
            job = run.job
            job._watcher = None  # It leads back here, and only the garbage collector would get them apart.
            if self._runs.get(job.key) is run:
                del self._runs[job.key]
        self._changed.set()

    def _tell(self, name: str) -> None:
        if self.app.events.wants(name):
            self.app.events.emit(Event(name, self.name))

    def _tell_lost(self, job: Job) -> None:
        _log.warning("the claim of job %s (epoch %d) was lost: its outcome is dropped", job.id, job.epoch)
        if self.app.events.wants("job.lost"):
            self.app.events.emit(Event("job.lost", job.id, job.queue, job.task, job))

    # Draining.

    async def _drain(self) -> None:
        """Let running jobs finish, up to the timeout; interrupt and release the rest; store all outcomes."""
        self._stopping.set()
        self._shutting_down.set("shutdown")
        for run in self._waiting:
            self._settle(run, Settlement(run.job, Transition.RELEASE))
        self._waiting.clear()
        await self._wait_for_tasks(self._shutdown_timeout, or_until=self._stopping_now)
        if self._tasks:
            _log.warning("%d jobs did not finish in time and are released", len(self._tasks))
            for run in list(self._runs.values()):
                run.interrupt("shutdown")
            await self._wait_for_tasks(_GRACE)
        for task in self._tasks:
            task.cancel()
        for run in list(self._runs.values()):
            if run.worker_task is not None:
                run.abandoned = True
                self._settle(run, Settlement(run.job, Transition.RELEASE))
        flushing = asyncio.ensure_future(self._settler.flush())
        stop_now = asyncio.ensure_future(self._stopping_now.wait())
        await asyncio.wait({flushing, stop_now}, return_when=asyncio.FIRST_COMPLETED)
        if not flushing.done():
            await asyncio.wait({flushing}, timeout=_GRACE)
            self._settler.abort()
        stop_now.cancel()

    async def _wait_for_tasks(self, seconds: float, or_until: asyncio.Event | None = None) -> None:
        deadline = SYSTEM.elapsed() + seconds
        stop_now = asyncio.ensure_future(or_until.wait()) if or_until is not None else None
        try:
            while self._tasks and (left := deadline - SYSTEM.elapsed()) > 0:
                if stop_now is not None and stop_now.done():
                    return
                waiting: set[asyncio.Future[Any]] = {*self._tasks}
                if stop_now is not None:
                    waiting.add(stop_now)
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if stop_now is not None:
                stop_now.cancel()
