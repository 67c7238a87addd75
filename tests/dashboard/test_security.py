"""Authentication, CSRF protection, host checks and response headers."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from starlette.routing import Mount, Route

from dayjob import Broker, ConfigError, Recurring
from dayjob.dashboard import authentication, dashboard
from dayjob.dashboard.app import routes
from dayjob.dashboard.authentication import LIFETIME, Sessions
from dayjob.testing import ManualClock
from tests.dashboard.browsing import BASE, BEARER, TOKEN, Browser, browse, make_dead, make_running

CHANGING = sorted(
    route.path
    for route in routes()
    if isinstance(route, Route) and not (route.methods or set()) <= {"GET", "HEAD"}
)
"""The paths of all routes that accept other methods than GET, read from the routes."""

LOGIN_PATHS = {"/login", "/logout"}


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "FAILURE_DELAY", 0.0)


async def prepared(broker: Broker, path: str) -> tuple[str, dict[str, str]]:
    """Return the path with the id of a job that the action would change, and the fields it needs."""
    queue = f"queue of {path}"
    [dead] = await make_dead(broker, queue)
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
    if path.endswith("schedules/resume"):
        await broker.pause_schedule("nightly")
    if path.endswith("queues/resume"):
        await broker.pause(queue)
    id = (await make_running(broker, queue)).id if path.endswith("cancel") else dead
    return path.replace("{id}", id), {"queue": queue, "schedule": "nightly"}


async def everything(broker: Broker) -> Any:
    """Return everything stored that an action could change."""
    jobs = {job.id: (job.state, job.attempts, job.cancel_requested, job.epoch) for job in await broker.jobs()}
    return jobs, await broker.paused(), await broker.schedules()


def test_the_list_of_changing_routes_is_complete() -> None:
    assert len(CHANGING) == 32
    assert all(isinstance(route, Route | Mount) for route in routes())


async def test_with_cookie_and_csrf_token_each_action_changes_something(broker: Broker) -> None:
    """Proves that the tests of forged requests would detect a change."""
    browser = browse(broker)
    for path in CHANGING:
        if path not in LOGIN_PATHS and not path.endswith("/operations/stop"):
            target, fields = await prepared(broker, path)
            before = await everything(broker)
            headers = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
            answer = await browser.post(target, fields, headers=headers)
            assert answer.status_code in (200, 303), answer.text
            assert await everything(broker) != before, path


ATTACKS = (
    "nothing", "cookie alone", "token alone", "another session's token", "a forged cookie", "cross-site",
    "same-site", "another origin", "no origin", "another port", "another host",
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_forged_request_changes_nothing(broker: Broker, attack: str) -> None:
    browser, other = browse(broker), browse(broker)
    await broker.enqueue("email")
    await browser.get("/")
    await other.get("/")
    csrf, headers = {"csrf": browser.csrf}, {"Accept": "text/html"}
    match attack:
        case "nothing":
            browser.client.cookies.clear()
            csrf.clear()
        case "cookie alone":
            csrf.clear()
        case "token alone":
            browser.client.cookies.clear()
        case "another session's token":
            csrf = {"csrf": other.csrf}
        case "a forged cookie":
            [name] = browser.client.cookies
            browser.client.cookies.clear()
            browser.client.cookies.set(name, f"mine.99999999999.1.{'0' * 64}")
        case "cross-site" | "same-site":
            headers["Sec-Fetch-Site"] = attack
        case "another origin":
            headers["Origin"] = "https://evil.example"
        case "no origin":
            headers["Origin"] = "null"
        case "another port":
            headers["Origin"] = "http://127.0.0.1:3000"
        case "another host":
            headers["Host"] = "evil.example"
    assert other.csrf != browser.csrf != ""
    for path in CHANGING:
        target, fields = await prepared(broker, path)
        before = await everything(broker)
        answer = await browser.client.post(target, data={**csrf, **fields}, headers=headers)
        assert answer.status_code == 403, (path, answer.status_code, answer.text)
        assert await everything(broker) == before, path


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_change_nothing(broker: Broker, method: str) -> None:
    browser = browse(broker)
    path, _ = await prepared(broker, "/jobs/{id}/requeue")
    before = await everything(broker)
    answer = await browser.client.request(method, path)
    assert answer.status_code in (403, 405)
    assert await everything(broker) == before


async def test_read_only_mode_refuses_every_action(broker: Broker) -> None:
    browser = browse(broker, read_only=True, token=TOKEN)
    await browser.log_in()
    for path in CHANGING:
        if path not in LOGIN_PATHS and not path.endswith("/operations/stop"):
            target, fields = await prepared(broker, path)
            before = await everything(broker)
            answer = await browser.post(target, fields)
            assert answer.status_code == 403, path
            assert "read-only" in answer.text
            assert (await browser.client.post(target, data=fields, headers=BEARER)).status_code == 403
            assert await everything(broker) == before, path


async def test_read_only_pages_have_no_forms(broker: Broker) -> None:
    browser = browse(broker, read_only=True)
    [dead] = await make_dead(broker)
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
    for path in ("/", "/dead", "/dead?by=error", "/schedules", f"/jobs/{dead}"):
        assert 'method="post"' not in await browser.text(path)


# Headers.


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/login", "/nothing", "/api/jobs", "/healthz", "/static/dashboard.js"]
)
async def test_every_response_has_the_security_headers(broker: Broker, path: str) -> None:
    answer = await browse(broker).get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert ("no-store" in answer.headers["cache-control"]) == (not path.startswith("/static/"))


async def test_no_page_has_inline_script_or_style(broker: Broker) -> None:
    browser = browse(broker)
    [dead] = await make_dead(broker)
    await make_running(broker)
    for path in ("/", "/jobs", "/dead", "/dead?by=error", "/schedules", "/workers", f"/jobs/{dead}"):
        text = await browser.text(path)
        assert " style=" not in text
        assert "<style" not in text
        assert text.count("<script") == 1
        assert '<script src="/static/dashboard.js?v=' in text
        assert " onclick" not in text
        assert "http://" not in text.replace("http://www.w3.org", "")


async def test_static_paths_cannot_leave_their_folder(broker: Broker) -> None:
    browser = browse(broker)
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"):
        assert (await browser.get(path)).status_code in (404, 405)


# Hosts.


@pytest.mark.parametrize("host", ["localhost", "localhost:8787", "127.0.0.1", "127.5.5.5:1", "[::1]:8787"])
async def test_without_a_token_loopback_hosts_are_allowed(broker: Broker, host: str) -> None:
    answer = await browse(broker).get("/jobs", headers={"Host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil", "[", "a b"]
)
async def test_without_a_token_other_hosts_are_refused(broker: Broker, host: str) -> None:
    answer = await browse(broker).get("/api/jobs", headers={"Host": host})
    assert answer.status_code == 403
    assert "jobs" not in answer.json()


async def test_without_a_token_other_machines_are_refused(broker: Broker) -> None:
    transport = httpx.ASGITransport(app=dashboard(broker), client=("10.1.2.3", 4))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        assert (await client.get("/api/jobs")).status_code == 403
    transport = httpx.ASGITransport(app=dashboard(broker, token=TOKEN), client=("10.1.2.3", 4))
    async with httpx.AsyncClient(transport=transport, base_url="https://jobs.example") as client:
        assert (await client.get("/api/jobs", headers=BEARER)).status_code == 200


@pytest.mark.parametrize("host", ["[", "a b", "", "]:x", "evil\\.example"])
async def test_a_malformed_host_header_is_handled(broker: Broker, host: str) -> None:
    browser = browse(broker, token=TOKEN)
    for path, code in (("/jobs", 303), ("/login", 200), ("/api/jobs", 401), ("/nothing", 303)):
        assert (await browser.get(path, headers={"Host": host})).status_code == code
    headers = {"Host": host, "Origin": "http://["}
    assert (await browser.client.post("/login", headers=headers)).status_code == 403
    answer = await browser.client.post(
        "/api/queues/pause", headers={**BEARER, **headers}, json={"queue": "q"}
    )
    assert answer.status_code == 403


async def test_only_listed_hosts_are_allowed(broker: Broker) -> None:
    browser = browse(broker, hosts=["jobs.example"])
    assert (await browser.get("/", headers={"Host": "jobs.example:443"})).status_code == 200
    assert (await browser.get("/", headers={"Host": "JOBS.example"})).status_code == 200
    assert (await browser.get("/")).status_code == 403
    assert (await browse(broker, hosts=["*"]).get("/", headers={"Host": "x"})).status_code == 200


# Identity.

PRIVATE = sorted(
    {
        route.path.replace("{id}", "x").replace("{topic}", "overview")
        for route in routes()
        if isinstance(route, Route)
    }
    - {"/login", "/healthz"}
)


@pytest.mark.parametrize(
    "options", [{"token": TOKEN}, {"basic": "ada:secret"}, {"token": TOKEN, "basic": ("a", "b")}]
)
async def test_with_credentials_anonymous_requests_see_nothing(
    broker: Broker, options: dict[str, Any]
) -> None:
    browser = browse(broker, **options)
    await broker.enqueue("a-secret-queue")
    assert len(PRIVATE) > 30
    for path in PRIVATE:
        answer = await browser.client.request("POST" if path in CHANGING else "GET", path)
        assert answer.status_code in (303, 401), path
        assert "a-secret-queue" not in answer.text
        assert "sqlite" not in answer.text
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/login?next=%2F")
        else:
            assert answer.headers["www-authenticate"].startswith("Bearer" if "token" in options else "Basic")


async def test_a_login_with_the_token_sets_a_session_cookie(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    answer = await browser.get("/jobs?state=dead")
    assert answer.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Ddead"
    assert 'value="/jobs?state=dead"' in await browser.text(answer.headers["location"])
    answer = await browser.post("/login", {"token": TOKEN, "next": "/jobs?state=dead"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/;" in cookie
    assert "secure" not in cookie
    assert TOKEN not in cookie
    assert "Log out" in await browser.text("/jobs")
    answer = await browser.post("/logout")
    assert answer.headers["location"].startswith("/login")
    assert (await browser.get("/jobs")).status_code == 303


async def test_over_https_the_cookie_is_secure(broker: Broker) -> None:
    browser = Browser(dashboard(broker, token=TOKEN), "https://jobs.example")
    answer = await browser.log_in()
    assert "secure" in answer.headers["set-cookie"].lower()
    assert (await browser.get("/jobs")).status_code == 200


@pytest.mark.parametrize("wrong", ["", "wrong", TOKEN + "x", TOKEN[:-1], "ö", "\udcff"])
async def test_a_wrong_token_is_refused(broker: Broker, wrong: str) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.get("/login")
    answer = await browser.post("/login", {"token": wrong.encode(errors="replace").decode()})
    assert answer.status_code == 401
    assert "Wrong token." in answer.text
    assert (await browser.get("/jobs")).status_code == 303


@pytest.mark.parametrize(
    "following",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\evil",
        "/jobs\r\nX: y",
        "javascript:alert(1)",
    ],
)
async def test_a_login_never_redirects_to_another_site(broker: Broker, following: str) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.get("/login")
    answer = await browser.post("/login", {"token": TOKEN, "next": following})
    assert answer.headers["location"] == "/"


async def test_the_bearer_token_authenticates_api_requests(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    [id] = await make_dead(broker)
    for wrong in ("Bearer wrong", "Bearer ", "Basic eDp5", "Nonsense", "bearer"):
        answer = await browser.client.get("/api/jobs", headers={"Authorization": wrong})
        assert answer.status_code == 401, wrong
    answer = await browser.client.post(f"/api/jobs/{id}/requeue", headers=BEARER)
    assert answer.json() == {"ok": True, "code": "requeued", "id": id, "requeued": True}
    answer = await browser.client.post(f"/api/jobs/{id}/requeue", headers=BEARER)
    assert answer.status_code == 409
    forged = await browser.client.post(
        f"/api/jobs/{id}/cancel", headers={**BEARER, "Origin": "https://evil.example"}
    )
    assert forged.status_code == 403


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_basic_credentials_authenticate(broker: Broker) -> None:
    browser = browse(broker, basic="ada:love:lace")
    assert (await browser.get("/jobs")).status_code == 401
    for wrong in (
        basic("ada", "x"),
        basic("bob", "love:lace"),
        basic("", ""),
        {"Authorization": "Basic ???"},
    ):
        assert (await browser.get("/jobs", headers=wrong)).status_code == 401
    right = basic("ada", "love:lace")
    assert (await browser.get("/jobs", headers=right)).status_code == 200


async def test_basic_credentials_do_not_replace_the_csrf_token(
    broker: Broker,
) -> None:
    browser = browse(broker, basic="ada:lovelace")
    right = basic("ada", "lovelace")
    [id] = await make_dead(broker)
    assert (await browser.client.post(f"/jobs/{id}/requeue", headers=right)).status_code == 403
    await browser.get("/dead", headers=right)
    assert (await browser.post(f"/jobs/{id}/requeue", headers=right)).status_code == 303


async def test_too_many_failed_logins_of_an_address_are_a_429(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    wrong = {"Authorization": "Bearer wrong"}
    codes = [(await browser.client.get("/api/jobs", headers=wrong)).status_code for _ in range(12)]
    assert codes == [401] * 10 + [429] * 2
    answer = await browser.client.get("/api/jobs", headers=BEARER)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert (await browser.get("/jobs")).status_code == 200
    await browser.post("/logout")
    assert (await browser.log_in()).status_code == 429


async def test_the_login_throttle_forgets_failures_after_a_minute() -> None:
    clock = ManualClock()
    throttle = authentication.LoginThrottle(clock)
    for _ in range(12):
        await throttle.record_failure("1.2.3.4")
    assert throttle.is_blocked("1.2.3.4")
    assert not throttle.is_blocked("5.6.7.8")
    clock.advance(61)
    assert not throttle.is_blocked("1.2.3.4")


def test_a_session_expires_and_cannot_be_forged() -> None:
    clock = ManualClock()
    sessions = Sessions(b"key", clock)
    text = sessions.to_text(sessions.new(logged_in=True))
    assert sessions.from_text(text) is not None
    assert Sessions(b"other", clock).from_text(text) is None
    for forged in ("", ".", "...", text[:-1], text.replace(".1.", ".0."), "x" + text, text + "ö"):
        assert sessions.from_text(forged) is None
    clock.advance(LIFETIME + 1)
    assert sessions.from_text(text) is None


async def test_sessions_are_valid_in_every_process_with_the_same_token_only(
    broker: Broker,
) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    for app, code in ((dashboard(broker, token=TOKEN), 200), (dashboard(broker, token="new"), 303)):
        other = Browser(app)
        other.client.cookies = browser.client.cookies
        assert (await other.get("/jobs")).status_code == code


async def test_healthz_gives_the_reason_to_logged_in_users_only(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    answer = await browser.client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    answer = await browser.client.get("/healthz", headers=BEARER)
    assert answer.json()["round_trip_seconds"] >= 0
    await broker.close()
    answer = await browse(broker, token=TOKEN).client.get("/healthz")
    assert answer.status_code in (200, 503)


@pytest.mark.parametrize(
    "options",
    [
        {"token": ""},
        {"token": " "},
        {"basic": "ada"},
        {"basic": ":x"},
        {"basic": "x:"},
        {"redact": "("},
        {"hosts": "x"},
    ],
)
def test_invalid_options_raise_a_config_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        dashboard("memory://", **options)


def test_a_source_must_be_an_app_a_broker_or_a_url() -> None:
    with pytest.raises(ConfigError, match="pass an App, a Broker or a URL"):
        dashboard(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names no known engine"):
        dashboard("nonsense://")


async def test_oversized_and_malformed_forms_are_refused(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    for body, kind, code in (
        (b"x" * 70_000, "application/x-www-form-urlencoded", 413),
        (b"queue=a", "text/plain", 415),
        (b"[1]", "application/json", 400),
        (b'{"queue": 1}', "application/json", 400),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"a=1&" * 50, "application/x-www-form-urlencoded", 400),
    ):
        headers = {**BEARER, "Content-Type": kind}
        answer = await browser.client.post("/api/queues/pause", content=body, headers=headers)
        assert answer.status_code == code, (body[:20], answer.text)
    assert await broker.paused() == set()
