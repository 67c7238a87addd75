"""``make test-django``: Django's own tests of task backends, run against ``DayjobBackend``.

Django tests its two backends: one that stores tasks, and one that runs them at enqueue. Both are replaced by
``DayjobBackend``, here with a list of the stored tasks or with a drain after each enqueue. The tests
themselves come from Django's source distribution and are not changed.

    python django_suite.py FOLDER    run the tests in this folder, an unpacked ``tests`` of Django
"""

from __future__ import annotations

import logging
import os
import sys
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings

from dayjob.runtime.ids import new_key

NOT_APPLICABLE = {
    "test_cannot_get_result": "asserts that results are not supported",
    "test_cannot_refresh_result": "asserts that results are not supported",
    "test_cannot_pass_run_after": "asserts that run_after is not supported",
    "DummyBackendTestCase.test_refresh_result": "changes the list of the dummy backend in place",
    "DummyBackendTestCase.test_refresh_result_async": "changes the list of the dummy backend in place",
}
"""The tests of a property that another backend has by design, with the reason."""

NOT_TRANSACTIONAL = ("DummyBackendTransactionTestCase", "ImmediateBackendTransactionTestCase")
"""Tests of a store outside of the site's transactions: with ``TRANSACTIONAL`` off, not the default."""

MODULES = ("tasks.test_tasks", "tasks.test_dummy_backend", "tasks.test_immediate_backend")


def new_store(transactional: bool = True) -> None:
    settings.DAYJOB = {"URL": f"memory://{new_key().hex()}", "TRANSACTIONAL": transactional}


settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["dayjob.contrib.django"],
    SECRET_KEY="of a test",
    USE_TZ=True,
)
new_store()
django.setup()

from django.tasks.backends import dummy, immediate  # noqa: E402

from dayjob.contrib.django import DayjobBackend, app  # noqa: E402
from dayjob.testing import drain  # noqa: E402


class Stored(DayjobBackend):
    """Lists the stored tasks. Django's tests call ``get_result`` in coroutines too, so it uses a thread."""

    def get_result(self, result_id: str) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(super().get_result, result_id).result()

    @property
    def results(self) -> list[Any]:
        async def ids() -> list[str]:
            return [job.id for job in await (await app.opened()).jobs()]

        with ThreadPoolExecutor(1) as thread:
            return [self.get_result(id) for id in thread.submit(app.call, ids).result()]

    def clear(self) -> None:
        app.call(app.close)
        new_store(settings.DAYJOB["TRANSACTIONAL"])


class RunAtEnqueue(DayjobBackend):
    """Runs each task by the worker of ``dayjob.testing`` before ``enqueue`` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        run_waiting()
        result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = await super().aenqueue(task, args, kwargs)
        await sync_to_async(run_waiting)()
        await result.arefresh()
        return result


def run_waiting() -> None:
    try:
        drain(app)
    except KeyboardInterrupt:
        raise
    except BaseException:  # The result has it.
        return


class Results(unittest.TextTestResult):
    """Prints one line for each test."""

    def startTest(self, test: Any) -> None:
        new_store(type(test).__name__ not in NOT_TRANSACTIONAL)
        super().startTest(test)

    def getDescription(self, test: Any) -> str:
        return f"{type(test).__name__}.{test._testMethodName}"


def each_test(suite: Any) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each_test(test)
        else:
            yield test


def main(folder: str) -> int:
    sys.path.insert(0, folder)
    logging.getLogger("dayjob").setLevel(logging.CRITICAL)  # Many tests fail a task.
    dummy.DummyBackend, immediate.ImmediateBackend = Stored, RunAtEnqueue
    loaded = unittest.defaultTestLoader.loadTestsFromNames(MODULES)
    suite = unittest.TestSuite()
    for test in each_test(loaded):
        name = f"{type(test).__name__}.{test._testMethodName}"
        reason = NOT_APPLICABLE.get(name) or NOT_APPLICABLE.get(test._testMethodName)
        if reason:
            print(f"{name} ... not applicable: {reason}", file=sys.stderr)
        else:
            suite.addTest(test)
    from django.test.utils import setup_databases, setup_test_environment

    setup_test_environment()
    setup_databases(0, False)
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Results)  # type: ignore[arg-type]
    outcome = runner.run(suite)
    return int(not outcome.wasSuccessful())


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))
