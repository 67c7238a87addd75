"""A worker inside each host: SIGTERM ends the host in time, and no job is lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from dayjob import Broker, Job, JobState, Worker
from dayjob.runtime.clock import SYSTEM
from tests.cli.processes import ROOT, Command, eventually, with_broker
from tests.hosts.jobs import Jobs
from tests.support.bound import BOUND

pytestmark = pytest.mark.slow

IN_TIME = 15.0
"""Seconds from SIGTERM to the end of the host: its shutdown timeout of 1 s, on a loaded machine."""

GUNICORN = (
    "gunicorn", "tests.hosts.wsgi_host:web", "--config", "python:tests.hosts.gunicorn_config", "--preload",
)  # fmt: skip
RUNSERVER = ("django", "runserver", "127.0.0.1:0")
HOSTS = {
    "uvicorn": ("uvicorn", "tests.hosts.starlette_host:web", "--port", "0"),
    "gunicorn": (*GUNICORN, "--workers", "2", "--threads", "2"),
    "runserver": (*RUNSERVER, "--noreload"),
    "thread": ("tests.hosts.thread_host",),
}

StartHost = Callable[..., Command]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[StartHost]:
    """Start a module as a program. Its processes end with the test."""
    started: list[Command] = []

    def start(module: str, *arguments: str) -> Command:
        environment = {
            "JOBS_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.hosts.django_host",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        started.append(
            Command(arguments, ROOT, tmp_path / "host.log", environment, ("-m", module), process_group=0)
        )
        return started[-1]

    yield start
    for command in started:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()


def enqueue(jobs: Jobs) -> set[str]:
    """Enqueue jobs that end, coroutines that wait and functions that block. Return their ids."""
    with jobs.app:
        handles = jobs.quick.enqueue_many([()] * 20)
        handles += jobs.waits.enqueue_many([()] * 3)
        handles += jobs.blocks.enqueue_many([()] * 2)
    return {handle.id for handle in handles}


def request(host: Command) -> tuple[int, str]:
    """Return the status and the body of a reply."""
    eventually(lambda: re.search(_ADDRESS, host.output()) is not None, "address", host.output)
    address = re.findall(_ADDRESS, host.output())[0]
    try:
        with urllib.request.urlopen(address, timeout=BOUND) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


_ADDRESS = r"http://127\.0\.0\.1:[1-9]\d*"


@contextmanager
def follow(host: Command, url: str) -> Iterator[None]:
    """Have a stream of a running job open. A server waits for open responses at its end."""
    [id, *_] = [job.id for job in in_state(url, JobState.RUNNING) if job.task == "waits"]
    address = re.findall(_ADDRESS, host.output())[0]
    with urllib.request.urlopen(f"{address}/events/{id}", timeout=BOUND) as stream:
        assert [stream.readline() for _ in range(4)][3].startswith(b"data:")
        yield
        assert b"event: end" not in stream.read()


def all_jobs(url: str) -> list[Job]:
    async def read(broker: Broker) -> list[Job]:
        return await broker.jobs(limit=200)

    return with_broker(url, read)


def in_state(url: str, state: JobState) -> list[Job]:
    return [job for job in all_jobs(url) if job.state is state]


def wait_until_running(host: Command, url: str) -> None:
    """Wait until the short jobs are done and all others run."""
    eventually(
        lambda: len(in_state(url, JobState.RUNNING)) == 5 and not in_state(url, JobState.PENDING),
        "jobs running in the host", host.output,
    )  # fmt: skip


def end(host: Command, code: int = 0) -> None:
    """Send SIGTERM, and assert that the host ends in time with this exit code."""
    sent = SYSTEM.elapsed()
    assert host.stop() == code, host.output()
    assert SYSTEM.elapsed() - sent < IN_TIME


def finish(url: str) -> list[Job]:
    """Run the jobs that are left in another worker. Return all jobs."""
    asyncio.run(asyncio.wait_for(Worker(Jobs(url, finish=True).app).run_until_idle(), BOUND))
    return all_jobs(url)


@pytest.mark.parametrize("name", HOSTS)
def test_sigterm_ends_the_host_in_time_and_releases_its_running_jobs(
    name: str, url: str, start: StartHost
) -> None:
    expected = enqueue(Jobs(url))
    host = start(*HOSTS[name])
    if name != "thread":
        status, id = request(host)
        assert status == 200, id
        expected.add(id)
    wait_until_running(host, url)
    with follow(host, url) if name == "uvicorn" else nullcontext():
        end(host, -signal.SIGTERM if name == "uvicorn" else 0)  # uvicorn repeats the signal at its end.
    left = [job for job in all_jobs(url) if job.state is not JobState.DONE]
    found = [(job.state, job.attempts, job.last_error) for job in left]
    assert found == [(JobState.PENDING, 0, None)] * 5, host.output()
    assert with_broker(url, lambda broker: broker.workers()) == []
    done = finish(url)
    assert {(job.state, job.attempts) for job in done} == {(JobState.DONE, 1)}
    assert expected <= {job.id for job in done}


def test_jobs_of_a_server_that_the_reloader_of_django_kills_run_again(url: str, start: StartHost) -> None:
    """On SIGTERM, the parent process of ``runserver`` kills the server, which gets no chance to stop."""
    expected = enqueue(Jobs(url, attempts=2))
    host = start(*RUNSERVER)
    wait_until_running(host, url)
    end(host)
    eventually(lambda: {job.state for job in finish(url)} == {JobState.DONE}, "end of all jobs")
    assert expected == {job.id for job in all_jobs(url)}


def test_gunicorn_with_gevent_is_refused_for_enqueues_and_workers(url: str, start: StartHost) -> None:
    host = start(*GUNICORN, "--worker-class", "gevent")
    status, body = request(host)
    assert status == 500
    assert body.startswith("gevent has replaced the threads of this process, and synchronous calls need")
    assert "nothing was stored: serve with threads (such as gunicorn -k gthread)" in body
    host.wait_for_output("gevent has replaced the threads of this process, and a worker needs real ones")
    end(host)
    assert [(job.state, job.attempts) for job in all_jobs(url)] == [(JobState.PENDING, 0)]
    assert [job.state for job in finish(url)] == [JobState.DONE]
