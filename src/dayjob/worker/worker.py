"""The worker: claims jobs in batches, runs them concurrently, settles them in batches, and drains.

It claims for its free slots, and ahead only jobs that will begin within milliseconds. It gives back jobs that
have not begun within a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.broker.validation import error_text
from dayjob.context import Context
from dayjob.errors import ConfigError, DayjobError, EngineFenced, InvalidState
from dayjob.events import Event, outcome_events
from dayjob.model.durations import SECOND, Duration, to_micros, to_seconds_or_none
from dayjob.model.job import Job, JobState
from dayjob.model.lifecycle import Transition
from dayjob.model.names import KEY_BYTES, check_name, check_queue, counted
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.clock import SYSTEM, set_or_done, yield_to_loop
from dayjob.runtime.stop_signal import StopSignal
from dayjob.runtime.threads import call_on, refuse_green_threads
from dayjob.task import Pool
from dayjob.worker import process_memory
from dayjob.worker.executor import Executor, OnUnknown, Run
from dayjob.worker.fetcher import LONG, Fetcher, QueueOrder
from dayjob.worker.heartbeat import BLOCKED_LIMIT, Heartbeat
from dayjob.worker.job_log import log_outcomes
from dayjob.worker.os_signals import on_stop_signals
from dayjob.worker.pool_limit import PoolLimit
from dayjob.worker.process_pool import ProcessPool
from dayjob.worker.progress import ProgressReports
from dayjob.worker.registration import Registration
from dayjob.worker.settler import Batch, Settler
from dayjob.worker.shared_broker import shared_broker
from dayjob.worker.slots import Slots
from dayjob.worker.thread_pool import ThreadPool

_log = logging.getLogger("dayjob.worker")

MAX_WAIT = 1.0
"""Seconds after which a claimed job that has not begun is given back."""

MAX_UNSETTLED = 4
"""Ended runs free their slots before their outcomes are stored, up to this multiple of the claims."""

ALONE = 0.05
"""Seconds for which no other job starts beside a suspect."""

LAST_ALONE = 60.0
"""The same for its last attempt: a crash would be the end of the job."""

_IDLE_INTERVAL = 0.1
"""Seconds between the checks of ``run_until_idle`` for jobs that running jobs enqueued."""

_INTERRUPT_TIMEOUT = 2.0
"""Seconds for interrupted handlers to end, and for observers to process their events."""


class Worker:
    """Runs an app's jobs until it is stopped: by itself with ``run``, or inside another program.

    ``async with Worker(app) as worker:`` runs it in the background of the block, and drains it at the end.
    """

    def __init__(
        self,
        app: App,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int = 100,
        job_timeout: Duration | None = None,
        shutdown_timeout: Duration = 20,
        lease: Duration | None = None,
        name: str | None = None,
        *,
        unknown_task: OnUnknown = "release",
        max_jobs: int | None = None,
        threads: int | None = None,
        pool_processes: int | None = None,
        log_jobs: bool = False,
    ) -> None:
        """``queues`` by name with weights are served in turns, others in the order given.

        ``log_jobs`` logs a line at the level info for each run, also for those that succeed.
        """
        if isinstance(queues, str):
            raise ConfigError(f"queues={queues!r}: pass a sequence of names, such as ({queues!r},)")
        for queue in queues or ():
            check_queue(queue)
        self._weights = dict(queues) if isinstance(queues, Mapping) else None
        for queue, weight in (self._weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
                raise ConfigError(f"queues[{queue!r}]={weight!r}: pass a weight, 1 or more")
        cores = os.cpu_count() or 1
        threads = max(4 * cores, 10) if threads is None else threads
        pool_processes = cores if pool_processes is None else pool_processes
        _check_at_least_one(concurrency=concurrency, threads=threads, pool_processes=pool_processes)
        if unknown_task not in ("release", "dead"):
            raise ConfigError(f"unknown_task={unknown_task!r}: pass 'release' or 'dead'")
        self.app = app
        self.queues = None if queues is None else tuple(queues)
        """None: the queues of the app's tasks and handlers. Empty: all queues of the storage."""
        self.concurrency = concurrency
        self.threads = threads
        self.pool_processes = pool_processes
        self.name = f"{socket.gethostname()}-{os.getpid()}" if name is None else name
        check_name(self.name, "worker name", KEY_BYTES - 100)
        self.id = ""
        """The id that it claims jobs under: its name and a suffix, new for each start."""
        if lease is not None and to_micros(lease, "lease") == 0:
            raise ConfigError("lease=0: a claim needs time to run; pass some seconds")
        if max_jobs is not None:
            _check_at_least_one(max_jobs=max_jobs)
        self.done = 0
        """The number of settled runs."""
        self._job_timeout = to_seconds_or_none(job_timeout, "job_timeout")
        self._shutdown_timeout = to_micros(shutdown_timeout, "shutdown_timeout") / SECOND
        self._lease = lease
        self._unknown_task: OnUnknown = unknown_task
        self._max_jobs = max_jobs
        self._log_jobs = log_jobs
        self._clock = app.clock or SYSTEM
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        """Create the state that belongs to one start and its event loop."""
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._runs: dict[bytes, Run] = {}
        """The runs that are not settled yet, by job."""
        self._unsettled = 0
        """The number of runs that have ended and whose outcomes are not stored yet."""
        self._accepted = 0
        self._limits: dict[Pool, PoolLimit] = {}
        self._logged_problem: str | None = None
        self._give_back_timer: asyncio.TimerHandle | None = None
        self._apart = False
        """Whether the last job was a suspect, so that the next claim takes one job only."""
        self._last_start = float("-inf")
        self._registration: Registration | None = None
        self._heartbeat: Heartbeat | None = None
        self._failure: Exception | None = None

    # The public interface.

    async def run(self, *, signals: bool = False) -> None:
        """Run jobs until ``stop``, then drain. A cancelled call releases the running jobs and ends.

        With ``signals``, SIGTERM and SIGINT stop the worker too, and a second one interrupts the drain. The
        handlers that were set before are called as well, and restored at the end.
        """
        await self._join(self._start(until_idle=False, signals=signals))

    async def run_until_idle(self, *, signals: bool = False) -> None:
        """Run jobs until none is claimable and none is running. Jobs scheduled for later stay."""
        await self._join(self._start(until_idle=True, signals=signals))

    async def start(self) -> None:
        """Run jobs in the background of this event loop. Return when the worker claims jobs."""
        serving = self._start(until_idle=False, signals=False)
        try:
            await set_or_done(self._ready, serving)
        except asyncio.CancelledError:
            self.stop_now()
            await self._join(serving)
            raise
        if serving.done():
            await self._join(serving)

    async def wait_stopped(self) -> None:
        """Wait until the worker has stopped. Raise the error that ended it."""
        if self._serving is not None:
            await self._join(self._serving)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self.stop_now()
        else:
            self.stop()
        await self.wait_stopped()

    def stop(self) -> None:
        """Claim no more jobs, and end when the running ones have ended. Callable from any thread."""
        self._set_from_any_thread(self._stopping)

    def stop_now(self) -> None:
        """Stop without waiting: running jobs are interrupted and released, a start under way is abandoned."""
        self._set_from_any_thread(self._stopping)
        self._set_from_any_thread(self._stopping_now)

    @property
    def is_running(self) -> bool:
        """Whether the worker has been started and has not ended yet."""
        return self._loop is not None

    @property
    def ready(self) -> bool:
        """Whether the worker claims jobs: it is registered, and no stop was requested."""
        return self._ready.is_set() and not self._stopping.is_set()

    def problem(self) -> str | None:
        """Return why a health check should fail: not running, blocked, silent, or without a usable thread."""
        registration, heartbeat = self._registration, self._heartbeat
        if self._loop is None or registration is None:
            return "the worker is not running"
        blocked = 0.0 if heartbeat is None else heartbeat.blocked_for()
        if blocked > BLOCKED_LIMIT:
            return f"the event loop has been blocked for {blocked:.0f} s"
        late = registration.silent_for()
        if late is not None:
            return f"no heartbeat was stored for {late:.0f} s"
        return self._limits["thread"].problem

    def _set_from_any_thread(self, event: asyncio.Event) -> None:
        if self._loop is None:
            event.set()
        else:
            call_on(self._loop, event.set)

    # From start to stop.

    def _start(self, until_idle: bool, signals: bool) -> asyncio.Task[None]:
        """Start the worker in a task of its own, so that a cancelled caller does not cancel its drain."""
        if self._loop is not None:
            raise InvalidState(f"worker {self.name!r} is already running: create another one")
        refuse_green_threads("a worker needs real ones, so it was not started: run it in another process")
        self._loop = asyncio.get_running_loop()
        self._serving = self._loop.create_task(self._serve(until_idle, signals))
        return self._serving

    async def _join(self, serving: asyncio.Task[None]) -> None:
        """Wait for the end. A cancelled caller stops the worker at once, and waits for it nevertheless."""
        cancellation: asyncio.CancelledError | None = None
        while not serving.done():
            try:
                await asyncio.wait({serving})
            except asyncio.CancelledError as error:
                cancellation = error
                self.stop_now()
        if cancellation is None:
            serving.result()
        elif serving.cancelled() or (failure := serving.exception()) is None:
            raise cancellation  # The same one: a cancel scope recognizes its own.
        else:
            raise cancellation from failure

    async def _serve(self, until_idle: bool, signals: bool) -> None:
        abandoning = asyncio.ensure_future(self._abandon_start())
        try:
            async with AsyncExitStack() as stack:
                broker = await stack.enter_async_context(shared_broker(self.app))
                state = None
                if self.app.lifespan is not None:
                    state = await stack.enter_async_context(self.app.lifespan(self.app))
                await self._work(stack, broker, state, until_idle, signals)
            if self._failure is not None:
                raise self._failure
        finally:
            abandoning.cancel()
            self._loop = None
            self._reset()

    async def _abandon_start(self) -> None:
        """Cancel the start if the worker must stop at once before it is ready."""
        await self._stopping_now.wait()
        if not self._ready.is_set() and self._serving is not None:
            self._serving.cancel()

    async def _work(
        self, stack: AsyncExitStack, broker: Broker, state: Any, until_idle: bool, signals: bool
    ) -> None:
        queues = self._served_queues()
        log_outcomes(self.app, logging.INFO if self._log_jobs else logging.DEBUG)
        self._broker = broker
        self._state = state
        self._shutting_down = StopSignal()
        limits = self._limits = {
            "thread": PoolLimit(self.threads), "process": PoolLimit(self.pool_processes),
        }  # fmt: skip
        threads = self._new_threads(limits["thread"])
        processes = ProcessPool(self.app, self.pool_processes, self._unknown_task)
        self._progress = ProgressReports(broker)
        self._report = self._progress.report
        self._settler = Settler(broker, self._clock, self._settled, self._fenced)
        executor = Executor(
            self.app, threads, processes, self._serving_cancelled,
            job_timeout=self._job_timeout, on_unknown=self._unknown_task,
        )  # fmt: skip
        self._slots = Slots(
            self.concurrency, limits, threads, executor, self._stopping, observed=self._starts_observed,
            on_start=self._run_started, on_end=self._run_ended, on_free=self._slot_freed,
        )  # fmt: skip
        registration = self._registration = Registration(self.app, self.name, queues, self.concurrency)
        await registration.join(broker)
        stack.push_async_callback(self._deregister)
        self.id = registration.id
        await broker.declare_limits(self.app.name, self.app.limits())
        await broker.declare(self.app.name, self.app.recurring())
        fetcher = self._fetcher = Fetcher(
            broker, self._clock, QueueOrder(queues, self._weights), self._lease, self.id
        )
        heartbeat = self._heartbeat = Heartbeat(
            broker, self._heartbeat_broker, lambda: list(self._runs.values()),
            lambda: self._slots.running, self._slots.take_waiting, self._lease, registration,
            self._replaced, self._released,
        )  # fmt: skip
        heartbeat.start()
        stack.push_async_callback(processes.close)
        stack.callback(threads.close)
        stack.push_async_callback(self._progress.close)
        stack.push_async_callback(heartbeat.stop)
        with on_stop_signals(self._signalled) if signals else nullcontext():
            self._emit("worker.started")
            _log.info(
                "worker %s started: %s, %d slots", self.id,
                f"queues {', '.join(queues)}" if queues else "all queues", self.concurrency,
            )  # fmt: skip
            self._ready.set()
            try:
                await self._fetch_until_stopped(fetcher, until_idle)
            except EngineFenced as error:
                self._fenced(error)
            except asyncio.CancelledError:
                self._stopping_now.set()
                raise
            finally:
                await self._drain()
        _log.info("worker %s stopped after %s", self.id, counted(self.done, "run"))
        self._emit("worker.stopped")
        await self.app.events.flush(_INTERRUPT_TIMEOUT)

    def _new_threads(self, limit: PoolLimit) -> ThreadPool:
        return ThreadPool(f"dayjob-{self.app.name}", limit)

    def _served_queues(self) -> tuple[str, ...]:
        queues = self.app.queues()
        if self.queues is not None:
            unused = [queue for queue in self.queues if queue not in queues]
            if unused:
                _log.warning(
                    "no task or handler of app %s uses the queue%s %s: it has %s", self.app.name,
                    "s" if len(unused) > 1 else "", ", ".join(map(repr, unused)),
                    ", ".join(map(repr, queues)) or "no tasks: import the modules that define them",
                )  # fmt: skip
            return self.queues
        if not queues:
            _log.warning(
                "app %s has no tasks, so the worker serves the queue 'default': import the modules that "
                "define them, or pass queues", self.app.name,
            )  # fmt: skip
        return queues or ("default",)

    def _heartbeat_broker(self) -> Broker:
        loop, app = self._loop, self.app
        assert loop is not None
        return Broker(
            self._broker.url, config=self._broker.config, clock=app.clock,
            on_ended=partial(call_on, loop, app.on_ended),
            on_enqueued=partial(call_on, loop, app.on_enqueued),
        )  # fmt: skip

    async def _deregister(self) -> None:
        assert self._registration is not None
        try:
            if self._serving_cancelled():
                async with self._heartbeat_broker() as broker:
                    await self._registration.leave(broker)
            else:
                await self._registration.leave(self._broker)
        except DayjobError as error:
            _log.warning("worker %s could not be deregistered: %s", self.id, error)

    def _replaced(self, old: str) -> None:
        """Continue under a new id: the old one was declared dead, and its claims were lost."""
        assert self._registration is not None
        self.id = self._fetcher.worker = self._registration.id
        _log.warning(
            "worker %s was declared dead after missed heartbeats, and lost its %d jobs; it continues as %s",
            old, len(self._runs), self.id,
        )  # fmt: skip
        for run in list(self._runs.values()):
            run.lose()

    def _fenced(self, error: Exception) -> None:
        """Stop at once: another owner has the storage, so nothing can be claimed or settled."""
        _log.error("worker %s stops: %s", self.id, error)
        self._failure = error
        self._stopping.set()
        self._stopping_now.set()

    def _serving_cancelled(self) -> bool:
        """Return whether the host cancelled the worker's tasks, as ``asyncio.run`` does at its end."""
        return self._serving is not None and self._serving.cancelling() > 0

    def _signalled(self) -> None:
        if self._stopping.is_set():
            _log.warning("worker %s stops at once", self.id)
            self._stopping_now.set()
        else:
            _log.info("worker %s stops: %d jobs are running", self.id, self._slots.running)
            self._stopping.set()

    def _emit(self, name: str) -> None:
        if name in self.app.events.wanted:
            self.app.events.emit(Event(name, self.name))

    # Claim.

    async def _fetch_until_stopped(self, fetcher: Fetcher, until_idle: bool) -> None:
        fetching = asyncio.ensure_future(self._fetch(fetcher, until_idle))
        try:
            await set_or_done(self._stopping, fetching)
        finally:
            fetching.cancel()
            await asyncio.wait({fetching})
        if not self._stopping.is_set() or not fetching.cancelled():
            fetching.result()

    async def _fetch(self, fetcher: Fetcher, until_idle: bool) -> None:
        while not self._stopping.is_set():
            ahead = self._slots.rate.ahead() if fetcher.backlog else 0
            limit = self._claim_limit(ahead)
            full = self._slots.full_queues()
            if limit == 0 or (full and not fetcher.serves_others(full)):
                await self._wait_for_change()
                continue
            idle = not self._runs
            wait = 0 if until_idle or ahead else LONG
            jobs = await fetcher.fetch(1 if self._apart else limit, wait, promote=until_idle, leave_out=full)
            if fetcher.replaced:
                await fetcher.give_back(jobs)
                continue
            first = next(
                (i for i, job in enumerate(jobs) if job.last_error is not None and job.suspect), None
            )
            if first is not None:
                self._accept_all(jobs[:first])
                await self._run_apart(jobs[first], jobs[first:], fetcher)
                continue
            self._apart = False
            self._accept_all(jobs)
            if len(jobs) == 1:
                await yield_to_loop()  # The job starts before the next claim is sent.
            if jobs or not until_idle:
                continue
            if self._runs:  # The running jobs may enqueue more, and wait for them.
                await self._wait_for_change(_IDLE_INTERVAL)
            elif idle:
                return

    async def _run_apart(self, suspect: Job, jobs: Sequence[Job], fetcher: Fetcher) -> None:
        """Run a suspect alone, so that another crash ends no other run. Claim no job meanwhile.

        It starts if no other job runs, or none has started lately. Otherwise the jobs are given back, and
        the next claim waits for the runs. Each wait has a limit, as a run may take hours: after the death of
        a worker for another reason, all of its jobs soon run again.
        """
        alone = LAST_ALONE if suspect.attempts >= suspect.max_attempts else ALONE
        last_start = self._last_start
        starts = len(jobs) == 1 and (not self._runs or SYSTEM.elapsed() - last_start >= alone)
        self._apart = True
        if starts:
            self._release(self._slots.take_waiting())
            self._accept_all(jobs)
        else:
            await fetcher.give_back(jobs)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._last_start + alone - SYSTEM.elapsed()):
                while (suspect.key in self._runs) if starts else self._runs:
                    await self._wait_for_change()
                self._last_start = last_start

    def _claim_limit(self, ahead: int) -> int:
        """Return how many jobs to claim now, ``ahead`` of them for slots that will be free soon.

        0: none could begin, or waiting for a larger batch is better.
        """
        slots = self._slots
        if self._max_jobs is not None and self._accepted >= self._max_jobs:
            taken = any(run.lost and not run.started_at for run in self._runs.values())
            if slots.oldest is None and not taken:  # The heartbeat may release those, and they do not count.
                self._stopping.set()
            return 0
        capacity = self.concurrency + ahead
        settling = min(self._unsettled, MAX_UNSETTLED * capacity)
        in_use = len(self._runs) - settling - slots.waiting_for_pools
        free = max(capacity - in_use, 0)
        if slots.waiting and free < capacity // 2:
            return 0
        return free if self._max_jobs is None else min(free, self._max_jobs - self._accepted)

    def _slot_freed(self) -> None:
        self._changed.set()
        if self._fetcher.left_out and not self._slots.full_queues():
            self._fetcher.interrupt()

    async def _wait_for_change(self, seconds: float | None = None) -> None:
        """Wait until a run has ended or was settled."""
        self._changed.clear()
        await SYSTEM.wait(self._changed, seconds)

    # Run.

    def _accept_all(self, jobs: Sequence[Job]) -> None:
        now = SYSTEM.elapsed()
        renew_at = {
            queue: now + self._broker.lease_of(queue, self._lease) / 2
            for queue in {job.queue for job in jobs}
        }
        begin = 0
        for job in jobs:
            earlier = self._runs.get(job.key)
            if earlier is not None:
                earlier.lose()
            context = Context(job, self._shutting_down, self._state, self._report)
            run = Run(job, context, self.app.find(job), now, renew_at[job.queue])
            job._watcher = run.cancel_requested
            if job.cancel_requested:
                run.cancel_requested()
            self._runs[job.key] = run
            begin += self._slots.add(run)
        if jobs:
            self._last_start = now
        self._accepted += len(jobs)
        self._fetcher.resize(len(jobs), begin)
        self._slots.start()
        self._give_back_later()

    def _give_back_later(self) -> None:
        """Call ``_give_back`` when the oldest run that has not begun has waited for ``MAX_WAIT``."""
        oldest = self._slots.oldest
        if oldest is not None and self._give_back_timer is None and self._loop is not None:
            delay = max(oldest + MAX_WAIT - SYSTEM.elapsed(), 0.001)
            self._give_back_timer = self._loop.call_later(delay, self._give_back)

    def _give_back(self) -> None:
        """Release the runs that have not begun in time, and pause the claims."""
        self._give_back_timer = None
        now = SYSTEM.elapsed()
        late = self._slots.take_waiting(now - MAX_WAIT)
        if late:
            problem = self._limits["thread"].problem
            if problem is not None and problem != self._logged_problem:
                _log.error("%d jobs are released: %s", len(late), problem)
            self._logged_problem = problem
            self._fetcher.rest()
            self._release(late)
        self._give_back_later()

    def _release(self, runs: Sequence[Run]) -> None:
        self._accepted -= len(runs)
        for run in runs:
            self._settle(run, Settlement(run.job, Transition.RELEASE))

    def _starts_observed(self) -> bool:
        return "job.started" in self.app.events.wanted or self.app.meter is not None

    def _run_started(self, run: Run) -> None:
        job = run.job
        if "job.started" in self.app.events.wanted:
            self.app.events.emit(
                Event("job.started", job.id, job.queue, job.task, job, JobState.PENDING, JobState.RUNNING)
            )
        meter = self.app.meter
        if meter is not None:
            run.meter = meter.started(job, ((job.claimed_us or job.run_us) - job.run_us) / SECOND)

    def _run_ended(self, run: Run, settlement: Settlement | None) -> None:
        process_memory.run_ended(run.started_at + run.seconds)
        progress = self._progress.take(run.job) if self._progress.pending else None
        if settlement is not None:
            if progress is not None:
                settlement = replace(settlement, progress=progress)
            self._settle(run, settlement)
        else:
            self._forget([run])
            if run.meter is not None:
                run.meter.ended("lost", run.seconds)
            self._claim_lost(run.job)

    # Settle.

    def _settle(self, run: Run, settlement: Settlement) -> None:
        self._unsettled += 1
        run.outcome = settlement
        self._settler.put(run, settlement)

    def _settled(self, batch: Batch, results: Sequence[SettleResult]) -> None:
        self._unsettled -= len(batch)
        runs = [run for run, _ in batch]
        self.done += len([run for run in runs if run.started_at])
        self._forget(runs)
        unobserved = None if "job.succeeded" in self.app.events.wanted else JobState.DONE
        for (run, settlement), result in zip(batch, results, strict=True):
            state = result.state
            if run.meter is not None:
                run.meter.ended("lost" if state is None else state, run.seconds)
            if state is None:
                self._claim_lost(run.job)
            elif state is not unobserved:
                self._emit_outcome(run, settlement, state)

    def _emit_outcome(self, run: Run, settlement: Settlement, state: JobState) -> None:
        events, job = self.app.events, run.job
        for name in outcome_events(settlement.transition, state):
            if name in events.wanted:
                error = None if settlement.error is None else error_text(settlement.error)
                events.emit(
                    Event(
                        name, job.id, job.queue, job.task, job, JobState.RUNNING, state, error, run.seconds
                    )
                )  # fmt: skip

    def _forget(self, runs: Sequence[Run]) -> None:
        for run in runs:
            job = run.job
            job._watcher = None  # It refers to the run. Only the garbage collector would free this cycle.
            if self._runs.get(job.key) is run:
                del self._runs[job.key]
        self._changed.set()

    def _released(self, runs: Sequence[Run]) -> None:
        """Forget runs that the heartbeat has released before they began."""
        self._accepted -= len(runs)
        self._forget(runs)

    def _claim_lost(self, job: Job) -> None:
        _log.warning("Job %s lost its claim (epoch %d): the outcome is dropped", job.id, job.epoch)
        if "job.lost" in self.app.events.wanted:
            self.app.events.emit(Event("job.lost", job.id, job.queue, job.task, job, JobState.RUNNING))

    # Drain.

    async def _drain(self) -> None:
        """Let running jobs finish until the timeout, interrupt and release the others, store all outcomes."""
        self._stopping.set()
        self._shutting_down.set("shutdown")
        if self._give_back_timer is not None:
            self._give_back_timer.cancel()
        slots = self._slots
        self._release(slots.take_waiting())
        if slots.running and not self._stopping_now.is_set():
            running = counted(slots.running, "running job")
            _log.info("stopping: waiting up to %g s for %s", self._shutdown_timeout, running)
        await slots.wait(self._shutdown_timeout, or_until=self._stopping_now)
        if slots.running:
            _log.warning("released after the shutdown timeout: %s", counted(slots.running, "running job"))
            for run in list(self._runs.values()):
                run.interrupt("shutdown")
            await slots.wait(_INTERRUPT_TIMEOUT)
        for task in slots.tasks:
            task.cancel()
        for run in list(self._runs.values()):
            if run.worker_task is not None:
                run.abandoned = True
                self._settle(run, Settlement(run.job, Transition.RELEASE))
        flushing = asyncio.ensure_future(self._flush())
        await set_or_done(self._stopping_now, flushing)
        if not flushing.done():
            await asyncio.wait({flushing}, timeout=_INTERRUPT_TIMEOUT)
            self._settler.abort()
        slots.close()
        if self._serving_cancelled() and self._runs:
            await self._settle_apart()

    async def _flush(self) -> None:
        """Wait until all outcomes are stored, and the jobs of a cancelled claim are released."""
        await self._settler.flush()
        with suppress(DayjobError):  # The storage was closed or taken over.
            await self._broker.release_undelivered()

    async def _settle_apart(self) -> None:
        """Store the outcomes that are left, by a new broker: the host cancelled the tasks of the other."""
        left = [run for run in self._runs.values() if not run.lost]
        try:
            async with asyncio.timeout(_INTERRUPT_TIMEOUT), self._heartbeat_broker() as broker:
                await broker.settle_many(
                    [run.outcome or Settlement(run.job, Transition.RELEASE) for run in left]
                )
        except (DayjobError, TimeoutError) as error:
            _log.warning("%d outcomes could not be stored, so their leases expire: %s", len(left), error)


def _check_at_least_one(**values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}={value!r}: pass a whole number, 1 or more")
