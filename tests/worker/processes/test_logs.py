"""The records of a child process reach the worker's logging as if they were made there."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading

import pytest

from dayjob import App
from dayjob.cli.logging_setup import JsonFormatter, TextFormatter
from dayjob.worker.child_logs import LogForwarder, log_from_child, packed_record
from dayjob.worker.child_main import UNSENT_BYTES, Connection
from dayjob.worker.child_messages import Frames, Logged, frame, from_child
from tests.support.bound import BOUND
from tests.support.workers import with_timeout, working
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import done

pytestmark = pytest.mark.slow


def sent(record: logging.LogRecord) -> logging.LogRecord:
    """Return the record as the worker receives it."""
    [data] = Frames().feed(frame(Logged(packed_record(record))))
    message = from_child(data)
    assert isinstance(message, Logged)
    return logging.makeLogRecord(message.record)


def failing(extra: dict[str, object]) -> logging.LogRecord:
    logger = logging.getLogger("shop")
    try:
        raise ValueError("the till is empty \ud800")
    except ValueError:
        return logger.makeRecord(
            "shop", logging.ERROR, __file__, 7, "no %s", ("change",), sys.exc_info(), "sell", extra
        )


async def test_records_of_all_loggers_arrive_with_level_extra_and_exception(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "shop.verbose")
    handle = await tasks.log_by_all_means.aenqueue()
    [child] = await done(app, handle.id)
    assert child != os.getpid()
    records = {record.name: record for record in caplog.records if record.process == child}
    assert set(records) == {"shop.billing", "shop.verbose", "dayjob.job", "py.warnings"}
    paid = records["shop.billing"]
    assert (paid.levelname, paid.getMessage(), paid.funcName) == ("INFO", "paid 20 %", "log_by_all_means")
    fields = vars(paid)
    assert (fields["customer"], fields["tags"], fields["huge"]) == (7, ["a"], str(2**80))
    assert fields["place"] == {"city": "Bern", "floor": 0}
    failure = records["dayjob.job"]
    assert (failure.levelno, failure.getMessage()) == (logging.ERROR, "no balance")
    assert (vars(failure)["job_id"], vars(failure)["account"]) == (handle.id, 3)
    assert str(failure.exc_text).endswith("KeyError: 'account'")
    assert "an old call" in records["py.warnings"].getMessage()


async def test_a_level_that_changes_or_is_removed_applies_from_the_next_job_of_the_same_child(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    billing = logging.getLogger("shop.billing")
    logged: list[int] = []
    children: set[int] = set()
    try:
        async with working(app, pool_processes=1):
            for level in (logging.ERROR, logging.INFO, logging.ERROR, logging.NOTSET):
                caplog.clear()
                billing.setLevel(level)
                handle = await tasks.log_by_all_means.aenqueue()
                children.add(await with_timeout(handle.aresult()))
                logged.append([record.name for record in caplog.records].count("shop.billing"))
    finally:
        billing.setLevel(logging.NOTSET)
    assert logged == [0, 1, 0, 1]
    assert len(children) == 1


def test_formats_are_those_of_the_workers_own_records() -> None:
    record = failing({"customer": 7, "tags": ["a"], "when": None})
    received = sent(record)
    text = TextFormatter()
    assert text.format(received) == text.format(record).removesuffix(r"\ud800") + "?"
    ours, theirs = (json.loads(JsonFormatter().format(each)) for each in (record, received))
    assert theirs == ours | {"exception": ours["exception"].replace("\ud800", "?")}
    assert theirs["exception"].startswith("Traceback")


def test_any_extra_passes_in_a_limited_size() -> None:
    cycle: list[object] = []
    cycle.append(cycle)

    class Silent:
        def __str__(self) -> str:
            raise ValueError("no text")

    extra = {"cycle": cycle, "silent": Silent(), "long": "x" * 10**6, "keys": {(1, 2): 3}, "bad": ["\ud800"]}
    received = vars(sent(failing({**extra, **{f"field {number}": number for number in range(1000)}})))
    assert extra.keys() <= received.keys()
    assert len(received["long"]) < 20_000
    assert len(received) < 200


def test_a_filter_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: logging.LogRecord) -> bool:
        raise ValueError("broken filter")

    logger = logging.getLogger("shop.filtered")
    logger.addFilter(broken)
    log_from_child({"name": logger.name, "levelno": logging.ERROR, "levelname": "ERROR", "msg": "sold"})
    assert "can't be logged: 'sold'" in caplog.text
    assert "broken filter" in caplog.text


def test_a_worker_that_does_not_read_blocks_no_handler_and_gets_the_number_of_dropped_records() -> None:
    ours, theirs = socket.socketpair()
    texts: list[str] = []

    def read() -> None:
        frames = Frames()
        while data := ours.recv(1 << 16):
            for each in frames.feed(data):
                message = from_child(each)
                assert isinstance(message, Logged)
                texts.append(message.record["msg"])

    with ours, theirs:
        connection = Connection(theirs)
        forwarder = LogForwarder(lambda fields: connection.try_send(Logged(fields)))
        records = 8 * UNSENT_BYTES // 10_000
        for number in range(records):
            forwarder.handle(logging.makeLogRecord({"msg": f"{number} {'x' * 10_000}"}))
        reader = threading.Thread(target=read)
        reader.start()
        connection.send(Logged({"msg": "outcome"}))  # Waits for the reader, as an outcome does.
        forwarder.report_dropped()
        forwarder.handle(logging.makeLogRecord({"msg": "later"}))
        connection.send(Logged({"msg": "next outcome"}))  # Nothing waits for room any more.
        theirs.shutdown(socket.SHUT_WR)
        reader.join(BOUND)
    numbers = [int(text.split()[0]) for text in texts[:-4]]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < records
    assert texts[-4:] == [
        "outcome",
        f"{records - len(numbers)} log records of a child process were dropped: "
        "the worker did not read them in time",
        "later",
        "next outcome",
    ]
