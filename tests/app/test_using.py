"""The options of a call are stored with its job."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dayjob import HIGH, LOW, App, ConfigError, InvalidState, Job, JobState, Retry, Task
from tests.support.app_runs import ajobs, job, jobs, run
from tests.support.bound import BOUND

ID = "0191e0a0-0000-7000-8000-000000000001"
YEAR_3000 = datetime(3000, 1, 1, tzinfo=UTC)


def make(app: App, name: str = "send", **options: Any) -> Task[[str], None, None]:
    def send(to: str) -> None: ...

    return app.task(name=name, **options)(send)


def value_of(job: Job, option: str) -> Any:
    return getattr(job, {"expires": "expires_at"}.get(option, option))


@pytest.mark.parametrize(
    ("option", "value", "stored"),
    [
        ("queue", "other", "other"),
        ("priority", HIGH, HIGH),
        ("run_at", YEAR_3000, YEAR_3000),
        ("expires", YEAR_3000, YEAR_3000),
        ("max_attempts", 7, 7),
        ("dedup_until", "settled", "claimed"),
        ("headers", {"trace": "1"}, {"trace": "1"}),
        ("tenant", "acme", "acme"),
        ("id", UUID(ID), ID),
        ("id", ID.upper(), ID),
    ],
)
def test_an_option_reaches_the_job(app: App, option: str, value: Any, stored: Any) -> None:
    make(app).using(**{option: value}).enqueue("ada")
    assert value_of(job(app), option) == stored


def test_delays_and_kv_and_dedup_windows_reach_the_job(app: App) -> None:
    send = make(app)
    handle = send.using(
        delay=timedelta(hours=1), kv={b"k": b"v"}, dedup_key="a", dedup_until="settled"
    ).enqueue("ada")
    stored = job(app)
    assert stored.state is JobState.SCHEDULED
    assert timedelta(minutes=59) < stored.run_at - stored.enqueued_at <= timedelta(hours=1)
    assert stored.dedup_until == "settled"
    assert app.call(lambda: app.broker.kv_get(b"k")) == b"v"
    assert handle.created


def test_options_are_merged_and_the_last_value_wins(app: App) -> None:
    send = make(app).using(priority=HIGH, tenant="acme")
    send.using(priority=LOW).enqueue("ada")
    stored = job(app)
    assert (stored.priority, stored.tenant) == (LOW, "acme")


def test_a_tasks_own_options_apply_unless_the_call_overrides_them(app: App) -> None:
    make(app, queue="email", priority=5, retry=Retry.fixed(attempts=9)).enqueue("ada")
    stored = job(app)
    assert (stored.queue, stored.priority, stored.max_attempts, stored.task) == ("email", 5, 9, "send")
    assert make(app, "m", max_attempts=2, retry=Retry.fixed(attempts=9)).using().enqueue("ada").created
    assert jobs(app)[1].max_attempts == 2


def test_an_unknown_option_is_a_type_error(memory_app: App) -> None:
    with pytest.raises(
        TypeError, match=r"using\(prio=...\): there is no such option: the options are priority, run_at"
    ):
        make(memory_app).using(prio=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priority": -1}, "priority=-1"),
        ({"queue": ""}, "queue name is empty"),
        ({"delay": -1}, "delay"),
        ({"run_at": YEAR_3000, "delay": 1}, "pass one of the two"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),
        ({"id": "five"}, "five"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"dedup_key": ""}, "dedup key is empty"),
        ({"tenant": "a\0b"}, "NUL"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_and_nothing_is_stored(
    memory_app: App, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make(memory_app).using(**options).enqueue("ada")
    assert jobs(memory_app) == []


# Dedup.


def test_a_dedup_key_belongs_to_its_task(app: App) -> None:
    first, second = make(app, "first"), make(app, "second")
    one = first.using(dedup_key="k").enqueue("ada")
    other = second.using(dedup_key="k").enqueue("ada")
    again = first.using(dedup_key="k").enqueue("grace")
    assert (one.created, other.created, again.created) == (True, True, False)
    assert again.id == one.id


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("a", "b:c"), ("a:b", "c")),
        (("1:a", "b"), ("1", "a:b")),
        (("a", "1:a:b"), ("1:a", "a:b")),
        (("é", "x"), ("e", "́x")),
    ],
)
def test_different_pairs_of_task_and_key_never_collide(
    app: App, left: tuple[str, str], right: tuple[str, str]
) -> None:
    for name, key in (left, right):
        assert make(app, name).using(dedup_key=key).enqueue("ada").created


def test_equal_calls_are_enqueued_once_while_one_waits(app: App) -> None:
    got: list[Any] = []

    @app.task(dedup=True)
    def take(a: int, b: set[str], c: dict[str, int] | None = None) -> None:
        got.append(a)

    assert take.enqueue(1, {"x", "y", "z"}, {"k": 1, "l": 2}).created
    assert not take.enqueue(a=1, b={"z", "y", "x"}, c={"l": 2, "k": 1}).created
    assert not take.enqueue(c={"l": 2, "k": 1}, b={"z", "y", "x"}, a=1).created
    assert take.enqueue(2, {"x"}).created
    assert [handle.created for handle in take.enqueue_many([(2, {"x"}), (3, {"x"}), (3, {"x"})])] == [
        False, True, False,
    ]  # fmt: skip
    run(app)
    assert got == [1, 2, 3]
    assert take.enqueue(1, {"x", "y", "z"}, {"k": 1, "l": 2}).created


def test_equal_calls_have_equal_keys_in_every_process(tmp_path: Path) -> None:
    script = (
        "from dayjob import App\n"
        "app = App('sqlite:///jobs.db')\n"
        "@app.task(dedup=True, name='t')\n"
        "def take(names: set[str]) -> None: ...\n"
        "print(take.enqueue({str(number) for number in range(50)}).created)\n"
    )
    created = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONHASHSEED": seed},
            capture_output=True, text=True, timeout=BOUND, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert created == ["True", "False"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Painting:
    colours: set[Colour]


def test_sets_with_incomparable_members_have_a_dedup_key(memory_app: App) -> None:
    @memory_app.task(dedup=True)
    def paint(colours: dict[str, list[set[Colour]]], more: set[int | str]) -> None: ...

    assert paint.enqueue({"a": [{Colour.RED, Colour.BLUE}]}, {1, "x"}).created
    assert not paint.enqueue({"a": [{Colour.BLUE, Colour.RED}]}, {"x", 1}).created

    @memory_app.task(dedup=True)
    def hang(painting: Painting) -> None: ...

    with pytest.raises(TypeError, match=r"hang: no dedup key can be derived .* as dedup"):
        hang.enqueue(Painting({Colour.RED, Colour.BLUE}))


def test_a_dedup_until_settled_holds_while_the_job_runs(app: App) -> None:
    created: list[bool] = []

    @app.task(dedup="settled")
    def until_settled(a: int) -> None:
        created.append(until_settled.enqueue(a).created)

    @app.task(dedup="claimed")
    def until_claimed(a: int) -> None:
        created.append(until_claimed.using(delay=3600).enqueue(a).created)

    until_settled.enqueue(1)
    run(app)
    until_claimed.enqueue(1)
    run(app)
    assert created == [False, True]


def test_a_dedup_function_returns_the_key_or_none(app: App) -> None:
    @app.task(dedup=lambda user, text="": user or None)
    def notify(user: str, text: str = "") -> None: ...

    assert notify.enqueue("ada", "one").created
    assert not notify.enqueue("ada", text="two").created
    assert notify.enqueue("").created
    assert notify.enqueue("").created
    assert notify.using(dedup_key="own").enqueue("ada").created


# Transactions.


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def sqlite_app(database: Path) -> Any:
    with App(f"sqlite:///{database}") as app:
        yield app


def test_a_job_commits_and_rolls_back_with_the_callers_transaction(sqlite_app: App, database: Path) -> None:
    send = make(sqlite_app)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute("INSERT INTO users VALUES ('ada')")
        lost = send.using(connection=connection).enqueue("ada")
        assert lost.status() is None
        connection.rollback()
        assert jobs(sqlite_app) == []

        connection.execute("INSERT INTO users VALUES ('grace')")
        kept = send.using(connection=connection, priority=HIGH).enqueue("grace")
        more = send.using(connection=connection).enqueue_many([("a",), ("b",)])
        connection.commit()
    assert [stored.id for stored in jobs(sqlite_app)] == [kept.id, *(handle.id for handle in more)]
    run(sqlite_app)
    kept.result(timeout=0)


async def test_a_job_commits_and_rolls_back_with_an_asynchronous_callers_transaction(
    sqlite_app: App, database: Path
) -> None:
    send = make(sqlite_app)
    async with sqlite_app:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            await send.using(connection=connection).aenqueue("ada")
            connection.execute("ROLLBACK")
            assert await ajobs(sqlite_app) == []
            connection.execute("BEGIN IMMEDIATE")
            await send.using(connection=connection).aenqueue("ada")
            await send.using(connection=connection).aenqueue_many([("b",)])
            connection.execute("COMMIT")
        assert len(await ajobs(sqlite_app)) == 2


def test_an_unusable_connection_is_refused(sqlite_app: App, tmp_path: Path) -> None:
    send = make(sqlite_app)
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as elsewhere,
        pytest.raises(ConfigError, match="own file"),
    ):
        send.using(connection=elsewhere).enqueue("ada")
    with pytest.raises(TypeError, match="connection"):
        send.using(connection=object()).enqueue("ada")
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as idle:
        with pytest.raises(InvalidState, match="BEGIN"):
            send.using(connection=idle).enqueue("ada")
        with pytest.raises(TypeError, match="bound call has no connection"):
            send.using(connection=idle).bind("ada")
    assert jobs(sqlite_app) == []


def test_the_memory_engine_refuses_a_connection(memory_app: App) -> None:
    with pytest.raises(ConfigError, match="this storage has no transactions"):
        make(memory_app).using(connection=object()).enqueue("ada")
