"""Log in with the token, and log out."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dayjob.dashboard.rendering import page, url
from dayjob.dashboard.security import Guard, Refused, context_of

_LOCAL_PATH = re.compile(r"/(?![/\\])[\w/?&=%.~+-]*", re.ASCII)
"""A path of this dashboard, never a URL of another site."""


async def login_form(request: Request) -> Response:
    if not _guard(request).asks_for_token or context_of(request).logged_in:
        return RedirectResponse(url(request, "/"), 303)
    return _form(request)


async def log_in(request: Request) -> Response:
    guard, fields = _guard(request), context_of(request).fields
    try:
        session = await guard.log_in(request, fields.get("token", ""))
    except Refused as refused:
        answer = _form(request, refused.status, str(refused))
        answer.headers.update(refused.headers)
        return answer
    answer = RedirectResponse(_target(request, fields.get("next", "")), 303)
    answer.headers["set-cookie"] = guard.cookie(request, session)
    return answer


async def log_out(request: Request) -> Response:
    guard = _guard(request)
    await guard.log_out(request)
    answer = RedirectResponse(url(request, "/login", message="logged-out"), 303)
    answer.headers["set-cookie"] = guard.cookie(request, None)
    return answer


def _form(request: Request, status: int = 200, problem: str | None = None) -> Response:
    following = request.query_params.get("next") or context_of(request).fields.get("next", "")
    following = following if _LOCAL_PATH.fullmatch(following) else ""
    return page(request, "login.html", status, problem=problem, following=following)


def _target(request: Request, following: str) -> str:
    root = url(request, "/").removesuffix("/")
    return root + following if _LOCAL_PATH.fullmatch(following) else url(request, "/")


def _guard(request: Request) -> Guard:
    guard: Guard = request.app.state.guard
    return guard
