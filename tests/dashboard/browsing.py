"""A browser of few words: it keeps cookies, and sends the forms of pages that it has read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import httpx

from dayjob import Broker, Job, NewJob
from dayjob.dashboard import Dashboard, dashboard

BASE = "http://127.0.0.1:8787"
HTML = {"Accept": "text/html"}
TOKEN = "a token that nobody guesses"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Browser:
    def __init__(self, app: Any, base: str = BASE, prefix: str = "", within: Any = None) -> None:
        self._dashboard: Any = app if within is None else within
        self.prefix = prefix
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url=base, headers=HTML, follow_redirects=False
        )
        self.csrf = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        answer = await self.client.get(self.prefix + path, **options)
        found = _CSRF.search(answer.text)
        if found is not None:
            self.csrf = found[1]
        return answer

    async def text(self, path: str) -> str:
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Send a form as a page of the dashboard would."""
        if not self.csrf:
            await self.get("/workers")
            [cookie] = self.client.cookies.values()
            sessions = self._dashboard._guard._sessions  # not every page has a form to read it from
            self.csrf = sessions.csrf(sessions.from_text(cookie))
        return await self.client.post(
            self.prefix + path, data={"csrf": self.csrf, **(fields or {})}, **options
        )

    async def log_in(self, token: str = TOKEN) -> httpx.Response:
        await self.get("/login")
        answer = await self.post("/login", {"token": token})
        self.csrf = ""
        return answer

    async def api(self, path: str, **options: Any) -> Any:
        answer = await self.client.get(f"{self.prefix}/api/{path}", **options)
        assert answer.status_code == 200, answer.text
        return answer.json()


def browse(broker: Broker, **options: Any) -> Browser:
    made: Dashboard = dashboard(broker, **options)
    return Browser(made)


def links(text: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'href="([^"]*)"', text)]


def rows(text: str) -> list[str]:
    """The text of each row of the page's table, without tags."""
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
