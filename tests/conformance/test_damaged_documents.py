"""One damaged document or time stops no duty, no claim and no page."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dayjob import Broker, Recurring
from dayjob.engines.base import DocumentWrite, Insertion
from dayjob.model.job import id_text
from dayjob.model.recurring import SCHEDULE_HEADER, Schedule
from dayjob.runtime.ids import new_key
from tests.dashboard.browsing import browse
from tests.support.arrange import KEEP_ALL, OpenBroker, quiet
from tests.support.registered_workers import MEMBER, elsewhere
from tests.support.waiting import WatchedClock

FAR = 2**61
"""Microseconds: beyond the year 9999."""

PAGES = ("/", "/jobs", "/dead", "/dead?by=error", "/tasks", "/workers", "/schedules", "/metrics")
API = ("overview", "jobs", "dead", "dead/groups", "workers", "schedules", "chart", "tasks")

encode = msgspec.msgpack.encode
schedule = Schedule(id="s", queue="other", task="", payload=b"", next_us=1, every_us=60_000_000)
INTERVAL = encode(60_000_000)

DAMAGED = (
    b"",
    b"\xc1\xff\x00",
    b"\x91" * 5_000,  # nested
    b"\x92\xa1\xff\xa1\xff",  # text that is not UTF-8
    encode(MEMBER).replace(b"\xa3app", b"\xa3\xff\xff\xff"),
    encode(elsewhere("a", started_us=FAR, dead_after=FAR)),
    encode(replace(MEMBER, id="b", pid=FAR, dead_after=0)),
    encode(schedule).replace(b"\xa5other", b"\xa5\xff\xff\xff\xff\xff"),
    encode(replace(schedule, next_us=FAR, last_us=-FAR)),
    encode(replace(schedule, next_us=-FAR)),
    encode(replace(schedule, cron="* * * * *", timezone="No/Where")),
    encode(replace(schedule, cron="no cron")),
    encode(schedule).replace(INTERVAL, encode(0)),
    encode(schedule).replace(INTERVAL, encode(-60_000_000)),
    encode([[-FAR, {"q": [1, 0, 0, 5, 0, 0]}]]),
)


async def check_every_page(broker: Broker, *ids: str) -> None:
    browser = browse(broker)
    paths = [*PAGES, *(f"/api/{name}" for name in API)]
    for path in [*paths, *(path for id in ids for path in (f"/jobs/{id}", f"/api/jobs/{id}"))]:
        assert (await browser.get(path)).status_code == 200, path


async def test_damaged_documents_stop_no_duty_and_no_page(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await broker.register(MEMBER)
    await broker.schedule(Recurring("fine", every=60, queue="q"))
    for kind in ("worker", "schedule", "history", "duty"):
        writes = [DocumentWrite(kind, f"damaged {n}", None, value) for n, value in enumerate(DAMAGED)]
        assert await broker._engine.compare_and_set(writes)
    clock.advance(61)
    for duty in (broker.lead, broker.recur, broker.reclaim, broker.sample, broker.promote, broker.reap):
        await duty()
    [job] = await broker.claim("q")
    assert job.headers[SCHEDULE_HEADER] == "fine"
    await broker.history()
    await broker.explain(job.id)
    await check_every_page(broker, job.id)
    for each in await broker.schedules():
        assert each.next_at is None or each.next_at.tzinfo is not None


async def test_a_time_out_of_range_stops_no_duty_no_claim_and_no_page(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    keys = [new_key() for _ in range(3)]
    early, late, expiring = (
        Insertion(key, "q", "t", b"{}", 1000, 3, {}, run_at=run_at, expires_at=expires_at)
        for key, run_at, expires_at in zip(keys, (-FAR, FAR, None), (None, FAR, FAR), strict=True)
    )
    await broker._engine.insert([early, late, expiring], None)
    for duty in (broker.promote, broker.reap, broker.sweep, broker.reclaim):
        await duty()
    ids = [id_text(key) for key in keys]
    await check_every_page(broker, *ids)
    for id in ids:
        assert (await broker.explain(id)).reasons
    jobs = await broker.claim("q", limit=5)
    assert sorted(job.id for job in jobs) == sorted([ids[0], ids[2]])
    await check_every_page(broker, *ids)
