"""The actions. Each is one function with two routes: a form's, and a JSON one below ``/api``.

All are POST, so all pass the guard's checks. Each writes a line to the audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from dayjob.broker import Broker
from dayjob.dashboard.bulk import BulkOperation, OnProgress, TooManyOperations
from dayjob.dashboard.rendering import problem, url
from dayjob.dashboard.security import RequestContext, audit, context_of
from dayjob.dashboard.state import DashboardState, state_of
from dayjob.errors import DayjobError, InvalidState
from dayjob.model.job import CancelOutcome


class Outcome(Struct, frozen=True):
    """The result: a code with a text in ``rendering.MESSAGES``, the next page, and the JSON fields."""

    code: str
    path: str
    ok: bool = True
    fields: Mapping[str, Any] = {}
    count: int | None = None


class ActionRequest(Struct, frozen=True):
    """A request for an action, with the job's id from the path and the fields of the form."""

    state: DashboardState
    broker: Broker
    context: RequestContext
    id: str
    fields: Mapping[str, str]

    def field(self, name: str) -> str:
        value = self.fields.get(name, "")
        if not value:
            raise ValueError(f"the field {name!r} is missing")
        return value


Action = Callable[[ActionRequest], Awaitable[Outcome]]


# Jobs.


async def cancel_job(action: ActionRequest) -> Outcome:
    outcome = await action.broker.cancel(action.id)
    codes = {CancelOutcome.REMOVED: "cancelled", CancelOutcome.REQUESTED: "cancel-requested"}
    gone = outcome is CancelOutcome.REMOVED and await action.broker.get(action.id) is None
    path = "/jobs" if gone else f"/jobs/{action.id}"
    return Outcome(
        codes.get(outcome, "not-cancelled"), path, outcome.acted, {"id": action.id, "outcome": outcome.value}
    )


async def requeue_job(action: ActionRequest) -> Outcome:
    done = await action.broker.requeue(action.id)
    code = "requeued" if done else "not-requeued"
    return Outcome(code, f"/jobs/{action.id}", done, {"id": action.id, "requeued": done})


async def rerun_job(action: ActionRequest) -> Outcome:
    try:
        new = await action.broker.rerun(action.id)
    except InvalidState:
        return Outcome("not-rerun", f"/jobs/{action.id}", False, {"id": action.id, "rerun": None})
    return Outcome("rerun", f"/jobs/{new.id}", True, {"id": action.id, "rerun": new.id})


# Queues.


async def pause_queue(paused: bool, action: ActionRequest) -> Outcome:
    queue = action.field("queue")
    await (action.broker.pause(queue) if paused else action.broker.resume(queue))
    return Outcome("paused" if paused else "resumed", "/", True, {"queue": queue, "paused": paused})


# Schedules.


async def pause_schedule(paused: bool, action: ActionRequest) -> Outcome:
    id = action.field("schedule")
    found = await (action.broker.pause_schedule(id) if paused else action.broker.resume_schedule(id))
    done = "schedule-paused" if paused else "schedule-resumed"
    return Outcome(done if found else "no-schedule", "/schedules", found, {"schedule": id})


async def trigger_schedule(action: ActionRequest) -> Outcome:
    id = action.field("schedule")
    try:
        new = await action.broker.trigger(id)
    except InvalidState:
        return Outcome("no-schedule", "/schedules", False, {"schedule": id, "job": None})
    return Outcome("triggered", f"/jobs/{new.id}", True, {"schedule": id, "job": new.id})


# Dead letters, in bulk: by error, by queue, or all.


async def requeue_dead(action: ActionRequest) -> Outcome:
    return await _in_bulk(action, "requeue", _requeue, "dead-requeued")


async def purge_dead(action: ActionRequest) -> Outcome:
    return await _in_bulk(action, "purge", _purge, "dead-purged")


Work = Callable[[ActionRequest, OnProgress], Awaitable[int]]


async def _in_bulk(action: ActionRequest, verb: str, work: Work, code: str) -> Outcome:
    scope, context = _scope(action), action.context

    def on_end(operation: BulkOperation) -> None:
        outcome = operation.done if operation.problem is None else "failed"
        audit(f"dead.{verb}.ended", context.user, context.client, scope, outcome)

    try:
        name = f"{verb.capitalize()} {scope}"
        operation = await action.state.bulk.start(name, partial(work, action), on_end)
    except TooManyOperations:
        return Outcome("busy", "/dead", False, {"jobs": 0, "ended": False})
    ended = operation.ended.is_set()
    result = "failed" if operation.problem else code if ended else "in-progress"
    fields = {"jobs": operation.done, "ended": ended, "problem": operation.problem}
    return Outcome(result, "/dead", operation.problem is None, fields, operation.done)


def _scope(action: ActionRequest) -> str:
    queue, task, error = (action.fields.get(name) for name in ("queue", "task", "error"))
    parts = [f"dead jobs of queue {queue}" if queue else "all dead jobs"]
    if error is not None:
        parts.append(f"task {task}, error {error}")
    if error is None and not queue and action.fields.get("all") != "yes":
        raise ValueError("pass a queue, an error with its task, or all=yes")
    return ", ".join(parts)


async def _requeue(action: ActionRequest, on_progress: OnProgress) -> int:
    if action.fields.get("error") is not None:
        return await action.broker.requeue_many(await _of_error(action), on_progress=on_progress)
    queue = action.fields.get("queue")
    names = (
        [queue] if queue else [name for name, each in (await action.broker.all_stats()).items() if each.dead]
    )
    total = 0
    for name in names:
        total += await action.broker.requeue_dead(name, on_progress=partial(_add, on_progress, total))
    return total


async def _purge(action: ActionRequest, on_progress: OnProgress) -> int:
    if action.fields.get("error") is not None:
        return await action.broker.purge_many(await _of_error(action), on_progress=on_progress)
    return await action.broker.purge_dead(action.fields.get("queue") or None, on_progress=on_progress)


async def _of_error(action: ActionRequest) -> list[str]:
    """Return the ids of the latest dead jobs with this task and error pattern."""
    inspector = await action.state.inspector()
    found = await inspector.dead_groups(action.fields.get("queue") or None)
    wanted = (action.fields.get("task", ""), action.fields["error"])
    return [id for group in found.groups if (group.task, group.error) == wanted for id in group.ids]


def _add(on_progress: OnProgress, before: int, more: int) -> None:
    on_progress(before + more)


ACTIONS: dict[str, tuple[str, Action]] = {
    "job.cancel": ("/jobs/{id}/cancel", cancel_job),
    "job.requeue": ("/jobs/{id}/requeue", requeue_job),
    "job.rerun": ("/jobs/{id}/rerun", rerun_job),
    "queue.pause": ("/queues/pause", partial(pause_queue, True)),
    "queue.resume": ("/queues/resume", partial(pause_queue, False)),
    "schedule.pause": ("/schedules/pause", partial(pause_schedule, True)),
    "schedule.resume": ("/schedules/resume", partial(pause_schedule, False)),
    "schedule.trigger": ("/schedules/trigger", trigger_schedule),
    "dead.requeue": ("/dead/requeue", requeue_dead),
    "dead.purge": ("/dead/purge", purge_dead),
}


def routes() -> list[Route]:
    made = []
    for name, (path, act) in ACTIONS.items():
        for prefix, respond in (("", _redirect), ("/api", _json)):
            made.append(Route(prefix + path, partial(_handle, name, act, respond), methods=["POST"]))
    return made


async def _handle(
    name: str, act: Action, respond: Callable[[Request, Outcome], Response], request: Request
) -> Response:
    context, state = context_of(request), state_of(request)
    action = ActionRequest(
        state, await state.broker(), context, request.path_params.get("id", ""), context.fields
    )
    target = action.id or _target(context.fields)
    try:
        outcome = await act(action)
    except ValueError as error:
        return problem(request, 400, f"Nothing was changed: {error}.")
    except DayjobError:
        audit(name, context.user, context.client, target, "failed")
        raise
    audit(name, context.user, context.client, target, outcome.code)
    return respond(request, outcome)


def _target(fields: Mapping[str, str]) -> str:
    named = [fields[name] for name in ("queue", "schedule", "task", "error") if fields.get(name)]
    return ", ".join(named) or "all"


def _redirect(request: Request, outcome: Outcome) -> Response:
    return RedirectResponse(url(request, outcome.path, message=outcome.code, n=outcome.count), 303)


def _json(request: Request, outcome: Outcome) -> Response:
    status = 200 if outcome.ok else 409
    return JSONResponse({"ok": outcome.ok, "code": outcome.code, **outcome.fields}, status)
