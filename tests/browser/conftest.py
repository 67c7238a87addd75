"""A Chromium, a worker with a dashboard, and a page that fails the test on console errors.

Without Playwright or a Chromium these tests are skipped with a reason. ``make test-browser`` installs both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from dayjob import Broker
from tests.cli.processes import Answer, Command, Start, eventually, starting, with_broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 760}

JOBS = """
    import asyncio, socket
    from pathlib import Path

    socket.gethostname = lambda: "app-1"  # the same host name in every screenshot

    from dayjob import App, BrokerConfig, Context, Retention, Retry

    app = App("sqlite:///jobs.db", config=BrokerConfig(retention=Retention(cancelled=3600)))

    @app.task(name="shop.send_email", queue="email")
    async def send_email(to: str, subject: str = "hello") -> str:
        await asyncio.sleep(0.01)
        return f"{subject!r} went to {to}"

    @app.task(name="shop.import_row", queue="import", retry=Retry.fixed(attempts=2, delay=0.1))
    async def import_row(row: int, password: str) -> str:
        if not Path("repaired").exists():
            raise ValueError(f"row {row} has no price")
        return f"row {row} is in"

    @app.task(name="shop.resize", queue="images", cancel="interrupt")
    async def resize(ctx: Context, images: int) -> None:
        for number in range(images):
            ctx.progress(number / images, f"image {number} of {images}")
            await asyncio.sleep(0.1)

    @app.task(name="shop.report", queue="reports", cron="0 3 * * *", timezone="Europe/Berlin")
    async def report() -> str:
        return "all is well"

    @app.task(name="shop.poll", queue="reports", every=3600)
    async def poll() -> None: ...
"""

LOADING = """
    import linecache
    from pathlib import Path

    name = "/srv/shop/jobs.py"  # the path in the tracebacks of screenshots
    source = Path(__file__).with_name("jobs.txt").read_text()
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"))
"""


def _executable() -> str | None:
    named = os.environ.get("DAYJOB_TEST_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start one Chromium per module. Its event loop occupies this thread, which other modules need."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip("Playwright is not installed: run  make test-browser")
    executable = _executable()
    if executable is None:
        pytest.skip("no Chromium on the PATH nor in DAYJOB_TEST_CHROMIUM: run  make test-browser")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        yield browser
        browser.close()


class Site:
    """A folder with an app, its worker, and the address of its dashboard."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.start = start
        (folder / "jobs.txt").write_text(dedent(JOBS))
        (folder / "jobs.py").write_text(dedent(LOADING))
        self.worker = start("jobs:app", "-c", "8", "--name", "worker", "--shutdown-timeout", "0")
        eventually((folder / "jobs.db").exists, "a store", self.worker.output)
        self.dashboard = start(self.url, "--port", "0", "--no-login", command="dashboard")
        self.address = self.address_of(self.dashboard)

    def address_of(self, command: Command) -> str:
        found: list[str] = []

        def printed() -> bool:
            found[:] = re.findall(r"is on (http://[\d.]+:\d+(?=/)\S*)", command.output())
            return bool(found)

        eventually(printed, "an address", command.output)
        return found[0].removesuffix("/")

    def enqueue(self, task: str, queue: str, payload: bytes, **options: Any) -> str:
        return self.ask(lambda broker: broker.enqueue(queue, payload, task=task, **options)).id

    def ask(self, question: Callable[[Broker], Awaitable[Answer]]) -> Answer:
        """Run a broker call in a thread without an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(with_broker, self.url, question).result()

    def total(self, state: str) -> int:
        stats = self.ask(lambda broker: broker.all_stats())
        return sum(getattr(each, state) for each in stats.values())

    def wait_for(self, state: str, count: int) -> None:
        """Wait until the store has that many jobs in the state."""
        eventually(lambda: self.total(state) == count, f"{count} {state}", self.worker.output)


@pytest.fixture
def site(chromium: Browser, tmp_path: Path) -> Iterator[Site]:
    with starting(tmp_path, tmp_path, {}) as start:
        yield Site(tmp_path, start)


class ConsoleErrors(list[str]):
    """The errors and warnings of a page's console."""

    def listen(self, page: Page) -> None:
        page.on("console", lambda message: self._add(message.type, message.text))
        page.on("pageerror", lambda error: self.append(f"page error: {error}"))

    def _add(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.append(f"{kind}: {text}")


@pytest.fixture
def console_errors() -> ConsoleErrors:
    return ConsoleErrors()


@pytest.fixture
def page(chromium: Browser, console_errors: ConsoleErrors) -> Iterator[Page]:
    """Open a desktop page. Errors on its console fail the test."""
    context = chromium.new_context(viewport=DESKTOP)
    context.set_default_timeout(20_000)
    page = context.new_page()
    console_errors.listen(page)
    yield page
    context.close()
    assert console_errors == []
