"""Examples as real processes, in a folder of their own."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import ROOT, Command, eventually
from tests.support.bound import BOUND

_ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")


class Site:
    """A running example and its client."""

    def __init__(self, module: str, folder: Path, environment: dict[str, str]) -> None:
        self.command = Command(
            ("--port", "0"), folder, folder / "site.log",
            {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}, ("-m", module),
        )  # fmt: skip
        output = self.command.output
        eventually(lambda: _ADDRESS.search(output()) is not None, "address", output)
        self.address = _ADDRESS.findall(output())[0]

    def send(self, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, str]:
        """Return the status and the text of a reply: to POST, if there is a body."""
        request = urllib.request.Request(self.address + path, body, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=BOUND) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        status, text = self.send(path)
        assert status == 200, text
        return json.loads(text)

    def follow(self, path: str) -> list[Any]:
        """Return the data of all messages of a stream, reconnecting as a browser does."""
        found: list[str] = []

        def ended() -> bool:
            status, text = self.send(path)
            assert status == 200, text
            found.extend(re.findall(r"^data: (.*)$", text, re.MULTILINE))
            return "event: end" in text

        eventually(ended, "end of the job", self.command.output)
        return [json.loads(data) for data in found]

    def stop(self, code: int) -> None:
        self.command.signal(signal.SIGTERM)
        assert self.command.wait() == code, self.command.output()


StartSite = Callable[..., Site]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartSite]:
    started: list[Command] = []

    def start(module: str, **environment: str) -> Site:
        site = Site(module, tmp_path, environment)
        started.append(site.command)
        return site

    yield start
    for command in started:
        if command.process.poll() is None:
            command.signal(signal.SIGTERM)
            command.wait()
