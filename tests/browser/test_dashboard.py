"""The dashboard in a real browser."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import DESKTOP, PHONE, ConsoleErrors, Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = pytest.mark.slow

TOKEN = "a token that is hard to guess"

SCHEMES = {"desktop": "light", "phone": "dark"}
"""The colour scheme of the pictures in the documentation."""

WITHOUT_PATH = """for (const each of document.querySelectorAll("footer span"))
    each.textContent = each.textContent.replace(/sqlite:.*/, "sqlite:///jobs.db")"""

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "dashboard.md"


def shows(page: Page, selector: str, text: str) -> None:
    """Wait until a visible element has the text."""
    page.locator(selector, has_text=text).locator("visible=true").first.wait_for()


def value(page: Page, name: str) -> str:
    text: str = page.locator(f'[data-value="{name}"]').first.inner_text()
    return text


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).first.click()


def test_the_overview_is_live_while_jobs_run(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.evaluate("window.isTheSamePage = true")
    shows(page, "#live", "live")
    assert value(page, "tile-rate-note") == "0 in total"
    for number in range(30):
        site.enqueue("shop.send_email", "email", b'{"to": "user %d"}' % number)
    shows(page, '[data-value="tile-rate-note"]', "30 in total")
    shows(page, "tbody th", "email")
    page.locator("#chart-throughput title", has_text="30 completed").wait_for(state="attached")
    assert page.evaluate("window.isTheSamePage") is True


def test_a_dead_job_is_found_and_requeued_and_then_done(site: Site, page: Page) -> None:
    for row in range(3):
        site.enqueue("shop.import_row", "import", b'{"row": %d, "password": "hunter2"}' % row)
    site.wait_for("dead", 3)
    page.goto(site.address)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Jobs").click()
    page.get_by_label("Search").fill("row 1 has no price")
    press(page, "Filter")
    assert page.locator("tbody tr").count() == 1
    page.locator("tbody th a").click()
    shows(page, "h1 .state", "dead")
    shows(page, "pre", "ValueError: row 1 has no price")
    assert "hunter2" not in page.content()
    (site.folder / "repaired").touch()
    press(page, "Requeue")
    shows(page, ".flash", "Job requeued")
    shows(page, "h1 .state", "done")
    shows(page, "pre", "row 1 is in")
    assert site.total("dead") == 2


def test_dead_letters_are_requeued_and_purged_by_error(site: Site, page: Page) -> None:
    for row in range(4):
        site.enqueue("shop.import_row", "import", b'{"row": %d, "password": ""}' % row)
    site.wait_for("dead", 4)
    (site.folder / "repaired").touch()
    page.goto(f"{site.address}/dead")
    assert page.locator("tbody tr").count() == 4
    page.get_by_role("link", name="By error").click()
    shows(page, "tbody tr", "ValueError: row … has no price")
    page.locator("tbody").get_by_role("button", name="Requeue").click()
    site.wait_for("done", 4)
    (site.folder / "repaired").unlink()
    site.enqueue("shop.import_row", "import", b'{"row": 9, "password": ""}')
    site.wait_for("dead", 1)
    page.goto(f"{site.address}/dead")
    page.locator("summary", has_text="Delete all").click()
    press(page, "Delete all")
    site.wait_for("dead", 0)


def test_a_running_job_shows_its_progress_and_is_cancelled(site: Site, page: Page) -> None:
    id = site.enqueue("shop.resize", "images", b'{"images": 2000}')
    site.wait_for("running", 1)
    page.goto(f"{site.address}/jobs/{id}")
    shows(page, 'label[for="progress"]', "image 1")
    before = page.locator("progress").get_attribute("value")
    page.wait_for_function(
        "was => document.getElementById('progress').value > Number(was) + 0.001", arg=before
    )
    press(page, "Cancel")
    shows(page, ".flash", "Cancel requested")
    shows(page, "h1 .state", "cancelled")
    assert site.total("running") == 0


def test_a_queue_is_paused_and_resumed(site: Site, page: Page) -> None:
    site.enqueue("shop.send_email", "email", b'{"to": "ada"}')
    site.wait_for("done", 1)
    page.goto(site.address)
    page.get_by_role("button", name="Pause queue email").click()
    shows(page, "tbody tr", "paused")
    id = site.enqueue("shop.send_email", "email", b'{"to": "bob"}')
    shows(page, '[data-value="tile-pending"]', "1")
    page.goto(f"{site.address}/jobs/{id}")
    shows(page, ".why", "is paused: resume it to run its jobs")
    page.goto(site.address)
    page.get_by_role("button", name="Resume queue email").click()
    shows(page, '[data-value="tile-rate-note"]', "2 in total")


def test_a_schedule_is_triggered_paused_and_resumed(site: Site, page: Page) -> None:
    page.goto(f"{site.address}/schedules")
    shows(page, "tbody tr", "0 3 * * * Europe/Berlin")
    page.get_by_role("button", name="Trigger shop.report now").click()
    shows(page, ".flash", "Job enqueued from its schedule")
    shows(page, "h1 .state", "done")
    shows(page, "pre", "all is well")
    page.goto(f"{site.address}/schedules")
    page.get_by_role("button", name="Pause shop.report").click()
    shows(page, "tbody tr", "paused")
    page.get_by_role("button", name="Resume shop.report").click()
    page.get_by_role("button", name="Pause shop.report").wait_for()


def test_workers_show_their_running_jobs(site: Site, page: Page) -> None:
    page.goto(f"{site.address}/workers")
    shows(page, "tbody tr", "app-1")
    site.enqueue("shop.resize", "images", b'{"images": 2000}')
    shows(page, "tbody tr", "shop.resize")
    shows(page, "tbody tr", "1 of 8")


@pytest.fixture
def protected(site: Site) -> str:
    """Return the address of a dashboard with a token."""
    command = site.start(site.url, "--port", "0", "--token", TOKEN, command="dashboard")
    return site.address_of(command)


def test_the_token_logs_in_and_the_button_logs_out(protected: str, page: Page) -> None:
    page.goto(f"{protected}/schedules")
    assert page.url == f"{protected}/login?next=%2Fschedules"
    assert page.locator(":focus").get_attribute("name") == "token"
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    shows(page, "h1", "Schedules")
    [cookie] = page.context.cookies()
    assert cookie.get("httpOnly") is True
    assert cookie.get("sameSite") == "Strict"
    assert page.evaluate("document.cookie") == ""
    page.reload()
    shows(page, "h1", "Schedules")
    press(page, "Log out")
    shows(page, ".flash", "Logged out.")
    page.goto(protected)
    shows(page, "h1", "Log in")


def test_the_link_of_the_command_logs_in(site: Site, page: Page) -> None:
    link = site.address_of(site.start(site.url, "--port", "0", command="dashboard"))
    address, _, token = link.partition("/login#")
    assert token
    page.goto(link)
    shows(page, "h1", "Overview")
    assert page.url == f"{address}/"


def test_a_wrong_token_is_refused(protected: str, page: Page, console_errors: ConsoleErrors) -> None:
    page.goto(protected)
    page.get_by_label("Token").fill("wrong")
    press(page, "Log in")
    shows(page, '[role="alert"]', "Wrong token.")
    page.goto(f"{protected}/jobs")
    shows(page, "h1", "Log in")
    assert all("status of 401" in error for error in console_errors)
    console_errors.clear()


@contextmanager
def evil_site(target: str, fields: str) -> Iterator[str]:
    """Serve a page of another site with a form that posts to the dashboard."""
    text = f'<form method="post" action="{target}">{fields}<button>Win a prize</button></form>'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"" if self.path == "/favicon.ico" else text.encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            serving.join()


def test_a_form_of_another_site_changes_nothing(
    site: Site, page: Page, console_errors: ConsoleErrors
) -> None:
    site.enqueue("shop.send_email", "email", b'{"to": "ada"}')
    page.goto(site.address)
    shows(page, "tbody th", "email")
    csrf = page.locator('input[name="csrf"]').first.get_attribute("value")
    fields = f'<input name="queue" value="email"><input name="csrf" value="{csrf}">'
    with evil_site(f"{site.address}/queues/pause", fields) as address:
        page.goto(address)
        press(page, "Win a prize")
        shows(page, "h1", "403")
    assert site.ask(lambda broker: broker.paused()) == set()
    assert all("status of 403" in error for error in console_errors)
    console_errors.clear()


def test_the_dashboard_works_with_the_keyboard(site: Site, page: Page) -> None:
    site.enqueue("shop.send_email", "email", b'{"to": "ada"}')
    site.wait_for("done", 1)
    page.goto(site.address)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(":focus").inner_text().startswith("Pause"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    shows(page, "tbody tr", "paused")


def test_pages_and_forms_work_without_javascript(site: Site, chromium: Browser) -> None:
    for row in range(2):
        site.enqueue("shop.import_row", "import", b'{"row": %d, "password": ""}' % row)
    site.wait_for("dead", 2)
    (site.folder / "repaired").touch()
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in ("/", "/jobs", "/dead", "/tasks", "/schedules", "/workers"):
        page.goto(site.address + path)
        assert page.locator("tbody tr").count() >= 1
    page.goto(f"{site.address}/dead")
    page.locator("tbody").get_by_role("button", name="Requeue").first.click()
    shows(page, ".flash", "Job requeued")
    site.wait_for("dead", 1)
    page.goto(f"{site.address}/dead")
    page.locator("summary", has_text="Delete all").click()
    page.get_by_role("button", name="Delete all").click()
    site.wait_for("dead", 0)
    context.close()


def test_a_lost_connection_is_shown(site: Site, page: Page, console_errors: ConsoleErrors) -> None:
    page.goto(site.address)
    shows(page, "#live", "live")
    site.dashboard.kill()
    shows(page, "#live.off", "disconnected")
    assert all("ERR_CONNECTION_REFUSED" in each or "ERR_INCOMPLETE" in each for each in console_errors), (
        console_errors
    )
    console_errors.clear()


def test_all_jobs_that_a_filter_shows_are_cancelled_after_a_confirmation(site: Site, page: Page) -> None:
    site.ask(lambda broker: broker.pause("email"))
    for number in range(60):
        site.enqueue("shop.send_email", "email", b'{"to": "user %d"}' % (number % 2))
    page.goto(f"{site.address}/jobs")
    page.get_by_label("Argument").fill("to=user 1")
    press(page, "Filter")
    assert page.locator("tbody tr").count() == 30
    page.locator("summary", has_text="Change all matching jobs").click()
    page.get_by_role("link", name="Cancel…").click()
    shows(page, "h1", "Cancel 30 jobs?")
    shows(page, "dd", "argument to=user 1")
    press(page, "Cancel 30 jobs")
    site.wait_for("cancelled", 30)
    assert site.total("pending") == 30
    page.goto(f"{site.address}/operations")
    shows(page, "li", "Cancel all jobs: argument to=user 1: 30 jobs")


def test_a_dead_job_runs_again_with_edited_arguments(
    site: Site, page: Page, console_errors: ConsoleErrors
) -> None:
    id = site.enqueue("shop.import_row", "import", b'{"row": 7, "password": "hunter2"}')
    site.wait_for("dead", 1)
    (site.folder / "repaired").touch()
    page.goto(f"{site.address}/jobs/{id}")
    page.get_by_role("link", name="Edit and run again").click()
    arguments = page.get_by_label("Arguments")
    assert "[redacted]" in arguments.input_value()
    arguments.fill('{"row": "seven", "password": "[redacted]"}')
    page.get_by_label("Delay").fill("soon")
    press(page, "Run as new job")
    shows(page, "#arguments-problem", "row")
    shows(page, "#delay-problem", "is no number of seconds")
    assert arguments.get_attribute("aria-invalid") == "true"
    arguments.fill('{"row": 8, "password": "[redacted]"}')
    page.get_by_label("Delay").fill("0")
    press(page, "Run as new job")
    shows(page, ".flash", "Enqueued as a new job")
    shows(page, "h1 .state", "done")
    shows(page, "pre", "row 8 is in")
    assert all("status of 422" in error for error in console_errors)
    console_errors.clear()


def test_rows_are_collapsed_cards_on_a_phone(site: Site, chromium: Browser) -> None:
    site.enqueue("shop.send_email", "email", b'{"to": "ada"}')
    site.wait_for("done", 1)
    context = chromium.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.address}/jobs")
    card = page.locator("tbody tr").first
    assert card.locator('td[data-label="Arguments"]').is_visible()
    assert not card.locator('td[data-label="Attempts"]').is_visible()
    closed = card.bounding_box()
    card.get_by_role("checkbox").check()
    attempts = card.locator('td[data-label="Attempts"]')
    assert attempts.is_visible()
    assert attempts.evaluate("cell => getComputedStyle(cell).textAlign") == "left"
    opened = card.bounding_box()
    assert closed is not None
    assert opened is not None
    assert closed["height"] < 120 < opened["height"]
    assert not page.get_by_label("Tenant").is_visible()
    page.get_by_label("More filters").check()
    assert page.get_by_label("Tenant").is_visible()
    context.close()


LABELS = """[...document.querySelectorAll(".chart span")].map(span => {
    const box = span.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom, parseFloat(getComputedStyle(span).fontSize)];
})"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_chart_labels_can_be_read(site: Site, chromium: Browser, size: ViewportSize) -> None:
    site.enqueue("shop.send_email", "email", b'{"to": "ada"}')
    site.wait_for("done", 1)
    context = chromium.new_context(viewport=size)
    page = context.new_page()
    page.goto(site.address)
    labels = page.evaluate(LABELS)
    assert len(labels) == 18
    for number, (left, top, right, bottom, font) in enumerate(labels):
        assert font >= 12
        for other_left, other_top, other_right, other_bottom, _ in labels[:number]:
            assert not (
                left < other_right and other_left < right and top < other_bottom and other_top < bottom
            )
    context.close()


def fill(site: Site) -> tuple[str, str]:
    """Fill the store with jobs in every state. Return a dead job and a running one."""
    site.enqueue("shop." + "long_" * 30, "queue-" * 30, b'{"text": "%s"}' % (b"x" * 400), tenant="t" * 90)
    for number in range(40):
        site.enqueue("shop.send_email", "email", b'{"to": "user%d@example.com"}' % number, tenant="acme")
    dead = [
        site.enqueue(
            "shop.import_row", "import", b'{"row": %d, "password": "hunter2"}' % row, headers={"trace": "t-7"}
        )
        for row in range(6)
    ]
    site.wait_for("dead", 6)
    site.wait_for("done", 40)
    running = site.enqueue("shop.resize", "images", b'{"images": 300}')
    site.enqueue("shop.send_email", "email", b'{"to": "later@example.com"}', delay=3600)
    site.enqueue("shop.send_email", "newsletter", b'{"to": "all@example.com"}')
    site.ask(lambda broker: broker.pause("newsletter"))
    site.wait_for("running", 1)
    return dead[-1], running


def test_every_page_fits_a_desktop_and_a_phone(site: Site, chromium: Browser, tmp_path: Path) -> None:
    """Also takes the screenshots for the documentation, into DAYJOB_TEST_SCREENSHOTS."""
    folder = Path(os.environ.get("DAYJOB_TEST_SCREENSHOTS") or tmp_path)
    documentation = DOCUMENTATION.read_text()
    dead, running = fill(site)
    pages = {
        "overview": "/",
        "queue": f"/?queue={'queue-' * 30}",
        "jobs": "/jobs",
        "confirm": "/jobs/confirm?action=cancel&queue=newsletter",
        "job-dead": f"/jobs/{dead}",
        "job-running": f"/jobs/{running}",
        "edit": f"/jobs/{dead}/edit",
        "dead": "/dead",
        "dead-by-error": "/dead?by=error",
        "tasks": "/tasks",
        "schedules": "/schedules",
        "workers": "/workers",
        "operations": "/operations",
    }
    protected = site.start("sqlite:///jobs.db", "--port", "0", "--token", TOKEN, command="dashboard")
    login = site.address_of(protected) + "/login"
    console_errors = ConsoleErrors()
    for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            context = chromium.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
            page = context.new_page()
            console_errors.listen(page)
            for key, address in {
                **{page_name: site.address + path for page_name, path in pages.items()},
                "login": login,
            }.items():
                page.goto(address)
                page.wait_for_function("document.fonts.status === 'loaded'")
                if page.locator("#live").count():
                    shows(page, "#live", "live")
                picture = f"dashboard-{key}-{name}.png"
                if scheme == SCHEMES[name] and picture in documentation:
                    page.evaluate(WITHOUT_PATH)
                    page.screenshot(path=folder / picture)
                page.evaluate("document.querySelectorAll('.more input').forEach(box => box.checked = true)")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= size["width"], (key, name, scheme)
            context.close()
    assert console_errors == []
