"""``enqueue``, ``jobs``, ``show``, ``explain`` and ``cancel``: their tables and their JSON."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from dayjob import App, Broker, BrokerConfig, Retention, Retry, Worker
from dayjob.model.job import id_text
from dayjob.runtime.ids import new_key
from tests.cli.store import Store

JOB_FIELDS = {
    "id", "queue", "task", "state", "priority", "attempts", "max_attempts", "epoch", "tenant", "worker",
    "enqueued_at", "run_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at",
    "cancel_requested", "suspect", "dedup_key", "progress", "last_error", "errors", "headers", "payload",
    "result", "limits", "limited_by",
}  # fmt: skip
"""The fields of the JSON contract."""


def test_a_job_is_enqueued_with_all_its_options(store: Store) -> None:
    id = store.enqueue(
        "shop.send", "-q", "email", "-a", '{"to": "ada"}', "--priority", "5", "--delay", "3600",
        "--max-attempts", "7", "--dedup-key", "k", "--tenant", "acme", "--header", "a=b=c",
        "--expires", "9000",
    )  # fmt: skip
    job = store.json("show", id)
    assert job.keys() == JOB_FIELDS | {"explanation"}
    assert job["queue"] == "email"
    assert job["task"] == "shop.send"
    assert job["payload"] == {"to": "ada"}
    assert job["headers"] == {"a": "b=c"}
    assert (job["priority"], job["max_attempts"], job["tenant"]) == (5, 7, "acme")
    assert job["state"] == "scheduled"
    again = store.run("enqueue", "shop.send", "-q", "email", "--dedup-key", "k")
    assert again.exit_code == 1
    assert id in again.output


def test_an_enqueue_replaces_the_call_of_a_waiting_job_or_holds_its_key(store: Store) -> None:
    latest = ("--dedup-key", "k", "--dedup", "latest", "--dedup-scope", "global", "--dedup-max-delay", "60")
    id = store.enqueue("t", "-q", "a", "-a", '{"n": 1}', "--delay", "10", *latest)
    again = store.run("enqueue", "t", "-q", "b", "-a", '{"n": 2}', *latest)
    assert (again.exit_code, again.stdout) == (1, f"{id} already exists\n")
    job = store.json("show", id)
    assert (job["queue"], job["payload"], job["state"]) == ("a", {"n": 2}, "pending")
    window = store.enqueue("t", "--dedup-key", "w", "--dedup-for", "3600")
    assert store.run("cancel", window).exit_code == 0
    assert window in store.run("enqueue", "t", "--dedup-key", "w").output
    assert "dedup_key" in store.run("enqueue", "t", "--dedup", "latest").output


def test_the_attempts_of_a_job_enqueued_by_name_are_those_of_its_task(store: Store) -> None:
    app = App(store.url, config=BrokerConfig(retention=Retention(dead=3600)))

    @app.task(name="fail", retry=Retry.fixed(attempts=5, delay=0))
    async def fail() -> None:
        raise ValueError("no luck")

    by_task, given = store.enqueue("fail"), store.enqueue("fail", "--max-attempts", "2")
    asyncio.run(Worker(app).run_until_idle())
    assert store.json("show", by_task)["attempts"] == store.json("show", by_task)["max_attempts"] == 5
    assert store.json("show", given)["attempts"] == 2


def test_a_payload_comes_from_the_command_line_a_file_or_stdin(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    first = store.enqueue("-q", "raw", "--payload", "hello")
    second = store.enqueue("-q", "raw", "--payload", f"@{tmp_path}/data.bin")
    third = store.run("enqueue", "-q", "raw", "--payload", "-", input="typed").stdout.strip()
    assert store.json("show", first)["payload"] == {"text": "hello"}
    assert store.json("show", second)["payload"] == {"bytes": 2, "content": "[redacted]"}
    assert store.json("show", second, "--redact", "")["payload"] == {"bytes": 2, "hex": "ff00"}
    assert store.json("show", third)["payload"] == {"text": "typed"}


def test_a_payload_that_is_not_utf_8_is_hidden_or_shown_as_bytes(store: Store) -> None:
    async def add(broker: Broker) -> str:
        made = await broker.enqueue("q", b'{"password":"hunter2","s":"\xff"}', max_attempts=1)
        [job] = await broker.claim("q")
        await broker.dead_letter(job, "x")
        return made.id

    id = store.with_broker(add)
    for command in (("show", id), ("jobs",), ("jobs", "--json"), ("dead",), ("dead", "--json")):
        result = store.run(*command)
        assert result.exit_code == 0, result.output
        assert "hunter2" not in result.output
    assert b"hunter2".hex() in store.run("show", id, "--redact", "").output


def test_show_indents_no_more_than_it_shows(store: Store) -> None:
    payload = b"[" * 99 + b",".join([b"0"] * 2**18) + b"]" * 99
    id = store.with_broker(lambda broker: broker.enqueue("q", payload)).id
    assert len(store.run("show", id).output) < 10_000
    assert len(store.run("show", id, "--json").output) < 2**20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["t", "-a", "nonsense"], "is not JSON"),
        (["t", "-a", "[1]"], "pass an object"),
        (["t", "--payload", "x"], "--payload is for jobs without a task"),
        (["--payload", "@/no/such/file"], "No such file"),
        (["t", "--header", "novalue"], "write NAME=VALUE"),
        (["t", "--run-at", "soon"], "is not a time"),
        (["t", "--id", "not-a-uuid"], "not-a-uuid"),
        (["t", "-q", ""], "queue name is empty"),
        (["t", "--priority", "-1"], "priority=-1"),
    ],
)
def test_an_invalid_job_is_refused_with_the_reason(store: Store, arguments: list[str], reason: str) -> None:
    result = store.run("enqueue", *arguments)
    assert result.exit_code == 2
    assert reason in result.output
    assert store.json("jobs")["jobs"] == []


def test_jobs_are_listed_newest_first_and_filtered(store: Store) -> None:
    first = store.enqueue("a", "-q", "one", "--tenant", "acme")
    second = store.enqueue("b", "-q", "two")
    third = store.enqueue("a", "-q", "two", "--delay", "60")

    def ids(*arguments: str) -> list[str]:
        return [job["id"] for job in store.json("jobs", *arguments)["jobs"]]

    assert ids() == [third, second, first]
    assert ids("--oldest-first") == [first, second, third]
    assert ids("-q", "two") == [third, second]
    assert ids("-s", "scheduled") == [third]
    assert ids("-t", "a") == [third, first]
    assert ids("--tenant", "acme") == [first]
    assert ids("--search", "ACME") == [first]
    assert ids("--search", second) == [second]
    assert ids("-n", "2") == [third, second]
    page = store.json("jobs", "-n", "2")
    assert ids("--after", page["after"]) == [first]
    shown = store.run("jobs", "-n", "2").output
    assert "There may be more: --after" in shown
    assert first not in shown


def test_a_job_is_shown_with_its_failures_and_without_its_secrets(store: Store) -> None:
    id = store.enqueue(
        "t", "-a", '{"password": "hunter2", "list": [{"api_key": "s"}]}', "--header", "token=t"
    )
    store.kill(id)
    shown = store.run("show", id).output
    assert "ValueError: bad number 7" in shown.rpartition("failures")[2]
    assert "hunter2" not in shown
    fields = store.json("show", id)
    assert fields["payload"] == {"password": "[redacted]", "list": [{"api_key": "[redacted]"}]}
    assert fields["headers"] == {"token": "[redacted]", "dayjob-attempts": "task"}
    assert fields["explanation"]["reasons"][0]["code"] == "dead"


def test_control_characters_do_not_reach_the_terminal(store: Store) -> None:
    id = store.enqueue("evil\x1b[31m[bold]task", "--header", "x=\x1b]0;title\x07")
    for command in (["jobs"], ["show", id], ["explain", id]):
        output = store.run(*command).output
        assert "\x1b" not in output
        assert "\x07" not in output
    assert "[bold]task" in store.run("show", id).output


def test_explain_reports_why_a_job_waits(store: Store) -> None:
    id = store.enqueue("t", "-q", "email")
    result = store.run("explain", id)
    assert result.exit_code == 0
    assert "No live worker serves queue 'email'" in result.output
    assert store.json("explain", id)["reasons"][0]["code"] == "no_worker_for_queue"


def test_jobs_are_cancelled(store: Store) -> None:
    id = store.enqueue("t")
    result = store.run("cancel", id, id_text(new_key()))
    assert result.exit_code == 0
    assert f"{id} cancelled." in result.output
    assert "not found" in result.output
    assert store.run("cancel", id).exit_code == 1
    other = store.enqueue("t")
    assert store.json("cancel", other) == {other: "removed"}


def test_cancel_of_a_running_job_is_requested(store: Store) -> None:
    id = store.enqueue("t")

    async def claim(broker: Broker) -> None:
        await broker.claim("default", worker="w")

    store.with_broker(claim)
    assert "cancel requested" in store.run("cancel", id).output
    assert "on worker w" in store.run("explain", id).output


@pytest.mark.parametrize("command", ["show", "explain"])
@pytest.mark.parametrize("id", ["nonsense", "01a1dfcd-3b36-725b-9664-a7134c21e787"])
def test_an_unknown_job_is_not_found(store: Store, command: str, id: str) -> None:
    result = store.run(command, id)
    assert result.exit_code == 1
    assert "no" in result.output


def test_the_json_of_a_listing_has_stable_fields(store: Store) -> None:
    store.enqueue("t")
    listing = json.loads(store.run("jobs", "--json").stdout)
    assert listing.keys() == {"jobs", "after"}
    assert listing["jobs"][0].keys() == JOB_FIELDS


# Prefixes of ids.


def test_the_beginning_of_an_id_is_enough_everywhere(store: Store) -> None:
    id = store.enqueue("t")
    prefix = id[:23]
    assert store.json("show", prefix)["id"] == id
    assert store.json("show", prefix.replace("-", "").upper())["id"] == id
    assert store.json("explain", prefix)["id"] == id
    assert [job["id"] for job in store.json("jobs", "--after", prefix)["jobs"]] == []
    store.kill(id)
    assert f"{id} requeued." in store.run("dead requeue", prefix).output
    assert f"{id} cancelled." in store.run("cancel", prefix).output


def test_an_ambiguous_beginning_of_an_id_is_refused_with_the_matches(store: Store) -> None:
    ids = [
        store.enqueue("t", "--id", f"01a1dfcd-3b36-725b-9664-a7134c21e78{digit}") for digit in "0123456789ab"
    ]
    for command in ("show", "explain", "cancel", "dead requeue"):
        result = store.run(command, "01a1dfcd-3b36")
        assert result.exit_code == 2
        assert "01a1dfcd-3b36 is the beginning of the ids of 10 jobs or more" in result.output
        assert result.output.count("01a1dfcd-3b36-725b") == 10
    assert len(store.json("jobs")["jobs"]) == 12
    assert store.json("show", ids[3][:36])["id"] == ids[3]
    assert store.run("show", "0").exit_code == 2
    assert store.run("show", "f").exit_code == 1


# Filters.


def test_jobs_are_found_by_the_value_of_an_argument(store: Store) -> None:
    def call(arguments: object) -> str:
        return store.enqueue("t", "-a", json.dumps(arguments))

    ada = call({"to": "ada@example.com", "n": 7, "user": {"id": 3}, "tags": ["new", "vip"]})
    grace = call({"to": "grace@example.com", "n": "7", "user": {"id": 30}, "api_key": "ada"})

    def ids(*arguments: str) -> list[str]:
        return [job["id"] for job in store.json("jobs", *arguments)["jobs"]]

    assert ids("--arg", "to=ada@example.com") == [ada]
    assert ids("--arg", "n=7") == [grace, ada]
    assert ids("--arg", "n=7", "--arg", "user.id=3") == [ada]
    assert ids("--arg", 'tags=["new", "vip"]') == [ada]
    assert ids("--arg", "to=ada") == ids("--arg", "missing=1") == ids("--arg", "api_key=ada") == []
    assert ids("--search", "ADA@") == [ada]
    assert ids("--search", "example.com") == [grace, ada]
    assert ids("--search", "redacted") == []
    assert store.run("jobs", "--arg", "to").exit_code == 2


def states(store: Store) -> dict[str, str]:
    return {job["id"]: job["state"] for job in store.json("jobs")["jobs"]}


def test_jobs_are_cancelled_by_filter_after_a_confirmation(store: Store) -> None:
    ada = [store.enqueue("send", "-q", "email", "-a", '{"to": "ada"}', "--tenant", "acme") for _ in range(2)]
    grace = store.enqueue("send", "-q", "email", "-a", '{"to": "grace"}', "--delay", "60")
    other = store.enqueue("other", "-q", "else")
    refused = store.run("cancel", "-t", "send", "--arg", "to=ada", input="n\n")
    assert refused.exit_code == 1
    assert "Cancel 2 jobs?" in refused.output
    assert len(states(store)) == 4
    done = store.run("cancel", "-t", "send", "--arg", "to=ada", input="y\n")
    assert done.exit_code == 0
    assert "2 jobs cancelled." in done.output
    assert states(store).keys() == {grace, other}
    assert not {*ada} & states(store).keys()
    assert store.run("cancel", "--tenant", "acme", "--yes").output == "There are no jobs to cancel.\n"
    assert store.run("cancel", "--tenant", "acme", "--yes").exit_code == 1
    assert store.json("cancel", "-q", "email", "-s", "scheduled", "--yes") == {"removed": 1, "requested": 0}
    assert store.json("cancel", "--all", "--yes") == {"removed": 1, "requested": 0}


@pytest.mark.parametrize("arguments", [[], ["x", "--all"], ["--all", "-q", "q"], ["x", "-q", "q"]])
def test_cancel_requires_one_selection(store: Store, arguments: list[str]) -> None:
    store.enqueue("t", "-q", "q")
    result = store.run("cancel", *arguments, "--yes")
    assert result.exit_code == 2
    assert "no jobs are selected" in result.output
    assert len(states(store)) == 1


def test_the_cancel_of_running_jobs_by_filter_is_requested(store: Store) -> None:
    running, waiting = store.enqueue("t"), store.enqueue("t")

    async def claim(broker: Broker) -> None:
        await broker.claim("default", worker="w")

    store.with_broker(claim)
    result = store.run("cancel", "-q", "default", "--yes")
    assert "1 job cancelled. Cancel of 1 running job requested." in result.output
    assert waiting not in states(store)
    assert store.json("show", running)["cancel_requested"] is True


def test_a_queue_is_cleared_of_its_waiting_jobs_only(store: Store) -> None:
    kept = [store.enqueue("t", "-q", "other"), store.enqueue("t", "-q", "email")]

    async def claim(broker: Broker) -> None:
        await broker.claim("email", worker="w")

    store.with_broker(claim)
    store.enqueue("t", "-q", "email")
    store.enqueue("t", "-q", "email", "--delay", "60")
    store.enqueue("t", "-q", "more")
    assert store.run("queues clear", "email", "more", input="n\n").exit_code == 1
    cleared = store.run("queues clear", "email", "more", input="y\n")
    assert "Cancel 3 jobs?" in cleared.output
    assert "3 jobs cancelled." in cleared.output
    assert states(store) == {kept[0]: "pending", kept[1]: "running"}
    assert store.json("show", kept[1])["cancel_requested"] is False
    assert store.run("queues clear", "email", "--yes").exit_code == 1


def test_a_job_whose_worker_died_is_shown_as_suspect(store: Store) -> None:
    id = store.enqueue("t")

    async def crash(broker: Broker) -> None:
        await broker.claim("default", worker="w")
        await broker._engine.reclaim(["w"], 1)

    store.with_broker(crash)
    shown = store.json("show", id)
    assert shown["suspect"] is True
    assert shown["explanation"]["reasons"][-1]["code"] == "suspect"
    assert re.search(r"^suspect +yes$", store.run("show", id).output, re.M)


def test_an_enqueue_without_a_task_or_a_payload_is_refused(store: Store) -> None:
    result = store.run("enqueue")
    assert result.exit_code == 2
    assert "no job is given: pass the name of a task, or --payload for a job without one" in result.output
    assert store.json("jobs")["jobs"] == []


@pytest.mark.parametrize("arguments", ["to=ada", "{'to': 1}", "[1]"])
def test_arguments_that_are_no_object_are_refused_with_an_example(store: Store, arguments: str) -> None:
    result = store.run("enqueue", "t", "--args", arguments)
    assert result.exit_code == 2
    assert """like '{"to": "ada"}'""" in result.output
