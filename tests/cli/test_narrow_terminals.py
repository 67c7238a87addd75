"""Tables on a terminal of 80 columns: one line a row, and whole or shortened names, never broken ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from dayjob import Broker, Recurring
from dayjob.cli.output import ID, Column, fitting_widths, shortened
from tests.cli.store import Store
from tests.support.registered_workers import MEMBER

QUEUE = "customer-notifications-with-a-long-name-eu-central-1"
TASK = "shop.backoffice.billing.reminders.send_second_payment_reminder"
WORKER = "worker-host-0123456789.eu-central-1.compute.internal-4711-e4c0caa9"
SCHEDULE = "nightly-reconciliation-of-all-payment-providers-and-ledgers"
ERROR = "TimeoutError: no reply from payments.eu-central-1.example.com:8443 within 30 seconds"
LONG = (QUEUE, TASK, WORKER, SCHEDULE)
LONG_WORDS = (ERROR, "Europe/Berlin", "雪" * 30, "雪だるま" * 10)


@pytest.fixture
def filled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with long names in each listing, on a terminal of 80 columns."""

    # The width of the first column depends on the ids.
    ids = [f"01a1de94-bd5{number}-77be-9a79-224309c0e38f" for number in range(6)]

    async def fill(broker: Broker) -> None:
        await broker.register(
            replace(MEMBER, id=WORKER, host=WORKER, app=TASK, queues=(QUEUE, "q"), tasks=(TASK,))
        )
        await broker.schedule(
            Recurring(SCHEDULE, cron="*/15 2-4 * * 1-5", timezone="Europe/Berlin", task=TASK, queue=QUEUE)
        )
        await broker.enqueue("short", task="t", id=ids[0])
        await broker.enqueue("雪" * 30, task="雪だるま" * 10, id=ids[1])
        for id in ids[2:5]:
            await broker.enqueue(QUEUE, task=TASK, max_attempts=1, id=id)
        await broker.enqueue(QUEUE, task=TASK, delay=3600, id=ids[5])
        job, other = await broker.claim(QUEUE, limit=2, worker=WORKER)
        await broker.dead_letter(job, ERROR)
        await broker.nack(other, f"{ERROR}\nand more")

    store.with_broker(fill)
    monkeypatch.setenv("COLUMNS", "80")
    return store


LISTINGS = ("jobs", "jobs --state dead", "queues", "workers", "schedules", "dead", "dead --group")


@pytest.mark.parametrize("command", LISTINGS)
def test_each_row_is_one_line_of_80_columns_without_a_broken_name(filled: Store, command: str) -> None:
    lines = filled.run(command).output.splitlines()
    assert max(map(cell_len, lines)) <= 80, lines
    _, rule, *rows = lines
    assert set(rule.strip()) <= {"─", "-", " "}
    words = {word for row in rows for word in row.split() if len(word) > 12}
    names = {word for word in words if not re.fullmatch(r"[-0-9a-f]+", word)}
    for name in names:
        head, ellipsis, tail = name.partition("…")
        texts = (*LONG, *LONG_WORDS)
        assert ellipsis or any(name in text for text in texts), name
        assert not ellipsis or any(text.startswith(head) and tail in text for text in texts), name


@pytest.mark.parametrize(
    ("command", "rows"),
    [("jobs", 6), ("jobs --state dead", 2), ("queues", 3), ("workers", 1), ("schedules", 1), ("dead", 2)],
)
def test_each_row_is_shown(filled: Store, command: str, rows: int) -> None:
    assert len(filled.run(command).output.splitlines()) == rows + 2


@pytest.mark.parametrize("command", LISTINGS)
def test_without_a_terminal_all_columns_are_whole(
    filled: Store, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("COLUMNS")
    output = filled.run(command).output
    assert "…" not in output.replace("…:…", "").replace("… seconds", "") or command.startswith("dead")
    assert any(name in output for name in LONG)


def test_the_least_important_columns_are_dropped_first(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def columns(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        return filled.run("jobs").output.splitlines()[0].split()

    assert columns(400) == [
        "id", "queue", "task", "state", "attempts", "priority", "enqueued", "details",
    ]  # fmt: skip
    assert columns(80) == ["id", "queue", "task", "state", "enqueued"]
    assert columns(50) == ["id", "task", "state"]
    assert columns(20)[0] == "id"


def test_the_shown_prefix_of_an_id_is_accepted_as_the_id(filled: Store) -> None:
    rows = filled.run("jobs").output.splitlines()[2:]
    for row in rows:
        shown = row.split()[0]
        assert len(shown) < 36
        assert filled.json("show", shown)["id"].startswith(shown)


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], available: int) -> dict[str, int]:
    return {columns[number].name: width for number, width in fitting_widths(columns, rows, available).items()}


def test_an_id_is_whole_or_the_shortest_unique_prefix() -> None:
    rows = [["01a1de94-be46-7062-9c0c-77747730054c"], ["01a1de94-be46-7062-9c1c-77747730054c"]]
    assert widths((ID,), rows, 36) == {"id": 36}
    assert widths((ID,), rows, 35) == {"id": 22}
    assert widths((ID,), rows[:1], 35) == {"id": 13}
    assert shortened(rows[0][0], 22, ID) == "01a1de94-be46-7062-9c0"


@pytest.mark.parametrize(
    ("text", "width", "is_text", "expected"),
    [
        ("shop.mail.send_reminder", 23, False, "shop.mail.send_reminder"),
        ("shop.mail.send_reminder", 13, False, "shop…reminder"),
        ("no reply from the server", 10, True, "no reply …"),
        ("雪雪雪雪雪", 7, False, "雪…雪雪"),
    ],
)
def test_a_name_is_shortened_in_the_middle_and_a_text_at_its_end(
    text: str, width: int, is_text: bool, expected: str
) -> None:
    result = shortened(text, width, Column("c", is_text=is_text))
    assert result == expected
    assert cell_len(result) <= width


@pytest.mark.parametrize("command", ["jobs", "queues", "workers", "schedules"])
def test_watch_prints_a_snapshot_per_interval_into_a_pipe(
    filled: Store, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    waits = 0

    async def wait(_: object, event: object, seconds: float | None) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            raise KeyboardInterrupt
        return False

    from dayjob.runtime.clock import SYSTEM

    monkeypatch.setattr("dayjob.cli.output.SYSTEM", type("Clock", (), {"wait": wait, "now": SYSTEM.now})())
    result = filled.run(command, "--watch")
    assert result.exit_code == 130
    assert len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", result.output, re.M)) == 3
    header = filled.run(command).output.splitlines()[0]
    assert result.output.splitlines().count(header) == 3
    assert "\x1b" not in result.output


def test_times_are_marked_as_utc(filled: Store) -> None:
    id = filled.json("jobs", "-s", "dead")["jobs"][0]["id"]
    shown = filled.run("show", id).output
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( UTC)?", shown)
    assert len(times) > 3
    assert set(times) == {" UTC"}
    assert TASK in shown
    assert QUEUE in shown
