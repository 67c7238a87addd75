"""Commands on queues, dead letters, schedules and workers; ``doctor``, ``bench``; the store's URL."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dayjob import Broker, Recurring
from dayjob.cli import main
from dayjob.runtime.clock import SYSTEM
from tests.cli.store import Store
from tests.support.registered_workers import MEMBER

ON_A_STORE = [
    ["bench"], ["cancel", "x"], ["cancel", "--all"], ["dead"], ["dead", "list"], ["dead", "purge", "--all"],
    ["dead", "requeue", "--all"], ["doctor"], ["enqueue", "t"], ["explain", "x"], ["jobs"], ["limits"],
    ["limits", "list"], ["limits", "set", "api", "--running", "3"], ["limits", "remove", "api"],
    ["pause", "q"], ["queues"], ["queues", "list"], ["queues", "clear", "q"], ["resume", "q"],
    ["schedules"], ["schedules", "list"], ["schedules", "pause", "x"], ["schedules", "remove", "x", "-y"],
    ["schedules", "resume", "x"], ["schedules", "trigger", "x"], ["show", "x"], ["workers"],
]  # fmt: skip


@pytest.mark.parametrize("command", ON_A_STORE, ids=" ".join)
def test_without_a_url_the_error_explains_how_to_pass_one(command: list[str]) -> None:
    result = CliRunner().invoke(main, command, env={"DAYJOB_URL": None})
    assert result.exit_code == 2
    assert "pass its URL, or set DAYJOB_URL" in result.output


@pytest.mark.parametrize("command", ON_A_STORE, ids=" ".join)
def test_an_unavailable_store_is_exit_code_3(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is not a database, " * 100)
    result = CliRunner().invoke(
        main, command, env={"DAYJOB_URL": f"sqlite:///{tmp_path}/jobs.db"}, input="y\n"
    )
    assert result.exit_code in (2, 3), result.output
    assert "jobs.db" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "command", [["jobs"], ["queues"], ["show", "x"], ["doctor"], ["workers"]], ids=" ".join
)
def test_a_command_that_reads_does_not_create_a_missing_file(command: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/typo.db"
    result = CliRunner().invoke(main, command, env={"DAYJOB_URL": url})
    assert result.exit_code == 3
    assert "there is no file" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["first", "option", "environment"])
def test_the_url_may_come_first_as_an_option_or_from_the_environment(store: Store, source: str) -> None:
    arguments = {
        "first": ["queues", store.url], "option": ["queues", "--url", store.url], "environment": ["queues"]
    }[source]  # fmt: skip
    environment = {"DAYJOB_URL": store.url if source == "environment" else None}
    assert CliRunner().invoke(main, arguments, env=environment).exit_code == 0


@pytest.mark.parametrize("arguments", [["dead", "URL"], ["dead", "URL", "list"], ["dead", "list", "URL"]])
def test_in_a_group_the_url_may_come_before_or_after_the_subcommand(
    store: Store, arguments: list[str]
) -> None:
    given = [store.url if each == "URL" else each for each in arguments]
    assert CliRunner().invoke(main, given, env={"DAYJOB_URL": None}).exit_code == 0


@pytest.mark.parametrize("option", [["-u", "URL"], ["--url=URL"]], ids=" ".join)
@pytest.mark.parametrize("command", ["jobs", "queues", "dead list", "migrate"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_url_option_may_come_before_or_after_the_command(
    store: Store, option: list[str], command: str, before: int
) -> None:
    given = [each.replace("URL", store.url) for each in option]
    words = command.split()
    arguments = [*words[:before], *given, *words[before:]]
    result = CliRunner().invoke(main, arguments, env={"DAYJOB_URL": "sqlite:////no/such/file"})
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "arguments", ["queues --json URL", "jobs --limit 5 URL", "jobs -q email URL --json", "migrate --sql URL"]
)
def test_the_url_may_come_after_options(store: Store, arguments: str) -> None:
    given = [each.replace("URL", store.url) for each in arguments.split()]
    result = CliRunner().invoke(main, given, env={"DAYJOB_URL": None})
    assert result.exit_code == 0, result.output


def test_a_url_that_is_the_value_of_an_option_is_not_the_store(store: Store) -> None:
    result = CliRunner().invoke(main, ["jobs", "--search", "redis://cache"], env={"DAYJOB_URL": store.url})
    assert result.exit_code == 0, result.output


def test_a_url_after_the_command_precedes_the_one_before_it(store: Store) -> None:
    arguments = ["-u", "sqlite:////no/such/file", "queues", "-u", store.url]
    assert CliRunner().invoke(main, arguments).exit_code == 0


def test_a_command_without_a_store_refuses_a_url(store: Store) -> None:
    result = CliRunner().invoke(main, ["-u", store.url, "completion", "bash"])
    assert result.exit_code == 2
    assert "dayjob completion takes no URL" in result.output


def test_a_bad_url_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["queues", "mysql://localhost/x"])
    assert result.exit_code == 2
    assert "names no known engine" in result.output


def test_queues_show_their_counts_and_can_be_paused(store: Store) -> None:
    store.enqueue("t", "-q", "email")
    assert "email paused." in store.run("pause", "email").output
    [queue] = store.json("queues")
    assert queue == {
        "queue": "email", "paused": True, "pending": 1, "limited": 0, "scheduled": 0, "running": 0, "done": 0,
        "dead": 0, "cancelled": 0, "done_per_second": 0.0, "waiting_seconds": pytest.approx(0, abs=60),
    }  # fmt: skip
    assert "email" in store.run("queues").output
    assert store.run("resume", "email").output == "email resumed.\n"
    assert store.run("resume", "email").exit_code == 1
    assert store.json("queues")[0]["paused"] is False


def test_dead_letters_are_listed_grouped_requeued_and_purged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [store.enqueue("t", "-q", queue) for queue in ("a", "a", "b")]
    store.kill(*ids[:2], reason="ValueError: bad number 7")
    store.kill(ids[2], reason="ValueError: bad number 8")
    assert store.json("dead")["jobs"][0]["id"] == ids[2]
    [group] = store.json("dead", "--group")["groups"]
    assert (group["count"], group["queues"]) == (3, ["a", "b"])
    assert "ValueError: bad number …" in store.run("dead", "--group").output
    monkeypatch.setenv("COLUMNS", "200")
    listed = store.run("dead").output
    assert "ValueError: bad number 7" in listed
    assert "ValueError: bad number 8" in listed
    assert store.run("dead requeue", ids[2]).exit_code == 0
    assert store.run("dead requeue", ids[2]).exit_code == 1
    assert store.run("dead requeue", "-q", "a", input="n\n").exit_code == 1
    assert len(store.json("dead")["jobs"]) == 2
    confirmed = store.run("dead requeue", "-q", "a", input="y\n")
    assert "2 jobs requeued" in confirmed.output
    store.kill(*ids)
    assert store.run("dead purge", "--all", input="n\n").exit_code == 1
    assert "3 jobs removed" in store.run("dead purge", "--all", "--yes").output
    assert store.run("dead purge", "--all", "--yes").exit_code == 1
    assert store.run("dead requeue", "--all", "--yes").exit_code == 1


@pytest.mark.parametrize("command", ["dead purge", "dead requeue", "dead requeue -q a --all"])
def test_dead_letter_commands_require_a_selection(store: Store, command: str) -> None:
    result = store.run(command)
    assert result.exit_code == 2
    choices = "--queue or --all" if "purge" in command else "ids, --queue or --all"
    assert f"no dead jobs are selected: give one of {choices}" in result.output


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("jobs", "No jobs.\n"),
        ("dead", "No dead jobs.\n"),
        ("dead --group", "No dead jobs.\n"),
        ("queues", "No queues. The first job of a queue creates it.\n"),
        ("schedules", "No schedules.\n"),
        ("workers", "No live workers. Start one: dayjob worker MODULE:app\n"),
    ],
)
def test_an_empty_listing_is_a_sentence(store: Store, command: str, text: str) -> None:
    store.run("migrate")
    assert store.run(command).output == text


def test_a_paused_queue_without_any_job_may_be_a_typo(store: Store) -> None:
    store.enqueue("t", "-q", "email")
    assert store.run("pause", "email", "emial").output == (
        "email paused.\nemial paused. It has never had a job.\n"
    )


def test_one_job_is_singular(store: Store) -> None:
    job = store.enqueue("t")
    store.kill(job)
    assert "1 job requeued." in store.run("dead requeue", "--all", "--yes").output
    assert "Cancel 1 job?" in store.run("queues clear default", input="n\n").output
    assert "1 job cancelled." in store.run("queues clear default --yes").output


def test_an_unknown_schedule_is_not_found_with_a_remedy(store: Store) -> None:
    for command in ("pause", "resume", "trigger", "remove --yes"):
        result = store.run(f"schedules {command}", "nope")
        assert result.exit_code == 1
        assert "list the schedules for its id" in result.output


def test_schedules_are_listed_paused_triggered_and_removed(store: Store) -> None:
    async def make(broker: Broker) -> None:
        await broker.schedule(Recurring("nightly", cron="30 2 * * *", timezone="Europe/Berlin", task="t"))
        await broker.schedule(Recurring("often", every=30, task="t", queue="q"))

    store.with_broker(make)
    nightly, often = store.json("schedules")
    assert nightly.keys() == {
        "id", "cron", "every", "timezone", "missed", "task", "queue", "paused", "declared_by", "last_at",
        "next_at", "problem",
    }  # fmt: skip
    assert (nightly["cron"], often["every"]) == ("30 2 * * *", 30.0)
    assert "Europe/Berlin" in store.run("schedules").output
    assert store.run("schedules pause", "nightly").exit_code == 0
    assert store.json("schedules list")[0]["paused"] is True
    assert store.run("schedules resume", "nightly").exit_code == 0
    id = store.run("schedules trigger", "often").stdout.strip()
    assert store.json("show", id)["headers"] == {"dayjob-schedule": "often", "dayjob-attempts": "task"}
    assert store.run("schedules trigger", "unknown").exit_code == 1
    assert store.run("schedules remove", "often", input="n\n").exit_code == 1
    assert store.run("schedules remove", "often", "--yes").exit_code == 0
    assert store.run("schedules remove", "often", "--yes").exit_code == 1
    assert store.run("schedules pause", "often").exit_code == 1


def test_workers_are_listed(store: Store) -> None:
    async def register(broker: Broker) -> None:
        await broker.register(MEMBER)

    store.with_broker(register)
    [worker] = store.json("workers")
    assert worker.keys() == {
        "id", "name", "app", "host", "pid", "version", "queues", "tasks", "slots", "running", "started",
        "seen",
    }  # fmt: skip
    assert worker["id"] == "w-1"
    assert "w-1" in store.run("workers").output


def test_doctor_reports_no_problems_of_a_healthy_store(store: Store) -> None:
    result = store.run("doctor")
    assert result.exit_code == 0, result.output
    assert "layout: version " in result.output
    assert {diagnostic["level"] for diagnostic in store.json("doctor")} == {"ok"}


def test_doctor_reports_no_problems_of_a_healthy_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.cli.doctor.SLOW", 60)
    store = Store(tmp_path)
    store.url = f"file://{tmp_path}/folder"
    store.with_broker(lambda broker: broker.kv_put(b"k", b"v"))
    result = store.run("doctor", "--strict")
    assert result.exit_code == 0, result.output
    assert "not a power cut" in result.output


def test_doctor_reports_stuck_jobs(store: Store) -> None:
    async def make(broker: Broker) -> None:
        await broker.register(MEMBER)
        await broker.enqueue("unserved", task="t")
        await broker.enqueue("q", task="shop.unknown")
        await broker.enqueue("q", task="later", delay=60)
        await broker.enqueue("q", task="t")
        await broker.enqueue("paused", task="t")
        await broker.pause("paused")
        await broker.enqueue("late", task="t")
        await broker.claim("late", lease=0.001, worker="gone")
        await broker.enqueue("dead", task="t")
        [job] = await broker.claim("dead", worker="w-1")
        await broker.dead_letter(job, "no good")

    store.with_broker(make)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("UPDATE dayjob_jobs SET lease_expires_at = 1 WHERE state = 'running'")
        connection.commit()
    result = store.run("doctor")
    assert result.exit_code == 1
    for text in (
        "no live worker serves 'unserved'",
        "jobs of task 'shop.unknown' wait on 'q', and no live worker there has that task",
        "import the module of the task, 'shop' by its name, where the app is created",
        "jobs of task 'later' wait on 'q', and no live worker there has that task",
        "'paused' is paused, with 1 job waiting",
        "1 running job with a lease that expired over a minute ago",
        "1 running job of workers that are not registered",
        "1 dead job",
    ):
        assert text in result.output


def test_doctor_finds_a_task_that_only_workers_of_other_queues_have(store: Store) -> None:
    async def make(broker: Broker) -> None:
        await broker.register(MEMBER)
        await broker.register(replace(MEMBER, id="w-2", queues=("other",), tasks=("elsewhere",)))
        await broker.enqueue("q", task="elsewhere")
        await broker.enqueue("other", task="elsewhere")

    store.with_broker(make)
    found = json.loads(store.run("doctor", "--json").stdout)
    errors = [each["text"] for each in found if each["check"] == "tasks"]
    assert errors == ["jobs of task 'elsewhere' wait on 'q', and no live worker there has that task"]


def test_doctor_fails_for_warnings_only_if_it_is_strict(store: Store) -> None:
    store.kill(store.enqueue("t"))
    result = store.run("doctor")
    assert "warning  dead letters: 1 dead job" in result.output
    assert result.exit_code == 0
    assert store.run("doctor", "--strict").exit_code == 1
    store.enqueue("t")
    assert store.run("doctor").exit_code == 1


def test_bench_removes_its_jobs(store: Store) -> None:
    existing = store.enqueue("t")
    figures = store.json("bench", "-n", "300", "--size", "100")
    assert figures.keys() == {"enqueue_one_by_one", "enqueue_in_batches", "run"}
    assert all(rate > 0 for rate in figures.values())
    assert [job["id"] for job in store.json("jobs")["jobs"]] == [existing]
    assert store.json("workers") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_DAYJOB_COMPLETE" in result.output


@pytest.mark.parametrize("command", ["queues", "jobs", "schedules", "workers"])
def test_watch_refreshes_until_it_is_interrupted(
    store: Store, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    store.enqueue("t", "-q", "first")
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes the output for a terminal.
    waits = 0

    async def wait(_: object, event: object, seconds: float | None) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr("dayjob.cli.output.SYSTEM", type("Clock", (), {"wait": wait, "now": SYSTEM.now})())
    result = store.run(command, "--watch")
    assert result.exit_code == 130
    assert waits == 3
    assert result.output.startswith("\x1b[?1049h")
    assert result.output.count("\x1b[H") >= 3


def test_scale_prints_the_workers_that_the_queues_need(store: Store) -> None:
    assert store.run("scale").stdout == "0\n"
    store.enqueue("t", "-q", "email")
    assert store.run("scale", "--queue", "email").stdout == "1\n"
    assert store.run("scale", "-q", "other").stdout == "0\n"
    assert store.run("scale", "-q", "other", "--min", "2").stdout == "2\n"
    assert store.run("scale", "--max", "0").stdout == "0\n"
    fields = store.json("scale", "-q", "email", "-q", "other", "--target", "5")
    assert fields.pop("waiting_seconds") >= 0
    assert fields == {
        "wanted": 1, "target_seconds": 5.0, "pending": 1, "limited": 0, "running": 0, "done_per_second": 0.0,
        "workers": 0, "slots": 0,
    }  # fmt: skip
