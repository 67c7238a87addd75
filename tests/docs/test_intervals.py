"""Intervals in the docs are the constants of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayjob import event_stream
from dayjob.cli.worker import restart_watcher
from dayjob.dashboard import state
from dayjob.engines import idle_connections
from dayjob.engines.redis import subscriber
from dayjob.engines.sqlite import threads

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "sentence", "constant", "seconds"),
    [
        ("postgres.md", "closed after 30 s without need, but one", idle_connections.KEPT, 30),
        ("engines.md", "the process polls twice a second", subscriber.POLL_INTERVAL, 0.5),
        ("engines.md", "counter of changes by others every 25 ms", threads.WATCH_INTERVAL, 0.025),
        ("worker.md", "`--max-rss` checks once a second", restart_watcher.RSS_INTERVAL, 1),
        ("worker.md", "not installed packages, twice a second", restart_watcher.RELOAD_INTERVAL, 0.5),
        ("dashboard.md", "fewer if that takes longer than a tenth of a second", state.READ_BUDGET, 0.1),
        ("web.md", "A comment every 15 s keeps proxies from closing the stream", event_stream.KEEPALIVE, 15),
    ],
)  # fmt: skip
def test_an_interval_of_the_docs_is_that_of_the_code(
    page: str, sentence: str, constant: float, seconds: float
) -> None:
    assert sentence in " ".join((DOCS / page).read_text("utf-8").split())
    assert constant == seconds
