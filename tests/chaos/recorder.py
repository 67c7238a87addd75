"""Records every call of every broker in this process, and the reports of its duties."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from dayjob import App, Broker, Job, LeaseLost, NewJob, Settlement
from dayjob.broker.session import Session
from dayjob.events import Event
from dayjob.model.durations import SECOND
from dayjob.model.job import EndedJob, JobState, id_key, id_text
from dayjob.runtime.ids import new_key
from tests.chaos.record import (
    Announced,
    Answer,
    Change,
    Claim,
    ClaimedItem,
    Duty,
    Ended,
    EndedItem,
    Enqueue,
    Failed,
    NewItem,
    Record,
    Renew,
    Settle,
    SettleItem,
    Unseen,
)

Reply = TypeVar("Reply")
AnyCall = Enqueue | Claim | Settle | Renew | Change | Duty

CHANGES = ("cancel", "requeue_many", "purge_many", "reschedule")
"""Methods of the broker whose first argument is an id, or several."""

QUEUE_CHANGES = ("requeue_dead", "purge_dead", "sweep_done", "sweep_dead")
DUTIES = ("reap", "reclaim", "promote")


def named(job: NewJob) -> NewJob:
    """Return the job with an id, so that it can be found even if the answer is lost."""
    return job if job.id is not None else replace(job, id=id_text(new_key()), reserve_id=False)


def new_item(job: NewJob) -> NewItem:
    assert job.id is not None
    return NewItem(
        id_text(id_key(job.id)), job.queue, job.priority, job.delay is not None or job.run_at is not None,
        job.expires is not None, job.dedup_key, job.dedup_until, _keys(job.kv), job.reserve_id,
    )  # fmt: skip


def _keys(kv: Any) -> list[str]:
    return [key.decode("latin-1") for key in kv or ()]


def _ended_items(jobs: Sequence[EndedJob]) -> list[EndedItem]:
    return [EndedItem(job.id, job.old_state.value, job.state.value, job.error) for job in jobs]


class Recorder:
    """Replaces methods of ``Broker`` by ones that record, for all brokers of the process."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._originals: dict[str, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record during the block."""
        self.install()
        try:
            yield
        finally:
            session_class: Any = Session
            session_class._release = self._originals.pop("_release")
            for name, method in self._originals.items():
                setattr(Broker, name, method)

    def install(self) -> None:
        replaced = {
            "__init__": self._init, "enqueue_job": self._enqueue_job, "enqueue_many": self._enqueue_many,
            "claim": self._claim, "claim_any": self._claim_any, "_settle": self._settle,
            "settle_many": self._settle_many, "renew": self._renew, "renew_many": self._renew_many,
            **{name: self._change(name) for name in CHANGES + QUEUE_CHANGES},
        }  # fmt: skip
        self._originals = {name: getattr(Broker, name) for name in replaced}
        for name, method in replaced.items():
            setattr(Broker, name, _as_method(method))
        release = self._originals["_release"] = Session._release

        async def released(session: Session, jobs: list[Job]) -> None:
            self.record.write(Unseen(ids=[job.id for job in jobs]))
            await release(session, jobs)

        session_class: Any = Session
        session_class._release = released

    def announce(self, app: App) -> None:
        """Record the deaths that observers of the app are notified of."""

        async def dead(event: Event) -> None:
            self.record.write(Announced(event=event.name, id=event.id))

        app.on("job.dead")(dead)

    async def _recorded(
        self, entry: AnyCall, call: Callable[[], Awaitable[Reply]], value: Callable[[Reply], Any]
    ) -> Reply:
        number = self.record.call(entry)
        try:
            reply = await call()
        except LeaseLost:
            self.record.write(Answer(number=number, value=[None]))
            raise
        except BaseException as error:
            self.record.write(Failed(number=number, error=f"{type(error).__name__}: {error}"[:500]))
            raise
        self.record.write(Answer(number=number, value=value(reply)))
        return reply

    # Methods of the broker.

    def _init(self, broker: Broker, url: str, **options: Any) -> None:
        on_ended = options.pop("on_ended", None)

        def ended(jobs: Sequence[EndedJob]) -> None:
            self.record.write(Ended(jobs=_ended_items(jobs)))
            if on_ended is not None:
                on_ended(jobs)

        self._originals["__init__"](broker, url, on_ended=ended, **options)
        for verb in DUTIES:
            setattr(broker._engine, verb, self._duty(verb, getattr(broker._engine, verb)))

    def _duty(self, verb: str, original: Any) -> Any:
        async def recorded(*arguments: Any, **options: Any) -> Any:
            token = options.get("token")
            entry = Duty(verb=verb, token="" if token is None else token.key.hex())
            return await self._recorded(
                entry,
                lambda: original(*arguments, **options),
                lambda reply: _ended_items(reply[1] if verb == "promote" else reply),
            )

        return recorded

    async def _enqueue_job(self, broker: Broker, job: NewJob, *, connection: Any = None) -> Any:
        job = named(job)
        original = self._originals["enqueue_job"]
        return await self._recorded(
            Enqueue(jobs=[new_item(job)]),
            lambda: original(broker, job, connection=connection),
            lambda reply: [(reply.id, reply.created)],
        )

    async def _enqueue_many(self, broker: Broker, jobs: Sequence[NewJob], *, connection: Any = None) -> Any:
        jobs = [named(job) for job in jobs]
        original = self._originals["enqueue_many"]
        return await self._recorded(
            Enqueue(jobs=[new_item(job) for job in jobs]),
            lambda: original(broker, jobs, connection=connection),
            lambda reply: [(each.id, each.created) for each in reply],
        )

    async def _claim(self, broker: Broker, queues: str | Sequence[str], **options: Any) -> list[Job]:
        names = [queues] if isinstance(queues, str) else list(queues)
        return await self._claiming(
            broker, names, options, lambda: self._originals["claim"](broker, queues, **options)
        )

    async def _claim_any(self, broker: Broker, **options: Any) -> list[Job]:
        return await self._claiming(
            broker, [], options, lambda: self._originals["claim_any"](broker, **options)
        )

    async def _claiming(
        self, broker: Broker, queues: list[str], options: Any, call: Callable[[], Awaitable[list[Job]]]
    ) -> list[Job]:
        lease, worker = options.get("lease"), options.get("worker")

        def claimed(job: Job) -> ClaimedItem:
            assert job.lease_us is not None
            seconds = broker.lease_of(job.queue, lease)
            return ClaimedItem(
                job.id, job.claim.hex(), job.queue, job.priority, job.epoch, job.attempts, job.max_attempts,
                job.lease_us, job.lease_us - round(seconds * SECOND), dict(getattr(job, "limits", ())),
            )  # fmt: skip

        return await self._recorded(
            Claim(queues=queues, worker=worker), call, lambda jobs: [claimed(job) for job in jobs]
        )

    async def _settle(self, broker: Broker, settlement: Settlement) -> JobState:
        settlement = self._with_ids(settlement)
        state: JobState = await self._recorded(
            Settle(ops=[self._item(settlement)]),
            lambda: self._originals["_settle"](broker, settlement),
            lambda state: [state.value],
        )
        return state

    async def _settle_many(self, broker: Broker, settlements: Sequence[Settlement]) -> Any:
        settlements = [self._with_ids(settlement) for settlement in settlements]
        return await self._recorded(
            Settle(ops=[self._item(settlement) for settlement in settlements]),
            lambda: self._originals["settle_many"](broker, settlements),
            lambda results: [result.state.value if result.applied else None for result in results],
        )

    def _with_ids(self, settlement: Settlement) -> Settlement:
        if not settlement.enqueue:
            return settlement
        return replace(settlement, enqueue=[named(job) for job in settlement.enqueue])

    def _item(self, settlement: Settlement) -> SettleItem:
        return SettleItem(
            settlement.job.id, settlement.job.claim.hex(), settlement.transition.value,
            [new_item(job) for job in settlement.enqueue], _keys(settlement.kv),
        )  # fmt: skip

    async def _renew(self, broker: Broker, job: Job, lease: Any = None) -> None:
        await self._recorded(
            Renew(claims=[(job.id, job.claim.hex())]),
            lambda: self._originals["renew"](broker, job, lease),
            lambda _: [job.lease_us],
        )

    async def _renew_many(self, broker: Broker, jobs: Sequence[Job], lease: Any = None) -> Any:
        return await self._recorded(
            Renew(claims=[(job.id, job.claim.hex()) for job in jobs]),
            lambda: self._originals["renew_many"](broker, jobs, lease),
            lambda renewed: [each.lease_us for each in renewed],
        )

    def _change(self, verb: str) -> Any:
        async def recorded(broker: Broker, *arguments: Any, **options: Any) -> Any:
            ids: list[str] = []
            if verb in CHANGES:
                ids = [arguments[0]] if isinstance(arguments[0], str) else list(arguments[0])
            return await self._recorded(
                Change(verb=verb.removesuffix("_many"), ids=ids),
                lambda: self._originals[verb](broker, *arguments, **options),
                lambda reply: reply if isinstance(reply, int) else [reply],
            )

        return recorded


def _as_method(function: Any) -> Any:
    """Return a plain function, which becomes a method of the broker."""
    if function.__name__ == "_init":
        return lambda broker, *arguments, **options: function(broker, *arguments, **options)

    async def method(broker: Broker, *arguments: Any, **options: Any) -> Any:
        return await function(broker, *arguments, **options)

    return method
