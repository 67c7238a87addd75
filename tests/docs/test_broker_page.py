"""The page of the broker has its methods, its settings and its errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, QueueConfig, Retention, errors
from tests.docs.test_job_fields import PAGE

TEXT = PAGE.read_text()

INTERNAL = {
    "beat", "check", "check_cancels", "declare_limits", "deregister", "diagnose", "enqueue_job", "enqueue_tx",
    "first_due", "history", "is_open", "lead", "leads", "lease_of", "next_due", "reclaim_from",
    "record_progress", "register", "release_undelivered", "sample", "start_duties", "stop_duties",
    "store_beats",
}  # fmt: skip
"""Methods for the worker, the duties, the command line and the dashboard."""


def test_each_method_of_the_broker_is_documented() -> None:
    methods = {name for name, _ in inspect.getmembers(Broker) if not name.startswith("_")}
    documented = {name for name in methods if re.search(rf"`(broker\.)?{name}\b", TEXT)}
    assert methods - documented == INTERNAL


@pytest.mark.parametrize("config", [BrokerConfig, QueueConfig, Retention], ids=lambda config: config.__name__)
def test_each_setting_has_a_row_in_its_table(config: type) -> None:
    section = TEXT.partition(f"### `{config.__name__}`")[2].partition("\n#")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(config.__annotations__)


def test_each_error_is_documented() -> None:
    names = [name for name, value in vars(errors).items() if isinstance(value, type)]
    pages = "".join(page.read_text() for page in Path(PAGE).parent.glob("*.md"))
    assert [name for name in names if f"`{name}`" not in pages] == []
