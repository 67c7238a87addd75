"""A test client that keeps cookies and sends forms with the CSRF token of the last page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import httpx

from dayjob import Broker, Job, NewJob
from dayjob.dashboard import dashboard

BASE = "http://127.0.0.1:8787"
HTML = {"Accept": "text/html"}
TOKEN = "a token that is hard to guess"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Browser:
    def __init__(self, app: Any, base: str = BASE, prefix: str = "", dashboard: Any = None) -> None:
        self.app = app
        self._dashboard: Any = app if dashboard is None else dashboard
        self.prefix = prefix
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url=base, headers=HTML, follow_redirects=False
        )
        self.csrf = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        response = await self.client.get(self.prefix + path, **options)
        found = _CSRF.search(response.text)
        if found is not None:
            self.csrf = found[1]
        return response

    async def text(self, path: str) -> str:
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Send a form with its CSRF token."""
        if not self.csrf:
            await self.get("/workers")
            [cookie] = self.client.cookies.values()
            sessions = self._dashboard._guard._sessions  # not every page has a form with the token
            self.csrf = sessions.csrf(sessions.from_text(cookie))
        return await self.client.post(
            self.prefix + path, data={"csrf": self.csrf, **(fields or {})}, **options
        )

    async def log_in(self, token: str = TOKEN) -> httpx.Response:
        await self.get("/login")
        response = await self.post("/login", {"token": token})
        self.csrf = ""
        return response

    async def api(self, path: str, **options: Any) -> Any:
        response = await self.client.get(f"{self.prefix}/api/{path}", **options)
        assert response.status_code == 200, response.text
        return response.json()


def browse(broker: Broker, **options: Any) -> Browser:
    return Browser(dashboard(broker, **options))


def links(text: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'href="([^"]*)"', text)]


def rows(text: str) -> list[str]:
    """Return the text of each row of the page's table, without tags."""
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        " ".join(unescape(re.sub(r"<[^>]*>", " ", row)).split())
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
    ]


async def make_dead(
    broker: Broker, queue: str = "import", error: str = "ValueError: bad", count: int = 1, **options: Any
) -> list[str]:
    made = await broker.enqueue_many([NewJob(queue, b"{}", task="shop.load", **options)] * count)
    for job in await broker.claim(queue, limit=count):
        await broker.dead_letter(job, error)
    return [each.id for each in made]


async def make_running(broker: Broker, queue: str = "long", **options: Any) -> Job:
    await broker.enqueue(queue, b"{}", task="shop.long", **options)
    [job] = await broker.claim(queue, worker="worker-1")
    return job
