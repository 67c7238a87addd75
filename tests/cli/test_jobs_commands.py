"""``enqueue``, ``jobs``, ``show``, ``explain`` and ``cancel``: their tables and their JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dayjob import Broker
from dayjob.model.job import id_text
from dayjob.runtime.ids import new_key
from tests.cli.store import Store

JOB_FIELDS = {
    "id", "queue", "task", "state", "priority", "attempts", "max_attempts", "epoch", "tenant", "worker",
    "enqueued_at", "run_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at",
    "cancel_requested", "dedup_key", "progress", "last_error", "errors", "headers", "payload", "result",
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


def test_a_payload_comes_from_the_command_line_a_file_or_stdin(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    first = store.enqueue("-q", "raw", "--payload", "hello")
    second = store.enqueue("-q", "raw", "--payload", f"@{tmp_path}/data.bin")
    third = store.run("enqueue", "-q", "raw", "--payload", "-", input="typed").stdout.strip()
    assert store.json("show", first)["payload"] == {"text": "hello"}
    assert store.json("show", second)["payload"] == {"bytes": 2, "hex": "ff00"}
    assert store.json("show", third)["payload"] == {"text": "typed"}


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
    assert fields["headers"] == {"token": "[redacted]"}
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
    assert "by worker w" in store.run("explain", id).output


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
