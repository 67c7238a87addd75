"""``diagnose``: each engine reports its layout and whether its jobs are durable."""

from __future__ import annotations

import re

from dayjob import Broker


async def test_every_engine_reports_whether_jobs_are_durable(broker: Broker) -> None:
    diagnostics = await broker.diagnose()
    assert "durability" in {diagnostic.check for diagnostic in diagnostics}
    assert all(diagnostic.text for diagnostic in diagnostics)
    for diagnostic in diagnostics:
        assert (diagnostic.remedy is None) == (diagnostic.level == "ok"), diagnostic.check


async def test_a_persistent_engine_reports_its_layout_version(broker: Broker) -> None:
    layouts = [diagnostic.text for diagnostic in await broker.diagnose() if diagnostic.check == "layout"]
    if broker.capabilities.persistent:
        assert len(layouts) == 1
        assert re.match(r"version \d+ ", layouts[0])
    else:
        assert layouts == []
