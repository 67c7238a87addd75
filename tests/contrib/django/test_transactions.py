"""Enqueue in the site's transactions: in the very transaction, or after its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from dayjob import InvalidState, JobHandle, PayloadTooLarge
from dayjob.contrib.django import app
from tests.contrib.django.site import groups
from tests.contrib.django.tasks import add


class Rollback(Exception):
    pass


@contextmanager
def rolled_back(alias: str) -> Iterator[None]:
    """An ``atomic`` block that an exception ends."""
    with suppress(Rollback), transaction.atomic(using=alias):
        yield
        raise Rollback


def stored(handle: JobHandle[Any]) -> bool:
    """Return whether the job exists for others: read in another thread, on another connection."""
    return handle.record() is not None


class Cases:
    """The same for a store in the site's database and for one elsewhere."""

    def enqueue(self) -> JobHandle[int]:
        return add.enqueue(1, 2)

    def test_a_commit_stores_the_job(self, database: str) -> None:
        with transaction.atomic(using=database):
            handle = self.enqueue()
            assert not stored(handle)
        assert stored(handle)

    def test_without_a_transaction_the_job_is_stored_at_once(self, database: str) -> None:
        assert stored(self.enqueue())

    def test_an_exception_removes_the_job(self, database: str) -> None:
        with rolled_back(database):
            handle = self.enqueue()
        assert not stored(handle)

    def test_set_rollback_removes_the_job(self, database: str) -> None:
        with transaction.atomic(using=database):
            handle = self.enqueue()
            transaction.set_rollback(True, using=database)
        assert not stored(handle)

    def test_a_rolled_back_savepoint_removes_its_jobs_only(self, database: str) -> None:
        with transaction.atomic(using=database):
            outer = self.enqueue()
            with rolled_back(database):
                inner = self.enqueue()
                with transaction.atomic(using=database):
                    innermost = self.enqueue()
            after = self.enqueue()
        assert [stored(each) for each in (outer, inner, innermost, after)] == [True, False, False, True]

    def test_a_released_savepoint_keeps_its_jobs_for_the_commit(self, database: str) -> None:
        with transaction.atomic(using=database):
            with transaction.atomic(using=database):
                inner = self.enqueue()
            assert not stored(inner)
        assert stored(inner)

    def test_a_block_without_a_savepoint_ends_with_the_outer_one(self, database: str) -> None:
        with rolled_back(database), transaction.atomic(using=database, savepoint=False):
            handle = self.enqueue()
        assert not stored(handle)

    def test_a_durable_block_stores_the_job_at_its_end(self, database: str) -> None:
        with transaction.atomic(using=database, durable=True):
            handle = self.enqueue()
            assert not stored(handle)
        assert stored(handle)

    def test_many_jobs_are_stored_together(self, database: str) -> None:
        with transaction.atomic(using=database):
            handles = add.enqueue_many([(1, 2), (3, 4)])
            assert not any(map(stored, handles))
        assert all(map(stored, handles))

    def test_aenqueue_of_synchronous_code_uses_its_transaction(self, database: str) -> None:
        """``async_to_sync`` runs a coroutine in another thread. Its ORM calls run in the calling one."""
        with rolled_back(database):
            handle = async_to_sync(add.aenqueue)(1, 2)
            assert not stored(handle)
        assert not stored(handle)

    async def test_a_transaction_of_an_asynchronous_view_stores_the_job(self, database: str) -> None:
        def work() -> tuple[JobHandle[int], bool]:
            with transaction.atomic(using=database):
                handle = self.enqueue()
                return handle, stored(handle)

        handle, before = await sync_to_async(work)()
        assert not before
        assert await handle.arecord() is not None
        await app.close()

    def test_an_invalid_job_fails_in_the_transaction(self, database: str) -> None:
        with pytest.raises(PayloadTooLarge), transaction.atomic(using=database):
            app.send("shop.tasks.big", {"text": "x" * (1 << 21)})


class TestInTheSitesDatabase(Cases):
    @pytest.fixture
    def database(self, shared: str) -> str:
        return shared

    def test_the_row_of_the_job_is_in_the_transaction_itself(self, database: str) -> None:
        table = "dayjob_jobs" if database == "default" else "dayjob.jobs"
        with transaction.atomic(using=database):
            handle = self.enqueue()
            with connections[database].cursor() as cursor:
                cursor.execute(f"SELECT count(*) FROM {table}")
                assert cursor.fetchone()[0] == 1
        assert stored(handle)

    def test_manual_transactions_are_joined(self, database: str) -> None:
        transaction.set_autocommit(False, using=database)
        try:
            groups(database).create(name="begun")
            handle = self.enqueue()
            assert not stored(handle)
            transaction.rollback(using=database)
        finally:
            transaction.set_autocommit(True, using=database)
        assert not stored(handle)

    def test_a_transaction_of_another_database_delays_the_job(self, database: str) -> None:
        with transaction.atomic(using="other"):
            handle = self.enqueue()
            assert not stored(handle)
        assert stored(handle)


class TestApart(Cases):
    @pytest.fixture
    def database(self, apart: None) -> str:
        return "default"

    def test_manual_transactions_are_refused(self, database: str) -> None:
        transaction.set_autocommit(False, using=database)
        try:
            groups(database).create(name="begun")
            with pytest.raises(InvalidState, match="'default' has autocommit off"):
                self.enqueue()
        finally:
            transaction.rollback(using=database)
            transaction.set_autocommit(True, using=database)

    async def test_a_synchronous_call_on_an_event_loop_is_refused_before_the_commit(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with (
            transaction.atomic(using=database),
            pytest.raises(InvalidState, match="an event loop runs in this thread"),
        ):
            self.enqueue()
        connections[database].close()  # The context of this coroutine has a connection of its own.

    def test_without_transactional_a_job_is_stored_at_once(
        self, configured: Callable[[Any], None], database: str
    ) -> None:
        configured({"URL": app.url, "TRANSACTIONAL": False})
        with transaction.atomic(using=database):
            assert stored(self.enqueue())
            assert stored(async_to_sync(add.aenqueue)(1, 2))


def test_a_url_of_the_sites_database_counts_as_the_same(
    configured: Callable[[Any], None], shared: str
) -> None:
    configured({"URL": app.url})
    with rolled_back(shared):
        handle = add.enqueue(1, 2)
        assert not connections[shared].run_on_commit
    assert not stored(handle)
