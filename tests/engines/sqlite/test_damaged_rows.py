"""A column of another type, which any program can write to the file, stops no listing and no page."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from dayjob import Broker
from tests.dashboard.browsing import browse

DAMAGE = [
    "UPDATE dayjob_jobs SET worker = x'ff'", "UPDATE dayjob_jobs SET worker = 5",
    "UPDATE dayjob_jobs SET dedup_key = x'ff'", "UPDATE dayjob_jobs SET result = 'text'",
    "UPDATE dayjob_jobs SET errors = 'text'", "UPDATE dayjob_jobs SET progress = x'92ffa1ff'",
    "UPDATE dayjob_jobs SET finished_at = 4611686018427387904", "UPDATE dayjob_jobs SET claimed_at = 'now'",
    "UPDATE dayjob_queues SET name = x'ff' WHERE name = 'damaged'",
    "UPDATE dayjob_queues SET pending = 'many'",
    "UPDATE dayjob_queues SET name = x'ff', paused = 1 WHERE name = 'damaged'",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_column_of_another_type_stops_no_page_and_no_claim(
    broker: Broker, url: str, damage: str
) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    await broker.enqueue("damaged", b"{}", task="t", dedup_key="k", max_attempts=1)
    [job] = await broker.claim("damaged", worker="w")
    await broker.dead_letter(job, "ValueError: bad")
    where = f" WHERE id = x'{UUID(job.id).hex}'" if "dayjob_jobs" in damage else ""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage + where)
        connection.commit()
    await broker.enqueue("fine", b"{}")
    browser = browse(broker)
    for page in (
        "/", "/jobs", f"/jobs/{job.id}", "/dead", "/dead?by=error", "/tasks", "/metrics", "/api/overview",
        "/api/jobs", "/api/dead", f"/api/jobs/{job.id}",
    ):  # fmt: skip
        assert (await browser.get(page)).status_code == 200, page
    assert len(await broker.claim_any()) == 1
