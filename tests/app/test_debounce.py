"""Debounce and windows of tasks: which key a call has, and which options reach its job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dayjob import App, Broker, ConfigError, Context, Job, Worker
from tests.support.waiting import with_timeout


def stored(app: App, id: str) -> Job:
    job = app.job(id).record()
    assert job is not None
    return job


def test_the_latest_call_is_keyed_by_all_arguments(app: App) -> None:
    @app.task(dedup="latest")
    def index(document: int) -> None: ...

    first = index.using(delay=60, headers={"n": "1"}).enqueue(1)
    again = index.using(delay=60, headers={"n": "2"}).enqueue(document=1)
    assert (again.id, again.created) == (first.id, False)
    assert stored(app, first.id).headers == {"n": "2"}
    assert index.enqueue(2).created


def test_the_latest_call_combines_with_a_function_of_the_key(app: App) -> None:
    @app.task(dedup="latest", dedup_key=lambda document, text: f"{document}", dedup_until="settled")
    def save(document: int, text: str) -> None: ...

    first = save.using(delay=60).enqueue(1, "h")
    again = save.using(delay=60).enqueue(1, "hello")
    assert (again.id, again.created) == (first.id, False)
    job = stored(app, first.id)
    assert b"hello" in job.payload
    assert job.dedup_until == "settled"
    assert save.enqueue(2, "h").created


def test_settled_combines_with_a_function_of_the_key(app: App) -> None:
    @app.task(dedup="settled", dedup_key=lambda document, text: f"{document}")
    def save(document: int, text: str) -> None: ...

    first = save.enqueue(1, "h")
    assert not save.enqueue(1, "hello").created
    job = stored(app, first.id)
    assert b"hello" not in job.payload
    assert job.dedup_until == "settled"


def test_a_function_of_the_key_is_enough(app: App) -> None:
    @app.task(dedup_key=lambda document, text: f"{document}" if document else None)
    def save(document: int, text: str) -> None: ...

    assert [save.enqueue(1, text).created for text in "ab"] == [True, False]
    assert [save.enqueue(0, text).created for text in "ab"] == [True, True]


def test_a_call_without_a_key_is_not_deduplicated(app: App) -> None:
    @app.task(dedup="latest", dedup_key=lambda n: None, dedup_for=60, dedup_max_delay=5)
    def count(n: int) -> None: ...

    assert [count.enqueue(1).created for _ in range(2)] == [True, True]


def test_a_window_is_enough(app: App) -> None:
    @app.task(dedup_for=timedelta(hours=1))
    def remind(user: int) -> None: ...

    first = remind.enqueue(1)
    assert first.cancel().acted
    again = remind.enqueue(1)
    assert (again.id, again.created) == (first.id, False)
    assert remind.enqueue(2).created


def test_a_key_over_all_queues_belongs_to_its_task(app: App) -> None:
    @app.task(dedup=True, dedup_scope="global")
    def one(n: int) -> None: ...

    @app.task(dedup=True, dedup_scope="global")
    def other(n: int) -> None: ...

    first = one.enqueue(1)
    assert one.using(queue="low").enqueue(1).id == first.id
    assert other.using(queue="low").enqueue(1).created


def test_using_asks_for_the_latest_call_and_for_a_window(app: App) -> None:
    @app.task
    def index(document: int) -> None: ...

    latest = index.using(dedup="latest", delay=60, dedup_max_delay=1)
    first = latest.enqueue(1)
    assert latest.enqueue(1).id == first.id
    job = stored(app, first.id)
    assert job.run_at - job.enqueued_at == timedelta(seconds=1)
    assert index.using(dedup_for=60).enqueue(1).id == first.id
    own = index.using(dedup_key="own", dedup="latest").enqueue(1)
    assert own.created
    assert index.using(dedup_key="own", dedup="latest").enqueue(2).id == own.id


def test_using_leaves_the_waiting_call_alone_if_asked(app: App) -> None:
    @app.task(dedup="latest", dedup_max_delay=5)
    def index(document: int) -> None: ...

    first = index.using(delay=60, headers={"n": "1"}).enqueue(1)
    assert index.using(dedup=None, headers={"n": "2"}).enqueue(1).id == first.id
    assert stored(app, first.id).headers == {"n": "1"}


def test_a_task_by_name_needs_the_key(app: App) -> None:
    with pytest.raises(ValueError, match="without a key: pass dedup_key"):
        app.send("shop.index", {"document": 1}, dedup="latest")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dedup": "last"}, "dedup='last': pass True, 'claimed', 'settled', 'latest', or a function"),
        ({"dedup": lambda: "a", "dedup_key": lambda: "b"}, "pass one function of the key"),
        ({"dedup": True, "dedup_key": "k"}, "dedup_key='k': pass one function of the key"),
        ({"dedup": "settled", "dedup_until": "claimed"}, "pass one of the two"),
        ({"dedup_until": "done"}, "dedup_until='done': pass 'claimed' or 'settled'"),
        ({"dedup": True, "dedup_max_delay": 5}, "dedup_max_delay=5 has no effect without dedup='latest'"),
        ({"dedup_for": -1}, "dedup_for=-1 is negative"),
        ({"dedup": True, "dedup_scope": "all"}, "dedup_scope='all': pass 'queue' or 'global'"),
    ],
)
def test_wrong_options_are_refused_with_the_name_of_the_task(
    memory_app: App, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match="task 'index'") as caught:

        @memory_app.task(name="index", **options)
        def index() -> None: ...

    assert text in str(caught.value)


async def test_the_follow_up_of_a_run_replaces_a_waiting_call() -> None:
    app = App("memory://")

    @app.task(dedup="latest", dedup_key=lambda n: "k")
    async def save(n: int) -> int:
        return n

    @app.task
    async def edit(ctx: Context) -> None:
        ctx.then(save.bind(2))

    async with app:
        held = await save.using(delay=3600).aenqueue(1)
        await edit.aenqueue()
        async with Worker(app):
            assert await with_timeout(held.aresult()) == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dedup": "latest"}, "dedup='latest' without a key: pass dedup_key"),
        ({"dedup_for": 5}, "dedup_for=5 without a key: pass dedup_key"),
        ({"dedup_key": "k", "dedup": "last"}, "dedup='last': pass 'latest'"),
        ({"dedup_key": "k", "dedup_scope": "all"}, "dedup_scope='all': pass 'queue' or 'global'"),
        ({"dedup_key": "k", "dedup_max_delay": 5}, "dedup_max_delay=5 has no effect without dedup='latest'"),
        ({"dedup_key": "k", "dedup": "latest", "dedup_max_delay": -1}, "dedup_max_delay=-1 is negative"),
        ({"dedup_key": "k", "dedup_for": 0}, "dedup_for=0: pass some seconds"),
        ({"dedup_key": "k", "dedup_for": "x"}, "dedup_for='x' is a str"),
    ],
)
async def test_options_without_effect_are_refused(options: dict[str, Any], text: str) -> None:
    async with Broker("memory://") as broker:
        with pytest.raises((TypeError, ValueError)) as caught:
            await broker.enqueue("q", **options)
        assert text in str(caught.value)
        assert await broker.queues() == []
