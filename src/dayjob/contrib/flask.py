"""dayjob in Flask: the application context in jobs, ``flask dayjob worker``, the dashboard as a blueprint."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import click
from flask import Blueprint, Flask, Response, abort, request
from flask.cli import ScriptInfo

from dayjob import App, ConfigError, Context, JobHandle, Task
from dayjob.contrib.job_events import END, RETRY, Data, JobMessages, is_of, progress

if TYPE_CHECKING:
    from dayjob.dashboard import User

__all__ = ["Dayjob", "event_stream", "job_or_404", "progress"]

R = TypeVar("R")

TARGET = "dayjob.contrib.flask:app"
"""The app of the site that ``FLASK_APP`` names, for ``dayjob worker`` and its child processes."""


class Dayjob:
    """The extension: ``Dayjob(jobs, web)``, or ``Dayjob(jobs)`` and later ``init_app(web)``.

    Jobs run in the application context of the site that was initialized last.
    """

    def __init__(self, jobs: App, web: Flask | None = None) -> None:
        self.jobs = jobs
        self._web: Flask | None = None
        jobs.middleware = (self._in_context, self._in_context_async, *jobs.middleware)
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        """Add the commands and the context. ``DAYJOB_URL`` of the configuration replaces the app's URL."""
        self._web = web
        web.extensions["dayjob"] = self
        web.cli.add_command(_commands)
        if "DAYJOB_URL" in web.config and self.jobs.before_use is None:  # A sandbox keeps its own store.
            url = App(web.config["DAYJOB_URL"]).url  # It raises for an invalid one.
            if self.jobs._brokers and url != self.jobs.url:
                self.jobs.call(self.jobs.close)
            self.jobs.url = url

    def dashboard(self, authorize: Callable[[], User | None] | None = None, **options: Any) -> Blueprint:
        """Return the dashboard as a blueprint: ``web.register_blueprint(…, url_prefix="/jobs")``.

        ``authorize`` is the site's own check. It is called in each request and returns a ``User``, or None;
        or it aborts. The options are those of ``dashboard``: without ``authorize`` pass ``token``.
        """
        from dayjob.dashboard import WsgiDashboard
        from dayjob.dashboard.wsgi import USER

        host_user = None if authorize is None else itemgetter(USER)
        serve = WsgiDashboard(self.jobs, authorize=host_user, **options)
        blueprint = Blueprint("dayjob", __name__)

        @blueprint.route("/", defaults={"path": ""}, methods=["GET", "POST"])
        @blueprint.route("/<path:path>", methods=["GET", "POST"])
        def page(path: str) -> Any:
            """Return the WSGI application that responds, for Flask to call."""
            inner = f"/{path}".encode().decode("latin-1")
            root = request.environ["SCRIPT_NAME"] + request.environ["PATH_INFO"].removesuffix(inner)
            user = None if authorize is None else authorize()
            mounted = {"SCRIPT_NAME": root, "PATH_INFO": inner, USER: user}
            return lambda environ, start_response: serve(environ | mounted, start_response)

        return blueprint

    def _in_context(self, ctx: Context, call_next: Callable[[], Any]) -> Any:
        """The middleware of plain functions. It runs in their thread or process."""
        with self._site().app_context():
            return call_next()

    async def _in_context_async(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """The middleware of coroutines. It runs around plain functions too, where it does nothing."""
        task = self.jobs.find(ctx.job)
        if task is None or task.pool is not None:
            return await call_next()
        with self._site().app_context():
            return await call_next()

    def _site(self) -> Flask:
        """Return the site. A child process of a task imports no factory, so it loads ``FLASK_APP``."""
        if self._web is None:
            _load_site()
        if self._web is None:
            raise ConfigError("the jobs belong to no Flask application: call init_app(web) of Dayjob(jobs)")
        return self._web


def job_or_404(source: App | Task[..., R, Any], id: str) -> JobHandle[R]:
    """Return the handle of a job by its id. Abort with 404 for an id of no job, or of no job of the task."""
    handle: JobHandle[R] = source.job(id)
    if not is_of(source, handle.record()):
        abort(404)
    return handle


def event_stream(handle: JobHandle[Any], *, data: Data = progress) -> Response:
    """Return the state of a job as server-sent events, for a browser's ``EventSource``.

    The response ends at once, and the browser reconnects a second later, until the job has finished. A stream
    that stays open would occupy a thread of the server. ``data`` returns the JSON of a record.
    """
    last_id = request.headers.get("Last-Event-ID")
    if last_id == END:
        return Response(status=204)
    messages = JobMessages(data, last_id)
    job = handle.record()
    body = RETRY if job is None else RETRY + messages.changed(job)
    if job is None or job.state.finished:
        body += messages.end()
    return Response(body, mimetype="text/event-stream", headers={"Cache-Control": "no-store"})


@click.command(
    "dayjob", add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _commands(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a command of dayjob for this site: worker, jobs, dead, ..."""
    from dayjob.cli import main
    from dayjob.cli.store_command import StoreCommand

    info = context.ensure_object(ScriptInfo)
    global _jobs
    _jobs = _jobs_of(info.load_app())
    if info.app_import_path is not None:
        os.environ["FLASK_APP"] = info.app_import_path  # For child processes.
    given: Iterable[str] = arguments or ("--help",)
    name, *rest = given
    command = main.commands.get(name)
    if command is not None and any(each.name == "app" for each in command.params):
        given = (name, TARGET, *rest)
    elif isinstance(command, StoreCommand | click.Group):
        given = ("--url", _jobs.url, name, *rest)
    main.main(list(given), prog_name="flask dayjob")


_jobs: App | None = None
"""The app of the site that the command has loaded."""


def __getattr__(name: str) -> Any:
    """``app`` is the app of the site that ``FLASK_APP`` names."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _jobs or _jobs_of(_load_site())


def _load_site() -> Flask:
    return ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()


def _jobs_of(web: Flask) -> App:
    extension = web.extensions.get("dayjob")
    if extension is None:
        raise click.UsageError(
            f"the Flask application {web.name!r} has no jobs: call Dayjob(jobs, {web.name})"
        )
    jobs: App = extension.jobs
    return jobs
