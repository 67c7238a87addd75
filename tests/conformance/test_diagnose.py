"""What ``dayjob doctor`` learns from an engine: each says what it is, and whether jobs are safe there."""

from __future__ import annotations

from dayjob import Broker


async def test_every_engine_says_whether_jobs_are_safe(broker: Broker) -> None:
    remarks = await broker.diagnose()
    assert "durability" in {remark.check for remark in remarks}
    assert all(remark.text for remark in remarks)
    for remark in remarks:
        assert (remark.remedy is None) == (remark.level == "ok"), remark.check


async def test_an_engine_that_persists_says_which_layout_it_has(broker: Broker) -> None:
    layouts = [remark.text for remark in await broker.diagnose() if remark.check == "layout"]
    if broker.capabilities.persistent:
        assert len(layouts) == 1
        assert layouts[0].startswith("version 2 ")
    else:
        assert layouts == []
