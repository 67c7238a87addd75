"""Authentication, CSRF protection, host checks and response headers."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from starlette.routing import Mount, Route

from dayjob import Broker, ConfigError, Limit, Recurring
from dayjob.dashboard import dashboard, throttle
from dayjob.dashboard.app import routes
from dayjob.dashboard.credentials import Credentials
from dayjob.dashboard.sessions import LIFETIME, LOGOUTS_KEY, Sessions
from dayjob.dashboard.throttle import MAX_GAP, MAX_WAIT, LoginThrottle
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
    monkeypatch.setattr(throttle, "FIRST_GAP", 0.0)


async def prepared(broker: Broker, path: str) -> tuple[str, dict[str, str]]:
    """Return the path with the id of a job that the action would change, and the fields it needs."""
    queue = f"queue of {path}"
    [dead] = await make_dead(broker, queue)
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report"))
    await broker.set_limit("api", Limit(running=3))
    if path.endswith("schedules/resume"):
        await broker.pause_schedule("nightly")
    if path.endswith("queues/resume"):
        await broker.pause(queue)
    id = (await make_running(broker, queue)).id if path.endswith("cancel") else dead
    return path.replace("{id}", id), {"queue": queue, "schedule": "nightly", "limit": "api", "rate": "5"}


async def everything(broker: Broker) -> Any:
    """Return everything stored that an action could change."""
    jobs = {job.id: (job.state, job.attempts, job.cancel_requested, job.epoch) for job in await broker.jobs()}
    return jobs, await broker.paused(), await broker.schedules(), await broker.limits()


def test_the_list_of_changing_routes_is_complete() -> None:
    assert len(CHANGING) == 36
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
    browser = browse(broker, hosts=["jobs.example"], token=TOKEN)
    for host in ("jobs.example:443", "JOBS.example"):
        assert (await browser.get("/", headers={**BEARER, "Host": host})).status_code == 200
    assert (await browser.get("/", headers=BEARER)).status_code == 403
    anywhere = browse(broker, hosts=["*"], token=TOKEN)
    assert (await anywhere.get("/", headers={**BEARER, "Host": "x"})).status_code == 200


@pytest.mark.parametrize("hosts", [["*"], ["jobs.example"], ["localhost", "10.0.0.1"]])
async def test_a_host_of_other_machines_needs_a_login(broker: Broker, hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match="allowed without a login: pass token="):
        dashboard(broker, hosts=hosts)
    dashboard(broker, hosts=["localhost", "127.0.0.1", "::1", "[::1]"])


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "203.0.113.9"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "203.0.113.9"},
        {"Forwarded": "for=203.0.113.9"},
        {"Via": "1.1 proxy"},
    ],
)
async def test_without_a_token_forwarded_requests_are_refused(
    broker: Broker, headers: dict[str, str]
) -> None:
    answer = await browse(broker).get("/api/jobs", headers=headers)
    assert answer.status_code == 403
    assert "through a proxy" in answer.json()["error"]
    assert (await browse(broker, token=TOKEN).get("/api/jobs", headers=headers | BEARER)).status_code == 200


async def test_without_a_token_unknown_clients_and_http_1_0_are_refused(broker: Broker) -> None:
    """A Unix socket has no peer address. nginx sends HTTP/1.0 and no header, unless it is configured."""
    app = dashboard(broker)

    def changed(**values: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, **values}, receive, send)

        return call

    assert (await Browser(changed()).get("/jobs")).status_code == 200
    for values in ({"client": None}, {"client": ("", 0)}, {"http_version": "1.0"}):
        assert (await Browser(changed(**values)).get("/jobs")).status_code == 403


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


# The throttle.


async def test_too_many_waiting_tries_of_an_address_are_a_429(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    monkeypatch.setattr(throttle, "FIRST_GAP", 1.0)
    monkeypatch.setattr(throttle, "MAX_WAIT", 0.0)
    wrong = {"Authorization": "Bearer wrong"}
    assert (await browser.client.get("/api/jobs", headers=wrong)).status_code == 401
    answer = await browser.client.get("/api/jobs", headers=BEARER)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "20")
    assert (await browser.get("/jobs")).status_code == 200  # the session needs no try
    await browser.post("/logout")
    assert (await browser.log_in()).status_code == 429


@pytest.fixture
def real_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()


class RecordingClock(ManualClock):
    """Records the waits, and returns from them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return False


@pytest.mark.usefixtures("real_gap")
async def test_failures_slow_an_address_down_and_do_not_lock_it_out() -> None:
    clock = RecordingClock()
    throttle = LoginThrottle(clock)
    for _ in range(6):
        assert await throttle.wait("1.2.3.4")
        if clock.waits:
            clock.advance(clock.waits[-1])
        throttle.record_failure("1.2.3.4")
    assert clock.waits == [0.25, 0.5, 1, 2, MAX_GAP]
    clock.waits.clear()
    assert await throttle.wait("5.6.7.8")
    assert not clock.waits
    assert await throttle.wait("1.2.3.4")
    assert clock.waits == [MAX_GAP]
    clock.advance(61)
    assert await throttle.wait("1.2.3.4")
    assert clock.waits == [MAX_GAP]


@pytest.mark.usefixtures("real_gap")
async def test_parallel_tries_of_an_address_take_turns() -> None:
    clock = RecordingClock()
    throttle = LoginThrottle(clock)
    for _ in range(10):
        throttle.record_failure("1.2.3.4")
    admitted = [await throttle.wait("1.2.3.4") for _ in range(100)]
    turns = int(MAX_WAIT / MAX_GAP)
    assert admitted == [True] * turns + [False] * (100 - turns)
    assert clock.waits == [MAX_GAP * (number + 1) for number in range(turns)]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "client"),
    [
        ([], "198.51.100.1", "127.0.0.1"),
        (["10.0.0.1"], "198.51.100.1", "127.0.0.1"),
        (["127.0.0.1"], "198.51.100.1", "198.51.100.1"),
        (["127.0.0.1"], "6.6.6.6, 198.51.100.1", "198.51.100.1"),
        (["127.0.0.0/8", "10.0.0.0/8"], "6.6.6.6, 198.51.100.1, 10.1.2.3", "198.51.100.1"),
        (["127.0.0.1"], "198.51.100.1:4711", "198.51.100.1"),
        (["127.0.0.1"], "[2001:db8::1]:4711", "2001:db8::1"),
        (["127.0.0.1"], "2001:db8::1", "2001:db8::1"),
        (["127.0.0.1"], "x on 'q': paused", "127.0.0.1"),
        (["127.0.0.1"], "", "127.0.0.1"),
    ],
)
async def test_failures_count_for_the_client_that_a_named_proxy_forwards_for(
    broker: Broker, caplog: pytest.LogCaptureFixture, proxies: list[str], forwarded: str, client: str
) -> None:
    browser = browse(broker, token=TOKEN, proxies=proxies)
    headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": forwarded}
    assert (await browser.client.get("/api/jobs", headers=headers)).status_code == 401
    assert f"login by anonymous from {client}: refused" in caplog.text


@pytest.mark.parametrize(("proxies", "secure"), [(["127.0.0.1"], True), ([], False)])
async def test_the_scheme_counts_from_a_named_proxy_only(
    broker: Broker, proxies: list[str], secure: bool
) -> None:
    browser = browse(broker, token=TOKEN, proxies=proxies)
    answer = await browser.get("/login", headers={"X-Forwarded-Proto": "https"})
    assert ("secure" in answer.headers["set-cookie"].lower()) == secure


@pytest.mark.parametrize("proxies", [["nginx"], [""], "127.0.0.1"])
async def test_a_proxy_is_named_by_its_address(broker: Broker, proxies: Any) -> None:
    with pytest.raises(ConfigError, match="address"):
        dashboard(broker, proxies=proxies)


# Sessions.


async def test_a_stranger_gets_nothing_that_depends_on_a_secret(broker: Broker) -> None:
    """A signature would let a stranger test guesses of the secret without further requests."""
    given: list[dict[str, Any]] = [{"token": TOKEN}, {"token": TOKEN[::-1]}, {"basic": "ada:lovelace"}, {}]
    for options in given:
        sessions = Sessions(Credentials(**options))
        browser = browse(broker, **options)
        answer = await browser.get("/login")
        [name, value] = answer.headers["set-cookie"].partition(";")[0].split("=")
        assert name == (await browse(broker).get("/jobs")).headers["set-cookie"].partition("=")[0]
        found = Sessions(Credentials()).from_text(value)
        assert found is not None
        assert sessions.csrf(found) == Sessions(Credentials()).csrf(found)


async def test_a_logout_ends_the_session_in_every_process(broker: Broker) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    stolen = dict(browser.client.cookies)
    here, there = Browser(browser.app), browse(broker, token=TOKEN)
    here.client.cookies.update(stolen)
    there.client.cookies.update(stolen)
    assert (await there.get("/jobs")).status_code == 200
    await browser.post("/logout")
    assert (await here.get("/jobs")).status_code == 303
    assert (await there.get("/jobs")).status_code == 303
    await broker.kv_put(LOGOUTS_KEY, b"damaged")
    assert (await there.get("/jobs")).status_code == 303
    await browser.log_in()
    assert (await browser.get("/jobs")).status_code == 200


def test_a_session_expires_and_cannot_be_forged() -> None:
    clock = ManualClock()
    sessions = Sessions(Credentials(TOKEN, {"ada": "x" * 16}), clock)
    text = sessions.to_text(sessions.new("token"))
    assert sessions.from_text(text) is not None
    for other in (Credentials(TOKEN[::-1]), Credentials({"admin": TOKEN}), Credentials()):
        assert Sessions(other, clock).from_text(text) is None
    more = text.replace(".token.", ".ada."), text.replace(".", ".9", 1)
    for forged in ("", ".", "...", text[:-1], *more, "x" + text, text + "ö", text.rpartition(".")[0]):
        assert sessions.from_text(forged) is None
    clock.advance(LIFETIME + 1)
    assert sessions.from_text(text) is None


async def test_sessions_are_valid_in_every_process_with_the_same_token_only(
    broker: Broker,
) -> None:
    browser = browse(broker, token=TOKEN)
    await browser.log_in()
    for app, code in (
        (dashboard(broker, token=TOKEN), 200),
        (dashboard(broker, token="a new token, long enough"), 303),
    ):
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
