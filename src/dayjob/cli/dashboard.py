"""``dayjob dashboard``, and the dashboard of ``dayjob worker --dashboard``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import asdict

from dayjob.app import App
from dayjob.cli.logging_setup import configure
from dayjob.cli.output import print_line
from dayjob.cli.store_command import StoreCommand, opened_url
from dayjob.engines.registry import ENGINES, parse, without_password
from dayjob.errors import ConfigError
from dayjob.inspect.redaction import DEFAULT

if TYPE_CHECKING:
    from dayjob.dashboard.server import InThread

_log = logging.getLogger("dayjob.dashboard")

TOKEN_VARIABLE = "DAYJOB_DASHBOARD_TOKEN"
READ_TOKEN_VARIABLE = "DAYJOB_DASHBOARD_READ_TOKEN"
BASIC_VARIABLE = "DAYJOB_DASHBOARD_BASIC"
MISSING = "the dashboard needs {}, which is not installed: run  pip install 'dayjob[dashboard]'"


class Secrets(Struct):
    """The credentials of the command line or of the environment, as ``dashboard`` takes them."""

    token: dict[str, str]
    read_token: dict[str, str]
    basic: str | None

    def __bool__(self) -> bool:
        return bool(self.token or self.read_token or self.basic)


def _secrets(
    tokens: Sequence[str] = (), read_tokens: Sequence[str] = (), basic: str | None = None
) -> Secrets:
    from dayjob.dashboard.credentials import named_tokens

    return Secrets(
        named_tokens(tokens or _variable(TOKEN_VARIABLE).split(","), "token"),
        named_tokens(read_tokens or _variable(READ_TOKEN_VARIABLE).split(","), "reader"),
        basic or _variable(BASIC_VARIABLE) or None,
    )


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is not None and not value.strip():
        raise ConfigError(f"{name} is empty: set it, or remove it from the environment")
    return value or ""


def _print_new_token(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        _check_installed()
        from dayjob.dashboard.credentials import new_token

        print_line(new_token())
        context.exit()


@click.command(cls=StoreCommand)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="The address to listen on. Any other than loopback needs --token or --basic.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8787, show_default=True, metavar="PORT",
    help="The port to listen on; 0 chooses a free one.",
)  # fmt: skip
@click.option(
    "--token", multiple=True, metavar="[NAME=]TEXT",
    help=f"A token to log in with, also for API requests. Better in {TOKEN_VARIABLE}, separated by commas: "
    "other users can't see the environment. Default: a new one for each start, which the log shows.",
)  # fmt: skip
@click.option(
    "--read-token", multiple=True, metavar="[NAME=]TEXT",
    help=f"A token that may read and not act. Better in {READ_TOKEN_VARIABLE}.",
)  # fmt: skip
@click.option(
    "--basic", metavar="USER:PASSWORD",
    help="Require this user and password, instead of the token or as an alternative. "
    f"Better in {BASIC_VARIABLE}.",
)  # fmt: skip
@click.option(
    "--no-login", is_flag=True,
    help="Require no login. Only direct requests of clients on this machine are answered.",
)  # fmt: skip
@click.option(
    "--new-token", is_flag=True, is_eager=True, expose_value=False, callback=_print_new_token,
    help="Print a token that can't be guessed, and exit.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--redact", metavar="PATTERN", default=DEFAULT,
    help="Hide the values of headers and arguments whose names match this regular expression. "
    "Default: names that look like secrets; '' hides nothing.",
)  # fmt: skip
@click.option(
    "--allow-host", multiple=True, metavar="NAME",
    help="Accept requests for this host name too, as behind a reverse proxy. Needs a token. May be repeated.",
)  # fmt: skip
@click.option(
    "--proxy", multiple=True, metavar="ADDRESS",
    help="The address or network of a reverse proxy: its X-Forwarded-For and X-Forwarded-Proto count. "
    "May be repeated.",
)  # fmt: skip
@click.option(
    "--root-path", default="", metavar="PATH",
    help="The path under which a reverse proxy serves it, if the proxy strips that path.",
)  # fmt: skip
def dashboard(
    url: str, host: str, port: int, token: tuple[str, ...], read_token: tuple[str, ...], basic: str | None,
    no_login: bool, read_only: bool, redact: str, allow_host: tuple[str, ...], proxy: tuple[str, ...],
    root_path: str,
) -> None:  # fmt: skip
    """Serve the dashboard of a store: its queues, jobs, dead letters, schedules and workers.

    \b
    Examples:
      dayjob dashboard sqlite:///jobs.db
      dayjob dashboard --read-only --port 9000        on the store of DAYJOB_URL
      DAYJOB_DASHBOARD_TOKEN=... dayjob dashboard --host 0.0.0.0
    """
    _check_installed()
    from dayjob.dashboard import dashboard as make
    from dayjob.dashboard.server import LOOPBACK, Server, bind, binds_loopback

    loopback = binds_loopback(host)
    secrets = _secrets(token, read_token, basic)
    if no_login and (secrets or not loopback or allow_host or proxy):
        raise click.UsageError(
            "--no-login answers direct requests of this machine only: leave out --token, --read-token, "
            "--basic, --allow-host, --proxy and --host"
        )
    if not secrets and not loopback:
        raise click.UsageError(
            f"--host {host}: other machines can reach that address, so set --token (or {TOKEN_VARIABLE}), "
            "or --basic USER:PASSWORD"
        )
    if not secrets and allow_host:
        raise click.UsageError(
            f"--allow-host {allow_host[0]}: other machines can reach it, so set --token "
            f"(or {TOKEN_VARIABLE}), or --basic USER:PASSWORD"
        )
    if root_path and not root_path.startswith("/"):
        raise click.UsageError(f"--root-path {root_path}: it must begin with /")
    configure("info", "text")
    if not read_only and ENGINES[parse(url).parts.scheme].extra == "slatedb":
        read_only = True
        _log.warning(
            "object storage allows one writer, so this dashboard is read-only: "
            "use dayjob worker --dashboard for one that can change jobs"
        )
    hosts = (*LOOPBACK, host, *allow_host) if loopback else allow_host or None
    link = "" if secrets or no_login else _login_link(secrets)
    site = make(
        opened_url(url, writes=False), **asdict(secrets), read_only=read_only, redact=redact, hosts=hosts,
        proxies=proxy,
    )  # fmt: skip
    listening = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}{root_path}/"

    async def serve() -> None:
        try:
            await site.open()
            _log.info("the dashboard of %s is on %s", without_password(url), address + link)
            await Server(site, root_path).serve(sockets=[listening])
        finally:
            await site.close()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def serve_with(app: App, port: int) -> InThread:
    """Start the dashboard of a worker's app on the loopback address. The environment has its credentials."""
    _check_installed()
    from dayjob.dashboard import dashboard as make
    from dayjob.dashboard.server import LOOPBACK, InThread, bind

    try:
        secrets = _secrets()
        link = "" if secrets else _login_link(secrets)
        site = make(app, **asdict(secrets), hosts=LOOPBACK)
        listening = bind("127.0.0.1", port)
    except ConfigError as error:
        raise click.UsageError(f"--dashboard {port}: {error}") from error
    serving = InThread(app, site, listening)
    serving.start()
    _log.info("the dashboard is on http://127.0.0.1:%d/%s", listening.getsockname()[1], link)
    return serving


def _login_link(secrets: Secrets) -> str:
    """Make a token for this start. Return the path that logs in with it. Browsers don't send its fragment."""
    from dayjob.dashboard.credentials import new_token

    made = new_token()
    secrets.token["link"] = made
    return f"login#{made}"


def _check_installed() -> None:
    try:
        for name in ("jinja2", "starlette", "uvicorn"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise click.UsageError(MISSING.format(error.name)) from error
