"""``dayjob check``: its output, its exit codes, and the interrupt of a long check."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from dayjob import Broker, NewJob
from dayjob.cli import main
from tests.cli import deployed
from tests.cli.store import Store

APP = "tests.cli.deployed:app"


def enqueue(store: Store, *jobs: NewJob) -> list[str]:
    async def work(broker: Broker) -> list[str]:
        return [enqueued.id for enqueued in await broker.enqueue_many(jobs)]

    return store.with_broker(work)


def test_a_store_that_fits_is_exit_code_0(store: Store) -> None:
    enqueue(store, NewJob("default", b'{"to": "ada"}', "mail"))
    result = store.run("check", APP)
    assert (result.exit_code, result.stdout) == (
        0,
        "No misfits in 1 record.\n",
    )


def test_misfits_are_exit_code_1_with_a_table_by_task_and_problem(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ids = enqueue(
        store, *[NewJob("default", b'{"receiver": "ada"}', "mail")] * 2, NewJob("bills", task="bill")
    )
    result = store.run("check", APP)
    assert result.exit_code == 1
    header, _, renamed, gone, summary = result.stdout.strip().splitlines()
    assert header.split() == ["task", "problem", "count", "found", "queues", "id"]
    assert "no parameter 'receiver': renamed to 'to'?" in renamed
    assert renamed.split()[0] == "mail"
    assert ["2", "2", "pending", "default", ids[0]] == renamed.split()[-5:]
    assert ["bill", "no", "such", "task", "1", "1", "pending", "bills", ids[2]] == gone.split()
    assert summary.startswith("3 misfits in 3 records. Keep the old tasks")


def test_json_has_all_groups_with_sample_ids(store: Store) -> None:
    ids = enqueue(store, *[NewJob("bills", task="bill", delay=60)] * 5)
    result = store.run("check", APP, "--json", "--sample", "4", "-q", "bills", "-q", "mails")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report == {
        "misfits": [
            {
                "task": "bill", "problem": "no such task", "count": 4, "found": {"scheduled": 4},
                "examples": report["misfits"][0]["examples"], "queues": ["bills"],
            }
        ],
        "count": 4, "examined": 4, "complete": True,
    }  # fmt: skip
    assert len(report["misfits"][0]["examples"]) == 3
    assert set(report["misfits"][0]["examples"]) < set(ids)


def test_the_store_is_that_of_the_app_unless_a_url_is_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(store, NewJob("bills", task="bill"))
    runner = CliRunner(env={"DAYJOB_URL": None})
    assert runner.invoke(main, ["check", APP, store.url]).exit_code == 1
    assert runner.invoke(main, ["check", APP]).exit_code == 0
    monkeypatch.setattr(deployed.app, "url", store.url)
    assert runner.invoke(main, ["check", APP]).exit_code == 1


def test_wrong_names_and_missing_stores_are_usage_errors_and_exit_code_3(store: Store) -> None:
    assert store.run("check", "tests.cli.deployed:none").exit_code == 2
    assert store.run("check", "no_such_module:app").exit_code == 2
    assert store.run("check", APP, "sqlite:///no/such/file.db").exit_code == 3


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_an_interrupt_prints_the_report_so_far(
    store: Store, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(store, *[NewJob("bills", task="bill")] * 300)

    @contextmanager
    def interrupting(title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Stand for the progress bar: the user presses Ctrl-C after the first page."""
        assert total == 300
        yield lambda done: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("dayjob.cli.check.progress", interrupting)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job ignores it.
    try:
        result = store.run("check", APP, *options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    if options:
        report = json.loads(result.stdout)
        assert (report["complete"], report["examined"], report["count"]) == (False, 100, 100)
    else:
        assert "100 pending" in result.stdout
        assert "Interrupted after 100 records." in result.stdout
