"""Child processes for tasks with ``pool="process"``: started on demand, reused, replaced when they die.

The end of a process ends the attempt that it ran and no other, whether it crashed, was killed by the system,
or was killed here because its run was interrupted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial

from dayjob.app import App
from dayjob.context import Context
from dayjob.errors import InvalidState
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import StopSignal
from dayjob.runtime.threads import call_on
from dayjob.worker.child_logs import log_levels
from dayjob.worker.child_main import STOP_TIMEOUT
from dayjob.worker.child_messages import ShuttingDown, Start, packed_job, unpacked
from dayjob.worker.child_process import MAIN_GUARD, ChildProcess, NotStarted, ProcessDied
from dayjob.worker.executor import AnyTask, OnUnknown, failed


class ProcessPool:
    """Runs jobs in up to ``size`` child processes, in the order of the calls. Used on one event loop."""

    def __init__(self, app: App, size: int, on_unknown: OnUnknown = "release") -> None:
        _check_main_guard()
        self._app = app
        self._on_unknown: OnUnknown = on_unknown
        self._slots = asyncio.Semaphore(size)
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._modules: dict[AnyTask, Sequence[str]] = {}
        self._shutting_down: StopSignal | None = None
        self._closed = False

    async def run(
        self, task: AnyTask, context: Context, on_start: Callable[[], None] | None = None
    ) -> Settlement:
        """Return the settlement of the job. ``on_start`` is called when a child calls its handler.

        If the caller is cancelled, the process is killed at once.
        """
        self._forward(context.shutting_down)
        while True:
            child = await self._acquire()
            try:
                start = self._start_message(task, context)
                return unpacked(await child.run(start, context, on_start), task, context.job)
            except NotStarted:
                continue
            except ProcessDied as error:
                return failed(task, context.job, error.with_traceback(None))
            except BaseException:
                child.kill()
                raise
            finally:
                self._release(child)

    async def close(self) -> None:
        """End all children. Idle ones exit the app's lifespan first, up to a timeout."""
        self._closed = True
        for child in self._children:
            child.stop()
        for _ in range(2):
            if self._children:
                await asyncio.wait({child.ended for child in self._children}, timeout=STOP_TIMEOUT)
            for child in self._children:
                child.kill()

    async def _acquire(self) -> ChildProcess:
        await self._slots.acquire()
        try:
            if self._closed:
                raise InvalidState("the worker and its child processes have stopped")
            while self._idle:
                child = self._idle.pop()
                if child.usable:  # A child that just died is removed a moment later.
                    return child
            child = await ChildProcess.start(f"dayjob-{self._app.name}")
        except BaseException:
            self._slots.release()
            raise
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._forget(child))
        return child

    def _release(self, child: ChildProcess) -> None:
        """Free the slot now, or when the process has ended."""
        if child.usable:
            self._idle.append(child)
            self._slots.release()
        else:
            child.ended.add_done_callback(lambda _: self._slots.release())

    def _forget(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def _forward(self, shutting_down: StopSignal) -> None:
        """Forward the worker's shutdown signal to the children. One callback serves all runs."""
        if self._shutting_down is not shutting_down:
            self._shutting_down = shutting_down
            loop = asyncio.get_running_loop()
            shutting_down.when_set(partial(call_on, loop, self._send_shutting_down))

    def _send_shutting_down(self) -> None:
        if self._shutting_down is not None and self._shutting_down.reason is not None:
            for child in self._children:
                child.send(ShuttingDown(self._shutting_down.reason))

    def _start_message(self, task: AnyTask, context: Context) -> Start:
        modules = self._modules.get(task)
        if modules is None:
            modules = self._modules[task] = modules_of(task)
        return Start(
            modules=modules,
            task=task.name,
            raw=task.raw,
            app=(self._app.name, self._app.url),
            job=packed_job(context.job),
            cancelled=context.cancelled.reason,
            shutting_down=context.shutting_down.reason,
            log_levels=log_levels(),
            on_unknown=self._on_unknown,
        )


def modules_of(task: AnyTask) -> Sequence[str]:
    """Return the modules to import: the function's own, or those that hold the task or its app."""
    own = task.function.__module__
    if _holds(own, task):
        return (*task.app.setup_modules, own)
    holders = [name for name in list(sys.modules) if _holds(name, task)]
    holders += [name for name in list(sys.modules) if _holds(name, task.app)]
    return tuple(dict.fromkeys([*task.app.setup_modules, own, *holders]))


def _holds(module: str, value: object) -> bool:
    names = getattr(sys.modules.get(module), "__dict__", {})
    return any(held is value for held in list(names.values()))


def _check_main_guard() -> None:
    """Raise in a child that imports its worker's script, if the script starts a worker on import."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        raise InvalidState(
            f"this is a child process that imports the script of its worker: put `{MAIN_GUARD}` before "
            "the code that starts the worker"
        )
