"""The helpers inside Django's test cases: tasks see the transaction of the test, or join that of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bound import BOUND

PROGRAM = """
import unittest

import django
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}})
django.setup()

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from dayjob import App, JobState
from dayjob.testing import drain, eager, sandbox

app = App("postgresql://nowhere/that/exists")


def users() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM users")
        return [name for name, in cursor.fetchall()]


def add(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO users VALUES (%s)", [name])


@app.task
def greet(name: str) -> list[str]:
    found = users()
    add(f"greeted {name}")
    return found


def setUpModule() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE users (name TEXT)")


class InTheTransactionOfTheTest(TestCase):
    def test_a_task_reads_and_writes_it(self) -> None:
        add("ada")
        with sandbox(app), eager(app):
            self.assertEqual(greet.enqueue("ada").result(timeout=0), ["ada"])
        self.assertEqual(users(), ["ada", "greeted ada"])

    def test_it_is_rolled_back_after_each_test(self) -> None:
        with sandbox(app):
            greet.enqueue("grace")
            self.assertEqual(drain(app), 1)
        self.assertEqual(users(), ["greeted grace"])


class InATransactionOfTheCode(TransactionTestCase):
    def test_the_job_exists_when_it_commits(self) -> None:
        with sandbox(app):
            with transaction.atomic():
                kept = greet.using(connection=connection).enqueue("ada")
                try:
                    with transaction.atomic():
                        greet.using(connection=connection).enqueue("inner")
                        raise ValueError
                except ValueError:
                    pass
                self.assertIsNone(kept.status())
            self.assertIs(kept.status(), JobState.PENDING)
            try:
                with transaction.atomic():
                    greet.using(connection=connection).enqueue("outer")
                    raise ValueError
            except ValueError:
                pass
            self.assertEqual(drain(app), 1)

    def tearDown(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM users")


unittest.main()
"""


@pytest.mark.slow
def test_tasks_share_the_transactions_of_django_test_cases(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert "Ran 3 tests" in done.stderr, done.stderr
    assert done.stderr.rstrip().endswith("OK"), done.stderr
