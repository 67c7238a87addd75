"""The example of server-sent events in the docs streams the progress of a job to its end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from dayjob import Worker
from tests.support.bound import BOUND

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


async def test_the_example_streams_a_job_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    [program] = [block for block in blocks if "text/event-stream" in block]
    example: dict[str, Any] = {"__name__": "shop"}
    exec(compile(program, "shop.py", "exec", dont_inherit=True), example)
    transport = httpx.ASGITransport(app=example["web"])
    async with example["jobs"] as jobs, httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
        id = (await web.post("/exports")).json()["id"]
        async with Worker(jobs):
            answer = await web.get(f"/exports/{id}/events", timeout=BOUND)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.strip().split("\n\n")]
    assert events[-1] == {"state": "done", "done": 1.0, "message": "row 3"}
    assert events[0]["state"] in ("pending", "running", "done")
