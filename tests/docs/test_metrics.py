"""The exposed series, the table in the docs, and the Grafana dashboard agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dayjob import App, Worker
from dayjob.inspect import Inspector
from dayjob.metrics import Exposition, measure

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\bdayjob_\w+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


async def exposed() -> set[str]:
    app = App("memory://")

    @app.task
    async def task() -> None: ...

    meter = measure(app)
    async with app:
        await task.aenqueue()
        await Worker(app).run_until_idle()
        await task.using(expires=1e-6).aenqueue()
        await app.broker.promote()
        page = (await Exposition(Inspector(app.broker), meter.registry).render()).decode()
    families = text_string_to_metric_families(page)
    return {SUFFIX.sub("", sample.name) for each in families for sample in each.samples} - {
        name for name in NAME.findall(page) if name.endswith("_created")
    }


async def test_every_series_is_documented_and_every_documented_one_exists() -> None:
    assert set(NAME.findall((DOCS / "observability.md").read_text())) == await exposed()


async def test_the_grafana_dashboard_uses_series_that_exist() -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    used = {
        SUFFIX.sub("", name)
        for panel in board["panels"]
        for target in panel["targets"]
        for name in NAME.findall(target["expr"])
    }
    assert used
    assert used <= await exposed()
