"""A relative SQLite URL names the same file for the whole life of its app, also after ``os.chdir``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dayjob import App, Broker, BrokerConfig, Context, JobState, Worker
from dayjob.engines.registry import absolute
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a space and a percent sign in its name."""
    folder = tmp_path / "50 % here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///a%3Fb/%23.db?timeout=1&synchronous=normal", "a?b/#.db"),
        ("sqlite:///../x/jobs.db", "../x/jobs.db"),
    ],
)
def test_a_relative_path_becomes_absolute(here: Path, there: Path, url: str, path: str) -> None:
    resolved = absolute(url)
    os.chdir(there)
    assert absolute(resolved) == resolved
    assert Broker(url).url != resolved
    assert Broker(resolved)._engine.settings.path == here / path  # type: ignore[attr-defined]
    assert resolved.partition("?")[2] == url.partition("?")[2]


@pytest.mark.parametrize(
    "url", ["memory://", "memory://x", "sqlite:////tmp/x.db", "postgresql://u@h/d?schema=a", "redis://h/0"]
)
def test_other_urls_stay_as_they_are(url: str) -> None:
    assert absolute(url) == url


async def test_every_broker_of_an_app_uses_the_first_file(here: Path, there: Path) -> None:
    app = App("sqlite:///jobs.db")

    @app.task
    def run() -> None: ...

    os.chdir(there)
    handle = await asyncio.to_thread(run.enqueue)  # On the bridge, with a broker of its own.
    async with app:
        assert (await app.broker.stats("default")).pending == 1
    await asyncio.to_thread(app.__exit__)
    assert is_empty(there)
    async with Broker(f"sqlite:///{here}/jobs.db".replace("%", "%25"), config=QUIET) as broker:
        assert [job.id for job in await broker.jobs()] == [handle.id]


async def test_a_job_that_changes_the_folder_keeps_heartbeats_and_follow_ups(here: Path, there: Path) -> None:
    app = App("sqlite:///jobs.db")
    changed = asyncio.Event()

    @app.task
    async def move(ctx: Context) -> None:
        os.chdir(there)
        changed.set()
        await ctx.cancelled.wait()

    async with app:
        worker = Worker(app, lease=1)
        running = asyncio.create_task(worker.run())
        handle = await move.aenqueue()
        await with_timeout(changed.wait())
        leases: set[object] = set()

        async def renewed() -> bool:
            job = await app.broker.get(handle.id)
            assert job is not None
            assert (job.state, job.attempts) == (JobState.RUNNING, 1)
            leases.add(job.lease_expires_at)
            return len(leases) > 2

        await until(renewed)
        await app.broker.cancel(handle.id)
        worker.stop()
        await with_timeout(running)
    assert is_empty(there)
