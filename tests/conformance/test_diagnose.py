"""What ``dayjob doctor`` learns from an engine: each says what it is, and whether jobs are safe there."""

from __future__ import annotations

import re

from dayjob import Broker


async def test_every_engine_says_whether_jobs_are_safe(broker: Broker) -> None:
    diagnostics = await broker.diagnose()
    assert "durability" in {diagnostic.check for diagnostic in diagnostics}
    assert all(diagnostic.text for diagnostic in diagnostics)
    for diagnostic in diagnostics:
        assert (diagnostic.remedy is None) == (diagnostic.level == "ok"), diagnostic.check


async def test_an_engine_that_persists_says_which_layout_it_has(broker: Broker) -> None:
    layouts = [diagnostic.text for diagnostic in await broker.diagnose() if diagnostic.check == "layout"]
    if broker.capabilities.persistent:
        assert len(layouts) == 1
        assert re.match(r"version \d+ ", layouts[0])
    else:
        assert layouts == []
