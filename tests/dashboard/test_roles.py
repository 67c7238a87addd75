"""Rights to read and to act: tokens by name, an application's own check, and every route for each role."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Route

from dayjob import Broker, ConfigError
from dayjob.dashboard import User, dashboard
from dayjob.dashboard.app import routes
from dayjob.dashboard.credentials import MIN_TOKEN_CHARACTERS, named_tokens, new_token
from tests.dashboard.browsing import Browser, browse, make_dead
from tests.dashboard.test_security import CHANGING, LOGIN_PATHS, everything, prepared

ACT, READ = "the token of an operator", "the token of a reader"
TOKENS: dict[str, Any] = {"token": {"ops": ACT, "ada": ACT[::-1]}, "read_token": {"auditor": READ}}
OPEN = {"/login", "/healthz"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_read_token_reads_and_can_not_act(broker: Broker) -> None:
    browser = browse(broker, **TOKENS)
    await browser.log_in(READ)
    for path in ("/", "/jobs", "/dead", "/tasks", "/schedules", "/limits", "/workers", "/operations"):
        text = await browser.text(path)
        assert 'method="post"' not in text.replace('method="post" action="/logout"', "")
        assert "read-only" in text
    for path in CHANGING:
        if path not in LOGIN_PATHS:
            target, fields = await prepared(broker, path)
            before = await everything(broker)
            for answer in (
                await browser.post(target, fields),
                await browser.client.post(target, data=fields, headers=bearer(READ)),
            ):
                assert answer.status_code == 403, path
                assert "You may read, but not act" in answer.text
            assert await everything(broker) == before, path


async def test_the_audit_log_has_the_name_of_the_token(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dayjob.audit")
    browser = browse(broker, **TOKENS)
    for token in (ACT, ACT[::-1]):
        await browser.client.post("/api/queues/pause", json={"queue": "email"}, headers=bearer(token))
    await browser.log_in(READ)
    for line in ("queue.pause by ops", "queue.pause by ada", "login by auditor"):
        assert f"{line} from 127.0.0.1" in caplog.text


async def test_a_session_ends_when_its_token_is_removed(broker: Broker) -> None:
    browser = browse(broker, **TOKENS)
    await browser.log_in(ACT)
    for options, code in (
        (TOKENS, 200),
        (TOKENS | {"read_token": None}, 200),  # Another token does not matter.
        (TOKENS | {"token": {"ada": ACT[::-1]}}, 303),
        (TOKENS | {"token": {"ops": ACT[::-1]}}, 303),
    ):
        other = browse(broker, **options)
        other.client.cookies = browser.client.cookies
        assert (await other.get("/jobs")).status_code == code


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_application_checks_its_own_users(broker: Broker, is_async: bool) -> None:
    def user(request: Request) -> User | None:
        name = request.cookies.get("shop-user")
        return None if name is None else User(name, may_act=name == "ada")

    async def later(request: Request) -> User | None:
        return user(request)

    def browser_of(name: str | None) -> Browser:
        made = Browser(
            dashboard(broker, authorize=later if is_async else user), "https://shop.example", dashboard=None
        )
        if name is not None:
            made.client.cookies.set("shop-user", name, domain="shop.example")
        return made

    assert (await browser_of(None).get("/jobs")).status_code == 401
    ada, bob = browser_of("ada"), browser_of("bob")
    for browser, code in ((ada, 303), (bob, 403)):
        [id] = await make_dead(broker)
        assert (await browser.get(f"/jobs/{id}")).status_code == 200
        without_csrf = await browser.client.post(f"/jobs/{id}/requeue")
        assert without_csrf.status_code == 403
        cookie = next(value for name, value in browser.client.cookies.items() if name.startswith("dayjob"))
        sessions = browser.app._guard._sessions
        browser.csrf = sessions.csrf(sessions.from_text(cookie))
        assert (await browser.post(f"/jobs/{id}/requeue")).status_code == code


async def test_a_check_that_returns_something_else_admits_no_user(broker: Broker) -> None:
    wrong: Any = lambda request: True  # noqa: E731
    with pytest.raises(ConfigError, match=r"authorize returned True: return a dayjob\.dashboard\.User"):
        await browse(broker, authorize=wrong).get("/jobs")


# Every route, with every method, for each role.

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
STREAMS = {route.path for route in routes() if isinstance(route, Route) and "events" in route.path}


@pytest.mark.parametrize("role", ["stranger", "reader", "reader's session", "operator without CSRF token"])
async def test_every_route_refuses_the_methods_that_a_role_may_not_use(broker: Broker, role: str) -> None:
    browser = browse(broker, **TOKENS)
    headers: dict[str, str] = {}
    if role == "reader":
        headers = bearer(READ)
    elif role != "stranger":
        await browser.log_in(READ if "reader" in role else ACT)
    [dead] = await make_dead(broker, "a-secret-queue")
    paths = {route.path for route in routes() if isinstance(route, Route)} - STREAMS - {"/logout"}
    before = await everything(broker)
    for path in sorted(paths, key=lambda path: (path in LOGIN_PATHS, path)):  # A failed login slows the rest.
        for method in METHODS:
            target = path.replace("{id}", dead)
            answer = await browser.client.request(method, target, headers=headers)
            case = (method, path, answer.status_code)
            assert answer.status_code < 500, case
            if role == "stranger":
                assert "a-secret-queue" not in answer.text, case
                assert answer.status_code in (303, 401, 403, 405) or path in OPEN, case
            elif method not in ("GET", "HEAD") and path not in LOGIN_PATHS:
                assert answer.status_code in (403, 405), case
    assert await everything(broker) == before


# Names and secrets.


def test_texts_with_and_without_a_name() -> None:
    long = "x" * MIN_TOKEN_CHARACTERS
    assert named_tokens([], "token") == {}
    assert named_tokens(["", " "], "token") == {}
    assert named_tokens([long], "token") == {"token": long}
    assert named_tokens([f"ada={long}", long], "token") == {"ada": long, "token-2": long}
    assert named_tokens([f"{long}=", f"{long}=="], "token") == {"token": f"{long}=", "token-2": f"{long}=="}
    with pytest.raises(ConfigError, match="two tokens have the name 'ada'"):
        named_tokens([f"ada={long}", f"ada={long}"], "token")
    assert len(new_token()) >= MIN_TOKEN_CHARACTERS


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"token": ""}, "fewer than 16 characters"),
        ({"token": " " * 20}, "fewer than 16 characters"),
        ({"token": "x" * 15}, "dayjob dashboard --new-token"),
        ({"read_token": "x" * 15}, "fewer than 16 characters"),
        ({"token": {"a.b": "x" * 16}}, "the token name 'a.b' is invalid"),
        ({"token": {"a\n": "x" * 16}}, "is invalid"),
        ({"token": {"": "x" * 16}}, "is invalid"),
        ({"token": {"ada": "x" * 16}, "read_token": {"ada": "y" * 16}}, "two tokens have the name 'ada'"),
    ],
)
def test_unusable_tokens_are_refused(broker: Broker, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        dashboard(broker, **options)
