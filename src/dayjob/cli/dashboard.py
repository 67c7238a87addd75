"""``dayjob dashboard``, and the dashboard of ``dayjob worker --dashboard``."""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

import click

from dayjob.app import App
from dayjob.cli.logging_setup import configure
from dayjob.cli.store import StoreCommand, opened_url
from dayjob.engines.registry import ENGINES, parse, without_password
from dayjob.errors import ConfigError
from dayjob.inspect.redaction import DEFAULT

if TYPE_CHECKING:
    from dayjob.dashboard import Dashboard
    from dayjob.dashboard.server import InThread

_log = logging.getLogger("dayjob.dashboard")

TOKEN_VARIABLE = "DAYJOB_DASHBOARD_TOKEN"
MISSING = "the dashboard needs {}, which is not installed: run  pip install 'dayjob[dashboard]'"


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
    "--token", envvar=TOKEN_VARIABLE, show_envvar=True, metavar="TEXT",
    help="The token to log in with, also for API requests. Other users can't see it in the environment.",
)  # fmt: skip
@click.option(
    "--basic", envvar="DAYJOB_DASHBOARD_BASIC", show_envvar=True, metavar="USER:PASSWORD",
    help="Require this user and password, instead of the token or as an alternative.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--redact", metavar="PATTERN", default=DEFAULT,
    help="Hide the values of headers and arguments whose names match this regular expression. "
    "Default: names that look like secrets; '' hides nothing.",
)  # fmt: skip
@click.option(
    "--allow-host", multiple=True, metavar="NAME",
    help="Accept requests for this host name too, as behind a reverse proxy. May be repeated.",
)  # fmt: skip
@click.option(
    "--root-path", default="", metavar="PATH",
    help="The path under which a reverse proxy serves it, if the proxy strips that path.",
)  # fmt: skip
def dashboard(
    url: str, host: str, port: int, token: str | None, basic: str | None, read_only: bool, redact: str,
    allow_host: tuple[str, ...], root_path: str,
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
    if not loopback and token is None and basic is None:
        raise click.UsageError(
            f"--host {host}: other machines can reach that address, so set --token (or {TOKEN_VARIABLE}), "
            "or --basic USER:PASSWORD"
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
    site = make(
        opened_url(url, writes=False), token=token, basic=basic, read_only=read_only, redact=redact,
        hosts=hosts,
    )  # fmt: skip
    listening = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}{root_path}/"

    async def serve() -> None:
        try:
            await site.open()
            _log.info("the dashboard of %s is on %s", without_password(url), address)
            await Server(site, root_path).serve(sockets=[listening])
        finally:
            await site.close()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def serve_with(app: App, port: int) -> InThread:
    """Start the dashboard of a worker's app on the loopback address."""
    _check_installed()
    from dayjob.dashboard.server import LOOPBACK, InThread, bind

    try:
        site = _of_app(app, LOOPBACK)
        listening = bind("127.0.0.1", port)
    except ConfigError as error:
        raise click.UsageError(f"--dashboard {port}: {error}") from error
    serving = InThread(app, site, listening)
    serving.start()
    _log.info("the dashboard is on http://127.0.0.1:%d/", listening.getsockname()[1])
    return serving


def _of_app(app: App, hosts: tuple[str, ...]) -> Dashboard:
    from dayjob.dashboard import dashboard as make

    return make(app, token=os.environ.get(TOKEN_VARIABLE) or None, hosts=hosts)


def _check_installed() -> None:
    try:
        for name in ("jinja2", "starlette", "uvicorn"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise click.UsageError(MISSING.format(error.name)) from error
