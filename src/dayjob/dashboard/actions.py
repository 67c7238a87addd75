"""The actions. Each is one function with two routes: a form's, and a JSON one below ``/api``.

All are POST, so all pass the guard's checks. Each writes a line to the audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from dayjob.broker import Broker
from dayjob.dashboard import edit, filters
from dayjob.dashboard.bulk import BulkOperation, TooManyOperations
from dayjob.dashboard.rendering import problem, url
from dayjob.dashboard.security import RequestContext, audit, context_of
from dayjob.dashboard.state import DashboardState, state_of
from dayjob.errors import DayjobError, InvalidState
from dayjob.inspect import Filter, dead_groups
from dayjob.inspect.dead import requeue_dead
from dayjob.inspect.search import DEAD, UNFINISHED, States
from dayjob.model.job import CancelOutcome
from dayjob.model.limits import Limit

Number = TypeVar("Number", int, float)


class Outcome(Struct, frozen=True):
    """The result: a code with a text in ``rendering.MESSAGES``, the next page, and the JSON fields."""

    code: str
    path: str
    ok: bool = True
    fields: Mapping[str, Any] = {}
    count: int | None = None
    query: Mapping[str, str] = {}
    form: edit.Form | None = None
    """The form with its problems, if it was invalid."""


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


class BulkVerb(Struct, frozen=True):
    """A change of many jobs: its label, and the states of the jobs that it changes."""

    label: str
    states: States


BULK_VERBS = {
    "cancel": BulkVerb("Cancel", UNFINISHED),
    "requeue": BulkVerb("Requeue", DEAD),
    "purge": BulkVerb("Delete", DEAD),
}


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


async def edit_job(action: ActionRequest) -> Outcome:
    """Enqueue a copy of a finished job with other arguments or options. Invalid fields enqueue nothing."""
    job = await action.broker.get(action.id)
    if job is None or not job.state.finished:
        return Outcome("not-rerun", f"/jobs/{action.id}", False, {"id": action.id, "rerun": None})
    edited = edit.parse(job, action.fields, action.state.redaction, action.state.check_arguments)
    if isinstance(edited, edit.Form):
        fields = {"id": action.id, "problems": edited.problems}
        return Outcome("invalid", f"/jobs/{action.id}/edit", False, fields, form=edited)
    new = await action.broker.enqueue_job(edited)
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


# Limits.


async def set_limit(action: ActionRequest) -> Outcome:
    name, fields = action.field("limit"), action.fields
    limit = Limit(
        "", _given(fields, "running", int), _given(fields, "rate", int), _given(fields, "per", float) or 1,
        _given(fields, "burst", int) or 1,
    )  # fmt: skip
    await action.broker.set_limit(name, limit)
    return Outcome("limit-set", "/limits", True, {"limit": name})


def _given(fields: Mapping[str, str], name: str, convert: Callable[[str], Number]) -> Number | None:
    text = fields.get(name, "").strip()
    try:
        return convert(text) if text else None
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None


async def remove_limit(action: ActionRequest) -> Outcome:
    name = action.field("limit")
    removed = await action.broker.remove_limit(name)
    return Outcome("limit-removed" if removed else "no-limit", "/limits", removed, {"limit": name})


# In bulk: the jobs that a filter selects, or dead letters by error, by queue, or all.


Work = Callable[[ActionRequest, BulkOperation], Awaitable[int]]


async def in_bulk(verb: str, action: ActionRequest) -> Outcome:
    """Cancel, requeue or purge all jobs that a filter selects."""
    wanted = filters.parse(action.fields)
    if wanted == Filter() and action.fields.get("all") != "yes":
        raise ValueError("pass a filter, such as a queue, or all=yes")
    state = "all" if wanted.state is None else wanted.state.value
    name = f"{BULK_VERBS[verb].label} {state} jobs: {filters.in_words(wanted) or 'of all queues'}"
    query = filters.to_query(wanted)
    return await _start(
        action, f"jobs.{verb}", name, partial(_matching, verb, wanted), f"jobs-{verb}", "/jobs", query
    )


async def _matching(verb: str, wanted: Filter, action: ActionRequest, operation: BulkOperation) -> int:
    inspector = await action.state.inspector()
    states = BULK_VERBS[verb].states
    operation.total = await inspector.count(wanted, states)
    if verb == "cancel":
        done = await inspector.cancel(wanted, states, operation.on_progress)
        return done.removed + done.requested
    change = inspector.requeue if verb == "requeue" else inspector.purge
    return await change(wanted, operation.on_progress)


async def change_dead(verb: str, action: ActionRequest) -> Outcome:
    title = f"{BULK_VERBS[verb].label} {_scope(action)}"
    work = partial(_change_dead, verb)
    return await _start(action, f"dead.{verb}", title, work, f"dead-{verb}d", "/dead", {})


async def _start(
    action: ActionRequest, name: str, title: str, work: Work, code: str, path: str, query: Mapping[str, str]
) -> Outcome:
    context = action.context

    def on_end(operation: BulkOperation) -> None:
        outcome = operation.done if operation.problem is None else "failed"
        audit(f"{name}.ended", context.user, context.client, title, outcome)

    try:
        operation = await action.state.bulk.start(title, partial(work, action), on_end)
    except TooManyOperations:
        return Outcome("busy", "/operations", False, {"jobs": 0, "ended": False})
    ended = operation.ended.is_set()
    fields = {
        "operation": operation.id, "jobs": operation.done, "total": operation.total, "ended": ended,
        "problem": operation.problem,
    }  # fmt: skip
    if operation.problem is not None:
        return Outcome("failed", path, False, fields, operation.done, query)
    if not ended:
        return Outcome("in-progress", "/operations", True, fields)
    return Outcome(code, path, True, fields, operation.done, query)


async def stop_operation(action: ActionRequest) -> Outcome:
    id = action.field("operation")
    stopped = await action.state.bulk.stop_one(id)
    return Outcome("stopped" if stopped else "not-stopped", "/operations", stopped, {"operation": id})


def _scope(action: ActionRequest) -> str:
    queue, task, error = (action.fields.get(name) for name in ("queue", "task", "error"))
    parts = [f"dead jobs of queue {queue}" if queue else "all dead jobs"]
    if error is not None:
        parts.append(f"task {task}, error {error}")
    if error is None and not queue and action.fields.get("all") != "yes":
        raise ValueError("pass a queue, an error with its task, or all=yes")
    return ", ".join(parts)


async def _change_dead(verb: str, action: ActionRequest, operation: BulkOperation) -> int:
    broker, on_progress = action.broker, operation.on_progress
    if action.fields.get("error") is not None:
        change = broker.requeue_many if verb == "requeue" else broker.purge_many
        return await change(await _of_error(action, operation), on_progress=on_progress)
    queues = await _dead_queues(action, operation)
    if verb == "requeue":
        return await requeue_dead(broker, queues, on_progress)
    return await broker.purge_dead(action.fields.get("queue") or None, on_progress=on_progress)


async def _dead_queues(action: ActionRequest, operation: BulkOperation) -> list[str]:
    """Return the queues with dead jobs, or the one that is given. Set the operation's total."""
    queue = action.fields.get("queue")
    stats = await action.broker.all_stats()
    dead = {name: each.dead for name, each in stats.items() if each.dead and (not queue or name == queue)}
    operation.total = sum(dead.values())
    return list(dead)


async def _of_error(action: ActionRequest, operation: BulkOperation) -> list[str]:
    """Return the ids of the latest dead jobs with this task and error pattern."""
    found = await dead_groups(action.broker, action.fields.get("queue") or None)
    wanted = (action.fields.get("task", ""), action.fields["error"])
    ids = [id for group in found.groups if (group.task, group.error) == wanted for id in group.ids]
    operation.total = len(ids)
    return ids


ACTIONS: dict[str, tuple[str, Action]] = {
    "job.cancel": ("/jobs/{id}/cancel", cancel_job),
    "job.requeue": ("/jobs/{id}/requeue", requeue_job),
    "job.rerun": ("/jobs/{id}/rerun", rerun_job),
    "job.edit": ("/jobs/{id}/edit", edit_job),
    "jobs.cancel": ("/jobs/cancel", partial(in_bulk, "cancel")),
    "jobs.requeue": ("/jobs/requeue", partial(in_bulk, "requeue")),
    "jobs.purge": ("/jobs/purge", partial(in_bulk, "purge")),
    "queue.pause": ("/queues/pause", partial(pause_queue, True)),
    "queue.resume": ("/queues/resume", partial(pause_queue, False)),
    "schedule.pause": ("/schedules/pause", partial(pause_schedule, True)),
    "schedule.resume": ("/schedules/resume", partial(pause_schedule, False)),
    "schedule.trigger": ("/schedules/trigger", trigger_schedule),
    "limit.set": ("/limits/set", set_limit),
    "limit.remove": ("/limits/remove", remove_limit),
    "dead.requeue": ("/dead/requeue", partial(change_dead, "requeue")),
    "dead.purge": ("/dead/purge", partial(change_dead, "purge")),
    "operation.stop": ("/operations/stop", stop_operation),
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
    named = [
        fields[name]
        for name in ("schedule", "limit", "error", "operation", *filters.NAMES)
        if fields.get(name)
    ]
    return ", ".join(named) or "all"


def _redirect(request: Request, outcome: Outcome) -> Response:
    if outcome.form is not None:
        return edit.render(request, outcome.form)
    target = url(request, outcome.path, outcome.query, message=outcome.code, n=outcome.count)
    return RedirectResponse(target, 303)


def _json(request: Request, outcome: Outcome) -> Response:
    status = 200 if outcome.ok else 409 if outcome.form is None else 422
    return JSONResponse({"ok": outcome.ok, "code": outcome.code, **outcome.fields}, status)
