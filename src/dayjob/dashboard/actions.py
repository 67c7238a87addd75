"""What can be done here. Each action is one function, with a route for forms and one for programs.

All are POST, so all pass the guard's checks; each leaves a line in the audit log.
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
from dayjob.dashboard.audit import audit
from dayjob.dashboard.chores import Busy, Chore, Told
from dayjob.dashboard.desk import Desk, desk_of
from dayjob.dashboard.rendering import problem, url
from dayjob.dashboard.security import Visit, visit_of
from dayjob.errors import DayjobError, InvalidState
from dayjob.model.job import CancelOutcome


class Outcome(Struct, frozen=True):
    """What came of it: a word for the page that is shown next, and the fields for programs."""

    said: str
    path: str
    ok: bool = True
    fields: Mapping[str, Any] = {}
    count: int | None = None


class Order(Struct, frozen=True):
    """What is asked for, by whom."""

    desk: Desk
    broker: Broker
    visit: Visit
    id: str
    fields: Mapping[str, str]

    def field(self, name: str) -> str:
        value = self.fields.get(name, "")
        if not value:
            raise ValueError(f"the field {name!r} is missing")
        return value


Act = Callable[[Order], Awaitable[Outcome]]


# Jobs.


async def cancel_job(order: Order) -> Outcome:
    outcome = await order.broker.cancel(order.id)
    said = {CancelOutcome.REMOVED: "cancelled", CancelOutcome.REQUESTED: "asked"}.get(
        outcome, "not-cancelled"
    )
    gone = outcome is CancelOutcome.REMOVED and await order.broker.get(order.id) is None
    path = "/jobs" if gone else f"/jobs/{order.id}"
    return Outcome(said, path, outcome.acted, {"id": order.id, "outcome": outcome.value})


async def requeue_job(order: Order) -> Outcome:
    done = await order.broker.requeue(order.id)
    said = "requeued" if done else "not-requeued"
    return Outcome(said, f"/jobs/{order.id}", done, {"id": order.id, "requeued": done})


async def rerun_job(order: Order) -> Outcome:
    try:
        new = await order.broker.rerun(order.id)
    except InvalidState:
        return Outcome("not-rerun", f"/jobs/{order.id}", False, {"id": order.id, "rerun": None})
    return Outcome("rerun", f"/jobs/{new.id}", True, {"id": order.id, "rerun": new.id})


# Queues.


async def pause_queue(order: Order) -> Outcome:
    queue = order.field("queue")
    await order.broker.pause(queue)
    return Outcome("paused", "/", True, {"queue": queue, "paused": True})


async def resume_queue(order: Order) -> Outcome:
    queue = order.field("queue")
    await order.broker.resume(queue)
    return Outcome("resumed", "/", True, {"queue": queue, "paused": False})


# Schedules.


async def pause_schedule(order: Order) -> Outcome:
    id = order.field("schedule")
    found = await order.broker.pause_schedule(id)
    return Outcome("schedule-paused" if found else "no-schedule", "/schedules", found, {"schedule": id})


async def resume_schedule(order: Order) -> Outcome:
    id = order.field("schedule")
    found = await order.broker.resume_schedule(id)
    return Outcome("schedule-resumed" if found else "no-schedule", "/schedules", found, {"schedule": id})


async def trigger_schedule(order: Order) -> Outcome:
    id = order.field("schedule")
    try:
        new = await order.broker.trigger(id)
    except InvalidState:
        return Outcome("no-schedule", "/schedules", False, {"schedule": id, "job": None})
    return Outcome("triggered", f"/jobs/{new.id}", True, {"schedule": id, "job": new.id})


# Dead letters, in bulk: those of an error, of a queue, or all.


async def requeue_dead(order: Order) -> Outcome:
    return await _in_bulk(order, "requeue", _requeue, "dead-requeued")


async def purge_dead(order: Order) -> Outcome:
    return await _in_bulk(order, "purge", _purge, "dead-purged")


async def _in_bulk(
    order: Order, verb: str, work: Callable[[Order, Told], Awaitable[int]], said: str
) -> Outcome:
    what, target = f"{verb} of {_scope(order)}", _scope(order)
    visit = order.visit

    def ended(chore: Chore) -> None:
        outcome = chore.done if chore.problem is None else "failed"
        audit(f"dead.{verb}.ended", visit.who, visit.client, target, outcome)

    try:
        chore = await order.desk.chores.start(what, partial(work, order), ended)
    except Busy:
        return Outcome("busy", "/dead", False, {"jobs": 0, "ended": False})
    over = chore.ended.is_set()
    word = "failed" if chore.problem else said if over else "under-way"
    fields = {"jobs": chore.done, "ended": over, "problem": chore.problem}
    return Outcome(word, "/dead", chore.problem is None, fields, chore.done)


def _scope(order: Order) -> str:
    queue, task, error = (order.fields.get(name) for name in ("queue", "task", "error"))
    parts = [f"dead jobs of queue {queue}" if queue else "all dead jobs"]
    if error is not None:
        parts.append(f"task {task}, error {error}")
    if error is None and not queue and order.fields.get("all") != "yes":
        raise ValueError("which dead jobs? Name a queue, an error with its task, or all=yes")
    return ", ".join(parts)


async def _requeue(order: Order, told: Told) -> int:
    if order.fields.get("error") is not None:
        return await order.broker.requeue_many(await _of_error(order), told=told)
    queue = order.fields.get("queue")
    names = (
        [queue] if queue else [name for name, each in (await order.broker.all_stats()).items() if each.dead]
    )
    total = 0
    for name in names:
        total += await order.broker.requeue_dead(name, told=partial(_add, told, total))
    return total


async def _purge(order: Order, told: Told) -> int:
    if order.fields.get("error") is not None:
        return await order.broker.purge_many(await _of_error(order), told=told)
    return await order.broker.purge_dead(order.fields.get("queue") or None, told=told)


async def _of_error(order: Order) -> list[str]:
    """The jobs that failed of this, among the latest, as they are now."""
    inspector = await order.desk.inspector()
    found = await inspector.dead_groups(order.fields.get("queue") or None)
    wanted = (order.fields.get("task", ""), order.fields["error"])
    return [id for group in found.groups if (group.task, group.error) == wanted for id in group.ids]


def _add(told: Told, before: int, more: int) -> None:
    told(before + more)


ACTIONS: dict[str, tuple[str, Act]] = {
    "job.cancel": ("/jobs/{id}/cancel", cancel_job),
    "job.requeue": ("/jobs/{id}/requeue", requeue_job),
    "job.rerun": ("/jobs/{id}/rerun", rerun_job),
    "queue.pause": ("/queues/pause", pause_queue),
    "queue.resume": ("/queues/resume", resume_queue),
    "schedule.pause": ("/schedules/pause", pause_schedule),
    "schedule.resume": ("/schedules/resume", resume_schedule),
    "schedule.trigger": ("/schedules/trigger", trigger_schedule),
    "dead.requeue": ("/dead/requeue", requeue_dead),
    "dead.purge": ("/dead/purge", purge_dead),
}


def routes() -> list[Route]:
    made = []
    for name, (path, act) in ACTIONS.items():
        for prefix, answer in (("", _redirect), ("/api", _json)):
            made.append(Route(prefix + path, partial(_handle, name, act, answer), methods=["POST"]))
    return made


async def _handle(
    name: str, act: Act, answer: Callable[[Request, Outcome], Response], request: Request
) -> Response:
    visit, desk = visit_of(request), desk_of(request)
    order = Order(desk, await desk.broker(), visit, request.path_params.get("id", ""), visit.fields)
    target = order.id or _target(visit.fields)
    try:
        outcome = await act(order)
    except ValueError as error:
        return problem(request, 400, f"Nothing was done: {error}.")
    except DayjobError:
        audit(name, visit.who, visit.client, target, "failed")
        raise
    audit(name, visit.who, visit.client, target, outcome.said)
    return answer(request, outcome)


def _target(fields: Mapping[str, str]) -> str:
    named = [fields[name] for name in ("queue", "schedule", "task", "error") if fields.get(name)]
    return ", ".join(named) or "all"


def _redirect(request: Request, outcome: Outcome) -> Response:
    return RedirectResponse(url(request, outcome.path, said=outcome.said, n=outcome.count), 303)


def _json(request: Request, outcome: Outcome) -> Response:
    return JSONResponse(
        {"ok": outcome.ok, "said": outcome.said, **outcome.fields}, 200 if outcome.ok else 409
    )
