"""``dayjob.testing`` in the test cases of Django: jobs run in the calling thread and see the test's rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from dayjob import JobState
from dayjob.contrib.django import app, task
from dayjob.testing import assert_enqueued, drain, eager, enqueued, sandbox
from tests.contrib.django import django_tasks
from tests.contrib.django.site import groups
from tests.contrib.django.tasks import add, arename, rename

pytestmark = pytest.mark.usefixtures("migrated")


class Rollback(Exception):
    pass


@task
def thread_of() -> int:
    return threading.get_ident()


@task
async def athread_of() -> int:
    return await sync_to_async(threading.get_ident)()


@task
def create_and_rename(name: str) -> None:
    with transaction.atomic():
        groups().create(name=name)
        rename.enqueue(name)


@task
async def acreate_and_rename(name: str) -> None:
    await sync_to_async(create_and_rename.function)(name)


class InATestCase(TestCase):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def sandboxed(self) -> Iterator[None]:
        with sandbox(app):
            yield

    def setUp(self) -> None:
        groups().create(name="ada")

    def names(self) -> list[str]:
        return list(groups().values_list("name", flat=True))

    def test_a_plain_function_sees_the_rows_of_the_test(self) -> None:
        rename.enqueue("ada")
        assert drain(app) == 1
        assert self.names() == ["ada, seen"]

    def test_a_coroutine_sees_the_rows_of_the_test(self) -> None:
        handle = arename.enqueue("ada")
        assert drain(app) == 1
        assert self.names() == [handle.result(timeout=0)]

    def test_both_run_in_the_calling_thread(self) -> None:
        handles = [thread_of.enqueue(), athread_of.enqueue()]
        drain(app)
        assert [each.result(timeout=0) for each in handles] == [threading.get_ident()] * 2

    def test_a_job_runs_at_enqueue_if_eager(self) -> None:
        with eager(app):
            assert arename.enqueue("ada").result(timeout=0) == "ada, seen"

    def test_a_job_of_an_atomic_block_exists_after_the_block(self) -> None:
        with transaction.atomic():
            handle = rename.enqueue("ada")
            assert handle.record() is None
            assert enqueued(app) == []
        assert handle.status() is JobState.PENDING
        assert_enqueued(rename, "ada")
        assert drain(app) == 1
        assert drain(app) == 0

    def test_a_rollback_removes_the_job(self) -> None:
        with pytest.raises(Rollback), transaction.atomic():  # noqa: PT012
            with transaction.atomic():
                rename.enqueue("ada")
            raise Rollback
        assert drain(app) == 0

    def test_callbacks_that_django_captures_store_the_job_once(self) -> None:
        with eager(app), self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            rename.enqueue("ada")
        assert self.names() == ["ada, seen"]
        assert drain(app) == 0

    def test_a_job_enqueues_in_a_transaction_of_its_own(self) -> None:
        create_and_rename.enqueue("grace")
        acreate_and_rename.enqueue("edsger")
        assert drain(app) == 4
        assert sorted(self.names()) == ["ada", "edsger, seen", "grace, seen"]

    def test_a_task_of_django_runs_in_the_test(self) -> None:
        result = django_tasks.double.enqueue(21)
        drain(app)
        result.refresh()
        assert result.return_value == 42

    async def test_jobs_run_in_an_asynchronous_test(self) -> None:
        handle = await arename.aenqueue("ada")
        assert await handle.astatus() is JobState.PENDING
        assert await sync_to_async(drain)(app) == 1
        assert await handle.aresult(timeout=0) == "ada, seen"
        await app.close()


class InATransactionTestCase(TransactionTestCase):  # type: ignore[misc]
    available_apps = ("tests.contrib.django",)

    @pytest.fixture(autouse=True)
    def sandboxed(self) -> Iterator[None]:
        with sandbox(app):
            yield

    def test_a_commit_stores_the_job(self) -> None:
        with transaction.atomic():
            handle = add.enqueue(1, 2)
            assert handle.record() is None
        assert drain(app) == 1
        assert handle.result(timeout=0) == 3

    def test_a_commit_runs_the_job_if_eager(self) -> None:
        with eager(app):
            with transaction.atomic():
                handle = add.enqueue(1, 2)
            assert handle.result(timeout=0) == 3


def test_the_url_of_the_site_is_restored() -> None:
    before = app.url
    with sandbox(app), sandbox(app):
        assert app.url != before
    assert app.url == before
    assert app._other_url is None
